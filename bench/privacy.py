"""What signing and masking add to an invocation, in microseconds, step by step.

Each turn goes through every step, with and without what is added, one right after the other and in
changing order, after each was done once untimed. What is reported as added is the median over the
turns' differences. Times are CPU time of this thread, but for the start, which waits for a server.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from tempfile import TemporaryDirectory
from typing import Any, Final

from audit import open_memory
from audit.embedded import EmbeddedServer
from bench.crew import turns
from bench.privacy_steps import Step, Way, all_steps, quiet_logs
from bench.report import table
from bench.stats import percentile

#: Sizes of the arguments, in KiB.
SIZES: Final = (1, 64)
#: Seconds that signing and masking together may add to a success with arguments of 1 KiB.
AIM: Final = 100e-6
#: Tasks of a round of the throughput section for each turn.
TASKS_PER_TURN: Final = 4
#: Turns after which garbage is collected; while a step is timed it never is.
COLLECT: Final = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Added:
    """What one step took without and with what is added, in seconds, turn by turn.

    ``times`` is how often a success goes this way.
    """

    what: str
    kib: int
    times: int
    without: list[float]
    with_it: list[float]

    @property
    def added(self) -> list[float]:
        return [more - less for more, less in zip(self.with_it, self.without, strict=True)]


def measure(tasks: int) -> list[Added]:
    """Every step at every size, in turns."""
    with TemporaryDirectory(prefix="bench-") as spool, EmbeddedServer() as server, quiet_logs():
        memory = open_memory(server.url)
        steps = [step for kib in SIZES for step in all_steps(kib, spool, memory)]
        measured = [
            Added(what=step.what, kib=step.kib, times=step.times, without=[], with_it=[])
            for step in steps
        ]
        try:
            _take_turns(steps, measured, max(1, tasks // TASKS_PER_TURN))
        finally:
            gc.enable()
            memory.close()
    return measured


def _take_turns(steps: Sequence[Step], measured: Sequence[Added], count: int) -> None:
    gc.disable()
    for turn in range(count):
        if turn % COLLECT == 0:
            gc.collect()
        for step, added in zip(steps, measured, strict=True):
            ways = ((step.without, added.without), (step.with_it, added.with_it))
            for way, _ in ways:
                way()()  # the first after another step meets cold caches, and may not be the same
            for number in turns(len(ways), turn % len(ways)):
                way, samples = ways[number]
                samples.append(_timed(way, step.clock))


def _timed(way: Way, clock: Callable[[], float]) -> float:
    call = way()
    began = clock()
    call()
    return clock() - began


def report(measured: Sequence[Added]) -> str:
    head = ("us per invocation", "KiB", "without", "with", "adds", "lower to upper quartile")
    rows = [[added.what, str(added.kib), *_figures(added)] for added in measured]
    return f"{table(head, rows)}\n\n{_verdict(measured)}"


def raw(measured: Sequence[Added]) -> list[dict[str, Any]]:
    """Every sample, in seconds."""
    return [asdict(added) for added in measured]


def _figures(added: Added) -> list[str]:
    low, middle, high = (percentile(added.added, percent) for percent in (25, 50, 75))
    before, after = (percentile(took, 50) for took in (added.without, added.with_it))
    return [_tenths(before), _tenths(after), _tenths(middle), f"{_tenths(low)} to {_tenths(high)}"]


def _verdict(measured: Sequence[Added]) -> str:
    """The success path of small arguments against the aim."""
    path = [added for added in measured if added.kib == SIZES[0]]
    total = sum(added.times * percentile(added.added, 50) for added in path if added.times)
    word = "under the aim" if total < AIM else "OVER the aim"
    return (
        f"To a success with {SIZES[0]} KiB of arguments signing and masking add {_tenths(total)} us"
        f" in all. Aim: under {AIM * 1e6:.0f} us: {word}."
    )


def _tenths(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f}"
