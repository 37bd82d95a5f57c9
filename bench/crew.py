"""One variant at work: a team of Celery's on Redis, and what is compared.

The list of a batch gets the live queue's name: one command, which wakes the workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self, TypeVar

from audit.embedded import EmbeddedServer
from audit.memory import migrate_memory
from bench.place import HELD, LIVE, Place
from bench.postgres import Databases, is_installed
from bench.processes import BenchError, Program
from bench.rows import counter
from bench.server import client, seconds_of_cpu
from bench.team import Batch, Team

WARM_UP: Final = 200

#: How the URL of a result backend begins that stores results in one step with rows.
MERGED: Final = "merged+"

T = TypeVar("T", bound=Team)


class Variant(Enum):
    """What is compared: the module in ``bench.sides``, the words for it, where its memory is."""

    BARE = ("bare", "bare Celery")
    CONTROL = ("bare", "bare Celery again (control)")
    TRACED = ("traced", "Celery + OpenTelemetry (instrumentor, SDK)")
    AUDITED = ("audited", "audited skills")
    MERGED = ("audited", "audited skills, merged mode")
    AUDITED_TRACED = ("audited_traced", "audited skills + OpenTelemetry SDK")
    MERGED_TRACED = ("audited_traced", "audited skills, merged mode + OpenTelemetry SDK")
    AUDITED_POSTGRES = ("audited", "audited skills, memory in PostgreSQL", "postgresql")
    POSTGRES_TRACED = (
        "audited_traced",
        "audited skills, memory in PostgreSQL + OpenTelemetry SDK",
        "postgresql",
    )

    def __init__(self, side: str, label: str, memory: str = "redis") -> None:
        self.side = side
        self.label = label
        self.memory = memory

    @property
    def merged(self) -> bool:
        """Whether its results stand in the memory's database, each in one step with its row."""
        return self.name.startswith("MERGED")

    @property
    def judged(self) -> bool:
        """Whether its trace is part of the job, as that of Celery with OpenTelemetry is."""
        return self.side == "audited_traced"

    @property
    def audited(self) -> bool:
        return self.side.startswith("audited")

    @property
    def possible(self) -> bool:
        """Whether this machine has what it needs."""
        return self.memory == "redis" or is_installed()


class Crew(Team):
    """One variant's publisher and workers on databases of their own."""

    def __init__(
        self,
        variant: Variant,
        place: Place,
        name: str,
        log: Path,
        *,
        workers: int,
        sql: Databases,
    ) -> None:
        side, sent = f"sides.{variant.side}", place.to_json()
        self.variant = variant
        results = place.results.removeprefix(MERGED)
        self._broker, self._results = client(place.broker), client(results)
        self._before = 0
        self._rows = counter(place.memory)
        super().__init__(
            variant.label,
            workers=[
                Program("bench.worker", f"{name}-{number}", side, sent, log=log)
                for number in range(workers)
            ],
            publisher=Program("bench.publisher", side, sent, log=log),
            servers=[lambda: seconds_of_cpu(self._broker), sql.cpu],
        )

    def batch(self, count: int, *, fail_every: int = 0) -> Batch:
        self._before = rows = self._rows()
        done = super().batch(count, fail_every=fail_every)
        self._check_rows(self._rows() - rows, count)
        return done

    def connections(self) -> int:
        """How many connections the server has, those of the bench among them."""
        return len(self._broker.client_list())

    def _release(self) -> None:
        self._broker.rename(HELD, LIVE)

    def _done(self) -> int:
        # Where results stand beside rows, each in one step with its own, these are counted.
        if self.variant.merged:
            return (self._rows() - self._before) // 2
        return int(self._results.dbsize())

    def _forget(self) -> None:
        if not self.variant.merged:
            self._results.flushdb()
            return
        for key in self._results.scan_iter("celery-task-meta-*", count=1000):
            self._results.delete(key)

    def _check_rows(self, added: int, count: int) -> None:
        expected = 2 * count if self.variant.audited else 0
        if added != expected:
            raise BenchError(f"{self.label}: {added} rows instead of {expected}")


@contextmanager
def crews(
    variants: Sequence[Variant], *, queue: str = HELD, workers: int = 1, children: int = 2
) -> Iterator[list[Crew]]:
    """A crew for each variant, ended in the end whatever happens."""
    with Hiring() as hiring:
        yield [
            hiring.crew(variant, queue=queue, workers=workers, children=children)
            for variant in variants
        ]


class Hiring:
    """Starts teams, each on a Redis server of its own, and ends all of them in the end."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._working: list[Team] = []

    def __enter__(self) -> Self:
        self.logs = Path(self._stack.enter_context(TemporaryDirectory(prefix="bench-")))
        self.databases = Databases(self.logs)
        self._stack.callback(self.databases.end)
        return self

    def __exit__(self, *raised: object) -> None:
        with self._stack:
            for team in self._working:
                team.signal_end()
            for team in self._working:
                team.end()

    def server(self) -> EmbeddedServer:
        return self._stack.enter_context(EmbeddedServer())

    def take(self, team: T) -> T:
        """See to the end of a team that was started."""
        self._working.append(team)
        return team

    def crew(
        self, variant: Variant, *, queue: str = HELD, workers: int = 1, children: int = 2
    ) -> Crew:
        name, server = f"{variant.side}-{len(self._working)}", self.server()
        place = Place(
            broker=server.url_for(0),
            results=f"{MERGED}{server.url_for(2)}" if variant.merged else server.url_for(1),
            memory=self._memory(variant, server.url_for(2), name),
            queue=queue,
            children=children,
        )
        log = self.logs / f"{name}.log"
        return self.take(Crew(variant, place, name, log, workers=workers, sql=self.databases))

    def _memory(self, variant: Variant, redis: str, name: str) -> str:
        if variant.memory == "redis":
            return f"{redis}?durability=everysec"
        url = self.databases.fresh(name)
        migrate_memory(url)
        return url


def turns(count: int, round_number: int) -> list[int]:
    """In which order so many take their turns: each round begins with the next one."""
    return [(round_number + place) % count for place in range(count)]
