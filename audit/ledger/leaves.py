"""The leaves of a sealed tree, out of its files, chunk by chunk, with whatever is wrong in them.

Tiles of level 0 and entry bundles both tell the leaves. Where they disagree, the tile above them
decides, or the signed root where there is none; what neither can decide is taken from the tiles,
and :attr:`Leaves.undecided` says so, for whoever wants to try it the other way round.

What is guaranteed: every byte of every bundle is hashed, every tile of every level is held against
the leaves, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from audit.errors import TileError, TileMissingError
from audit.ledger.finding import Kind
from audit.ledger.merkle import EMPTY_ROOT, Frontier, fold, node_hash
from audit.ledger.tile_directory import TileDirectory
from audit.ledger.tiles import HEIGHT, MAX_LEVEL, WIDTH, Tile, tile_of

_LENGTH: Final = 2


@dataclass(frozen=True, slots=True)
class Chunk:
    """The leaves of one bundle.

    Attributes:
        start: the index of the first.
        leaves: their hashes, as they were sealed; ``None`` where nothing tells.
        rows: what the bundle holds, ``None`` where it is not there; empty bytes: pruned.
        hashes: of the rows, ``None`` for one that is pruned or not there.
    """

    start: int
    leaves: list[bytes | None]
    rows: list[bytes | None]
    hashes: list[bytes | None]

    @property
    def right(self) -> bool:
        """Whether the bundle holds exactly the sealed rows."""
        return self.hashes == self.leaves


@dataclass(frozen=True, slots=True)
class Flaw:
    """A file that is wrong by itself; ``index`` and ``count`` say which leaves it speaks of."""

    kind: Kind
    path: str
    index: int
    count: int
    is_bundle: bool = False


@dataclass
class Leaves:
    """A tree of ``size`` leaves in files.

    Attributes:
        directory: where.
        size: of the tree.
        root: that it should have, where that is known.
        trust_rows: which of both is taken where nothing decides.
        flaws: the files that are wrong, so far, by their paths.
        above: the tiles above level 0 that do not fit the leaves, so far.
        undecided: whether tiles and rows disagreed and nothing decided.
    """

    directory: TileDirectory
    size: int
    root: bytes | None = None
    trust_rows: bool = False
    flaws: dict[str, Flaw] = field(default_factory=dict)
    above: dict[Tile, list[int]] = field(default_factory=dict)
    undecided: bool = False
    _upper: Frontier = field(default_factory=Frontier)
    _broken: bool = False

    def __post_init__(self) -> None:
        self._tile = lru_cache(16)(self._read_tile)

    def chunks(self) -> Iterator[Chunk]:
        """All leaves; :meth:`root_at` answers for sizes up to the end of the latest chunk."""
        for index in range(-(-self.size // WIDTH)):
            chunk = self._chunk(index)
            yield chunk
            if len(chunk.leaves) == WIDTH:
                self._grow(index, chunk.leaves)

    def root_at(self, size: int, chunk: Chunk | None) -> bytes | None:
        """The root of the first ``size`` leaves, which end in ``chunk``; ``None`` if unknown."""
        leaves = chunk.leaves[: size - chunk.start] if chunk else []
        if self._broken or None in leaves:
            return None
        return _root([*self._upper.peaks, *_peaks(leaves)])

    # --- inside -------------------------------------------------------------------------------

    def _chunk(self, index: int) -> Chunk:
        bundle, tile = tile_of(None, index, self.size), tile_of(0, index, self.size)
        told = self._tile(tile)
        rows = self._rows(bundle, told)
        hashes = [_leaf(row, told, at) for at, row in enumerate(rows)]
        if told is None:
            leaves: Sequence[bytes | None] = (hashes + [None] * WIDTH)[: bundle.width]
        elif hashes == told or None in hashes or len(hashes) != bundle.width:
            leaves = told
        else:
            leaves = self._decide(tile, told, [h for h in hashes if h is not None])
        return Chunk(tile.start, list(leaves), rows, hashes)

    def _decide(self, tile: Tile, told: list[bytes], hashes: list[bytes]) -> list[bytes]:
        for leaves in (told, hashes):
            if self._is_sealed(tile, leaves):
                return self._taken(tile, told, leaves)
        self.undecided = True
        return self._taken(tile, told, hashes if self.trust_rows else told)

    def _taken(self, tile: Tile, told: list[bytes], leaves: list[bytes]) -> list[bytes]:
        if leaves is not told:
            first = next(at for at, leaf in enumerate(leaves) if leaf != told[at])
            self._flaw(Kind.ALTERED, tile, tile.start + first, 1)
        return leaves

    def _is_sealed(self, tile: Tile, leaves: list[bytes]) -> bool:
        if not tile.is_full:
            return _root([*self._upper.peaks, *_peaks(leaves)]) == self.root
        above = self._tile(tile_of(1, tile.index // WIDTH, self.size))
        return above is not None and above[tile.index % WIDTH] == fold(leaves)

    def _grow(self, index: int, leaves: list[bytes | None]) -> None:
        known = [leaf for leaf in leaves if leaf is not None]
        if len(known) < WIDTH:  # then the tile above has to speak for them
            above = self._tile(tile_of(1, index // WIDTH, self.size))
            self._broken = self._broken or above is None
            node = above[index % WIDTH] if above else EMPTY_ROOT
        else:
            node = fold(known)
        closed = [node, *self._upper.append(node)][::HEIGHT]
        for level, value in enumerate(closed, start=1):
            self._hold(level, index >> HEIGHT * (level - 1), value)

    def _hold(self, level: int, index: int, value: bytes) -> None:
        if level > MAX_LEVEL or self._broken:
            return
        tile = tile_of(level, index // WIDTH, self.size)
        stored = self._tile(tile)
        if stored is not None and stored[index % WIDTH] != value:
            self.above.setdefault(tile, []).append(index)

    def _read_tile(self, tile: Tile) -> list[bytes] | None:
        try:
            return self.directory.hashes(tile)
        except TileMissingError:
            self._flaw(Kind.MISSING, tile, *_leaves_of(tile, self.size))
        except TileError:
            self._flaw(Kind.MALFORMED, tile, *_leaves_of(tile, self.size))
        return None

    def _rows(self, bundle: Tile, told: list[bytes] | None) -> list[bytes | None]:
        try:
            return list(self.directory.entries(bundle))
        except TileMissingError:
            self._flaw(Kind.MISSING, bundle, bundle.start, bundle.width)
            return [None] * bundle.width
        except TileError:
            return self._rows_of_malformed(bundle, told)

    def _rows_of_malformed(self, bundle: Tile, told: list[bytes] | None) -> list[bytes | None]:
        """Rows of a bundle with too few or too many; up to the first that is none otherwise."""
        rows, whole = _split(_content(self.directory.root / bundle.to_path()))
        if whole and rows and told is not None:
            return list(rows)
        good = 0
        while told is not None and good < min(len(rows), bundle.width):
            if _leaf(rows[good], told, good) != told[good]:
                break
            good += 1
        left = bundle.width - good
        self._flaw(Kind.MALFORMED, bundle, bundle.start + good, left)
        return [*rows[:good], *[None] * left]

    def _flaw(self, kind: Kind, tile: Tile, index: int, count: int) -> None:
        flaw = Flaw(kind, tile.to_path(), index, count, tile.level is None)
        self.flaws.setdefault(flaw.path, flaw)


def _leaves_of(tile: Tile, size: int) -> tuple[int, int]:
    """The first leaf that a tile speaks of, and how many."""
    span = WIDTH ** (tile.level or 0)
    start = tile.start * span
    return start, min(size - start, tile.width * span)


def _leaf(row: bytes | None, told: list[bytes] | None, at: int) -> bytes | None:
    if row is None:
        return None
    if row == b"" and told is not None and at < len(told):
        return told[at]  # pruned: the hash is what remains
    return sha256(b"\x00" + row).digest()


def _peaks(leaves: Sequence[bytes | None]) -> tuple[bytes, ...]:
    """The roots of the complete subtrees of a bundle's leaves."""
    known = [leaf for leaf in leaves if leaf is not None]
    if len(known) == WIDTH:
        return (fold(known),)
    frontier = Frontier()
    for leaf in known:
        frontier.append(leaf)
    return frontier.peaks


def _root(peaks: list[bytes]) -> bytes:
    if not peaks:
        return EMPTY_ROOT
    node = peaks.pop()
    while peaks:
        node = node_hash(peaks.pop(), node)
    return node


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _split(raw: bytes) -> tuple[list[bytes], bool]:
    """The entries of a bundle, however many, and whether it ends where one ends."""
    rows: list[bytes] = []
    at = 0
    while at + _LENGTH <= len(raw):
        end = at + _LENGTH + int.from_bytes(raw[at : at + _LENGTH], "big")
        if end > len(raw):
            return rows, False
        rows.append(raw[at + _LENGTH : end])
        at = end
    return rows, at == len(raw)


def reaches(directory: TileDirectory, held: int, size: int) -> bool:
    """Whether any file is there of what a log got as it grew from ``held`` to ``size`` leaves."""
    last = (size - 1) // WIDTH
    for index in {held // WIDTH, (held // WIDTH + last) // 2, last}:
        for level in (None, 0):
            tile = tile_of(level, index, size)
            if (directory.root / tile.to_path()).exists():
                return True
    return False
