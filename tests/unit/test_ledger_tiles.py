"""audit/ledger/tiles.py: how a tree and its entries are named and spelled (C2SP tlog-tiles)."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.errors import EntryTooLargeError, TileError
from audit.ledger.merkle import leaf_hash
from audit.ledger.tiles import (
    MAX_ENTRY,
    WIDTH,
    Tile,
    check_entry,
    decode_entries,
    decode_hashes,
    encode_entries,
    encode_hashes,
    narrowed,
    new_tiles,
    tile_of,
)


def entries_of(count: int) -> list[bytes]:
    return [b"row %d" % number for number in range(count)]


def hashes_of(count: int, salt: bytes = b"") -> list[bytes]:
    return [leaf_hash(salt + b"%d" % number) for number in range(count)]


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tile", "path"),
    [
        (Tile(0, 0), "tile/0/000"),
        (Tile(0, 0, 1), "tile/0/000.p/1"),
        (Tile(63, 999), "tile/63/999"),
        (Tile(1, 1_000), "tile/1/x001/000"),
        (Tile(0, 1_234_067), "tile/0/x001/x234/067"),
        (Tile(2, 1_234_067, 255), "tile/2/x001/x234/067.p/255"),
        (Tile(None, 1_234_067), "tile/entries/x001/x234/067"),
        (Tile(None, 0, 17), "tile/entries/000.p/17"),
    ],
)
def test_a_tile_lies_where_the_specification_says(tile: Tile, path: str) -> None:
    """Levels in decimal, indexes in groups of three digits, partial tiles by their width."""
    assert tile.to_path() == path
    assert Tile.parse(path) == tile


@pytest.mark.parametrize(
    "path",
    [
        "",
        "tile/0/0",
        "tile/00/000",
        "tile/64/000",
        "tile/-1/000",
        "tile/0/x000/000",
        "tile/0/001/000",
        "tile/0/x001",
        "tile/0/000.p/0",
        "tile/0/000.p/256",
        "tile/0/000.p/01",
        "tile/0/000/",
        "/tile/0/000",
        "tile/0/000\n",
        "tile/0/\u0660\u0660\u0660",
        "tile/0/" + "x999/" * 20 + "999",
        "tile/data/000",
    ],
)
def test_what_is_the_path_of_no_tile_is_refused(path: str) -> None:
    """A tile has one path."""
    with pytest.raises(TileError):
        Tile.parse(path)


@given(st.text() | st.from_regex(r"tile/(entries|\d+)/(x\d{3}/)*\d{3}(\.p/\d+)?", fullmatch=True))
def test_garbage_is_the_path_of_no_tile(path: str) -> None:
    """What parses is spelled the same way again; all else is a TileError."""
    with suppress(TileError):
        assert Tile.parse(path).to_path() == path


def test_a_tree_of_70000_leaves_has_the_tiles_of_the_specification() -> None:
    """273 full and one of 112 on level 0, one full and one of 17 on 1, one of 1 on 2."""
    shapes: dict[int | None, list[int]] = {}
    for tile in new_tiles(0, 70_000):
        shapes.setdefault(tile.level, []).append(tile.width)
    below = [WIDTH] * 273 + [112]
    assert shapes == {None: below, 0: below, 1: [WIDTH, 17], 2: [1]}


def test_a_tree_of_256_leaves_has_a_full_tile_and_one_above() -> None:
    """As the specification's second example says."""
    tiles = [tile for tile in new_tiles(0, 256) if tile.level is not None]
    assert tiles == [Tile(0, 0), Tile(1, 0, 1)]


def test_growing_names_only_what_changes() -> None:
    """Growing in steps names each tile of each step's tree that the step before did not have."""
    sizes = [0, 1, 255, 256, 257, 600, 65_536, 65_537, 66_000]
    for old, new in pairwise(sizes):
        before, after = set(new_tiles(0, old)), set(new_tiles(0, new))
        assert set(new_tiles(old, new)) == after - before
    assert list(new_tiles(600, 600)) == []


def test_a_tree_has_no_tile_beyond_its_edge() -> None:
    """Neither to the right nor above."""
    for level, index, size in [(0, 1, 256), (1, 0, 255), (None, 0, 0), (0, -1, 256)]:
        with pytest.raises(TileError):
            tile_of(level, index, size)


# --- contents -------------------------------------------------------------------------------------


def test_entries_lie_behind_their_lengths() -> None:
    """Two bytes, big-endian, then the entry; empty entries are entries."""
    assert encode_entries([b"ab", b"", b"c" * 258]) == b"\0\2ab" + b"\0\0" + b"\1\2" + b"c" * 258
    assert decode_entries(b"\0\2ab\0\0", 2) == [b"ab", b""]


def test_an_entry_has_at_most_65535_bytes() -> None:
    """One more is a typed error, before anything is written and when it would be."""
    check_entry(b"x" * MAX_ENTRY)
    assert decode_entries(encode_entries([b"x" * MAX_ENTRY]), 1) == [b"x" * MAX_ENTRY]
    with pytest.raises(EntryTooLargeError):
        check_entry(b"x" * (MAX_ENTRY + 1))
    with pytest.raises(EntryTooLargeError):
        encode_entries([b"x" * (MAX_ENTRY + 1)])


@pytest.mark.parametrize("raw", [b"", b"\0", b"\0\1", b"\0\1a\0", b"\0\1a\0\0\0", b"\0\1a\0\1bc"])
def test_a_malformed_bundle_is_refused(raw: bytes) -> None:
    """Too short, too long, or cut within a length or an entry."""
    with pytest.raises(TileError):
        decode_entries(raw, 2)


@given(st.binary(max_size=500), st.integers(1, WIDTH))
def test_garbage_is_no_bundle_and_no_tile(raw: bytes, width: int) -> None:
    """What decodes is encoded to the same bytes again; all else is a TileError."""
    with suppress(TileError):
        assert encode_entries(decode_entries(raw, width)) == raw
    with suppress(TileError):
        assert encode_hashes(decode_hashes(raw, width)) == raw
    for tile in (Tile(None, 0, width), Tile(0, 0, width)):
        with pytest.raises(TileError):
            narrowed(tile, raw)


def test_nothing_and_too_much_are_no_tile() -> None:
    """One to 256 hashes of 32 bytes, one to 256 entries."""
    for hashes in ([], hashes_of(WIDTH + 1), [b"short"]):
        with pytest.raises(TileError):
            encode_hashes(hashes)
    for entries in ([], entries_of(WIDTH + 1)):
        with pytest.raises(TileError):
            encode_entries(entries)
