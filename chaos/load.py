"""The load: a paced stream of mixed skills, the same for the same seed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, Final

from audit import acting_as

TENANTS: Final = (
    "550e8400-e29b-41d4-a716-446655440000",
    "7b8c1d9e-4c56-4f0a-9a53-0d6f2a1e8b47",
)
PERSONA: Final = "chaos-operator@1.0.0"

#: The name of a skill, how often it comes relative to the others, and its argument.
Part = tuple[str, int, Callable[[Random], Any]]

MIX: Final[tuple[Part, ...]] = (
    ("instant", 30, lambda random: random.randrange(1000)),
    ("short", 20, lambda random: 0.05),
    ("late", 12, lambda random: 0.05),
    ("fail", 8, lambda random: "what it was given"),
    ("retry", 8, lambda random: random.randrange(1000)),
    ("nested", 8, lambda random: random.randrange(1000)),
    ("large", 4, lambda random: 2000),
    ("slow", 5, lambda random: random.uniform(0.2, 1.0)),
    ("slow_late", 4, lambda random: random.uniform(0.2, 1.0)),
    ("soft", 1, lambda random: random.uniform(0.8, 1.2)),
    ("hard", 1, lambda random: random.uniform(0.8, 1.2)),
)


class Publisher:
    """Publishes so many skills, spread evenly over so many seconds.

    Args:
        skills: what there is to call, by name.
        random: draws skills, arguments and tenants.
        count: how many calls.
        seconds: over how long.
        mix: which skills, how often.
        tenants: for whom.
        tell: told the task id of each call; as long as it takes, nothing is published.

    Attributes:
        published: how many so far.
    """

    def __init__(
        self,
        skills: SimpleNamespace,
        random: Random,
        count: int,
        seconds: float,
        mix: Sequence[Part] = MIX,
        tenants: Sequence[str] = TENANTS,
        tell: Callable[[str], object] = lambda task_id: None,
    ) -> None:
        self.published = 0
        self._mix = mix
        self._weights = [weight for _, weight, _ in mix]
        self._tenants = tenants
        self._tell = tell
        self._skills = skills
        self._random = random
        self._count = count
        self._seconds = seconds

    def run(self, stop: threading.Event) -> None:
        began = time.monotonic()
        for number in range(self._count):
            due = began + number * self._seconds / self._count
            if stop.wait(max(0.0, due - time.monotonic())):
                return
            self._publish()

    def _publish(self) -> None:
        name, _, argument = self._random.choices(self._mix, self._weights)[0]
        tenant_id = self._random.choice(self._tenants)
        with acting_as(PERSONA, tenant_id=tenant_id):
            result = getattr(self._skills, name).delay(argument(self._random))
        self.published += 1
        self._tell(str(result.id))
