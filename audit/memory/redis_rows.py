"""Whole histories on a Redis or Valkey server: what runs, what is there, what arrives.

Streams are read in pages, so memory use stays flat, and those of several tenants are merged by
where their rows stand. Each page is one question to the node that has the tenant.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from audit.memory.base import RowFilter, order_of
from audit.memory.connection import Command
from audit.memory.redis_form import LAST_PLACE, insist, places_in, row_in, started_in
from audit.memory.redis_keys import Keys
from audit.memory.redis_page import first_position
from audit.memory.redis_trace import RedisTraces, Traced
from audit.row import AuditRow

#: Rows fetched in one read; bounds the memory a query needs.
PAGE: Final = 500

Asked = Callable[[Sequence[Command]], Sequence[Any]]


class RedisRows:
    """The unbounded reading of a memory.

    Args:
        read: sends commands that may be sent twice, to a server as it is, and gives raw replies.
        write: the same to a judged server, never twice.
        tenants: that tenant, or all there are.
        traces: what the lists say of a trace.
        prefix: of the keys.
        pause: waits so many seconds.
    """

    def __init__(
        self,
        read: Asked,
        write: Asked,
        tenants: Callable[[str | None], list[str]],
        traces: RedisTraces,
        prefix: str,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._read = read
        self._write = write
        self._tenants = tenants
        self._traces = traces
        self._prefix = prefix
        self._pause = pause

    def running(self, tenant_id: str | None) -> Iterator[AuditRow]:
        return _merged([self._running(Keys(self._prefix, t)) for t in self._tenants(tenant_id)])

    def select(self, wanted: RowFilter) -> Iterator[AuditRow]:
        tenants = self._tenants(wanted.tenant_id)
        traced = self._traces.look(tenants, wanted)
        streams = [self._stream(Keys(self._prefix, t), wanted, traced.get(t)) for t in tenants]
        return filter(wanted.matches, _merged(streams))

    def follow(
        self, wanted: RowFilter, seen: dict[str, str], poll: float
    ) -> Iterator[AuditRow | None]:
        """Rows behind these positions, of tenants that come later from their first on."""
        while True:
            for tenant_id in self._tenants(wanted.tenant_id):
                seen.setdefault(tenant_id, "0-0")
            arrived = self._arrived(seen) if seen else []
            yield from filter(wanted.matches, arrived)
            if not arrived:
                yield None
                self._pause(poll)

    # --- inside -------------------------------------------------------------------------------

    def _ask(self, *command: str | bytes) -> Any:
        return self._read([command])[0]

    def _running(self, keys: Keys) -> Iterator[AuditRow]:
        started: list[tuple[str, bytes]] = []
        for page in _pages(self._ask("ZRANGE", keys.open, "0", "-1")):
            states = zip(page, self._ask("HMGET", keys.requests, *page), strict=True)
            started += ((started_in(keys, s), r) for r, s in states if s and s[:1] == b"o")
        # Sorted as a whole: the set knows the order of milliseconds, not the one within.
        for begun in _pages(sorted(started, key=lambda place: order_of(place[0]))):
            rows = self._fetch(keys, [position for position, _ in begun])
            insist(keys.tenant_id, [request_id for _, request_id in begun], rows)
            yield from rows

    def _stream(self, keys: Keys, wanted: RowFilter, traced: Traced | None) -> Iterator[AuditRow]:
        if wanted.request_id is not None:
            state = self._ask("HGET", keys.requests, wanted.request_id)
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
            for state in self._ask("HMGET", keys.requests, *page):
                places += places_in(keys, state)
        start = order_of(traced.start)
        newer = {order_of(place): place for place in places if order_of(place) >= start}
        yield from self._at(keys, [newer[order] for order in sorted(newer)])

    def _at(self, keys: Keys, positions: Sequence[str]) -> Iterator[AuditRow]:
        for page in _pages(positions):
            yield from self._fetch(keys, page)

    def _fetch(self, keys: Keys, positions: Sequence[str]) -> list[AuditRow]:
        answers = self._read([("XRANGE", keys.rows, at, at) for at in positions])
        return [row_in(entry) for found in answers for entry in found]

    def _scan(self, keys: Keys, start: str, end: str = "+") -> Iterator[AuditRow]:
        while True:
            page = self._ask("XRANGE", keys.rows, start, end, "COUNT", str(PAGE))
            yield from map(row_in, page)
            if len(page) < PAGE:
                return
            start = f"({page[-1][0].decode()}"

    def _arrived(self, seen: dict[str, str]) -> list[AuditRow]:
        # A command each: of one for all the server would not tell which stream is none.
        found = self._write(
            [
                ("XRANGE", Keys(self._prefix, t).rows, f"({position}", "+", "COUNT", str(PAGE))
                for t, position in seen.items()
                if order_of(position) != LAST_PLACE
            ]
        )
        rows = [row_in(entry) for page in found for entry in page]
        for row in rows:
            seen[row.tenant_id] = str(row.position)
        return sorted(rows, key=_place)


# --- small pure parts ---------------------------------------------------------------------------


def _place(row: AuditRow) -> tuple[int, int]:
    return order_of(str(row.position))


def _pages(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), PAGE):
        yield items[start : start + PAGE]


def _merged(streams: Sequence[Iterator[AuditRow]]) -> Iterator[AuditRow]:
    return heapq.merge(*streams, key=_place)
