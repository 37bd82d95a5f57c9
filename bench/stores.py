"""One emit beside a bare call of the same store, for every store, and a paced crowd on SQLite.

The writers of a store do both in turn, round by round, so that both meet the same machine: p50 and
p95 are compared within a round, the median of those ratios counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from audit.embedded import EmbeddedServer
from audit.memory import migrate_memory
from bench.processes import Program
from bench.report import micros, millis, table
from bench.stats import paired_ratios, percentile
from bench.store_writer import make_bare
from demo.postgres import PostgresServer

STORES: Final = ("redis everysec", "redis always", "postgres", "sqlite")
WRITERS: Final = (1, 8)
WAYS: Final = ("bare", "memory")
#: Calls of each writer in a round, as a share of the tasks of a round elsewhere.
SHARE: Final = 5
#: How many times a bare call's p50 and p95 an emit with 8 writers may take.
AIM: Final = 1.3
#: Writers of the crowd, and emits a second of each: as many in all.
CROWDS: Final = ((8, 50.0), (16, 25.0))
#: Seconds at the 99th percentile of the smaller crowd.
CROWD_AIM: Final = 0.006


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Seconds of every call of some writers to one store, for each way by round."""

    store: str
    writers: int
    took: dict[str, list[list[float]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Crowd:
    """Seconds of every emit of many writers at a pace."""

    writers: int
    pace: float
    took: list[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stores:
    pairs: list[Pair]
    crowds: list[Crowd]


def measure(rounds: int, tasks: int) -> Stores:
    pairs = [
        _pair(store, writers, rounds, max(1, tasks // SHARE))
        for store in STORES
        for writers in WRITERS
    ]
    return Stores(pairs=pairs, crowds=[_crowd(*crowd, tasks) for crowd in CROWDS])


def _pair(store: str, writers: int, rounds: int, count: int) -> Pair:
    took: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    with _at_work(store, writers) as programs:
        for number in range(rounds):
            for way in WAYS if number % 2 else WAYS[::-1]:
                took[way].append(_together(programs, way=way, count=count, pace=0))
    return Pair(store=store, writers=writers, took=took)


def _crowd(writers: int, pace: float, count: int) -> Crowd:
    share = max(1, round(count * pace / CROWDS[0][1]))
    with _at_work("sqlite", writers) as programs:
        took = _together(programs, way="memory", count=share, pace=pace)
    return Crowd(writers=writers, pace=pace, took=took)


def _together(programs: Sequence[Program], **order: Any) -> list[float]:
    for program in programs:
        program.ask(**order)
    for program in programs:
        program.tell("go")
    return [seconds for program in programs for seconds in program.answer()]


@contextmanager
def _at_work(store: str, writers: int) -> Iterator[list[Program]]:
    """Writers that are warm, on a store of their own."""
    kind, _, fsync = store.partition(" ")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="bench-")))
        url = _serve(kind, fsync, folder, stack)
        make_bare(kind, url)
        programs = []
        for _ in range(writers):
            program = Program("bench.store_writer", kind, url, log=folder / "writers.log")
            stack.callback(program.end)
            programs.append(program)
        for program in programs:
            program.answer()
        yield programs


def _serve(kind: str, fsync: str, folder: Path, stack: ExitStack) -> str:
    if kind == "redis":
        how: Any = fsync
        return f"{stack.enter_context(EmbeddedServer(fsync=how)).url}?durability={fsync}"
    if kind == "postgres":
        url = stack.enter_context(PostgresServer()).url()
        migrate_memory(url)
        return url
    return f"sqlite:///{folder}/audit.db"


def report(measured: Stores) -> str:
    head = ("us per call", "p50", "p95", "p99", "max", "p50, of bare", "p95, of bare")
    lines = [line for pair in measured.pairs for line in _lines(pair)]
    crowd_head = ("SQLite, ms per emit at a pace", "p50", "p95", "p99", "max")
    crowds = [_crowd_line(crowd) for crowd in measured.crowds]
    parts = (table(head, lines), _verdict(measured.pairs), table(crowd_head, crowds))
    return "\n\n".join((*parts, _crowd_verdict(measured.crowds[0])))


def raw(measured: Stores) -> dict[str, Any]:
    """Every sample, in seconds."""
    return asdict(measured)


def ratio(pair: Pair, percent: float) -> float:
    """How many times a bare call's an emit's percentile is: the median of the rounds."""
    emit, bare = ([percentile(took, percent) for took in pair.took[way]] for way in WAYS[::-1])
    return median(paired_ratios(emit, bare))


def _lines(pair: Pair) -> Iterator[list[str]]:
    for way, what in (("bare", "bare call"), ("memory", "memory.emit")):
        every = [seconds for took in pair.took[way] for seconds in took]
        label = f"{pair.store}, {pair.writers} writer{'s' * (pair.writers > 1)}, {what}"
        figures = [micros(percentile(every, percent)) for percent in (50, 95, 99, 100)]
        ratios = ["1", "1"] if way == "bare" else [f"{ratio(pair, p):.2f}" for p in (50, 95)]
        yield [label, *figures, *ratios]


def _verdict(pairs: Sequence[Pair]) -> str:
    many = [pair for pair in pairs if pair.writers == WRITERS[-1]]
    words = [
        f"{pair.store} {'within' if max(ratio(pair, 50), ratio(pair, 95)) <= AIM else 'OVER'}"
        for pair in many
    ]
    return f"Aim: p50 and p95 with 8 writers at most {AIM} of a bare call: {', '.join(words)}."


def _crowd_line(crowd: Crowd) -> list[str]:
    figures = [millis(percentile(crowd.took, percent)) for percent in (50, 95, 99, 100)]
    return [f"{crowd.writers} writers, {crowd.pace:g} emits a second each", *figures]


def _crowd_verdict(crowd: Crowd) -> str:
    p99 = percentile(crowd.took, 99)
    word = "within" if p99 <= CROWD_AIM else "OVER"
    return (
        f"Aim: p99 of {crowd.writers} paced writers at most {millis(CROWD_AIM)} ms; it is"
        f" {millis(p99)} ms: {word}."
    )
