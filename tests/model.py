"""The world that the model (``tests/unit/test_model.py``) plays: processes that die, a disk, time.

Everything that decides is the product's own: invocation, recorder, breaker, spool, reconciler,
keeper and the memory of :mod:`audit.testing`. What stands here is what surrounds them:

* a :class:`Process` dies at a :class:`Point` of its work and does nothing from then on, not even
  clean up; or a soft time limit strikes it there; or another process gets its turn there;
* a :class:`Line` is a process's way to the memory. An emit over it meets a :class:`Trouble`; one
  that is ``DELAYED`` fails now, and what it carried may arrive at any later time;
* a :class:`Disk` writes in two halves, so that a process can die over a torn file.

Hosts, workers and invocations are plain records; :class:`Laws` says what must hold of them.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from audit.errors import RowError
from audit.invocation import Invocation, State
from audit.keeper import Keeper
from audit.memory.base import Hold, Once, Stored
from audit.recorder import Recorder
from audit.row import COMPLETED, LATE, REFUSED, STARTED, AuditRow, Ending, Identity, Reason
from audit.spool import QUARANTINE, Spool
from audit.testing import Fault, InMemory


class Violation(AssertionError):
    """A promise was broken; the text begins with the promise."""


class Killed(BaseException):
    """The process is gone: no handler and no cleanup of its own has any effect any more."""


class SoftLimit(Exception):
    """A signal handler raised, as it does for a soft time limit."""


class Trouble(Enum):
    """What one emit meets."""

    NONE = "none"
    NOT_STORED = "failed, not stored"
    STORED = "failed, but stored"
    DELAYED = "failed, may be stored later"
    NO_CONNECTION = "failed, surely not stored"


class Point(Enum):
    """Where in its work a process can be struck."""

    EMIT = "before the row reached the memory"
    REPLY = "the emit is over, its process does not know yet"
    WRITE = "half of the spool file is written"
    RENAME = "the spool file is written, under its hidden name"
    FLUSH = "the spool file has its name"


class Blow(Enum):
    """What strikes it there."""

    CRASH = "the process dies"
    SIGNAL = "a soft time limit"
    RIVAL = "the host's keeper gets its turn in between"


Strike = tuple[Point, Blow]


@dataclass(eq=False)
class Process:
    """One process; ``rival`` is what another one does in the middle of its work."""

    rival: Callable[[], None] = lambda: None
    dead: bool = False
    strike: Strike | None = None
    troubles: deque[Trouble] = field(default_factory=deque)

    def at(self, point: Point) -> None:
        """The process comes to ``point``."""
        self.go_on()
        if self.strike is None or self.strike[0] is not point:
            return
        blow, self.strike = self.strike[1], None
        if blow is Blow.CRASH:
            self.dead = True
            raise Killed
        if blow is Blow.SIGNAL:
            raise SoftLimit
        with acting(None):
            self.rival()

    def go_on(self) -> None:
        """What the dead do not do."""
        if self.dead:
            raise Killed

    @contextmanager
    def works(self, strike: Strike | None, troubles: Iterable[Trouble]) -> Iterator[None]:
        """One step of the process, with what it meets; it may be its last one."""
        self.strike, self.troubles = strike, deque(troubles)
        try:
            with acting(self):
                yield
        except Killed:
            assert self.dead
        finally:
            self.strike = None
            self.troubles.clear()


#: Whose turn it is, for what has no other way to know: the disk.
_acting: list[Process | None] = [None]


@contextmanager
def acting(process: Process | None) -> Iterator[None]:
    _acting.append(process)
    try:
        yield
    finally:
        _acting.pop()


class Disk:
    """Stands in for the module ``os`` in :mod:`audit.spool`.

    A file is written in halves. Nothing is really flushed, for it is processes that die here and
    not machines.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        if (process := _acting[-1]) is not None:
            process.go_on()
        return os.open(path, flags, mode)

    def write(self, descriptor: int, content: memoryview) -> int:
        written = os.write(descriptor, content[: len(content) // 2 or 1])
        _come_to(Point.WRITE)
        return written

    def fsync(self, descriptor: int) -> None:
        folder = S_ISDIR(os.fstat(descriptor).st_mode)
        _come_to(Point.FLUSH if folder else Point.RENAME)


def _come_to(point: Point) -> None:
    if (process := _acting[-1]) is not None:
        process.at(point)


class MortalPath(type(Path())):  # type: ignore[misc]
    """A path under which the dead remove nothing."""

    def unlink(self, missing_ok: bool = False) -> None:
        if (process := _acting[-1]) is not None:
            process.go_on()
        super().unlink(missing_ok)


Sent = tuple[AuditRow, Once | None]


class Line:
    """One process's way to the memory; ``late`` takes what may arrive later."""

    def __init__(self, memory: InMemory, process: Process, late: list[Sent]) -> None:
        self._memory = memory
        self._process = process
        self._late = late

    def __getattr__(self, name: str) -> Any:
        self._process.go_on()
        return getattr(self._memory, name)

    def emit(self, row: AuditRow, once: Once | None = None, hold: Hold | None = None) -> Stored:
        process = self._process
        process.at(Point.EMIT)
        trouble = process.troubles.popleft() if process.troubles else Trouble.NONE
        if trouble is Trouble.DELAYED and not self._memory.down:
            self._late.append((row, once))
        was_down = self._memory.down
        self._memory.down = was_down or trouble is Trouble.NO_CONNECTION
        self._memory.faults.append(_FAULTS.get(trouble))
        try:
            return self._memory.emit(row, once, hold)
        finally:
            self._memory.down = was_down
            process.at(Point.REPLY)


_FAULTS = {
    Trouble.NOT_STORED: Fault.NOT_STORED,
    Trouble.DELAYED: Fault.NOT_STORED,
    Trouble.STORED: Fault.STORED,
}


@dataclass(eq=False)
class Child:
    """A pool child: runs one invocation after another, with one recorder."""

    process: Process
    recorder: Recorder
    run: Run | None = None


@dataclass(eq=False)
class Worker:
    """A worker: its main process, its lease, its children. Its id is new at each boot."""

    id: str
    host: Host
    main: Process
    line: Line
    spool: Spool
    outside: Recorder
    children: list[Child] = field(default_factory=list)
    renewed: float = 0.0
    able: float = 0.0  # since when it could have renewed: it lives, is thawed, the memory answers
    thawed: float = -1_000.0

    @property
    def lives(self) -> bool:
        """Whether its lease is going to be renewed."""
        return not self.main.dead and not self.host.frozen


@dataclass(eq=False)
class Host:
    """A machine: a spool folder, a keeper, and a worker, which may be gone."""

    folder: Path
    worker: Worker | None = None
    keeper: Keeper | None = None
    keeping: Process = field(default_factory=Process)
    frozen: bool = False

    @property
    def at_work(self) -> bool:
        """Whether there is a worker whose main process does something."""
        return self.worker is not None and self.worker.lives


@dataclass(eq=False)
class Run:
    """One invocation, and what the world saw of it."""

    identity: Identity
    invocation: Invocation
    worker: Worker
    child: Child
    ending: Ending | None = None
    effect: bool = False  # the body began
    closed: bool = False  # close() returned in the child
    visible: bool = False  # a result was let out
    over: bool = False  # the child reported to the main process
    noticed: bool = False  # the main process saw the child's death
    hard: bool = False  # a hard limit was put on record before close() returned

    @property
    def kept(self) -> bool:
        """Whether the child's own ending was on record or spooled when its close returned."""
        return self.closed and self.invocation.state in (State.CLOSED, State.SPOOLED)


class Laws:
    """What must hold after every step, whatever happened.

    Each law raises :class:`Violation`. A text in capitals is the law's name.
    """

    def __init__(self) -> None:
        self._stood: dict[str, bytes] = {}

    def check(self, rows: Iterable[AuditRow], runs: list[Run], folders: list[Path]) -> None:
        kinds: dict[str, dict[str, list[AuditRow]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            kinds[row.request_id][row.kind].append(row)
            if row.kind in (COMPLETED, LATE) and not kinds[row.request_id][STARTED]:
                raise Violation(f"COMPLETED WITHOUT STARTED: {row}")
        self._replays([row for found in kinds.values() for row in found[STARTED]])
        for request_id, found in kinds.items():
            self._once(request_id, found)
        waiting = spooled(folders)
        for run in runs:
            found = kinds[run.identity.request_id]
            self._before_the_effect(run, found)
            self._on_record(run, found, waiting)
            self._first_come(run, found)

    def _once(self, request_id: str, found: dict[str, list[AuditRow]]) -> None:
        for kind in (STARTED, COMPLETED, REFUSED):
            if len(found[kind]) > 1:
                raise Violation(f"TWICE: {found[kind]}")
        if len({row.meta["redelivered"] for row in (*found[STARTED], *found[COMPLETED])}) > 1:
            raise Violation(f"PAIR DISAGREES: {found}")
        if found[REFUSED] and found[STARTED]:
            raise Violation(f"REFUSED AND STARTED: {found}")
        for row in found[COMPLETED]:
            if self._stood.setdefault(request_id, row.to_bytes()) != row.to_bytes():
                raise Violation(f"REPLACED: {row} stands where another stood")

    @staticmethod
    def _replays(started: list[AuditRow]) -> None:
        """Of the invocations of one message, the first that started is unmarked, no other is."""
        seen: set[str] = set()
        for row in sorted(started, key=lambda row: int(str(row.position).partition("-")[0])):
            if row.meta["redelivered"] is not (row.meta["task_id"] in seen):
                raise Violation(f"REPLAY: {row}")
            seen.add(row.meta["task_id"])

    @staticmethod
    def _before_the_effect(run: Run, found: dict[str, list[AuditRow]]) -> None:
        """Looked at after each step, and so between the start of a body and all else."""
        if run.effect and not found[STARTED]:
            raise Violation(f"EFFECT WITHOUT STARTED: {run.identity}")

    @staticmethod
    def _on_record(
        run: Run, found: dict[str, list[AuditRow]], waiting: dict[bytes, AuditRow]
    ) -> None:
        """A result is out only when the child's own row is in the memory, or waits in a spool."""
        if not run.visible or run.ending is None:
            return
        request_id, reason = run.identity.request_id, run.ending.reason.value
        own = [*found[COMPLETED], *found[LATE], *waiting.values()]
        if not any(r.request_id == request_id and r.meta["reason"] == reason for r in own):
            raise Violation(f"VISIBLE WITHOUT A ROW: {run.identity}")

    @staticmethod
    def _first_come(run: Run, found: dict[str, list[AuditRow]]) -> None:
        """Who closes an invocation (decision 10)."""
        for row in found[COMPLETED]:
            reason = Reason(row.meta["reason"])
            if reason is Reason.NOT_DISPATCHED and run.effect:
                raise Violation(f"PRECEDENCE: its body ran, and it is {reason}")
            if reason is Reason.WORKER_LOST and run.kept:
                raise Violation(f"PRECEDENCE: its own ending was kept, and it is {reason}")
            if reason is Reason.HARD_TIME_LIMIT and not run.hard:
                raise Violation(f"PRECEDENCE: it had closed, and it is {reason}")
            if found[LATE] and reason not in _SEEN_FROM_OUTSIDE:
                raise Violation(f"LATE WITHOUT REASON: {found[LATE]} after {reason}")

    @staticmethod
    def at_rest(rows: list[AuditRow], folders: list[Path]) -> None:
        """The last law: in the end every started row has its completed one, and nothing waits."""
        ended = {row.request_id for row in rows if row.kind == COMPLETED}
        for row in rows:
            if row.kind == STARTED and row.request_id not in ended:
                raise Violation(f"OPEN IN THE END: {row}")
        if waiting := spooled(folders):
            raise Violation(f"SPOOLED IN THE END: {list(waiting.values())}")


_SEEN_FROM_OUTSIDE = (Reason.ABANDONED, Reason.HARD_TIME_LIMIT, Reason.WORKER_LOST)


def spooled(folders: list[Path]) -> dict[bytes, AuditRow]:
    """What waits in the spools, whole rows all of them; nothing is ever in quarantine."""
    waiting = {}
    for folder in folders:
        for path in folder.rglob("*.row") if folder.exists() else ():
            if path.parent.name == QUARANTINE:
                raise Violation(f"QUARANTINE: {path.read_bytes()!r}")
            try:
                row = AuditRow.from_bytes(path.read_bytes())
            except RowError as error:
                raise Violation(f"TORN: {error}") from None
            waiting[row.to_bytes()] = row
    return waiting
