"""The files of a log that its checkpoint does not cover: a crash's, or those of a longer log.

What is guaranteed: this only reads, and what goes meanwhile, as partial tiles do, is passed over.
"""

from __future__ import annotations

import os
from pathlib import Path

from audit.errors import TileError
from audit.ledger.merkle import leaf_hash
from audit.ledger.tile_directory import TileDirectory
from audit.ledger.tiles import Tile


def tiles_beyond(folder: Path, size: int) -> list[Tile]:
    """Tiles and bundles that reach beyond a tree of that size."""
    found = []
    for parent, _, names in os.walk(folder / "tile"):
        for name in names:
            try:
                tile = Tile.parse((Path(parent) / name).relative_to(folder).as_posix())
            except TileError:
                continue
            if tile.end > size:
                found.append(tile)
    return found


def entries_beyond(folder: Path, tile: Tile, size: int) -> list[bytes]:
    """The entries of a bundle from the place ``size`` on; none of a tile."""
    if tile.level is not None:
        return []
    try:
        return TileDirectory(folder).entries(tile)[max(0, size - tile.start) :]
    except TileError:
        return []


def leaves_beyond(folder: Path, tile: Tile, size: int) -> list[bytes]:
    """The leaves that a bundle, or a tile of the lowest level, tells of from there on."""
    if tile.level is None:
        return [leaf_hash(entry) for entry in entries_beyond(folder, tile, size)]
    try:
        hashes = TileDirectory(folder).hashes(tile) if tile.level == 0 else []
    except TileError:
        return []
    return hashes[max(0, size - tile.start) :]
