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

from billiard.einfo import ExceptionInfo
from celery.app.trace import trace_ok_t
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded, TaskPredicate

from audit.errors import AuditError, BodyExcludedError
from audit.masking import Masker
from tasks.caller import ChildState, child_state, is_built_in, one_task, running, runs
from tasks.held import close_held
from tasks.reprs import WITHHELD
from tasks.runtime import runtime_of
from tasks.standin import mask_error, mask_info, stand_in, unwrapped

logger: Final = logging.getLogger("audit")

#: Hooks that mask what Celery passes on; one of an application's own runs after that.
MASKING_HOOKS: Final = ("on_failure", "on_retry")

#: Errors whose class Celery, or the host, has a use for.
_NOT_THE_BODYS: Final = (TaskPredicate, SoftTimeLimitExceeded, MemoryError, AuditError)


def values_of(args: Any, kwargs: Any) -> tuple[object, ...]:
    """The values alone: parameter names stand in the skill's own code."""
    return (args, list(kwargs.values()) if isinstance(kwargs, Mapping) else kwargs)


def type_only(skill: Any) -> bool:
    """Whether texts of a skill's errors are left out altogether."""
    excluded = getattr(skill, "body_excluded", False)
    return excluded or runtime_of(skill.app).settings.error_message == "type"


def result_of(skill: Any, state: ChildState, result: Any) -> Any:
    """What goes to the result backend and to the next link: the result, or a reference to it."""
    if not skill.body_excluded or state.direct:
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
    if seen or skill.request_stack.top.is_eager:
        return error
    mask_error(error, state.values, type_only=state.type_only)
    own = not isinstance(error, Exception) and type(error).__module__ != "builtins"
    if own and _still_shows(error, state):
        return stand_in(error, state.values, type_only=state.type_only)
    return error


def _still_shows(error: BaseException, state: ChildState) -> bool:
    """Whether an error prints something else than its arguments, which have been masked."""
    try:
        told = f"{error!s}\n{error!r}"
    except Exception:  # then Celery's log cannot print it either
        return True
    return state.values.mask(told) != told


def mask_failure(skill: Any, info: Any, args: Any, kwargs: Any) -> None:
    """Mask what Celery passes on of a failure: to its log, events and receivers of signals."""
    if info is None:
        return
    if not runtime_of(skill.app).settings.redact_logs:
        error = unwrapped(info.exception)
        logger.info("the error of skill %s as it was", skill.name, exc_info=error)
    state = child_state(skill.request_stack.top)
    values = state.values if state is not None else _values_here(args, kwargs)
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


def discreet(task: Any, tracer: Callable[..., Any]) -> Callable[..., Any]:
    """Celery's tracer, with hashes and masked texts in what it tells the worker's main process."""

    def trace(uuid: str, args: Any, kwargs: Any, request: Any = None) -> Any:
        with one_task():
            if is_built_in(task):
                runs(ChildState(None, None, values_of(args, kwargs), args_shown=WITHHELD))
            try:
                told = tracer(uuid, args, kwargs, request)
                close_held(running(), told.retval)
            except BaseException as error:  # a hook's, or one that Celery lets through
                close_held(running(), error)
                leaving = _out_of_tracer(task, error, args, kwargs)
                if leaving is error:
                    raise
            else:
                return _discreetly(task, told, args, kwargs)
        raise leaving

    return trace


def make_discreet(task: Any) -> None:
    """Keep what goes through one of Celery's own tasks out of what Celery tells of it."""
    kind = type(task)
    for hook in MASKING_HOOKS:
        setattr(kind, hook, masking_first(getattr(kind, hook)))
    if not isinstance(vars(kind).get("__trace__"), property):
        kind.__trace__ = property(lambda self: self._tracer, _set_tracer)
        task._tracer = None


def _set_tracer(task: Any, tracer: Any) -> None:
    task._tracer = tracer and discreet(task, tracer)


def _discreetly(task: Any, told: Any, args: Any, kwargs: Any) -> Any:
    state = running()
    if isinstance(told.retval, ExceptionInfo):
        # Masked already, but where Celery itself stumbled and called no hook.
        mask_info(told.retval, _values_here(args, kwargs), type_only=type_only(task))
        return told
    hashed = state.result_shown if state is not None else None
    return trace_ok_t(told.retval, told.info, told.runtime, hashed or WITHHELD)


def _out_of_tracer(task: Any, error: BaseException, args: Any, kwargs: Any) -> BaseException:
    values = _values_here(args, kwargs)
    if isinstance(error, Exception) and not isinstance(error, TaskPredicate | MemoryError):
        return stand_in(error, values, type_only=type_only(task))
    mask_error(error, values, type_only=type_only(task))
    return error


def _values_here(args: Any, kwargs: Any) -> Masker:
    state = running()
    return state.values if state is not None else Masker(values_of(args, kwargs))
