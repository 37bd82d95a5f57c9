"""What only PostgreSQL promises: rights, triggers, late commits, silence, and other clusters."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import psycopg
import pytest
from click.testing import CliRunner
from psycopg import errors

from audit.cli import audit
from audit.errors import MemoryUnavailableError, MemoryUnsuitableError
from audit.memory import migrate_memory, open_memory
from audit.memory.base import Stored
from audit.memory.sql.emitted import Emitted
from audit.memory.sql.postgres import PostgresMemory
from demo.postgres import PostgresServer, copy_of, programs
from tests.support import TENANT, checked_memory, completed, make_identity, started, wait_until


@pytest.fixture
def memory(postgres_url: str) -> Iterator[PostgresMemory]:
    with checked_memory(postgres_url) as made:
        assert isinstance(made, PostgresMemory)
        yield made


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may freeze or end."""
    server = PostgresServer()
    yield server
    server.close()


def schema_of(url: str) -> str:
    return url.rpartition("schema=")[2]


@pytest.fixture
def admin(postgres: PostgresServer, postgres_url: str) -> Iterator[psycopg.Connection]:
    """The owner's connection, in the memory's schema."""
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"SET search_path = {schema_of(postgres_url)}")
        yield connection


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_rows SET stored = 'x'",
        "DELETE FROM audit_rows",
        "TRUNCATE audit_rows",
    ],
)
def test_not_even_the_owner_changes_rows(
    memory: PostgresMemory, admin: psycopg.Connection, statement: str
) -> None:
    """A trigger refuses it."""
    memory.emit(started(make_identity()))
    with pytest.raises(errors.RaiseException, match="append-only"):
        admin.execute(statement)
    assert len(list(memory.rows())) == 1


@pytest.fixture
def roles(admin: psycopg.Connection, postgres_url: str) -> Iterator[None]:
    for role in ("skill_writer", "skill_reader"):
        admin.execute(f"CREATE ROLE {role} LOGIN")
    migrate_memory(postgres_url, writer="skill_writer", reader="skill_reader")
    yield
    for role in ("skill_writer", "skill_reader"):
        admin.execute(f"DROP OWNED BY {role}")
        admin.execute(f"DROP ROLE {role}")


@pytest.mark.usefixtures("roles")
def test_the_writer_may_emit_and_nothing_else(postgres_url: str) -> None:
    """All that a memory does works; no statement on rows, tokens or checkpoints does."""
    url = postgres_url.replace("postgres@", "skill_writer@")
    identity = make_identity()
    with checked_memory(url) as memory:
        memory.emit(started(identity))
        memory.emit(completed(identity))
        memory.hold_lease("worker-1", 5)
        assert memory.lead("keeper", "me", 5)
        assert memory.leases(["worker-1"]) == {"worker-1"}
        assert memory.swap_sealed(TENANT, None, b"note", "1-1")
    with psycopg.connect(url.replace(f"&schema={schema_of(url)}", ""), autocommit=True) as writer:
        writer.execute(f"SET search_path = {schema_of(postgres_url)}")
        for statement in (
            "INSERT INTO audit_rows SELECT * FROM audit_rows",
            "UPDATE audit_rows SET stored = 'x'",
            "DELETE FROM audit_rows",
            "TRUNCATE audit_rows",
            "UPDATE audit_invocations SET state = 'o'",
            "DELETE FROM audit_invocations",
            "UPDATE audit_logs SET sealed = NULL",
            "UPDATE audit_settings SET ahead = 0",
            "ALTER TABLE audit_rows DISABLE TRIGGER ALL",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                writer.execute(statement)


@pytest.mark.usefixtures("roles")
def test_the_reader_may_only_read(memory: PostgresMemory, postgres_url: str) -> None:
    """Rows and what is running; nothing can be stored, leased, sealed or trimmed."""
    memory.emit(started(make_identity()))
    reader = open_memory(postgres_url.replace("postgres@", "skill_reader@"))
    assert len(list(reader.rows())) == len(list(reader.running())) == 1
    assert len(reader.entries(TENANT, None, 5)) == 1
    for attempt in (
        lambda: reader.emit(started(make_identity())),
        lambda: reader.hold_lease("worker-1", 5),
        lambda: reader.swap_sealed(TENANT, None, b"note"),
        lambda: reader.trim(TENANT, "99999999-0"),
    ):
        with pytest.raises(MemoryUnavailableError, match="permission denied"):
            attempt()
    reader.close()


def test_a_row_that_commits_late_is_not_skipped(
    memory: PostgresMemory, admin: psycopg.Connection
) -> None:
    """What was stored behind a transaction that still runs waits for it, then comes in order."""
    first = make_identity()
    emitted = Emitted.of(started(first), None, None)
    with psycopg.connect(admin.info.dsn) as slow:
        slow.execute("SELECT set_config('search_path', %s, false)", (admin_path(admin),))
        slow.execute(
            f"SELECT audit_emit({', '.join(['%s'] * 17)})",
            (
                emitted.action, emitted.tenant_id, emitted.request_id, emitted.stored,
                *emitted.columns, None, None, None, None, None, None,
            ),
        )  # fmt: skip
        second = make_identity()
        memory.emit(started(second))
        assert memory.entries(TENANT, None, 10) == []
        assert memory.last_position(TENANT) is None
        assert [row.request_id for row in memory.rows()] == [second.request_id]
    entries = memory.entries(TENANT, None, 10)
    assert [started(first).request_id in str(e.stored) for e in entries] == [True, False]
    assert memory.entries(TENANT, entries[0].position, 10) == entries[1:]


def admin_path(admin: psycopg.Connection) -> str:
    found = admin.execute("SHOW search_path").fetchone()
    assert found is not None
    return str(found[0])


def test_a_frozen_server_keeps_nobody(own_server: PostgresServer) -> None:
    """The emit fails within its deadline, may have stored its row, and is done again safely."""
    migrate_memory(own_server.url())
    row = started(make_identity())
    with checked_memory(own_server.url()) as patient:
        memory = open_memory(own_server.url(), timeout=0.5)
        memory.check()
        with frozen(own_server):
            began = time.monotonic()
            with pytest.raises(MemoryUnavailableError) as caught:
                memory.emit(row)
            assert time.monotonic() - began < 30
            assert caught.value.maybe_stored
            fresh = open_memory(own_server.url(), timeout=0.5)
            with pytest.raises(MemoryUnavailableError):
                fresh.check()
        assert patient.emit(row) in (Stored.NEW, Stored.REPEATED)
        assert len(list(patient.rows())) == 1
        memory.close()


class frozen:
    """The server and all its processes stand still."""

    def __init__(self, server: PostgresServer) -> None:
        main = psutil.Process(server.process.pid)
        self._all = [main, *main.children(recursive=True)]

    def __enter__(self) -> None:
        for process in self._all:
            process.send_signal(signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.send_signal(signal.SIGCONT)


def test_what_was_taken_outlives_the_server(own_server: PostgresServer) -> None:
    """A server that is shot and comes back has every row, and idle connections do not matter."""
    migrate_memory(own_server.url())
    identity = make_identity()
    with checked_memory(own_server.url(), timeout=30) as memory:
        memory.emit(started(identity))
        own_server.stop()
        own_server.start()
        assert memory.emit(started(identity, ts=next(memory.rows()).ts)) is Stored.REPEATED
        assert memory.emit(completed(identity)) is Stored.NEW


def test_rows_of_another_cluster_keep_their_place(
    own_server: PostgresServer, postgres: PostgresServer
) -> None:
    """A dump that is restored where transactions count lower is refused, until it is migrated."""
    migrate_memory(postgres.url(schema="moved"))
    old = make_identity()
    with checked_memory(postgres.url(schema="moved")) as memory:
        memory.emit(started(old))
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        wait_until(lambda: spend_transaction(connection) > 2_000, 60)
        connection.execute("SET search_path = moved")
    with checked_memory(postgres.url(schema="moved")) as memory:
        memory.emit(completed(old))
        before = [row.to_bytes() for row in memory.rows()]
    own_server.restore(postgres.dump("moved"))
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute("DROP SCHEMA moved CASCADE")

    url = own_server.url(schema="moved")
    with pytest.raises(MemoryUnsuitableError, match="another database cluster"):
        open_memory(url).check()
    assert migrate_memory(url)
    with checked_memory(url) as memory:
        memory.emit(new := started(make_identity()))
        assert [row.to_bytes() for row in memory.rows()] == [*before, new.to_bytes()]
        assert len(memory.entries(TENANT, None, 10)) == 3


def spend_transaction(connection: psycopg.Connection) -> int:
    found = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    assert found is not None
    return int(found[0])


def test_a_memory_without_tables_says_what_to_do(postgres: PostgresServer) -> None:
    """And so does one whose tables are of another release."""
    url = postgres.url(schema="nowhere")
    with pytest.raises(MemoryUnsuitableError, match="audit migrate"):
        open_memory(url).check()
    migrate_memory(url)
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute("UPDATE nowhere.audit_settings SET version = 99")
        for attempt in (lambda: open_memory(url).check(), lambda: migrate_memory(url)):
            with pytest.raises(MemoryUnsuitableError, match="version 99"):
                attempt()
        connection.execute("DROP SCHEMA nowhere CASCADE")


def test_a_server_that_may_lose_rows_is_refused(
    postgres_url: str, admin: psycopg.Connection
) -> None:
    """Where commits do not wait for the disk; the URL may ask that its own do."""
    admin.execute("ALTER ROLE postgres SET synchronous_commit = off")
    try:
        with pytest.raises(MemoryUnsuitableError, match="may lose rows"):
            open_memory(postgres_url).check()
        open_memory(f"{postgres_url}&durability=always").check()
    finally:
        admin.execute("ALTER ROLE postgres RESET synchronous_commit")


def test_migrating_again_changes_nothing(postgres_url: str) -> None:
    """What is up to date stays as it is."""
    assert migrate_memory(postgres_url) == []


def test_the_command_makes_the_tables(postgres: PostgresServer) -> None:
    """`audit migrate` says what it did, and that nothing is left to do."""
    url = postgres.url(schema="by_command")
    for said in ("tables of version 1 were made", "up to date"):
        done = CliRunner().invoke(audit, ["--memory", url, "migrate"], obj=SimpleNamespace())
        assert (done.exit_code, said in done.output) == (0, True), done.output
    with checked_memory(url) as memory:
        memory.emit(started(make_identity()))
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute("DROP SCHEMA by_command CASCADE")
    done = CliRunner().invoke(audit, ["--memory", "redis://h", "migrate"], obj=SimpleNamespace())
    assert done.exit_code == 1
    assert "only a memory in PostgreSQL" in done.output


def test_a_server_starts_from_a_folder_that_is_its_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where root keeps its environment: the server itself never runs as root."""
    copied = copy_of(programs(), tmp_path / "closed")
    (tmp_path / "closed").chmod(0o700)
    monkeypatch.setattr("demo.postgres.programs", lambda: copied)
    with PostgresServer() as server, psycopg.connect(server.url()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
