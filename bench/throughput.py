"""Tasks a second and the price of a ``.delay()``, all variants in interleaved rounds.

Where there are few cores, another process that gets busy slows one batch and not the next. So a
round with too much of that is run again, up to twice as many rounds in all, and the quietest count:
chosen by what the others did, never by the figures themselves.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from bench.crew import WARM_UP, Crew, Variant, crews, turns
from bench.report import micros, table
from bench.stats import lowest, median_interval, paired_ratios, percentile
from bench.team import Batch

#: Cores busy elsewhere, on average over a batch, up to which the batch is a quiet one.
QUIET: Final = 0.2

Round = Mapping[Variant, Batch]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """All rounds that were run, and which of them count."""

    rounds: Sequence[Round]
    counted: Sequence[int]

    def batches(self, variant: Variant) -> list[Batch]:
        """One variant's batches of the rounds that count."""
        return [self.rounds[number][variant] for number in self.counted]


def measure(rounds: int, tasks: int) -> Measured:
    """Every variant once a round, each round beginning with the next variant."""
    done: list[Round] = []
    with crews([variant for variant in Variant if variant.possible]) as working:
        for crew in working:
            crew.batch(min(tasks, WARM_UP))
        while _quiet(done) < rounds and len(done) < 2 * rounds:
            done.append(_round(working, len(done), tasks))
    return Measured(rounds=done, counted=lowest([_disturbance(one) for one in done], rounds))


def _round(working: Sequence[Crew], number: int, tasks: int) -> Round:
    in_turn = [working[turn] for turn in turns(len(working), number)]
    return {crew.variant: crew.batch(tasks) for crew in in_turn}


def _quiet(rounds: Sequence[Round]) -> int:
    return sum(_disturbance(one) <= QUIET for one in rounds)


def _disturbance(one: Round) -> float:
    return max(batch.disturbance for batch in one.values())


def raw(measured: Measured) -> dict[str, Any]:
    """Every sample of every round, in seconds, and the numbers of the rounds that count."""
    return {
        "rounds": [
            {variant.label: asdict(batch) for variant, batch in one.items()}
            for one in measured.rounds
        ],
        "counted": list(measured.counted),
    }


def report(measured: Measured) -> str:
    batches = {variant: measured.batches(variant) for variant in measured.rounds[0]}
    return "\n\n".join((_rates(batches), _judgement(measured), _cpu(batches), _publishing(batches)))


# Tables.

Batches = Mapping[Variant, Sequence[Batch]]


def _rates(batches: Batches) -> str:
    rates = {variant: [batch.rate for batch in found] for variant, found in batches.items()}
    bare, traced = rates[Variant.BARE], rates[Variant.TRACED]
    rows = [
        [
            variant.label,
            f"{statistics.median(own):,.0f}",
            *(_ratio(own, bare) if own is not bare else ("1", "", "")),
        ]
        for variant, own in rates.items()
    ]
    head = ("throughput", "tasks/s", "of bare, median", "min to max", "median's interval")
    yardstick = [
        [f"{variant.label}, of the yardstick", *_ratio(own, traced)]
        for variant, own in rates.items()
        if variant.judged
    ]
    judged = table((f"of {Variant.TRACED.label}", *head[2:]), yardstick)
    return f"{table(head, rows)}\n\n{judged}"


def _judgement(measured: Measured) -> str:
    worst = max(_disturbance(measured.rounds[number]) for number in measured.counted)
    return (
        f"The {len(measured.counted)} quietest of {len(measured.rounds)} rounds: other processes"
        f" kept at most {worst:.2f} cores busy during any batch of them"
        f" ({QUIET:g} or less is quiet)."
    )


def _ratio(own: Sequence[float], base: Sequence[float]) -> list[str]:
    ratios = paired_ratios(own, base)
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return [f"{statistics.median(ratios):.3f}", spread, _interval(ratios)]


def _interval(ratios: Sequence[float]) -> str:
    found = median_interval(ratios)
    if found is None:
        return "too few rounds"
    return f"{found.low:.2f} to {found.high:.2f} ({found.confidence:.0%})"


def _cpu(batches: Batches) -> str:
    used = {variant: _used(found) for variant, found in batches.items()}
    bare, traced = (sum(used[base]) for base in (Variant.BARE, Variant.TRACED))
    rows = [
        [
            variant.label,
            *map(micros, (*parts, sum(parts))),
            f"{sum(parts) / bare:.2f}",
            f"{sum(parts) / traced:.2f}",
        ]
        for variant, parts in used.items()
    ]
    head = ("CPU us per task", "main", "children", "server", "together", "of bare", "of traced")
    return table(head, rows)


def _used(found: Sequence[Batch]) -> tuple[float, float, float]:
    """CPU seconds of a task: in the main process, in the children, in the servers."""
    tasks = sum(batch.count for batch in found)
    return (
        sum(batch.cpu.main for batch in found) / tasks,
        sum(batch.cpu.children for batch in found) / tasks,
        sum(batch.cpu.server for batch in found) / tasks,
    )


def _publishing(batches: Batches) -> str:
    rows = []
    for variant, found in batches.items():
        took = [seconds for batch in found for seconds in batch.publish]
        rows.append([variant.label, *(micros(percentile(took, p)) for p in (50, 95, 99))])
    return table(("us per .delay()", "p50", "p95", "p99"), rows)
