"""SQLite with a full disk, or a file that may not be written: an emit stores its row or says so."""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.errors import MemoryUnavailableError
from audit.memory import AuditMemory, open_memory
from audit.memory.base import Stored
from audit.row import AuditRow
from tests.support import checked_memory, make_identity, started

NOBODY = 65_534


def refused_by(memory: AuditMemory, row: AuditRow) -> MemoryUnavailableError | None:
    try:
        memory.emit(row)
    except MemoryUnavailableError as error:
        return error
    return None


@contextlib.contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file of this process grows past so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 5_000, 30_000])
def test_a_full_disk_stores_nothing_and_loses_nothing(sqlite_url: str, room: int) -> None:
    """The emit fails, whatever part of it had a place; what stood stands, and it works again."""
    log = Path(f"{sqlite_url.removeprefix('sqlite:///')}-wal")
    with checked_memory(sqlite_url) as memory:
        kept = [started(make_identity())]
        memory.emit(kept[0])
        with full_disk(log.stat().st_size + room):
            while (error := refused_by(memory, row := started(make_identity()))) is None:
                kept.append(row)
                assert len(kept) < 100
            stored = [r.to_bytes() for r in memory.rows()]
            assert stored[: len(kept)] == [r.to_bytes() for r in kept]
            # Where the very commit failed, nobody can know.
            assert len(stored) == len(kept) or error.maybe_stored
        again = memory.emit(row)
        assert again is Stored.NEW or (again is Stored.REPEATED and error.maybe_stored)


@pytest.fixture
def closed_file() -> Iterator[tuple[str, Path]]:
    """A memory in a folder that everybody may enter, and nobody but its owner may write to."""
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{folder}/audit.db", Path(folder)


@contextlib.contextmanager
def without_rights(folder: Path) -> Iterator[None]:
    """Root may write everywhere, so it becomes somebody else; others give up their own right."""
    files = [folder, *folder.iterdir()]
    for place in files:
        place.chmod(0o555)
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(os.getuid())
        for place in files:
            if place.exists():
                place.chmod(0o755)


def test_a_file_that_may_only_be_read_is_no_memory(closed_file: tuple[str, Path]) -> None:
    """A check says so before an emit does; nothing was stored, and afterwards all goes on."""
    url, folder = closed_file
    with checked_memory(url) as other:
        other.emit(started(make_identity()))
        memory, row = open_memory(url, timeout=0.3), started(make_identity())
        with without_rights(folder):
            with pytest.raises(MemoryUnavailableError, match="did not answer as it should"):
                memory.check()
            error = refused_by(memory, row)
            assert error is not None
            assert not error.maybe_stored
        memory.check()
        assert memory.emit(row) is Stored.NEW
        memory.close()
