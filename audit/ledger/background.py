"""Work beside the sealing: now and then, in a thread of its own, so that nothing waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

logger: Final = logging.getLogger("audit")


class Background:
    """Some work that is begun again and again, never twice at once.

    Args:
        name: of the thread, and in the log.
        work: what to do; whatever it raises is in the log, and it is done again next time.
        every: seconds from one beginning to the next, at least.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        every: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._work = work
        self._every = every
        self._clock = clock
        self._next = clock()
        self._running: threading.Thread | None = None

    def poke(self) -> bool:
        """Begin, if it is time and nothing of it is under way; never waits, never raises."""
        busy = self._running is not None and self._running.is_alive()
        if busy or self._clock() < self._next:
            return False
        self._next = self._clock() + self._every
        # A daemon: whoever ends the process does not wait, and what it leaves is whole anyway.
        self._running = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._running.start()
        return True

    def _run(self) -> None:
        try:
            self._work()
        except Exception:
            logger.exception("%s goes on after an error", self._name)
