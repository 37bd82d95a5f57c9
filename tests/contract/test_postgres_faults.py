"""PostgreSQL when server, network or disk misbehave: an emit stores its row or says so.

What it says is right: not stored, or perhaps stored; sending the row again is safe either way.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import psutil
import psycopg
import pytest

from audit.errors import MemoryUnavailableError, MemoryUnsuitableError
from audit.memory import AuditMemory, migrate_memory, open_memory
from audit.memory.base import Stored
from audit.row import AuditRow
from demo.postgres import PostgresServer
from tests.support import checked_memory, completed, make_identity, started, wait_until

_NUMBERS = count(1)
DEADLINE = 0.5
#: Bytes that no file may outgrow where the disk is full: less would end the server at its own log.
FULL = 17 * 2**20


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that tests here may end, as long as they start it again."""
    with PostgresServer() as made:
        yield made


@pytest.fixture
def url(server: PostgresServer) -> str:
    made = server.url(schema=f"faults_{next(_NUMBERS)}")
    migrate_memory(made)
    return made


@pytest.fixture
def admin(server: PostgresServer) -> Iterator[psycopg.Connection]:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        yield connection


class Cut:
    """Passes on what is said to the server and back; loses what it is told to, and the connection.

    Attributes:
        requests: so many are lost before the server has them.
        replies: so many are lost on their way back.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._target = f"{server.folder}/.s.PGSQL.5432"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.requests = self.replies = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, url: str) -> str:
        port = self._listener.getsockname()[1]
        schema = url.rpartition("schema=")[2]
        return (
            f"postgresql://postgres@127.0.0.1:{port}/postgres?schema={schema}"
            "&sslmode=disable&gssencmode=disable"
        )

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                for ends in ((client, server, "requests"), (server, client, "replies")):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, what: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if getattr(self, what) > 0:
                    setattr(self, what, getattr(self, what) - 1)
                    break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def cut(server: PostgresServer) -> Iterator[Cut]:
    made = Cut(server)
    yield made
    made.close()


def failed(emit: Callable[[], object]) -> MemoryUnavailableError:
    with pytest.raises(MemoryUnavailableError) as caught:
        emit()
    return caught.value


@pytest.mark.parametrize("warm", [True, False], ids=["idle connection", "new connection"])
@pytest.mark.parametrize("lost", ["requests", "replies"])
def test_a_message_that_is_lost_once_makes_no_second_row(
    url: str, cut: Cut, lost: str, warm: bool
) -> None:
    """The emit tries again by itself; the memory knows the row where it has it."""
    with checked_memory(cut.url(url)) as memory:
        identity = make_identity()
        for row in (started(make_identity()), started(make_identity()), started(identity)):
            memory.emit(row)  # so often that the driver has prepared the statement
        if not warm:
            memory.close()
        setattr(cut, lost, 1)
        row = completed(identity)
        had = warm and lost == "replies"
        assert memory.emit(row) is (Stored.REPEATED if had else Stored.NEW)
        assert getattr(cut, lost) == 0
        assert [r.to_bytes() for r in memory.rows()][3:] == [row.to_bytes()]


@pytest.mark.parametrize("lost", ["requests", "replies"])
def test_messages_that_are_lost_for_good_leave_a_doubt(url: str, cut: Cut, lost: str) -> None:
    """Whether the row landed its writer cannot know; sending it later again is safe."""
    with checked_memory(url) as direct:
        memory = open_memory(cut.url(url), timeout=DEADLINE)
        memory.check()
        row = started(make_identity())
        setattr(cut, lost, 1000)
        assert failed(lambda: memory.emit(row)).maybe_stored
        assert len(list(direct.rows())) == (lost == "replies")
        setattr(cut, lost, 0)
        again = memory.emit(row)
        assert again is (Stored.REPEATED if lost == "replies" else Stored.NEW)
        memory.close()


def test_a_server_that_turns_read_only_stores_nothing(url: str, admin: psycopg.Connection) -> None:
    """The emit says that it did not store, a check says why; both are fine once it writes again."""
    with checked_memory(url) as memory:
        memory.emit(started(make_identity()))
        admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        admin.execute("SELECT pg_reload_conf()")
        quick, row = open_memory(url, timeout=DEADLINE), started(make_identity())
        said = wait_until(lambda: refusal_of(quick.check))
        assert "takes no writes: set default_transaction_read_only" in said
        error = failed(lambda: quick.emit(row))
        assert "read-only transaction" in str(error)
        assert not error.maybe_stored
        assert len(list(quick.rows())) == 1
        admin.execute("SET default_transaction_read_only = off")
        admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
        admin.execute("SELECT pg_reload_conf()")
        wait_until(lambda: not refusal_of(quick.check))
        assert quick.emit(row) is Stored.NEW
        quick.close()


def refusal_of(check: Callable[[], object]) -> str:
    try:
        check()
    except MemoryUnsuitableError as error:
        return str(error)
    return ""


#: Rows of some 1,900 bytes in the table itself: as large as a file may become.
FILL = """
INSERT INTO {0}.audit_rows SELECT 0, n, 'filler', 'f' || n, 0, NULL, NULL,
  repeat(md5(n::text), 55), NULL, NULL, NULL, NULL, 'x' FROM generate_series(1, {1}) n
"""


def test_a_full_disk_stores_nothing_and_loses_nothing(
    server: PostgresServer, url: str, admin: psycopg.Connection
) -> None:
    """The emit fails, surely did not store, and works once there is room; what stood stands."""
    admin.execute(FILL.format(url.rpartition("schema=")[2], FULL // 2_048 - 40).encode())
    admin.execute("CHECKPOINT")
    memory, kept = open_memory(url, timeout=10), []
    with full_disk(server):
        while (error := refused_by(memory, row := started(make_identity()))) is None:
            kept.append(row)
            assert len(kept) < 2_000
        assert "could not extend file" in str(error)
        assert not error.maybe_stored
        assert refused_by(memory, row) is not None
    assert memory.emit(row) is Stored.NEW
    stored = [r.to_bytes() for r in memory.running()]
    assert stored == [r.to_bytes() for r in [*kept, row]]
    memory.close()


@contextlib.contextmanager
def full_disk(server: PostgresServer) -> Iterator[None]:
    """A server whose files grow to FULL and no further, for it has inherited that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    server.stop()
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, hard))
    try:
        server.start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    yield
    server.stop()
    server.start()


def refused_by(memory: AuditMemory, row: AuditRow) -> MemoryUnavailableError | None:
    try:
        memory.emit(row)
    except MemoryUnavailableError as error:
        return error
    return None


def test_a_server_that_crashes_among_emits_has_all_it_took(
    server: PostgresServer, url: str
) -> None:
    """One of its processes is killed, so it ends all and recovers: every emit gets through."""
    rows = [started(make_identity()) for _ in range(100)]
    with checked_memory(url, timeout=30) as memory, ThreadPoolExecutor(4) as pool:
        memory.check()
        found = [pool.submit(memory.emit, row) for row in rows]
        wait_until(lambda: sum(one.done() for one in found) > 20)
        one_of_its_connections(server).send_signal(signal.SIGKILL)
        words = {one.result() for one in found}
        assert words <= {Stored.NEW, Stored.REPEATED}
        stored = [row.to_bytes() for row in memory.rows()]
        assert sorted(stored) == sorted(row.to_bytes() for row in rows)


def one_of_its_connections(server: PostgresServer) -> psutil.Process:
    children = psutil.Process(server.process.pid).children()
    return next(child for child in children if "postgres: postgres" in " ".join(child.cmdline()))


def test_a_standby_is_read_and_fails_the_check(server: PostgresServer, url: str) -> None:
    """What it says names the way out; nothing is stored there until it is promoted."""
    rows = [started(make_identity()), started(make_identity())]
    with checked_memory(url, timeout=30) as memory:
        memory.emit(rows[0])
        server.stop()
        (server.data / "standby.signal").touch()
        server.start()
        with pytest.raises(MemoryUnsuitableError, match=r"on a standby.*target_session_attrs"):
            memory.check()
        assert [row.to_bytes() for row in memory.rows()] == [rows[0].to_bytes()]
        error = refused_by(quick := open_memory(url, timeout=DEADLINE), rows[1])
        assert error is not None
        assert not error.maybe_stored
        quick.close()
        with psycopg.connect(server.url(), autocommit=True) as promoting:
            promoting.execute("SELECT pg_promote(true, 60)")
        assert memory.emit(rows[1]) is Stored.NEW
        memory.check()


def test_no_server_is_unavailable(tmp_path: Path) -> None:
    """Nobody at the socket, nor at the port: the emit says so at once, and did not store."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for host in (f"?host={tmp_path}", f"?host=127.0.0.1&port={port}"):
        memory = open_memory(f"postgresql://postgres@/postgres{host}", timeout=DEADLINE)
        error = refused_by(memory, started(make_identity()))
        assert error is not None
        assert not error.maybe_stored
