"""A publisher and workers, kept up all the time, and one batch of tasks.

A batch is published to a queue that nobody consumes. Then it is released, by one command that
wakes the workers, and the clock runs until the last result is stored. So publishing costs nothing
of what is measured, and the workers begin with all their work before them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psutil  # type: ignore[import-untyped]

from bench.processes import BenchError, Program
from bench.worker import COLLECT

#: Seconds that one batch may take.
BATCH_SECONDS: Final = 120.0

#: Seconds between two looks at the results: few while many are to come, so as not to disturb.
LOOKS: Final = (0.02, 0.002)
NEARLY: Final = 0.9

#: Which of the system's CPU times are work; some systems do not have them all.
BUSY: Final = frozenset(["user", "nice", "system", "irq", "softirq", "steal"])

SUCCESS: Final = "SUCCESS"
FAILURE: Final = "FAILURE"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cpu:
    """CPU seconds used so far by each part of a team, by its servers, and by everything else.

    What is used elsewhere is what makes figures noisy, where there are few cores.
    """

    main: float
    children: float
    server: float
    elsewhere: float

    def since(self, before: Cpu) -> Cpu:
        return Cpu(
            main=self.main - before.main,
            children=self.children - before.children,
            server=self.server - before.server,
            elsewhere=self.elsewhere - before.elsewhere,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """What one batch took: seconds from release to last result, of each ``.delay()``, of CPU."""

    count: int
    seconds: float
    publish: list[float]
    cpu: Cpu

    @property
    def rate(self) -> float:
        """Tasks a second."""
        return self.count / self.seconds

    @property
    def disturbance(self) -> float:
        """How many cores were busy elsewhere on average."""
        return max(0.0, self.cpu.elsewhere / self.seconds)


class Team(ABC):
    """One publisher, and the workers that run what it publishes.

    Args:
        label: what it is called in tables and errors.
        workers: programs that run tasks or help with them.
        publisher: a program that takes orders.
        servers: each tells how many seconds of CPU a server has used so far.
    """

    looks: tuple[float, float] = LOOKS

    def __init__(
        self,
        label: str,
        *,
        workers: Sequence[Program],
        publisher: Program,
        servers: Sequence[Callable[[], float]],
    ) -> None:
        self.label = label
        self._workers, self._publisher, self._servers = workers, publisher, servers

    @abstractmethod
    def _release(self) -> None:
        """Let the workers have what was published."""

    @abstractmethod
    def _done(self) -> int:
        """How many results are stored."""

    @abstractmethod
    def _forget(self) -> None:
        """Remove the results, so that every batch begins alike."""

    def _settle(self, count: int, fail_every: int) -> None:
        """Take in the results and forget them."""
        states = self.ask(do="collect")
        failed = len(range(0, count, fail_every)) if fail_every else 0
        if states.get(FAILURE, 0) != failed or states.get(SUCCESS, 0) != count - failed:
            raise BenchError(f"{self.label}: {failed} were to fail, tasks ended {states}")
        self._forget()

    def ask(self, **order: Any) -> Any:
        """Have the publisher do something."""
        return self._publisher.ask(**order)

    def batch(self, count: int, *, fail_every: int = 0) -> Batch:
        """Run one batch; every so many of its tasks fails.

        Raises:
            BenchError: a task or a row got lost, or it took too long.
        """
        publish = self.ask(do="publish", count=count, fail_every=fail_every)
        before = self._cpu()
        began = time.perf_counter()
        self._release()
        self._wait_for_results(count)
        seconds = time.perf_counter() - began
        cpu = self._cpu().since(before)
        self._settle(count, fail_every)
        return Batch(count=count, seconds=seconds, publish=publish, cpu=cpu)

    def processes(self) -> list[psutil.Process]:
        """Each worker's main process, and its children."""
        return [process for main in self._mains() for process in (main, *_below(main))]

    def collect_garbage(self) -> None:
        """Have each process of the workers collect its garbage, and wait for all."""
        for worker, main in zip(self._workers, self._mains(), strict=True):
            processes = [main, *_below(main)]
            for process in processes:
                process.send_signal(COLLECT)
            for _ in processes:
                worker.answer()

    def signal_end(self) -> None:
        for program in (*self._workers, self._publisher):
            program.signal_end()

    def end(self) -> None:
        for program in (*self._workers, self._publisher):
            program.end()

    def _mains(self) -> list[psutil.Process]:
        return [psutil.Process(worker.pid) for worker in self._workers]

    def _wait_for_results(self, count: int) -> None:
        deadline = time.monotonic() + BATCH_SECONDS
        while (done := self._done()) < count:
            for worker in self._workers:
                worker.check()
            if time.monotonic() > deadline:
                raise BenchError(f"{self.label}: {done} of {count} results in {BATCH_SECONDS:g} s")
            time.sleep(self.looks[done > NEARLY * count])

    def _cpu(self) -> Cpu:
        everything, own = _busy_seconds(), time.process_time()
        mains = self._mains()
        main = sum(map(_seconds, mains))
        children = sum(_seconds(child) for each in mains for child in _below(each))
        server = sum(used() for used in self._servers)
        return Cpu(
            main=main,
            children=children,
            server=server,
            elsewhere=everything - own - main - children - server,
        )


def _below(main: psutil.Process) -> list[psutil.Process]:
    return list(main.children(recursive=True))


def _seconds(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


def _busy_seconds() -> float:
    """CPU time that all processes of the machine have used, and what its host took away."""
    times = psutil.cpu_times()._asdict()
    return float(sum(spent for name, spent in times.items() if name in BUSY))
