"""Results of tasks that a memory stores in one step with the completed rows of their invocations.

Only a memory that keeps them where a result backend looks for them can do that: then neither is
ever seen without the other (merged mode, decision 26).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult:
    """A result as Celery's backend stores it.

    Attributes:
        key: where; the same name is the channel on which those who wait are told.
        value: what, in JSON; a state in it that reads ``SUCCESS`` is never replaced.
        seconds: when it expires, counted from now; ``None``: never.
    """

    key: str
    value: str
    seconds: int | None = None
