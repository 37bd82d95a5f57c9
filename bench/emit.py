"""One emit in microseconds, beside the floor: by fsync of the server and number of writers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

from audit.embedded import EmbeddedServer
from bench.processes import Program
from bench.report import micros, millis, table
from bench.stats import percentile

Fsync = Literal["everysec", "always"]

FSYNCS: Final[tuple[Fsync, ...]] = ("everysec", "always")
#: Who emit side by side, beside one alone.
WRITERS: Final = 8
WAYS: Final = ("floor", "memory")
#: Emits of each writer for every task of the throughput section.
EMITS_PER_TASK: Final = 2
#: Seconds that one emit may take at the 95th percentile.
BUDGET: Final = 0.050


@dataclass(frozen=True, kw_only=True, slots=True)
class Emits:
    """What the emits of some writers took, in seconds each, and in all."""

    way: str
    fsync: str
    writers: int
    took: list[float]
    seconds: float


def measure(tasks: int, most: int = WRITERS) -> list[Emits]:
    """One writer and ``most`` of them under every fsync, floor and memory in turn."""
    return [found for fsync in FSYNCS for found in _under(fsync, EMITS_PER_TASK * tasks, most)]


def _under(fsync: Fsync, count: int, most: int) -> Iterator[Emits]:
    with TemporaryDirectory(prefix="bench-") as logs, EmbeddedServer(fsync=fsync) as server:
        for writers in (1, most):
            for way in WAYS:
                url = server.url if way == "floor" else f"{server.url}?durability={fsync}"
                found = _released_together(way, url, writers, count, Path(logs) / "writers.log")
                yield Emits(
                    way=way,
                    fsync=fsync,
                    writers=writers,
                    took=[seconds for one in found for seconds in one["took"]],
                    seconds=max(one["last"] for one in found) - min(one["first"] for one in found),
                )


def _released_together(
    way: str, url: str, writers: int, count: int, log: Path
) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        programs = []
        for _ in range(writers):
            program = Program("bench.writer", way, url, str(count), log=log)
            stack.callback(program.end)
            programs.append(program)
        for program in programs:
            program.answer()
        for program in programs:
            program.tell("go")
        return [program.answer() for program in programs]


def report(measured: Sequence[Emits]) -> str:
    rows = [[_label(emits), *_figures(emits)] for emits in measured]
    head = ("us per emit", "p50", "p95", "p99", "max", "rows/s")
    return f"{table(head, rows)}\n\n{_budget(measured)}"


def raw(measured: Sequence[Emits]) -> list[dict[str, Any]]:
    """Every sample, in seconds."""
    return [asdict(emits) for emits in measured]


def _label(emits: Emits) -> str:
    what = "one append, nothing else (floor)" if emits.way == "floor" else "memory.emit"
    return f"{what}, fsync {emits.fsync}, {emits.writers} writer{'s' * (emits.writers > 1)}"


def _figures(emits: Emits) -> list[str]:
    took = [percentile(emits.took, percent) for percent in (50, 95, 99, 100)]
    return [*map(micros, took), f"{len(emits.took) / emits.seconds:,.0f}"]


def _budget(measured: Sequence[Emits]) -> str:
    worst = max(percentile(emits.took, 95) for emits in measured if emits.way == "memory")
    word = "within" if worst <= BUDGET else "OVER"
    return (
        f"Budget of an emit at p95: {millis(BUDGET)} ms. Slowest row above: {millis(worst)} ms,"
        f" {worst / BUDGET:.1%} of it: {word} the budget."
    )
