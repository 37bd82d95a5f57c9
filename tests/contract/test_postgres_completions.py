"""PostgreSQL: where a completion's row comes to stand, and what the server looks at for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from audit.memory import migrate_memory
from audit.memory.base import Stored
from audit.row import AuditRow
from demo.postgres import PostgresServer
from tests.support import (
    TENANT,
    checked_memory,
    completed,
    make_identity,
    started,
    wait_until,
)

SCHEMA = "audit_completions"
#: Taken while completions of the session that is named are to wait.
BAR = 4711
#: A statement of that session has its transaction, and what it sees, before it waits.
HOLD_UP = f"""
CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF current_setting('application_name') = 'behind' THEN
    IF NOT pg_try_advisory_lock({BAR}) THEN
      PERFORM pg_current_xact_id();
      PERFORM pg_advisory_lock({BAR});
    END IF;
    PERFORM pg_advisory_unlock({BAR});
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER hold_up BEFORE UPDATE ON audit_invocations
  FOR EACH STATEMENT EXECUTE FUNCTION hold_up();
"""
WAITS = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = %s"


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    url = postgres.url(schema=SCHEMA)
    migrate_memory(url)
    yield url
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


@pytest.fixture
def admin(postgres: PostgresServer, url: str) -> Iterator[psycopg.Connection]:
    """The owner's connection, in the memory's schema."""
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"SET search_path = {SCHEMA}")
        yield connection


def test_a_late_row_stands_behind_the_one_it_is_late_to(
    url: str, admin: psycopg.Connection
) -> None:
    """The other completion got ahead of it in the midst of its statement, with a later turn."""
    admin.execute(HOLD_UP.encode())
    identity, found = make_identity(), []
    with (
        checked_memory(f"{url}&application_name=behind", timeout=30) as behind,
        checked_memory(url, timeout=30) as memory,
    ):
        memory.emit(started(identity))
        admin.execute("SELECT pg_advisory_lock(%s)", (BAR,))
        thread = threading.Thread(
            target=lambda: found.append(behind.emit(completed(identity, duration_ms=2)))
        )
        thread.start()
        wait_until(lambda: admin.execute(WAITS, (BAR,)).fetchone() is not None)
        assert memory.emit(completed(identity, duration_ms=1)) is Stored.NEW
        admin.execute("SELECT pg_advisory_unlock(%s)", (BAR,))
        thread.join()
        assert found == [Stored.LATE]
        kinds = [AuditRow.from_bytes(e.stored).kind for e in memory.entries(TENANT, None, 9)]
    assert [kind.rpartition("_")[2] for kind in kinds] == ["started", "completed", "late"]


def test_a_completion_looks_for_its_invocation_alone(url: str, admin: psycopg.Connection) -> None:
    """By its key, also where few were open when the server last counted: what was closed since an
    old transaction began stands in the index of the open ones still."""
    closed = "SELECT %s, 'c' || n, 'c', n, n FROM generate_series(1, 20000) n"
    columns = "audit_invocations (tenant_id, request_id, state, turn, minor)"
    admin.execute("ALTER TABLE audit_invocations SET (autovacuum_enabled = off)")
    admin.execute(f"INSERT INTO {columns} {closed}".encode(), (TENANT,))
    admin.execute("ANALYZE audit_invocations")
    identities = [make_identity() for _ in range(20)]
    with checked_memory(url, timeout=30) as memory:
        for identity in identities:
            memory.emit(started(identity))
        before = scans(admin)
        for identity in identities:
            memory.emit(completed(identity))
        wait_until(
            lambda: scans(admin)["audit_invocations_pkey"] > before["audit_invocations_pkey"]
        )
        assert scans(admin)["audit_invocations_open"] == before["audit_invocations_open"]


def scans(admin: psycopg.Connection) -> dict[str, int]:
    """How often each index of the invocations was asked, as far as sessions have told."""
    admin.execute("SELECT pg_stat_clear_snapshot()")
    found = admin.execute(
        "SELECT indexrelname, idx_scan FROM pg_stat_user_indexes"
        " WHERE schemaname = %s AND relname = 'audit_invocations'",
        (SCHEMA,),
    )
    return dict(found.fetchall())
