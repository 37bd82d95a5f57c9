"""What every request goes through: a place in the caller's trace, and nothing of it in a log.

* The caller's W3C headers are adopted: what is published lands in their trace, below a span of the
  gateway's own where a tracer provider is set. The span has the route, not the address.
* An error that nobody foresaw is answered by a plain 500; the log gets its type and the lines of
  code, for its text may repeat a value.
* A request with two lengths is none, and ends its connection.
* Answers are not to be cached, and uvicorn's access log loses its query strings.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from audit.context import TRACE_HEADER, TRACE_STATE_HEADER
from tasks.gateway_problem import Fault, Problem, report

_W3C: Final = TraceContextTextMapPropagator()
_ACCESS_LOG: Final = "uvicorn.access"


class GatewayMiddleware:
    """Around everything that answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by the server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with trace.get_tracer("tasks.gateway").start_as_current_span(
            scope["method"],
            context=_W3C.extract(_carrier(scope["headers"])),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": scope["method"]},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            await self._answer(scope, receive, _Answer(send, scope, span))

    async def _answer(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        if _has_two_lengths(scope["headers"]):
            await _TWO_LENGTHS.response()(scope, receive, answer)
            return
        try:
            await self._app(scope, receive, answer)
        except Exception as error:
            report(error)
            if answer.begun:
                return
            problem = Problem(Fault.INTERNAL, "the gateway failed; its log says more")
            await problem.response()(scope, receive, answer)


class _Answer:
    """Sends on, and notes in the span how it was answered."""

    def __init__(self, send: Send, scope: Scope, span: trace.Span) -> None:
        self._send, self._scope, self._span = send, scope, span
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            message["headers"] = [*message.get("headers", ()), (b"cache-control", b"no-store")]
            self._note(message["status"])
        await self._send(message)

    def _note(self, status: int) -> None:
        route = getattr(self._scope.get("route"), "path", None)
        if route is not None:
            self._span.update_name(f"{self._scope['method']} {route}")
            self._span.set_attribute("http.route", route)
        self._span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._span.set_status(Status(StatusCode.ERROR))


#: The server goes by one of them, a proxy before it perhaps by the other, and each sees other
#: requests in what follows (RFC 9112, 6.3): nothing more is read of such a connection.
_TWO_LENGTHS: Final = Problem(
    Fault.MALFORMED_BODY,
    "a request takes Content-Length or Transfer-Encoding, not both",
    headers={"Connection": "close"},
)


def _has_two_lengths(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return {b"content-length", b"transfer-encoding"} <= {name.lower() for name, _ in headers}


def _carrier(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The W3C headers; ``traceparent`` only where there is one (W3C Trace Context, 3.2)."""
    found = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]
    parents = [value for name, value in found if name == TRACE_HEADER]
    states = [value for name, value in found if name == TRACE_STATE_HEADER]
    if len(parents) != 1:
        return {}
    return {TRACE_HEADER: parents[0], TRACE_STATE_HEADER: ",".join(states)}


class WithoutQuery(logging.Filter):
    """Whoever writes arguments into a query string is refused; the access log forgets them too."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Called for each record: uvicorn's third argument is the address."""
        args: Any = record.args
        if isinstance(args, tuple) and len(args) > 2 and isinstance(args[2], str):
            record.args = (*args[:2], args[2].partition("?")[0], *args[3:])
        return True


def keep_queries_out_of_the_log() -> None:
    """Once a process, however many gateways there are in it."""
    log = logging.getLogger(_ACCESS_LOG)
    if not any(isinstance(known, WithoutQuery) for known in log.filters):
        log.addFilter(WithoutQuery())
