"""The load: mostly bodies that return at once, and of every other kind enough."""

from __future__ import annotations

from typing import Any, Final
from uuid import NAMESPACE_DNS, uuid5

from chaos.load import Part

#: Rows are judged a tenant at a time, so these bound what judging takes.
TENANTS: Final = tuple(str(uuid5(NAMESPACE_DNS, f"soak-{number}.invalid")) for number in range(20))

#: What differs from :mod:`chaos`: no worker dies here, so nothing need come back within seconds.
SETTINGS: Final[dict[str, Any]] = {"broker_transport_options": {}, "worker_prefetch_multiplier": 4}

#: In ten thousand; what takes about a second is rare.
MIX: Final[tuple[Part, ...]] = (
    ("instant", 8600, lambda random: random.randrange(1000)),
    ("late", 200, lambda random: 0.0),
    ("fail", 600, lambda random: "what it was given"),
    ("retry", 200, lambda random: random.randrange(1000)),
    ("nested", 340, lambda random: random.randrange(1000)),
    ("large", 30, lambda random: 500),
    ("slow", 16, lambda random: random.uniform(0.2, 1.0)),
    ("slow_late", 8, lambda random: random.uniform(0.2, 1.0)),
    ("soft", 3, lambda random: 1.5),
    ("hard", 3, lambda random: 1.5),
)
