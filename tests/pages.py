"""What tests of bounded reading share."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from audit.memory import AuditMemory
from audit.memory.base import RowFilter
from audit.memory.page import Page
from audit.row import AuditRow
from audit.testing import InMemory
from tests.support import TENANT, completed, make_identity, started

ALL = RowFilter()
OTHER = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"


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


class Sealed(InMemory):
    """A memory that knows up to where it is sealed."""

    sealed_to: str | None = None

    def sealed_position(self, tenant_id: str) -> str | None:
        return self.sealed_to


def seal(memory: InMemory, size: int) -> None:
    note = f"host/log\n{size}\n{b64encode(bytes(32)).decode()}\n\n\u2014 host/log AAAAAGFi\n"
    assert memory.swap_sealed(TENANT, memory.sealed(TENANT), note.encode())
