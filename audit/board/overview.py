"""The overview: what runs, how things ended, what is slow or fails, from one bounded look back.

The cost is that of one page of the memory, whatever the length of the history. All counts are of
the entries looked at, so they say nothing of the time before :attr:`Overview.reached`: what is
older is another overview, from :attr:`Overview.next` on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from audit.board.beside import beside_damage, whose
from audit.board.line import text
from audit.board.measures import (
    Bucket,
    Endings,
    RefusedLine,
    SkillLine,
    emit_milliseconds,
    endings,
    percentile,
    refusals,
    skills,
)
from audit.board.standing import LedgerState, ledger_state
from audit.keeper import ROLE
from audit.memory.base import AuditMemory, RowFilter
from audit.memory.page import LOOK, Open, Page
from audit.row import AuditRow

__all__ = [
    "Bucket",
    "Endings",
    "Overview",
    "RefusedLine",
    "RunningLine",
    "SkillLine",
    "age_seconds",
    "held_leases",
    "overview",
]

#: Open invocations shown.
RUNNING: Final = 50


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
        next: the cursor of what is older; ``None`` where nothing is.
        trimmed: whether rows have left the memory before that (only where ``complete``).
        unread: tenants of which nothing was read, because what the memory keeps of them is damaged.
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
    next: str | None
    trimmed: bool
    unread: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether nothing is older."""
        return self.next is None


def overview(
    memory: AuditMemory,
    now: datetime,
    *,
    ledger: bool,
    tenant_id: str | None = None,
    look: int = LOOK,
    cursor: str | None = None,
) -> Overview:
    """Look back over at most ``look`` entries.

    From a ``cursor`` on, what runs and who leads is said of the present all the same.

    Args:
        memory: where the rows are.
        now: aware.
        ledger: whether one is configured.
        tenant_id: whose; ``None`` for all.
        look: entries to look at.
        cursor: :attr:`Overview.next` of a newer one; ``None`` for the newest.

    Raises:
        ValueError: that is no cursor.
        AuditMemoryError: the memory did not answer.
    """

    def read(without: Set[str]) -> Overview:
        page = memory.page(
            RowFilter(tenant_id=tenant_id), most=look, look=look, cursor=cursor, without=without
        )
        still_open = memory.open_page(tenant_id, RUNNING, without=without)
        return _overview(memory, now, page, still_open, _end(memory, page, now, cursor), ledger)

    view, errors = beside_damage(read, tenant_id)
    return replace(view, unread=whose(errors))


def _overview(
    memory: AuditMemory,
    now: datetime,
    page: Page,
    still_open: Open,
    end: datetime,
    ledger: bool,
) -> Overview:
    found, emits = skills(page.rows), emit_milliseconds(page.rows, memory.stored_at)
    return Overview(
        running=_running(memory, still_open.rows, now),
        running_total=still_open.total,
        picture=endings(page.rows, page.reached, end, memory.stored_at),
        slowest=found.slowest,
        failing=found.failing,
        emit_p50_ms=percentile(emits, 50),
        emit_p95_ms=percentile(emits, 95),
        refused=refusals(page.rows),
        keeper_leads=memory.is_led(ROLE),
        ledger=ledger_state(memory, page, configured=ledger),
        damaged=len(page.damaged),
        looked=page.looked,
        reached=page.reached,
        next=page.next,
        trimmed=page.trimmed,
    )


def _end(memory: AuditMemory, page: Page, now: datetime, cursor: str | None) -> datetime:
    """The end of the time looked at: the present, or when the newest row of an older page came."""
    if cursor is None:
        return now
    return memory.stored_at(page.rows[0]) if page.rows else page.reached or now


def age_seconds(row: AuditRow, now: datetime) -> float:
    """How long before ``now`` a row says it was; never below 0, however clocks differ."""
    return max(0.0, (now - datetime.fromisoformat(row.ts)).total_seconds())


def held_leases(memory: AuditMemory, rows: Iterable[AuditRow]) -> dict[str, bool]:
    """Of each process that these rows name, whether its lease is held now."""
    workers = {worker for row in rows if (worker := text(row.meta.get("worker")))}
    held = memory.leases(workers) if workers else set()
    return {worker: worker in held for worker in workers}


def _running(
    memory: AuditMemory, rows: Sequence[AuditRow], now: datetime
) -> tuple[RunningLine, ...]:
    held = held_leases(memory, rows)
    return tuple(
        RunningLine(
            row=row,
            age_seconds=age_seconds(row, now),
            has_lease=held.get(text(row.meta.get("worker")) or ""),
        )
        for row in rows
    )
