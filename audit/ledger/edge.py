"""The right edge of a log: all that is needed to add entries to it, and no more.

That is a frontier, and what the unfinished tiles and the unfinished bundle hold, so it is small
however long the log. Pure: what a log gains is handed out as the contents of its new tiles.

What is guaranteed: :meth:`Edge.read` takes nothing on trust. The hashes of the unfinished tiles
make up the root, entries are hashed again, and whoever asks compares the root with what was signed.
What lies to the left of them is not read; that is the verifier's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from audit.errors import LedgerDamagedError
from audit.ledger.log import LogFolder
from audit.ledger.merkle import Frontier, leaf_hash
from audit.ledger.tiles import (
    HEIGHT,
    WIDTH,
    Tile,
    encode_entries,
    encode_hashes,
    new_tiles,
    tile_of,
)

_Held = TypeVar("_Held", bytes, str)


@dataclass(frozen=True, slots=True)
class Edge:
    """The right edge of a log.

    Attributes:
        frontier: of its tree; nobody appends to it.
        hashes: what the unfinished tile of each level holds, nothing for a level that has none.
        entries: what the unfinished bundle holds.
        positions: where the memory has those entries.
    """

    frontier: Frontier = field(default_factory=Frontier)
    hashes: tuple[tuple[bytes, ...], ...] = ()
    entries: tuple[bytes, ...] = ()
    positions: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return self.frontier.size

    @classmethod
    def read(cls, log: LogFolder, size: int, *, positions: bool) -> Edge:
        """The edge of a tree of ``size`` leaves.

        Args:
            log: where it is.
            size: of it.
            positions: whether its entries have positions.

        Raises:
            LedgerDamagedError: the entries of the unfinished bundle are not those of the tree.
            LedgerError: a file is missing, malformed or cannot be read.
        """
        frontier = Frontier.rebuild(size, log.tiles.node_reader(size))
        hashes: list[tuple[bytes, ...]] = []
        while (level := len(hashes)) * HEIGHT < size.bit_length():
            count = size >> level * HEIGHT
            unfinished = count % WIDTH and log.tiles.hashes(tile_of(level, count // WIDTH, size))
            hashes.append(tuple(unfinished or ()))
        if not size % WIDTH:
            return cls(frontier, tuple(hashes))
        bundle = tile_of(None, size // WIDTH, size)
        entries = log.tiles.entries(bundle)
        if tuple(map(leaf_hash, entries)) != hashes[0]:
            raise LedgerDamagedError(
                f"{bundle.to_path()} in {log.root} is not what was sealed; run `audit verify`"
            )
        where = log.positions(bundle) if positions else ()
        return cls(frontier, tuple(hashes), tuple(entries), tuple(where))

    def extend(self, entries: Sequence[bytes], positions: Sequence[str]) -> Growth:
        """What a log gains by more entries.

        Args:
            entries: what comes next, 1 or more.
            positions: where the memory has them; none for a log whose entries have none.

        Raises:
            EntryTooLargeError: an entry has more than 65,535 bytes.
        """
        frontier = Frontier(self.size, self.frontier.peaks)
        levels = [list(hashes) for hashes in self.hashes]
        for entry in entries:
            _append(frontier, levels, leaf_hash(entry))
        bundled, placed = [*self.entries, *entries], [*self.positions, *positions]
        tiles, beside = [], []
        for tile in new_tiles(self.size, frontier.size):
            if tile.level is None:
                place = _from(tile, self.size)
                tiles.append((tile, encode_entries(bundled[place])))
                beside += [(tile, placed[place])] if positions else []
            else:
                count = self.size >> tile.level * HEIGHT
                tiles.append((tile, encode_hashes(levels[tile.level][_from(tile, count)])))
        kept = [
            tuple(_rest(hashes, frontier.size >> level * HEIGHT))
            for level, hashes in enumerate(levels)
        ]
        edge = Edge(
            frontier,
            tuple(kept),
            tuple(_rest(bundled, frontier.size)),
            tuple(_rest(placed, frontier.size)),
        )
        return Growth(tiles, beside, edge)


@dataclass(frozen=True, slots=True)
class Growth:
    """What a log gains.

    Attributes:
        tiles: new and wider tiles and bundles, and what each holds.
        positions: bundles, and the positions of all that each holds.
        edge: the edge that follows.
    """

    tiles: Sequence[tuple[Tile, bytes]]
    positions: Sequence[tuple[Tile, Sequence[str]]]
    edge: Edge


def _append(frontier: Frontier, levels: list[list[bytes]], leaf: bytes) -> None:
    completed = [leaf, *frontier.append(leaf)][::HEIGHT]
    levels.extend([] for _ in range(len(completed) - len(levels)))
    for level, node in enumerate(completed):
        levels[level].append(node)


def _from(tile: Tile, count: int) -> slice:
    """Where the content of a tile lies in what follows the last full tile of ``count``."""
    start = tile.start - count // WIDTH * WIDTH
    return slice(start, start + tile.width)


def _rest(held: Sequence[_Held], count: int) -> Sequence[_Held]:
    return held[len(held) - count % WIDTH :] if held else ()
