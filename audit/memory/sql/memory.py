"""What the memories on SQL databases have in common: everything but how a row gets in.

A database of its own kind says how it is reached, how it stores a row, and how it swaps, trims and
leases; reading is the same for all (:mod:`audit.memory.sql.reading`).
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement

from audit.errors import AuditMemoryError
from audit.memory.action import verdict_of
from audit.memory.base import (
    AuditMemory,
    Entry,
    Hold,
    Once,
    RowFilter,
    Stored,
    order_of,
)
from audit.memory.page import LOOK, Open, Page
from audit.memory.sql.reading import Reading, checked, time_of
from audit.memory.sql.tables import moment_of, sound, written
from audit.row import AuditRow

#: Rows that one step trims: writers wait for that long at most, where they wait at all.
TRIM_PAGE: Final = 1_000
#: Tokens and ticks that one step forgets, and such steps at each renewal of a lease.
FORGET_PAGE: Final = 1_000
FORGET_PAGES: Final = 10
#: Microseconds for which the last sign of life of a worker is kept, 30 days: as long as in Redis.
SEEN_FOR: Final = 30 * 24 * 3_600_000_000
_GREATEST: Final = 2**63 - 1


class SqlMemory(AuditMemory):
    """An audit memory in a SQL database.

    Args:
        settled: what is true of rows before which none can come any more; ``None``: of all.
        now: the database's time in microseconds.
        timeout: seconds any call may take in all.
        pause: waits so many seconds.
    """

    def __init__(
        self,
        settled: ColumnElement[bool] | None,
        now: ColumnElement[int],
        timeout: float,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timeout = timeout
        self._pause = pause
        self._reading = Reading(self._ask, settled, now)

    @abstractmethod
    def _ask(self, query: Any) -> Sequence[Any]:
        """All that a query of SQLAlchemy's finds, within the deadline; errors are ours."""

    @abstractmethod
    def _store(self, row: AuditRow, once: Once | None, hold: Hold | None) -> str:
        """Store a row in one transaction; the word that says what became of it."""

    @abstractmethod
    def _trim_page(self, tenant_id: str, before: tuple[int, int], most: int) -> int:
        """Trim at most so many rows in one step; how many went."""

    @abstractmethod
    def _renew(self, worker: str, seconds: float, deadline: float) -> None:
        """Take or renew a lease."""

    @abstractmethod
    def _forget(self, most: int, deadline: float) -> int:
        """Remove what has run out, at most so many of a kind in one step; how many of one kind."""

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout

    def emit(self, row: AuditRow, once: Once | None = None, hold: Hold | None = None) -> Stored:
        return verdict_of(self._store(row, once, hold), row)

    def hold_lease(self, worker: str, seconds: float) -> None:
        """Whoever starts invocations also sweeps up behind them, in the time that is left."""
        deadline = self._deadline()
        self._renew(worker, seconds, deadline)
        with suppress(AuditMemoryError):  # the lease is held; the next renewal sweeps again
            for _ in range(FORGET_PAGES):
                if (
                    time.monotonic() >= deadline
                    or self._forget(FORGET_PAGE, deadline) < FORGET_PAGE
                ):
                    return

    # --- reading ------------------------------------------------------------------------------

    def running(self, tenant_id: str | None = None) -> Iterator[AuditRow]:
        return self._reading.running(tenant_id)

    def select(self, wanted: RowFilter) -> Iterator[AuditRow]:
        return self._reading.select(wanted)

    def follow(self, wanted: RowFilter, *, poll: float = 0.2) -> Iterator[AuditRow | None]:
        return self._follow(wanted, self._reading.newest_place(None) or (0, 0), poll)

    def _follow(
        self, wanted: RowFilter, seen: tuple[int, int], poll: float
    ) -> Iterator[AuditRow | None]:
        while True:
            arrived = self._reading.arrived(wanted, seen)
            yield from filter(wanted.matches, sound(arrived))
            if arrived:
                seen = (arrived[-1].turn, arrived[-1].minor)
            else:
                yield None
                self._pause(poll)

    def page(
        self,
        wanted: RowFilter,
        *,
        most: int = 100,
        look: int = LOOK,
        cursor: str | None = None,
        without: Collection[str] = (),
    ) -> Page:
        return self._reading.page(wanted, most, look, cursor, without)

    def cursor_at(self, moment: datetime) -> str:
        return self._reading.cursor_at(moment)

    def open_page(self, tenant_id: str | None, most: int, *, without: Collection[str] = ()) -> Open:
        return self._reading.open_page(tenant_id, most, without)

    def stored_at(self, row: AuditRow) -> datetime:
        if row.position is None:
            raise ValueError("this row comes from no memory")
        return time_of(row.position)

    def leases(self, workers: Collection[str]) -> set[str]:
        return self._reading.held(list(workers))

    def lived_ms(self, started: AuditRow, worker: str) -> int:
        seen = self._reading.seen(worker)
        born = order_of(str(started.position))[1]
        return 0 if seen is None else max(0, (seen - born) // 1000)

    def deaths(self, tenant_id: str, message: str) -> int:
        return self._reading.deaths(tenant_id, message)

    def is_led(self, role: str) -> bool:
        return self._reading.is_led(role)

    def store_time(self) -> datetime:
        return moment_of(self._reading.now())

    # --- for the ledger -----------------------------------------------------------------------

    def tenants(self) -> list[str]:
        return self._reading.tenants()

    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        return self._reading.entries(tenant_id, after, limit)

    def last_position(self, tenant_id: str) -> str | None:
        return self._reading.last_position(tenant_id)

    def newest_position(self, tenant_id: str) -> str | None:
        return self._reading.last_position(tenant_id, settled=False)

    def sealed(self, tenant_id: str) -> bytes | None:
        note = self._reading.of_log(tenant_id).sealed
        return None if note is None else bytes(note)

    def sealed_position(self, tenant_id: str) -> str | None:
        position: str | None = self._reading.of_log(tenant_id).sealed_position
        return position

    def trim(self, tenant_id: str, before: str) -> int:
        turn, minor = order_of(before)
        end, total = (min(turn, _GREATEST), min(minor, _GREATEST)), 0
        while True:
            removed = self._trim_page(tenant_id, end, TRIM_PAGE)
            total += removed
            if removed < TRIM_PAGE:
                return total

    def trimmed(self, tenant_id: str) -> str | None:
        position: str | None = self._reading.of_log(tenant_id).trimmed
        return None if position is None else checked(written(tenant_id), position)
