"""What is done to a SQLite file within one transaction, by the only writer there is.

Storing a row, trimming, and forgetting what has run out: what PostgreSQL's functions do.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from typing import Any, Final

from audit.memory.sql.emitted import Emitted
from audit.memory.sql.memory import SEEN_FOR
from audit.memory.sql.tables import in_microseconds, written

_KIND: Final = (b'"kind":"skill.invoked_completed"', b'"kind":"skill.invoked_late"')
_REPLAY: Final = (b'"redelivered":false', b'"redelivered":true')


class Step:
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
        moment = now()
        taken = self._execute(
            """
            INSERT INTO audit_ticks AS t VALUES (?1, ?2, ?3, ?4)
            ON CONFLICT DO UPDATE SET holder = excluded.holder, until = excluded.until
            WHERE t.until <= ?5 OR t.holder = excluded.holder
            """,
            self._emitted.tenant_id, written(hold.token), written(hold.holder),
            moment + in_microseconds(hold.seconds), moment,
        )  # fmt: skip
        return bool(taken.rowcount)

    def _seen_before(self) -> bool:
        once = self._emitted.once
        if once is None:
            return False
        moment, key = now(), (self._emitted.tenant_id, written(once.token))
        found = self._execute(
            "SELECT until FROM audit_tokens WHERE tenant_id = ? AND token = ?", *key
        ).fetchone()
        seen = found is not None and found.until > moment
        until = max(moment + in_microseconds(once.seconds), found.until if seen else 0)
        self._execute(
            "INSERT OR REPLACE INTO audit_tokens VALUES (?, ?, ?, ?)", *key, moment, until
        )
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
        minor, emitted = now(), self._emitted
        moment, own_kind, *columns = emitted.columns
        inserted = self._execute(
            "INSERT INTO audit_rows VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            minor, emitted.tenant_id, emitted.request_id, slot, moment, kind or own_kind,
            *columns, stored,
        )  # fmt: skip
        return int(inserted.lastrowid or 0), minor

    def _execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        return self._connection.execute(statement, arguments)


def trim(connection: sqlite3.Connection, tenant: str, before: tuple[int, int], most: int) -> int:
    """Remove at most so many rows of a tenant before a place; how many went."""
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


def forget(connection: sqlite3.Connection, moment: int, most: int) -> int:
    """Remove at most so many tokens and ticks that have run out; how many of the more numerous."""
    gone = [
        connection.execute(
            f"DELETE FROM {table} WHERE (tenant_id, token) IN (SELECT tenant_id, token"  # noqa: S608
            f" FROM {table} WHERE until < ? ORDER BY until LIMIT ?)",
            (moment, most),
        ).rowcount
        for table in ("audit_tokens", "audit_ticks")
    ]
    connection.execute("DELETE FROM audit_leases WHERE max(seen, until) < ?", (moment - SEEN_FOR,))
    return max(gone)


def _digest(stored: bytes) -> bytes:
    return hashlib.sha256(stored).digest()


def _reworded(stored: bytes, words: tuple[bytes, bytes]) -> bytes:
    """The one key with this value; inside any text of the row the quotes would be escaped."""
    return stored.replace(*words, 1)


def now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1_000
