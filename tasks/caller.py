"""On whose behalf this process acts right now, as far as Celery is concerned.

Inside a body the context variable says it. After the body, Celery itself publishes (links, the
next link of a chain, a chord's body, errbacks) with the request still pushed; then the request
says it. Nothing has to be cleaned up between two tasks of one process, so nothing can leak from
one to the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from celery._state import get_current_task

from audit.context import (
    ON_BEHALF_HEADER,
    PARENT_HEADER,
    PERSONA_HEADER,
    TENANT_HEADER,
    TRACE_HEADER,
    InvocationContext,
    find_context,
)
from audit.errors import InvocationError
from audit.masking import Masker, snapshot
from tasks.proof import proven_context, verifies
from tasks.runtime import runtime_of

#: Header of the request_id; set by the receiving process over whatever a message claims.
REQUEST_ID_HEADER: Final = "audit_request_id"

#: How the names of Celery's own tasks begin.
BUILT_IN: Final = "celery."

#: Where a request keeps what the child knows of its invocation; no message key is spelled so.
CHILD_STATE: Final = "_skill_child_state"

_HEADERS: Final = (
    PERSONA_HEADER,
    TENANT_HEADER,
    ON_BEHALF_HEADER,
    PARENT_HEADER,
    TRACE_HEADER,
)


#: Of how many calls in a body the values are kept: it may call skills in a loop.
HIDDEN_LATER: Final = 64


class ChildState:
    """What the process that runs the body knows of one invocation.

    Attributes:
        invocation: the state machine.
        inherited: the context of everything the invocation publishes.
        outside: the context that was in force when the message was received here.
        values: what no text may show: its arguments and result, what calls in its body were given
            and returned, and all that of the invocation it is called in.
        type_only: texts of errors are left out altogether.
        direct: whether it is of a direct call, whose caller is the one that gets the result.
        merged: whether its ending is left to the result backend, which stores both.
        args_shown, result_shown: the hashes as Celery shows them in the place of values.
    """

    __slots__ = (
        "_beside",
        "_later",
        "_masker",
        "_values",
        "args_shown",
        "direct",
        "inherited",
        "invocation",
        "merged",
        "outside",
        "result_shown",
        "type_only",
    )

    def __init__(
        self,
        invocation: Any,
        inherited: InvocationContext | None,
        values: Sequence[object] = (),
        *,
        args_shown: str = "",
        type_only: bool = False,
        direct: bool = False,
    ) -> None:
        outer = _running.get()
        self.invocation = invocation
        self.inherited = inherited
        self.outside = find_context()
        self.type_only = type_only
        self.direct = direct
        self.merged = False
        self.args_shown = args_shown
        self.result_shown: str | None = None
        self._values = snapshot(list(values))
        self._later: deque[object] = deque(maxlen=HIDDEN_LATER)
        self._beside = outer.values if outer is not None else None
        self._masker: Masker | None = None

    @property
    def values(self) -> Masker:
        """What no text may show."""
        if self._masker is None:
            self._masker = Masker([self._values, *self._later], self._beside)
        return self._masker

    def hide(self, value: object) -> None:
        """From here on no text may show this either; of many the last ones count."""
        self._later.append(snapshot(value))
        self._masker = None


#: The invocation that this thread, greenlet or asyncio task runs.
_running: ContextVar[ChildState | None] = ContextVar("skill_running", default=None)


def running() -> ChildState | None:
    """The invocation whose values may show here: its body runs, or Celery is ending its task."""
    return _running.get()


def runs(state: ChildState) -> None:
    """From here on it is ``state`` that :func:`running` gives, until :func:`one_task` ends."""
    _running.set(state)


@contextmanager
def one_task(*, nested: bool = False) -> Iterator[None]:
    """What runs inside ends with it; a task that a worker runs knows of none around it."""
    token = _running.set(_running.get() if nested else None)
    try:
        yield
    finally:
        _running.reset(token)


def is_skill(task: Any) -> bool:
    """Whether a Celery task is a skill; told without its class, which knows this module."""
    return hasattr(type(task), "args_hash")


def is_discreet(task: Any) -> bool:
    """Whether a task's values are kept out of everything: a skill's, or those of Celery's own.

    Celery's own tasks run skills (``celery.map``) and pass on what they returned.
    """
    return is_skill(task) or is_built_in(task)


def is_built_in(task: Any) -> bool:
    """Whether a task is one of Celery's own."""
    return str(getattr(task, "name", "")).startswith(BUILT_IN)


def child_state(request: Any) -> ChildState | None:
    """What this process knows of the invocation of ``request``; a message cannot claim any."""
    state = vars(request).get(CHILD_STATE) if request is not None else None
    return state if isinstance(state, ChildState) else None


def context_headers(request: Any) -> Mapping[str, Any]:
    """The context headers of a Celery request.

    A delivered message has them as attributes of its own, an eager call under ``headers``.
    """
    own = vars(request)
    nested = own.get("headers")
    nested = nested if isinstance(nested, Mapping) else {}
    return {name: own.get(name, nested.get(name)) for name in _HEADERS}


def publishing_context() -> InvocationContext | None:
    """The context for what is published here and now, ``None`` where there is none."""
    context = find_context()
    task = get_current_task()
    request = task.request_stack.top if task is not None else None
    if request is None:
        return context
    state = child_state(request)
    if state is not None:
        return state.inherited if context is state.outside else context
    return context if context is not None else _carried(task, request)


def _carried(task: Any, request: Any) -> InvocationContext | None:
    """The context that a plain task's message carries on, e.g. Celery's own ``celery.map``."""
    keys = runtime_of(task.app).settings.context_keys
    if keys and not verifies(task):
        return None  # what its message says of having been verified is its own word
    try:
        return proven_context(vars(request), context_headers(request), keys)
    except InvocationError:
        return None
