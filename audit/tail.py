"""Counts the rows that arrive: what the alarm on started minus completed is computed from.

Read is what the memory already orders: the entries of a tenant after the last position seen. So no
row is missed or counted twice, and nothing but positions and counts is kept. A look costs one short
reply a tenant, and stops when its time is up: what is left is counted by the next look, and the
tenants take turns.

A row falls into the five minutes by the moment it was counted, so a counter that is behind
(``skill_rows_behind``) shows the past. Rows from before the first look are not counted.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from audit import metrics
from audit.errors import MemoryDamagedError
from audit.memory.base import AuditMemory
from audit.row import COMPLETED, STARTED

#: Seconds over which started and completed rows are set against each other.
WINDOW: Final = 300.0
#: Seconds of rows that leave the window together: so much is kept, whatever the load.
BUCKET: Final = 10.0
#: Rows asked for at once.
PAGE: Final = 500

#: The kind stands first in a row: RFC 8785 orders the names.
_KIND: Final = re.compile(rb'\{"kind":"([a-z._]+)"')
_WEIGHTS: Final = {STARTED: 1, COMPLETED: -1}


class Tail:
    """One counter of rows.

    Args:
        memory: where the rows are.
        seconds: how long a look may take.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        memory: AuditMemory,
        *,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory = memory
        self._seconds = seconds
        self._clock = clock
        self._seen: dict[str, str | None] = {}
        self._turn = 0
        self._first = True
        # When a bucket began, and started minus completed of each tenant with rows in it.
        self._buckets: deque[tuple[float, Counter[str]]] = deque()

    def look(self) -> None:
        """Count what has arrived, and publish the balance of each tenant.

        Raises:
            MemoryDamagedError: what the memory keeps of a tenant is no rows; all others count.
            AuditMemoryError: the memory did not answer; nothing is lost, the next look goes on.
        """
        behind = False
        try:
            behind = self._count_all()
        finally:
            metrics.balance(self._balance(), behind=behind)

    # --- inside -------------------------------------------------------------------------------

    def _count_all(self) -> bool:
        """Count tenant after tenant; whether the time was up before all were done."""
        end = self._clock() + self._seconds
        tenants = self._meet(self._memory.tenants())
        turn, self._turn = self._turn, 0
        fault: MemoryDamagedError | None = None
        for number in range(len(tenants)):
            place = (turn + number) % len(tenants)
            more = False
            try:
                more = self._count_until(end, tenants[place])
            except MemoryDamagedError as error:
                fault = fault or error
            is_last = number + 1 == len(tenants)
            if (more or not is_last) and self._clock() >= end:
                self._turn = place + 1
                return True
        if fault is not None:
            raise fault
        return False

    def _count_until(self, end: float, tenant_id: str) -> bool:
        """Count a tenant's pages, one at least; whether there may be more."""
        more = self._count(tenant_id)
        while more and self._clock() < end:
            more = self._count(tenant_id)
        return more

    def _meet(self, tenants: list[str]) -> list[str]:
        """Begin behind what the first look finds; a tenant that comes later, at its start."""
        for tenant_id in tenants:
            if tenant_id not in self._seen:
                self._seen[tenant_id] = self._newest(tenant_id) if self._first else None
        self._first = False
        return tenants

    def _newest(self, tenant_id: str) -> str | None:
        try:
            return self._memory.last_position(tenant_id)
        except MemoryDamagedError:
            return None  # counting it tells

    def _count(self, tenant_id: str) -> bool:
        """Count one page; whether there may be more."""
        page = self._memory.entries(tenant_id, self._seen[tenant_id], PAGE)
        if not page:
            return False
        kinds = Counter(_kind(entry.stored) for entry in page if not entry.foreign)
        self._seen[tenant_id] = page[-1].position
        metrics.arrived(tenant_id, kinds)
        self._step(tenant_id, sum(_WEIGHTS.get(kind, 0) * n for kind, n in kinds.items()))
        return len(page) == PAGE

    def _step(self, tenant_id: str, change: int) -> None:
        now = self._clock()
        if not self._buckets or now - self._buckets[-1][0] >= BUCKET:
            self._buckets.append((now, Counter()))
        self._buckets[-1][1][tenant_id] += change

    def _balance(self) -> dict[str, int]:
        """Of each tenant that had rows in the window."""
        now = self._clock()
        while self._buckets and now - self._buckets[0][0] > WINDOW:
            self._buckets.popleft()
        total: Counter[str] = Counter()
        for _, bucket in self._buckets:
            total.update(bucket)
        return dict(total)


def _kind(stored: bytes) -> str:
    found = _KIND.match(stored)
    return found[1].decode() if found else "damaged"
