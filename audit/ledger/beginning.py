"""Where a trimmed memory begins: the index of its oldest row among the sealed ones.

Retention takes rows from the beginning of a memory, more in time than could be aligned row by row.
What is guaranteed: the files of positions only tell where to look; where no row found there is the
sealed one, the memory counts as whole, and is held against all leaves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from audit.errors import TileError
from audit.ledger.held_rows import Positions, SealedMemory, StoredEntry
from audit.ledger.merkle import leaf_hash
from audit.ledger.tile_directory import TileDirectory
from audit.ledger.tiles import WIDTH, tile_of
from audit.memory.base import order_of

#: So many leaves at the end are compared in any case: nothing proves where a memory begins that
#: has none of the sealed rows any more.
_COMPARED: Final = 4 * WIDTH
#: One of so many rows has to be the sealed one, for the first may have been edited.
_SAMPLE: Final = 64


def beginning(
    memory: SealedMemory, tenant: str, positions: Positions, directory: TileDirectory, size: int
) -> int:
    """How many sealed rows come before the first that the memory still has; 0 if none is known."""
    rows = memory.entries(tenant, None, _SAMPLE)
    try:
        index = _index_of(rows[0], positions, size) if rows else size
        proven = index == size or _any_sealed(rows, directory, index, size)
    except (TileError, ValueError):
        return 0
    return index if proven else 0


def left_out(index: int, size: int) -> int:
    """How many leaves need not be compared with a memory that begins there."""
    return min(index, max(0, size - _COMPARED))


def _index_of(first: StoredEntry, positions: Positions, size: int) -> int:
    # Of a position that is not known order_of raises.
    return bisect_left(
        range(size), order_of(first.position), key=lambda at: order_of(positions.of_row(at) or "")
    )


def _any_sealed(
    rows: Sequence[StoredEntry], directory: TileDirectory, index: int, size: int
) -> bool:
    leaves = directory.hashes(tile_of(0, index // WIDTH, size))[index % WIDTH :]
    return any(leaf == leaf_hash(row.stored) for leaf, row in zip(leaves, rows, strict=False))
