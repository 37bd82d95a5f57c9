"""One variant at work: a publisher and a worker, kept up all the time, and one batch of tasks.

A batch is published to a queue that nobody consumes. Then its list gets the live queue's name, one
command that wakes the worker, and the clock runs until the last result is stored. So publishing
costs nothing of what is measured, and the worker begins with all its work before it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psutil  # type: ignore[import-untyped]

from audit.embedded import EmbeddedServer
from bench.place import HELD, LIVE, Place
from bench.processes import BenchError, Program
from bench.server import client, seconds_of_cpu
from bench.worker import COLLECT

#: Seconds that one batch may take.
BATCH_SECONDS: Final = 120.0
WARM_UP: Final = 200

#: Seconds between two looks at the results: few while many are to come, so as not to disturb.
LOOKS: Final = (0.02, 0.002)
NEARLY: Final = 0.9

#: Which of the system's CPU times are work; some systems do not have them all.
BUSY: Final = frozenset(["user", "nice", "system", "irq", "softirq", "steal"])

SUCCESS: Final = "SUCCESS"
FAILURE: Final = "FAILURE"


class Variant(Enum):
    """What is compared: the module in ``bench.sides``, and the words for it."""

    BARE = ("bare", "bare Celery")
    CONTROL = ("bare", "bare Celery again (control)")
    TRACED = ("traced", "Celery + OpenTelemetry (instrumentor, SDK)")
    AUDITED = ("audited", "audited skills")
    MERGED = ("audited", "audited skills, merged mode")
    AUDITED_TRACED = ("audited_traced", "audited skills + OpenTelemetry SDK")
    MERGED_TRACED = ("audited_traced", "audited skills, merged mode + OpenTelemetry SDK")

    def __init__(self, side: str, label: str) -> None:
        self.side = side
        self.label = label

    @property
    def merged(self) -> bool:
        """Whether its results stand in the memory's database, each in one step with its row."""
        return self.name.startswith("MERGED")

    @property
    def audited(self) -> bool:
        return self.side.startswith("audited")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cpu:
    """CPU seconds used so far by each part of a crew, by the server, and by everything else.

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


class Crew:
    """One variant's publisher and worker on databases of their own."""

    def __init__(
        self, variant: Variant, server: EmbeddedServer, number: int, logs: Path, queue: str
    ) -> None:
        broker, results, memory = (server.url_for(3 * number + part) for part in range(3))
        if variant.merged:
            results = memory
        place = Place(
            broker=broker,
            results=f"merged+{results}" if variant.merged else results,
            memory=f"{memory}?durability=everysec",
            queue=queue,
        )
        log, name = logs / f"{number}-{variant.side}.log", f"{variant.side}-{number}"
        self.variant = variant
        self._broker, self._results, self._memory = client(broker), client(results), client(memory)
        self._worker = Program("bench.worker", name, variant.side, place.to_json(), log=log)
        self._publisher = Program("bench.publisher", variant.side, place.to_json(), log=log)

    def ask(self, **order: Any) -> Any:
        """Have the publisher do something."""
        return self._publisher.ask(**order)

    def batch(self, count: int, *, fail_every: int = 0) -> Batch:
        """Run one batch; every so many of its tasks fails.

        Raises:
            BenchError: a task or a row got lost, or it took too long.
        """
        rows, done = self._rows(), self._done()
        publish = self.ask(do="publish", count=count, fail_every=fail_every)
        before = self._cpu()
        began = time.perf_counter()
        self._broker.rename(HELD, LIVE)
        self._wait_for_results(count, done)
        seconds = time.perf_counter() - began
        cpu = self._cpu().since(before)
        self._settle(count, fail_every)
        self._check_rows(self._rows() - rows, count)
        return Batch(count=count, seconds=seconds, publish=publish, cpu=cpu)

    def processes(self) -> list[psutil.Process]:
        """The worker's main process and its children."""
        main = psutil.Process(self._worker.pid)
        return [main, *main.children(recursive=True)]

    def collect_garbage(self) -> None:
        """Have each process of the worker collect its garbage, and wait for all."""
        processes = self.processes()
        for process in processes:
            process.send_signal(COLLECT)
        for _ in processes:
            self._worker.answer()

    def connections(self) -> int:
        """How many connections the server has, those of the bench among them."""
        return len(self._broker.client_list())

    def signal_end(self) -> None:
        self._worker.signal_end()
        self._publisher.signal_end()

    def end(self) -> None:
        self._worker.end()
        self._publisher.end()

    def _wait_for_results(self, count: int, before: int) -> None:
        deadline = time.monotonic() + BATCH_SECONDS
        while (done := self._done() - before) < count:
            self._worker.check()
            if time.monotonic() > deadline:
                raise BenchError(
                    f"{self.variant.label}: {done} of {count} results in {BATCH_SECONDS:g} s"
                )
            time.sleep(LOOKS[done > NEARLY * count])

    def _settle(self, count: int, fail_every: int) -> None:
        """Take in the results and forget them, so that every batch begins alike."""
        states = self.ask(do="collect")
        failed = len(range(0, count, fail_every)) if fail_every else 0
        if states.get(FAILURE, 0) != failed or states.get(SUCCESS, 0) != count - failed:
            raise BenchError(f"{self.variant.label}: {failed} were to fail, tasks ended {states}")
        if self.variant.merged:
            for key in self._results.scan_iter("celery-task-meta-*", count=1000):
                self._results.delete(key)
        else:
            self._results.flushdb()

    def _done(self) -> int:
        """How many results there are; where rows stand beside them, the completed rows tell."""
        return self._rows() // 2 if self.variant.merged else int(self._results.dbsize())

    def _rows(self) -> int:
        # By name: looking for keys would cost more than a batch, where results stand beside them.
        return sum(
            self._memory.xlen(f"audit:{{{tenant.decode()}}}:rows")
            for tenant in self._memory.smembers("audit:tenants")
        )

    def _check_rows(self, added: int, count: int) -> None:
        expected = 2 * count if self.variant.audited else 0
        if added != expected:
            raise BenchError(f"{self.variant.label}: {added} rows instead of {expected}")

    def _cpu(self) -> Cpu:
        everything, own = _busy_seconds(), time.process_time()
        main, *children = (sum(process.cpu_times()[:2]) for process in self.processes())
        server = seconds_of_cpu(self._broker)
        return Cpu(
            main=main,
            children=sum(children),
            server=server,
            elsewhere=everything - own - main - sum(children) - server,
        )


def _busy_seconds() -> float:
    """CPU time that all processes of the machine have used, and what its host took away."""
    times = psutil.cpu_times()._asdict()
    return float(sum(spent for name, spent in times.items() if name in BUSY))


@contextmanager
def crews(variants: Sequence[Variant], *, queue: str = HELD) -> Iterator[list[Crew]]:
    """A crew for each variant on one server, ended in the end whatever happens."""
    working: list[Crew] = []
    with TemporaryDirectory(prefix="bench-") as logs, EmbeddedServer() as server:
        try:
            for number, variant in enumerate(variants):
                working.append(Crew(variant, server, number, Path(logs), queue))
            yield working
        finally:
            for crew in working:
                crew.signal_end()
            for crew in working:
                crew.end()


def turns(count: int, round_number: int) -> list[int]:
    """In which order so many take their turns: each round begins with the next one."""
    return [(round_number + place) % count for place in range(count)]
