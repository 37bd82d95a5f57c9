"""The overview: what runs, how things ended, what is slow or fails, from one bounded look back.

The cost is that of one page of the memory, whatever the length of the history. All counts are of
the entries looked at, so they say nothing of the time before :attr:`Overview.reached`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from audit.board.standing import LedgerState
from audit.memory.base import AuditMemory
from audit.memory.page import LOOK
from audit.row import AuditRow, Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningLine:
    """One invocation that is open.

    Attributes:
        row: its started row.
        age_seconds: by the row's ``ts``; never below 0.
        has_lease: whether the lease of its process is held now; ``None`` where it names none.
    """

    row: AuditRow
    age_seconds: float
    has_lease: bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """How many invocations ended in one stretch of time.

    Attributes:
        begin: when it begins, in UTC.
        counts: for each of the four outcomes, 0 included, in their order.
    """

    begin: datetime
    counts: Mapping[Outcome, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Endings:
    """How invocations ended over time, by the store's clock.

    Attributes:
        buckets: oldest first, without gaps, the last one with the present moment; 60 at most. Empty
            where nothing was looked at. The first one may lack what lies before the look.
        seconds_each: how long each is.
    """

    buckets: tuple[Bucket, ...]
    seconds_each: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillLine:
    """How one skill did.

    Attributes:
        skill_id: its name.
        calls: invocations that ended.
        failed: those of them whose outcome is not success.
        p50_ms, p95_ms, max_ms: of the durations that were measured; ``None`` where none was.
    """

    skill_id: str
    calls: int
    failed: int
    p50_ms: int | None
    p95_ms: int | None
    max_ms: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedLine:
    """How often invocations were refused for one reason, and the last time."""

    reason: str
    count: int
    last: AuditRow


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """The overview.

    Attributes:
        running: what is open, the oldest first, 50 at most.
        running_total: how many are open in all.
        picture: how things ended over time.
        slowest: the 10 skills with the longest p95.
        failing: the 10 skills that failed most often, none that never did.
        emit_p50_ms, emit_p95_ms: from a row's ``ts`` until the store had it, in milliseconds; so
            whatever the clocks differ is in it, and it can be below 0. ``None`` without a row.
        refused: the most frequent reason first.
        keeper_leads: whether any keeper leads.
        ledger: how far the ledger has come.
        damaged: entries looked at that are no row.
        looked: how many entries were looked at.
        reached: the store's time of the oldest of them; ``None`` where there was none.
        complete: whether that was all the memory has.
        trimmed: whether rows have left the memory before that (only where ``complete``).
    """

    running: tuple[RunningLine, ...]
    running_total: int
    picture: Endings
    slowest: tuple[SkillLine, ...]
    failing: tuple[SkillLine, ...]
    emit_p50_ms: float | None
    emit_p95_ms: float | None
    refused: tuple[RefusedLine, ...]
    keeper_leads: bool
    ledger: LedgerState
    damaged: int
    looked: int
    reached: datetime | None
    complete: bool
    trimmed: bool


def overview(
    memory: AuditMemory,
    now: datetime,
    *,
    ledger: bool,
    tenant_id: str | None = None,
    look: int = LOOK,
) -> Overview:
    """Look back over at most ``look`` entries.

    Args:
        memory: where the rows are.
        now: aware.
        ledger: whether one is configured.
        tenant_id: whose; ``None`` for all.
        look: entries to look at.

    Raises:
        AuditMemoryError: the memory did not answer.
    """
    raise NotImplementedError
