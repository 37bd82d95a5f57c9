"""From a checked request to an answer: published, waited for, or looked up.

The task id is made before anything is published. So whatever happens then, the answer can name the
status link, and what may have been published is not lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from kombu.exceptions import OperationalError

from audit.context import InvocationContext
from audit.errors import (
    AuditEmitFailed,
    CanonicalizationError,
    InvalidInvocationContext,
    InvocationError,
    SkillArgumentsError,
)
from tasks.gateway_arguments import MalformedBodyError
from tasks.gateway_calls import Calls, Outcome, State
from tasks.gateway_links import StatusLinks, Ticket
from tasks.gateway_problem import Fault, Problem, report
from tasks.gateway_threads import BusyError, Threads, UnansweredError, Waits
from tasks.gateway_tokens import Token
from tasks.task import SkillTask

logger: Final = logging.getLogger("audit")

#: Seconds between two looks for a result: the first pause, and the longest.
FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 0.25

_BUSY: Final = "the gateway has as many requests as it takes; nothing was published"
_NO_ANSWER: Final = "the result backend is out of reach, or what it keeps cannot be read"
_UNKNOWN: Final = "whether it was published is unknown, its status link tells once it runs"


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A call that was published, or may have been.

    Attributes:
        ticket: the message.
        trace_id: the trace that its rows name.
        link: the address to ask at; ``None`` for a skill that keeps no result.
    """

    ticket: Ticket
    trace_id: str | None
    link: str | None

    def members(self) -> dict[str, Any]:
        """What every answer about it says."""
        return {
            "task_id": self.ticket.task_id,
            "trace_id": self.trace_id,
            "status_link": self.link,
        }

    def problem(self, fault: Fault, detail: str, **more: Any) -> Problem:
        """An answer that has its link all the same."""
        return Problem(fault, detail, headers=self.headers(), **self.members(), **more)

    def headers(self) -> dict[str, str]:
        """Where the answer points to."""
        return {"Location": self.link} if self.link is not None else {}


class Desk:
    """Serves requests that have been checked.

    Args:
        calls: what is called, in threads.
        links: makes and reads status links.
        publishing: the threads of the broker alone: where it hangs, answers are still given.
        asking: those of result backend and memory: where they hang, calls are still taken.
        waits: how many may wait for a result.
    """

    def __init__(
        self,
        calls: Calls,
        links: StatusLinks,
        publishing: Threads,
        asking: Threads,
        waits: Waits,
    ) -> None:
        self._calls = calls
        self._links = links
        self._publishing = publishing
        self._asking = asking
        self._waits = waits
        self._answered = True

    def skills(self) -> Mapping[str, SkillTask]:
        """What can be called, by id."""
        return self._calls.skills()

    async def publish(
        self, skill: SkillTask, body: bytes, context: InvocationContext, base: str
    ) -> Published:
        """Publish a call.

        Raises:
            Problem: the arguments are at fault (400), the context cannot be signed here (403), or
                the broker is out of reach (503).
        """
        published = self._published(skill, context, base)
        try:
            await self._publishing.run(
                self._calls.publish, skill, body, context, published.ticket.task_id
            )
        except BusyError:
            raise Problem(Fault.BUSY, _BUSY) from None
        except UnansweredError:
            raise published.problem(
                Fault.BROKER_UNREACHABLE, f"the broker does not answer; {_UNKNOWN}"
            ) from None
        except (OperationalError, OSError) as error:
            logger.warning("the gateway cannot publish: %s", type(error).__name__)
            raise published.problem(
                Fault.BROKER_UNREACHABLE, f"the broker is out of reach; {_UNKNOWN}"
            ) from None
        except (MalformedBodyError, SkillArgumentsError, CanonicalizationError) as error:
            raise _bad_arguments(error) from None
        except InvalidInvocationContext as error:
            raise Problem(Fault.NOT_ALLOWED, str(error)) from None
        except Exception as error:
            report(error)
            raise published.problem(Fault.INTERNAL, f"the gateway failed; {_UNKNOWN}") from None
        return published

    def _published(self, skill: SkillTask, context: InvocationContext, base: str) -> Published:
        ticket = Ticket(str(uuid4()), context.tenant_id)
        link = f"{base}/v1/invocations/{self._links.make(ticket)}"
        kept = self._calls.keeps_result(skill)
        return Published(ticket=ticket, trace_id=context.trace_id, link=link if kept else None)

    async def perform(
        self,
        skill: SkillTask,
        body: bytes,
        context: InvocationContext,
        base: str,
        seconds: float,
        gone: Callable[[], Awaitable[bool]],
    ) -> tuple[Published, dict[str, Any]]:
        """Publish a call and wait for its result.

        Args:
            skill, body, context, base: see :meth:`publish`.
            seconds: how long at most.
            gone: whether nobody waits any more.

        Raises:
            Problem: as :meth:`publish`; the skill failed or was refused; time ran out (504).
        """
        if not self._calls.keeps_result(skill):
            raise Problem(Fault.NO_RESULT_KEPT, "no result of this skill is kept: leave out wait")
        try:
            with self._waits:
                published = await self.publish(skill, body, context, base)
                outcome = await self._wait(published.ticket, seconds, gone)
        except BusyError:
            raise Problem(Fault.BUSY, _BUSY) from None
        if outcome is None:
            raise published.problem(
                Fault.WAIT_OVER, f"not done within {seconds:g} s; ask at its status link"
            )
        if outcome.state is not State.SUCCEEDED:
            raise await self._failed(published, outcome)
        return published, {"state": outcome.state.value, "result": outcome.result}

    async def _wait(
        self, ticket: Ticket, seconds: float, gone: Callable[[], Awaitable[bool]]
    ) -> Outcome | None:
        clock = asyncio.get_running_loop().time
        deadline, pause = clock() + seconds, FIRST_PAUSE
        while True:
            outcome = await self._look(ticket)
            if outcome is not None and outcome.over:
                return outcome
            left = deadline - clock()
            if left <= 0 or await gone():
                return None
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, LONGEST_PAUSE)

    async def _look(self, ticket: Ticket) -> Outcome | None:
        """``None`` where it could not be asked: another look may tell."""
        try:
            outcome = await self._asking.run(self._calls.outcome, ticket.task_id)
        except Exception as error:
            if self._answered:  # once, for every wait asks again and again
                logger.warning("the gateway cannot ask for a result: %s", type(error).__name__)
            self._answered = False
            return None
        self._answered = True
        return outcome

    async def status(self, link: str, token: Token) -> dict[str, Any]:
        """How far the invocation behind a link is.

        Raises:
            Problem: the link is none, or of a tenant that the token may not name (404).
        """
        ticket = self._links.read(link)
        if ticket is None or not token.allows_tenant(ticket.tenant_id):
            raise Problem(Fault.UNKNOWN_INVOCATION, "there is no such invocation")
        outcome = await self._look(ticket)
        if outcome is None:
            raise Problem(Fault.RESULTS_UNREACHABLE, _NO_ANSWER)
        members: dict[str, Any] = {"state": outcome.state.value, "task_id": ticket.task_id}
        if outcome.state is State.SUCCEEDED:
            members["result"] = outcome.result
        elif outcome.over:
            members["error"] = await self._told(ticket, outcome)
        return members

    async def _told(self, ticket: Ticket, outcome: Outcome) -> dict[str, str | None]:
        if _is_gate(outcome.error):
            return {"type": type(outcome.error).__name__, "message": _NOT_ON_RECORD}
        try:
            return await self._asking.run(self._calls.told, ticket, outcome)
        except (BusyError, UnansweredError):
            error = outcome.error
            kind = type(error).__name__ if error is not None else outcome.state.value
            return {"type": kind, "message": None}

    async def _failed(self, published: Published, outcome: Outcome) -> Problem:
        error, state = outcome.error, outcome.state.value
        told = {"state": state, "error": await self._told(published.ticket, outcome)}
        if _is_gate(error):
            return published.problem(Fault.NOT_ON_RECORD, _NOT_ON_RECORD, **told)
        if isinstance(error, InvocationError | SkillArgumentsError):
            detail, status = "the worker refused the call", error.http_status
            return published.problem(Fault.REFUSED, detail, status=status, **told)
        detail = "the skill failed" if error is not None else f"the skill was {state}"
        return published.problem(Fault.SKILL_FAILED, detail, **told)


_NOT_ON_RECORD: Final = (
    "the audit memory did not take a started row in time, so the skill (or one that it called) did"
    " not run"
)


def _is_gate(error: BaseException | None) -> bool:
    """Whether the memory was out of reach when a skill was to start."""
    return isinstance(error, AuditEmitFailed) and error.stage == "start"


def _bad_arguments(error: Exception) -> Problem:
    if isinstance(error, CanonicalizationError):
        return Problem(Fault.UNCANONICAL_ARGUMENTS, str(error))
    if isinstance(error, SkillArgumentsError):
        return Problem(Fault.BAD_ARGUMENTS, str(error))
    return Problem(
        Fault.MALFORMED_BODY,
        "the body takes the arguments by name as one JSON object, in UTF-8, each name once",
    )
