"""For tests: a memory in this process with faults, and clocks that pass only when told.

:class:`InMemory` keeps the whole contract of :class:`audit.memory.base.AuditMemory`, leases
included, and the contract suite runs over it too. Faults come in pairs: an emit that failed and was
not stored, and one that failed although it was stored. Whoever only tests the first kind has not
tested an outage.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice, takewhile

from audit.errors import MemoryUnavailableError, RowRefusedError
from audit.memory.base import (
    DEATHS,
    SETTLING,
    AuditMemory,
    Entry,
    Hold,
    Once,
    RowFilter,
    RowRefusal,
    Stored,
    as_replay,
    insist_on_started,
    message_of,
    order_of,
)
from audit.memory.entry import check_limit, check_swap
from audit.memory.listed import open_of, page_of
from audit.memory.newest import Cursor
from audit.memory.page import LOOK, Open, Page
from audit.row import COMPLETED, LATE, REFUSED, STARTED, AuditRow
from audit.system_rows import SYSTEM_KINDS


class Fault(StrEnum):
    """What the next emit does instead of succeeding."""

    NOT_STORED = "failed, not stored"
    STORED = "failed, but stored"


class FakeClock:
    """Seconds that pass only when told; as a monotonic clock, and as a wall clock.

    Args:
        start: what it shows at first.
        step: seconds that each reading of the monotonic clock costs.
    """

    def __init__(self, start: float = 1_000.0, *, step: float = 0.0) -> None:
        self.seconds = start
        self._step = step

    def __call__(self) -> float:
        self.seconds += self._step
        return self.seconds

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class _Requests:
    """What is known of one request_id: the rows of its invocation, or a bar against it."""

    started: AuditRow | None = None
    completed: AuditRow | None = None
    refused: AuditRow | None = None
    late: list[AuditRow] = field(default_factory=list)
    barred: bool = False
    replayed: bool = False


class InMemory(AuditMemory):
    """A memory in this process.

    Args:
        clock: seconds, for leases and tokens.
        now: the wall clock, for when rows are stored.

    Attributes:
        down: while true, every call fails and stores nothing.
        faults: what the next emits do; see :class:`Fault`.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.down = False
        self.faults: deque[Fault | None] = deque()
        self._clock = clock
        self._now = now
        self._stored_at: dict[str, datetime] = {}
        self._one_step = threading.Lock()
        self._rows: list[AuditRow] = []
        self._gone: list[AuditRow] = []
        self._count = 0
        self._last: dict[str, str] = {}
        self._sealed: dict[str, bytes] = {}
        self._sealed_positions: dict[str, str] = {}
        self._trimmed: dict[str, str] = {}
        self._requests: dict[tuple[str, str], _Requests] = {}
        self._leases: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._born: dict[str, float] = {}
        self._deaths: dict[tuple[str, str], int] = {}
        self._leaders: dict[str, tuple[str, float]] = {}
        self._tokens: dict[tuple[str, str], float] = {}
        self._ticks: dict[tuple[str, str], tuple[str, float]] = {}

    @property
    def name(self) -> str:
        return f"in-memory://{id(self)}"

    def check(self) -> None:
        self._answer()

    def close(self) -> None:
        """Nothing is open."""

    # --- rows ---------------------------------------------------------------------------------

    def emit(self, row: AuditRow, once: Once | None = None, hold: Hold | None = None) -> Stored:
        fault = self.faults.popleft() if self.faults else None
        self._answer()
        if fault is Fault.NOT_STORED:
            raise MemoryUnavailableError("a fault: failed, not stored", maybe_stored=True)
        with self._one_step:
            stored = self._store(row, once, hold)
        if fault is Fault.STORED:
            raise MemoryUnavailableError("a fault: failed, but stored", maybe_stored=True)
        return stored

    def running(self, tenant_id: str | None = None) -> Iterator[AuditRow]:
        self._answer()
        still_open = {
            (request.started.tenant_id, request.started.request_id)
            for request in list(self._requests.values())
            if request.started is not None and request.completed is None
        }
        wanted = self.select(RowFilter(kind=STARTED, tenant_id=tenant_id))
        return (row for row in wanted if (row.tenant_id, row.request_id) in still_open)

    def select(self, wanted: RowFilter) -> Iterator[AuditRow]:
        self._answer()
        return iter([row for row in self._rows if wanted.matches(row)])

    def follow(self, wanted: RowFilter, *, poll: float = 0.2) -> Iterator[AuditRow | None]:
        self._answer()
        return self._follow(wanted, self._count, poll)

    def _follow(self, wanted: RowFilter, seen: int, poll: float) -> Iterator[AuditRow | None]:
        while True:
            self._answer()
            arrived = self._after(f"{seen}-0")
            seen += len(arrived)
            yield from filter(wanted.matches, arrived)
            if not arrived:
                yield None
                time.sleep(poll)

    def page(
        self,
        wanted: RowFilter,
        *,
        most: int = 100,
        look: int = LOOK,
        cursor: str | None = None,
        without: Collection[str] = (),
    ) -> Page:
        self._answer()
        rows, gone = (
            [row for row in of if row.tenant_id not in without] for of in (self._rows, self._gone)
        )
        return page_of(rows, gone, self._stored_at, wanted, most=most, look=look, cursor=cursor)

    def cursor_at(self, moment: datetime) -> str:
        stored = [order_of(at)[0] for at, when in self._stored_at.items() if when <= moment]
        return str(Cursor.above(max(stored, default=0)))

    def open_page(self, tenant_id: str | None, most: int, *, without: Collection[str] = ()) -> Open:
        rows = [row for row in self.running(tenant_id) if row.tenant_id not in without]
        return open_of(rows, most)

    def stored_at(self, row: AuditRow) -> datetime:
        if row.position is None:
            raise ValueError("this row comes from no memory")
        return self._stored_at[row.position]

    # --- for the ledger -----------------------------------------------------------------------

    def tenants(self) -> list[str]:
        self._answer()
        return sorted(self._last)

    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        self._answer()
        check_limit(limit)
        found = (row for row in self._after(after or "0-0") if row.tenant_id == tenant_id)
        return [Entry(str(row.position), row.to_bytes()) for row in islice(found, limit)]

    def last_position(self, tenant_id: str) -> str | None:
        self._answer()
        return self._last.get(tenant_id)

    def sealed(self, tenant_id: str) -> bytes | None:
        self._answer()
        with self._one_step:
            return self._sealed.get(tenant_id)

    def sealed_position(self, tenant_id: str) -> str | None:
        self._answer()
        with self._one_step:
            return self._sealed_positions.get(tenant_id)

    def swap_sealed(
        self, tenant_id: str, old: bytes | None, new: bytes, position: str | None = None
    ) -> bool:
        self._answer()
        check_swap(new, position)
        with self._one_step:
            if self._sealed.get(tenant_id) != old:
                return False
            self._sealed[tenant_id] = new
            if position is not None:
                self._sealed_positions[tenant_id] = position
            return True

    def trim(self, tenant_id: str, before: str) -> int:
        self._answer()
        with self._one_step:
            end = order_of(before)
            older = [r for r in self._rows if r.tenant_id == tenant_id and _order(r) < end]
            gone = {row.position for row in takewhile(self._is_closed, older)}
            self._gone += [row for row in self._rows if row.position in gone]
            self._rows = [row for row in self._rows if row.position not in gone]
            if gone:
                major, minor = max(map(order_of, filter(None, gone)))
                self._trimmed[tenant_id] = f"{major}-{minor + 1}"
            return len(gone)

    def trimmed(self, tenant_id: str) -> str | None:
        self._answer()
        return self._trimmed.get(tenant_id)

    # --- leases -------------------------------------------------------------------------------

    def hold_lease(self, worker: str, seconds: float) -> None:
        self._answer()
        self._leases[worker] = self._clock() + seconds
        self._seen[worker] = self._clock()

    def drop_lease(self, worker: str) -> None:
        self._answer()
        self._leases.pop(worker, None)

    def leases(self, workers: Collection[str]) -> set[str]:
        self._answer()
        return {w for w in workers if self._leases.get(w, -1.0) > self._clock()}

    def lived_ms(self, started: AuditRow, worker: str) -> int:
        self._answer()
        born = self._born[started.request_id]
        return max(0, round((self._seen.get(worker, born) - born) * 1000))

    def lead(self, role: str, holder: str, seconds: float) -> bool:
        self._answer()
        with self._one_step:
            leader, until = self._leaders.get(role, ("", -1.0))
            if leader != holder and until > self._clock():
                return False
            self._leaders[role] = (holder, self._clock() + seconds)
            return True

    def give_up(self, role: str, holder: str) -> None:
        self._answer()
        if self._leaders.get(role, ("", 0.0))[0] == holder:
            del self._leaders[role]

    def is_led(self, role: str) -> bool:
        self._answer()
        return self._leaders.get(role, ("", -1.0))[1] > self._clock()

    def store_time(self) -> datetime:
        self._answer()
        return self._now()

    def deaths(self, tenant_id: str, message: str) -> int:
        self._answer()
        return self._deaths.get((tenant_id, message), 0)

    # --- inside -------------------------------------------------------------------------------

    def _answer(self) -> None:
        if self.down:
            raise MemoryUnavailableError("the memory is down")

    def _after(self, position: str) -> list[AuditRow]:
        rows = self._rows  # trimming puts another list in its place
        return rows[bisect_right(rows, order_of(position), key=_order) :]

    def _is_closed(self, row: AuditRow) -> bool:
        request = self._requests[row.tenant_id, row.request_id]
        return request.started is None or request.completed is not None

    def _store(self, row: AuditRow, once: Once | None, hold: Hold | None) -> Stored:
        if once is not None or hold is not None:
            insist_on_started(row)
        if not {"tenant_id", "request_id"} <= row.payload.keys():
            raise RowRefusedError(RowRefusal.NO_INVOCATION.value, "")
        request = self._requests.setdefault((row.tenant_id, row.request_id), _Requests())
        if row.kind == STARTED:
            return self._start(request, row, once, hold)
        if row.kind == REFUSED or row.kind in SYSTEM_KINDS:
            return self._refuse(request, row)
        if row.kind != COMPLETED:
            raise RowRefusedError(RowRefusal.NO_INVOCATION.value, row.request_id)
        return self._complete(request, row)

    def _start(
        self, request: _Requests, row: AuditRow, once: Once | None, hold: Hold | None
    ) -> Stored:
        if request.barred:
            raise RowRefusedError(RowRefusal.TOMBSTONE.value, row.request_id)
        if request.refused is not None:
            raise RowRefusedError(RowRefusal.WAS_REFUSED.value, row.request_id)
        if request.started is None:
            self._take_tick(row, hold)
            return self._begin(request, row, once)
        if once is not None and row != request.started == as_replay(row):
            return Stored.REPLAYED
        return self._repeated(request.started, row, RowRefusal.SECOND_STARTED_ROW)

    def _begin(self, request: _Requests, row: AuditRow, once: Once | None) -> Stored:
        if once is not None and self._seen_before(row.tenant_id, once):
            row, request.replayed = as_replay(row), True
        request.started = self._append(row)
        self._born[row.request_id] = self._clock()
        return Stored.REPLAYED if request.replayed else Stored.NEW

    def _take_tick(self, row: AuditRow, hold: Hold | None) -> None:
        if hold is None:
            return
        now, key = self._clock(), (row.tenant_id, hold.token)
        holder, until = self._ticks.get(key, (hold.holder, now))
        if holder != hold.holder and until > now:
            raise RowRefusedError(RowRefusal.TICK_TAKEN.value, row.request_id)
        self._ticks[key] = (hold.holder, now + hold.seconds)

    def _seen_before(self, tenant_id: str, once: Once) -> bool:
        now, key = self._clock(), (tenant_id, once.token)
        until = self._tokens.get(key, now)
        self._tokens[key] = max(until, now + once.seconds)
        return until > now

    def _refuse(self, request: _Requests, row: AuditRow) -> Stored:
        if request.started is not None or request.barred:
            raise RowRefusedError(RowRefusal.SECOND_STARTED_ROW.value, row.request_id)
        if request.refused is None:
            request.refused = self._append(row)
            return Stored.NEW
        return self._repeated(request.refused, row, RowRefusal.WAS_REFUSED)

    def _complete(self, request: _Requests, row: AuditRow) -> Stored:
        settling = row.meta.get("reason") in SETTLING
        row = as_replay(row) if request.replayed else row
        if request.refused is not None:
            if settling:
                return Stored.SETTLED
            raise RowRefusedError(RowRefusal.WAS_REFUSED.value, row.request_id)
        if request.started is None:
            if not settling:
                word = RowRefusal.TOMBSTONE if request.barred else RowRefusal.NO_STARTED_ROW
                raise RowRefusedError(word.value, row.request_id)
            request.barred = True
            return Stored.BARRED
        if request.completed is None:
            request.completed = self._append(row)
            self._count_death(row)
            return Stored.NEW
        if row.to_bytes() == request.completed.to_bytes():
            return Stored.REPEATED
        return Stored.SETTLED if settling else self._late(request, row)

    def _late(self, request: _Requests, row: AuditRow) -> Stored:
        late = AuditRow(kind=LATE, ts=row.ts, payload=row.payload, meta=row.meta)
        if all(late.to_bytes() != other.to_bytes() for other in request.late):
            request.late.append(self._append(late))
        return Stored.LATE

    def _count_death(self, row: AuditRow) -> None:
        if row.meta.get("reason") in DEATHS:
            key = (row.tenant_id, message_of(row))
            self._deaths[key] = self._deaths.get(key, 0) + 1

    def _append(self, row: AuditRow) -> AuditRow:
        self._count += 1
        stored = replace(AuditRow.from_bytes(row.to_bytes()), position=f"{self._count}-0")
        self._stored_at[str(stored.position)] = self._now()
        self._rows.append(stored)
        self._last[row.tenant_id] = str(stored.position)
        return stored

    @staticmethod
    def _repeated(stored: AuditRow, row: AuditRow, refusal: RowRefusal) -> Stored:
        if stored.to_bytes() == row.to_bytes():
            return Stored.REPEATED
        raise RowRefusedError(refusal.value, row.request_id)


def _order(row: AuditRow) -> tuple[int, int]:
    return order_of(str(row.position))
