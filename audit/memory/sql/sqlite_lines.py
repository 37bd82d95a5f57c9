"""Connections to a SQLite file, each used by one at a time.

None crosses a fork: SQLite would take the parent's locks for the child's own, and what the child
stores would be gone when the parent closes the file. So a fork waits for those in use, and finds
all of them closed. None is used once its file has been removed or another one has been put in its
place. One on which anything went wrong is closed, and nothing half done stays with it.
"""

from __future__ import annotations

import functools
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

#: Idle connections a process keeps for a file.
IDLE: Final = 64
#: Seconds a fork waits for connections in use; the child of one that waited in vain stores nothing.
FORK_WAIT: Final = 10.0


class Line(sqlite3.Connection):
    """A connection that knows which file it was made to, and whether it is open."""

    file: tuple[int, int] | None = None
    closed = False

    def close(self) -> None:
        super().close()
        self.closed = True


class Lines:
    """The connections to one file.

    Args:
        path: of the file; it is made, for its owner alone, where there is none.
        prepare: makes a new connection fit for use, within a deadline in monotonic seconds.
    """

    def __init__(self, path: Path, prepare: Callable[[Line, float], None]) -> None:
        self._path = path
        self._prepare = prepare
        self._idle: deque[Line] = deque()
        _watch_forks()
        with _FORKING:
            _EVERY.add(self)

    @contextmanager
    def taken(self, deadline: float) -> Iterator[Line]:
        """One for the caller alone. It is closed where the caller fails, whatever of."""
        line = self._take(deadline)
        try:
            yield line
        except BaseException:
            line.close()
            raise
        if len(self._idle) < IDLE:
            self._idle.append(line)
        else:
            line.close()

    def close(self) -> None:
        """Close those that nobody uses."""
        with suppress(IndexError):  # another thread may take the last one first
            while True:
                self._idle.pop().close()

    def _take(self, deadline: float) -> Line:
        while True:
            line = self._idle_one() or self._fit(self._open(), deadline)
            # Asked of a new one too: what stood there may have been replaced while it was opened.
            if line.file is not None and line.file == _file(self._path):
                return line
            line.close()
            if time.monotonic() >= deadline:
                raise sqlite3.OperationalError("the file is replaced again and again")

    def _idle_one(self) -> Line | None:
        with suppress(IndexError):
            return self._idle.pop()
        return None

    def _fit(self, line: Line, deadline: float) -> Line:
        try:
            self._prepare(line, deadline)
        except BaseException:
            line.close()
            raise
        return line

    def _open(self) -> Line:
        with _FORKING:
            if _CARRIED:
                raise sqlite3.OperationalError(
                    "this process was forked while its parent wrote: start it again"
                )
            # Only a new file: closing another handle of one in use would drop SQLite's locks.
            with suppress(OSError):
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            file = _file(self._path)
            line = sqlite3.connect(
                self._path, timeout=0, isolation_level=None, check_same_thread=False, factory=Line
            )
            line.file = file
            _OPEN.add(line)
        line.row_factory = named
        return line


_EVERY: Final[WeakSet[Lines]] = WeakSet()
_OPEN: Final[WeakSet[Line]] = WeakSet()
#: Held while a connection is opened, and from before a fork until after it.
_FORKING: Final = threading.RLock()
#: Connections of the parent. Never closed: that would be as bad as using them.
_CARRIED: Final[list[Line]] = []


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
    )


def _before_fork() -> None:
    _FORKING.acquire()
    deadline = time.monotonic() + FORK_WAIT
    while True:
        for lines in list(_EVERY):
            lines.close()
        if not _in_use() or time.monotonic() >= deadline:
            return
        time.sleep(0.001)


def _after_fork() -> None:
    with suppress(RuntimeError):  # a signal kept the other half from being done
        _FORKING.release()


def _after_fork_in_child() -> None:
    _CARRIED.extend(_in_use())
    _after_fork()


def _in_use() -> list[Line]:
    return [line for line in list(_OPEN) if not line.closed]


def _file(path: Path) -> tuple[int, int] | None:
    """Which file stands there; ``None`` where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def size_of(path: str) -> int:
    """Of a file in bytes; 0 where there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


class _Named(tuple[Any, ...]):
    """A line of a result, whose values have their columns' names."""

    names: tuple[str, ...]

    def __getattr__(self, name: str) -> Any:
        try:
            return self[self.names.index(name)]
        except ValueError:
            raise AttributeError(name) from None


def named(cursor: sqlite3.Cursor, line: tuple[Any, ...]) -> _Named:
    """A row factory: values by place and by name."""
    made = _Named(line)
    made.names = tuple(column[0] for column in cursor.description)
    return made
