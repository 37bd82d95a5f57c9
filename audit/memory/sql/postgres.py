"""An audit memory in PostgreSQL: one statement an emit, every call under a deadline.

The client never waits longer than the deadline says, whatever the server does: a frozen one too.
A connection that anything went wrong on is closed, none crosses a fork, and none is used before
the database behind it was judged.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Final

import psycopg
from psycopg import errors, waiting
from psycopg.conninfo import make_conninfo
from psycopg.rows import namedtuple_row, tuple_row
from sqlalchemy import BigInteger, func
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from audit.errors import MemoryUnavailableError, MemoryUnsuitableError, MemoryUrlError
from audit.memory.base import Hold, Once
from audit.memory.entry import check_swap
from audit.memory.sql.emitted import Emitted
from audit.memory.sql.memory import SEEN_FOR, SqlMemory
from audit.memory.sql.schema import VERSION
from audit.memory.sql.tables import FOR_EVER, ROWS, in_microseconds, written
from audit.memory.sql.url import PostgresUrl, parse_postgres
from audit.row import AuditRow

#: Idle connections a process keeps.
IDLE: Final = 64
#: Between two tries of one emit, in seconds; the last is repeated.
PAUSES: Final = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
_INTERVAL: Final = 0.1

_DIALECT: Final[Any] = PGDialect_psycopg()  # type: ignore[no-untyped-call]
#: What a session of ours needs. Set, not asked for at the start: PgBouncer takes no options there.
_SET: Final = """
SELECT set_config('search_path', %s, false), set_config('statement_timeout', %s, false),
  set_config('synchronous_commit', coalesce(%s, current_setting('synchronous_commit')), false)
"""
_EMIT: Final = f"SELECT audit_emit({', '.join(['%s'] * 17)})"
_JUDGE: Final = """
SELECT version, ahead + pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
  (SELECT turn FROM audit_rows ORDER BY turn DESC LIMIT 1),
  current_setting('fsync'), current_setting('full_page_writes'),
  current_setting('synchronous_commit'), current_setting('server_encoding')
FROM audit_settings
"""
_WRITES: Final = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')"
_HOLD: Final = """
INSERT INTO audit_leases VALUES (%s, audit_now() + %s, audit_now())
ON CONFLICT (worker) DO UPDATE SET until = excluded.until, seen = excluded.seen
"""
_LEAD: Final = """
INSERT INTO audit_leaders AS l VALUES (%s, %s, audit_now() + %s)
ON CONFLICT (role) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE l.holder = excluded.holder OR l.until <= audit_now() RETURNING 1
"""


class _Connection(psycopg.Connection[Any]):
    """psycopg's, that waits no longer than until ``deadline``, in monotonic seconds."""

    deadline = 0.0

    def __del__(self, *_: Any) -> None:
        """No warning: libpq's part closes itself, though only in the process that opened it."""

    def wait(self, gen: Any, interval: float = _INTERVAL, timeout: float | None = None) -> Any:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise errors.ConnectionTimeout("no answer within the deadline")
        # Not psycopg's own, which after a Ctrl-C waits for the server to cancel: 10 seconds, if it
        # stands still. This connection is closed in any case.
        return waiting.wait(gen, self.pgconn.socket, interval=interval, timeout=left)

    @classmethod
    def open(cls, conninfo: str, deadline: float) -> _Connection:
        """Connect within the deadline, which libpq's own connect_timeout knows in seconds only."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise errors.ConnectionTimeout("no time is left to connect")
        made: _Connection = waiting.wait_conn(
            cls._connect_gen(conninfo), interval=_INTERVAL, timeout=left
        )
        made.deadline = deadline
        made._autocommit = True
        made.prepare_threshold = 1
        return made


class PostgresMemory(SqlMemory):
    """An audit memory in a PostgreSQL database.

    Args:
        url: ``postgresql://``, with these parameters of ours beside libpq's: ``schema`` (``audit``)
            and ``durability`` (``server``: as the server is configured; ``always``: every commit
            waits for the disk).
        timeout: seconds any call may take in all.
        pause: waits so many seconds.

    Raises:
        MemoryUrlError: the URL has a part that cannot be used.
    """

    def __init__(
        self, url: str, *, timeout: float = 2.0, pause: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__(
            ROWS.c.turn < func.audit_horizon(type_=BigInteger()),
            func.audit_now(type_=BigInteger()),
            timeout,
            pause,
        )
        self._url: PostgresUrl = parse_postgres(url)
        self._owner = os.getpid()
        self._idle: deque[_Connection] = deque()
        try:
            self._conninfo = make_conninfo(self._url.conninfo, client_encoding="UTF8")
        except psycopg.Error:
            # libpq repeats what it does not understand, which may be a password.
            raise MemoryUrlError(
                f"memory URL {self._url.shown}: libpq does not understand it; in user and password"
                " % and spaces are written %25 and %20, and parameters are its own or ours"
            ) from None

    @property
    def name(self) -> str:
        return self._url.shown

    @property
    def durability(self) -> str:
        return "always" if self._url.durable else "server"

    def check(self) -> None:
        with self._errors_of_ours():
            connection = self._connect(self._deadline())
            try:
                self._insist_on_writes(connection)
            except BaseException:
                connection.close()
                raise
            self._give_back(connection)

    def close(self) -> None:
        if self._owner == os.getpid():
            self._drop_idle()

    # --- writing ------------------------------------------------------------------------------

    def _store(self, row: AuditRow, once: Once | None, hold: Hold | None) -> str:
        emitted = Emitted.of(row, once, hold)
        arguments = (
            emitted.action, emitted.tenant_id, emitted.request_id, emitted.stored,
            *emitted.columns, emitted.dead,
            once and written(once.token), once and min(once.seconds, FOR_EVER),
            hold and written(hold.token), hold and written(hold.holder),
            hold and min(hold.seconds, FOR_EVER),
        )  # fmt: skip
        return str(self._insist(_EMIT, arguments)[0][0])

    def _renew(self, worker: str, seconds: float, deadline: float) -> None:
        self._insist(_HOLD, (written(worker), in_microseconds(seconds)), deadline=deadline)

    def _forget(self, most: int, deadline: float) -> int:
        statement = "SELECT audit_forget(%s, audit_now() - %s)"
        return int(self._insist(statement, (most, SEEN_FOR), deadline=deadline)[0][0])

    def drop_lease(self, worker: str) -> None:
        self._insist("UPDATE audit_leases SET until = 0 WHERE worker = %s", (written(worker),))

    def lead(self, role: str, holder: str, seconds: float) -> bool:
        arguments = (written(role), written(holder), in_microseconds(seconds))
        return bool(self._insist(_LEAD, arguments))

    def give_up(self, role: str, holder: str) -> None:
        given_up = "UPDATE audit_leaders SET until = 0 WHERE role = %s AND holder = %s"
        self._insist(given_up, (written(role), written(holder)))

    def swap_sealed(
        self, tenant_id: str, old: bytes | None, new: bytes, position: str | None = None
    ) -> bool:
        check_swap(new, position)
        arguments = (written(tenant_id), old, new, position)
        return bool(self._once("SELECT audit_swap_sealed(%s, %s, %s, %s)", arguments)[0][0])

    def _trim_page(self, tenant_id: str, before: tuple[int, int], most: int) -> int:
        arguments = (written(tenant_id), *before, most)
        return int(self._once("SELECT audit_trim(%s, %s, %s, %s)", arguments)[0][0])

    # --- statements ---------------------------------------------------------------------------

    def _ask(self, query: Any) -> Sequence[Any]:
        compiled = query.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
        return self._insist(str(compiled), compiled.params, named=True)

    def _insist(
        self, statement: str, arguments: Any, *, named: bool = False, deadline: float | None = None
    ) -> list[Any]:
        """Done again until it succeeds or the deadline is over: for what is idempotent."""
        deadline, pauses, doubt = deadline or self._deadline(), iter(PAUSES), [False]
        with self._errors_of_ours(doubt):
            while True:
                try:
                    return self._try(statement, arguments, deadline, doubt, named=named)
                except psycopg.OperationalError as error:
                    pause = next(pauses, PAUSES[-1])
                    if time.monotonic() + pause >= deadline:
                        raise
                    if not _is_rivalry(error):
                        self._drop_idle()
                    self._pause(pause)

    def _once(self, statement: str, arguments: Any) -> list[Any]:
        doubt = [False]
        with self._errors_of_ours(doubt):
            return self._try(statement, arguments, self._deadline(), doubt)

    def _try(
        self,
        statement: str,
        arguments: Any,
        deadline: float,
        doubt: list[bool],
        *,
        named: bool = False,
    ) -> list[Any]:
        connection = self._take(deadline)
        try:
            factory: Any = namedtuple_row if named else tuple_row
            cursor = connection.cursor(row_factory=factory)
            cursor.execute(statement, arguments)
            # Not cursor.description, which makes an object of each column first.
            answer = cursor.pgresult
            found = cursor.fetchall() if answer is not None and answer.nfields else []
        except psycopg.Error as error:
            # Where the server said no, it has rolled back; where it said nothing, nobody knows.
            doubt[0] |= error.sqlstate is None
            if _is_rivalry(error) and not connection.closed:
                self._give_back(connection)
            else:
                connection.close()
            raise
        except BaseException:
            # A signal may have struck between request and reply.
            doubt[0] = True
            connection.close()
            raise
        self._give_back(connection)
        return found

    # --- connections --------------------------------------------------------------------------

    def _take(self, deadline: float) -> _Connection:
        if self._owner != os.getpid():
            self._idle, self._owner = deque(), os.getpid()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._connect(deadline)
            if not connection.closed:
                connection.deadline = deadline
                return connection

    def _give_back(self, connection: _Connection) -> None:
        if len(self._idle) < IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def _drop_idle(self) -> None:
        with suppress(IndexError):  # another thread may take the last one first
            while True:
                self._idle.popleft().close()

    def _connect(self, deadline: float) -> _Connection:
        connection = _Connection.open(self._conninfo, deadline)
        try:
            milliseconds = max(1, round(self._timeout * 1000))
            path, commit = f'"{self._url.schema}", pg_temp', "on" if self._url.durable else None
            connection.execute(_SET, (path, str(milliseconds), commit))
            self._judge(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _judge(self, connection: _Connection) -> None:
        try:
            found = connection.execute(_JUDGE).fetchone()
        except errors.UndefinedTable:
            raise MemoryUnsuitableError(
                f"the memory {self._url.shown} has no tables yet: run `audit migrate`"
            ) from None
        if found is None:
            raise MemoryUnsuitableError(f"the memory {self._url.shown} does not say its version")
        version, next_turn, newest, fsync, whole_pages, committing, encoding = found
        if version != VERSION:
            raise MemoryUnsuitableError(
                f"the memory {self._url.shown} has tables of version {version}, and this is for"
                f" {VERSION}: run `audit migrate`, or use the release that fits"
            )
        if newest is not None and newest >= next_turn:
            raise MemoryUnsuitableError(
                "the memory holds rows of another database cluster, so new ones would be stored"
                " before them: run `audit migrate`"
            )
        if "off" in (fsync, whole_pages) or (committing == "off" and not self._url.durable):
            raise MemoryUnsuitableError(
                "the memory server may lose rows that it has taken: set fsync, full_page_writes"
                " and synchronous_commit to on"
            )
        if encoding != "UTF8":
            raise MemoryUnsuitableError(
                f"the memory's database has the encoding {encoding}, which cannot hold every row:"
                " use one that was made with ENCODING 'UTF8'"
            )

    def _insist_on_writes(self, connection: _Connection) -> None:
        """Asked by :meth:`check` alone: whoever only reads may do so on a standby."""
        found = connection.execute(_WRITES).fetchone()
        standby, read_only = found if found is not None else (False, "on")
        if standby:
            raise MemoryUnsuitableError(
                f"the memory {self._url.shown} is on a standby, which takes no writes: name the"
                " primary, or all hosts and target_session_attrs=read-write"
            )
        if read_only == "on":
            raise MemoryUnsuitableError(
                f"the memory {self._url.shown} takes no writes: set"
                " default_transaction_read_only of this role and its database to off"
            )

    def _errors_of_ours(self, doubt: Sequence[bool] = (False,)) -> _Ours:
        return _Ours(self._url.shown, doubt)


class _Ours(AbstractContextManager[None]):
    """Errors of psycopg and of the system as errors of the memory.

    No generator, which would cost an emit more.
    """

    __slots__ = ("_doubt", "_shown")

    def __init__(self, shown: str, doubt: Sequence[bool]) -> None:
        self._shown = shown
        self._doubt = doubt

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, psycopg.Error | OSError):
            raise MemoryUnavailableError(
                f"memory {self._shown} did not answer as it should: {_told(error)}",
                maybe_stored=self._doubt[0],
            ) from error


def _is_rivalry(error: psycopg.Error) -> bool:
    """Somebody else got ahead, and the server has rolled back: nothing is wrong with anything."""
    return (error.sqlstate or "").startswith("40")


def _told(error: Exception) -> str:
    """The first line: behind it libpq repeats statements, and what was in them."""
    return str(error).strip().partition("\n")[0]
