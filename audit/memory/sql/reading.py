"""What is read from a SQL memory, the same for every database, in SQLAlchemy's Core.

Rows have one order over all tenants: by turn, then by the server's time. Everything is read in
chunks from a place in that order, by an index, so no query holds anything open between two chunks,
and none looks at more rows than a chunk has. The time of rows grows with their turns, but for a
clock that was set back: by more than an hour, and a range of time may lose rows of that hour.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    func,
    literal,
    select,
    tuple_,
    union,
)

from audit.errors import MemoryDamagedError
from audit.memory.base import Entry, RowFilter, order_of
from audit.memory.entry import check_limit
from audit.memory.newest import CHUNK, Cursor, Found, check_bounds, read_page, row_of
from audit.memory.page import Damaged, Open, Page
from audit.memory.sql.conditions import IS_OPEN, at, by_index, floor_of, not_in, stored_where
from audit.memory.sql.tables import (
    DEATHS,
    INVOCATIONS,
    LEADERS,
    LEASES,
    LOGS,
    ROWS,
    microseconds,
    moment_of,
    read,
    sound,
    stored_in,
    written,
)
from audit.row import AuditRow

#: Rows fetched in one query.
PAGE: Final = 1_000

_PLACE: Final = tuple_(ROWS.c.turn, ROWS.c.minor)
_NEWEST: Final = (ROWS.c.turn.desc(), ROWS.c.minor.desc())
_OLDEST: Final = (ROWS.c.turn, ROWS.c.minor)
_ENTRY: Final = (ROWS.c.turn, ROWS.c.minor, ROWS.c.tenant_id, ROWS.c.stored)

#: Runs one query and gives all that it finds.
Ask = Callable[[Any], Sequence[Any]]


class Reading:
    """The reading part of a memory.

    Args:
        ask: runs a query in a transaction of its own; translates errors.
        settled: what is true of rows before which none can come any more.
        now: the database's time in microseconds.
    """

    def __init__(
        self, ask: Ask, settled: ColumnElement[bool] | None, now: ColumnElement[int]
    ) -> None:
        self._ask = ask
        self._settled = settled
        self._now = now

    # --- rows ---------------------------------------------------------------------------------

    def running(self, tenant_id: str | None) -> Iterator[AuditRow]:
        return sound(self._running(tenant_id))

    def _running(self, tenant_id: str | None) -> Iterator[Any]:
        seen: tuple[int, int] | None = None
        while True:
            found = self._ask(self._open(tenant_id, seen).limit(PAGE))
            yield from found
            if len(found) < PAGE:
                return
            seen = (found[-1].turn, found[-1].minor)

    def select(self, wanted: RowFilter) -> Iterator[AuditRow]:
        entry = (ROWS.c.turn, ROWS.c.minor, ROWS.c.tenant_id, stored_where(wanted))
        query = select(*entry).where(*by_index(wanted)).order_by(*_OLDEST).limit(PAGE)
        return filter(wanted.matches, sound(self._walk(query, floor_of(wanted))))

    def _walk(self, query: Select[Any], floor: int) -> Iterator[Any]:
        if floor > 0:
            query = query.where(ROWS.c.turn >= self._first_turn(floor))
        found = self._ask(query)
        while found:
            yield from (line for line in found if line.stored is not None)
            if len(found) < PAGE:
                return
            found = self._ask(query.where(_behind(found[-1])))

    def arrived(self, wanted: RowFilter, seen: tuple[int, int]) -> Sequence[Any]:
        """The next lines of a tenant, or of all, behind a place; not yet filtered."""
        query = select(*_ENTRY).where(at(*seen) < _PLACE).order_by(*_OLDEST).limit(PAGE)
        if wanted.tenant_id is not None:
            query = query.where(ROWS.c.tenant_id == written(wanted.tenant_id))
        return self._ask(self._only_settled(query))

    def newest_place(
        self, tenant_id: str | None, *, settled: bool = True
    ) -> tuple[int, int] | None:
        """Where the newest row stands, of a tenant or of all, among the settled ones or of all."""
        query = select(ROWS.c.turn, ROWS.c.minor).order_by(*_NEWEST).limit(1)
        if tenant_id is not None:
            query = query.where(ROWS.c.tenant_id == written(tenant_id))
        found = self._ask(self._only_settled(query) if settled else query)
        return (found[0].turn, found[0].minor) if found else None

    # --- pages --------------------------------------------------------------------------------

    def page(
        self,
        wanted: RowFilter,
        most: int,
        look: int,
        cursor: str | None,
        without: Collection[str],
    ) -> Page:
        check_bounds(most, look)
        begin = None if cursor is None else Cursor.parse(cursor)
        backward = _Backward(self._ask, wanted, begin, look, without)
        page = read_page(
            backward, wanted, most=most, look=look, clock=time_of, ended=lambda: backward.ended
        )
        return page if page.next else replace(page, trimmed=self._was_trimmed(wanted, without))

    def open_page(self, tenant_id: str | None, most: int, without: Collection[str]) -> Open:
        check_bounds(most, 1)
        read_at_all = not_in(INVOCATIONS.c.tenant_id, without)
        counted = select(func.count()).select_from(INVOCATIONS).where(IS_OPEN, *read_at_all)
        if tenant_id is not None:
            counted = counted.where(INVOCATIONS.c.tenant_id == written(tenant_id))
        oldest = self._open(tenant_id, None).where(*read_at_all).limit(most)
        entries = [_entry(found) for found in self._ask(oldest)]
        rows = [row_of(entry, whose) for whose, entry in entries]
        return Open(
            rows=tuple(row for row in rows if row is not None),
            total=self._ask(counted)[0][0],
            damaged=tuple(
                Damaged(whose, entry.position)
                for (whose, entry), row in zip(entries, rows, strict=True)
                if row is None
            ),
        )

    def cursor_at(self, moment: datetime) -> str:
        return str(Cursor.above(self._last_turn(microseconds(moment))))

    def _first_turn(self, floor: int) -> int:
        """The first one that can have a row stored at ``floor`` or later."""
        return self._last_turn(floor - 1)

    def _last_turn(self, by: int) -> int:
        """The last one that has a row stored by then. Found by halves."""
        # Two queries in one: SQLite finds but one end of an index without walking through it.
        ends = select(*(select(end(ROWS.c.turn)).scalar_subquery() for end in (func.min, func.max)))
        low, high = (end or 0 for end in self._ask(ends)[0])
        while low <= high:
            middle = (low + high) // 2
            query = select(ROWS.c.turn, ROWS.c.minor).where(ROWS.c.turn >= middle)
            first = self._ask(query.order_by(*_OLDEST).limit(1))
            if first and first[0].minor <= by:
                low = first[0].turn + 1
            else:
                high = middle - 1
        return low - 1

    # --- for the ledger -----------------------------------------------------------------------

    def tenants(self) -> list[str]:
        """By steps from tenant to tenant in the index, so that the history does not matter."""
        first = select(func.min(ROWS.c.tenant_id).label("tenant_id")).cte("steps", recursive=True)
        following = (
            select(func.min(ROWS.c.tenant_id))
            .where(ROWS.c.tenant_id > first.c.tenant_id)
            .scalar_subquery()
        )
        steps = first.union_all(select(following).where(first.c.tenant_id.is_not(None)))
        trimmed = select(LOGS.c.tenant_id).where(LOGS.c.last_position.is_not(None))
        query = union(select(steps.c.tenant_id).where(steps.c.tenant_id.is_not(None)), trimmed)
        return sorted(read(found[0]) for found in self._ask(query))

    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        check_limit(limit)
        query = select(*_ENTRY).where(ROWS.c.tenant_id == written(tenant_id)).order_by(*_OLDEST)
        if after is not None:
            query = query.where(at(*order_of(after)) < _PLACE)
        return [_entry(found)[1] for found in self._ask(self._only_settled(query).limit(limit))]

    def last_position(self, tenant_id: str, *, settled: bool = True) -> str | None:
        newest = self.newest_place(tenant_id, settled=settled)
        if newest is not None:
            return f"{newest[0]}-{newest[1]}"
        last: str | None = self.of_log(tenant_id).last_position
        return None if last is None else checked(written(tenant_id), last)

    def of_log(self, tenant_id: str) -> Any:
        """What is known of a log; all of it ``None`` for one that is not known."""
        found = self._ask(select(LOGS).where(LOGS.c.tenant_id == written(tenant_id)))
        return found[0] if found else _NOTHING

    # --- leases -------------------------------------------------------------------------------

    def held(self, workers: Sequence[str]) -> set[str]:
        names = {written(worker): worker for worker in workers}
        query = select(LEASES.c.worker).where(
            LEASES.c.worker.in_(list(names)), LEASES.c.until > self._now
        )
        return {names[found[0]] for found in self._ask(query)} if names else set()

    def seen(self, worker: str) -> int | None:
        """When a worker last renewed its lease, in microseconds."""
        found = self._ask(select(LEASES.c.seen).where(LEASES.c.worker == written(worker)))
        return found[0][0] if found else None

    def is_led(self, role: str) -> bool:
        led = and_(LEADERS.c.role == written(role), LEADERS.c.until > self._now)
        return bool(self._ask(select(literal(1)).select_from(LEADERS).where(led)))

    def deaths(self, tenant_id: str, message: str) -> int:
        of_it = and_(DEATHS.c.tenant_id == written(tenant_id), DEATHS.c.message == written(message))
        found = self._ask(select(DEATHS.c.deaths).where(of_it))
        return int(found[0][0]) if found else 0

    def now(self) -> int:
        return int(self._ask(select(self._now))[0][0])

    # --- inside -------------------------------------------------------------------------------

    def _only_settled(self, query: Select[Any]) -> Select[Any]:
        return query if self._settled is None else query.where(self._settled)

    def _open(self, tenant_id: str | None, seen: tuple[int, int] | None) -> Select[Any]:
        """Started rows of open invocations, oldest first."""
        of_it = and_(INVOCATIONS.c.turn == ROWS.c.turn, INVOCATIONS.c.minor == ROWS.c.minor)
        begun = (INVOCATIONS.c.turn, INVOCATIONS.c.minor, INVOCATIONS.c.tenant_id)
        query = (
            select(*begun, ROWS.c.stored)  # where somebody removed the row there is none
            .outerjoin_from(INVOCATIONS, ROWS, of_it)
            .where(IS_OPEN)
            .order_by(INVOCATIONS.c.turn, INVOCATIONS.c.minor)
        )
        if tenant_id is not None:
            query = query.where(INVOCATIONS.c.tenant_id == written(tenant_id))
        if seen is not None:
            query = query.where(tuple_(INVOCATIONS.c.turn, INVOCATIONS.c.minor) > at(*seen))
        return query

    def _was_trimmed(self, wanted: RowFilter, without: Collection[str]) -> bool:
        known = (LOGS.c.trimmed.is_not(None), *not_in(LOGS.c.tenant_id, without))
        query = select(LOGS.c.trimmed, LOGS.c.tenant_id).where(*known)
        if wanted.tenant_id is not None:
            query = query.where(LOGS.c.tenant_id == written(wanted.tenant_id))
        floor = floor_of(wanted)
        marks = [order_of(checked(found.tenant_id, found.trimmed))[1] for found in self._ask(query)]
        if wanted.request_id is not None and marks:
            return self._lacks(wanted)
        return any(mark > floor for mark in marks)

    def _lacks(self, wanted: RowFilter) -> bool:
        """Whether an invocation has started whose started row is gone."""
        of_it = and_(INVOCATIONS.c.turn == ROWS.c.turn, INVOCATIONS.c.minor == ROWS.c.minor)
        query = (
            select(INVOCATIONS.c.turn)
            .outerjoin_from(INVOCATIONS, ROWS, of_it)
            .where(
                INVOCATIONS.c.request_id == written(str(wanted.request_id)),
                INVOCATIONS.c.turn.is_not(None),
                ROWS.c.turn.is_(None),
            )
        )
        if wanted.tenant_id is not None:
            query = query.where(INVOCATIONS.c.tenant_id == written(wanted.tenant_id))
        return bool(self._ask(query))


class _Backward:
    """Entries of a tenant, of an invocation, or of all, newest first, from a cursor.

    Args:
        ask: runs a query.
        wanted: its tenant, invocation and trace are looked for by an index.
        begin: where; ``None`` with the newest.
        look: how many at most.
        without: tenants that are left out.
    """

    def __init__(
        self,
        ask: Ask,
        wanted: RowFilter,
        begin: Cursor | None,
        look: int,
        without: Collection[str],
    ) -> None:
        self._ask = ask
        looked_at = (*by_index(wanted), *not_in(ROWS.c.tenant_id, without))
        self._query = select(*_ENTRY).where(*looked_at).order_by(*_NEWEST)
        self._floor = floor_of(wanted)
        self._left = look
        self._below = None if begin is None else (begin.major, begin.minor)
        self._whole = False
        self._waiting = 0

    @property
    def ended(self) -> bool:
        return self._whole and not self._waiting

    def __iter__(self) -> Iterator[Found]:
        while not self._whole and self._left > 0:
            count = min(CHUNK, self._left)
            found = self._fetch(count + 1)
            self._whole = len(found) <= count
            self._waiting = len(found[:count])
            self._left -= self._waiting
            for line in found[:count]:
                if line.minor < self._floor:
                    self._whole, self._waiting = True, 0
                    return
                self._waiting -= 1
                self._below = (line.turn, line.minor)
                yield _entry(line)

    def _fetch(self, count: int) -> Sequence[Any]:
        query = self._query.limit(count)
        if self._below is not None:
            query = query.where(at(*self._below) > _PLACE)
        return self._ask(query)


class _Nothing:
    sealed = sealed_position = trimmed = last_position = None


_NOTHING: Final = _Nothing()


def checked(tenant_id: str, position: str) -> str:
    """A stored position.

    Raises:
        MemoryDamagedError: that is none.
    """
    try:
        order_of(position)
    except ValueError:
        whose = read(tenant_id)
        raise MemoryDamagedError(
            f"the memory answers, but a position in audit_logs of tenant {whose} is none: somebody"
            " else has written it, put it back from a backup",
            tenant_id=whose,
        ) from None
    return position


def time_of(position: str) -> datetime:
    """When the row at a position was stored."""
    return moment_of(order_of(position)[1])


def _behind(found: Any) -> Any:
    return at(found.turn, found.minor) < _PLACE


def _entry(found: Any) -> Found:
    position = f"{found.turn}-{found.minor}"
    return read(found.tenant_id), Entry(position, stored_in(found), foreign=found.stored is None)
