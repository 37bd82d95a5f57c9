"""The picture of the endings over time: stacked bars, as the places of rectangles in an SVG."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from audit.board.measures import Bucket, Endings
from audit.row import Outcome

WIDTH: Final = 720
HEIGHT: Final = 140
_GAP: Final = 0.15
#: Worst at the bottom, where small numbers are seen.
STACK: Final = (Outcome.PANIC, Outcome.ERROR, Outcome.TIMEOUT, Outcome.SUCCESS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One rectangle, in the units of the picture; ``y`` grows downward."""

    x: float
    y: float
    width: float
    height: float
    outcome: Outcome
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """The picture.

    Attributes:
        bars: from left to right, each bucket from the bottom up; none of them is empty.
        most: how many endings the highest bucket has, 1 at least.
        totals: of each outcome, in the order of the stack.
        buckets: those that have an ending, newest first: the picture as a table.
        begin, end: of the time that is shown, as text; empty where nothing is.
    """

    bars: tuple[Bar, ...]
    most: int
    totals: tuple[tuple[Outcome, int], ...]
    buckets: tuple[Bucket, ...]
    begin: str
    end: str


def picture_of(endings: Endings) -> Picture:
    """Where everything stands; every ending is in it once."""
    buckets = endings.buckets
    most = max([1, *(sum(bucket.counts.values()) for bucket in buckets)])
    return Picture(
        bars=tuple(_bars(buckets, most)),
        most=most,
        totals=tuple((one, sum(bucket.counts[one] for bucket in buckets)) for one in STACK),
        buckets=tuple(bucket for bucket in reversed(buckets) if any(bucket.counts.values())),
        begin=moment_of(buckets[0]) if buckets else "",
        end=_end(endings),
    )


def moment_of(bucket: Bucket) -> str:
    """When a bucket begins."""
    return bucket.begin.strftime("%Y-%m-%d %H:%M:%S")


def _end(endings: Endings) -> str:
    if not endings.buckets:
        return ""
    last = endings.buckets[-1].begin
    try:
        return (last + timedelta(seconds=endings.seconds_each)).strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:  # a forger's last second of all time
        return moment_of(endings.buckets[-1])


def _bars(buckets: tuple[Bucket, ...], most: int) -> Iterator[Bar]:
    each = WIDTH / max(1, len(buckets))
    for number, bucket in enumerate(buckets):
        bottom = float(HEIGHT)
        for outcome in STACK:
            if count := bucket.counts[outcome]:
                height = HEIGHT * count / most
                bottom -= height
                yield Bar(
                    x=round(each * (number + _GAP / 2), 2),
                    y=round(bottom, 2),
                    width=round(each * (1 - _GAP), 2),
                    height=round(height, 2),
                    outcome=outcome,
                    count=count,
                )
