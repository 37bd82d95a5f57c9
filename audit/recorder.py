"""Puts rows on record: in the memory, or, when it does not take a completed row, in the spool.

This is where an outage is lived through (decisions 13 and 14):

* a started row goes to the memory or nowhere, and not even that while the spool is full;
* a completed row that the memory does not take is durable in the spool before the call returns;
* after one failure a breaker spares the next emits the timeout;
* an ending that is seen from outside stands in line behind what is spooled, so that the ending the
  body itself had spooled comes first (decision 10).
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from enum import StrEnum
from typing import Final

from audit import alarms
from audit.breaker import Breaker
from audit.errors import (
    AuditMemoryError,
    MemoryDamagedError,
    MemoryUnavailableError,
    RowRefusedError,
    SpoolError,
)
from audit.memory.base import AuditMemory, Hold, Once, Stored
from audit.memory.result import TaskResult
from audit.row import AuditRow
from audit.spool import Spool

logger: Final = logging.getLogger("audit")

#: Rows a process remembers that neither memory nor disk took.
UNKEPT: Final = 1000


class Kept(StrEnum):
    """Where a completed row is.

    ``SETTLED``: in no place, for it was seen from outside and the invocation was closed already.
    ``BEHIND``: in the spool, behind an ending of the same invocation that was seen from outside.
    """

    MEMORY = "memory"
    SETTLED = "settled"
    LATE = "late"
    SPOOL = "spool"
    BEHIND = "behind"


_KEPT: Final = {
    Stored.LATE: Kept.LATE,
    Stored.SETTLED: Kept.SETTLED,
    Stored.BARRED: Kept.SETTLED,
}


class Recorder:
    """Where the rows of one process go.

    Args:
        memory: the audit memory.
        spool: this host's spool; ``None`` where there is none, then what the memory does not take
            is an error of the memory.
        breaker: what this process knows of the memory's health.
    """

    def __init__(
        self, memory: AuditMemory, spool: Spool | None = None, breaker: Breaker | None = None
    ) -> None:
        self.memory = memory
        self._spool = spool
        self._breaker = breaker or Breaker()
        self._unkept: deque[AuditRow] = deque(maxlen=UNKEPT)

    @property
    def has_spool(self) -> bool:
        return self._spool is not None

    def start(self, row: AuditRow, once: Once | None = None, hold: Hold | None = None) -> Stored:
        """Make a started (or refused) row durable in the memory, or what ``once`` has for it.

        Raises:
            AuditMemoryError: it is not; the text says why.
        """
        if self._spool is not None and self._spool.full:
            raise MemoryUnavailableError(
                "this host's spool is full: nothing starts until the memory has taken what waits"
            )
        self._ask_breaker()
        return self._emit(row, once, hold)

    def deaths(self, tenant_id: str, message: str) -> int:
        """How often a worker died over ``message``.

        Raises:
            AuditMemoryError: the memory does not tell.
        """
        self._ask_breaker()
        try:
            return self.memory.deaths(tenant_id, message)
        except MemoryDamagedError:
            raise  # it answered: other tenants are not concerned
        except AuditMemoryError:
            self._breaker.failed()
            raise

    def complete(self, row: AuditRow, result: TaskResult | None = None) -> Kept:
        """Put a completed row on record; where that is the memory, ``result`` along with it.

        Raises:
            RowRefusedError: the memory refuses it for good; it is kept in the spool's quarantine.
            AuditMemoryError: the memory did not take it and there is no spool.
            SpoolError: the disk did not take it either.
        """
        if self._spool is not None and (waiting := self._spool.endings_of(row.request_id)):
            # It may be there itself, put by a try that a signal struck before it could tell.
            own = row.to_bytes()
            if own not in waiting:
                self._keep(row)
            return Kept.SPOOL if {*waiting} == {own} else Kept.BEHIND
        try:
            self._ask_breaker()
            stored = self._emit(row, result=result)
        except RowRefusedError:
            if self._spool is not None:
                self._spool.set_aside(row)
            raise
        except AuditMemoryError:  # out of reach, or replaced by a server that could lose rows
            if self._spool is None:
                raise
            self._keep(row)
            return Kept.SPOOL
        if stored is Stored.BARRED:
            alarms.barred(row)
        return _KEPT.get(stored, Kept.MEMORY)

    def settle(self, row: AuditRow) -> Kept:
        """Put an ending that was seen from outside on record; raises as :meth:`complete`."""
        if self._spool is not None and not self._spool.empty:
            self._keep(row)
            return Kept.SPOOL
        return self.complete(row)

    def keep(self, row: AuditRow) -> None:
        """Keep a completed row for later, without asking the memory now.

        Raises:
            SpoolError: the disk did not take it.
        """
        self._keep(row)

    # --- inside -------------------------------------------------------------------------------

    def _ask_breaker(self) -> None:
        if not self._breaker.lets_through():
            raise MemoryUnavailableError("the memory was out of reach a moment ago")

    def _keep(self, row: AuditRow) -> None:
        """Into the spool; what the disk does not take is tried again while this process lives."""
        if self._spool is None:
            return
        try:
            self._spool.keep(row)
        except SpoolError:
            self._unkept.append(row)
            raise

    def _retry_unkept(self) -> None:
        """The memory has just answered: rows that neither it nor the disk took go first."""
        for _ in range(len(self._unkept)):
            row = self._unkept.popleft()
            try:
                self.memory.emit(row)
            except RowRefusedError as error:
                logger.critical("a row is refused for good: %s", error, extra={"severity": "sev-1"})
            except BaseException:
                self._unkept.appendleft(row)
                raise

    def _emit(
        self,
        row: AuditRow,
        once: Once | None = None,
        hold: Hold | None = None,
        result: TaskResult | None = None,
    ) -> Stored:
        try:
            if result is not None:
                stored = self.memory.emit_with_result(row, result)
            else:
                stored = self.memory.emit(row, once, hold)
        except (RowRefusedError, MemoryDamagedError):
            self._breaker.succeeded()  # it answered: other tenants are not concerned
            raise
        except AuditMemoryError:
            self._breaker.failed()
            raise
        self._breaker.succeeded()
        if self._unkept:
            with suppress(AuditMemoryError):
                self._retry_unkept()
        return stored
