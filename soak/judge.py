"""Whether a run's samples are flat: pure arithmetic over series, nothing of it looks at a process.

Memory is judged by a slope, the median of the slopes between all pairs of samples (Theil and Sen):
a third of the samples may lie anywhere, as in outages, and it stays what the others say. What bare
Celery grows by under the same load is allowed; that it shrinks is not held against the audit.

Everything else has a level, the median of a fifth of the samples: that of the last fifth is that
of the second, the one right after the warm-up, but for a few.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from soak.sample import Held, Role, Sample

#: The share of the samples until pools, caches and arenas have their size.
WARM_UP: Final = 0.2
#: Bytes that a process may grow by for each thousand invocations beyond what bare Celery does:
#: 33 an invocation. The smallest thing that says anything, an empty string, takes 49.
GROWTH: Final = 32 * 1024
#: The same inside the life of one child, which is short: pages it got from its main process become
#: its own one by one. What it held for each invocation beyond 128 bytes would be seen.
GROWTH_IN_A_LIFE: Final = 128 * 1024
#: Connections, handles and threads that the last fifth may have more than the second: Celery's
#: pools open a connection when one is first needed, and each is two handles. Of what is not given
#: back after each outage there are more before long.
SPARE: Final = 4
#: In a child's life, from this share of its bodies on.
GROWN_UP: Final = 0.25
#: Pairs of samples that a slope takes at least.
PAIRS: Final = 20
#: Points whose pairs are looked at: twenty thousand pairs.
POINTS: Final = 200

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that is to be flat.

    Attributes:
        what: in words.
        measured: of the audited host; not a number where it could not be told.
        control: of bare Celery, 0 where there is none.
        limit: what is allowed beyond the control.
    """

    what: str
    measured: float
    limit: float
    control: float = 0.0

    @property
    def flat(self) -> bool:
        return self.measured - max(0.0, self.control) <= self.limit


def slope(pairs: Iterable[tuple[Point, Point]]) -> float:
    """The median slope of pairs whose x differs; not a number for fewer than :data:`PAIRS`."""
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairs if x1 != x2]
    return statistics.median(slopes) if len(slopes) >= PAIRS else math.nan


def growth(samples: Sequence[Sample], role: Role) -> float:
    """Bytes that a long-lived process grows by per 1,000 invocations, after the warm-up."""
    points = [
        (sample.done / 1000, float(held.uss))
        for sample in warm(samples)
        for held in sample.held
        if held.role is role
    ]
    return slope(_pairs(points))


def growth_in_a_life(samples: Sequence[Sample], life: int) -> float:
    """Bytes that a child grows by per 1,000 bodies: pairs of samples of one child only."""
    lives: defaultdict[int, list[Point]] = defaultdict(list)
    for _, child in _grown_up(samples, life):
        lives[child.pid].append((child.age / 1000, float(child.uss)))
    return slope(pair for points in lives.values() for pair in combinations(points, 2))


def growth_from_life_to_life(samples: Sequence[Sample], life: int) -> float:
    """Bytes that children of one age grow by per 1,000 invocations of the run."""
    points = [(done / 1000, float(child.uss)) for done, child in _grown_up(samples, life)]
    return slope(_pairs(points))


def _pairs(points: Sequence[Point]) -> Iterator[tuple[Point, Point]]:
    """All pairs of the points, of every so many of them where they are too many."""
    return combinations(points[:: math.ceil(len(points) / POINTS) or 1], 2)


def _grown_up(samples: Sequence[Sample], life: int) -> Iterator[tuple[int, Held]]:
    for sample in warm(samples):
        for held in sample.held:
            if held.role is Role.CHILD and held.age >= life * GROWN_UP:
                yield sample.done, held


def warm(samples: Sequence[Sample]) -> Sequence[Sample]:
    return samples[math.ceil(len(samples) * WARM_UP) :]


def memory(audited: Sequence[Sample], bare: Sequence[Sample], life: int) -> Iterator[Check]:
    """Each kind of process against its like of bare Celery."""
    ways: list[tuple[str, Callable[[Sequence[Sample]], float], float]] = [
        ("worker main", lambda samples: growth(samples, Role.MAIN), GROWTH),
        ("worker child, in its life", lambda samples: growth_in_a_life(samples, life), _LIFE),
        ("worker children, over lives", lambda some: growth_from_life_to_life(some, life), GROWTH),
        ("publisher", lambda samples: growth(samples, Role.PUBLISHER), GROWTH),
    ]
    for what, way, limit in ways:
        yield Check(what=what, measured=way(audited), control=way(bare), limit=limit)
    yield Check(what="keeper", measured=growth(audited, Role.KEEPER), limit=GROWTH)


_LIFE: Final = GROWTH_IN_A_LIFE


def levels(samples: Sequence[Sample]) -> Iterator[Check]:
    """Connections, handles and threads: how many more at the end than after the warm-up."""
    yield _level("connections", [sample.connections for sample in samples])
    judged = list(_without_first_children(samples))
    for role in Role:
        held = [[one for one in sample.held if one.role is role] for sample in judged]
        yield _level(f"handles, {role}", [_each(one.handles for one in some) for some in held])
        yield _level(f"threads, {role}", [_each(one.threads for one in some) for some in held])


def _without_first_children(samples: Sequence[Sample]) -> Iterator[Sample]:
    """The first ones were forked by a main process that had not its connections yet."""
    first = {held.pid for sample in samples[:1] for held in sample.held if held.role is Role.CHILD}
    for sample in samples:
        yield replace(sample, held=tuple(held for held in sample.held if held.pid not in first))


def _each(numbers: Iterable[int]) -> float | None:
    """What one of several processes holds."""
    known = list(numbers)
    return statistics.median(known) if known else None


def _level(what: str, values: Sequence[float | None]) -> Check:
    more = _fifth(values, 4) - _fifth(values, 1)
    return Check(what=what, measured=more, limit=SPARE)


def _fifth(values: Sequence[float | None], number: int) -> float:
    """The median of that fifth of the values, from 0; not a number where none is known."""
    begin, end = (round(len(values) * part / 5) for part in (number, number + 1))
    known = [value for value in values[begin:end] if value is not None]
    return statistics.median(known) if known else math.nan
