"""Copying the rows of one tenant, so that the target ends up with the source's, entry by entry.

The target itself says how far a copy has come: what it has is compared with the source's first
rows, whole, and the copy goes on behind it. So a run that was killed is simply done again. What is
guaranteed: where the target has anything else, nothing is written; every row that is stored is read
back, at its place and byte for byte; a row is stored for the tenant among whose rows it stands, or
not at all; a row that the target would not store as it is ends the copy of its tenant with an error
that names it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from audit.copying.ledger import Positions
from audit.copying.sealed import Seal
from audit.copying.settled import LOOK, LOOKS, settled_position
from audit.copying.source import SourceRows
from audit.errors import CopyError, RowError, RowRefusedError
from audit.memory.base import AuditMemory, Entry, Stored, order_of
from audit.row import COMPLETED, LATE, AuditRow

#: What a source's row becomes in a target that does not have it yet, or has it since a crash.
_STORED: Final = frozenset({Stored.NEW, Stored.REPEATED, Stored.LATE})

#: What is told after each page: the rows that the target has now, and the source's position there.
Told = Callable[[int, str], None]


class TenantCopy:
    """The copy of one tenant's rows.

    Args:
        rows: of the source.
        target: where they go.
        tenant_id: whose.
        last: the position of the last row to be copied; ``None``: none is.
        seal: what of them is sealed; ``None`` where no ledger is at hand.
        told: called after each page.
        positions: takes down where the target has the sealed ones; ``None``: nobody wants to know.
        pause: waits so many seconds.
    """

    def __init__(
        self,
        rows: SourceRows,
        target: AuditMemory,
        tenant_id: str,
        *,
        last: str | None,
        seal: Seal | None = None,
        told: Told = lambda rows, position: None,
        positions: Positions | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._source = rows
        self._target = target
        self._tenant_id = tenant_id
        self._last = (-1, -1) if last is None else order_of(last)
        self._seal = seal
        self._told = told
        self._positions = positions
        self._pause = pause
        self._after: str | None = None
        self.rows = 0
        self.new = 0

    def run(self) -> None:
        """Copy what the target does not have.

        Raises:
            CopyError: the target has other rows, or a row cannot be copied; the text says where.
            LedgerError: the ledger cannot be read.
            AuditMemoryError: a memory did not answer; done again, the copy goes on.
        """
        if (mark := self._target.trimmed(self._tenant_id)) is not None:
            raise CopyError(f"rows before {mark} were trimmed from the target: nobody can compare")
        self._until_settled()
        for page in self._source.pages():
            if self._seal is not None:
                self._seal.hold(page, self.rows)
            there = self._compared(page)
            if len(there) < len(page):
                after = there[-1].position if there else self._after
                there += self._carried(page[len(there) :], after)
            self._count(there)
            if len(there) < len(page):  # what has come since the copy began
                break
            self._told(self.rows, page[-1].position)
        self._refuse_more()
        if self._seal is not None:
            self._seal.conclude()

    # --- inside -------------------------------------------------------------------------------

    def _until_settled(self) -> None:
        """A row of somebody else that the target does not show yet must not be written behind."""
        settled_position(self._target, self._tenant_id, "target", self._pause)

    def _compared(self, page: Sequence[Entry]) -> list[Entry]:
        """What the target has in the places of these rows already."""
        there = self._target.entries(self._tenant_id, self._after, len(page))
        for at, (row, other) in enumerate(zip(page, there, strict=False)):
            if other.foreign or other.stored != row.stored:
                raise CopyError(
                    f"the target's row {self.rows + at} at {other.position} is another than the"
                    f" source's at {row.position}: it is no copy of this source, and was left as"
                    " it is"
                )
        return there

    def _carried(self, missing: Sequence[Entry], after: str | None) -> list[Entry]:
        """Store these rows, behind that place of the target; what it has of them then."""
        due = [entry for entry in missing if order_of(entry.position) <= self._last]
        # All of them, before any is stored.
        rows = [_row_of(entry, self._tenant_id) for entry in due]
        for entry, row in zip(due, rows, strict=True):
            self._store(entry, row)
        return self._read_back(due, after) if due else []

    def _store(self, entry: Entry, row: AuditRow) -> None:
        newest = self._newest_if_late(entry, row)
        try:
            verdict = self._target.emit(row)
        except RowRefusedError as error:
            raise CopyError(f"the target does not take the row at {entry.position}: {error}") from (
                error
            )
        if verdict not in _STORED:
            raise CopyError(
                f"the target does not keep the row at {entry.position}, an ending without its"
                f" started row: {verdict}"
            )
        added = verdict is not Stored.REPEATED
        if verdict is Stored.LATE:
            added = self._newest_if_late(entry, row) != newest
        self.new += added

    def _newest_if_late(self, entry: Entry, row: AuditRow) -> str | None:
        """For a memory says late of a late row that it has, too; few are, so only they cost it."""
        if row.to_bytes() == entry.stored:
            return None
        return self._target.newest_position(self._tenant_id)

    def _read_back(self, due: Sequence[Entry], after: str | None) -> list[Entry]:
        """What was stored just now, after it was held against the source's rows.

        PostgreSQL shows no row while an older transaction is open, so it is asked again.
        """
        found: list[Entry] = []
        for _ in range(LOOKS):
            found = self._target.entries(self._tenant_id, after, len(due))
            if len(found) == len(due):
                break
            self._pause(LOOK)
        if [entry.stored for entry in found] != [entry.stored for entry in due]:
            raise CopyError(self._not_alike(due, found))
        return found

    @staticmethod
    def _not_alike(due: Sequence[Entry], found: Sequence[Entry]) -> str:
        for row, other in zip(due, found, strict=False):
            if row.stored != other.stored:
                return (
                    f"the target has another row at {other.position} than the source at"
                    f" {row.position}: somebody else writes there, or the row is none of ours"
                )
        return (
            f"the target took the row at {due[len(found)].position} and does not show it: end what"
            " holds a transaction open there, then copy again; or the source has that row twice"
        )

    def _count(self, there: Sequence[Entry]) -> None:
        if not there:
            return
        if self._seal is not None:
            self._seal.add(there)
        if self._positions is not None:
            self._positions.add(there)
        self.rows += len(there)
        self._after = there[-1].position

    def _refuse_more(self) -> None:
        self._until_settled()
        more = self._target.entries(self._tenant_id, self._after, 1)
        if more:
            raise CopyError(
                f"the target has a row at {more[0].position}, behind the source's {self.rows}, that"
                " the source does not have: it is no copy of this source, and was left as it is"
            )


def _row_of(entry: Entry, tenant_id: str) -> AuditRow:
    """The row to emit, so that a memory stores these very bytes.

    A late row becomes the completion that it was when it came, for it is a memory's to find out
    that a completion is late.
    """
    if entry.foreign:
        raise CopyError(f"the source's entry at {entry.position} is no row")
    try:
        row = AuditRow.from_bytes(entry.stored, entry.position)
    except RowError as error:
        raise CopyError(f"the source's entry at {entry.position} is no row") from error
    if row.payload.get("tenant_id") != tenant_id:  # a memory would put it into that one's rows
        raise CopyError(
            f"the source's entry at {entry.position} is a row of another tenant than {tenant_id},"
            " or of none: somebody has put it there past the audit"
        )
    if row.kind != LATE:
        return row
    reworded = entry.stored.replace(_kind(LATE), _kind(COMPLETED), 1)
    return AuditRow.from_bytes(reworded, entry.position)


def _kind(kind: str) -> bytes:
    """As canonical JSON has it; inside any text of the row the quotes would be escaped."""
    return f'"kind":"{kind}"'.encode()
