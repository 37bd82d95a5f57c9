"""On whose behalf this process acts right now, as far as Celery is concerned.

Inside a body the context variable says it. After the body, Celery itself publishes (links, the
next link of a chain, a chord's body, errbacks) with the request still pushed; then the request
says it. Nothing has to be cleaned up between two tasks of one process, so nothing can leak from
one to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from celery._state import get_current_task

from audit.context import (
    PARENT_HEADER,
    PERSONA_HEADER,
    TENANT_HEADER,
    TRACE_HEADER,
    InvocationContext,
    find_context,
)
from audit.errors import InvocationError

#: Header of the request_id; set by the receiving process over whatever a message claims.
REQUEST_ID_HEADER: Final = "audit_request_id"

#: Where a request keeps what the child knows of its invocation; no message key is spelled so.
CHILD_STATE: Final = "_skill_child_state"

_HEADERS: Final = (PERSONA_HEADER, TENANT_HEADER, PARENT_HEADER, TRACE_HEADER)


class ChildState:
    """What the process that runs the body knows of one invocation.

    Attributes:
        invocation: the state machine.
        inherited: the context of everything the invocation publishes.
        outside: the context that was in force when the message was received here.
    """

    __slots__ = ("inherited", "invocation", "outside")

    def __init__(self, invocation: Any, inherited: InvocationContext) -> None:
        self.invocation = invocation
        self.inherited = inherited
        self.outside = find_context()


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
    return context if context is not None else _carried(request)


def _carried(request: Any) -> InvocationContext | None:
    """The context that a plain task's message carries on, e.g. Celery's own ``celery.map``."""
    try:
        return InvocationContext.from_headers(context_headers(request))
    except InvocationError:
        return None
