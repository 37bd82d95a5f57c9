"""Where a trimmed memory begins: the index of its oldest row among the sealed ones.

Retention takes rows from the beginning of a memory, more in time than could be aligned row by row.
What is guaranteed: the files of positions only tell where to look; where the row found there is not
the sealed one, the memory counts as whole, and is held against all leaves.
"""

from __future__ import annotations

from bisect import bisect_left
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


def beginning(
    memory: SealedMemory, tenant: str, positions: Positions, directory: TileDirectory, size: int
) -> int:
    """How many sealed rows come before the first that the memory still has; 0 if none is known."""
    first = next(iter(memory.entries(tenant, None, 1)), None)
    try:
        index = _index_of(first, positions, size)
        proven = index == size or first is None or _is_sealed(first, directory, index, size)
    except (TileError, ValueError):
        return 0
    return index if proven else 0


def left_out(index: int, size: int) -> int:
    """How many leaves need not be compared with a memory that begins there."""
    return min(index, max(0, size - _COMPARED))


def _index_of(first: StoredEntry | None, positions: Positions, size: int) -> int:
    if first is None:
        return size
    # Of a position that is not known order_of raises.
    return bisect_left(
        range(size), order_of(first.position), key=lambda at: order_of(positions.of_row(at) or "")
    )


def _is_sealed(first: StoredEntry, directory: TileDirectory, index: int, size: int) -> bool:
    leaves = directory.hashes(tile_of(0, index // WIDTH, size))
    return leaves[index % WIDTH] == leaf_hash(first.stored)
