"""What a process that was killed in the middle of spooling leaves: it goes, and nothing else."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from audit.spool import Spool
from audit.testing import InMemory
from tests.support import completed, make_identity

HALF = ".01796044096600554972-01M8P93ZQVV1DK2XRWY484TJKH-46d8.tmp"


def half_written(spool: Spool, age: float) -> Path:
    spool.directory.mkdir(parents=True, exist_ok=True)
    path = spool.directory / HALF
    path.write_text('{"kind":')
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path) -> None:
    """Its lock went with it: the next replay removes the file, which no row was ever read from."""
    spool = Spool(tmp_path, "memory")
    path = half_written(spool, age=60)
    with closing(InMemory()) as memory:
        assert spool.replay(memory).emitted == 0
    assert not path.exists()


def test_what_is_being_written_stays(tmp_path: Path) -> None:
    """A writer that holds its lock, frozen for however long, or has just begun, loses nothing."""
    spool = Spool(tmp_path, "memory")
    path = half_written(spool, age=3600)
    with closing(InMemory()) as memory, path.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        spool.replay(memory)
        assert path.exists()
        fcntl.flock(writer, fcntl.LOCK_UN)
        os.utime(path)
        spool.replay(memory)
        assert path.exists()


def test_a_row_is_locked_until_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer holds the lock while it writes: the sweep cannot take the file from it."""
    taken, flush = [], os.fsync

    def sweeping(descriptor: int) -> None:
        flush(descriptor)
        for path in tmp_path.rglob(".*.tmp"):
            with path.open("rb") as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken.append(path)

    monkeypatch.setattr(os, "fsync", sweeping)
    Spool(tmp_path, "memory").keep(completed(make_identity()))
    assert len(taken) == 1
