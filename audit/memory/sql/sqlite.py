"""An audit memory in a SQLite file: for a laptop, and one machine.

Every row is one transaction that begins as a writer (BEGIN IMMEDIATE) in WAL mode, so that several
processes may write and readers never wait. SQLite's own busy handler lets writers starve, so the
waiting is ours: short, and at random.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import BigInteger, bindparam
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from audit.errors import MemoryUnavailableError, MemoryUnsuitableError
from audit.memory.base import Hold, Once
from audit.memory.entry import check_swap
from audit.memory.sql.emitted import Emitted
from audit.memory.sql.memory import SqlMemory
from audit.memory.sql.schema import VERSION, ddl
from audit.memory.sql.sqlite_lines import Line, Lines, size_of
from audit.memory.sql.sqlite_steps import Step, forget, now, trim
from audit.memory.sql.tables import in_microseconds, written
from audit.memory.sql.url import parse_sqlite
from audit.row import AuditRow

#: Seconds between two tries to become the writer: a random number between these.
RETRY: Final = (0.000_05, 0.000_4)
#: Pages of the log of writes after which a writer copies them into the file, and waits for the disk
#: twice more. A row is some 8 pages: with SQLite's own 1,000 pages one emit of 100 would.
CHECKPOINT: Final = 3_000
#: Bytes from which on the log of writes is put into the file; how many seconds others may prevent
#: it, and how many milliseconds each try waits for them.
LONG_WAL: Final = 16 * 2**20
SHORTEN_FOR: Final = 0.1
SHORTEN_MS: Final = 5
_DIALECT: Final = SQLiteDialect_pysqlite(paramstyle="named")
#: Rowids of a foreign file must not be taken for ours.
_APPLICATION_ID: Final = 0x61756474

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
        clock: Any = bindparam("now", callable_=now, type_=BigInteger())
        super().__init__(None, clock, timeout, pause)
        self._lines = Lines(self._path, self._prepare)
        self._wal, self._shorten_at = f"{self._path}-wal", 0.0

    @property
    def name(self) -> str:
        return f"sqlite {self._path}"

    @property
    def durability(self) -> str:
        return "always" if self._durable else "server"

    def check(self) -> None:
        """Also whether this process may write; of what it tries nothing gets to the disk."""
        deadline = self._deadline()
        with self._errors_of_ours(), self._lines.taken(deadline) as line:
            self._patiently(lambda: line.execute("BEGIN IMMEDIATE"), deadline)
            line.execute("UPDATE audit_settings SET version = version")
            line.execute("ROLLBACK")

    def close(self) -> None:
        self._lines.close()

    # --- writing ------------------------------------------------------------------------------

    def _store(self, row: AuditRow, once: Once | None, hold: Hold | None) -> str:
        emitted = Emitted.of(row, once, hold)
        return self._write(lambda connection: Step(connection, emitted).word())

    def _renew(self, worker: str, seconds: float, deadline: float) -> None:
        moment = now()
        lease = (written(worker), moment + in_microseconds(seconds), moment)
        renewed = "INSERT OR REPLACE INTO audit_leases VALUES (?, ?, ?)"
        self._write(lambda connection: connection.execute(renewed, lease), deadline)

    def _forget(self, most: int, deadline: float) -> int:
        return self._write(lambda connection: forget(connection, now(), most), deadline)

    def drop_lease(self, worker: str) -> None:
        dropped = "UPDATE audit_leases SET until = 0 WHERE worker = ?"
        self._write(lambda connection: connection.execute(dropped, (written(worker),)))

    def lead(self, role: str, holder: str, seconds: float) -> bool:
        moment = now()
        leader = (written(role), written(holder), moment + in_microseconds(seconds), moment)
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
        return self._write(lambda connection: trim(connection, written(tenant_id), before, most))

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
            self._shorten(line)
            return done

    def _shorten(self, line: Line) -> None:
        """Put what the log of writes holds into the file, where it has become long.

        SQLite does so by itself, but begins the log anew only when nobody is reading, which among
        several processes is never. Tried once a second at most, and not for long.
        """
        now = time.monotonic()
        if now < self._shorten_at or size_of(self._wal) <= LONG_WAL:
            return
        self._shorten_at = now + 1
        with suppress(sqlite3.OperationalError):
            line.execute(f"PRAGMA busy_timeout = {SHORTEN_MS}")
            # Again and again, for in one long wait the other writers are always quicker.
            while time.monotonic() < now + SHORTEN_FOR:
                if line.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0:
                    break
        line.execute("PRAGMA busy_timeout = 0")

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
        made.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT}")
        self._judge(made)

    def _judge(self, made: sqlite3.Connection) -> None:
        if self._application_of(made) == 0:
            self._make(made)
        # Asked again: others may have made it between the two looks.
        if self._application_of(made) != _APPLICATION_ID:
            raise MemoryUnsuitableError(f"the file {self._path} is no audit memory")
        version = made.execute("SELECT version FROM audit_settings").fetchone()[0]
        if version != VERSION:
            raise MemoryUnsuitableError(
                f"the memory {self._path} has tables of version {version}, and this is for"
                f" {VERSION}: use the release that fits"
            )

    @staticmethod
    def _application_of(made: sqlite3.Connection) -> int:
        return int(made.execute("PRAGMA application_id").fetchone()[0])

    @staticmethod
    def _make(made: sqlite3.Connection) -> None:
        """Make the tables in an empty file; one of somebody else is left as it is."""
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


def _statements(text: str) -> Iterator[str]:
    """The statements of a script, one at a time: executescript would commit in between."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
