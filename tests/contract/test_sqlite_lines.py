"""Connections to a SQLite file: forks, signals, and files that somebody moved."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from audit.errors import MemoryUnavailableError
from audit.memory import open_memory
from audit.memory.base import Once, Stored
from audit.memory.sql import sqlite_lines
from audit.memory.sql.sqlite import SqliteMemory
from tests.support import checked_memory, make_identity, started, wait_until

_FORK = multiprocessing.get_context("fork")


class Struck(Exception):
    """What a signal raises in the middle of anything."""


@pytest.fixture
def memory(sqlite_url: str) -> Iterator[SqliteMemory]:
    with checked_memory(sqlite_url) as made:
        assert isinstance(made, SqliteMemory)
        yield made


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def test_what_a_child_stores_stays_when_its_parent_closes(sqlite_url: str) -> None:
    """The child uses a memory that its parent had used; the parent's end takes no row with it."""
    memory = open_memory(sqlite_url)
    memory.emit(started(make_identity()))
    go_on, first = _FORK.Event(), _FORK.Event()

    def store() -> None:
        memory.emit(started(make_identity()))
        first.set()
        go_on.wait(30)
        memory.emit(started(make_identity()))
        os._exit(0)  # as a pool child that is shot: it closes nothing

    child = _FORK.Process(target=store)
    child.start()
    assert first.wait(30)
    memory.close()
    go_on.set()
    child.join()
    assert child.exitcode == 0
    with sqlite3.connect(path_of(sqlite_url)) as connection:
        assert connection.execute("SELECT count(*) FROM audit_rows").fetchone() == (3,)
    connection.close()


def test_a_fork_waits_for_a_thread_that_writes(memory: SqliteMemory) -> None:
    """The child has none of its parent's connections; the parent's write is whole."""
    inside, go_on = threading.Event(), threading.Event()

    def slowly(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO audit_deaths VALUES ('t', 'm', 1)")
        inside.set()
        go_on.wait(30)

    writer = threading.Thread(target=memory._write, args=(slowly,))
    writer.start()
    assert inside.wait(30)
    threading.Timer(0.2, go_on.set).start()
    pid = os.fork()
    if pid == 0:
        os._exit(len(sqlite_lines._CARRIED) + len(sqlite_lines._in_use()))
    assert os.waitpid(pid, 0)[1] == 0
    writer.join()
    assert memory.deaths("t", "m") == 1


def test_a_child_forked_in_a_write_stores_nothing(
    memory: SqliteMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where waiting was in vain the child says so, rather than lose what it stores."""
    monkeypatch.setattr(sqlite_lines, "FORK_WAIT", 0.05)

    def fork(_: sqlite3.Connection) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                memory.check()
            except MemoryUnavailableError:
                os._exit(0)
            finally:
                os._exit(1)
        return pid

    pid = memory._write(fork)
    assert os.waitpid(pid, 0)[1] == 0
    assert memory.emit(started(make_identity())) is Stored.NEW


@pytest.mark.parametrize("at", ["BEGIN", "work"])
def test_an_interrupted_write_holds_nobody_up(
    memory: SqliteMemory, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """A signal that strikes once the transaction has begun leaves none open, here or there."""
    memory.check()
    row = started(make_identity())

    def then_struck(step: Callable[[], Any], _: float) -> Any:
        step()
        raise Struck

    def struck(_: Any) -> Any:
        raise Struck

    with monkeypatch.context() as patch:
        if at == "BEGIN":
            patch.setattr(memory, "_patiently", then_struck)
        else:
            patch.setattr("audit.memory.sql.sqlite_steps._digest", struck)
        with pytest.raises(Struck):
            memory.emit(row)
    other = open_memory(sqlite_url, timeout=1)
    assert other.emit(started(make_identity())) is Stored.NEW
    other.close()
    assert memory.emit(row) is Stored.NEW


def test_an_interrupted_read_leaves_no_old_view(
    memory: SqliteMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was interrupted between two lines of a result does not keep its thread from writing."""
    for _ in range(3):
        memory.emit(started(make_identity()))
    caught: list[BaseException] = []  # as a result backend keeps it, with its frames

    def struck(*_: Any) -> Any:
        raise Struck

    with monkeypatch.context() as patch:
        patch.setattr(sqlite_lines, "_Named", struck)
        with pytest.raises(Struck) as info:
            list(memory.rows())
        caught.append(info.value)
    assert memory.emit(started(make_identity())) is Stored.NEW
    assert len(list(memory.rows())) == 4


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_row_is_never_stored_in_a_file_that_is_gone(
    memory: SqliteMemory, sqlite_url: str, how: str
) -> None:
    """It goes into the file that stands at the path now, as it would on a Redis set up anew."""
    path = path_of(sqlite_url)
    memory.emit(started(make_identity()))
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        name.rename(name.with_name(f"old-{name.name}"))
    if how == "replaced":
        open_memory(sqlite_url).check()
    row = started(make_identity())
    memory.emit(row)
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT request_id FROM audit_rows").fetchall()
    connection.close()
    assert found == [(row.request_id,)]


def test_a_file_that_is_replaced_while_it_is_opened_gets_no_row(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands there when the connection is ready is what gets the row."""
    path, row = path_of(sqlite_url), started(make_identity())
    other = open_memory(f"sqlite:///{tmp_path / 'other.db'}")
    other.check()
    other.close()
    open_memory(sqlite_url).check()
    moved: list[Path] = []
    real = SqliteMemory._set

    def then_replaced(memory: SqliteMemory, made: sqlite3.Connection) -> None:
        real(memory, made)
        if not moved:
            for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
                if name.exists():
                    moved.append(name.rename(name.with_name(f"old-{name.name}")))
            (tmp_path / "other.db").rename(path)

    monkeypatch.setattr(SqliteMemory, "_set", then_replaced)
    memory = open_memory(sqlite_url, timeout=30)
    memory.emit(row)
    memory.close()
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT request_id FROM audit_rows").fetchall()
    connection.close()
    assert found == [(row.request_id,)]


def test_a_new_file_is_for_its_owner_alone(memory: SqliteMemory, sqlite_url: str) -> None:
    """And so is what SQLite puts beside it; a file that is there keeps its mode."""
    memory.emit(started(make_identity()))
    path = path_of(sqlite_url)
    modes = {stat.S_IMODE(name.stat().st_mode) for name in path.parent.glob(f"{path.name}*")}
    assert modes == {0o600}
    path.chmod(0o640)
    memory.close()
    memory.emit(started(make_identity()))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_what_ran_out_is_forgotten_by_pages(
    memory: SqliteMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No renewal of a lease keeps writers waiting for all of it."""
    memory.emit(started(make_identity()), Once(token="lasts", seconds=60))
    memory._write(
        lambda connection: connection.executemany(
            "INSERT INTO audit_tokens VALUES ('t', ?, 1, 2)", [(str(n),) for n in range(25)]
        )
    )
    monkeypatch.setattr("audit.memory.sql.memory.FORGET_PAGE", 10)
    monkeypatch.setattr("audit.memory.sql.memory.FORGET_PAGES", 2)
    left = [25]
    for _ in range(2):
        memory.hold_lease("worker-1", 5)
        left.append(
            len(memory._write(lambda c: c.execute("SELECT 1 FROM audit_tokens").fetchall()))
        )
    assert left[1:] == [6, 1]


def test_forks_of_many_threads_do_not_hang(sqlite_url: str) -> None:
    """While threads write, a process forks again and again, and each child stores its row."""
    memory = open_memory(sqlite_url, timeout=30)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            memory.emit(started(make_identity()))

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    rows = [started(make_identity()) for _ in range(5)]
    for row in rows:
        child = _FORK.Process(target=memory.emit, args=(row,))
        child.start()
        wait_until(lambda child=child: child.exitcode is not None, 60)  # type: ignore[misc]
        assert child.exitcode == 0
    stop.set()
    for thread in threads:
        thread.join()
    stored = {row.request_id for row in memory.rows()}
    memory.close()
    assert stored >= {row.request_id for row in rows}


def test_the_log_of_writes_becomes_short_again(
    memory: SqliteMemory, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who reads holds it up, but no row; afterwards the next row shortens it."""
    monkeypatch.setattr("audit.memory.sql.sqlite.LONG_WAL", 100_000)
    memory.emit(started(make_identity()))
    wal = Path(f"{path_of(sqlite_url)}-wal")
    with sqlite3.connect(path_of(sqlite_url)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM audit_rows").fetchall()
        while wal.stat().st_size < 200_000:
            memory._shorten_at = 0.0
            memory.emit(started(make_identity()))
        reader.execute("COMMIT")
    reader.close()
    memory._shorten_at = 0.0
    memory.emit(started(make_identity()))
    assert wal.stat().st_size == 0
