"""Rows that wait to be sealed, and those that have waited for too long.

A row's age is told by its own time and by when the memory stored it, and both have to be old: a row
that came late, out of a spool, has just begun to wait. It is measured at the moment when the
checkpoints were read, not when the row was, so that a long verification accuses no keeper that has
sealed meanwhile. A time that lies ahead of the clock by more than the limit says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from audit.ledger.finding import Finding, Kind, Source
from audit.ledger.invocations import request_id_of, seconds_of, ts_of
from audit.ledger.subject import Limits
from audit.memory.base import order_of

#: Positions of a memory that begin with a smaller number (2001 in seconds) are counted, not timed.
_TIMED_FROM: Final = 1e9


class Waiting:
    """The rows of one log that wait to be sealed, in stored order.

    Args:
        limits: how long they may.
        began: when the checkpoints of the log were read, in seconds.
    """

    def __init__(self, limits: Limits, began: float) -> None:
        self._limits = limits
        self._began = began
        self._first: tuple[str | None, str | None, str] | None = None
        self._late = 0

    def add(self, stored: bytes, position: str) -> None:
        """A row that is not sealed."""
        request_id = None if self._first else request_id_of(stored)
        self.add_at(ts_of(stored), position, request_id)

    def add_at(self, ts: str, position: str | None, request_id: str | None) -> None:
        """A row that is not sealed, as far as it is known."""
        if self._began - self._since(ts, position) <= self._limits.unsealed_for:
            return
        self._late += 1
        self._first = self._first or (position, request_id, ts)

    def findings(self, log: str, tenant: str | None) -> Iterator[Finding]:
        """One for all that wait for too long."""
        if self._first is None:
            return
        position, request_id, ts = self._first
        yield Finding(
            kind=Kind.UNSEALED, source=Source.MEMORY, log=log, tenant=tenant, count=self._late,
            position=position, request_id=request_id, text=f"written {ts}, not sealed",
        )  # fmt: skip

    def _since(self, ts: str, position: str | None) -> float:
        latest = self._began + self._limits.unsealed_for
        times = (seconds_of(ts), _stored_at(position))
        return max((at for at in times if _TIMED_FROM <= at <= latest), default=self._began)


def _stored_at(position: str | None) -> float:
    """When the memory stored a row, in seconds of its own clock.

    A position in Redis begins with it, in milliseconds; one in SQL ends in it, in microseconds.
    """
    try:
        major, minor = order_of(position or "")
    except ValueError:
        return 0.0
    return major / 1e3 if major / 1e3 >= _TIMED_FROM else minor / 1e6
