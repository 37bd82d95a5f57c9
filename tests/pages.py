"""What tests of bounded reading share."""

from __future__ import annotations

from typing import Any

from audit.memory import AuditMemory
from audit.memory.base import RowFilter
from audit.memory.page import Page
from audit.row import AuditRow
from tests.support import completed, make_identity, started

ALL = RowFilter()


def invoke(memory: AuditMemory, **overrides: Any) -> tuple[AuditRow, AuditRow]:
    """One closed invocation on record."""
    identity = make_identity(**overrides)
    pair = started(identity), completed(identity)
    for row in pair:
        memory.emit(row)
    return pair


def tenant(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def walk(memory: AuditMemory, wanted: RowFilter = ALL, **bounds: int) -> list[Page]:
    """Every page, each from the cursor of the one before."""
    pages = [memory.page(wanted, **bounds)]
    while (cursor := pages[-1].next) is not None:
        pages.append(memory.page(wanted, **bounds, cursor=cursor))
        assert len(pages) < 10_000, "the walk has no end"
    return pages


def rows_of(pages: list[Page]) -> list[AuditRow]:
    return [row for page in pages for row in page.rows]
