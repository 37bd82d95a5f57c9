"""audit/spool.py: rows that survive on disk until the memory is back."""

from __future__ import annotations

import errno
import itertools
import logging
import multiprocessing
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from audit import spool as module
from audit.embedded import EmbeddedServer
from audit.errors import MemoryUnavailableError, SpoolError
from audit.memory import AuditMemory, open_memory
from audit.row import COMPLETED, STARTED, AuditRow, Reason
from audit.spool import QUARANTINE, Replayed, Spool, Usage
from audit.testing import InMemory
from tests.fakes import DOUBT, FakeMemory
from tests.support import check_every_row, completed, make_ending, make_identity, started

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def memory() -> Iterator[InMemory]:
    memory = InMemory()
    yield memory
    check_every_row(memory)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path, "memory")


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="audit")
    return caplog


def endings(memory: AuditMemory, count: int) -> list[AuditRow]:
    """Completed rows of invocations that the memory knows as started."""
    identities = [make_identity() for _ in range(count)]
    for identity in identities:
        memory.emit(started(identity))
    return [completed(identity) for identity in identities]


def files(spool: Spool) -> list[Path]:
    return sorted(path for path in spool.directory.iterdir() if path.is_file())


def quarantined(spool: Spool) -> list[bytes]:
    folder = spool.directory / QUARANTINE
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []


def alarms(log: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in log.records if getattr(r, "severity", "") == "sev-1"]


# --- keeping --------------------------------------------------------------------------------------


def test_a_kept_row_is_its_bytes_in_one_private_file(spool: Spool) -> None:
    """Unchanged, readable by nobody else: a row names tenants and errors."""
    row = completed(make_identity())
    spool.keep(row)
    (path,) = files(spool)
    assert path.read_bytes() == row.to_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(spool.directory.stat().st_mode) == 0o700


def test_a_row_is_on_disk_before_keep_returns(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order: the bytes are flushed, the file gets its name, the folder is flushed."""
    steps: list[str] = []
    opened: dict[int, str] = {}
    really_open, really_sync, really_rename = os.open, os.fsync, Path.rename

    def record_open(path: Any, *rest: Any) -> int:
        descriptor = really_open(path, *rest)
        opened[descriptor] = Path(path).name
        return descriptor

    def record_sync(descriptor: int) -> None:
        steps.append(f"flush {'row' if opened[descriptor].endswith('.tmp') else 'folder'}")
        if steps[-1] == "flush row":
            assert os.fstat(descriptor).st_size == len(row.to_bytes())
        really_sync(descriptor)

    def record_rename(path: Path, target: Path) -> Path:
        steps.append("rename")
        return really_rename(path, target)

    row = completed(make_identity())
    spool.check()
    monkeypatch.setattr(module.os, "open", record_open)
    monkeypatch.setattr(module.os, "fsync", record_sync)
    monkeypatch.setattr(Path, "rename", record_rename)
    spool.keep(row)
    assert steps == ["flush row", "rename", "flush folder"]


def test_a_new_folder_is_on_disk_too(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a crash could take the folder, and with it the rows inside."""
    flushed: list[Path] = []
    monkeypatch.setattr(module, "_flush_folder", flushed.append)
    spool.keep(completed(make_identity()))
    assert flushed == [spool.directory.parent, spool.directory]


def test_a_short_write_is_gone_on_with(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may take fewer bytes than it was given."""
    really_write = os.write
    monkeypatch.setattr(module.os, "write", lambda fd, data: really_write(fd, data[:7]))
    row = completed(make_identity())
    spool.keep(row)
    assert files(spool)[0].read_bytes() == row.to_bytes()


@pytest.mark.parametrize("step", ["write", "fsync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_disk_that_does_not_take_a_row_is_an_error_and_leaves_nothing(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, step: str, code: int
) -> None:
    """SpoolError says why and what to do; no torn row waits for replay."""
    spool.check()

    def fail(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(module.os, step, fail)
        with pytest.raises(SpoolError, match=os.strerror(code)) as caught:
            spool.keep(completed(make_identity()))
    assert "AUDIT_SPOOL_DIR" in str(caught.value)
    assert files(spool) == []
    spool.keep(completed(make_identity()))
    assert spool.usage().rows == 1


def test_a_folder_that_cannot_be_made_or_written_is_an_error(tmp_path: Path) -> None:
    """Found by check before the first row needs it, and by keep; asking what waits stays calm."""
    (tmp_path / "file").touch()
    spool = Spool(tmp_path / "file", "memory")
    for use in (spool.check, lambda: spool.keep(completed(make_identity()))):
        with pytest.raises(SpoolError, match="AUDIT_SPOOL_DIR"):
            use()
    assert spool.empty
    assert not spool.full


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_rights_is_an_error(tmp_path: Path, spool: Spool) -> None:
    """SpoolError, too."""
    tmp_path.chmod(0o500)
    with pytest.raises(SpoolError):
        spool.check()


def test_a_check_leaves_nothing_behind(spool: Spool) -> None:
    """The probe is gone, and nothing waits."""
    spool.check()
    assert files(spool) == []
    assert spool.empty


def test_a_kept_row_survives_a_signal_at_any_step_or_leaves_nothing(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted before it has its name, it is not there at all."""

    def interrupted(_: int) -> None:
        raise SystemExit(1)

    spool.check()
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fsync", interrupted)
        with pytest.raises(SystemExit):
            spool.keep(completed(make_identity()))
    assert files(spool) == []


# --- what waits -----------------------------------------------------------------------------------


def test_usage_counts_rows_and_bytes(spool: Spool) -> None:
    """And nothing before the folder is there."""
    assert spool.usage() == Usage(rows=0, bytes=0)
    rows = [completed(make_identity()) for _ in range(3)]
    for row in rows:
        spool.keep(row)
    assert spool.usage() == Usage(rows=3, bytes=sum(len(row.to_bytes()) for row in rows))


def test_usage_is_never_stale(tmp_path: Path, memory: InMemory) -> None:
    """Another process keeps and replays, and each answer is the truth of its moment."""
    ours, theirs = Spool(tmp_path, "memory"), Spool(tmp_path, "memory")
    for count, row in enumerate(endings(memory, 100), 1):
        theirs.keep(row)
        assert ours.usage().rows == count
    theirs.replay(memory)
    assert ours.empty


def test_usage_is_not_counted_again_while_nothing_changes(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked on every invocation, it costs one look at the folder; any change is seen all the same,
    and a change within the clock's tick is not believed to be the last."""
    spool.keep(completed(make_identity()))
    looks: list[str] = []
    really_list = os.listdir
    monkeypatch.setattr(module.os, "listdir", lambda path: looks.append(path) or really_list(path))
    spool.usage()
    spool.usage()
    assert len(looks) == 2  # the folder changed just now
    os.utime(spool.directory, ns=(0, 0))
    assert [spool.usage().rows for _ in range(9)] == [1] * 9
    assert len(looks) == 3
    spool.keep(completed(make_identity()))
    assert spool.usage().rows == 2


def test_a_spool_is_full_beyond_so_many_rows(tmp_path: Path, memory: InMemory) -> None:
    """Not at them; and no longer when there is room."""
    spool = Spool(tmp_path, "memory", max_rows=2)
    full = []
    for row in endings(memory, 3):
        spool.keep(row)
        full.append(spool.full)
    assert full == [False, False, True]
    spool.replay(memory)
    assert not spool.full


def test_a_spool_is_full_beyond_so_many_bytes(tmp_path: Path) -> None:
    """Not at them."""
    rows = [completed(make_identity()) for _ in range(2)]
    spool = Spool(tmp_path, "memory", max_bytes=sum(len(row.to_bytes()) for row in rows))
    for row in rows:
        spool.keep(row)
    assert not spool.full
    spool.keep(completed(make_identity()))
    assert spool.full


def test_a_full_spool_still_keeps_what_ended(tmp_path: Path) -> None:
    """Being full stops what would start, never what has run."""
    spool = Spool(tmp_path, "memory", max_rows=0)
    for _ in range(3):
        spool.keep(completed(make_identity()))
    assert spool.usage().rows == 3


# --- replay ---------------------------------------------------------------------------------------


def test_replay_emits_oldest_first_and_empties_the_spool(tmp_path: Path, memory: InMemory) -> None:
    """In the order in which rows were kept, whichever process kept them."""
    rows = endings(memory, 12)
    ticks = itertools.count(1)
    spools = [Spool(tmp_path, "memory", now_ns=lambda: next(ticks)) for _ in range(3)]
    for number, row in enumerate(rows):
        spools[number % 3].keep(row)
    assert spools[0].replay(memory) == Replayed(emitted=12, quarantined=0)
    assert [r.to_bytes() for r in memory.rows(kind=COMPLETED)] == [r.to_bytes() for r in rows]
    assert spools[1].empty
    assert spools[0].replay(memory) == Replayed(emitted=0, quarantined=0)


def test_replay_stops_at_an_outage_and_goes_on_later(spool: Spool) -> None:
    """What the memory did not take waits; what it took before is not sent again."""
    memory = FakeMemory()
    rows = endings(memory, 5)
    for row in rows:
        spool.keep(row)
    memory.plan.extend([None, None, (DOUBT, True)])
    with pytest.raises(MemoryUnavailableError):
        spool.replay(memory)
    assert spool.usage().rows == 3  # the one in doubt as well
    assert spool.replay(memory).emitted == 3
    assert memory.kinds() == [STARTED] * 5 + [COMPLETED] * 5


def test_a_row_kept_twice_is_on_record_once(spool: Spool, memory: InMemory) -> None:
    """As after a crash between emit and removal."""
    (row,) = endings(memory, 1)
    spool.keep(row)
    spool.keep(row)
    memory.emit(row)
    spool.replay(memory)
    assert [r.kind for r in memory.rows()] == [STARTED, COMPLETED]
    assert spool.empty


def test_threads_that_replay_at_once_do_no_harm(tmp_path: Path, memory: InMemory) -> None:
    """Each row is on record once, and none is left."""
    rows = endings(memory, 60)
    for row in rows:
        Spool(tmp_path, "memory").keep(row)
    ready = threading.Barrier(4)
    errors: list[BaseException] = []

    def replay() -> None:
        try:
            ready.wait(30)
            Spool(tmp_path, "memory").replay(memory)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=replay) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [r.to_bytes() for r in memory.rows(kind=COMPLETED)] == [r.to_bytes() for r in rows]
    assert files(Spool(tmp_path, "memory")) == []


def test_processes_that_replay_at_once_do_no_harm(tmp_path: Path, server: EmbeddedServer) -> None:
    """While a fifth one goes on to keep rows: each is on record once, and none is left."""
    memory = open_memory(server.url)
    rows = endings(memory, 80)
    spool = Spool(tmp_path, memory.name)
    for row in rows[:40]:
        spool.keep(row)
    ready = FORK.Barrier(5)

    def replay() -> None:
        ready.wait(30)
        while Spool(tmp_path, memory.name).replay(memory).emitted:
            pass

    def keep() -> None:
        ready.wait(30)
        for row in rows[40:]:
            spool.keep(row)

    processes = [FORK.Process(target=work) for work in (replay, replay, replay, replay, keep)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 5
    spool.replay(memory)
    assert files(spool) == []
    assert [row.kind for row in check_every_row(memory)].count(COMPLETED) == 80
    memory.close()


def test_rows_of_another_memory_are_left_alone(tmp_path: Path, memory: InMemory) -> None:
    """Each memory has a folder of its own under the host's."""
    other = Spool(tmp_path, "another")
    other.keep(completed(make_identity()))
    spool = Spool(tmp_path, "memory")
    assert spool.empty
    assert spool.replay(memory) == Replayed(emitted=0, quarantined=0)
    assert other.usage().rows == 1


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("redis://h/1", "redis://h/2", False),
        ("redis://h?db=1", "redis://h?db=2", False),
        ("redis://h", "redis://h?prefix=b", False),
        ("redis+socket:///s?virtual_host=1", "redis+socket:///s?virtual_host=2", False),
        ("redis://h", "redis://user:secret@h:6379/0?durability=always", True),
    ],
)
def test_a_memory_is_known_by_what_it_is(one: str, other: str, same: bool, tmp_path: Path) -> None:
    """Two databases of one server are two memories, two spellings of one URL are one."""
    folders = {Spool(tmp_path, open_memory(url).name).directory for url in (one, other)}
    assert len(folders) == (1 if same else 2)


# --- quarantine -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\x00" * 400, b"[]", b'{"kind":"skill.invoked_completed"}', b"\xff\xfe"],
)
def test_what_is_no_row_goes_to_quarantine(
    content: bytes, spool: Spool, memory: InMemory, log: pytest.LogCaptureFixture
) -> None:
    """With an alarm, and in nobody's way: the rows behind it are replayed."""
    spool.check()
    (spool.directory / "00000000000000000001-foreign.row").write_bytes(content)
    (row,) = endings(memory, 1)
    spool.keep(row)
    assert spool.replay(memory) == Replayed(emitted=1, quarantined=1)
    assert quarantined(spool) == [content]
    (alarm,) = alarms(log)
    assert "foreign.row" in alarm
    assert spool.empty


def test_a_row_cut_short_goes_to_quarantine(spool: Spool, memory: InMemory) -> None:
    """At whatever byte a broken disk cut it."""
    whole = completed(make_identity()).to_bytes()
    spool.check()
    for length in range(0, len(whole), 37):
        (spool.directory / f"{length:020}-torn.row").write_bytes(whole[:length])
    assert spool.replay(memory).emitted == 0
    assert spool.empty
    assert sorted(map(len, quarantined(spool))) == list(range(0, len(whole), 37))


def test_what_has_no_name_of_a_row_is_left_alone(spool: Spool, memory: InMemory) -> None:
    """Files on their way, and files that somebody else put there."""
    spool.check()
    names = [".00000000000000000001-a.tmp", ".hidden.row", "README", "x.row.bak"]
    for name in names:
        (spool.directory / name).write_bytes(b"{")
    (spool.directory / "folder").mkdir()
    assert spool.empty
    assert spool.replay(memory) == Replayed(emitted=0, quarantined=0)
    assert [path.name for path in files(spool)] == sorted(names)


def test_a_folder_with_the_name_of_a_row_goes_to_quarantine(spool: Spool, memory: InMemory) -> None:
    """It cannot be read, and must not stop the rows behind it."""
    spool.check()
    (spool.directory / "0-odd.row").mkdir()
    (row,) = endings(memory, 1)
    spool.keep(row)
    assert spool.replay(memory) == Replayed(emitted=1, quarantined=1)
    assert (spool.directory / QUARANTINE / "0-odd.row").is_dir()


def test_a_row_that_the_memory_refuses_goes_to_quarantine(
    spool: Spool, memory: InMemory, log: pytest.LogCaptureFixture
) -> None:
    """A completed row without its started one: kept byte for byte, with the reason in the alarm."""
    row = completed(make_identity())
    spool.keep(row)
    assert spool.replay(memory) == Replayed(emitted=0, quarantined=1)
    assert quarantined(spool) == [row.to_bytes()]
    (alarm,) = alarms(log)
    assert "no started row" in alarm


def test_only_completed_rows_are_replayed(spool: Spool, memory: InMemory) -> None:
    """A started row in a spool would start what never ran."""
    spool.keep(started(make_identity()))
    assert spool.replay(memory) == Replayed(emitted=0, quarantined=1)
    assert list(memory.rows()) == []


def test_an_ending_from_outside_that_adds_nothing_is_no_alarm(
    spool: Spool, memory: InMemory, log: pytest.LogCaptureFixture
) -> None:
    """Settled or barred is an answer, not a refusal."""
    (row,) = endings(memory, 1)
    memory.emit(row)
    for identity in (make_identity(), make_identity(request_id=row.request_id)):
        spool.keep(completed(identity, make_ending(Reason.WORKER_LOST)))
    assert spool.replay(memory) == Replayed(emitted=2, quarantined=0)
    assert alarms(log) == []


def test_a_row_set_aside_waits_for_nobody(spool: Spool, memory: InMemory) -> None:
    """It is in quarantine, durable, and never replayed by itself."""
    row = completed(make_identity())
    spool.set_aside(row)
    assert spool.empty
    assert quarantined(spool) == [row.to_bytes()]
    assert spool.replay(memory) == Replayed(emitted=0, quarantined=0)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_machine_that_runs_short_condemns_no_row(
    spool: Spool, memory: InMemory, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Out of descriptors or memory: the row waits on, and is replayed later."""
    (row,) = endings(memory, 1)
    spool.keep(row)

    def fail(path: Path) -> bytes:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        with pytest.raises(SpoolError, match=os.strerror(code)):
            spool.replay(memory)
    assert spool.usage().rows == 1
    assert spool.replay(memory).emitted == 1


def test_a_row_that_cannot_be_removed_is_an_error_of_the_disk(
    spool: Spool, memory: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on record, and waits to be found there again."""
    (row,) = endings(memory, 1)
    spool.keep(row)

    def fail(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", fail)
        with pytest.raises(SpoolError):
            spool.replay(memory)
    assert spool.replay(memory).emitted == 1
    assert [r.kind for r in memory.rows()] == [STARTED, COMPLETED]
