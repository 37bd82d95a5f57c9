"""What all processes of a run hold, looked at again and again while they work."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

import psutil  # type: ignore[import-untyped]
import redis

from chaos.journal import Follower
from chaos.place import Place

#: The rows of every tenant, in the memory.
ROWS: Final = "*:rows"
#: Between two samples pass at least so many times as many seconds as the first of them took.
RARELY: Final = 25


class Role(StrEnum):
    """Whose memory is looked at."""

    MAIN = "worker main"
    CHILD = "worker child"
    KEEPER = "keeper"
    PUBLISHER = "publisher"


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What one process holds.

    Attributes:
        role: what it is.
        pid: its id.
        age: bodies that ran in it so far.
        uss: bytes that belong to it alone.
        rss: resident bytes, what it shares among them.
        handles: open file descriptors.
        threads: of the system.
    """

    role: Role
    pid: int
    age: int
    uss: int
    rss: int
    handles: int
    threads: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What all hold at one moment.

    Attributes:
        seconds: since the first sample.
        done: bodies that ran so far.
        held: of each process.
        connections: at both servers; ``None`` while the memory is away.
        rows: in the memory; ``None`` while it is away.
        spool: files in the spool.
    """

    seconds: float
    done: int
    held: tuple[Held, ...]
    connections: int | None
    rows: int | None
    spool: int


class Sampler:
    """Takes a sample every so many seconds in a thread of its own, until its block ends.

    Args:
        place: where the run takes place.
        every: seconds between two samples, or more where taking one is slow.
        processes: the processes to look at, asked before each sample.
    """

    def __init__(
        self, place: Place, every: float, processes: Callable[[], Mapping[int, Role]]
    ) -> None:
        self.samples: list[Sample] = []
        self._place = place
        self._every = every
        self._processes = processes
        self._journal = Follower(place.journal)
        self._ages: Counter[int] = Counter()
        self._stop = threading.Event()
        self._began = time.monotonic()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    @property
    def done(self) -> int:
        """Bodies that had run at the latest sample."""
        return self.samples[-1].done if self.samples else 0

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            took = 0.0
            while not self._stop.wait(max(self._every, RARELY * took)):
                began = time.monotonic()
                self.samples.append(self._sample())
                took = time.monotonic() - began
        except Exception as error:  # told by the thread that waits for this one
            self._failure = error

    def _sample(self) -> Sample:
        self._ages.update(effect.pid for effect in self._journal.new())
        connections, rows = self._at_servers()
        return Sample(
            seconds=time.monotonic() - self._began,
            done=self._ages.total(),
            held=tuple(self._held()),
            connections=connections,
            rows=rows,
            spool=spool_files(self._place),
        )

    def _held(self) -> Iterator[Held]:
        for pid, role in self._processes().items():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
                yield self._of_process(psutil.Process(pid), role)

    def _of_process(self, process: Any, role: Role) -> Held:
        memory = process.memory_full_info()
        return Held(
            role=role,
            pid=process.pid,
            age=self._ages[process.pid],
            uss=memory.uss,
            rss=memory.rss,
            handles=process.num_fds(),
            threads=process.num_threads(),
        )

    def _at_servers(self) -> tuple[int | None, int | None]:
        """Connections and rows, asked over connections that are closed again."""
        try:
            with _client(self._place.broker) as calm, _client(self._place.memory) as memory:
                both = len(calm.client_list()) + len(memory.client_list())
                rows = sum(memory.xlen(key) for key in memory.scan_iter(ROWS, count=1000))
                return both, rows
        except redis.RedisError:
            return None, None


def spool_files(place: Place) -> int:
    """Files of whatever kind below the spool, those that are set aside among them."""
    return sum(path.is_file() for path in _below(place.spool))


def _below(folder: Path) -> list[Path]:
    """What vanishes meanwhile is not there."""
    with contextlib.suppress(FileNotFoundError):
        return list(folder.rglob("*"))
    return []


def _client(url: str) -> Any:
    return redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1)
