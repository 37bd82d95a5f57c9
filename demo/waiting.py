"""Waits for conditions, and gives up when a signal asks the demo to end.

A signal never strikes in the middle of something: its handler only notes it, and every wait looks.
So whatever was started is known to the one who has to end it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Final, Self, TypeVar

T = TypeVar("T")

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL_SECONDS: Final = 0.05


class DemoError(Exception):
    """Something did not come up or is missing: the text says what, and quotes the log at fault."""


class StopRequest(Exception):
    """A signal asked the demo to end.

    Args:
        signum: which one.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Signals:
    """Notes the signals that ask the demo to end, for as long as the ``with`` block lasts."""

    def __init__(self) -> None:
        self._caught: int | None = None

    def __enter__(self) -> Self:
        self._before = {signum: signal.signal(signum, self._note) for signum in SIGNALS}
        return self

    def __exit__(self, *raised: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._caught = self._caught or signum

    def check(self) -> None:
        """Give up if a signal came.

        Raises:
            StopRequest: one did.
        """
        if self._caught is not None:
            raise StopRequest(self._caught)


def wait_until(
    condition: Callable[[], T | None],
    *,
    seconds: float,
    check: Callable[[], None],
    failure: Callable[[], DemoError],
) -> T:
    """What ``condition`` returns, as soon as that is true.

    Args:
        condition: asked again and again.
        seconds: how long, before it is given up.
        check: asked in between; raises where waiting has become pointless.
        failure: makes the error for a condition that never was true.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        check()
        if time.monotonic() > deadline:
            raise failure()
        time.sleep(POLL_SECONDS)
    return value
