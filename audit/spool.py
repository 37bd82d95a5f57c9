"""The durable local spool: completed rows the memory did not take (decision 14).

One file a row, so that many processes write and replay side by side without a lock: a file is
written under a name nobody reads, flushed to disk, renamed, and the folder is flushed as well,
before :meth:`Spool.keep` returns. A crash leaves a whole row or none; what it left half written is
removed by a later replay, for the lock on it went with its writer. Replaying is emitting again,
which is idempotent, so two replays of one row and a crash between emit and removal do no harm.

What cannot be replayed is never thrown away: a file that is no row, and a row the memory refuses
for good, go to the folder ``quarantine`` and are reported as sev-1.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from audit import alarms, metrics
from audit.errors import MemoryDamagedError, RowError, RowRefusedError, SpoolError
from audit.memory.base import SETTLING, AuditMemory, Stored
from audit.row import COMPLETED, AuditRow

logger: Final = logging.getLogger("audit")

MAX_ROWS: Final = 1_000
MAX_BYTES: Final = 10 * 1024 * 1024

#: Seconds for which the answer whether the spool is full holds: a bound that is soft anyway, for
#: what runs may still spool, is not looked up for every invocation.
FULL_FOR: Final = 0.05

_SUFFIX: Final = ".row"
_HALF: Final = ".tmp"
#: A writer locks its file at once; only from then on is a file without a lock nobody's.
_HALF_SECONDS: Final = 5.0
QUARANTINE: Final = "quarantine"


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What waits in a spool."""

    rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """What one replay did."""

    emitted: int
    quarantined: int


class Spool:
    """The spool of one host for one memory.

    Args:
        directory: the host's spool folder (``AUDIT_SPOOL_DIR``); made when it is needed.
        memory_name: the memory the rows are for. Each has a folder of its own, so that rows
            never go to another one.
        max_rows: beyond so many rows the spool is full.
        max_bytes: beyond so many bytes the spool is full.
        now_ns: the wall clock in nanoseconds; it decides the order of replay, nothing else.
        clock: monotonic seconds, for how long an answer to :attr:`full` holds.
    """

    def __init__(
        self,
        directory: Path,
        memory_name: str,
        *,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        now_ns: Callable[[], int] = time.time_ns,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = directory / hashlib.sha256(memory_name.encode()).hexdigest()[:16]
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._now_ns = now_ns
        self._clock = clock
        self._place = str(self.directory)
        self._known: tuple[int, Usage] | None = None
        self._full = False
        self._full_until = -math.inf

    # --- writing ------------------------------------------------------------------------------

    def check(self) -> None:
        """Prove that a row could be kept.

        Raises:
            SpoolError: the folder cannot be made or written.
        """
        with self._errors_of_ours():
            self._prepare(self.directory)
            probe = self.directory / f".{uuid4().hex}{_HALF}"
            _write(probe, b"")
            probe.unlink()

    def keep(self, row: AuditRow) -> None:
        """Make a completed row durable on this host.

        Raises:
            SpoolError: the disk did not take it; the text says why.
        """
        self._put(row, self.directory)
        self._full_until = -math.inf

    def set_aside(self, row: AuditRow) -> None:
        """Keep a row that the memory refuses for good, in the quarantine.

        Raises:
            SpoolError: the disk did not take it; the text says why.
        """
        self._put(row, self.directory / QUARANTINE)

    # --- what waits ---------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether so much waits that new invocations are to be refused; looked up now and then."""
        now = self._clock()
        if now >= self._full_until:
            usage = self.usage()
            self._full = usage.rows > self._max_rows or usage.bytes > self._max_bytes
            self._full_until = now + FULL_FOR
        return self._full

    @property
    def empty(self) -> bool:
        return self.usage().rows == 0

    def endings_of(self, request_id: str) -> list[bytes]:
        """What waits of that invocation, the oldest first; ``b""`` for what cannot be read."""
        if self.empty:
            return []
        waiting = [path for path in self._waiting() if f"-{request_id}-" in path.name]
        return [stored for path in waiting if (stored := _read(path)) is not None]

    def others(self) -> list[Path]:
        """Folders beside this one in which rows wait, for a memory that is spelled otherwise."""
        folders = [path for path in self.directory.parent.glob("*/") if path != self.directory]
        return [path for path in folders if any(path.glob(f"*{_SUFFIX}"))]

    def usage(self) -> Usage:
        """What waits; asked on every invocation, so it costs one ``stat`` while nothing changes."""
        try:
            changed = os.stat(self._place).st_mtime_ns
        except OSError:
            return Usage(rows=0, bytes=0)
        if self._known is None or self._known[0] != changed:
            sizes = [_size(path) for path in self._waiting()]
            usage = Usage(rows=len(sizes), bytes=sum(sizes))
            # A folder changed within the clock's tick may change again under the same time.
            settled = time.time_ns() - changed > _TICK_NS
            self._known = (changed if settled else -1, usage)
        return self._known[1]

    # --- replay -------------------------------------------------------------------------------

    def replay(self, memory: AuditMemory, go_on: Callable[[], bool] = lambda: True) -> Replayed:
        """Emit what waits, oldest first, and remove it.

        Args:
            memory: where it goes.
            go_on: asked before each row; whoever has other duties stops in time, the rest waits.

        Raises:
            MemoryDamagedError: what the memory keeps of a tenant takes no row; its rows wait on,
                and those of all others were emitted.
            AuditMemoryError: the memory is still out of reach; what is left waits on.
            SpoolError: the disk does not let a row be read or removed; it waits on.
        """
        for folder in (self.directory, self.directory / QUARANTINE):
            _sweep(folder)
        self._full_until = -math.inf  # what follows may change the answer
        emitted = quarantined = 0
        faults: dict[str, MemoryDamagedError] = {}
        for path in self._waiting():
            if not go_on():
                break
            try:
                there = self._replay_one(path, memory, faults)
            except MemoryDamagedError as error:
                faults.setdefault(error.tenant_id, error)
                continue
            emitted, quarantined = emitted + there, quarantined + (not there)
        for fault in faults.values():
            raise fault
        return Replayed(emitted=emitted, quarantined=quarantined)

    def _replay_one(
        self, path: Path, memory: AuditMemory, faults: Mapping[str, MemoryDamagedError]
    ) -> bool:
        """Whether the row is in the memory now; if not, it is in quarantine.

        Of a tenant that is at fault no other row is tried, so that theirs keep their order.
        """
        try:
            stored = path.read_bytes()
        except FileNotFoundError:
            return True  # another process was faster
        except OSError as error:
            if error.errno in _PASSING:
                raise SpoolError(f"the spool cannot be read just now ({error.strerror})") from error
            return self._quarantine(path, f"cannot be read: {error.strerror}")
        try:
            row = AuditRow.from_bytes(stored)
            if row.kind != COMPLETED:
                raise RowError(f"a row of the kind {row.kind} does not belong into a spool")
            if row.payload.get("tenant_id") in faults:
                raise faults[row.tenant_id]
            stored_as = memory.emit(row)
        except (RowError, RowRefusedError) as error:
            return self._quarantine(path, str(error))
        # Only now is it known that this ending counts; a body's own was counted when it closed.
        if stored_as is Stored.NEW and row.meta.get("reason") in SETTLING:
            metrics.closed_from_outside(row.payload)
        if stored_as is Stored.BARRED:
            alarms.barred(row)
        with self._errors_of_ours():
            path.unlink(missing_ok=True)
        return True

    def _quarantine(self, path: Path, why: str) -> bool:
        logger.critical(
            "spooled row %s cannot be replayed and is kept in quarantine: %s",
            path.name,
            why,
            extra={"severity": "sev-1"},
        )
        folder = self.directory / QUARANTINE
        with contextlib.suppress(FileNotFoundError), self._errors_of_ours():
            folder.mkdir(mode=0o700, exist_ok=True)
            path.rename(folder / path.name)
        return False

    # --- inside -------------------------------------------------------------------------------

    def _put(self, row: AuditRow, folder: Path) -> None:
        # A clock that was set back must not let a later row overtake one that waits.
        newest = max((_order(path) for path in self._waiting()), default=0)
        name = f"{max(self._now_ns(), newest + 1):020d}-{row.request_id}-{uuid4().hex}"
        hidden = folder / f".{name}{_HALF}"
        with self._errors_of_ours():
            self._prepare(folder)
            try:
                _write(hidden, row.to_bytes(), folder / f"{name}{_SUFFIX}")
            except BaseException:
                hidden.unlink(missing_ok=True)
                raise
            _flush_folder(folder)

    def _prepare(self, folder: Path) -> None:
        if not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _flush_folder(folder.parent)

    def _waiting(self) -> list[Path]:
        try:
            names = os.listdir(self.directory)
        except OSError:
            return []
        return [
            self.directory / name
            for name in sorted(names)
            if name.endswith(_SUFFIX) and not name.startswith(".")
        ]

    @contextlib.contextmanager
    def _errors_of_ours(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SpoolError(
                f"the spool {self.directory} does not take rows ({error.strerror}): free space or"
                " rights there, or set AUDIT_SPOOL_DIR"
            ) from error


_TICK_NS: Final = 50_000_000
#: What is wrong with this process or machine, not with the file.
_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def _write(hidden: Path, content: bytes, final: Path | None = None) -> None:
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with contextlib.suppress(OSError):  # where files cannot be locked none is swept, either
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
        if final is not None:
            hidden.rename(final)
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove what a killed process left half written: the row in it was never kept."""
    for path in folder.glob(f".*{_HALF}"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _HALF_SECONDS and _given_up(path):
                path.unlink()


def _given_up(path: Path) -> bool:
    """Whether nobody writes it any more: a writer holds a lock, also while it is frozen."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)
    return True


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _order(path: Path) -> int:
    moment = path.name.partition("-")[0]
    return int(moment) if moment.isdecimal() else 0


def _read(path: Path) -> bytes | None:
    """``None`` where it is gone by now, ``b""`` where it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError:
        return b""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
