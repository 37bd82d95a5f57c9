"""A sealed log, read from its folder: its newest checkpoint, its rows, and where a row lies in it.

What is guaranteed: nothing is read before a known key's signature of the checkpoint was verified,
and a proof that is handed out was verified before. Nothing is written. The log may grow meanwhile:
a tree of the checkpoint's size stays readable.

A row is found by its memory position: beside each entry bundle lies a sidecar, ``positions/...``,
with one position a line in the order of the rows, so two binary searches lead there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import NoReturn

from audit.errors import EvidenceError, LedgerDamagedError, TileMissingError
from audit.ledger.checkpoint import open_checkpoint
from audit.ledger.log import LogFolder
from audit.ledger.merkle import inclusion_proof
from audit.ledger.note_key import VerifierKey
from audit.ledger.proof import TlogProof
from audit.ledger.pruned import pruned_rows
from audit.ledger.tiles import WIDTH, tile_of


class SealedLog:
    """One log of the ledger, as its newest checkpoint has it.

    Args:
        ledger: the folder of all logs, ``AUDIT_LEDGER_DIR``.
        origin: of which log; the last part of it is the folder's name.
        keys: the verifier keys of the ledger, under whatever name.

    Raises:
        EvidenceError: nothing was sealed there.
        NoteError, CheckpointError: the checkpoint is not what a known key has signed for this log.
    """

    def __init__(self, ledger: Path, origin: str, keys: Iterable[VerifierKey]) -> None:
        self._folder = LogFolder(ledger / origin.rpartition("/")[2])
        self.origin = origin
        self.keys = tuple(key.renamed(origin) for key in keys)
        self.note = self._folder.checkpoint() or _nothing()
        self.opened = open_checkpoint(self.note, origin, self.keys)
        self.tiles = self._folder.tiles

    @property
    def size(self) -> int:
        return self.opened.checkpoint.size

    def row(self, index: int) -> bytes:
        """The stored bytes of one row.

        Raises:
            TileError: its bundle is missing or damaged.
        """
        return next(iter(islice(self.tiles.rows(self.size, index), 1)))

    def held_from(self) -> int:
        """The index of the first row whose bundle is there; those before it were pruned.

        Raises:
            LedgerDamagedError: they are not there, and no signed row says that they were pruned.
            TileError: a bundle is damaged.
        """
        held = self._first_held()
        if held and pruned_rows(self.tiles, self.size, self.origin, self.keys) < held:
            raise LedgerDamagedError(
                f"some of the rows 0 to {held - 1} are not in {self._folder.root}, and no signed"
                " row says that they were pruned: run `audit verify`"
            )
        return held

    def _first_held(self) -> int:
        for bundle in range(self.size // WIDTH):  # only full ones are ever pruned
            try:
                self.tiles.read(tile_of(None, bundle, self.size))
            except TileMissingError:
                continue
            return bundle * WIDTH
        return self.size // WIDTH * WIDTH

    def prove(self, index: int) -> TlogProof:
        """The proof that a row is in the log.

        Raises:
            LedgerError: the tiles are missing or damaged, or do not lead to the signed root.
        """
        path = inclusion_proof(index, self.size, self.tiles.node_reader(self.size))
        proof = TlogProof(index, tuple(path), self.opened.note)
        proof.verify(self.row(index), self.origin, self.keys)
        return proof

    def index_of(self, position: str) -> int | None:
        """The place of the row that the memory has there; ``None`` if it is not sealed.

        Raises:
            LedgerDamagedError: a sidecar is missing or damaged.
        """
        wanted = order(position)
        bundles = range(-(-self.size // WIDTH))
        # The last bundle that begins at or before the position.
        bundle = bisect_left(bundles, True, key=lambda index: self._first(index) > wanted) - 1
        if bundle < 0:
            return None
        positions = [order(line) for line in self._positions(bundle)]
        place = bisect_left(positions, wanted)
        if place == len(positions) or positions[place] != wanted:
            return None
        return bundle * WIDTH + place

    def _first(self, bundle: int) -> tuple[int, ...]:
        return order(self._positions(bundle)[0])

    def _positions(self, bundle: int) -> list[str]:
        return self._folder.positions(tile_of(None, bundle, self.size))


def order(position: str) -> tuple[int, ...]:
    """What positions of one tenant are compared by.

    Raises:
        LedgerDamagedError: it is no position.
    """
    parts = position.split("-")
    if not all(part.isdecimal() for part in parts):
        raise LedgerDamagedError(
            "a memory position is a number, or several with a dash between them"
        )
    return tuple(map(int, parts))


def _nothing() -> NoReturn:
    raise EvidenceError(
        "nothing of this tenant is sealed in this ledger: set AUDIT_LEDGER_DIR to the ledger's"
        " folder, or run `audit seal`"
    )
