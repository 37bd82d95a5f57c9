"""An audit memory in a SQLite file: for a laptop, and one machine.

Every row is one transaction that begins as a writer (BEGIN IMMEDIATE) in WAL mode, so that several
processes may write and readers never wait. SQLite's own busy handler lets writers starve, so the
waiting is ours: short, and at random.
"""

from __future__ import annotations

import hashlib
import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import BigInteger, bindparam
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from audit.errors import MemoryUnavailableError, MemoryUnsuitableError
from audit.memory.base import Hold, Once
from audit.memory.sql.emitted import Emitted
from audit.memory.sql.memory import SEEN_FOR, SqlMemory, check_swap
from audit.memory.sql.schema import VERSION, ddl
from audit.memory.sql.sqlite_lines import Line, Lines
from audit.memory.sql.tables import in_microseconds, written
from audit.memory.sql.url import parse_sqlite
from audit.row import AuditRow

#: Seconds between two tries to become the writer: a random number between these.
RETRY: Final = (0.000_05, 0.000_4)
_DIALECT: Final = SQLiteDialect_pysqlite(paramstyle="named")
#: Rowids of a foreign file must not be taken for ours.
_APPLICATION_ID: Final = 0x61756474
_KIND: Final = (b'"kind":"skill.invoked_completed"', b'"kind":"skill.invoked_late"')
_REPLAY: Final = (b'"redelivered":false', b'"redelivered":true')

_T = TypeVar("_T")


class SqliteMemory(SqlMemory):
    """An audit memory in a SQLite file.

    Args:
        url: ``sqlite:///relative.db`` or ``sqlite:////absolute/path.db``, with the parameter
            ``durability``: ``always`` (the default: every commit waits for the disk) or ``server``
            (it does not: a power cut may take the newest rows, a killed process none).
        timeout: seconds any call may take in all.
        pause: waits so many seconds.

    Raises:
        MemoryUrlError: the URL has a part that cannot be used.
    """

    def __init__(
        self, url: str, *, timeout: float = 2.0, pause: Callable[[float], None] = time.sleep
    ) -> None:
        path, self._durable = parse_sqlite(url)
        self._path = Path(path).absolute()
        # Not a function of SQLite's that calls ours: what a signal raises in there would be lost.
        now: Any = bindparam("now", callable_=_now, type_=BigInteger())
        super().__init__(None, now, timeout, pause)
        self._lines = Lines(self._path, self._prepare)

    @property
    def name(self) -> str:
        return f"sqlite {self._path}"

    @property
    def durability(self) -> str:
        return "always" if self._durable else "server"

    def check(self) -> None:
        with self._errors_of_ours(), self._lines.taken(self._deadline()):
            pass

    def close(self) -> None:
        self._lines.close()

    # --- writing ------------------------------------------------------------------------------

    def _store(self, row: AuditRow, once: Once | None, hold: Hold | None) -> str:
        emitted = Emitted.of(row, once, hold)
        return self._write(lambda connection: _Step(connection, emitted).word())

    def _renew(self, worker: str, seconds: float, deadline: float) -> None:
        now = _now()
        lease = (written(worker), now + in_microseconds(seconds), now)
        renewed = "INSERT OR REPLACE INTO audit_leases VALUES (?, ?, ?)"
        self._write(lambda connection: connection.execute(renewed, lease), deadline)

    def _forget(self, most: int, deadline: float) -> int:
        return self._write(lambda connection: _forget(connection, _now(), most), deadline)

    def drop_lease(self, worker: str) -> None:
        dropped = "UPDATE audit_leases SET until = 0 WHERE worker = ?"
        self._write(lambda connection: connection.execute(dropped, (written(worker),)))

    def lead(self, role: str, holder: str, seconds: float) -> bool:
        now = _now()
        leader = (written(role), written(holder), now + in_microseconds(seconds), now)
        led = """
            INSERT INTO audit_leaders AS l VALUES (?1, ?2, ?3)
            ON CONFLICT (role) DO UPDATE SET holder = excluded.holder, until = excluded.until
            WHERE l.holder = excluded.holder OR l.until <= ?4
        """
        return bool(self._write(lambda connection: connection.execute(led, leader).rowcount))

    def give_up(self, role: str, holder: str) -> None:
        given_up = "UPDATE audit_leaders SET until = 0 WHERE role = ? AND holder = ?"
        leader = (written(role), written(holder))
        self._write(lambda connection: connection.execute(given_up, leader))

    def swap_sealed(
        self, tenant_id: str, old: bytes | None, new: bytes, position: str | None = None
    ) -> bool:
        check_swap(new, position)
        tenant = written(tenant_id)

        def swap(connection: sqlite3.Connection) -> bool:
            connection.execute("INSERT OR IGNORE INTO audit_logs (tenant_id) VALUES (?)", (tenant,))
            swapped = connection.execute(
                "UPDATE audit_logs SET sealed = ?, sealed_position = coalesce(?, sealed_position)"
                " WHERE tenant_id = ? AND sealed IS ?",
                (new, position, tenant, old),
            )
            return bool(swapped.rowcount)

        return self._write(swap)

    def _trim_page(self, tenant_id: str, before: tuple[int, int], most: int) -> int:
        return self._write(lambda connection: _trim(connection, written(tenant_id), before, most))

    # --- statements ---------------------------------------------------------------------------

    def _ask(self, query: Any) -> Sequence[Any]:
        compiled = query.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
        deadline = self._deadline()
        with self._errors_of_ours(), self._lines.taken(deadline) as line:
            return self._patiently(
                lambda: line.execute(str(compiled), compiled.params).fetchall(), deadline
            )

    def _write(self, work: Callable[[sqlite3.Connection], _T], deadline: float | None = None) -> _T:
        """Do ``work`` as the one writer, in a transaction; nothing of it stays where it fails."""
        deadline, doubt = deadline or self._deadline(), [False]
        with self._errors_of_ours(doubt), self._lines.taken(deadline) as line:
            self._patiently(lambda: line.execute("BEGIN IMMEDIATE"), deadline)
            done = work(line)
            doubt[0] = True
            line.execute("COMMIT")
            return done

    def _patiently(self, step: Callable[[], _T], deadline: float) -> _T:
        """Do ``step`` again while others are in its way."""
        while True:
            try:
                return step()
            except sqlite3.OperationalError as error:
                # Python's own errors have no code.
                busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic() >= deadline:
                    raise
            self._pause(random.uniform(*RETRY))  # noqa: S311

    # --- connections --------------------------------------------------------------------------

    def _prepare(self, made: Line, deadline: float) -> None:
        self._patiently(lambda: self._set(made), deadline)

    def _set(self, made: Line) -> None:
        """The tables are made where there are none: a file of its own has no other owner."""
        made.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
        if made.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise MemoryUnsuitableError(
                f"the file system of {self._path} lets SQLite keep no WAL: use a local disk"
            )
        self._judge(made)

    def _judge(self, made: sqlite3.Connection) -> None:
        application = made.execute("PRAGMA application_id").fetchone()[0]
        if application == 0 and not made.execute("SELECT 1 FROM sqlite_schema").fetchone():
            self._make(made)
        elif application != _APPLICATION_ID:
            raise MemoryUnsuitableError(f"the file {self._path} is no audit memory")
        version = made.execute("SELECT version FROM audit_settings").fetchone()[0]
        if version != VERSION:
            raise MemoryUnsuitableError(
                f"the memory {self._path} has tables of version {version}, and this is for"
                f" {VERSION}: use the release that fits"
            )

    @staticmethod
    def _make(made: sqlite3.Connection) -> None:
        made.execute("BEGIN IMMEDIATE")
        try:
            if not made.execute("SELECT 1 FROM sqlite_schema").fetchone():
                for statement in _statements(ddl("sqlite")):
                    made.execute(statement)
                made.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            made.execute("COMMIT")
        except BaseException:
            if made.in_transaction:
                made.execute("ROLLBACK")
            raise

    @contextmanager
    def _errors_of_ours(self, doubt: Sequence[bool] = (False,)) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise MemoryUnavailableError(
                f"memory {self._path} did not answer as it should: {error}",
                maybe_stored=doubt[0],
            ) from error


class _Step:
    """Storing one row: what ``audit_emit`` does in PostgreSQL, by the only writer there is.

    Args:
        connection: in a transaction that began as a writer.
        emitted: the row.
    """

    def __init__(self, connection: sqlite3.Connection, emitted: Emitted) -> None:
        self._connection = connection
        self._emitted = emitted
        self._key = (emitted.request_id, emitted.tenant_id)
        self._known = connection.execute(
            "SELECT * FROM audit_invocations WHERE request_id = ? AND tenant_id = ?", self._key
        ).fetchone()

    def word(self) -> str:
        """What became of the row."""
        if self._emitted.action == "started":
            return self._start()
        if self._emitted.action == "refused":
            return self._refuse()
        return self._complete()

    def _start(self) -> str:
        known, stored = self._known, self._emitted.stored
        if known is None:
            return self._begin()
        if known.state in "tr":
            return "tombstone" if known.state == "t" else "was_refused"
        if known.first == _digest(stored):
            return "repeated"
        if self._emitted.once is not None and known.first == _digest(_reworded(stored, _REPLAY)):
            return "replayed"
        return "second_started_row"

    def _begin(self) -> str:
        if not self._take_tick():
            return "tick_taken"
        seen = self._seen_before()
        stored = self._emitted.stored
        self._open("o", 0, _reworded(stored, _REPLAY) if seen else stored, replayed=seen)
        return "replayed" if seen else "new"

    def _refuse(self) -> str:
        known, stored = self._known, self._emitted.stored
        if known is None:
            self._open("r", 2, stored, replayed=False)
            return "new"
        if known.state != "r":
            return "second_started_row"
        return "repeated" if known.first == _digest(stored) else "was_refused"

    def _complete(self) -> str:
        known, settled = self._known, self._emitted.action == "settled"
        if known is None or known.state == "t":
            return self._bar() if settled else "no_started_row" if known is None else "tombstone"
        if known.state == "r":
            return "settled" if settled else "was_refused"
        stored = self._emitted.stored
        if known.replayed:
            stored = _reworded(stored, _REPLAY)
        if known.state == "o":
            return self._close(stored)
        if known.last == _digest(stored):
            return "repeated"
        return "settled" if settled else self._late(_reworded(stored, _KIND))

    def _bar(self) -> str:
        if self._known is None:
            self._execute(
                "INSERT INTO audit_invocations (request_id, tenant_id, state) VALUES (?, ?, 't')",
                *self._key,
            )
        return "barred"

    def _close(self, stored: bytes) -> str:
        self._append(1, stored)
        self._execute(
            "UPDATE audit_invocations SET state = 'c', last = ?"
            " WHERE request_id = ? AND tenant_id = ?",
            _digest(stored),
            *self._key,
        )
        if self._emitted.dead is not None:
            self._execute(
                "INSERT INTO audit_deaths AS d VALUES (?, ?, 1)"
                " ON CONFLICT DO UPDATE SET deaths = d.deaths + 1",
                self._emitted.tenant_id,
                self._emitted.dead,
            )
        return "new"

    def _late(self, stored: bytes) -> str:
        digest, late = _digest(stored), self._known.late
        size = len(digest)
        if digest not in [late[at : at + size] for at in range(0, len(late), size)]:
            self._append(3 + len(late) // size, stored, kind="skill.invoked_late")
            self._execute(
                "UPDATE audit_invocations SET late = ? WHERE request_id = ? AND tenant_id = ?",
                late + digest,
                *self._key,
            )
        return "late"

    def _take_tick(self) -> bool:
        hold = self._emitted.hold
        if hold is None:
            return True
        now = _now()
        taken = self._execute(
            """
            INSERT INTO audit_ticks AS t VALUES (?1, ?2, ?3, ?4)
            ON CONFLICT DO UPDATE SET holder = excluded.holder, until = excluded.until
            WHERE t.until <= ?5 OR t.holder = excluded.holder
            """,
            self._emitted.tenant_id, written(hold.token), written(hold.holder),
            now + in_microseconds(hold.seconds), now,
        )  # fmt: skip
        return bool(taken.rowcount)

    def _seen_before(self) -> bool:
        once = self._emitted.once
        if once is None:
            return False
        now, key = _now(), (self._emitted.tenant_id, written(once.token))
        found = self._execute(
            "SELECT until FROM audit_tokens WHERE tenant_id = ? AND token = ?", *key
        ).fetchone()
        seen = found is not None and found.until > now
        until = max(now + in_microseconds(once.seconds), found.until if seen else 0)
        self._execute("INSERT OR REPLACE INTO audit_tokens VALUES (?, ?, ?, ?)", *key, now, until)
        return seen

    def _open(self, state: str, slot: int, stored: bytes, *, replayed: bool) -> None:
        turn, minor = self._append(slot, stored)
        self._execute(
            "INSERT INTO audit_invocations"
            " (request_id, tenant_id, state, replayed, turn, minor, first)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            *self._key, state, int(replayed), turn, minor, _digest(stored),
        )  # fmt: skip

    def _append(self, slot: int, stored: bytes, *, kind: str | None = None) -> tuple[int, int]:
        minor, emitted = _now(), self._emitted
        moment, own_kind, *columns = emitted.columns
        inserted = self._execute(
            "INSERT INTO audit_rows VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            minor, emitted.tenant_id, emitted.request_id, slot, moment, kind or own_kind,
            *columns, stored,
        )  # fmt: skip
        return int(inserted.lastrowid or 0), minor

    def _execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        return self._connection.execute(statement, arguments)


def _trim(connection: sqlite3.Connection, tenant: str, before: tuple[int, int], most: int) -> int:
    still_open = connection.execute(
        "SELECT turn, minor FROM audit_invocations WHERE tenant_id = ? AND state = 'o'"
        " ORDER BY turn LIMIT 1",
        (tenant,),
    ).fetchone()
    end = min(before, (still_open.turn, still_open.minor)) if still_open else before
    gone = connection.execute(
        "SELECT turn, minor FROM audit_rows WHERE tenant_id = ? AND (turn, minor) < (?, ?)"
        " ORDER BY turn LIMIT ?",
        (tenant, *end, most),
    ).fetchall()
    if not gone:
        return 0
    newest = connection.execute(
        "SELECT turn, minor FROM audit_rows WHERE tenant_id = ? ORDER BY turn DESC LIMIT 1",
        (tenant,),
    ).fetchone()
    connection.execute("INSERT INTO audit_trimming VALUES (?)", (tenant,))
    connection.execute(
        "DELETE FROM audit_rows WHERE tenant_id = ? AND turn <= ?", (tenant, gone[-1].turn)
    )
    connection.execute("DELETE FROM audit_trimming")
    connection.execute(
        "INSERT INTO audit_logs (tenant_id, trimmed, last_position) VALUES (?, ?, ?)"
        " ON CONFLICT DO UPDATE SET trimmed = excluded.trimmed,"
        " last_position = excluded.last_position",
        (tenant, f"{gone[-1].turn}-{gone[-1].minor + 1}", f"{newest.turn}-{newest.minor}"),
    )
    return len(gone)


def _forget(connection: sqlite3.Connection, now: int, most: int) -> int:
    """Remove at most so many tokens and ticks that have run out; how many of the more numerous."""
    gone = [
        connection.execute(
            f"DELETE FROM {table} WHERE (tenant_id, token) IN (SELECT tenant_id, token"  # noqa: S608
            f" FROM {table} WHERE until < ? ORDER BY until LIMIT ?)",
            (now, most),
        ).rowcount
        for table in ("audit_tokens", "audit_ticks")
    ]
    connection.execute("DELETE FROM audit_leases WHERE max(seen, until) < ?", (now - SEEN_FOR,))
    return max(gone)


def _statements(text: str) -> Iterator[str]:
    """The statements of a script, one at a time: executescript would commit in between."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _digest(stored: bytes) -> bytes:
    return hashlib.sha256(stored).digest()


def _reworded(stored: bytes, words: tuple[bytes, bytes]) -> bytes:
    """The one key with this value; inside any text of the row the quotes would be escaped."""
    return stored.replace(*words, 1)


def _now() -> int:
    return time.time_ns() // 1_000
