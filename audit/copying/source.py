"""What is copied: all rows of a tenant from the first that was ever stored, page by page.

Rows that were trimmed from the memory are read from the ledger's bundles, and it makes no
difference when they went: a trim beside the copy leaves no gap. What is guaranteed: no row is left
out in silence; where one can be read from nowhere any more, that is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final

from audit.errors import CopyError
from audit.ledger.archive import Archive
from audit.memory.base import AuditMemory, Entry, order_of

#: Rows of one page: read, held against the ledger, stored, and read back together.
PAGE: Final = 500


class SourceRows:
    """The rows of a tenant.

    Args:
        memory: where they are.
        tenant_id: whose.
        archive: the sealed ones; ``None`` where no ledger is at hand.
    """

    def __init__(self, memory: AuditMemory, tenant_id: str, archive: Archive | None) -> None:
        self._memory = memory
        self._tenant_id = tenant_id
        self._archive = archive

    def pages(self) -> Iterator[list[Entry]]:
        """All rows in stored order, at most :data:`PAGE` of them together.

        Raises:
            CopyError: some were trimmed, and are not to be had.
            LedgerError: the ledger cannot be read.
            AuditMemoryError: the memory did not answer.
        """
        after = None
        while page := self._page(after):
            yield page
            after = page[-1].position

    def _page(self, after: str | None) -> list[Entry]:
        page = self._memory.entries(self._tenant_id, after, PAGE)
        mark = self._memory.trimmed(self._tenant_id)  # asked behind it: a trim may come in between
        start = _behind(after)
        if mark is None or order_of(mark) <= start:
            return page
        if self._archive is None:
            raise CopyError(
                f"rows before {mark} were trimmed from the source: give --ledger DIR (or set"
                " AUDIT_LEDGER_DIR), they are read from there"
            )
        return self._sealed(self._archive, start, order_of(mark))

    def _sealed(
        self, archive: Archive, start: tuple[int, int], end: tuple[int, int]
    ) -> list[Entry]:
        found = takewhile(
            lambda row: order_of(row[0]) < end, archive.stored(self._tenant_id, start)
        )
        page = [Entry(position, stored) for position, stored in islice(found, PAGE)]
        if not page:
            raise CopyError(
                "rows were trimmed from the source which the ledger does not have either: run"
                " `audit verify`"
            )
        return page


def _behind(position: str | None) -> tuple[int, int]:
    """The first place behind a position."""
    if position is None:
        return 0, 0
    major, minor = order_of(position)
    return major, minor + 1
