"""The memory on Redis (7.0 and newer) or Valkey (8 and newer): one stream per tenant.

The keys stand in ``redis_keys.py``. An emit is one script call and one round trip. Whenever a
connection has not named a row's tenant within the last second, the emit carries the name along in
the same round trip, before the row. So no row is ever unreachable, and a name that somebody took
out of the list of tenants comes back with the next row that is emitted a second later.

Every new connection first asks the server what it is, so a server that was replaced or
reconfigured behind the same address is judged again before it gets a row (``connection.py``).
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import resources
from typing import Any, Final

import redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from audit.errors import (
    AuditMemoryError,
    MemoryUnavailableError,
    MemoryUrlError,
)
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
from audit.memory.connection import Command, Line, Lines
from audit.memory.newest import LONGEST_NAME, Cursor, moment_of
from audit.memory.page import LOOK, Open, Page
from audit.memory.redis_form import (
    LAST_PLACE,
    insist,
    number_in,
    places_in,
    refuse,
    row_in,
    started_in,
)
from audit.memory.redis_keys import Keys, command_of
from audit.memory.redis_lease import RedisLeases
from audit.memory.redis_page import RedisPages, first_position
from audit.memory.redis_seal import RedisSeal
from audit.memory.redis_trace import RedisTraces, Traced
from audit.memory.redis_url import parse_url, shown
from audit.row import AuditRow

#: Rows fetched in one read; bounds the memory a query needs.
PAGE: Final = 500
#: Pauses in seconds before an emit is tried again; an emit is idempotent.
PAUSES: Final = (0.02, 0.1)
#: Seconds until a connection names a tenant again, which is a command more in the round trip.
NAMED_FOR: Final = 1.0
_SCRIPT: Final = resources.files("audit.memory").joinpath("append.lua").read_text(encoding="utf-8")


@dataclass(slots=True)
class Doubt:
    """Whether a row may have been stored by a try that failed."""

    maybe_stored: bool = False


class RedisMemory(AuditMemory):
    """An audit memory on a Redis or Valkey server.

    Args:
        url: ``redis://``, ``rediss://`` or ``redis+socket://``, with these parameters of ours
            beside redis-py's own: ``durability`` (``server``: as the server is configured,
            ``everysec`` or ``always``: the server must have an AOF with at least that fsync) and
            ``prefix`` of the keys (``audit``), and ``trace_days`` (30) for which an invocation is
            found by its trace at once; 0 keeps no lists of traces.
        timeout: seconds any call may take in all.
        clock: monotonic seconds.
        pause: waits so many seconds.

    Raises:
        MemoryUrlError: the URL has a part that cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timeout = timeout
        self._clock = clock
        self._pause = pause
        parsed = parse_url(url)
        self._url, self._durability, self._prefix = parsed.url, parsed.durability, parsed.prefix
        self._trace_seconds = parsed.trace_seconds
        try:
            self._lines = Lines(
                self._url, script=_SCRIPT, durability=self._durability, timeout=timeout, clock=clock
            )
        except (ValueError, TypeError, RedisError) as error:
            raise MemoryUrlError(f"memory URL {shown(self._url)}: {error}") from None

        self._leases = RedisLeases(self._ask, self._prefix)
        self._seal = RedisSeal(self._ask_judged, self._prefix)
        self._traces = RedisTraces(self._exchange, self._prefix)
        self._pages = RedisPages(self._exchange, self._tenants, self._traces, self._prefix)

    # --- the contract -------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return f"{self._lines.place} {self._prefix}"

    @property
    def durability(self) -> str:
        return self._durability

    def check(self) -> None:
        with self._errors_of_ours():
            self._lines.give_back(self._lines.connect(self._clock() + self._timeout))

    def emit(self, row: AuditRow, once: Once | None = None, hold: Hold | None = None) -> Stored:
        deadline = self._clock() + self._timeout
        command = self.command(row, once, hold)
        doubt = Doubt()
        with self._errors_of_ours(doubt):
            pauses = iter(PAUSES)
            while True:
                try:
                    return self._send(row, command, deadline, doubt)
                except (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError, OSError):
                    self._lines.drop_idle()
                    pause = next(pauses, None)
                    if pause is None or self._clock() + pause >= deadline:
                        raise
                    self._pause(pause)

    def running(self, tenant_id: str | None = None) -> Iterator[AuditRow]:
        return _merged([self._running(Keys(self._prefix, t)) for t in self._tenants(tenant_id)])

    def select(self, wanted: RowFilter) -> Iterator[AuditRow]:
        tenants = self._tenants(wanted.tenant_id)
        traced = self._traces.look(tenants, wanted)
        streams = [self._stream(Keys(self._prefix, t), wanted, traced.get(t)) for t in tenants]
        return filter(wanted.matches, _merged(streams))

    def page(
        self,
        wanted: RowFilter,
        *,
        most: int = 100,
        look: int = LOOK,
        cursor: str | None = None,
        without: Collection[str] = (),
    ) -> Page:
        return self._pages.page(wanted, most, look, cursor, without)

    def cursor_at(self, moment: datetime) -> str:
        return str(Cursor.above(int(moment.timestamp() * 1000)))

    def open_page(self, tenant_id: str | None, most: int, *, without: Collection[str] = ()) -> Open:
        return self._pages.open_page(tenant_id, most, without)

    def stored_at(self, row: AuditRow) -> datetime:
        if row.position is None:
            raise ValueError("this row comes from no memory")
        return moment_of(_place(row)[0])

    def follow(self, wanted: RowFilter, *, poll: float = 0.2) -> Iterator[AuditRow | None]:
        seen = {t: self._seal.last_position(t) or "0-0" for t in self._tenants(wanted.tenant_id)}
        return self._follow(wanted, seen, poll)

    def hold_lease(self, worker: str, seconds: float) -> None:
        self._leases.hold(worker, seconds)

    def drop_lease(self, worker: str) -> None:
        self._leases.drop(worker)

    def leases(self, workers: Collection[str]) -> set[str]:
        return self._leases.held(workers)

    def lived_ms(self, started: AuditRow, worker: str) -> int:
        seen = self._leases.seen_ms(worker)
        return 0 if seen is None else max(0, seen - _place(started)[0])

    def deaths(self, tenant_id: str, message: str) -> int:
        deaths = self._ask("hget", Keys(self._prefix, tenant_id).deaths, message)
        return number_in(self._prefix, tenant_id, deaths or b"0")

    def lead(self, role: str, holder: str, seconds: float) -> bool:
        return self._leases.lead(role, holder, seconds)

    def give_up(self, role: str, holder: str) -> None:
        self._leases.give_up(role, holder)

    def is_led(self, role: str) -> bool:
        return self._leases.is_led(role)

    def store_time(self) -> datetime:
        seconds, microseconds = self._ask("time")
        return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)

    def tenants(self) -> list[str]:
        return self._tenants(None)

    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        return self._seal.entries(tenant_id, after, limit)

    def last_position(self, tenant_id: str) -> str | None:
        return self._seal.last_position(tenant_id)

    def sealed(self, tenant_id: str) -> bytes | None:
        return self._seal.sealed(tenant_id)

    def sealed_position(self, tenant_id: str) -> str | None:
        return self._seal.sealed_position(tenant_id)

    def swap_sealed(
        self, tenant_id: str, old: bytes | None, new: bytes, position: str | None = None
    ) -> bool:
        return self._seal.swap_sealed(tenant_id, old, new, position)

    def trim(self, tenant_id: str, before: str) -> int:
        return self._seal.trim(tenant_id, before)

    def trimmed(self, tenant_id: str) -> str | None:
        return self._seal.trimmed(tenant_id)

    def close(self) -> None:
        self._lines.close()

    # --- emit ---------------------------------------------------------------------------------

    @property
    def script(self) -> str:
        """The script that :meth:`command` calls."""
        return _SCRIPT

    def command(self, row: AuditRow, once: Once | None = None, hold: Hold | None = None) -> Command:
        """What EVALSHA is called with for ``row``: the number of keys, the keys, the arguments."""
        return command_of(self._prefix, row, once, hold, trace_seconds=self._trace_seconds)

    def _send(self, row: AuditRow, command: Command, deadline: float, doubt: Doubt) -> Stored:
        line = self._lines.take(deadline)
        try:
            reply = self._call(line, row.tenant_id, command, deadline)
        except ResponseError:
            line.connection.disconnect()
            raise  # the server said no, so it did not store the row
        except BaseException:
            # A signal may have struck between request and reply: the next user of this
            # connection would read a reply that is not its own.
            doubt.maybe_stored = True
            line.connection.disconnect()
            raise
        self._lines.give_back(line)
        return verdict_of(reply[0].decode(), row)

    def _call(self, line: Line, tenant_id: str, command: Command, deadline: float) -> Any:
        def left() -> float:
            return deadline - self._clock()

        commands: list[Command] = [("EVALSHA", line.sha, *command)]
        now = self._clock()
        if now - line.named.get(tenant_id, -math.inf) >= NAMED_FOR:
            commands.insert(0, ("SADD", f"{self._prefix}:tenants", tenant_id))
        *named, reply = line.exchange(commands, left)
        if isinstance(reply, NoScriptError):
            (reply,) = line.exchange([("EVAL", _SCRIPT, *command)], left)
        for asked, answer in zip((*commands[:-1], command), (*named, reply), strict=True):
            if isinstance(answer, ResponseError):
                refuse(self._prefix, asked, answer)
        if named:
            line.named[tenant_id] = now
        return reply

    # --- reading ------------------------------------------------------------------------------

    def _ask(self, command: str, *args: Any, **options: Any) -> Any:
        with self._errors_of_ours(asked=args):
            return getattr(self._lines.client, command)(*args, **options)

    def _ask_judged(self, *command: str | bytes) -> Any:
        """The raw reply to one command, over a connection of :meth:`emit`'s; never sent twice."""
        return self._exchange([command])[0]

    def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        """The raw replies to commands that are sent in one go, never twice."""
        deadline, doubt = self._clock() + self._timeout, Doubt()
        with self._errors_of_ours(doubt):
            line = self._lines.take(deadline)
            try:
                replies = line.exchange(commands, lambda: deadline - self._clock())
            except BaseException:
                doubt.maybe_stored = True
                line.connection.disconnect()
                self._lines.drop_idle()
                raise
            for command, reply in zip(commands, replies, strict=True):
                if isinstance(reply, ResponseError):
                    line.connection.disconnect()
                    refuse(self._prefix, command, reply)
            self._lines.give_back(line)
        return replies

    def _tenants(self, tenant_id: str | None) -> list[str]:
        if tenant_id is not None:
            return [str(tenant_id)]
        members = self._ask("smembers", f"{self._prefix}:tenants")
        names = (member.decode(errors="replace") for member in members)
        # No emit of ours names a tenant so; a line break would be a line more in what lists them,
        # and no cursor takes a longer name.
        return sorted(name for name in names if name.isprintable() and len(name) <= LONGEST_NAME)

    def _running(self, keys: Keys) -> Iterator[AuditRow]:
        started: list[tuple[str, bytes]] = []
        for page in _pages(self._ask("zrange", keys.open, 0, -1)):
            states = zip(page, self._ask("hmget", keys.requests, page), strict=True)
            started += ((started_in(keys, s), r) for r, s in states if s and s[:1] == b"o")
        # Sorted as a whole: the set knows the order of milliseconds, not the one within.
        for begun in _pages(sorted(started, key=lambda place: order_of(place[0]))):
            rows = self._fetch(keys, [position for position, _ in begun])
            insist(keys.tenant_id, [request_id for _, request_id in begun], rows)
            yield from rows

    def _stream(self, keys: Keys, wanted: RowFilter, traced: Traced | None) -> Iterator[AuditRow]:
        if wanted.request_id is not None:
            state = self._ask("hget", keys.requests, wanted.request_id)
            return self._at(keys, sorted(places_in(keys, state), key=order_of))
        if traced is None or (traced.older and wanted.since is not None):
            return self._scan(keys, first_position(wanted))
        return self._of_trace(keys, wanted, traced)

    def _of_trace(self, keys: Keys, wanted: RowFilter, traced: Traced) -> Iterator[AuditRow]:
        """What is older than the lists cover is read row by row, and all else by the lists.

        An invocation may start in the one part and end in the other.
        """
        request_ids = dict.fromkeys(traced.request_ids)
        for row in self._scan(keys, "-", f"({traced.start}") if traced.older else ():
            if row.payload.get("trace_id") == wanted.trace_id:
                request_ids[row.request_id.encode()] = None
                yield row
        places: list[str] = []
        for page in _pages(list(request_ids)):
            for state in self._ask("hmget", keys.requests, page):
                places += places_in(keys, state)
        start = order_of(traced.start)
        newer = {order_of(place): place for place in places if order_of(place) >= start}
        yield from self._at(keys, [newer[order] for order in sorted(newer)])

    def _at(self, keys: Keys, positions: Sequence[str]) -> Iterator[AuditRow]:
        for page in _pages(positions):
            yield from self._fetch(keys, page)

    def _fetch(self, keys: Keys, positions: Sequence[str]) -> list[AuditRow]:
        with self._errors_of_ours(asked=(keys.rows,)):
            pipeline = self._lines.client.pipeline(transaction=False)
            for position in positions:
                pipeline.xrange(keys.rows, position, position)
            return [row_in(entry) for found in pipeline.execute() for entry in found]

    def _scan(self, keys: Keys, start: str, end: str = "+") -> Iterator[AuditRow]:
        while True:
            page = self._ask("xrange", keys.rows, min=start, max=end, count=PAGE)
            yield from map(row_in, page)
            if len(page) < PAGE:
                return
            start = f"({page[-1][0].decode()}"

    def _follow(
        self, wanted: RowFilter, seen: dict[str, str], poll: float
    ) -> Iterator[AuditRow | None]:
        while True:
            for tenant_id in self._tenants(wanted.tenant_id):
                seen.setdefault(tenant_id, "0-0")
            arrived = self._arrived(seen) if seen else []
            yield from filter(wanted.matches, arrived)
            if not arrived:
                yield None
                self._pause(poll)

    def _arrived(self, seen: dict[str, str]) -> list[AuditRow]:
        # A command each: of one for all the server would not tell which stream is none.
        found = self._exchange(
            [
                ("XRANGE", Keys(self._prefix, t).rows, f"({position}", "+", "COUNT", str(PAGE))
                for t, position in seen.items()
                if order_of(position) != LAST_PLACE
            ]
        )
        rows = [
            row_in((position, dict(zip(fields[::2], fields[1::2], strict=True))))
            for page in found
            for position, fields in page
        ]
        for row in rows:
            seen[row.tenant_id] = str(row.position)
        return sorted(rows, key=_place)

    @contextmanager
    def _errors_of_ours(
        self, doubt: Doubt | None = None, asked: Sequence[Any] = ()
    ) -> Iterator[None]:
        """Errors of ours; ``asked`` is the command, where that may meet what is none of ours."""
        try:
            try:
                yield
            except ResponseError as error:
                refuse(self._prefix, asked, error)
        except AuditMemoryError as error:
            error.maybe_stored |= doubt is not None and doubt.maybe_stored
            raise
        except (RedisError, OSError) as error:
            raise MemoryUnavailableError(
                f"memory {shown(self._url)} did not answer as it should: {error}",
                maybe_stored=doubt is not None and doubt.maybe_stored,
            ) from error


# --- small pure parts ---------------------------------------------------------------------------


def _place(row: AuditRow) -> tuple[int, int]:
    return order_of(str(row.position))


def _pages(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), PAGE):
        yield items[start : start + PAGE]


def _merged(streams: Sequence[Iterator[AuditRow]]) -> Iterator[AuditRow]:
    return heapq.merge(*streams, key=_place)
