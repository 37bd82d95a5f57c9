"""The arithmetic of the figures: percentiles, ratios of paired rounds, interval of a median."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """Where the median lies with at least the confidence asked for.

    Attributes:
        low: lower end, one of the values.
        high: upper end, one of the values.
        confidence: the interval's own, at least the one asked for.
    """

    low: float
    high: float
    confidence: float


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of 100 values do not exceed (nearest rank)."""
    if not values or not 0 < percent <= 100:
        raise ValueError("takes at least one value and a percentage above 0, up to 100")
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def paired_ratios(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Each round's value as a share of the same round's base: what both rounds suffered cancels."""
    return [value / under for value, under in zip(values, base, strict=True)]


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """The confidence interval of the median from order statistics; ``None`` for too few values.

    It assumes nothing of the distribution: the number of values below the median is binomial. Six
    values are the fewest that give 95 %.
    """
    ordered, count = sorted(values), len(values)
    outside, found = 0.0, None
    for below in range(count // 2):
        outside += 2 * math.comb(count, below) / 2**count
        if 1 - outside < confidence:
            break
        found = Interval(
            low=ordered[below], high=ordered[count - 1 - below], confidence=1 - outside
        )
    return found


def lowest(values: Sequence[float], count: int) -> list[int]:
    """The places of the lowest values, at most so many, in the order in which they came."""
    return sorted(sorted(range(len(values)), key=values.__getitem__)[:count])


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """How much ``y`` grows with each unit of ``x`` (least squares); 0 for fewer than two points."""
    return statistics.linear_regression(xs, ys).slope if len(set(xs)) > 1 else 0.0
