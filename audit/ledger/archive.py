"""Rows out of the entry bundles, for whoever reads rows that the memory has trimmed.

:func:`read_through` answers as the memory would answer had nothing ever been trimmed: same filters,
same order, each row once, its bytes and position as they were stored. That holds beside a trim as
well: what goes while it is read is read from the bundles then. Memory use stays flat.

No row is left out in silence. What was pruned is gone from here too, but a bundle that is missing
without a signed row that says so is an error; so are positions that are not there, or that cannot
be: they lie in files that no signature covers, while the order of the rows is that of the bundles.
Beyond that nothing is verified here, that is the verifier's.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import dropwhile, islice, pairwise
from typing import Final

from audit.errors import LedgerDamagedError, TileMissingError
from audit.ledger.checkpoint import Checkpoint
from audit.ledger.folder import LedgerFolder
from audit.ledger.log import LogFolder
from audit.ledger.note import Note
from audit.ledger.note_key import VerifierKey
from audit.ledger.pruned import pruned_rows
from audit.ledger.tiles import WIDTH, tile_of
from audit.memory.base import AuditMemory, Entry, RowFilter, order_of
from audit.row import AuditRow

#: What positions are compared by (:func:`audit.memory.base.order_of`).
Order = tuple[int, int]

#: Rows that are held back until it is known that none between them was trimmed.
PAGE: Final = 500
_FIRST: Final[Order] = (0, 0)
_END: Final[Order] = (2**64, 0)
#: Filters whose value stands in the stored bytes as JSON writes it.
_SPELLED: Final = (
    "kind",
    "skill_id",
    "outcome",
    "caller_persona",
    "trace_id",
    "request_id",
    "task_id",
)


class Archive:
    """The sealed rows of tenants.

    Args:
        folder: the ledger's.
        keys: of whom to believe that rows were pruned; without, those that the folder lists.
    """

    def __init__(self, folder: LedgerFolder, keys: Sequence[VerifierKey] | None = None) -> None:
        self._folder = folder
        self._keys = keys

    def rows(
        self,
        tenant_id: str,
        wanted: RowFilter,
        start: Order = _FIRST,
        end: Entry | None = None,
        *,
        trimmed: bool = True,
    ) -> Iterator[AuditRow]:
        """The rows of a tenant that pass ``wanted``, in stored order, and stand where is asked.

        Args:
            tenant_id: whose.
            wanted: what to give; its tenant must be that one or none.
            start: the first position that may be given.
            end: the first row that may not, as the memory has it.
            trimmed: whether the memory's rows begin there because it was trimmed. Then that row is
                sealed itself, and there, if more is sealed than comes before it.

        Raises:
            LedgerDamagedError: the positions beside a bundle are not as they should be, or a
                bundle is missing.
            LedgerError: the ledger cannot be read.
        """
        needles = _needles(wanted)
        for position, stored in self.stored(tenant_id, start):
            if end is not None and order_of(position) >= order_of(end.position):
                if trimmed and (position, stored) != (end.position, end.stored):
                    raise _damaged(f"what is sealed at {position} is not what the memory has")
                return
            if all(needle in stored for needle in needles):
                row = AuditRow.from_bytes(stored, position)
                if wanted.matches(row):
                    yield row

    def stored(self, tenant_id: str, start: Order = _FIRST) -> Iterator[tuple[str, bytes]]:
        """Positions and stored bytes of a tenant's sealed rows, in stored order; none is parsed.

        Args:
            tenant_id: whose.
            start: the first position that may be given.

        Raises: as :meth:`rows`.
        """
        log = self._log(tenant_id)
        size = 0 if log is None else _size(log)
        if log is None or not size:
            return
        for index in range(_bundle_of(log, size, start), -(-size // WIDTH)):
            for position, stored in self._entries(log, index, size):
                if order_of(position) >= start:
                    yield position, stored

    def from_the_end(self, tenant_id: str) -> Iterator[list[bytes]]:
        """The stored rows of a tenant's bundles, the newest bundle first, until a pruned one.

        Raises: as :meth:`rows`.
        """
        log = self._log(tenant_id)
        size = 0 if log is None else _size(log)
        if log is None or not size:
            return
        for index in range((size - 1) // WIDTH, -1, -1):
            entries = [stored for _, stored in self._entries(log, index, size)]
            if not entries:
                return
            yield entries

    def _log(self, tenant_id: str) -> LogFolder | None:
        names = [name for name, whose in self._folder.tenants().items() if whose == tenant_id]
        return self._folder.log(names[0]) if names else None

    def _entries(self, log: LogFolder, index: int, size: int) -> Iterator[tuple[str, bytes]]:
        """Positions and stored bytes of a bundle; nothing where it was pruned."""
        bundle = tile_of(None, index, size)
        positions = _positions(log, index, size)
        try:
            entries = log.tiles.entries(bundle)
        except TileMissingError:
            self._insist_on_pruned(log, (index + 1) * WIDTH)
            return
        for position, stored in zip(positions, entries, strict=True):
            if stored:  # a row that was pruned out of its bundle leaves nothing
                yield position, stored

    def _insist_on_pruned(self, log: LogFolder, rows: int) -> None:
        origin, size = _checkpoint(log)  # anew: what was pruned just now is said in a newer one
        keys = self._folder.keys() if self._keys is None else self._keys
        if pruned_rows(log.tiles, size, origin, keys) < rows:
            raise _damaged(f"the bundle of rows {rows - WIDTH} and up is missing in {log.root}")


def read_through(memory: AuditMemory, archive: Archive, wanted: RowFilter) -> Iterator[AuditRow]:
    """Rows that pass ``wanted``, in stored order, from the bundles where they were trimmed.

    Raises:
        LedgerError: the ledger cannot be read.
        MemoryUnavailableError: the memory did not answer.
    """
    tenants = memory.tenants() if wanted.tenant_id is None else [wanted.tenant_id]
    return heapq.merge(*(_of_tenant(memory, archive, t, wanted) for t in tenants), key=_order)


def _of_tenant(
    memory: AuditMemory, archive: Archive, tenant_id: str, wanted: RowFilter
) -> Iterator[AuditRow]:
    """As :func:`read_through`, of one tenant.

    A trim takes the oldest first. So what was read of the memory is without a gap if, afterwards,
    the first row that is still there does not lie behind the place from which on it was read.
    """
    wanted = replace(wanted, tenant_id=tenant_id)
    done: Order = _FIRST
    hot: Iterator[AuditRow] = iter(())
    while True:
        first = _first_hot(memory, tenant_id)
        if _place(first) > done:
            trimmed = memory.trimmed(tenant_id) is not None
            yield from archive.rows(tenant_id, wanted, done, first, trimmed=trimmed)
            done, hot = _place(first), _from(memory.select(wanted), _place(first))
        page = list(islice(hot, PAGE))
        if _place(_first_hot(memory, tenant_id)) > done:
            continue
        yield from page
        if len(page) < PAGE:
            return
        major, minor = _order(page[-1])
        done = major, minor + 1


def _first_hot(memory: AuditMemory, tenant_id: str) -> Entry | None:
    """The first row that the memory still has."""
    first = memory.entries(tenant_id, None, 1)
    return first[0] if first else None


def _place(first: Entry | None) -> Order:
    return _END if first is None else order_of(first.position)


def _from(rows: Iterable[AuditRow], start: Order) -> Iterator[AuditRow]:
    return dropwhile(lambda row: _order(row) < start, rows)


def _order(row: AuditRow) -> Order:
    return order_of(str(row.position))


# --- bundles --------------------------------------------------------------------------------------


def _checkpoint(log: LogFolder) -> tuple[str, int]:
    note = log.checkpoint()
    if note is None:
        return "", 0
    checkpoint = Checkpoint.parse(Note.parse(note).text)
    return checkpoint.origin, checkpoint.size


def _size(log: LogFolder) -> int:
    return _checkpoint(log)[1]


def _bundle_of(log: LogFolder, size: int, start: Order) -> int:
    """The last bundle that begins at ``start`` or before."""
    low, high = 0, -(-size // WIDTH) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if order_of(_positions(log, middle, size)[0]) <= start:
            low = middle
        else:
            high = middle - 1
    return low


def _positions(log: LogFolder, index: int, size: int) -> list[str]:
    """The positions of a bundle's rows, which grow from each to the next, and over the one before.

    Raises:
        LedgerDamagedError: they are none that can be.
    """
    found = log.positions(tile_of(None, index, size))
    before = log.positions(tile_of(None, index - 1, size))[-1:] if index else []
    try:
        places = list(map(order_of, before + found))
    except ValueError:
        raise _damaged(
            f"positions of bundle {index}, or of the one before, in {log.root} are none"
        ) from None
    if any(one >= other for one, other in pairwise(places)):
        raise _damaged(
            f"positions of bundle {index}, or of the one before, in {log.root} do not grow"
        )
    return found


def _damaged(what: str) -> LedgerDamagedError:
    return LedgerDamagedError(f"{what}; no row of it is left out in silence: run `audit verify`")


def _needles(wanted: RowFilter) -> list[bytes]:
    """What the bytes of a row that passes must hold: looking for it is cheaper than parsing."""
    values = [getattr(wanted, name) for name in _SPELLED]
    texts = [json.dumps(value, ensure_ascii=False) for value in values if value is not None]
    return [text.encode(errors="replace") for text in texts]
