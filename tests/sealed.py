"""A sealed log in files, made the slow way, for tests of what reads one."""

from __future__ import annotations

from audit.ledger.tile_directory import TileDirectory
from audit.ledger.tiles import WIDTH, encode_entries, encode_hashes, new_tiles
from tests.naive_merkle import NaiveTree


def fill(directory: TileDirectory, entries: list[bytes], old_size: int = 0) -> None:
    """Write what a log needs that grows from ``old_size`` to these entries."""
    tree = NaiveTree(entries)
    for tile in new_tiles(old_size, len(entries)):
        places = range(tile.start, tile.start + tile.width)
        if tile.level is None:
            content = encode_entries(entries[place] for place in places)
        else:
            span = WIDTH**tile.level
            content = encode_hashes([tree.mth(p * span, (p + 1) * span) for p in places])
        directory.write(tile, content)
