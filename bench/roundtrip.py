"""``.delay().get()`` with one task in flight: what a caller who waits will notice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bench.crew import Variant, crews, turns
from bench.place import LIVE
from bench.report import millis, table
from bench.stats import percentile

VARIANTS: Final = (Variant.BARE, Variant.AUDITED)
#: Round trips of a round for every task of a round in the throughput section.
TRIPS_PER_TASK: Final = 0.1
WARM_UP: Final = 20

Trips = Mapping[Variant, list[float]]


def measure(rounds: int, tasks: int) -> Trips:
    """Seconds of each round trip; the variants take turns in short blocks."""
    took: dict[Variant, list[float]] = {variant: [] for variant in VARIANTS}
    count = max(1, round(TRIPS_PER_TASK * tasks))
    with crews(VARIANTS, queue=LIVE) as working:
        for crew in working:
            crew.ask(do="roundtrip", count=WARM_UP)
        for number in range(rounds):
            for turn in turns(len(working), number):
                crew = working[turn]
                took[crew.variant] += crew.ask(do="roundtrip", count=count)
    return took


def report(trips: Trips) -> str:
    rows = [
        [variant.label, *(millis(percentile(took, percent)) for percent in (50, 95, 99))]
        for variant, took in trips.items()
    ]
    return table(("ms per .delay().get()", "p50", "p95", "p99"), rows)


def raw(trips: Trips) -> dict[str, Any]:
    """Every sample, in seconds."""
    return {variant.label: took for variant, took in trips.items()}
