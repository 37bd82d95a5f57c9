"""The gateway's side of Celery: publish a skill, ask what became of it. Everything here blocks.

What is told of a failure is the error's type, and the text that its row has, which is masked; the
error as the result backend has it is read, for its class, and told to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from celery import Celery, states
from celery.backends.base import DisabledBackend
from opentelemetry import trace

from audit.context import TRACE_STATE_HEADER, InvocationContext, using
from audit.errors import (
    AuditMemoryError,
    InvocationError,
    SettingsError,
    SkillArgumentsError,
)
from audit.memory.base import RowFilter
from audit.row import COMPLETED
from tasks.gateway_arguments import call_of, parse
from tasks.gateway_links import Ticket
from tasks.runtime import runtime_of
from tasks.task import SkillTask

#: A row is on record before its result is, by no more than an emit takes.
_BEFORE: Final = timedelta(seconds=5)
#: By how much the memory's clock may be ahead of the worker's.
_AFTER: Final = timedelta(seconds=1)
_IGNORE_RESULT: Final = "ignore_result"


class State(StrEnum):
    """How far an invocation is, as far as the result backend tells."""

    PENDING = "pending"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REVOKED = "revoked"


_STATES: Final = {
    states.RETRY: State.RETRYING,
    states.SUCCESS: State.SUCCEEDED,
    states.FAILURE: State.FAILED,
    states.REVOKED: State.REVOKED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What the result backend says of a message.

    Attributes:
        state: how far it is.
        result: what the skill returned; a reference where its body is excluded.
        error: what failed it.
        done: when.
    """

    state: State
    result: Any = None
    error: BaseException | None = None
    done: datetime | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.state not in (State.PENDING, State.RETRYING)


class Calls:
    """Publishes and asks, for one app, whose connections are bounded in time by this.

    Args:
        app: the host.
        seconds: that somebody waits for one call. Redis, as broker and as result backend, may
            take twice as long, so that a call given up in a short hang is still published. Celery
            sets a broker no limit: a connection that died silently would keep its thread for good.

    Raises:
        SettingsError: the app cannot serve a gateway; the text says why.
    """

    def __init__(self, app: Celery, seconds: float) -> None:
        if app.conf.task_always_eager:
            raise SettingsError(
                "task_always_eager would run skills in the gateway itself: leave it out"
            )
        if str(app.conf.result_backend or "").startswith("rpc"):
            raise SettingsError(
                "result_backend is rpc, whose results reach the publishing process alone: take one"
                " that every gateway can ask, like Redis"
            )
        self._app = app
        self._once = _bound_broker(app, 2 * seconds)
        _bound_results(app, 2 * seconds)

    def skills(self) -> dict[str, SkillTask]:
        """The skills that are declared, by their id; plain tasks are none."""
        self._app.loader.import_default_modules()
        self._app.finalize()
        tasks = self._app.tasks.items()
        return {name: task for name, task in tasks if isinstance(task, SkillTask)}

    def keeps_result(self, skill: SkillTask) -> bool:
        """Whether anything can be asked about an invocation of this skill."""
        return not (skill.ignore_result or isinstance(self._app.backend, DisabledBackend))

    def publish(
        self, skill: SkillTask, body: bytes, context: InvocationContext, task_id: str
    ) -> None:
        """Publish a call.

        Raises:
            MalformedBodyError, SkillArgumentsError, CanonicalizationError: the arguments are at
                fault, nothing was published.
            InvalidInvocationContext: no key of this host signs for this caller; likewise.
            kombu.exceptions.OperationalError: the broker is out of reach.
        """
        args, kwargs = call_of(skill.parameters, parse(body))
        state = trace.get_current_span().get_span_context().trace_state
        headers = {TRACE_STATE_HEADER: state.to_header()} if state else {}
        # Celery's Redis backend would subscribe to each result that is not ignored, in a connection
        # nobody reads here. So this call ignores it, and the message says that the worker does not.
        headers[_IGNORE_RESULT] = bool(skill.ignore_result)  # type: ignore[assignment]
        # What was sent may lie in a socket that a broker reads later: again would be twice.
        policy = {"retry": False} if self._once else {}
        with using(context):
            skill.apply_async(
                args, kwargs, task_id=task_id, ignore_result=True, headers=headers, **policy
            )

    def outcome(self, task_id: str) -> Outcome:
        """What became of a message."""
        meta = self._app.backend.get_task_meta(task_id, cache=False)
        state = _STATES.get(meta["status"], State.PENDING)
        if state is State.SUCCEEDED:
            return Outcome(state=state, result=meta["result"])
        error = meta.get("result")
        return Outcome(
            state=state,
            error=error if isinstance(error, BaseException) else None,
            done=_moment(meta.get("date_done")),
        )

    def told(self, ticket: Ticket, outcome: Outcome) -> dict[str, str | None]:
        """What may be told of an error: its type, and its text as its row has it."""
        error = outcome.error
        kind = type(error).__name__ if error is not None else outcome.state.value
        recorded = self._recorded(ticket, outcome.done)
        if recorded is None and isinstance(error, InvocationError | SkillArgumentsError):
            recorded = str(error)  # refused, so no row has a text; this one names no value
        return {"type": kind, "message": recorded}

    def _recorded(self, ticket: Ticket, done: datetime | None) -> str | None:
        """The text of the last attempt that is on record."""
        if done is None:
            return None
        memory = runtime_of(self._app).memory
        wanted = RowFilter(
            tenant_id=ticket.tenant_id,
            task_id=ticket.task_id,
            kind=COMPLETED,
            since=done - _BEFORE,
        )
        try:
            # Around the result; where clocks disagree or the row was spooled, among the newest.
            for cursor in (memory.cursor_at(done + _AFTER), None):
                for row in memory.page(wanted, most=1, cursor=cursor).rows:
                    text: str | None = row.payload.get("error_message")
                    return text
        except AuditMemoryError:
            pass
        return None


def _bound_broker(app: Celery, seconds: float) -> bool:
    """Bound what a broker may take, where that is a Redis; whether it is one."""
    if app.connection_for_write().transport.driver_type != "redis":
        return False
    bounds = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
    app.conf.broker_transport_options = {**bounds, **(app.conf.broker_transport_options or {})}
    return True


def _bound_results(app: Celery, seconds: float) -> None:
    """Bound what a Redis as result backend may take; asking it again is harmless."""
    for name in ("redis_socket_timeout", "redis_socket_connect_timeout"):
        app.conf[name] = min(app.conf[name] or seconds, seconds)


def _moment(written: object) -> datetime | None:
    """Celery's ``date_done``; UTC where it names no zone."""
    try:
        moment = datetime.fromisoformat(str(written))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
