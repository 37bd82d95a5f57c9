"""What a keeper serves over HTTP: ``/metrics``, ``/healthz`` and ``/readyz``.

* ``/metrics``: everything this process counts and measures, as Prometheus reads it.
* ``/healthz``: 200 while rounds of the keeper end, 503 when none has for :data:`HUNG_SECONDS`. An
  outage of the memory does not count: a restart would not end it.
* ``/readyz``: 200 only after a write to the memory went through just now, on a new connection to a
  server that was judged as before every first emit (age, eviction, durability); nothing of it is in
  any tenant's trail. 503 with a reason that repeats nothing of the memory's address.

Whatever is asked here stops no keeper: a bounded number of requests is answered at a time, each
within a bounded time, by threads of their own.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from opentelemetry import metrics as api
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics.export import MetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from audit import metrics
from audit.errors import AuditError, MemoryUnsuitableError, SettingsError
from audit.memory.base import AuditMemory
from audit.telemetry import end, meters, pushes, pushing_reader, resource_of

logger: Final = logging.getLogger("audit")

#: Without the end of a round for so long, a keeper hangs.
HUNG_SECONDS: Final = 30.0
#: Seconds each step of a proof may take; there are three.
PROBE_SECONDS: Final = 1.0
#: Requests that are answered at a time; more are turned away.
AT_ONCE: Final = 8
#: Seconds a client may take to say what it wants.
CLIENT_SECONDS: Final = 5.0
#: For so many seconds a proof is good for whoever asks next.
PROOF_SECONDS: Final = 1.0

#: Where the proof is written: beside the checkpoints of logs, under a name that no log has.
_PROOF_NAME: Final = "readyz"


# --- metrics ------------------------------------------------------------------------------------


class Exporting:
    """Counts while it is entered: for whoever scrapes, and over OTLP where that is set up.

    Args:
        who: the id of this keeper, or whoever else counts.
        scraped: whether :meth:`text` will be asked for.
        role: what this process is, see :func:`audit.telemetry.resource_of`.
    """

    def __init__(self, who: str, *, scraped: bool, role: str = "keeper") -> None:
        self._registry = CollectorRegistry()
        readers: list[MetricReader] = []
        if scraped:
            readers.append(
                PrometheusMetricReader(scope_info_enabled=False, registry=self._registry)
            )
        if pushes("METRICS"):
            readers.append(pushing_reader())
        self._provider = meters(readers, resource_of(role, who)) if readers else None
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> Self:
        if self._provider is not None:
            metrics.bind(self._provider)
        return self

    def __exit__(self, *raised: object) -> None:
        if self._provider is not None:
            end([self._provider])
            metrics.bind(api.NoOpMeterProvider())

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        with self._one_at_a_time:  # two at once would each get parts of both
            return generate_latest(self._registry)


# --- readiness ----------------------------------------------------------------------------------


class Proof:
    """Proves that the memory takes writes, durably as its URL asks for.

    Args:
        memory: of its own, with a short timeout.
        clock: monotonic seconds.
    """

    def __init__(self, memory: AuditMemory, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._memory = memory
        self._clock = clock
        self._one_at_a_time = threading.Lock()
        self._known: tuple[float, str] | None = None

    def reason(self) -> str:
        """Why the memory takes no writes; empty where one went through just now."""
        with self._one_at_a_time:
            now = self._clock()
            if self._known is None or now - self._known[0] >= PROOF_SECONDS:
                verdict = self._tried()
                # From its end on: whoever waited for it takes it, else each would wait in turn.
                self._known = (self._clock(), verdict)
            return self._known[1]

    def _tried(self) -> str:
        try:
            self._memory.check()
            return self._written()
        except MemoryUnsuitableError as error:
            return str(error)
        except AuditError:
            # Its text tells the address, and it is in the log of whoever emits.
            return "the audit memory does not take writes"

    def _written(self) -> str:
        """Another keeper may write at the same moment: then its word stands, and ours is tried."""
        for _ in range(3):
            before = self._memory.sealed(_PROOF_NAME)
            word = f"{time.time_ns()}".encode()
            if self._memory.swap_sealed(_PROOF_NAME, before, word):
                return ""
        return "other keepers write all the time"


# --- HTTP ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pages:
    """What is asked for each request.

    Attributes:
        metrics: the metrics, as text.
        late_seconds: since when no round has ended; ``None`` before the first begins.
        unready: why the memory takes no writes; empty where it does.
    """

    metrics: Callable[[], bytes]
    late_seconds: Callable[[], float | None]
    unready: Callable[[], str]

    def answer(self, path: str) -> tuple[HTTPStatus, bytes]:
        """What is under a path."""
        page = path.partition("?")[0]
        if page == "/metrics":
            return HTTPStatus.OK, self.metrics()
        if page == "/healthz":
            return self._health()
        if page == "/readyz":
            return _verdict(self.unready())
        return HTTPStatus.NOT_FOUND, b"here are /metrics, /healthz and /readyz\n"

    def _health(self) -> tuple[HTTPStatus, bytes]:
        late = self.late_seconds()
        if late is not None and late > HUNG_SECONDS:
            return _verdict(f"no round of this keeper has ended for {late:.0f} s")
        return _verdict("")


def _verdict(reason: str) -> tuple[HTTPStatus, bytes]:
    if reason:
        return HTTPStatus.SERVICE_UNAVAILABLE, f"{reason}\n".encode()
    return HTTPStatus.OK, b"ok\n"


class _Handler(BaseHTTPRequestHandler):
    """Answers one GET or HEAD, and closes."""

    timeout = CLIENT_SECONDS
    server: _Server
    server_version = "skill-host"
    sys_version = ""

    def setup(self) -> None:
        # The timeout alone bounds each read: who sends byte after byte would hold a place for ever.
        self._too_late = threading.Timer(CLIENT_SECONDS, self._hang_up, [self.request])
        self._too_late.daemon = True
        self._too_late.start()
        super().setup()

    def finish(self) -> None:
        self._too_late.cancel()
        super().finish()

    @staticmethod
    def _hang_up(client: socket.socket) -> None:
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        self._too_late.cancel()
        try:
            status, text = self.server.pages.answer(self.path)
        except Exception:  # a mistake of ours must be seen by whoever asks, and end nobody
            logger.exception("a page of the keeper could not be made")
            status, text = HTTPStatus.INTERNAL_SERVER_ERROR, b"see the keeper's log\n"
        is_metrics = status is HTTPStatus.OK and self.path.startswith("/metrics")
        kind = CONTENT_TYPE_PLAIN_0_0_4 if is_metrics else "text/plain; charset=utf-8"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if body:
            self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """A probe every few seconds is not worth a line."""


class _Server(ThreadingHTTPServer):
    """Answers so many at a time, and turns the others away."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, place: tuple[str, int], pages: Pages) -> None:
        self.pages = pages
        self._places = threading.BoundedSemaphore(AT_ONCE)
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        super().__init__(place, _Handler)

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        # Not the one above: it asks a name server for our name.
        self.server_name, self.server_port = self.socket.getsockname()[:2]
        self.server_address = (self.server_name, self.server_port)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is its own affair."""


@contextmanager
def serving(place: tuple[str, int], pages: Pages) -> Iterator[tuple[str, int]]:
    """Serve at ``place``; yields where that is, as port 0 means any.

    Raises:
        SettingsError: nobody can listen there.
    """
    try:
        server = _Server(place, pages)
    except OSError as error:
        host = f"[{place[0]}]" if ":" in place[0] else place[0]
        raise SettingsError(
            f"audit_keeper_listen (or AUDIT_KEEPER_LISTEN): {host}:{place[1]} cannot be listened at"
            f" ({error.strerror}): another keeper may be there; give this one another place, or"
            ' "off"'
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="audit-keeper-http", daemon=True)
    thread.start()
    try:
        yield server.server_name, server.server_port
    finally:
        server.shutdown()
        server.server_close()
