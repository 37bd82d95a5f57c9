"""audit/ledger/log.py, folder.py, durable.py: files whole or not at all, one who seals, lists."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from audit.errors import LedgerDamagedError, LedgerError, TileConflictError, TileError
from audit.ledger.durable import name_files, replace_file
from audit.ledger.folder import LedgerFolder
from audit.ledger.log import LogFolder
from audit.ledger.note_key import SignerKey
from audit.ledger.tiles import Tile, encode_entries

KEY = SignerKey.generate("host.example").verifier


@pytest.fixture
def log(tmp_path: Path) -> LogFolder:
    return LogFolder(tmp_path / "ledger" / "log")


def bundle(count: int, index: int = 0) -> tuple[Tile, bytes]:
    return Tile(None, index, count), encode_entries(b"e%d" % n for n in range(count))


def grow(log: LogFolder, count: int, index: int = 0, *, replace: bool = False) -> None:
    tile, content = bundle(count, index)
    positions = [f"{index * 256 + n}-0" for n in range(count)]
    log.grow([(tile, content)], [(tile, positions)], replace=replace)


def test_a_checkpoint_takes_the_place_of_the_one_before(log: LogFolder) -> None:
    """Nothing is left beside it; before the first there is none."""
    assert log.checkpoint() is None
    for note in (b"one", b"two"):
        log.put_checkpoint(note)
        assert log.checkpoint() == note
    assert os.listdir(log.root) == ["checkpoint"]


def test_positions_lie_beside_their_bundle_under_its_name(log: LogFolder) -> None:
    """One a line, partial and full."""
    grow(log, 5)
    grow(log, 256)
    assert (log.root / "positions" / "000.p" / "5").read_text() == "0-0\n1-0\n2-0\n3-0\n4-0\n"
    assert log.positions(Tile(None, 0, 5)) == [f"{n}-0" for n in range(5)]
    assert len(log.positions(Tile(None, 0))) == 256


@pytest.mark.parametrize(
    ("size", "count", "expected"),
    [(1, 2, ["0-0"]), (2, 2, ["0-0", "1-0"]), (256, 1, ["255-0"]), (257, 2, ["255-0", "256-0"])],
)
def test_the_last_positions_span_bundles(
    size: int, count: int, expected: list[str], log: LogFolder
) -> None:
    """Fewer only where there are no more."""
    if size > 256:
        grow(log, 256)
    grow(log, (size - 1) % 256 + 1, (size - 1) // 256)
    assert log.last_positions(size, count) == expected


@pytest.mark.parametrize("content", [None, b"", b"0-0\n", b"0-0\n\n2-0\n", b"\xff"])
def test_positions_that_are_not_as_many_are_damage(content: bytes | None, log: LogFolder) -> None:
    """Lost, cut, or with an empty line."""
    grow(log, 3)
    path = log.root / "positions" / "000.p" / "3"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(LedgerDamagedError, match=r"positions of tile/entries/000\.p/3"):
        log.positions(Tile(None, 0, 3))


def test_partial_files_go_when_the_full_ones_are_sealed(log: LogFolder) -> None:
    """The same narrow ones are read out of the full ones afterwards; a missing full one keeps
    them."""
    grow(log, 5)
    log.tidy([Tile(None, 0, 5)])
    with pytest.raises(TileError):
        log.tidy([Tile(None, 0)])
    assert log.positions(Tile(None, 0, 5))
    grow(log, 256)
    log.tidy([Tile(None, 0)])
    assert sorted(p.name for p in log.root.rglob("*.p")) == []
    assert log.tiles.entries(Tile(None, 0, 5)) == [b"e%d" % n for n in range(5)]
    assert log.positions(Tile(None, 0, 5)) == [f"{n}-0" for n in range(5)]


def test_other_bytes_are_a_conflict_unless_they_may_go(log: LogFolder) -> None:
    """The same bytes again are no harm; nothing is overwritten without a word."""
    grow(log, 5)
    grow(log, 5)
    tile = Tile(None, 0, 5)
    other = encode_entries([b"x"] * 5)
    with pytest.raises(TileConflictError, match="left alone"):
        log.grow([(tile, other)])
    assert log.tiles.read(tile) == bundle(5)[1]
    log.grow([(tile, other)], replace=True)
    assert log.tiles.read(tile) == other


def test_a_malformed_tile_is_never_written(log: LogFolder) -> None:
    """Nor anything beside it."""
    with pytest.raises(TileError):
        log.grow([bundle(3), (Tile(0, 0, 2), b"x")])
    assert not log.root.exists()


def test_what_crashes_leave_half_written_is_removed(log: LogFolder) -> None:
    """And nothing else."""
    log.put_checkpoint(b"note")
    grow(log, 3)
    (log.root / ".0.unnamed").write_bytes(b"x")
    (log.root / ".unnamed" / "0").write_bytes(b"x")
    before = {path for path in log.root.rglob("*") if path.is_file() and "unnamed" not in str(path)}
    log.drop_unnamed()
    assert {path for path in log.root.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("content", [None, b"", b"x", b"-1", b"01", b"\xff"])
def test_a_hint_that_is_none_is_none(content: bytes | None, log: LogFolder) -> None:
    """Whoever asks looks for himself then."""
    log.put_checkpoint(b"note")
    log.put_gathered(7)
    assert log.gathered() == 7
    path = log.root / "gathered"
    path.unlink() if content is None else path.write_bytes(content)
    assert log.gathered() is None


def test_a_folder_that_cannot_be_used_says_what_to_do(tmp_path: Path) -> None:
    """With the reason, and the setting."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LedgerError, match=r"File exists.*AUDIT_LEDGER_DIR"):
        LogFolder(tmp_path / "file" / "log").put_checkpoint(b"note")
    with (
        pytest.raises(LedgerError, match=r"AUDIT_LEDGER_DIR"),
        LedgerFolder(tmp_path / "file").locked(),
    ):
        pytest.fail("it was locked")


# --- the whole ledger -----------------------------------------------------------------------------


def test_one_at_a_time_holds_the_lock(tmp_path: Path) -> None:
    """Through another object as well; whoever ends, however, gives it back."""
    first, second = LedgerFolder(tmp_path / "l"), LedgerFolder(tmp_path / "l")
    with first.locked() as mine, second.locked() as too:
        assert (mine, too) == (True, False)
    with pytest.raises(RuntimeError), first.locked():
        raise RuntimeError
    with second.locked() as mine:
        assert mine


def test_keys_and_tenants_are_listed(tmp_path: Path) -> None:
    """Public keys for all, tenants for the operator; nothing before there is anything."""
    folder = LedgerFolder(tmp_path)
    assert (folder.keys(), folder.tenants()) == ([], {})
    folder.put_keys([KEY])
    folder.put_tenants({"aa": "tenant"})
    assert (folder.keys(), folder.tenants()) == ([KEY], {"aa": "tenant"})
    assert (tmp_path / "keys").read_text() == KEY.to_text() + "\n"
    assert (tmp_path / "tenants").read_text() == "aa tenant\n"
    assert stat.S_IMODE((tmp_path / "tenants").stat().st_mode) == 0o600


def test_a_damaged_list_of_keys_is_told(tmp_path: Path) -> None:
    """It is nothing to guess about."""
    (tmp_path / "keys").write_text(KEY.to_text()[:-4] + "\n")
    with pytest.raises(LedgerDamagedError, match="backup"):
        LedgerFolder(tmp_path).keys()


# --- durable files --------------------------------------------------------------------------------


def test_every_file_is_flushed_before_it_has_its_name_and_every_folder_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are written side by side."""
    events: list[tuple[str, int]] = []
    fsync, link = os.fsync, os.link

    def note_fsync(descriptor: int) -> None:
        events.append(("fsync", os.fstat(descriptor).st_ino))
        fsync(descriptor)

    def note_link(source: Path, target: Path) -> None:
        events.append(("link", os.stat(source).st_ino))
        link(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "link", note_link)
    files = [(tmp_path / folder / str(n), b"%d" % n) for n in range(300) for folder in "ab"]
    assert name_files(tmp_path / "unnamed", files) is None
    for path, content in files:
        inode = path.stat().st_ino
        named = events.index(("link", inode))
        assert ("fsync", inode) in events[:named]
        for folder in (
            path.parent,
            tmp_path,
            tmp_path.parent,
        ):  # whoever made them may have crashed
            assert ("fsync", folder.stat().st_ino) in events[named:]
        assert path.read_bytes() == content
    assert list((tmp_path / "unnamed").iterdir()) == []


def test_a_replaced_file_is_flushed_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its folder afterwards."""
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(descriptor: int) -> None:
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", lambda a, b: (events.append("rename"), rename(a, b)))
    replace_file(tmp_path / "x", b"x")
    assert events == ["file", "rename", "folder"]
