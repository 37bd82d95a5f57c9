"""The ending that is held for the result backend (merged mode), once something else is to be told.

It was decided when the body ended, and nobody has seen it yet. So when Celery tells the caller that
the task failed after all (a soft time limit struck behind the body, the result could not be
written), or a process is ended before anything was stored, the ending follows: what is on record
and what the caller gets are one.
"""

from __future__ import annotations

from typing import Any

from billiard.einfo import ExceptionInfo

from audit.row import Outcome
from tasks.caller import ChildState
from tasks.endings import ending_of
from tasks.standin import unwrapped


def agree(state: ChildState, left: Any) -> None:
    """Let an ending that is held follow what is told in its place, an error or what holds one."""
    held = state.invocation.held_reason
    if isinstance(left, ExceptionInfo):
        left = unwrapped(left.exception)
    if held is None or not isinstance(left, BaseException):
        return
    told = ending_of(left, state.values, type_only=state.type_only)
    # An Ignore behind a failure tells nobody of a success.
    better = told.outcome is Outcome.SUCCESS and held.outcome is not Outcome.SUCCESS
    if told.reason is not held and not better:
        state.invocation.hold_anew(told)


def close_held(state: ChildState | None, left: Any) -> None:
    """Put an ending that is held on record: its result was not stored, and will not be.

    Args:
        state: what this process knows of the invocation, if there is one.
        left: what came in the place of the result, or anything else.
    """
    if state is not None and state.merged and state.invocation.held:
        agree(state, left)
        state.invocation.close_held()
