"""Pages of rows that are simply a list in this process: what every other memory must agree with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from audit.memory.base import Entry, RowFilter
from audit.memory.newest import Cursor, Found, check_bounds, read_page
from audit.memory.page import Open, Page
from audit.row import AuditRow

#: How far clocks may differ without a time range losing rows.
SKEW: Final = timedelta(hours=1)


def page_of(
    rows: Sequence[AuditRow],
    gone: Sequence[AuditRow],
    stored_at: Mapping[str, datetime],
    wanted: RowFilter,
    *,
    most: int,
    look: int,
    cursor: str | None,
) -> Page:
    """A page of ``rows``, which stand in stored order.

    Args:
        rows: all there are.
        gone: those that were trimmed.
        stored_at: when the row of each position was stored.
        wanted, most, look, cursor: see :meth:`audit.memory.page.Paging.page`.
    """
    check_bounds(most, look)
    begin = None if cursor is None else Cursor.parse(cursor)
    entries = _entries(_candidates(rows, stored_at, wanted), begin)
    page = read_page(
        entries,
        wanted,
        most=most,
        look=look,
        clock=stored_at.__getitem__,
        ended=lambda: not any(entries),
    )
    trimmed = any(_candidates(gone, stored_at, wanted))
    return page if page.next else replace(page, trimmed=trimmed)


def open_of(running: Sequence[AuditRow], most: int) -> Open:
    """The first ``most`` of what is running."""
    check_bounds(most, 1)
    return Open(rows=tuple(running[:most]), total=len(running))


def _candidates(
    rows: Sequence[AuditRow], stored_at: Mapping[str, datetime], wanted: RowFilter
) -> Iterator[AuditRow]:
    """What is looked at, newest first: of this tenant and invocation, and not too old."""
    for row in reversed(rows):
        if wanted.since is not None and stored_at[str(row.position)] < wanted.since - SKEW:
            return
        if wanted.tenant_id in (None, row.tenant_id) and wanted.request_id in (
            None,
            row.request_id,
        ):
            yield row


def _entries(rows: Iterator[AuditRow], begin: Cursor | None) -> Iterator[Found]:
    for row in rows:
        entry = Entry(str(row.position), row.to_bytes())
        if begin is None or begin.is_passed_by(row.tenant_id, entry.position):
            yield row.tenant_id, entry
