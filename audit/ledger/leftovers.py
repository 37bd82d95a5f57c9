"""What lies in the folder of a log that has no checkpoint: a crash's leftovers, or damage.

A crash during the very first seal leaves tiles that no checkpoint covers, and so does, to look at,
whoever takes the checkpoint of a sealed log away. What tells them apart is the memory's rows. Tiles
that hold its first rows, byte for byte, may be gone on from whoever left them: a tree over the same
rows in the same order is the same tree, so no checkpoint that there ever was is contradicted. All
else is damage: other rows, more rows than the memory has (unsealed ones are never trimmed), more
than one seal takes at once, or a trace of the log in the meta log, which holds checkpoints alone.

What is guaranteed: this only reads. A memory that lost rows after a crash of the first seal is told
as damage too, on the safe side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from audit.errors import LedgerDamagedError, TileError
from audit.ledger.log import LogFolder
from audit.ledger.merkle import leaf_hash
from audit.ledger.tiles import Tile

_FAULT: Final = "it has no checkpoint, but"


def check_leftovers(log: LogFolder, most: int, read: Callable[[int], Iterable[bytes]]) -> None:
    """See to it that a log without a checkpoint never had one that its rows would contradict.

    Args:
        log: which.
        most: rows that a first seal takes at most.
        read: that many of the memory's first rows, or as many as there are.

    Raises:
        LedgerDamagedError: it had, or may have had; nothing was changed.
        LedgerError: its folder cannot be read.
    """
    if log.gathered() is not None:
        raise LedgerDamagedError(f"{_FAULT} the meta log has had one of it")
    tiles = log.held()
    covered = max((tile.end for tile in tiles), default=0)
    if not covered:
        return
    rows = list(read(covered)) if covered <= most else []
    if len(rows) < covered:
        raise LedgerDamagedError(f"{_FAULT} tiles of {covered} rows, and so many were never new")
    try:
        same = all(_holds(log, tile, rows) for tile in tiles)
    except TileError as error:
        raise LedgerDamagedError(f"{_FAULT} tiles that are not sound: {error}") from error
    if not same:
        raise LedgerDamagedError(f"{_FAULT} tiles of rows that are not the memory's")


def _holds(log: LogFolder, tile: Tile, rows: list[bytes]) -> bool:
    """Whether it holds those rows; what is above the leaves is compared when it is written."""
    expected = rows[tile.start : tile.start + tile.width]
    if tile.level is None:
        return log.tiles.entries(tile) == expected
    return tile.level > 0 or log.tiles.hashes(tile) == [leaf_hash(row) for row in expected]
