"""What only SQLite promises: many writing processes, a writer that is killed, files of others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import threading
from pathlib import Path

import pytest

from audit.errors import MemoryUnavailableError, MemoryUnsuitableError, MemoryUrlError
from audit.memory import open_memory
from tests.support import checked_memory, completed, make_identity, started, wait_until

PROCESSES = 16
EACH = 10
_FORK = multiprocessing.get_context("fork")


def write(url: str, failures: str) -> None:
    """What one of many processes does; what went wrong it leaves in a file."""
    memory = open_memory(url, timeout=60)
    try:
        for _ in range(EACH):
            identity = make_identity()
            memory.emit(started(identity))
            memory.emit(completed(identity))
    except Exception as error:
        Path(failures, str(os.getpid())).write_text(repr(error))
    memory.close()


def test_many_processes_write_side_by_side(sqlite_url: str, tmp_path: Path) -> None:
    """16 processes, 10 invocations each, into a file that none of them had: all are there."""
    failures = tmp_path / "failures"
    failures.mkdir()
    processes = [
        _FORK.Process(target=write, args=(sqlite_url, str(failures))) for _ in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [path.read_text() for path in failures.iterdir()] == []
    with checked_memory(sqlite_url) as memory:
        rows = list(memory.rows())
        assert len(rows) == PROCESSES * EACH * 2
        assert [row.position for row in rows] == [
            entry.position for entry in memory.entries(rows[0].tenant_id, None, len(rows))
        ]


def test_many_may_make_the_file_at_once(tmp_path: Path) -> None:
    """12 threads open a file that is not there, 40 times: each of them has a memory."""
    errors: list[str] = []

    def open_it(url: str) -> None:
        memory = open_memory(url, timeout=60)
        try:
            memory.check()
        except Exception as error:
            errors.append(repr(error))
        memory.close()

    for number in range(40):
        url = f"sqlite:///{tmp_path}/{number}.db"
        threads = [threading.Thread(target=open_it, args=(url,)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []


def hold_the_pen(path: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO audit_deaths VALUES ('t', 'half done', 1)")
    Path(f"{path}.held").touch()
    signal.pause()


def test_a_writer_that_is_killed_holds_nobody_up(sqlite_url: str) -> None:
    """While it lives others fail in time; once it is gone they write, and nothing of it stays."""
    path = sqlite_url.removeprefix("sqlite:///")
    with checked_memory(sqlite_url, timeout=0.3) as memory:
        memory.emit(started(identity := make_identity()))
        holder = _FORK.Process(target=hold_the_pen, args=(path,))
        holder.start()
        wait_until(Path(f"{path}.held").exists, 30)
        with pytest.raises(MemoryUnavailableError) as caught:
            memory.emit(completed(identity))
        assert not caught.value.maybe_stored
        assert len(list(memory.rows())) == 1
        holder.kill()
        holder.join()
        memory.emit(completed(identity))
        assert memory.deaths("t", "half done") == 0


@pytest.mark.parametrize("script", ["CREATE TABLE others (x)", "PRAGMA user_version = 3"])
def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path, script: str) -> None:
    """A database that has tables is none of ours; one that is empty becomes a memory."""
    path = tmp_path / "others.db"
    with sqlite3.connect(path) as connection:
        connection.execute(script)
    connection.close()
    memory = open_memory(f"sqlite:///{path}")
    if "TABLE" in script:
        with pytest.raises(MemoryUnsuitableError, match="is no audit memory"):
            memory.check()
    else:
        memory.check()
    memory.close()


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    """It is refused as it is."""
    path = tmp_path / "text.db"
    path.write_text("this is no database, but it is long enough to be looked at" * 10)
    before = path.read_bytes()
    with pytest.raises(MemoryUnavailableError, match="not a database"):
        open_memory(f"sqlite:///{path}").check()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "url",
    ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://host/a.db", "sqlite:///a.db?x=1"],
)
def test_a_url_that_names_no_file_is_refused(url: str) -> None:
    """The text says what one looks like."""
    with pytest.raises(MemoryUrlError, match="sqlite://"):
        open_memory(url)
