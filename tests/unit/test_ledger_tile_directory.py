"""audit/ledger/tile_directory.py: the files of a log, whole or absent, and the tree in them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from threading import Barrier

import pytest

from audit.errors import ProofError, TileConflictError, TileError, TileMissingError
from audit.ledger.merkle import (
    Frontier,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    root,
    verify_consistency,
    verify_inclusion,
)
from audit.ledger.tile_directory import TileDirectory
from audit.ledger.tiles import WIDTH, Tile, encode_hashes, new_tiles
from tests.naive_merkle import NaiveTree
from tests.sealed import fill
from tests.support import wait_until


def entries_of(count: int) -> list[bytes]:
    return [b"row %d" % number for number in range(count)]


def hashes_of(count: int, salt: bytes = b"") -> list[bytes]:
    return [leaf_hash(salt + b"%d" % number) for number in range(count)]


@pytest.fixture
def directory(tmp_path: Path) -> TileDirectory:
    return TileDirectory(tmp_path / "log")


def test_a_written_tile_is_read_again(directory: TileDirectory) -> None:
    """Tiles and bundles, full and partial; nothing but them is left in the folder."""
    fill(directory, entries_of(300))
    for tile in new_tiles(0, 300):
        assert len((directory.root / tile.to_path()).read_bytes()) == len(directory.read(tile))
    files = {p.relative_to(directory.root).as_posix() for p in directory.root.rglob("*")}
    assert files >= {"tile/entries/000", "tile/entries/001.p/44", "tile/0/000", "tile/1/000.p/1"}
    assert list((directory.root / ".unnamed").iterdir()) == []


def test_a_partial_tile_is_read_out_of_the_full_one(directory: TileDirectory) -> None:
    """Once the partial one has been dropped, its hashes and entries are the full one's first."""
    entries = entries_of(WIDTH)
    fill(directory, entries[:100])
    small = {tile: directory.read(tile) for tile in new_tiles(0, 100)}
    fill(directory, entries, 100)
    for tile, content in small.items():
        assert (directory.root / tile.to_path()).exists()
        directory.drop_partials(tile)
        assert not (directory.root / tile.to_path()).parent.exists()
        assert directory.read(tile) == content


def test_a_missing_tile_is_named(directory: TileDirectory) -> None:
    """The error says which; a partial one never stands in for a wider one."""
    directory.write(Tile(0, 0, 5), encode_hashes(hashes_of(5)))
    for tile in (Tile(0, 0), Tile(0, 0, 4), Tile(0, 0, 6), Tile(None, 0)):
        with pytest.raises(TileMissingError, match=tile.to_path()):
            directory.read(tile)
    with pytest.raises(TileMissingError):
        directory.drop_partials(Tile(0, 0, 5))
    assert directory.hashes(Tile(0, 0, 5)) == hashes_of(5)


def test_the_same_bytes_again_do_no_harm(directory: TileDirectory) -> None:
    """Whoever crashed between tile and checkpoint does its work again."""
    for tile in (Tile(0, 0), Tile(0, 1, 3)):
        content = encode_hashes(hashes_of(tile.width))
        for _ in range(2):
            directory.write(tile, content)
        assert directory.read(tile) == content


@pytest.mark.parametrize("replace", [False, True])
def test_a_full_tile_is_never_overwritten(directory: TileDirectory, replace: bool) -> None:
    """Other bytes are a TileConflictError, and the sealed ones stay."""
    sealed = encode_hashes(hashes_of(WIDTH))
    directory.write(Tile(0, 0), sealed)
    with pytest.raises(TileConflictError):
        directory.write(Tile(0, 0), encode_hashes(hashes_of(WIDTH, b"x")), replace=replace)
    assert directory.read(Tile(0, 0)) == sealed
    assert list((directory.root / ".unnamed").iterdir()) == []


def test_of_several_writers_at_one_moment_one_wins(directory: TileDirectory) -> None:
    """The others get a TileConflictError, and the tile is the winner's, whole."""
    contents = [encode_hashes(hashes_of(WIDTH, salt)) for salt in (b"a", b"b", b"c", b"d")]
    for index in range(20):
        tile, gate, won = Tile(0, index), Barrier(len(contents)), []

        def write(content: bytes, tile: Tile = tile, gate: Barrier = gate, won: list = won) -> None:
            gate.wait()
            with suppress(TileConflictError):
                directory.write(tile, content)
                won.append(content)

        with ThreadPoolExecutor(len(contents)) as pool:
            list(pool.map(write, contents))
        assert won == [directory.read(tile)]


def test_a_partial_tile_is_overwritten_only_on_demand(directory: TileDirectory) -> None:
    """Other bytes conflict, unless the caller knows that no checkpoint covers what is there."""
    tile, one, two = Tile(0, 0, 9), *(encode_hashes(hashes_of(9, salt)) for salt in (b"a", b"b"))
    directory.write(tile, one)
    with pytest.raises(TileConflictError):
        directory.write(tile, two)
    assert directory.read(tile) == one
    directory.write(tile, two, replace=True)
    assert directory.read(tile) == two


def test_a_malformed_content_is_neither_written_nor_read(directory: TileDirectory) -> None:
    """A file that was cut, or written to, by somebody else is a TileError."""
    with pytest.raises(TileError):
        directory.write(Tile(0, 0), encode_hashes(hashes_of(255)))
    assert not (directory.root / "tile").exists()
    fill(directory, entries_of(WIDTH))
    for tile in (Tile(0, 0), Tile(None, 0)):
        path = directory.root / tile.to_path()
        path.write_bytes(path.read_bytes()[:-1])
        for narrower in (tile, Tile(tile.level, 0, 10)):
            with pytest.raises(TileError):
                directory.read(narrower)


def test_a_disk_that_takes_nothing_is_a_typed_error(tmp_path: Path) -> None:
    """The error says what to do, and names the folder."""
    (tmp_path / "log").write_text("a file where the folder should be")
    directory = TileDirectory(tmp_path / "log")
    with pytest.raises(TileError, match="AUDIT_LEDGER_DIR"):
        directory.write(Tile(0, 0, 1), encode_hashes(hashes_of(1)))
    with pytest.raises(TileMissingError):
        directory.read(Tile(0, 0, 1))


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("call", ["write", "fsync", "link"])
def test_a_crash_leaves_a_whole_tile_or_none(
    directory: TileDirectory, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Wherever the write ends, a reader sees all bytes or no tile, and the next write succeeds."""
    content = encode_hashes(hashes_of(WIDTH))
    real = getattr(os, call)
    done = {"count": 0}

    def strike(*arguments: object, **options: object) -> object:
        done["count"] += 1
        if done["count"] == crash_at:
            raise Crash
        return real(*arguments, **options)

    for crash_at in range(1, 20):
        done["count"], tile = 0, Tile(0, crash_at)
        with monkeypatch.context() as patched:
            patched.setattr(os, call, strike)
            with suppress(Crash):
                directory.write(tile, content)
        with suppress(TileMissingError):
            assert directory.read(tile) == content
        directory.write(tile, content)
        assert directory.read(tile) == content


WRITER = """
import sys
from itertools import count
from pathlib import Path
from audit.ledger.tile_directory import TileDirectory
from audit.ledger.tiles import Tile, encode_entries
log = TileDirectory(Path(sys.argv[1]))
for index in count():
    log.write_all(
        (Tile(None, index, width), encode_entries([b"%d" % index * 50] * width))
        for width in (1, 128, 256)
    )
    log.drop_partials(Tile(None, index))
"""


def test_a_killed_writer_leaves_whole_tiles_and_can_begin_again(directory: TileDirectory) -> None:
    """After SIGKILL every file that is served is whole, and the next writer goes through them."""
    for last in range(5, 50, 5):
        command = [sys.executable, "-c", WRITER, str(directory.root)]
        with subprocess.Popen(command) as writer:
            try:
                wait_until((directory.root / Tile(None, last).to_path()).is_file, 30)
            finally:
                writer.kill()
        served = (path for path in (directory.root / "tile").rglob("*") if path.is_file())
        for path in served:
            tile = Tile.parse(path.relative_to(directory.root).as_posix())
            assert directory.entries(tile) == [b"%d" % tile.index * 50] * tile.width


def watch(monkeypatch: pytest.MonkeyPatch) -> list[int | str]:
    """What is flushed, "content" or a folder's inode, and when a tile gets its name."""
    steps: list[int | str] = []
    fsync, link = os.fsync, os.link

    def note_fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        steps.append(status.st_ino if stat.S_ISDIR(status.st_mode) else "content")
        fsync(descriptor)

    def note_link(source: Path, target: Path) -> None:
        steps.append("named")
        link(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "link", note_link)
    return steps


def folders_of(directory: TileDirectory, path: str) -> set[int]:
    folder = directory.root / path
    above = folder.parents[: folder.parents.index(directory.root.parent) + 1]
    return {each.stat().st_ino for each in (folder, *above)}


def test_tiles_and_their_folders_are_flushed_before_write_returns(
    directory: TileDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file before it has its name, then each folder once, up to the one with the log.

    Also those that another process has made, and left before they were flushed.
    """
    content = encode_hashes(hashes_of(WIDTH))
    for log in (directory, TileDirectory(directory.root)):
        steps = watch(monkeypatch)
        log.write_all([(Tile(0, 1_000), content), (Tile(0, 1_001), content)])
        first = steps.index("content")
        assert steps[first : first + 4] == ["content", "named"] * 2
        flushed = steps[first + 4 :]
        assert len(flushed) == len(set(flushed))
        assert set(flushed) == folders_of(directory, "tile/0/x001")


def test_later_on_only_folders_that_change_are_flushed(
    directory: TileDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tile's own and the one above, where a partial one's is made; sealing is done often."""
    fill(directory, entries_of(5))
    steps = watch(monkeypatch)
    fill(directory, entries_of(7), 5)
    own = [directory.root / f"tile/{level}/000.p" for level in ("entries", "0")]
    changed = {path.stat().st_ino for folder in own for path in (folder, folder.parent)}
    assert (len(steps), set(steps)) == (8, changed | {"content", "named"})


def test_a_folder_that_cannot_be_made_at_once_is_flushed_all_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is made above the log's folder is durable as well."""
    steps = watch(monkeypatch)
    fill(TileDirectory(tmp_path / "new" / "ledger" / "log"), entries_of(1))
    above = (tmp_path, tmp_path / "new", tmp_path / "new/ledger")
    assert {folder.stat().st_ino for folder in above} <= set(steps)


def test_what_a_crash_left_behind_is_removed(directory: TileDirectory) -> None:
    """Half written files lie in one folder, and go."""
    directory.drop_unnamed()
    fill(directory, entries_of(3))
    (directory.root / ".unnamed" / "half").write_bytes(b"half")
    directory.drop_unnamed()
    assert list((directory.root / ".unnamed").iterdir()) == []


def test_others_on_the_machine_read_no_rows(directory: TileDirectory) -> None:
    """Files and folders are for owner and group."""
    fill(directory, entries_of(3))
    for path in (directory.root, *directory.root.rglob("*")):
        assert path.stat().st_mode & stat.S_IRWXO == 0


# --- a tree in tiles ------------------------------------------------------------------------------

SIZES = [1, 2, 255, 256, 257, 700]


def test_a_tree_in_tiles_is_the_tree(directory: TileDirectory) -> None:
    """Roots, frontier, proofs, leaf hashes and rows out of files are those of the entries."""
    entries = entries_of(SIZES[-1])
    naive = NaiveTree(entries)
    for old, size in pairwise([0, *SIZES]):
        fill(directory, entries[:size], old)
        node = directory.node_reader(size, cache=2)
        top = root(size, node)
        assert top == naive.mth(0, size) == Frontier.rebuild(size, node).root()
        for index in {0, size // 3, size - 1}:
            proof = inclusion_proof(index, size, node)
            verify_inclusion(leaf_hash(entries[index]), index, size, proof, top)
        proof = consistency_proof(old, size, node)
        verify_consistency(old, naive.mth(0, old), size, top, proof)
        for start in {0, 1, size // 2, size}:
            assert list(directory.rows(size, start)) == entries[start:size]
            leaves = [leaf_hash(entry) for entry in entries[start:size]]
            assert list(directory.leaf_hashes(size, start)) == leaves


def test_older_trees_are_read_after_their_partial_tiles_went(directory: TileDirectory) -> None:
    """An old checkpoint's root still comes out when only full tiles are left of its time."""
    entries = entries_of(600)
    for old, size in [(0, 100), (100, 300), (300, 600)]:
        fill(directory, entries[:size], old)
    for level in (None, 0):
        for index in (0, 1):
            directory.drop_partials(Tile(level, index))
    assert root(100, directory.node_reader(100)) == NaiveTree(entries).mth(0, 100)
    assert list(directory.rows(300)) == entries[:300]


def test_a_subtree_that_is_not_complete_has_no_hash(directory: TileDirectory) -> None:
    """Whoever asks beyond the edge gets a ProofError."""
    fill(directory, entries_of(5))
    node = directory.node_reader(5)
    for level, index in [(0, 5), (1, 2), (3, 0), (-1, 0), (0, -1)]:
        with pytest.raises(ProofError):
            node(level, index)
