"""Invocations that are not allowed to start although the memory answers: a row says why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from audit import metrics
from audit.context import InvocationContext
from audit.errors import (
    AuditEmitFailed,
    AuditMemoryError,
    CanonicalizationError,
    ExpiredContextError,
    InvalidInvocationContext,
    InvocationError,
    MissingInvocationContext,
    PoisonedMessageError,
    SkillArgumentsError,
    TickTakenError,
    UnprovenContextError,
)
from audit.invocation import Invocation
from audit.row import Refusal
from tasks.identity import attempt_of, identify, redelivered, task_id_of
from tasks.runtime import runtime_of

logger: Final = logging.getLogger("audit")

#: The first match decides, so the special ones stand before the general ones.
REFUSALS: Final[Mapping[type[Exception], Refusal]] = {
    MissingInvocationContext: Refusal.MISSING_CONTEXT,
    InvalidInvocationContext: Refusal.INVALID_CONTEXT,
    ExpiredContextError: Refusal.EXPIRED_CONTEXT,
    UnprovenContextError: Refusal.BAD_SIGNATURE,
    SkillArgumentsError: Refusal.BAD_ARGUMENTS,
    CanonicalizationError: Refusal.UNCANONICAL_ARGUMENTS,
    PoisonedMessageError: Refusal.POISON,
    TickTakenError: Refusal.TICK_TAKEN,
}


def refuse(
    skill: Any,
    message: Mapping[str, Any],
    find: Callable[[], InvocationContext],
    error: Exception,
) -> None:
    """Put on record that the invocation was not allowed to start.

    Args:
        message: the fields of the request; none of a direct call.
        find: finds the caller; where it raises, no tenant is proven.
    """
    try:
        context: InvocationContext | None = find()
    except InvocationError:
        context = None
    refusal = next(word for kind, word in REFUSALS.items() if isinstance(error, kind))
    runtime = runtime_of(skill.app)
    identity = identify(skill, message, context, runtime.worker_id)
    Invocation(identity, runtime.recorder).refuse(refusal, str(error))


def refuse_poison(skill: Any, message: Mapping[str, Any], context: InvocationContext) -> None:
    """A message that workers die over is redelivered without end; enough is enough.

    Raises:
        PoisonedMessageError: ``audit_max_deaths`` workers died over it.
        AuditEmitFailed: the memory does not tell.
    """
    if not redelivered(message):
        return
    runtime = runtime_of(skill.app)
    most = runtime.settings.max_deaths
    name = f"{task_id_of(message)}/{attempt_of(message)}"
    try:
        deaths = runtime.recorder.deaths(context.tenant_id, name)
    except AuditMemoryError as error:
        metrics.emit_failed("start")
        logger.critical(
            "the memory does not tell how often %s was fatal, skill %s not dispatched: %s",
            name,
            skill.name,
            error,
            extra={"severity": "sev-1"},
        )
        raise AuditEmitFailed("start", str(error)) from error
    if deaths >= most:
        raise PoisonedMessageError(
            f"{deaths} workers died over this message, at most {most} may (audit_max_deaths):"
            " mend the skill or its arguments, then call it again"
        )
