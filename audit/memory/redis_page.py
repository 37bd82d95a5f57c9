"""Pages on a Redis or Valkey server: a few commands in one round trip, never one for each entry.

A page reads each tenant's stream backwards in chunks (:mod:`audit.memory.newest`); what is open
comes from the tenants whose oldest open invocation is old enough to count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from audit.memory.base import Entry, RowFilter, order_of
from audit.memory.connection import Command
from audit.memory.newest import (
    CHUNK,
    Cursor,
    Found,
    Newest,
    Read,
    check_bounds,
    key_of,
    moment_of,
    read_page,
    row_of,
)
from audit.memory.page import Damaged, Open, Page
from audit.memory.redis_form import is_of, places_in, position_in, started_in
from audit.memory.redis_keys import Keys
from audit.memory.redis_seal import entry_of
from audit.memory.redis_trace import RedisTraces
from audit.row import AuditRow

#: How far the clocks of writers and server may differ without a time range losing rows.
CLOCK_SKEW_MS: Final = 3_600_000

#: Backward from a point before its first entry, the server would walk through the whole stream
#: (streamIteratorStart in its source): time that grows with the history, and nobody can emit.
#: Forward it sees at once whether there is anything.
_BELOW: Final = """
if #redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[1], 'COUNT', 1) == 0 then return {} end
return redis.call('XREVRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])
"""

#: An open invocation: its tenant, where its started row stands, and its request_id.
Begun = tuple[str, str, bytes]


class RedisPages:
    """The bounded reading of a memory.

    Args:
        ask: sends commands to a judged server in one go and gives their raw replies; translates
            errors.
        tenants: that tenant, or all there are.
        traces: the lists of traces.
        prefix: of the keys.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[Command]], Sequence[Any]],
        tenants: Callable[[str | None], list[str]],
        traces: RedisTraces,
        prefix: str,
    ) -> None:
        self._ask = ask
        self._tenants = tenants
        self._traces = traces
        self._prefix = prefix

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
        tenants = self._read_tenants(wanted.tenant_id, without)
        oldest = first_position(wanted)
        invocations = self._invocations(wanted, tenants)
        if invocations is not None:
            page, trimmed = self._of_invocations(invocations, wanted, begin, most, look)
            if wanted.request_id is None:
                trimmed = page.next is None and self._trimmed(tenants, oldest)
            return page if page.next else replace(page, trimmed=trimmed)
        newest = Newest(
            tenants, lambda reads: self._read(reads, oldest), most=most, look=look, cursor=begin
        )
        page = read_page(
            newest, wanted, most=most, look=look, clock=_time_of, ended=lambda: newest.ended
        )
        return page if page.next else replace(page, trimmed=self._trimmed(tenants, oldest))

    def open_page(self, tenant_id: str | None, most: int, without: Collection[str]) -> Open:
        check_bounds(most, 1)
        tenants = self._read_tenants(tenant_id, without)
        keys = [Keys(self._prefix, tenant) for tenant in tenants]
        totals = self._each(keys, lambda key: ("ZCARD", key.open))
        oldest = self._each(keys, lambda key: ("ZRANGE", key.open, "0", "0", "WITHSCORES"))
        ages = sorted(
            (float(found[1]), key.tenant_id)
            for found, key in zip(oldest, keys, strict=True)
            if found
        )
        # Of another tenant, none is among the oldest: each of these has an older one.
        counted = [Keys(self._prefix, tenant) for _, tenant in ages[:most]]
        begun = self._begun(self._oldest_open(counted, most))
        found = {(t, order_of(e.position)): e for t, e in self._at([b[:2] for b in begun])}
        read = [(b, _of(b, found.get((b[0], order_of(b[1]))))) for b in begun]
        return Open(
            rows=tuple(sorted((row for _, row in read if row is not None), key=_place)),
            total=sum(totals),
            damaged=tuple(Damaged(t, place) for (t, place, _), row in read if row is None),
        )

    # --- inside -------------------------------------------------------------------------------

    def _read_tenants(self, tenant_id: str | None, without: Collection[str]) -> list[str]:
        return [tenant for tenant in self._tenants(tenant_id) if tenant not in without]

    def _each(self, keys: Iterable[Keys], command: Callable[[Keys], Command]) -> Sequence[Any]:
        commands = [command(key) for key in keys]
        return self._ask(commands) if commands else []

    def _read(self, reads: Sequence[Read], oldest: str) -> list[list[Entry]]:
        answers = self._ask([self._read_command(read, oldest) for read in reads])
        return [[entry_of(p.decode(), fields) for p, fields in found] for found in answers]

    def _read_command(self, read: Read, oldest: str) -> Command:
        rows, count = Keys(self._prefix, read.tenant_id).rows, str(read.count)
        if read.below is None:
            return ("XREVRANGE", rows, "+", oldest, "COUNT", count)
        return ("EVAL_RO", _BELOW, "1", rows, _maximum(read.below), oldest, count)

    def _trimmed(self, tenants: Sequence[str], oldest: str) -> bool:
        keys = [Keys(self._prefix, tenant) for tenant in tenants]
        marks = self._each(keys, lambda key: ("GET", key.trimmed))
        floor = (0, 0) if oldest == "-" else order_of(oldest)
        places = [
            order_of(position_in(key, mark))
            for key, mark in zip(keys, marks, strict=True)
            if mark is not None
        ]
        return any(place > floor for place in places)

    def _invocations(
        self, wanted: RowFilter, tenants: Sequence[str]
    ) -> list[tuple[Keys, bytes | str]] | None:
        """Those whose rows are all that can pass; ``None``: there is the history to look at."""
        if wanted.request_id is not None:
            return [(Keys(self._prefix, tenant), wanted.request_id) for tenant in tenants]
        traced = self._traces.look(tenants, wanted)
        if len(traced) < len(tenants) or any(one.older for one in traced.values()):
            return None
        return [
            (Keys(self._prefix, tenant), request_id)
            for tenant, one in traced.items()
            for request_id in dict.fromkeys(one.request_ids)
        ]

    def _of_invocations(
        self,
        invocations: Sequence[tuple[Keys, bytes | str]],
        wanted: RowFilter,
        begin: Cursor | None,
        most: int,
        look: int,
    ) -> tuple[Page, bool]:
        """What it takes does not depend on where in the history the rows are.

        Gives also whether any of them was trimmed.
        """
        asked = [("HGET", keys.requests, request_id) for keys, request_id in invocations]
        states = self._ask(asked) if asked else ()
        places = sorted(
            (key_of(keys.tenant_id, place), keys.tenant_id, place)
            for (keys, _), state in zip(invocations, states, strict=True)
            for place in places_in(keys, state)
        )
        entries = self._at([p[1:] for p in places if begin is None or begin.is_passed_by(*p[1:])])
        page = read_page(
            entries, wanted, most=most, look=look, clock=_time_of, ended=lambda: not any(entries)
        )
        return page, any(b"=" in (state or b"") for state in states)

    def _at(self, places: Sequence[tuple[str, str]]) -> Iterator[Found]:
        """The entries at these places, as far as they are there, in the given order."""
        for start in range(0, len(places), CHUNK):
            part = places[start : start + CHUNK]
            commands = [
                ("XRANGE", Keys(self._prefix, tenant).rows, position, position)
                for tenant, position in part
            ]
            for (tenant, _), found in zip(part, self._ask(commands), strict=True):
                yield from ((tenant, entry_of(p.decode(), fields)) for p, fields in found)

    def _oldest_open(self, keys: Sequence[Keys], most: int) -> list[tuple[Keys, bytes]]:
        """The oldest open request_ids of these tenants together."""
        answers = self._each(
            keys, lambda key: ("ZRANGE", key.open, "0", str(most - 1), "WITHSCORES")
        )
        found = [
            (float(score), key.tenant_id, request_id)
            for key, answer in zip(keys, answers, strict=True)
            for request_id, score in zip(answer[::2], answer[1::2], strict=True)
        ]
        return [(Keys(self._prefix, t), request_id) for _, t, request_id in sorted(found)[:most]]

    def _begun(self, invocations: Sequence[tuple[Keys, bytes]]) -> list[Begun]:
        """Where they start. An invocation that has ended meanwhile is open no longer."""
        commands = [("HGET", keys.requests, request_id) for keys, request_id in invocations]
        states = self._ask(commands) if commands else ()
        return [
            (keys.tenant_id, started_in(keys, state), request_id)
            for (keys, request_id), state in zip(invocations, states, strict=True)
            if state is not None and state[:1] == b"o"
        ]


def first_position(wanted: RowFilter) -> str:
    """Where reading may begin. A row can be stored long after its ``ts``, hardly before it."""
    if wanted.since is None:
        return "-"
    return str(max(0, int(wanted.since.timestamp() * 1000) - CLOCK_SKEW_MS))


def _of(begun: Begun, entry: Entry | None) -> AuditRow | None:
    """The row that stands there; ``None``: there is none, or it is another invocation's."""
    row = None if entry is None else row_of(entry, begun[0])
    return row if row is not None and is_of(row, *begun[::2]) else None


def _maximum(below: str | None) -> str:
    # Nothing stands at 0-0, and below it the server knows no range.
    return "+" if below is None else below if below == "0-0" else f"({below}"


def _time_of(position: str) -> datetime:
    return moment_of(order_of(position)[0])


def _place(row: AuditRow) -> tuple[tuple[int, int], str]:
    return order_of(str(row.position)), row.tenant_id
