"""What is sealed of a tenant, and whether copied rows are just that.

A row is held against its leaf before it is stored anywhere, so that the row that is wrong has a
name. What is guaranteed comes afterwards: the rows that were read back from the target have, as far
as a checkpoint goes that a known key has signed, the root that stands in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from audit.errors import CopyError, TileMissingError
from audit.ledger.claims import Claim, Trust, read_claim
from audit.ledger.finding import Source
from audit.ledger.log import LogFolder
from audit.ledger.merkle import Frontier, leaf_hash
from audit.ledger.sources import read_tenants
from audit.ledger.tiles import tile_of
from audit.memory.base import Entry


class Seal:
    """The sealed tree of a tenant, from its first row on.

    Args:
        tenant_id: whose.
        log: its log; ``None`` where nothing of it was sealed.
        trust: whose signatures count.

    Raises:
        CopyError: its checkpoint is none that can be believed.
        LedgerError: the ledger cannot be read.
    """

    def __init__(self, tenant_id: str, log: LogFolder | None, trust: Trust) -> None:
        self._tenant_id = tenant_id
        self.log = log
        self.note = log.checkpoint() if log is not None else None
        self._claim = None if log is None or self.note is None else _claim(log, self.note, trust)
        self._leaves = self._read_leaves()
        self._tree = Frontier()

    @classmethod
    def of(cls, tenant_id: str, ledger: Path, trust: Trust) -> Seal:
        """What the ledger has of a tenant; errors as above."""
        logs = [log for log, of in read_tenants(ledger).items() if of == tenant_id]
        return cls(tenant_id, LogFolder(ledger / logs[0]) if logs else None, trust)

    @property
    def size(self) -> int:
        """How many rows are sealed, from the first on."""
        return 0 if self._claim is None else self._claim.size

    def insist_on_all(self) -> None:
        """See to it that the ledger has the bytes of the first row, so of all.

        Raises:
            CopyError: they were pruned, which begins with the first.
            TileError: the bundle cannot be read.
        """
        if self.log is None or not self.size:
            return
        try:
            first = self.log.tiles.entries(tile_of(None, 0, self.size))[0]
        except TileMissingError:
            first = b""
        if not first:
            raise CopyError(
                "rows of this tenant were pruned, which is for good: one with a gap is not copied"
            )

    def hold(self, entries: Sequence[Entry], first: int) -> None:
        """See to it that these rows, the next ones, are what was sealed in their places.

        Args:
            entries: as the source has them.
            first: the place of the first among all.

        Raises:
            CopyError: one is not; the text names it.
            TileError: the leaves cannot be read.
        """
        for index, entry in enumerate(entries, start=first):
            if index >= self.size:
                return
            if leaf_hash(entry.stored) != next(self._leaves):
                raise CopyError(
                    f"the row at {entry.position} is not what was sealed as row {index}: it was"
                    " changed, or rows before it are gone; run `audit verify`"
                )

    def add(self, entries: Sequence[Entry]) -> None:
        """Count in the next rows as the target has them."""
        for entry in entries[: max(0, self.size - self._tree.size)]:
            self._tree.append(leaf_hash(entry.stored))

    def conclude(self) -> None:
        """See to it that all sealed rows were there, and are what was signed.

        Raises:
            CopyError: they are not.
        """
        if self._tree.size < self.size:
            raise CopyError(
                f"{self.size} rows are sealed, and the source has only {self._tree.size} of them:"
                f" row {self._tree.size} is missing, run `audit verify`"
            )
        if self._claim is not None and self._tree.root() != self._claim.root:
            raise CopyError(
                f"the first {self.size} rows do not have the root that was signed: run"
                " `audit verify`"
            )

    def _read_leaves(self) -> Iterator[bytes]:
        return iter(()) if self.log is None else self.log.tiles.leaf_hashes(self.size)


def _claim(log: LogFolder, note: bytes, trust: Trust) -> Claim:
    claimed = read_claim(note, log.root.name, Source.LEDGER, "the file checkpoint", trust)
    if claimed.claim is None or not claimed.claim.trusted:
        why = claimed.finding.text if claimed.finding else "it is none"
        raise CopyError(f"the ledger proves nothing of this tenant: {why}")
    return claimed.claim
