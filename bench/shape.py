"""Tasks a second by workers and children: does the audit scale as Celery does?

Bare Celery and audited skills take turns within each shape, so a ratio compares what ran side by
side; single figures of two shapes are minutes apart.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from bench.crew import WARM_UP, Variant, crews, turns
from bench.report import table
from bench.stats import paired_ratios
from bench.team import Batch

VARIANTS: Final = (Variant.BARE, Variant.AUDITED)


@dataclass(frozen=True, slots=True)
class Shape:
    """So many workers, each with so many children."""

    workers: int
    children: int

    def __str__(self) -> str:
        return f"{_several(self.workers, 'worker')}, {_several(self.children, 'child', 'ren')}"


ALONE: Final = Shape(1, 1)
SHAPES: Final = (ALONE, Shape(1, 2), Shape(1, 4), Shape(2, 1), Shape(4, 1))

Batches = Mapping[Variant, Sequence[Batch]]
Shapes = Mapping[Shape, Batches]


def measure(rounds: int, tasks: int) -> Shapes:
    """Half as many rounds and tasks of each shape, one shape after the other."""
    return {shape: run(shape, max(1, rounds // 2), max(1, tasks // 2)) for shape in SHAPES}


def run(shape: Shape, rounds: int, tasks: int) -> Batches:
    """So many rounds of one shape."""
    done: dict[Variant, list[Batch]] = {variant: [] for variant in VARIANTS}
    with crews(VARIANTS, workers=shape.workers, children=shape.children) as working:
        for crew in working:
            crew.batch(min(tasks, WARM_UP))
        for number in range(rounds):
            for turn in turns(len(working), number):
                done[working[turn].variant].append(working[turn].batch(tasks))
    return done


def raw(shapes: Shapes) -> dict[str, Any]:
    """Every sample, in seconds."""
    return {
        str(shape): {
            variant.label: [asdict(batch) for batch in found] for variant, found in batches.items()
        }
        for shape, batches in shapes.items()
    }


def report(shapes: Shapes) -> str:
    first = {variant: _rate(shapes[ALONE][variant]) for variant in VARIANTS}
    head = ("prefork", "bare", "audited", "of bare, median", "min to max", "bare x", "audited x")
    rows = [_row(shape, batches, first) for shape, batches in shapes.items()]
    words = f"Tasks a second; x: times the figure of {ALONE}."
    return f"{table(head, rows)}\n\n{words}"


def _row(shape: Shape, batches: Batches, first: Mapping[Variant, float]) -> list[str]:
    rates = {variant: _rate(batches[variant]) for variant in VARIANTS}
    bare, audited = ([batch.rate for batch in batches[variant]] for variant in VARIANTS)
    ratios = paired_ratios(audited, bare)
    return [
        str(shape),
        *(f"{rates[variant]:,.0f}" for variant in VARIANTS),
        f"{statistics.median(ratios):.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        *(f"{rates[variant] / first[variant]:.2f}" for variant in VARIANTS),
    ]


def _rate(batches: Sequence[Batch]) -> float:
    return statistics.median(batch.rate for batch in batches)


def _several(count: int, what: str, plural: str = "s") -> str:
    return f"{count} {what}{plural if count > 1 else ''}"
