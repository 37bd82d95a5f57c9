"""For tests: a memory in this process with faults, clocks, and assertions on what is on record.

The pytest fixture `audited` knows Celery, and so stands in :mod:`tasks.testing`.
"""

from __future__ import annotations

from audit.testing.memory import FakeClock, Fault, InMemory
from audit.testing.pairs import Pair, on_record, pairs_of

__all__ = ["FakeClock", "Fault", "InMemory", "Pair", "on_record", "pairs_of"]
