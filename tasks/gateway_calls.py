"""The gateway's side of Celery: publish a skill, ask what became of it. Everything here blocks.

What is told of a failure is the error's type, and the text that its row has, which is masked; the
error as the result backend has it is read, for its class, and told to nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice
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
from audit.row import COMPLETED, AuditRow
from tasks.gateway_arguments import call_of, parse
from tasks.gateway_links import Ticket
from tasks.runtime import runtime_of
from tasks.task import SkillTask

#: A row is on record before its result is, by no more than an emit takes.
_BEFORE: Final = timedelta(seconds=5)
#: Of how many rows behind that moment the error's text is looked for.
_LOOK: Final = 2_000
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
    """Publishes and asks, for one app.

    Raises:
        SettingsError: the app cannot serve a gateway; the text says why.
    """

    def __init__(self, app: Celery) -> None:
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
        with using(context):
            skill.apply_async(args, kwargs, task_id=task_id, ignore_result=True, headers=headers)

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
        if done is None:
            return None
        memory = runtime_of(self._app).memory
        try:
            rows = memory.rows(ticket.tenant_id, since=done - _BEFORE)
            return _message(islice(rows, _LOOK), ticket.task_id)
        except AuditMemoryError:
            return None


def _message(rows: Iterable[AuditRow], task_id: str) -> str | None:
    """The text of the last attempt that is on record."""
    found = None
    for row in rows:
        if row.kind == COMPLETED and row.meta.get("task_id") == task_id:
            found = row.payload.get("error_message")
    return found


def _moment(written: object) -> datetime | None:
    """Celery's ``date_done``; UTC where it names no zone."""
    try:
        moment = datetime.fromisoformat(str(written))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
