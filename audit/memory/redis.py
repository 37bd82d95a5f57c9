"""The memory on Redis (7.0 and newer) or Valkey (8 and newer): one stream per tenant.

Keys, all of one tenant in one slot (``{...}`` is the hash tag)::

    PREFIX:{TENANT}:rows      stream    the rows, field ``row`` holding the stored bytes
    PREFIX:{TENANT}:requests  hash      request_id -> state (see append.lua)
    PREFIX:{TENANT}:open      zset      request_ids started and not completed, by server time
    PREFIX:tenants            set       every tenant that has rows

An emit is one script call and one round trip. The first emit of a tenant on a connection carries
the tenant's name along in the same round trip, before the row, so no row is ever unreachable.

Every new connection first asks the server what it is, so a server that was replaced or
reconfigured behind the same address is judged again before it gets a row.
"""

from __future__ import annotations

import heapq
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from audit.errors import (
    AuditMemoryError,
    MemoryUnavailableError,
    MemoryUnsuitableError,
    MemoryUrlError,
    RowRefusedError,
)
from audit.memory.base import AuditMemory, RowFilter, RowRefusal, Stored
from audit.row import COMPLETED, REFUSED, STARTED, AuditRow, Reason

#: Rows fetched in one read; bounds the memory a query needs.
PAGE: Final = 500
#: Pauses in seconds before an emit is tried again; an emit is idempotent.
PAUSES: Final = (0.02, 0.1)
IDLE_CONNECTIONS: Final = 64
#: How far the clocks of writers and server may differ without a time range losing rows.
CLOCK_SKEW_MS: Final = 3_600_000

DURABILITIES: Final = ("server", "everysec", "always")

_SCRIPT: Final = resources.files("audit.memory").joinpath("append.lua").read_text(encoding="utf-8")
_REFUSALS: Final = {
    b"no_started_row": RowRefusal.NO_STARTED_ROW,
    b"second_started_row": RowRefusal.SECOND_STARTED_ROW,
    b"tombstone": RowRefusal.TOMBSTONE,
    b"was_refused": RowRefusal.WAS_REFUSED,
}


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one tenant."""

    prefix: str
    tenant_id: str

    @property
    def rows(self) -> str:
        return f"{self.prefix}:{{{self.tenant_id}}}:rows"

    @property
    def requests(self) -> str:
        return f"{self.prefix}:{{{self.tenant_id}}}:requests"

    @property
    def open(self) -> str:
        return f"{self.prefix}:{{{self.tenant_id}}}:open"


class RedisMemory(AuditMemory):
    """An audit memory on a Redis or Valkey server.

    Args:
        url: ``redis://``, ``rediss://`` or ``redis+socket://``, with these parameters of ours
            beside redis-py's own: ``durability`` (``server``: as the server is configured,
            ``everysec`` or ``always``: the server must have an AOF with at least that fsync) and
            ``prefix`` of the keys (``audit``).
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
        self._url, self._durability, self._prefix = _parse_url(url)
        self._open_pool()

    # --- the contract -------------------------------------------------------------------------

    def check(self) -> None:
        with self._errors_of_ours():
            connection = self._connect(self._clock() + self._timeout)
            self._idle.append(connection)

    def emit(self, row: AuditRow) -> Stored:
        deadline = self._clock() + self._timeout
        command = self._command(row)
        with self._errors_of_ours():
            for pause in (*PAUSES, None):
                try:
                    return self._send(row, command, deadline)
                except (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError, OSError):
                    self._drop_idle()
                    if pause is None or self._clock() + pause >= deadline:
                        raise
                    self._pause(pause)
        raise AssertionError("unreachable: the last try returns or raises")

    def running(self, tenant_id: str | None = None) -> Iterator[AuditRow]:
        return _merged([self._running(Keys(self._prefix, t)) for t in self._tenants(tenant_id)])

    def select(self, wanted: RowFilter) -> Iterator[AuditRow]:
        streams = [self._stream(Keys(self._prefix, t), wanted) for t in self._tenants(wanted.tenant_id)]
        return filter(wanted.matches, _merged(streams))

    def follow(self, wanted: RowFilter, *, poll: float = 0.2) -> Iterator[AuditRow | None]:
        seen = {t: self._last_position(Keys(self._prefix, t)) for t in self._tenants(wanted.tenant_id)}
        return self._follow(wanted, seen, poll)

    def close(self) -> None:
        self._drop_idle()
        self._client.close()

    # --- connections --------------------------------------------------------------------------

    def _open_pool(self) -> None:
        """Made per process: a connection shared across a fork would mix up two streams of replies."""
        self._pid = os.getpid()
        self._idle: deque[redis.Connection] = deque(maxlen=IDLE_CONNECTIONS)
        try:
            self._pool = ConnectionPool.from_url(
                self._url,
                protocol=2,
                driver_info=None,
                socket_timeout=self._timeout,
                socket_connect_timeout=self._timeout,
                retry=Retry(NoBackoff(), 0),
            )
        except (ValueError, TypeError, RedisError) as error:
            raise MemoryUrlError(f"memory URL {_shown(self._url)}: {error}") from None
        self._client = redis.Redis(connection_pool=self._pool)

    def _acquire(self, deadline: float) -> redis.Connection:
        if self._pid != os.getpid():
            self._open_pool()
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect(deadline)

    def _connect(self, deadline: float) -> redis.Connection:
        connection = self._pool.make_connection()
        left = deadline - self._clock()
        if left <= 0:
            raise redis.TimeoutError("the deadline passed before a connection was made")
        connection.socket_timeout = connection.socket_connect_timeout = left
        try:
            connection.connect()
            self._judge(connection, deadline)
        except BaseException:
            connection.disconnect()
            raise
        connection.audit_tenants = set()
        return connection

    def _drop_idle(self) -> None:
        """The server went away: what else is idle is as stale as the connection that told us."""
        while self._idle:
            self._idle.pop().disconnect()

    def _judge(self, connection: redis.Connection, deadline: float) -> None:
        info, fsync, loaded = self._exchange(
            connection,
            [("INFO",), ("CONFIG", "GET", "appendfsync"), ("SCRIPT", "LOAD", _SCRIPT)],
            deadline,
        )
        if isinstance(info, ResponseError):
            raise info
        judge_server(_parse_info(info), _config_value(fsync), self._durability)
        if isinstance(loaded, ResponseError):
            raise loaded
        self._sha = loaded

    def _exchange(
        self, connection: redis.Connection, commands: Sequence[tuple[Any, ...]], deadline: float
    ) -> list[Any]:
        """Send commands in one go and read their replies; errors come back as values."""
        connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        return [self._read(connection, deadline) for _ in commands]

    def _read(self, connection: redis.Connection, deadline: float) -> Any:
        left = deadline - self._clock()
        if left <= 0:
            raise redis.TimeoutError("no reply within the deadline")
        try:
            return connection.read_response(timeout=left)
        except ResponseError as error:
            return error

    # --- emit ---------------------------------------------------------------------------------

    def _command(self, row: AuditRow) -> tuple[Any, ...]:
        keys = Keys(self._prefix, row.tenant_id)
        return (3, keys.rows, keys.requests, keys.open, _action(row), row.request_id, row.to_bytes())

    def _send(self, row: AuditRow, command: tuple[Any, ...], deadline: float) -> Stored:
        connection = self._acquire(deadline)
        try:
            reply = self._call(connection, row.tenant_id, command, deadline)
        except BaseException:
            # A signal may have struck between request and reply: the next user of this
            # connection would read a reply that is not its own.
            connection.disconnect()
            raise
        self._idle.append(connection)
        return self._verdict(reply, row)

    def _call(
        self, connection: redis.Connection, tenant_id: str, command: tuple[Any, ...], deadline: float
    ) -> Any:
        commands: list[tuple[Any, ...]] = [("EVALSHA", self._sha, *command)]
        if tenant_id not in connection.audit_tenants:
            commands.insert(0, ("SADD", f"{self._prefix}:tenants", tenant_id))
        *named, reply = self._exchange(connection, commands, deadline)
        if isinstance(reply, NoScriptError):
            (reply,) = self._exchange(connection, [("EVAL", _SCRIPT, *command)], deadline)
        for problem in (*named, reply):
            if isinstance(problem, ResponseError):
                raise problem
        connection.audit_tenants.add(tenant_id)
        return reply

    @staticmethod
    def _verdict(reply: Any, row: AuditRow) -> Stored:
        word = reply[0]
        if word in _REFUSALS:
            raise RowRefusedError(_REFUSALS[word].value, row.request_id)
        return Stored(word.decode())

    # --- reading ------------------------------------------------------------------------------

    def _ask(self, call: Callable[[redis.Redis], Any]) -> Any:
        if self._pid != os.getpid():
            self._open_pool()
        with self._errors_of_ours():
            return call(self._client)

    def _tenants(self, tenant_id: str | None) -> list[str]:
        if tenant_id is not None:
            return [str(tenant_id)]
        members = self._ask(lambda client: client.smembers(f"{self._prefix}:tenants"))
        return sorted(member.decode() for member in members)

    def _running(self, keys: Keys) -> Iterator[AuditRow]:
        ids = self._ask(lambda client: client.zrange(keys.open, 0, -1))
        for page in _pages(ids):
            states = self._ask(lambda client, page=page: client.hmget(keys.requests, page))
            started = [state[2:] for state in states if state is not None and state[:1] == b"o"]
            yield from self._at(keys, sorted(started, key=_order))

    def _stream(self, keys: Keys, wanted: RowFilter) -> Iterator[AuditRow]:
        if wanted.request_id is not None:
            state = self._ask(lambda client: client.hget(keys.requests, wanted.request_id))
            return self._at(keys, sorted((state or b"").split()[1:], key=_order))
        return self._scan(keys, _first_position(wanted))

    def _at(self, keys: Keys, positions: Sequence[bytes]) -> Iterator[AuditRow]:
        for page in _pages(positions):
            yield from self._ask(lambda client, page=page: self._fetch(client, keys, page))

    @staticmethod
    def _fetch(client: redis.Redis, keys: Keys, positions: Sequence[bytes]) -> list[AuditRow]:
        pipeline = client.pipeline(transaction=False)
        for position in positions:
            pipeline.xrange(keys.rows, position, position)
        return [_row(entry) for found in pipeline.execute() for entry in found]

    def _scan(self, keys: Keys, start: str) -> Iterator[AuditRow]:
        while True:
            page = self._ask(
                lambda client, start=start: client.xrange(keys.rows, min=start, max="+", count=PAGE)
            )
            yield from map(_row, page)
            if len(page) < PAGE:
                return
            start = f"({page[-1][0].decode()}"

    def _last_position(self, keys: Keys) -> str:
        last = self._ask(lambda client: client.xrevrange(keys.rows, count=1))
        return last[0][0].decode() if last else "0-0"

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
        streams = {Keys(self._prefix, t).rows: position for t, position in seen.items()}
        reply = self._ask(lambda client: client.xread(streams, count=PAGE))
        rows = [_row(entry) for _, entries in reply or () for entry in entries]
        for row in rows:
            seen[row.tenant_id] = str(row.position)
        return sorted(rows, key=lambda row: _order(str(row.position).encode()))

    @contextmanager
    def _errors_of_ours(self) -> Iterator[None]:
        try:
            yield
        except AuditMemoryError:
            raise
        except (RedisError, OSError) as error:
            raise MemoryUnavailableError(
                f"memory {_shown(self._url)} did not answer as it should: {error}"
            ) from error


# --- judging a server ---------------------------------------------------------------------------


def judge_server(info: Mapping[str, str], fsync: str | None, durability: str) -> None:
    """Refuse a server that could lose or evict rows.

    Args:
        info: the server's INFO, name to value.
        fsync: its ``appendfsync``; ``None`` where it does not tell.
        durability: one of :data:`DURABILITIES`.

    Raises:
        MemoryUnsuitableError: the text says what to change.
    """
    _judge_version(info)
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise MemoryUnsuitableError(
            f"the memory server may evict rows: maxmemory-policy is {policy}, set it to noeviction"
        )
    if durability != "server":
        _judge_durability(info, fsync, durability)


def _judge_version(info: Mapping[str, str]) -> None:
    name, version, least = "Redis", info.get("redis_version", "0"), (7, 0)
    if "valkey_version" in info:
        name, version, least = "Valkey", info["valkey_version"], (8, 0)
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < least:
        raise MemoryUnsuitableError(
            f"the memory server is too old: {name} {version}, needed are Redis 7.0 or Valkey 8"
        )


def _judge_durability(info: Mapping[str, str], fsync: str | None, durability: str) -> None:
    if info.get("aof_enabled") != "1":
        raise MemoryUnsuitableError(
            f"the memory URL asks for durability={durability}, but the server keeps no AOF: set"
            f" appendonly yes and appendfsync {durability}"
        )
    enough = ("always",) if durability == "always" else ("always", "everysec")
    if fsync not in enough:
        told = "does not tell (CONFIG GET is refused)" if fsync is None else f"has {fsync}"
        raise MemoryUnsuitableError(
            f"the memory URL asks for durability={durability}, but the server {told}: set"
            f" appendfsync {durability}"
        )


# --- small pure parts ---------------------------------------------------------------------------


def _action(row: AuditRow) -> str:
    if row.kind == STARTED:
        return "started"
    if row.kind == REFUSED:
        return "refused"
    if row.kind == COMPLETED:
        lost = row.meta.get("reason") == Reason.NOT_DISPATCHED
        return "not_dispatched" if lost else "completed"
    raise RowRefusedError(f"a row of the kind {row.kind} is not emitted", row.request_id)


def _parse_url(url: str) -> tuple[str, str, str]:
    """The URL as redis-py takes it, the durability and the prefix."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    durability = query.pop("durability", "server")
    if durability not in DURABILITIES:
        raise MemoryUrlError(
            f"memory URL: durability must be one of {', '.join(DURABILITIES)}, got {durability!r}"
        )
    prefix = query.pop("prefix", "audit")
    if not prefix or set(prefix) & set("{} \r\n"):
        raise MemoryUrlError("memory URL: prefix must be text without braces and blanks")
    scheme = parts.scheme
    if scheme == "redis+socket":
        scheme = "unix"
        query.setdefault("db", query.pop("virtual_host", "0").strip("/") or "0")
    return (
        urlunsplit((scheme, parts.netloc, parts.path, urlencode(query), "")),
        durability,
        prefix,
    )


def _shown(url: str) -> str:
    """The URL without its password and parameters."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _parse_info(reply: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def _config_value(reply: Any) -> str | None:
    if isinstance(reply, list) and len(reply) == 2:
        return str(reply[1].decode())
    return None


def _row(entry: tuple[bytes, Mapping[bytes, bytes]]) -> AuditRow:
    position, fields = entry
    return AuditRow.from_bytes(fields[b"row"], position.decode())


def _order(position: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = position.partition(b"-")
    return int(milliseconds), int(sequence)


def _first_position(wanted: RowFilter) -> str:
    """Where a scan may begin. A row can be stored long after its ``ts``, hardly before it."""
    if wanted.since is None:
        return "-"
    return str(max(0, int(wanted.since.timestamp() * 1000) - CLOCK_SKEW_MS))


def _pages(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), PAGE):
        yield items[start : start + PAGE]


def _merged(streams: Sequence[Iterator[AuditRow]]) -> Iterator[AuditRow]:
    return heapq.merge(*streams, key=lambda row: _order(str(row.position).encode()))
