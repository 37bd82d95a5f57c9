"""Context in, values out, at every publish.

Every way to publish in Celery ends in ``amqp.as_task_v2`` and ``amqp.send_task_message``, whether
an application, a canvas, a retry or Celery itself publishes. So this is where the context goes
into the message (decision 16), and where hashes take the place of argument reprs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from celery import Celery
from celery.app.amqp import AMQP
from kombu.pools import ProducerPool
from opentelemetry import trace

from audit.context import CONTEXT_HEADERS, InvocationContext, Trace
from audit.errors import (
    InvalidInvocationContext,
    MissingInvocationContext,
    SkillDefinitionError,
)
from audit.keys import Key
from audit.signing import SIGNATURE_HEADER
from tasks import telemetry
from tasks.caller import REQUEST_ID_HEADER, is_discreet, publishing_context
from tasks.coroutine import PerThread, in_lent_thread
from tasks.headers import unusable_header
from tasks.proof import PROOF_HEADER, SigningProducer
from tasks.reprs import as_sent, shown
from tasks.runtime import runtime_of
from tasks.task import SkillTask

#: Headers that say what is executed; Celery would let a caller's headers replace them.
PROTOCOL_HEADERS: Final = ("id", "task")

_PROTOCOL: Final = "task_protocol must be 2: protocol 1 has no headers to carry the caller"


class SkillAMQP(AMQP):
    """Celery's AMQP with the invocation context in every message."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self._lent_producers = PerThread(self._make_producers)

    @property
    def producer_pool(self) -> Any:
        """The producers that may be used in this thread."""
        if in_lent_thread():
            return self._lent_producers.get()
        return super().producer_pool

    publisher_pool = producer_pool

    def _make_producers(self) -> ProducerPool:
        limit = self.app.conf.broker_pool_limit
        return ProducerPool(self.app.connection_for_write().Pool(limit=limit), limit=limit)

    def as_task_v2(
        self,
        task_id: str,
        name: str,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        """Build a message whose argument reprs are hashes.

        Raises:
            CanonicalizationError: an argument of a skill has no canonical form; nothing is sent.
            SkillArgumentsError: the arguments do not fit the skill; nothing is sent.
            SkillDefinitionError: an errback is a skill that takes more than one argument.
        """
        task = self.app.tasks.get(name)
        if task is None or is_discreet(task):
            key = self._hash_key(options.get("headers"))
            options["argsrepr"] = options["kwargsrepr"] = (
                shown(task.args_hash(args or (), kwargs or {}, key))
                if isinstance(task, SkillTask)
                else as_sent(args, kwargs, key)
            )
        message = super().as_task_v2(task_id, name, args, kwargs, *rest, **options)
        for errback in message.body[2]["errbacks"] or ():
            self._check_errback(errback)
        return message

    def _hash_key(self, headers: Any) -> Key | None:
        """The key of the hashes of the tenant that is published for."""
        runtime = runtime_of(self.app)
        if not runtime.settings.hash_keys:
            return None
        context = publishing_context() or _explicit(_checked(headers))
        return runtime.hash_key(context.tenant_id) if context is not None else None

    def as_task_v1(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Protocol 1 has no headers to carry the caller.

        Raises:
            SkillDefinitionError: always.
        """
        raise SkillDefinitionError(_PROTOCOL)

    def _check_errback(self, errback: Any) -> None:
        """Celery runs an errback of several arguments inline, on values that are no JSON."""
        task = self.app.tasks.get(errback.get("task")) if isinstance(errback, Mapping) else None
        if isinstance(task, SkillTask) and not task.fits_errback(errback):
            raise SkillDefinitionError(
                f"skill {task.name} cannot be an errback as given: besides what its signature"
                " brings along, it must take exactly one argument, the id of the failed task"
            )

    def _create_task_sender(self) -> Callable[..., Any]:
        send = super()._create_task_sender()

        def send_task_message(
            producer: Any,
            name: str,
            message: Any,
            *rest: Any,
            headers: Any = None,
            **options: Any,
        ) -> Any:
            settings = runtime_of(self.app).settings
            if settings.instrument:
                telemetry.instrument()
            merged, place = self._headers(message.headers, _checked(headers))
            message = message._replace(headers=merged)
            for raw in ("argsrepr", "kwargsrepr"):
                options.pop(raw, None)  # a caller's own would go along as a property
            if settings.context_keys:
                producer = SigningProducer(producer, settings.context_keys)
            span = place.span() if place is not None else trace.get_current_span()
            # Also where the span is current already: an instrumentor does not leave its own span
            # when publishing fails, and what is published next would land in that one's trace.
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                return send(producer, name, message, *rest, **options)

        return send_task_message

    def _headers(
        self, own: Mapping[str, Any], extra: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Trace | None]:
        """The message's headers, and the place in a trace to be made current for publishing."""
        for name in PROTOCOL_HEADERS:
            if extra.get(name, own.get(name)) != own.get(name):
                raise InvalidInvocationContext(
                    f"a header may not replace the message's own {name!r}: leave it out of headers="
                )
        merged = {**own, **extra}
        if (unusable := unusable_header(merged)) is not None:
            raise InvalidInvocationContext(
                f"header {unusable!r} has a value no worker could use: leave it out of headers="
            )
        for stale in (REQUEST_ID_HEADER, PROOF_HEADER, SIGNATURE_HEADER):
            merged.pop(stale, None)
        context = publishing_context() or _explicit(merged)
        if context is None:
            if isinstance(self.app.tasks.get(own["task"]), SkillTask):
                raise MissingInvocationContext
            return merged, None
        place, inherited = _place(context)
        merged = {k: v for k, v in merged.items() if k not in CONTEXT_HEADERS}
        return {**merged, **context.in_trace(place).headers()}, place if inherited else None


def require_protocol_2(app: Celery) -> None:
    """Refuse a configuration whose messages cannot carry the caller.

    Raises:
        SkillDefinitionError: ``task_protocol`` is not 2.
    """
    if app.conf.task_protocol != 2:
        raise SkillDefinitionError(_PROTOCOL)


def _checked(headers: Any) -> Mapping[str, Any]:
    if headers is None or isinstance(headers, Mapping):
        return headers or {}
    raise InvalidInvocationContext(f"headers= must be a mapping, got {type(headers).__name__}")


def _explicit(headers: Mapping[str, Any]) -> InvocationContext | None:
    """The context that ``headers=`` names itself, as an entry of a beat schedule does."""
    try:
        return InvocationContext.from_headers(headers)
    except MissingInvocationContext:
        return None


def _place(context: InvocationContext) -> tuple[Trace, bool]:
    """The place in the trace that is published from, and whether only the context knows it.

    The current span goes before the place the invocation has in its trace, but never into another
    trace: whatever spans a worker makes, rows stay in the caller's. A fresh trace is not made
    current: where an SDK is set up, its own root span (which its sampler decides on) goes into the
    message instead.
    """
    current = Trace.current()
    if context.trace is None:
        return current or Trace.fresh(), False
    if current is not None and current.trace_id == context.trace.trace_id:
        return current, False
    return context.trace, True
