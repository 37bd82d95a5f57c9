"""The memory on Redis (7.0 and newer) or Valkey (8 and newer): one stream per tenant.

The keys stand in ``redis_keys.py``. An emit is one script call and one round trip. Whenever a
connection has not named a row's tenant within the last second, the emit carries the name along in
the same round trip, before the row; in a cluster the list of tenants is on a node of its own, see
``redis_names.py``. So no row is ever unreachable, and a name that somebody took out of the list of
tenants comes back with the next row that is emitted a second later.

Every new connection first asks the server what it is, so a server that was replaced or
reconfigured behind the same address is judged again before it gets a row (``connection.py``). Which
server that is, of several, stands in ``redis_nodes.py``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from redis.exceptions import NoScriptError, RedisError, ResponseError

from audit.errors import MemoryUrlError
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
from audit.memory.connection import AGAIN, Command, Line, Lines
from audit.memory.newest import LONGEST_NAME, Cursor, moment_of
from audit.memory.page import LOOK, Open, Page
from audit.memory.redis_form import number_in, refuse
from audit.memory.redis_keys import (
    HERE_BEFORE,
    Keys,
    command_of,
    command_with_result,
    naming,
    written_again,
)
from audit.memory.redis_lease import RedisLeases
from audit.memory.redis_names import NAMED_FOR, Names
from audit.memory.redis_nodes import nodes_of
from audit.memory.redis_page import RedisPages
from audit.memory.redis_rows import RedisRows
from audit.memory.redis_script import Script
from audit.memory.redis_seal import RedisSeal
from audit.memory.redis_talk import Doubt, Talk, exchange
from audit.memory.redis_trace import RedisTraces
from audit.memory.redis_url import Address, Topology, parse_url
from audit.memory.result import TaskResult
from audit.row import AuditRow

_APPEND: Final = Script.of("append.lua")
#: Appends as a function, so that what the one decides the other follows.
_MERGED: Final = Script.of("append.lua", "merged.lua")


class RedisMemory(AuditMemory):
    """An audit memory on a Redis or Valkey server.

    Args:
        url: ``redis://``, ``rediss://`` or ``redis+socket://``, with these parameters of ours
            beside redis-py's own: ``durability`` (``server``: as the server is configured,
            ``everysec`` or ``always``: the server must have an AOF with at least that fsync),
            ``prefix`` of the keys (``audit``), ``replicas`` that must acknowledge each row (0), and
            ``trace_days`` (30) for which an invocation is found by its trace at once; 0 keeps no
            lists of traces.
            ``redis+cluster://HOST:PORT,HOST:PORT`` for a cluster, and
            ``redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB`` for a master that sentinels name,
            with ``sentinel_username`` and ``sentinel_password`` where they want them.
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
        self._place = parse_url(url)
        self._prefix, self._replicas = self._place.prefix, self._place.replicas
        try:
            self._lines = nodes_of(self._place, self._opened, clock)
        except (ValueError, TypeError, RedisError) as error:
            raise MemoryUrlError(f"memory URL {self._place.shown}: {error}") from None
        self._talk = Talk(
            self._lines,
            prefix=self._prefix,
            shown=self._place.shown,
            timeout=timeout,
            clock=clock,
            pause=pause,
        )
        self._names = Names(self._talk, self._prefix, self._replicas, clock)
        self._leases = RedisLeases(self._talk.read, self._prefix)
        self._seal = RedisSeal(self._ask_judged, self._write_judged, self._prefix)
        traces = RedisTraces(self._talk.read, self._prefix)
        self._pages = RedisPages(self._talk.write, self._tenants, traces, self._prefix)
        self._rows = RedisRows(
            self._talk.read, self._talk.write, self._tenants, traces, self._prefix, pause
        )

    def _opened(self, url: str) -> Lines:
        place = self._place
        return Lines(
            url,
            script=_APPEND.text,
            durability=place.durability,
            timeout=self._timeout,
            clock=self._clock,
            replicas=place.replicas,
            only_master=place.topology is not Topology.SINGLE,
        )

    # --- the contract -------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return f"{self._lines.place} {self._prefix}"

    @property
    def durability(self) -> str:
        return self._place.durability

    def check(self) -> None:
        with self._talk.errors_of_ours():
            self._lines.check(self._clock() + self._timeout)

    def emit(self, row: AuditRow, once: Once | None = None, hold: Hold | None = None) -> Stored:
        return self._emit(row, _APPEND, self.command(row, once, hold))

    @property
    def results_at(self) -> str | None:
        # In a cluster a result's key says nothing of its tenant, so it lies in another slot. And
        # what replicas are waited for is told before they have it: the script announces the result.
        if self._place.topology is Topology.CLUSTER or self._replicas:
            return None
        return self._lines.place

    def emit_with_result(self, row: AuditRow, result: TaskResult) -> Stored:
        return self._emit(row, _MERGED, command_with_result(self._prefix, row, result))

    def prove_results(self, key: str, value: str) -> None:
        self._talk.write([("SET", key, value, "EX", "60"), ("GET", key), ("PUBLISH", key, "")])

    def _emit(self, row: AuditRow, script: Script, command: Command) -> Stored:
        deadline = self._clock() + self._timeout
        doubt, asked = Doubt(), None
        with self._talk.errors_of_ours(doubt):
            pauses: Iterator[float] | None = None
            while True:
                try:
                    return self._send(row, script, command, deadline, doubt, asked)
                except AGAIN as error:
                    asked, pauses = self._lines.turn(error), pauses or self._lines.pauses()
                    self._talk.wait(pauses, deadline, error, doubt)

    def running(self, tenant_id: str | None = None) -> Iterator[AuditRow]:
        return self._rows.running(tenant_id)

    def select(self, wanted: RowFilter) -> Iterator[AuditRow]:
        return self._rows.select(wanted)

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
        return self._rows.follow(wanted, seen, poll)

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
        deaths = self._ask("HGET", Keys(self._prefix, tenant_id).deaths, message)
        return number_in(self._prefix, tenant_id, deaths or b"0")

    def lead(self, role: str, holder: str, seconds: float) -> bool:
        return self._leases.lead(role, holder, seconds)

    def give_up(self, role: str, holder: str) -> None:
        self._leases.give_up(role, holder)

    def is_led(self, role: str) -> bool:
        return self._leases.is_led(role)

    def store_time(self) -> datetime:
        seconds, microseconds = map(int, self._ask("TIME"))
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
        return _APPEND.text

    def command(self, row: AuditRow, once: Once | None = None, hold: Hold | None = None) -> Command:
        """What EVALSHA is called with for ``row``: the number of keys, the keys, the arguments."""
        return command_of(self._prefix, row, once, hold, trace_seconds=self._place.trace_seconds)

    def _send(
        self,
        row: AuditRow,
        script: Script,
        command: Command,
        deadline: float,
        doubt: Doubt,
        asked: Address | None = None,
    ) -> Stored:
        line = self._lines.take(deadline, command[1], asked)
        if not self._lines.one_node:
            try:
                self._names.see_to(line, row.tenant_id, deadline)
            except BaseException:
                self._lines.give_back(line)
                raise
        try:
            reply = self._call(line, row, script, command, deadline, doubt, asked is not None)
        except ResponseError:
            line.connection.disconnect()
            raise  # where the script said so, the row was not stored: the doubt is as it was
        except BaseException:
            # A signal may have struck between request and reply: the next user of this
            # connection would read a reply that is not its own.
            doubt.maybe_stored = True
            self._lines.broken(line)
            raise
        self._lines.give_back(line)
        return verdict_of(reply[0].decode(), row)

    def _call(
        self,
        line: Line,
        row: AuditRow,
        script: Script,
        command: Command,
        deadline: float,
        doubt: Doubt,
        asking: bool = False,
    ) -> Any:
        def left() -> float:
            return deadline - self._clock()

        commands: list[Command] = [("EVALSHA", script.sha, *command)]
        now, tenant_id = self._clock(), row.tenant_id
        names = now - line.named.get(tenant_id, -math.inf) >= NAMED_FOR and self._lines.one_node
        if names:
            commands.insert(0, naming(self._prefix, tenant_id, self._replicas))
        if asking or self._replicas:
            *named, reply = exchange(line, commands, left, asking, self._replicas)
        else:
            *named, reply = line.exchange(commands, left)
        if isinstance(reply, NoScriptError):
            call = [("EVAL", script.text, *command)]
            (reply,) = exchange(line, call, left, asking, self._replicas)
        # Beside a row that was stored, an error can only be of the naming.
        doubt.maybe_stored |= any(isinstance(answer, ResponseError) for answer in named) and (
            not isinstance(reply, ResponseError)
        )
        for asked, answer in zip((*commands[:-1], command), (*named, reply), strict=True):
            if isinstance(answer, ResponseError):
                refuse(self._prefix, asked, answer)
        if names:
            line.named[tenant_id] = now
        if self._replicas and reply[0] in HERE_BEFORE:
            # Nothing was written now, so there was nothing to wait for.
            (again,) = exchange(line, [written_again(command)], left, asking, self._replicas)
            if isinstance(again, ResponseError):
                doubt.maybe_stored = True
                raise again
        return reply

    # --- reading ------------------------------------------------------------------------------

    def _ask(self, *command: str | bytes) -> Any:
        """The raw reply to one command that may be sent twice."""
        return self._talk.read([command])[0]

    def _ask_judged(self, *command: str | bytes) -> Any:
        """The raw reply to one command, over a connection of :meth:`emit`'s; never sent twice."""
        return self._talk.write([command])[0]

    def _write_judged(self, *command: str | bytes) -> Any:
        """The same, once as many replicas have it as must have a row."""
        return self._talk.write([command], self._replicas)[0]

    def _tenants(self, tenant_id: str | None) -> list[str]:
        if tenant_id is not None:
            return [str(tenant_id)]
        members = self._ask("SMEMBERS", Keys(self._prefix, "").tenants)
        names = (member.decode(errors="replace") for member in members)
        # No emit of ours names a tenant so; a line break would be a line more in what lists them,
        # and no cursor takes a longer name.
        return sorted(name for name in names if name.isprintable() and len(name) <= LONGEST_NAME)


def _place(row: AuditRow) -> tuple[int, int]:
    return order_of(str(row.position))
