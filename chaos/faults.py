"""What can happen to a host, and the seeded schedule of when it does."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final


class Kind(StrEnum):
    """The faults."""

    CHILD_KILLED = "pool child killed"
    WORKER_KILLED = "worker killed, restarted"
    WORKER_FROZEN = "worker frozen beyond its lease"
    COLD_SHUTDOWN = "cold shutdown, restarted"
    REVOKED = "running skill revoked"
    MEMORY_PAUSED = "memory paused"
    MEMORY_KILLED = "memory killed, restarted"
    KEEPER_KILLED = "keeper killed, restarted"


#: How often each fault comes, relative to the others.
WEIGHTS: Final[dict[Kind, int]] = {
    Kind.CHILD_KILLED: 6,
    Kind.WORKER_KILLED: 2,
    Kind.WORKER_FROZEN: 1,
    Kind.COLD_SHUTDOWN: 2,
    Kind.REVOKED: 5,
    Kind.MEMORY_PAUSED: 3,
    Kind.MEMORY_KILLED: 1,
    Kind.KEEPER_KILLED: 1,
}

#: For how many seconds it lasts, from and to; a frozen worker's count beyond what condemns it. What
#: lasts no time has its degree there.
SPANS: Final[dict[Kind, tuple[float, float]]] = {
    Kind.WORKER_KILLED: (0.0, 1.0),
    Kind.WORKER_FROZEN: (0.5, 3.0),
    Kind.COLD_SHUTDOWN: (0.0, 1.0),
    Kind.CHILD_KILLED: (0.0, 1.0),  # the upper half: one that runs a body
    Kind.REVOKED: (0.0, 1.0),  # the upper half: SIGKILL, not SIGTERM
    Kind.MEMORY_PAUSED: (0.2, 3.0),
    Kind.MEMORY_KILLED: (0.0, 2.0),
    Kind.KEEPER_KILLED: (0.0, 1.0),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One fault of the schedule.

    Attributes:
        kind: what happens.
        at: when, seconds after the beginning.
        target: which of those it can happen to, as a fraction of their number.
        span: for how long, in seconds.
    """

    kind: Kind
    at: float
    target: float
    span: float


def schedule(
    random: Random, count: int, seconds: float, kinds: Collection[Kind] = tuple(Kind)
) -> list[Fault]:
    """So many faults at random moments, each of ``kinds`` once before any comes twice."""
    moments = sorted(random.uniform(0, seconds) for _ in range(count))
    return [
        Fault(
            kind=kind,
            at=at,
            target=random.random(),
            span=random.uniform(*SPANS.get(kind, (0.0, 0.0))),
        )
        for kind, at in zip(_kinds(random, count, kinds), moments, strict=True)
    ]


def _kinds(random: Random, count: int, kinds: Collection[Kind]) -> Iterator[Kind]:
    first = random.sample(list(kinds), min(count, len(kinds)))
    weights = [WEIGHTS[kind] for kind in kinds]
    rest = random.choices(list(kinds), weights, k=count - len(first))
    yield from [*first, *rest]
