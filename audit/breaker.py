"""The breaker: an outage of the memory costs the first emit its timeout, and not every one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

#: Seconds between two tries while the memory is out of reach.
COOLDOWN: Final = 1.0


class Breaker:
    """Whether an emit is worth a try, as far as this process has seen.

    Closed while the memory takes rows. After a failure it is open, and lets one try through in each
    cooldown; the first success closes it. It decides about speed only: whatever it says, a row
    goes to the memory or to the spool, and nothing runs without a started row. So it needs no lock.
    """

    def __init__(
        self, *, cooldown: float = COOLDOWN, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cooldown = cooldown
        self._clock = clock
        self._next_try: float | None = None

    @property
    def open(self) -> bool:
        """Whether the last try failed."""
        return self._next_try is not None

    def lets_through(self) -> bool:
        """Whether to try now. While open, a yes is given once a cooldown."""
        next_try = self._next_try  # read once: another thread may close the breaker meanwhile
        if next_try is None:
            return True
        now = self._clock()
        if now < next_try:
            return False
        self._next_try = now + self._cooldown
        return True

    def succeeded(self) -> None:
        self._next_try = None

    def failed(self) -> None:
        self._next_try = self._clock() + self._cooldown
