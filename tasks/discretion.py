"""What others than the caller get to see of an invocation: hashes and masked texts.

Celery tells the outcome of a task to the result backend, which the caller reads, and then to
everybody else: signals, its log, and the worker's main process, which makes events of it. All that
comes after the result backend goes through here. A skill whose body is excluded tells its caller no
more than anybody else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

from celery.app.trace import trace_ok_t
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded, TaskPredicate

from audit.errors import AuditError, BodyExcludedError
from tasks.caller import ChildState, child_state, one_task, running
from tasks.reprs import WITHHELD
from tasks.runtime import runtime_of
from tasks.standin import mask_error, mask_info, unwrapped

logger: Final = logging.getLogger("audit")

#: Errors whose class Celery, or the host, has a use for.
_NOT_THE_BODYS: Final = (TaskPredicate, SoftTimeLimitExceeded, MemoryError, AuditError)


def values_of(args: Any, kwargs: Any) -> tuple[object, ...]:
    """The values alone: parameter names stand in the skill's own code."""
    return (args, list(kwargs.values()) if isinstance(kwargs, Mapping) else kwargs)


def type_only(skill: Any) -> bool:
    """Whether texts of a skill's errors are left out altogether."""
    return skill.body_excluded or runtime_of(skill.app).settings.error_message == "type"


def result_of(skill: Any, state: ChildState, result: Any) -> Any:
    """What goes to the result backend and to the next link: the result, or a reference to it."""
    if not skill.body_excluded or skill.request_stack.top.called_directly:
        return result
    request_id = state.invocation.identity.request_id
    return {"request_id": request_id, "result_hash": state.result_shown}


def error_of(skill: Any, state: ChildState, error: BaseException) -> BaseException:
    """What leaves the body in the place of ``error``, which may be ``error`` itself.

    What no hook gets to see is masked here: what Celery logs of by itself, and what ends a process.
    An eager caller is in this very process, and gets every error as it is.
    """
    if skill.body_excluded and isinstance(error, Exception):
        if not isinstance(error, _NOT_THE_BODYS):
            request_id = state.invocation.identity.request_id
            return BodyExcludedError(type(error).__qualname__, request_id)
        # The host's own say no values, and a caller reads their parts; what caused one might.
        seen = isinstance(error, AuditError)
        if seen:
            error.__cause__ = error.__context__ = None
    else:
        seen = isinstance(error, Exception) and not isinstance(error, Ignore | Reject)
    if not (seen or skill.request_stack.top.is_eager):
        mask_error(error, state.values, type_only=state.type_only)
    return error


def mask_failure(skill: Any, info: Any, args: Any, kwargs: Any) -> None:
    """Mask what Celery passes on of a failure: to its log, events and receivers of signals."""
    if info is None:
        return
    if not runtime_of(skill.app).settings.redact_logs:
        error = unwrapped(info.exception)
        logger.info("the error of skill %s as it was", skill.name, exc_info=error)
    state = child_state(skill.request_stack.top)
    values = state.values if state is not None else values_of(args, kwargs)
    mask_info(info, values, type_only=type_only(skill))


def masking_first(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook of an application's own, which may never call ours: masked is before it runs."""
    if hasattr(hook, "masks"):
        return hook

    @wraps(hook)
    def masked(self: Any, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> Any:
        mask_failure(self, einfo, args, kwargs)
        return hook(self, exc, task_id, args, kwargs, einfo)

    masked.masks = True  # type: ignore[attr-defined]
    return masked


def discreet(skill: Any, tracer: Callable[..., Any]) -> Callable[..., Any]:
    """Celery's tracer, with hashes and masked texts in what it tells the worker's main process."""

    def trace(uuid: str, args: Any, kwargs: Any, request: Any = None) -> Any:
        with one_task():
            told = tracer(uuid, args, kwargs, request)
            state = running()
        if told.info is None:
            hashed = state.result_shown if state is not None else None
            return trace_ok_t(told.retval, None, told.runtime, hashed or WITHHELD)
        # Masked already, but where Celery itself stumbled and called no hook.
        values = state.values if state is not None else values_of(args, kwargs)
        mask_info(told.retval, values, type_only=type_only(skill))
        return told

    return trace
