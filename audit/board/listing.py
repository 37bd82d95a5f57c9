"""The list: one bounded page of lines, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from audit.board.beside import beside_damage, whose
from audit.board.line import InvocationLine, lines_of
from audit.memory.base import AuditMemory, RowFilter
from audit.memory.page import LOOK


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """One page of the list.

    Attributes:
        lines: newest first, each invocation at the place of its newest row.
        looked: how many entries were looked at.
        reached: the store's time of the oldest of them; ``None`` where there was none.
        next: the cursor of the next page; ``None`` where nothing older can follow.
        damaged: entries looked at that are no row.
        trimmed: whether older rows that might belong here have left the memory (only where ``next``
            is ``None``): they are in the ledger.
        unread: tenants of which nothing was read, because what the memory keeps of them is damaged.
    """

    lines: tuple[InvocationLine, ...]
    looked: int
    reached: datetime | None
    next: str | None
    damaged: int
    trimmed: bool
    unread: tuple[str, ...] = ()


def listing(
    memory: AuditMemory,
    wanted: RowFilter,
    *,
    cursor: str | None = None,
    most: int = 100,
    look: int = LOOK,
) -> Listing:
    """The lines of at most ``most`` rows: half as many where every invocation has both rows.

    Raises:
        ValueError: that is no cursor.
        AuditMemoryError: the memory did not answer.
    """
    page, errors = beside_damage(
        lambda without: memory.page(wanted, most=most, look=look, cursor=cursor, without=without),
        wanted.tenant_id,
    )
    return Listing(
        lines=lines_of(page.rows),
        looked=page.looked,
        reached=page.reached,
        next=page.next,
        damaged=len(page.damaged),
        trimmed=page.trimmed,
        unread=whose(errors),
    )
