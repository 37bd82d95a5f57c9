"""audit/ledger/sealer.py: what a round seals, who may seal, and that damage is told, not healed."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from audit.embedded import EmbeddedServer
from audit.errors import (
    LedgerDamagedError,
    LedgerKeyError,
    LedgerRaceError,
    MemoryUnavailableError,
)
from audit.ledger import durable
from audit.ledger.checkpoint import Checkpoint, open_checkpoint, origin_of
from audit.ledger.folder import META, LedgerFolder
from audit.ledger.keys import LedgerKeys, rotate_file, write_new
from audit.ledger.sealer import SealRound
from audit.memory import open_memory
from audit.memory.base import Entry
from audit.row import NIL_TENANT
from audit.system_rows import KEY_ROTATED
from audit.testing import InMemory
from tests.sealing import (
    KEYS,
    OTHER,
    PREFIX,
    Rows,
    contents,
    files,
    log_of,
    make,
    meta_of,
    row_of,
    seal,
    verified,
)
from tests.support import TENANT, make_identity, refused, validate_row

pytestmark = pytest.mark.usefixtures("no_flush")


# --- what a round does ----------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [[1], [1, 1], [255, 1, 1], [256, 256], [300, 600], [2500]])
def test_rows_are_sealed_in_stored_order(steps: list[int], tmp_path: Path) -> None:
    """Each once, with its position; the root is that of an independent tree over the rows."""
    memory = Rows()
    sealer = make(memory, tmp_path, most=1000)
    total = 0
    for step in steps:
        memory.counts[TENANT] = total = total + step
        assert sealer.round() == SealRound(rows=step, logs=1, waiting=0, faults={})
        found = contents(memory, tmp_path, TENANT)
        assert found["rows"] == [row_of(TENANT, n) for n in range(1, total + 1)]
        last = (total - 1) // 256 * 256
        assert found["positions"][last - total :] == [f"{n}-0" for n in range(last + 1, total + 1)]
    assert len(meta_of(memory, tmp_path)) == len(steps)


def test_a_round_without_new_rows_writes_nothing(tmp_path: Path) -> None:
    """Not by the sealer that sealed, nor by one that starts."""
    memory = Rows(**{OTHER: 3})
    memory.counts[TENANT] = 300
    sealer = make(memory, tmp_path)
    assert sealer.round() == SealRound(rows=303, logs=2, waiting=0, faults={})
    before = files(tmp_path)
    for again in (sealer, make(memory, tmp_path)):
        assert again.round() == SealRound(rows=0, logs=0, waiting=0, faults={})
    assert files(tmp_path) == before


def test_each_tenant_has_a_log_of_its_own(tmp_path: Path) -> None:
    """Named by a pseudonym; the list of whose they are is for the operator alone."""
    memory = Rows(**{OTHER: 2})
    memory.counts[TENANT] = 3
    seal(memory, tmp_path)
    assert contents(memory, tmp_path, OTHER)["rows"] == [row_of(OTHER, 1), row_of(OTHER, 2)]
    assert LedgerFolder(tmp_path).tenants() == {log_of(OTHER): OTHER, log_of(TENANT): TENANT}
    assert stat.S_IMODE((tmp_path / "tenants").stat().st_mode) == 0o600
    for tenant_id in (OTHER, TENANT):
        name = tenant_id.encode()
        assert name not in (tmp_path / log_of(tenant_id) / "checkpoint").read_bytes()
        assert all(name not in entry for entry in meta_of(memory, tmp_path))


def test_the_meta_log_holds_the_newest_checkpoint_of_each_log_that_grew(tmp_path: Path) -> None:
    """Once, in the order in which they were sealed."""
    memory = Rows(**{OTHER: 1})
    memory.counts[TENANT] = 1
    sealer, expected = make(memory, tmp_path), set()
    for grows in ([OTHER, TENANT], [TENANT], [], [OTHER]):
        for tenant_id in grows:
            memory.counts[tenant_id] += 1
        sealer.round()
        expected |= {memory.sealed(tenant_id) for tenant_id in (OTHER, TENANT)}
    found = meta_of(memory, tmp_path)
    assert set(found) == expected
    assert len(found) == len(expected) == 4


@pytest.mark.parametrize("hint", [None, b"", b"x", b"0", b"1", b"3", b"4", b"5"])
def test_a_lost_or_wrong_hint_gathers_nothing_twice(hint: bytes | None, tmp_path: Path) -> None:
    """The meta log itself says what it has."""
    memory = Rows(**{OTHER: 1})
    for _ in range(3):
        memory.counts[TENANT] += 1
        memory.counts[OTHER] += 1
        seal(memory, tmp_path)
    before = meta_of(memory, tmp_path)
    for tenant_id in (TENANT, OTHER):
        path = tmp_path / log_of(tenant_id) / "gathered"
        path.unlink() if hint is None else path.write_bytes(hint)
    seal(memory, tmp_path)
    assert meta_of(memory, tmp_path) == before
    memory.counts[OTHER] += 1
    seal(memory, tmp_path)
    assert meta_of(memory, tmp_path) == [*before, memory.sealed(OTHER)]


def test_a_round_that_has_other_duties_stops_and_every_tenant_gets_its_turn(tmp_path: Path) -> None:
    """After one checkpoint of one tenant; the next round begins with the next tenant."""
    memory = Rows(**{OTHER: 25})
    memory.counts[TENANT] = 25
    sealer = make(memory, tmp_path, most=10)
    did = [sealer.round(lambda: False) for _ in range(6)]
    assert [(d.rows, d.logs, d.waiting) for d in did if d] == [
        (10, 1, 15),
        (10, 1, 15),
        (10, 1, 5),
        (10, 1, 5),
        (5, 1, 0),
        (5, 1, 0),
    ]
    assert len(contents(memory, tmp_path, TENANT)["rows"]) == 25


def test_with_many_tenants_a_round_begins_where_the_one_before_stopped(tmp_path: Path) -> None:
    """Those that always have new rows starve nobody: between two turns of one, each has its own."""
    tenants = [f"00000000-0000-4000-8000-{n:012}" for n in range(1, 21)]
    memory = Rows(**dict.fromkeys(tenants, 0))
    sealer, times, notes = make(memory, tmp_path), dict.fromkeys(tenants, 0), dict[str, Any]()
    for _ in range(20):
        for tenant_id in tenants:
            memory.counts[tenant_id] += 1
        asked = iter([True] * 4)
        sealer.round(lambda asked=asked: next(asked, False))  # type: ignore[misc]
        for tenant_id in tenants:
            times[tenant_id] += memory.sealed(tenant_id) != notes.get(tenant_id)
            notes[tenant_id] = memory.sealed(tenant_id)
        assert max(times.values()) - min(times.values()) <= 1
    assert set(times.values()) == {5}


def test_a_log_that_breaks_a_round_has_only_its_turn(tmp_path: Path) -> None:
    """The round behind it goes on with the next log."""
    memory = Rows(**{OTHER: 1})
    memory.counts[TENANT] = 1
    entries = memory.entries

    def fail(tenant_id: str, *args: Any) -> list[Entry]:
        if tenant_id == broken:
            raise MemoryUnavailableError("of this tenant alone")
        return entries(tenant_id, *args)

    memory.entries = fail  # type: ignore[method-assign]
    sealer = make(memory, tmp_path)
    broken = memory.tenants()[0]
    for _ in range(2):
        with contextlib.suppress(MemoryUnavailableError):
            sealer.round()
    assert memory.sealed(memory.tenants()[1]) is not None


def test_trimmed_rows_are_not_missed(tmp_path: Path) -> None:
    """What is sealed may leave the memory; sealing goes on behind it."""
    memory = InMemory()
    for _ in range(3):
        memory.emit(refused(make_identity()))
    seal(memory, tmp_path)
    memory.trim(TENANT, "4-0")
    assert list(memory.rows()) == []
    assert seal(memory, tmp_path) == SealRound(rows=0, logs=0, waiting=0, faults={})
    memory.emit(refused(make_identity()))
    assert seal(memory, tmp_path).rows == 1
    assert len(contents(memory, tmp_path, TENANT)["rows"]) == 4


# --- who may seal ---------------------------------------------------------------------------------


def test_two_sealers_of_one_folder_seal_one_at_a_time(tmp_path: Path) -> None:
    """Who finds it locked seals nothing; afterwards it finds nothing to do."""
    memory = Rows()
    memory.counts[TENANT] = 30
    first, second = make(memory, tmp_path, most=10), make(memory, tmp_path)
    meanwhile: list[SealRound | None] = []

    def go_on() -> bool:
        meanwhile.append(second.round())
        return True

    assert first.round(go_on) == SealRound(rows=30, logs=1, waiting=0, faults={})
    assert meanwhile
    assert set(meanwhile) == {None}
    assert second.round() == SealRound(rows=0, logs=0, waiting=0, faults={})


def test_threads_that_seal_side_by_side_seal_each_row_once(tmp_path: Path) -> None:
    """While rows keep coming."""
    memory = Rows()
    stop = threading.Event()
    rounds: list[SealRound] = []

    def work() -> None:
        sealer = make(memory, tmp_path, most=64)
        while not stop.is_set():
            if (did := sealer.round()) is not None:
                rounds.append(did)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(600):
        memory.counts[TENANT] += 1
        threading.Event().wait(0.0005)
    stop.set()
    for thread in threads:
        thread.join()
    seal(memory, tmp_path)
    assert all(not did.faults for did in rounds)
    found = contents(memory, tmp_path, TENANT)
    assert found["rows"] == [row_of(TENANT, n) for n in range(1, 601)]
    checkpoints = [
        Checkpoint.parse(e.decode().partition("\n\n")[0] + "\n") for e in meta_of(memory, tmp_path)
    ]
    sizes = [checkpoint.size for checkpoint in checkpoints]
    assert sizes == sorted(set(sizes))


def _seal_in_a_process(url: str, directory: str, count: int) -> None:
    memory = open_memory(url, timeout=10)
    sealer = make(memory, Path(directory), most=16)
    while len(memory.entries(TENANT, None, count)) < count:
        sealer.round()
    for _ in range(3):
        sealer.round()


@pytest.mark.parametrize("folders", [1, 2])
def test_processes_that_seal_side_by_side_never_fork(
    folders: int, server: EmbeddedServer, tmp_path: Path
) -> None:
    """Over one folder, and each over one of its own: a single history, each row once."""
    memory = open_memory(server.url, timeout=10)
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(
            target=_seal_in_a_process, args=(server.url, str(tmp_path / str(n % folders)), 300)
        )
        for n in range(2)
    ]
    for process in processes:
        process.start()
    for _ in range(300):
        memory.emit(refused(make_identity()))
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    stored = [row.to_bytes() for row in memory.rows(tenant_id=TENANT)]
    note = memory.sealed(TENANT)
    whole = [n for n in range(folders) if (tmp_path / str(n)).is_dir()]
    newest = [
        n for n in whole if LedgerFolder(tmp_path / str(n)).log(log_of(TENANT)).checkpoint() == note
    ]
    assert newest
    rows = contents(memory, tmp_path / str(newest[0]), TENANT)["rows"]
    assert rows == stored[: len(rows)]
    assert folders == 2 or rows == stored
    memory.close()


def test_a_second_folder_of_one_memory_is_told_and_seals_nothing(tmp_path: Path) -> None:
    """It lacks the tiles of what is sealed; the first goes on."""
    memory = Rows()
    memory.counts[TENANT] = 5
    first, second = make(memory, tmp_path / "a"), make(memory, tmp_path / "b")
    first.round()
    memory.counts[TENANT] = 9
    did = second.round()
    assert did is not None
    assert (did.rows, did.waiting) == (0, 9)
    assert isinstance(did.faults[log_of(TENANT)], LedgerDamagedError)
    assert first.round() == SealRound(rows=4, logs=1, waiting=0, faults={})
    assert len(contents(memory, tmp_path / "a", TENANT)["rows"]) == 9


def test_of_two_who_seal_the_same_rows_one_is_told(tmp_path: Path) -> None:
    """The swap that comes second fails, and what came first stands."""
    memory = Rows()
    memory.counts[TENANT] = 5
    first, second = make(memory, tmp_path / "a"), make(memory, tmp_path / "b")
    swap = memory.swap_sealed

    def be_second(*args: Any) -> bool:
        if args[0] == META:
            return swap(*args)
        memory.swap_sealed = swap  # type: ignore[method-assign]
        first.round()
        return swap(*args)

    memory.swap_sealed = be_second  # type: ignore[method-assign]
    # With a row more than the first one sees, so that the two are not of one tree.
    memory.counts[TENANT] = 6
    entries = memory.entries
    memory.entries = lambda t, a, n: (
        entries(t, a, n)[:5] if memory.swap_sealed == swap else entries(t, a, n)
    )  # type: ignore[method-assign]
    did = second.round()
    assert did is not None
    assert isinstance(did.faults[log_of(TENANT)], LedgerRaceError)
    assert len(contents(memory, tmp_path / "a", TENANT)["rows"]) == 5


# --- damage ---------------------------------------------------------------------------------------


def roll_back(memory: Rows, log: Path) -> None:
    older = Rows()
    older.counts[TENANT] = 300
    seal(older, log.parent.parent / "older")
    memory._sealed[TENANT] = older._sealed[TENANT]
    memory._sealed_positions[TENANT] = older._sealed_positions[TENANT]


def forget(memory: Rows, log: Path) -> None:
    del memory._sealed[TENANT], memory._sealed_positions[TENANT]


def lose_rows(memory: Rows, log: Path) -> None:
    memory.counts[TENANT] = 500


def lose(name: str) -> Callable[[Rows, Path], None]:
    return lambda memory, log: (log / name).unlink()


def flip(name: str, at: int = -40) -> Callable[[Rows, Path], None]:
    def change(memory: Rows, log: Path) -> None:
        content = bytearray((log / name).read_bytes())
        content[at] ^= 1
        (log / name).write_bytes(content)

    return change


def edit_row(memory: Rows, log: Path) -> None:
    entries = memory.entries

    def edited(*args: Any) -> list[Entry]:
        found = entries(*args)
        return [Entry(e.position, b"x" if e.position == "600-0" else e.stored) for e in found]

    memory.entries = edited  # type: ignore[method-assign]


def shift(memory: Rows, log: Path) -> None:
    """The sidecar says that the last sealed row stands further on than it does."""
    path = log / "positions" / "002.p" / "88"
    path.write_bytes(path.read_bytes().replace(b"\n600-0\n", b"\n602-0\n"))


def other_key(memory: Rows, log: Path) -> None:
    name = f"{PREFIX}/{log.name}"
    checkpoint = verified(memory.sealed(TENANT), name)
    other = LedgerKeys.generate("host.example")
    memory._sealed[TENANT] = checkpoint.sign(*other.signers_of(name)).to_bytes()


def fork(memory: Rows, log: Path) -> None:
    name = f"{PREFIX}/{log.name}"
    checkpoint = Checkpoint(name, 600, b"r" * 32)
    memory._sealed[TENANT] = checkpoint.sign(*KEYS.signers_of(name)).to_bytes()


def forked_file(memory: Rows, log: Path) -> None:
    name = f"{PREFIX}/{log.name}"
    checkpoint = Checkpoint(name, 300, b"r" * 32)
    (log / "checkpoint").write_bytes(checkpoint.sign(*KEYS.signers_of(name)).to_bytes())


DAMAGE: dict[str, Callable[[Rows, Path], None]] = {
    "memory rolled back": roll_back,
    "checkpoint gone from the memory": forget,
    "rows gone from the memory": lose_rows,
    "last row edited in the memory": edit_row,
    "lost partial tile": lose("tile/0/002.p/88"),
    "lost tile of level 1": lose("tile/1/000.p/2"),
    "lost bundle": lose("tile/entries/002.p/88"),
    "lost positions": lose("positions/002.p/88"),
    "flipped byte in a partial tile": flip("tile/0/002.p/88"),
    "flipped byte in a tile of level 1": flip("tile/1/000.p/2"),
    "flipped byte in a bundle": flip("tile/entries/002.p/88"),
    "positions that skip rows": shift,
    "flipped byte in the checkpoint file": flip("checkpoint"),
    "another key": other_key,
    "another tree in the memory": fork,
    "another tree in the file": forked_file,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_told_and_nothing_is_repaired(
    damage: Callable[[Rows, Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One alarm for as long as it lasts; files and memory stay as they are; other logs go on."""
    memory = Rows(**{OTHER: 1})
    memory.counts[TENANT] = 600
    directory = tmp_path / "ledger"
    seal(memory, directory)
    memory.counts[TENANT] = 610
    damage(memory, directory / log_of(TENANT))
    before, sealed = files(directory / log_of(TENANT)), memory.sealed(TENANT)
    sealer = make(memory, directory)
    for _ in range(3):
        memory.counts[OTHER] += 1
        did = sealer.round()
        assert did is not None
        assert list(did.faults) == [log_of(TENANT)]
        assert isinstance(did.faults[log_of(TENANT)], LedgerDamagedError)
        assert did.rows == 1
        assert did.waiting >= 1 or memory.counts[TENANT] == 500
    assert files(directory / log_of(TENANT)) == before
    assert memory.sealed(TENANT) == sealed
    # Of this log; the leases of other tests may tell of their memories meanwhile.
    (alarm,) = (record for record in caplog.records if "severity" in record.__dict__)
    assert (alarm.levelname, alarm.__dict__["severity"]) == ("CRITICAL", "sev-1")
    assert "audit verify" in alarm.getMessage()
    assert TENANT not in alarm.getMessage()


def test_a_log_that_was_damaged_goes_on_once_that_is_put_right(tmp_path: Path) -> None:
    """Without a restart; and the alarm comes again when the damage does."""
    memory, directory = Rows(), tmp_path / "ledger"
    memory.counts[TENANT] = 300
    sealer = make(memory, directory)
    sealer.round()
    shutil.copytree(directory, tmp_path / "backup")
    memory.counts[TENANT] = 310
    shutil.rmtree(directory / log_of(TENANT) / "tile")
    did = sealer.round()
    assert did is not None
    assert did.faults
    shutil.copytree(tmp_path / "backup", directory, dirs_exist_ok=True)
    assert sealer.round() == SealRound(rows=10, logs=1, waiting=0, faults={})
    assert len(contents(memory, directory, TENANT)["rows"]) == 310


def test_a_damaged_meta_log_stops_no_tenant(tmp_path: Path) -> None:
    """What it misses is gathered when it is put right."""
    memory = Rows()
    sealer = make(memory, tmp_path)
    for _ in range(2):
        memory.counts[TENANT] += 1
        sealer.round()
    path = tmp_path / META / "tile" / "0" / "000.p" / "2"
    content = path.read_bytes()
    path.write_bytes(b"x" * len(content))
    memory.counts[TENANT] += 1
    did = sealer.round()
    assert did is not None
    assert (did.rows, list(did.faults)) == (1, [META])
    path.write_bytes(content)
    assert sealer.round() == SealRound(rows=0, logs=0, waiting=0, faults={})
    assert meta_of(memory, tmp_path)[2:] == [memory.sealed(TENANT)]


@pytest.mark.parametrize("entry", [Entry("3-0", b"x" * 65_536), Entry("3-0", b"x", foreign=True)])
def test_an_entry_that_is_no_row_stops_its_log_alone(entry: Entry, tmp_path: Path) -> None:
    """It is told as damage, with its place; the rows before it are sealed and gathered."""
    memory = Rows(**{OTHER: 1})
    memory.counts[TENANT] = 5
    entries = memory.entries
    memory.entries = lambda t, a, n: [  # type: ignore[method-assign]
        entry if (t, e.position) == (TENANT, "3-0") else e for e in entries(t, a, n)
    ]
    sealer = make(memory, tmp_path)
    for rows in (3, 0):
        did = sealer.round()
        assert did is not None
        assert (did.rows, did.waiting, list(did.faults)) == (rows, 3, [log_of(TENANT)])
        assert isinstance(did.faults[log_of(TENANT)], LedgerDamagedError)
        assert "3-0" in str(did.faults[log_of(TENANT)])
    assert len(contents(memory, tmp_path, TENANT)["rows"]) == 2
    assert memory.sealed(TENANT) in meta_of(memory, tmp_path)


def test_an_outage_ends_the_round(tmp_path: Path) -> None:
    """With the memory's error; the next one seals."""
    memory = Rows()
    memory.counts[TENANT] = 5
    sealer = make(memory, tmp_path)
    memory.down = True
    with pytest.raises(MemoryUnavailableError):
        sealer.round()
    memory.down = False
    assert sealer.round() == SealRound(rows=5, logs=1, waiting=0, faults={})


# --- keys -----------------------------------------------------------------------------------------


def test_without_sound_keys_nothing_is_sealed(tmp_path: Path) -> None:
    """The error says what to do, the file of the keys stays, sound ones are taken up at once."""
    memory, path = Rows(), tmp_path / "keys"
    memory.counts[TENANT] = 5
    write_new(KEYS, path)
    sound = path.read_bytes()
    path.write_bytes(damaged := sound.replace(b"secret ", b"secre "))
    sealer = make(memory, tmp_path / "ledger", load_keys=lambda: LedgerKeys.load(str(path)))
    with pytest.raises(LedgerKeyError, match="backup"):
        sealer.round()
    assert path.read_bytes() == damaged
    assert memory.sealed(TENANT) is None
    path.write_bytes(sound)
    assert sealer.round() == SealRound(rows=5, logs=1, waiting=0, faults={})


def test_a_rotation_is_a_row_once_and_overlaps(tmp_path: Path) -> None:
    """Old and new key sign; who knows either can verify; the row is sealed like any other."""
    memory, path, directory = InMemory(), tmp_path / "keys", tmp_path / "ledger"
    write_new(KEYS, path)
    sealer = make(memory, directory, load_keys=lambda: LedgerKeys.load(str(path)))
    memory.emit(refused(make_identity()))
    sealer.round()
    assert list(memory.rows(kind=KEY_ROTATED)) == []
    rotated = rotate_file(path)
    memory.emit(refused(make_identity()))
    for again in (sealer, make(memory, directory, load_keys=lambda: rotated), sealer):
        again.round()
    (row,) = memory.rows(kind=KEY_ROTATED)
    validate_row(row)
    assert row.tenant_id == NIL_TENANT
    assert row.payload["new_key"] == rotated.signers[0].verifier.to_text()
    assert row.payload["old_key"] == KEYS.signers[0].verifier.to_text()
    origin = origin_of(PREFIX, TENANT, KEYS.secret)
    note = memory.sealed(TENANT)
    assert note is not None
    for keys in (KEYS.verifiers, rotated.verifiers[:1]):
        (by,) = open_checkpoint(note, origin, [k.renamed(origin) for k in keys]).signed_by
        assert by.public_key == keys[0].public_key
    assert contents(memory, directory, NIL_TENANT)["rows"] == [row.to_bytes()]
    assert LedgerFolder(directory).keys() == [*KEYS.verifiers, rotated.signers[0].verifier]


def test_a_rotation_is_one_row_although_a_crash_comes_behind_it(tmp_path: Path) -> None:
    """Between the row and the list of keys."""
    memory = InMemory()
    memory.emit(refused(make_identity()))
    seal(memory, tmp_path)
    listed = (tmp_path / "keys").read_bytes()
    rotated = KEYS.rotated()
    for _ in range(2):
        seal(memory, tmp_path, load_keys=lambda: rotated)
        (tmp_path / "keys").write_bytes(listed)
    assert len(list(memory.rows(kind=KEY_ROTATED))) == 1


def test_after_three_rotations_the_first_checkpoint_still_verifies(tmp_path: Path) -> None:
    """A log whose last checkpoint is of an old key goes on under new ones."""
    memory, keys = Rows(), KEYS
    memory.counts[TENANT] = 5
    seal(memory, tmp_path)
    memory.emit = lambda row, once=None: None  # type: ignore[method-assign, assignment, misc]
    for _ in range(3):
        keys = keys.rotated()
    newest = keys
    memory.counts[TENANT] = 6
    did = seal(memory, tmp_path, load_keys=lambda: newest)
    assert did == SealRound(rows=1, logs=1, waiting=0, faults={}, old_keys_may_go=True)


def test_the_fault_of_a_disk_is_an_alarm_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Full: nothing is sealed, nothing is damaged, and afterwards it goes on."""
    memory = Rows()
    memory.counts[TENANT] = 5
    sealer = make(memory, tmp_path)
    sealer.round()
    memory.counts[TENANT] = 7

    def full(descriptor: int, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(durable.os, "write", full)
        did = sealer.round()
    assert did is not None
    assert (did.rows, did.waiting) == (0, 2)
    assert not isinstance(did.faults[log_of(TENANT)], LedgerDamagedError)
    (alarm,) = caplog.records
    assert (alarm.levelno, alarm.__dict__["severity"]) == (logging.ERROR, "sev-1")
    assert "No space left" in alarm.getMessage()
    assert sealer.round() == SealRound(rows=2, logs=1, waiting=0, faults={})
