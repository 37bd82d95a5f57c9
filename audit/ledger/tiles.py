"""The tiles of C2SP tlog-tiles: how a tree and its entries lie in files.

A tile holds up to 256 hashes, side by side, of one level of the tree; those of tile level ``L`` are
the roots of complete subtrees of ``256 ** L`` leaves. An entry bundle holds the entries themselves,
with the widths and indexes of the tiles of level 0. Here are names and contents; the files are
``tile_directory``'s.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from audit.errors import EntryTooLargeError, TileError
from audit.ledger.merkle import HASH_SIZE, MAX_SIZE

#: Levels of the tree that one level of tiles spans.
HEIGHT: Final = 8
#: Hashes or entries of a full tile or bundle.
WIDTH: Final = 1 << HEIGHT
MAX_LEVEL: Final = 63
MAX_ENTRY: Final = 65_535

_LENGTH: Final = struct.Struct(">H")
_PATH: Final = re.compile(
    r"tile/(?P<level>entries|0|[1-9][0-9]?)/"
    r"(?P<index>(?:x[0-9]{3}/)*[0-9]{3})(?:\.p/(?P<width>[1-9][0-9]{0,2}))?"
)


@dataclass(frozen=True, slots=True)
class Tile:
    """The name of a tile or an entry bundle.

    Attributes:
        level: of the tile, 0 to 63; ``None`` for an entry bundle.
        index: its place in its level, from 0.
        width: how many hashes or entries it holds, 1 to 256; under 256 it is partial.

    Raises:
        TileError: no tile has such a name.
    """

    level: int | None
    index: int
    width: int = WIDTH

    def __post_init__(self) -> None:
        level_fits = self.level is None or 0 <= self.level <= MAX_LEVEL
        if not (level_fits and 0 <= self.index <= MAX_SIZE and 1 <= self.width <= WIDTH):
            raise TileError(
                f"no tile has the level {self.level}, index {self.index}, width {self.width}"
            )

    @property
    def is_full(self) -> bool:
        return self.width == WIDTH

    @property
    def start(self) -> int:
        """The place, in the whole level, of its first hash or entry."""
        return self.index * WIDTH

    @property
    def end(self) -> int:
        """How many leaves a tree has at least that has this tile."""
        return self.start + self.width << HEIGHT * (self.level or 0)

    def to_path(self) -> str:
        """Where it is served, below the log's prefix."""
        digits = f"{self.index:03}"
        digits = digits.zfill(-len(digits) // 3 * -3)
        groups = [digits[at : at + 3] for at in range(0, len(digits), 3)]
        index = "/".join([*(f"x{group}" for group in groups[:-1]), groups[-1]])
        level = "entries" if self.level is None else self.level
        return f"tile/{level}/{index}{'' if self.is_full else f'.p/{self.width}'}"

    @classmethod
    def parse(cls, path: str) -> Tile:
        """The tile of a path.

        Raises:
            TileError: it is the path of none.
        """
        match = _PATH.fullmatch(path)
        if match is None or len(path) > 80:
            raise TileError("that is the path of no tile")
        level = None if match["level"] == "entries" else int(match["level"])
        index = int(match["index"].replace("/", "").replace("x", ""))
        tile = cls(level, index, int(match["width"] or WIDTH))
        if tile.to_path() != path:  # more groups of zeroes than needed, or a partial one of 256
            raise TileError("that is the path of no tile")
        return tile

    def full(self) -> Tile:
        """The full one of the same place."""
        return Tile(self.level, self.index)


def tile_of(level: int | None, index: int, size: int) -> Tile:
    """The tile, or bundle, of a place, as wide as it is in a tree of ``size`` leaves.

    Raises:
        TileError: that tree has none there.
    """
    width = min(WIDTH, _count(level, size) - index * WIDTH)
    if width < 1:
        raise TileError(f"a tree of {size} leaves has no tile {index} on level {level}")
    return Tile(level, index, width)


def new_tiles(old_size: int, new_size: int) -> Iterator[Tile]:
    """The tiles that a tree gets or widens as it grows, bundles first, then level by level."""
    levels: list[int | None] = [None, *range(MAX_LEVEL + 1)]
    for level in levels:
        old, new = _count(level, old_size), _count(level, new_size)
        for index in range(old // WIDTH, -(-new // WIDTH) if new > old else 0):
            yield tile_of(level, index, new_size)


def _count(level: int | None, size: int) -> int:
    """How many hashes, or entries, a level has."""
    return size >> HEIGHT * (level or 0)


# --- contents -------------------------------------------------------------------------------------


def encode_hashes(hashes: Sequence[bytes]) -> bytes:
    """The content of a tile.

    Raises:
        TileError: those are no hashes, or too many.
    """
    if not 1 <= len(hashes) <= WIDTH or any(len(value) != HASH_SIZE for value in hashes):
        raise TileError(f"a tile holds 1 to {WIDTH} hashes of {HASH_SIZE} bytes")
    return b"".join(hashes)


def decode_hashes(raw: bytes, width: int) -> list[bytes]:
    """The hashes of a tile that must hold ``width`` of them.

    Raises:
        TileError: it is longer or shorter.
    """
    if len(raw) != width * HASH_SIZE:
        raise TileError(f"a tile of {width} hashes has {width * HASH_SIZE} bytes, not {len(raw)}")
    return [raw[at : at + HASH_SIZE] for at in range(0, len(raw), HASH_SIZE)]


def encode_entries(entries: Iterable[bytes]) -> bytes:
    """The content of an entry bundle: each entry behind its length, two bytes, big-endian.

    Raises:
        EntryTooLargeError: an entry has more than 65,535 bytes.
        TileError: there is none, or more than 256.
    """
    parts = [_length(entry) + entry for entry in entries]
    if not 1 <= len(parts) <= WIDTH:
        raise TileError(f"an entry bundle holds 1 to {WIDTH} entries")
    return b"".join(parts)


def decode_entries(raw: bytes, width: int) -> list[bytes]:
    """The entries of a bundle that must hold ``width`` of them.

    Raises:
        TileError: it holds fewer or more, or ends within one.
    """
    entries, at = _read_entries(raw, width)
    if at != len(raw):
        raise TileError(f"an entry bundle goes on after its {width} entries")
    return entries


def narrowed(tile: Tile, raw: bytes) -> bytes:
    """The content of ``tile`` from that of the full tile in its place.

    Raises:
        TileError: the full one is malformed.
    """
    if tile.level is None:
        decode_entries(raw, WIDTH)
        return raw[: _read_entries(raw, tile.width)[1]]
    return b"".join(decode_hashes(raw, WIDTH)[: tile.width])


def check_content(tile: Tile, raw: bytes) -> None:
    """Hold a content against a tile's name.

    Raises:
        TileError: it is not as wide, or malformed.
    """
    if tile.level is None:
        decode_entries(raw, tile.width)
    else:
        decode_hashes(raw, tile.width)


def check_entry(entry: bytes) -> None:
    """Refuse an entry that no bundle could hold, before anything is written.

    Raises:
        EntryTooLargeError: it has more than 65,535 bytes.
    """
    _length(entry)


def _read_entries(raw: bytes, width: int) -> tuple[list[bytes], int]:
    """The first entries of a bundle, and where the next one would begin."""
    entries: list[bytes] = []
    at = 0
    while len(entries) < width:
        begin = at + _LENGTH.size
        if begin > len(raw) or (end := begin + _LENGTH.unpack_from(raw, at)[0]) > len(raw):
            raise TileError(f"an entry bundle ends within entry {len(entries)} of {width}")
        entries.append(raw[begin:end])
        at = end
    return entries, at


def _length(entry: bytes) -> bytes:
    if len(entry) > MAX_ENTRY:
        raise EntryTooLargeError(f"an entry has at most {MAX_ENTRY:,} bytes, not {len(entry):,}")
    return _LENGTH.pack(len(entry))
