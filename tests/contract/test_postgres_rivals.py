"""PostgreSQL: calls that are made at once, roles that want more, servers that stand still."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors

from audit.errors import MemoryUnavailableError, MemoryUnsuitableError, RowRefusedError
from audit.memory import migrate_memory, open_memory
from audit.memory.base import AuditMemory, Hold, Once, RowFilter, Stored
from audit.memory.sql.postgres import PostgresMemory
from audit.row import AuditRow, Reason
from demo.postgres import PostgresServer
from tests.support import (
    TENANT,
    checked_memory,
    completed,
    make_ending,
    make_identity,
    refused,
    started,
    wait_until,
)

THREADS = 8


@pytest.fixture
def memory(postgres_url: str) -> Iterator[PostgresMemory]:
    with checked_memory(postgres_url, timeout=30) as made:
        assert isinstance(made, PostgresMemory)
        yield made


@pytest.fixture
def admin(postgres: PostgresServer, postgres_url: str) -> Iterator[psycopg.Connection]:
    """The owner's connection, in the memory's schema."""
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"SET search_path = {postgres_url.rpartition('schema=')[2]}")
        yield connection


def at_once(*calls: object) -> list[object]:
    """What calls that begin together give; an error is given, too."""
    found: list[object] = [None] * len(calls)
    barrier = threading.Barrier(len(calls))

    def call(place: int) -> None:
        barrier.wait()
        try:
            found[place] = calls[place]()  # type: ignore[operator]
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=call, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_everything_at_once_keeps_every_promise(memory: PostgresMemory) -> None:
    """Starts, rivals, settlers and refusals of the same invocations, by many threads.

    Nothing fails but what is refused, no deadlock among it; of each message one start is the first
    and all others are replays, and of each tick one message starts.
    """
    calls = []
    for message in range(6):
        once = Once(token=f"m{message}", seconds=600)
        hold = Hold(token=f"tick{message // 2}", holder=f"m{message}", seconds=600)
        for _ in range(5):
            identity = make_identity(task_id=f"t{message}")
            start = started(identity)
            ends = [
                completed(identity, make_ending(reason))
                for reason in (Reason.RETURNED, Reason.RAISED, Reason.ABANDONED)
            ]
            calls += [(start, once, hold)] * 4 + [(end, None, None) for end in ends * 2]
            calls += [(refused(make_identity()), None, None)] * 2
    random.Random(7).shuffle(calls)

    def work(mine: list[object]) -> Counter[str]:
        words: Counter[str] = Counter()
        for row, once, hold in mine:  # type: ignore[misc]
            try:
                words[memory.emit(row, once, hold).value] += 1
            except RowRefusedError as error:
                words[error.refusal] += 1
        return words

    shares = [calls[n::THREADS] for n in range(THREADS)]
    found = at_once(*[lambda mine=mine: work(mine) for mine in shares])  # type: ignore[misc]
    assert [type(words) for words in found] == [Counter] * THREADS, found
    starts: dict[str, list[bool]] = {}
    for row in memory.rows(kind="skill.invoked_started"):
        starts.setdefault(str(row.meta["task_id"]), []).append(bool(row.meta["redelivered"]))
    assert starts
    for replays in starts.values():
        assert replays == [False] + [True] * (len(replays) - 1)
    assert {int(name[1:]) // 2 for name in starts} == {0, 1, 2}
    assert len(starts) == 3


def test_two_starts_in_one_microsecond_are_told_apart(
    memory: PostgresMemory, admin: psycopg.Connection
) -> None:
    """By their transactions: the second is a replay though the clock has not moved."""
    admin.execute("CREATE OR REPLACE FUNCTION audit_now() RETURNS bigint LANGUAGE sql VOLATILE AS "
                  "$$ SELECT 1800000000000000 $$")  # fmt: skip
    once = Once(token="message", seconds=60)
    first, second = started(make_identity()), started(make_identity())
    assert memory.emit(first, once) is Stored.NEW
    assert memory.emit(second, once) is Stored.REPLAYED
    assert memory.emit(second, once) is Stored.REPLAYED


def test_two_trims_at_once_remove_all_of_it(
    memory: PostgresMemory, postgres: PostgresServer, postgres_url: str
) -> None:
    """One goes on where the other stopped; both say what they removed, and the mark is exact."""
    for _ in range(5):
        identity = make_identity()
        memory.emit(started(identity))
        memory.emit(completed(identity))
    last = memory.last_position(TENANT)
    assert last is not None
    found: list[int] = []
    second = threading.Thread(
        target=lambda: found.append(memory.trim(TENANT, f"{2**64 - 1}-{2**64 - 1}"))
    )
    with psycopg.connect(postgres.url()) as first, pytest.MonkeyPatch.context() as patch:
        patch.setattr("audit.memory.sql.memory.TRIM_PAGE", 3)
        first.execute(f"SET search_path = {postgres_url.rpartition('schema=')[2]}")
        first.execute("SELECT audit_trim(%s, %s, 0, 3)", (TENANT, 2**62))
        second.start()
        wait_until(lambda: _waits(postgres))
        first.commit()
        second.join()
    assert found == [7]
    turn, minor = map(int, last.split("-"))
    assert memory.trimmed(TENANT) == f"{turn}-{minor + 1}"
    assert memory.last_position(TENANT) == last


def _waits(postgres: PostgresServer) -> bool:
    """Whether anybody waits for a lock."""
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        return bool(connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall())


def test_the_last_position_is_never_ahead_of_what_is_settled(
    memory: PostgresMemory, postgres: PostgresServer
) -> None:
    """A trim beside a transaction that still runs notes none that the sealer could not have had."""
    old, new = make_identity(), make_identity()
    for row in (started(old), completed(old)):
        memory.emit(row)
    last = memory.last_position(TENANT)
    with psycopg.connect(postgres.url()) as slow:
        slow.execute("SELECT pg_current_xact_id()")
        for row in (started(new), completed(new)):
            memory.emit(row)
        assert memory.trim(TENANT, f"{2**63}-0") == 2
        assert memory.last_position(TENANT) == last
        assert memory.entries(TENANT, None, 10) == []
    assert len(memory.entries(TENANT, None, 10)) == 2


def test_what_ran_out_is_forgotten(
    memory: PostgresMemory, postgres_url: str, admin: psycopg.Connection
) -> None:
    """By the writer's role, with each renewal of a lease; what an emit has in hand stays."""
    admin.execute("CREATE ROLE skill_forgetter LOGIN")
    migrate_memory(postgres_url, writer="skill_forgetter")
    memory.emit(
        started(make_identity()), Once(token="lasts", seconds=60),
        Hold(token="lasts", holder="h", seconds=60),
    )  # fmt: skip
    memory.hold_lease("lives", 5)
    admin.execute(
        "INSERT INTO audit_tokens SELECT 't', 'x' || n, 1, 2 FROM generate_series(1, 30) n"
    )
    admin.execute(
        "INSERT INTO audit_ticks SELECT 't', 'x' || n, 'h', 2 FROM generate_series(1, 30) n"
    )
    admin.execute("INSERT INTO audit_leases VALUES ('long gone', 1, 1)")
    writer = open_memory(postgres_url.replace("postgres@", "skill_forgetter@"))

    def left() -> list[int]:
        counts = "SELECT (SELECT count(*) FROM audit_tokens), (SELECT count(*) FROM audit_ticks)"
        return list(admin.execute(counts).fetchall()[0])

    with psycopg.connect(admin.info.dsn, autocommit=False) as emitting:
        emitting.execute(f"SET search_path = {postgres_url.rpartition('schema=')[2]}")
        emitting.execute("UPDATE audit_tokens SET until = 3 WHERE token = 'x1'")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("audit.memory.sql.memory.FORGET_PAGE", 10)
            writer.hold_lease("sweeps", 5)
            assert left() == [2, 1]
    assert {row[0] for row in admin.execute("SELECT worker FROM audit_leases")} == {
        "lives",
        "sweeps",
    }
    writer.close()
    admin.execute("DROP OWNED BY skill_forgetter")
    admin.execute("DROP ROLE skill_forgetter")


def test_a_writer_cannot_put_tables_of_its_own_in_the_memorys_place(
    memory: PostgresMemory, postgres_url: str, admin: psycopg.Connection
) -> None:
    """A temporary table's triggers would run with the owner's rights; no function looks at one."""
    admin.execute("CREATE ROLE skill_climber LOGIN")
    migrate_memory(postgres_url, writer="skill_climber")
    schema = postgres_url.rpartition("schema=")[2]
    url = postgres_url.replace("postgres@", "skill_climber@").replace(f"&schema={schema}", "")
    with psycopg.connect(url, autocommit=True) as climber:
        climber.execute(f"CREATE TEMP TABLE audit_logs (LIKE {schema}.audit_logs INCLUDING ALL)")
        climber.execute(
            "CREATE FUNCTION pg_temp.climb() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" ALTER TABLE {schema}.audit_rows DISABLE TRIGGER ALL; RETURN NEW; END $$"
        )
        climber.execute(
            "CREATE TRIGGER climb BEFORE INSERT ON audit_logs"
            " FOR EACH ROW EXECUTE FUNCTION pg_temp.climb()"
        )
        climber.execute("GRANT ALL ON audit_logs TO PUBLIC")
        climber.execute(f"SELECT {schema}.audit_swap_sealed('t', NULL, 'note', NULL)")
        assert climber.execute("SELECT * FROM pg_temp.audit_logs").fetchall() == []
    assert memory.sealed("t") == b"note"
    memory.emit(started(make_identity()))
    with pytest.raises(errors.RaiseException, match="append-only"):
        admin.execute("DELETE FROM audit_rows")
    admin.execute("DROP OWNED BY skill_climber")
    admin.execute("DROP ROLE skill_climber")


@pytest.mark.parametrize("length", [100, 3_000, 100_000])
def test_a_long_name_is_no_reason_not_to_store_a_row(memory: PostgresMemory, length: int) -> None:
    """Whatever a caller takes for a task's id: the row is stored, and found by it."""
    seeded = random.Random(length)
    task_id = "".join(chr(seeded.randrange(0x4E00, 0x9000)) for _ in range(length)) + "\0\\"
    identity = make_identity(task_id=task_id)
    other = make_identity(task_id=task_id[:-1])
    token = "".join(chr(seeded.randrange(33, 127)) for _ in range(length))
    once = Once(token=token, seconds=10**18)
    hold = Hold(token=token, holder=token, seconds=10**18)
    assert memory.emit(started(identity), once, hold) is Stored.NEW
    assert memory.emit(completed(identity, make_ending(Reason.ABANDONED))) is Stored.NEW
    assert memory.emit(started(other), Once(token=f"{token}x", seconds=1)) is Stored.NEW
    assert len(list(memory.rows(task_id=task_id))) == 2
    assert memory.page(RowFilter(task_id=task_id)).looked == 2
    assert memory.deaths(TENANT, f"{task_id}/0") == 1
    assert memory.emit(started(make_identity()), once, hold) is Stored.REPLAYED


def test_half_a_character_finds_nothing(memory: PostgresMemory) -> None:
    """And is no error of the driver's."""
    assert list(memory.rows(skill_id="\ud800")) == []
    assert memory.sealed("\udfff") is None


def test_a_server_that_never_says_a_word_keeps_nobody() -> None:
    """It takes connections and is silent: each call ends within its deadline."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/db"
        memory = open_memory(url, timeout=0.5)
        began = time.monotonic()
        with pytest.raises(MemoryUnavailableError) as caught:
            memory.emit(started(make_identity()))
        assert time.monotonic() - began < 5
        assert not caught.value.maybe_stored


def test_a_signal_is_not_kept_waiting_by_a_server_that_stands_still() -> None:
    """Neither does the driver ask that server to cancel first, nor is the connection used again."""
    server = PostgresServer()
    try:
        migrate_memory(server.url())
        memory = open_memory(server.url(), timeout=60)
        assert isinstance(memory, PostgresMemory)
        memory.check()
        with psycopg.connect(server.url()) as blocking:
            blocking.execute("LOCK TABLE audit.audit_invocations")
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            server.process.send_signal(signal.SIGSTOP)  # takes no request to cancel any more
            row, began = started(make_identity()), time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                memory.emit(row)
            assert time.monotonic() - began < 4
            server.process.send_signal(signal.SIGCONT)
        assert not memory._idle
        assert memory.emit(row) in (Stored.NEW, Stored.REPEATED)
        memory.close()
    finally:
        server.close()


def test_a_child_leaves_its_parents_connections_alone(memory: PostgresMemory) -> None:
    """It makes its own, and what it lets go is not closed under its parent."""
    memory.check()
    [line] = memory._idle
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            memory.emit(started(make_identity()))
            [own] = memory._idle
            memory.close()
            memory.check()
            os._exit(int(own is line))
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    memory.emit(started(make_identity()))
    assert list(memory._idle) == [line]
    assert len(list(memory.rows())) == 2


def test_rivals_do_not_cost_the_connections(memory: PostgresMemory) -> None:
    """Where a call comes second and is done again, nobody's connection is closed for it."""
    at_once(*[memory.check] * 4)
    idle = set(memory._idle)
    row = started(make_identity())
    for _ in range(5):
        row = started(make_identity())
        words = at_once(*[lambda row=row: memory.emit(row)] * 4)  # type: ignore[misc]
        assert Counter(words) == {Stored.NEW: 1, Stored.REPEATED: 3}
    assert idle <= set(memory._idle)


def test_a_database_that_cannot_hold_every_text_is_refused(postgres: PostgresServer) -> None:
    """One of another encoding than UTF8."""
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
        try:
            migrate_memory(postgres.url("latin"))
            memory = open_memory(postgres.url("latin"))
            with pytest.raises(MemoryUnsuitableError, match="LATIN1"):
                memory.check()
        finally:
            connection.execute("DROP DATABASE latin WITH (FORCE)")


def test_the_schemas_owner_may_migrate_again(postgres: PostgresServer) -> None:
    """Without the right to make schemas, once an administrator has made this one."""
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute("CREATE ROLE skill_owner LOGIN")
        connection.execute("CREATE SCHEMA owned AUTHORIZATION skill_owner")
        try:
            url = postgres.url(schema="owned").replace("postgres@", "skill_owner@")
            assert migrate_memory(url)
            assert migrate_memory(url) == []
        finally:
            connection.execute("DROP OWNED BY skill_owner CASCADE")
            connection.execute("DROP ROLE skill_owner")


def test_a_role_with_no_connection_left_is_an_outage(
    memory: PostgresMemory, postgres_url: str, admin: psycopg.Connection
) -> None:
    """The emit fails in time, surely did not store, and works once there is a connection."""
    admin.execute("CREATE ROLE skill_narrow LOGIN CONNECTION LIMIT 1")
    migrate_memory(postgres_url, writer="skill_narrow")
    url = postgres_url.replace("postgres@", "skill_narrow@")
    row = started(make_identity())
    first, second = open_memory(url), open_memory(url, timeout=0.3)
    first.check()
    with pytest.raises(MemoryUnavailableError, match="too many connections") as caught:
        second.emit(row)
    assert not caught.value.maybe_stored
    first.close()
    assert wait_until(lambda: _emitted(second, row)) is Stored.NEW
    second.close()
    admin.execute("DROP OWNED BY skill_narrow")
    admin.execute("DROP ROLE skill_narrow")


def _emitted(memory: AuditMemory, row: AuditRow) -> Stored | None:
    with contextlib.suppress(MemoryUnavailableError):
        return memory.emit(row)
    return None
