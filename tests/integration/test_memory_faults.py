"""The memory on Redis or Valkey when the server, the network or the process misbehaves.

Whatever happens, an emit ends by its deadline, with the row durable or with an error of ours, and
sending the row again is safe.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import socket
import socketserver
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import psutil
import pytest
import redis

from audit import AuditMemory, open_memory
from audit.embedded import EmbeddedServer
from audit.errors import (
    AuditError,
    AuditMemoryError,
    MemoryUnavailableError,
    MemoryUnsuitableError,
    MemoryUrlError,
    RowRefusedError,
)
from audit.memory.base import RowRefusal, Stored
from audit.memory.connection import Command, Line
from audit.memory.redis import RedisMemory
from audit.row import AuditRow
from tests.support import (
    check_every_row,
    checked_memory,
    completed,
    make_identity,
    started,
    wait_until,
)

#: Seconds that an emit may take in all, and how much later a busy machine may notice.
DEADLINE = 0.5
MARGIN = 5.0


@contextlib.contextmanager
def bounded(deadline: float = DEADLINE) -> Iterator[None]:
    """What happens inside ends by its deadline, give or take a busy machine."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < deadline + MARGIN


def unavailable(call: Callable[[], object], deadline: float = DEADLINE) -> str:
    """The text of the MemoryUnavailableError that the call ends with, in time."""
    with bounded(deadline), pytest.raises(MemoryUnavailableError) as caught:
        call()
    return str(caught.value)


def unsuitable(url: str) -> str:
    """The text of the MemoryUnsuitableError that check and emit end with at a server."""
    memory = open_memory(url)
    with pytest.raises(MemoryUnsuitableError) as checked:
        memory.check()
    with pytest.raises(MemoryUnsuitableError) as emitted:
        memory.emit(started(make_identity()))
    assert str(emitted.value) == str(checked.value)
    assert list(memory.rows()) == []
    memory.close()
    return str(checked.value)


def client(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis.from_url(server.url, protocol=2)


def with_user(url: str, user: str) -> str:
    return url.replace("redis://", f"redis://{user}@", 1)


# --- no server ------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("where", ["tcp", "socket"])
def test_an_absent_server_is_unavailable(where: str, tmp_path: Path) -> None:
    """Every call says so in time, naming the address."""
    place = f"127.0.0.1:{free_port()}/0" if where == "tcp" else str(tmp_path / "none.sock")
    scheme = "redis" if where == "tcp" else "redis+socket"
    memory = open_memory(f"{scheme}://{place}", timeout=DEADLINE)
    calls: list[Callable[[], object]] = [
        memory.check,
        lambda: memory.emit(started(make_identity())),
        lambda: list(memory.rows()),
        lambda: list(memory.running()),
    ]
    for call in calls:
        assert place in unavailable(call)


def test_an_unknown_host_is_unavailable() -> None:
    """A name that no resolver knows is an error of ours."""
    unavailable(open_memory("redis://nowhere.invalid/0", timeout=DEADLINE).check)


@contextlib.contextmanager
def black_hole(backlog: int) -> Iterator[int]:
    """A port that takes connections and never says a word; with a full backlog not even that."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(backlog)
        for _ in range(0 if backlog else 4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.mark.parametrize("backlog", [16, 0], ids=["silent", "connection never made"])
def test_a_silent_server_is_unavailable(backlog: int) -> None:
    """Packets that vanish cost no more than the deadline, with a password to send first too."""
    with black_hole(backlog) as port:
        for user in ("", ":password@"):
            memory = open_memory(f"redis://{user}127.0.0.1:{port}/1", timeout=DEADLINE)
            unavailable(memory.check)
            unavailable(lambda memory=memory: memory.emit(started(make_identity())))
            unavailable(lambda memory=memory: list(memory.rows()))


@pytest.mark.parametrize("warm", [True, False], ids=["on an idle connection", "on a new one"])
def test_a_hanging_server_is_unavailable(server: EmbeddedServer, warm: bool) -> None:
    """A stopped process neither answers nor refuses; when it goes on, the row is there once."""
    identity = make_identity()
    with checked_memory(server.url, timeout=DEADLINE) as memory:
        if warm:
            memory.emit(started(make_identity()))
        server.pause()
        unavailable(lambda: memory.emit(started(identity, ts="2026-01-01T00:00:00.000000Z")))
        unavailable(memory.check)
        unavailable(lambda: list(memory.rows()))
        server.resume()
        again = memory.emit(started(identity, ts="2026-01-01T00:00:00.000000Z"))
        assert again in (Stored.NEW, Stored.REPEATED)
        assert len(list(memory.rows(request_id=identity.request_id))) == 1


def test_check_reaches_the_server_each_time(server: EmbeddedServer) -> None:
    """An idle connection proves nothing: the server may hang, or be another, since it was made."""
    memory = open_memory(server.url, timeout=DEADLINE)
    memory.emit(started(make_identity()))
    server.pause()
    unavailable(memory.check)
    server.resume()
    memory.check()
    client(server).config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(MemoryUnsuitableError, match="allkeys-lru"):
        memory.check()
    memory.close()


def test_many_at_once_wait_no_longer_than_one(server: EmbeddedServer) -> None:
    """While the server hangs, 20 threads all have their answer by one deadline: nobody queues."""
    memory = open_memory(server.url, timeout=DEADLINE)
    memory.check()
    server.pause()
    texts: list[str] = []

    def emit() -> None:
        texts.append(unavailable(lambda: memory.emit(started(make_identity()))))

    threads = [threading.Thread(target=emit) for _ in range(20)]
    with bounded():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(texts) == 20
    server.resume()
    memory.close()


def test_time_spent_before_the_reply_counts(server: EmbeddedServer) -> None:
    """What is left of the deadline bounds the wait for the reply, not the whole timeout again."""
    looks = itertools.count(-1000)

    def clock() -> float:
        """Most of the minute passes between emit's first look at the clock and its second."""
        return time.monotonic() + (59.5 if next(looks) > 0 else 0.0)

    memory = RedisMemory(server.url, timeout=60, clock=clock)
    memory.check()
    server.pause()
    looks = itertools.count()
    unavailable(lambda: memory.emit(started(make_identity())))
    server.resume()
    memory.close()


# --- a server that takes no writes ----------------------------------------------------------------


def test_a_read_only_replica_is_unavailable_until_it_is_promoted(server: EmbeddedServer) -> None:
    """Mid-failover writes are refused; they go through as soon as the server is master again."""
    with checked_memory(server.url, timeout=DEADLINE) as memory:
        memory.emit(started(make_identity()))
        client(server).replicaof("127.0.0.1", free_port())
        row = started(make_identity())
        text = unavailable(lambda: memory.emit(row))
        assert "read only replica" in text
        client(server).replicaof("no", "one")
        assert memory.emit(row) is Stored.NEW


def test_a_master_without_its_replicas_is_unavailable(server: EmbeddedServer) -> None:
    """``min-replicas-to-write`` refuses writes, which is no error in the script."""
    with checked_memory(server.url, timeout=DEADLINE) as memory:
        client(server).config_set("min-replicas-to-write", 1)
        row = started(make_identity())
        assert "NOREPLICAS" in unavailable(lambda: memory.emit(row))
        client(server).config_set("min-replicas-to-write", 0)
        assert memory.emit(row) is Stored.NEW


def test_a_full_server_is_unavailable_and_loses_nothing() -> None:
    """Out of memory, emits fail whole: no half-stored invocation, and all fine with more room."""
    with (
        EmbeddedServer(maxmemory="1mb") as server,
        checked_memory(server.url, timeout=DEADLINE) as memory,
    ):
        identity = make_identity()
        assert "maxmemory" in unavailable(lambda: memory.emit(started(identity)))
        assert list(memory.rows()) == []
        client(server).config_set("maxmemory", "64mb")
        memory.emit(started(identity))
        client(server).config_set("maxmemory", "1mb")
        assert "maxmemory" in unavailable(lambda: memory.emit(completed(identity)))
        assert [row.request_id for row in memory.running()] == [identity.request_id]
        client(server).config_set("maxmemory", "64mb")
        assert memory.emit(completed(identity)) is Stored.NEW


# --- a server that must not be used ---------------------------------------------------------------


@pytest.mark.parametrize(
    "policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-ttl"]
)
def test_a_server_that_may_evict_is_refused(policy: str) -> None:
    """It gets no row, and the error names the setting and its value."""
    with EmbeddedServer(options={"maxmemory-policy": policy}) as server:
        text = unsuitable(server.url)
    assert "maxmemory-policy" in text
    assert policy in text
    assert "noeviction" in text


def test_a_server_that_changed_its_policy_is_judged_again(server: EmbeddedServer) -> None:
    """Each new connection asks anew, so a server reconfigured behind the address gets no more."""
    memory = open_memory(server.url)
    memory.emit(started(make_identity()))
    admin = client(server)
    admin.config_set("maxmemory-policy", "allkeys-lru")
    admin.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(MemoryUnsuitableError, match="allkeys-lru"):
        memory.emit(started(make_identity()))
    assert len(check_every_row(memory)) == 1
    admin.config_set("maxmemory-policy", "noeviction")
    assert memory.emit(started(make_identity())) is Stored.NEW
    memory.close()


def test_a_server_replaced_behind_the_address_is_judged_again(server: EmbeddedServer) -> None:
    """The first emit after a restart meets the new server's policy."""
    memory = open_memory(server.url)
    memory.emit(started(make_identity()))
    server.kill()
    server._options["maxmemory-policy"] = "allkeys-lru"
    server.start()
    with pytest.raises(MemoryUnsuitableError, match="allkeys-lru"):
        memory.emit(started(make_identity()))
    memory.close()


class Fake(socketserver.StreamRequestHandler):
    """Says of itself what it is told to; else answers as a server would."""

    def handle(self) -> None:
        while words := self.read():
            match words[0].upper():
                case b"INFO":
                    self.send_bulk(self.server.info)  # type: ignore[attr-defined]
                case b"CONFIG":
                    self.wfile.write(b"*2\r\n")
                    self.send_bulk(b"appendfsync")
                    self.send_bulk(b"always")
                case b"SCRIPT":
                    self.send_bulk(b"0" * 40)
                case _:
                    self.wfile.write(b"-ERR this is no server\r\n")

    def read(self) -> list[bytes]:
        head = self.rfile.readline()
        words = []
        for _ in range(int(head[1:] or b"0")):
            size = int(self.rfile.readline()[1:])
            words.append(self.rfile.read(size + 2)[:-2])
        return words

    def send_bulk(self, text: bytes) -> None:
        self.wfile.write(b"$%d\r\n%s\r\n" % (len(text), text))


@contextlib.contextmanager
def serving(handler: type[socketserver.BaseRequestHandler]) -> Iterator[socketserver.TCPServer]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as fake:
        fake.daemon_threads = True
        thread = threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield fake
        fake.shutdown()
        thread.join()


def url_of(server: socketserver.TCPServer) -> str:
    return f"redis://127.0.0.1:{server.server_address[1]}/0"


@pytest.mark.parametrize(
    ("info", "told"),
    [
        (b"redis_version:6.2.0\r\n", "Redis 6.2.0"),
        (b"redis_version:5.0.14\r\n", "Redis 5.0.14"),
        (b"# Server\r\nredis_version:7.2.4\r\nvalkey_version:7.2.5\r\n", "Valkey 7.2.5"),
        (b"", "Redis 0"),
    ],
)
def test_a_server_that_is_too_old_is_refused(info: bytes, told: str) -> None:
    """Redis before 7.0 and Valkey before 8 get no row; the error names both versions."""
    with serving(Fake) as fake:
        fake.info = info  # type: ignore[attr-defined]
        memory = open_memory(url_of(fake))
        for call in (memory.check, lambda: memory.emit(started(make_identity()))):
            with pytest.raises(MemoryUnsuitableError, match="too old") as caught:
                call()
            assert told in str(caught.value)
            assert "7.0" in str(caught.value)
        memory.close()


@pytest.mark.parametrize(
    "info",
    [
        b"redis_version:7.0.0\r\n",
        b"redis_version:10.1.2\r\n",
        b"redis_version:7.2.4\r\nvalkey_version:8.0.0\r\n",
    ],
)
def test_a_server_that_is_new_enough_is_accepted(info: bytes) -> None:
    """Versions are compared as numbers."""
    with serving(Fake) as fake:
        fake.info = info  # type: ignore[attr-defined]
        memory = open_memory(url_of(fake))
        memory.check()
        memory.close()


class Web(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def test_what_is_no_such_server_at_all_is_unavailable() -> None:
    """Something else behind the port, say a web server, is an error of ours."""
    with serving(Web) as web:
        memory = open_memory(url_of(web), timeout=DEADLINE)
        unavailable(memory.check)
        unavailable(lambda: memory.emit(started(make_identity())))
        unavailable(lambda: list(memory.rows()))
        memory.close()


@pytest.mark.parametrize(
    ("asked", "appendonly", "appendfsync", "told"),
    [
        ("always", "yes", "everysec", "has everysec"),
        ("always", "yes", "no", "has no"),
        ("always", "no", "always", "keeps no AOF"),
        ("everysec", "yes", "no", "has no"),
        ("everysec", "no", "everysec", "keeps no AOF"),
    ],
)
def test_a_server_less_durable_than_asked_is_refused(
    asked: str, appendonly: str, appendfsync: str, told: str
) -> None:
    """The error says what the server does and what to set."""
    options = {"appendonly": appendonly, "appendfsync": appendfsync}
    with EmbeddedServer(options=options) as server:
        text = unsuitable(f"{server.url}?durability={asked}")
        open_memory(server.url).check()
        open_memory(f"{server.url}?durability=server").check()
    assert f"durability={asked}" in text
    assert told in text
    assert f"appendfsync {asked}" in text


@pytest.mark.parametrize(
    ("asked", "appendfsync"),
    [("always", "always"), ("everysec", "always"), ("everysec", "everysec")],
)
def test_a_server_as_durable_as_asked_is_accepted(asked: str, appendfsync: str) -> None:
    """More than was asked for is fine too."""
    with (
        EmbeddedServer(options={"appendfsync": appendfsync}) as server,
        checked_memory(f"{server.url}?durability={asked}") as memory,
    ):
        assert memory.emit(started(make_identity())) is Stored.NEW


def test_a_server_that_does_not_tell_its_durability() -> None:
    """Where CONFIG is refused, no durability can be asked for; without asking, all is well."""
    with EmbeddedServer(fsync="always") as server:
        rights = ("on", ">pass", "~*", "+@all", "-config")
        client(server).execute_command("ACL", "SETUSER", "audit", *rights)
        url = with_user(server.url, "audit:pass")
        memory = open_memory(f"{url}?durability=always")
        with pytest.raises(MemoryUnsuitableError, match="does not tell"):
            memory.emit(started(make_identity()))
        memory.close()
        with checked_memory(url) as memory:
            assert memory.emit(started(make_identity())) is Stored.NEW


def test_a_user_without_the_rights_is_unavailable(server: EmbeddedServer) -> None:
    """Rights that are missing, for the script or in it, are told as the server tells them."""
    admin = client(server)
    for number, rights in enumerate([["-script"], ["-evalsha", "-eval"], ["-xadd"], ["-info"]]):
        user = f"user{number}"
        admin.execute_command("ACL", "SETUSER", user, "on", ">pass", "~*", "+@all", *rights)
        memory = open_memory(with_user(server.url, f"{user}:pass"), timeout=DEADLINE)
        text = unavailable(lambda memory=memory: memory.emit(started(make_identity())))
        assert "permissions" in text
        memory.close()


# --- a server that goes and comes -----------------------------------------------------------------


def test_a_flushed_script_is_loaded_again(server: EmbeddedServer) -> None:
    """SCRIPT FLUSH while connections are in use costs no emit."""
    with checked_memory(server.url) as memory:
        for _ in range(3):
            identity = make_identity()
            assert memory.emit(started(identity)) is Stored.NEW
            client(server).script_flush()
            assert memory.emit(completed(identity)) is Stored.NEW


def test_rows_survive_a_server_that_is_killed() -> None:
    """With durability=always whatever was acknowledged is there after SIGKILL and a restart."""
    with (
        EmbeddedServer(fsync="always") as server,
        checked_memory(f"{server.url}?durability=always") as memory,
    ):
        emitted = []
        for _ in range(3):
            identity = make_identity()
            for row in (started(identity), completed(identity), started(make_identity())):
                memory.emit(row)
                emitted.append(row.to_bytes())
            server.kill()
            unavailable(lambda: memory.emit(started(make_identity())), deadline=10.0)
            server.start()
        assert [row.to_bytes() for row in memory.rows()] == emitted
        assert len(list(memory.running())) == 3


def test_the_first_emit_after_a_restart_succeeds(server: EmbeddedServer) -> None:
    """However many idle connections went stale: they are dropped together, not one a try."""
    with checked_memory(server.url) as memory:
        server.pause()
        rows = [started(make_identity()) for _ in range(30)]
        threads = [threading.Thread(target=memory.emit, args=(row,)) for row in rows]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(connections_to(server.port)) == 30)
        server.resume()
        for thread in threads:
            thread.join()
        wait_until(lambda: len(list(memory.rows())) == 30)
        server.kill()
        server.start()
        assert memory.emit(started(make_identity())) is Stored.NEW
        server.kill()
        server.start()
        for row in memory.rows():
            assert row.kind == rows[0].kind


def connections_to(port: int) -> list[object]:
    """This process's established connections to a port of this machine."""
    return [
        found
        for found in psutil.Process().net_connections("tcp")
        if found.raddr and found.raddr.port == port and found.status == psutil.CONN_ESTABLISHED
    ]


def test_threads_that_meet_a_restart_all_get_through(server: EmbeddedServer) -> None:
    """Connections cut under many writers at once, again and again: no row lost, no odd error."""
    with checked_memory(server.url) as memory:
        stop = threading.Event()
        emitted: list[bytes] = []
        errors: list[BaseException] = []

        def write() -> None:
            while not stop.is_set():
                row = started(make_identity())
                try:
                    memory.emit(row)
                except MemoryUnavailableError:
                    continue
                except BaseException as error:
                    errors.append(error)
                    return
                emitted.append(row.to_bytes())

        threads = [threading.Thread(target=write) for _ in range(8)]
        for thread in threads:
            thread.start()
        admin = client(server)
        for _ in range(40):
            seen = len(emitted)
            wait_until(lambda seen=seen: len(emitted) > seen + 8 or errors)
            admin.client_kill_filter(_type="normal", skipme=True)
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []
        assert set(emitted) <= {row.to_bytes() for row in memory.rows()}


def test_connections_can_be_lost_without_end(server: EmbeddedServer) -> None:
    """No count of connections ever made runs out: 300 lost ones later, emits and reads go on."""
    with checked_memory(server.url) as memory:
        admin = client(server)
        for _ in range(300):
            assert memory.emit(started(make_identity())) is Stored.NEW
            next(memory.rows())
            admin.client_kill_filter(_type="normal", skipme=True)


def test_more_threads_than_connections_are_kept(server: EmbeddedServer) -> None:
    """120 emits in flight at once have a connection each, and few of them stay open afterwards."""
    with checked_memory(server.url, timeout=30) as memory:
        server.pause()
        threads = [
            threading.Thread(target=memory.emit, args=(started(make_identity()),))
            for _ in range(120)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(connections_to(server.port)) == 120)
        server.resume()
        for thread in threads:
            thread.join()
        assert len(list(memory.rows())) == 120
        assert len(connections_to(server.port)) <= 66


def test_close_gives_every_connection_back(server: EmbeddedServer) -> None:
    """Those for writing and those for reading."""
    memory = open_memory(server.url)
    memory.emit(started(make_identity()))
    assert len(list(memory.rows())) == 1
    assert connections_to(server.port)
    memory.close()
    assert connections_to(server.port) == []


# --- a network that cuts --------------------------------------------------------------------------


class Cut(socketserver.BaseRequestHandler):
    """Passes everything on, but loses a reply, and the connection with it, where it is told to."""

    def handle(self) -> None:
        upstream = socket.create_connection(("127.0.0.1", self.server.port))  # type: ignore[attr-defined]
        self.request.settimeout(60)
        with upstream:
            ahead = threading.Thread(target=self.pump, args=(self.request, upstream, False))
            ahead.start()
            self.pump(upstream, self.request, True)
            for end in (upstream, self.request):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            ahead.join()

    def pump(self, source: socket.socket, target: socket.socket, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if replies and self.server.lose > 0:  # type: ignore[attr-defined]
                    self.server.lose -= 1  # type: ignore[attr-defined]
                    return
                target.sendall(data)
            if not replies:
                target.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("lost", [1, 2])
@pytest.mark.parametrize("warm", [True, False], ids=["idle connection", "new connection"])
def test_a_reply_lost_after_the_write_makes_no_second_row(
    server: EmbeddedServer, lost: int, warm: bool
) -> None:
    """The emit tries again by itself, and the memory knows the row."""
    with serving(Cut) as proxy:
        proxy.port, proxy.lose = server.port, 0  # type: ignore[attr-defined]
        url = url_of(proxy)
        with checked_memory(url) as memory:
            identity = make_identity()
            memory.emit(started(identity))
            if not warm:
                memory.close()
            proxy.lose = lost  # type: ignore[attr-defined]
            row = completed(identity)
            assert memory.emit(row) is (Stored.REPEATED if warm else Stored.NEW)
            assert proxy.lose == 0  # type: ignore[attr-defined]
            assert [r.to_bytes() for r in memory.rows()][1:] == [row.to_bytes()]


def test_replies_lost_for_good_are_unavailable(server: EmbeddedServer) -> None:
    """The row landed and its writer cannot know; sending it later again is safe."""
    with serving(Cut) as proxy:
        proxy.port, proxy.lose = server.port, 0  # type: ignore[attr-defined]
        url = url_of(proxy)
        with checked_memory(url, timeout=DEADLINE) as memory:
            memory.emit(started(make_identity()))
            row = started(make_identity())
            proxy.lose = 1000  # type: ignore[attr-defined]
            unavailable(lambda: memory.emit(row))
            assert [r.to_bytes() for r in open_memory(server.url).rows()][1:] == [row.to_bytes()]
            proxy.lose = 0  # type: ignore[attr-defined]
            assert memory.emit(row) is Stored.REPEATED


# --- a signal in the middle -----------------------------------------------------------------------


class Struck(BaseException):
    """What the signal handler raises, as a soft time limit does."""


@pytest.fixture
def striking() -> Iterator[None]:
    """SIGALRM and SIGUSR1 raise in the main thread, wherever it is."""

    def strike(number: int, frame: FrameType | None) -> None:
        raise Struck

    before = {number: signal.signal(number, strike) for number in (signal.SIGALRM, signal.SIGUSR1)}
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


def interrupted(emit: Callable[[AuditRow], Stored], row: AuditRow, after: float) -> bool:
    """Emit, with a signal that raises so many seconds later; whether it struck inside."""
    try:
        signal.setitimer(signal.ITIMER_REAL, after)
        try:
            emit(row)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Struck:
        return True
    return False


@pytest.mark.timeout(300, method="thread")
@pytest.mark.usefixtures("striking")
def test_a_signal_never_leaves_a_foreign_reply_behind(server: EmbeddedServer) -> None:
    """Emits interrupted at 600 different moments: each next one reads the reply to its own row."""
    with checked_memory(server.url) as memory:
        struck = 0
        for number in range(600):
            identity = make_identity()
            row = started(identity)
            struck += interrupted(memory.emit, row, after=1e-6 + number % 100 * 1e-5)
            with pytest.raises(RowRefusedError) as caught:
                memory.emit(completed(make_identity()))
            assert caught.value.refusal == RowRefusal.NO_STARTED_ROW
            assert memory.emit(row) in (Stored.NEW, Stored.REPEATED)
            assert memory.emit(completed(identity)) is Stored.NEW
            assert memory.emit(completed(identity, duration_ms=number + 100)) is Stored.LATE
        assert struck > 30
        assert len(list(memory.rows(kind=row.kind))) == 600


@pytest.mark.timeout(300, method="thread")
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux tells what is unread")
@pytest.mark.usefixtures("striking")
def test_a_signal_while_waiting_for_the_reply(server: EmbeddedServer) -> None:
    """The request is out and its reply is not in when the signal strikes: nobody else gets it."""
    with checked_memory(server.url) as memory:
        memory.check()
        for _ in range(30):
            row = started(make_identity())
            server.pause()
            main = threading.main_thread().ident or 0
            waiting = threading.Thread(target=strike_once_sent, args=(server, main))
            waiting.start()
            with pytest.raises(Struck):
                memory.emit(row)
            waiting.join()
            server.resume()
            with pytest.raises(RowRefusedError):
                memory.emit(completed(make_identity()))
            assert memory.emit(row) in (Stored.NEW, Stored.REPEATED)


def test_no_number_is_left_to_turn_into_text(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything an emit sends is text already: where a signal handler raises while hiredis turns a
    number into text, the process ends with a segmentation fault.
    """
    sent: list[object] = []
    exchange = Line.exchange

    def spy(line: Line, commands: Sequence[Command], left: Callable[[], float]) -> list[object]:
        sent.extend(word for command in commands for word in command)
        return exchange(line, commands, left)

    monkeypatch.setattr(Line, "exchange", spy)
    with checked_memory(server.url) as memory:
        identity = make_identity()
        memory.emit(started(identity))
        client(server).script_flush()
        memory.emit(completed(identity))
    assert {type(word) for word in sent} == {str, bytes}
    assert b"EVALSHA" in sent or "EVALSHA" in sent


def strike_once_sent(server: EmbeddedServer, thread: int) -> None:
    """Signal the thread when what it sent waits in the paused server's socket."""
    wait_until(lambda: unread_by(server.port))
    signal.pthread_kill(thread, signal.SIGUSR1)


def unread_by(port: int) -> bool:
    """Whether bytes wait to be read from a connection of a server on this machine."""
    local = f":{port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(local) and fields[3] == "01" and not fields[4].endswith(":00000000"):
            return True
    return False


# --- a URL that cannot be used --------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:6379",
        "memory://",
        "http://127.0.0.1:6379/0",
        "unix:///tmp/server.sock",
        "redis:/127.0.0.1:6379/0",
        "redis://127.0.0.1:port/0",
        "redis://127.0.0.1:99999/0",
        "redis://[::1/0",
        "redis://127.0.0.1/0?durability=",
        "redis://127.0.0.1/0?durability=sometimes",
        "redis://127.0.0.1/0?durability=ALWAYS",
        "redis://127.0.0.1/0?prefix=",
        "redis://127.0.0.1/0?prefix=a%7Bb",
        "redis://127.0.0.1/0?prefix=a}b",
        "redis://127.0.0.1/0?prefix=a%20b",
        "redis://127.0.0.1/0?prefix=a%0D%0Ab",
        "redis://127.0.0.1/0?db=first",
        "redis://127.0.0.1/0?nonsense=1",
        "redis://127.0.0.1/0?socket_timeout=60",
        "redis://127.0.0.1/0?protocol=3",
        "redis://127.0.0.1/0?decode_responses=true",
        "redis://127.0.0.1/0?max_connections=1",
        "redis+socket:///tmp/server.sock?virtual_host=first",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_at_once(url: str) -> None:
    """Before anything is connected, with an error that says which part."""
    with pytest.raises(MemoryUrlError) as caught:
        open_memory(url)
    assert str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_each_prefix_is_a_memory_of_its_own(server: EmbeddedServer) -> None:
    """Two hosts can share a server."""
    row = started(make_identity())
    with (
        checked_memory(f"{server.url}?prefix=one") as one,
        checked_memory(f"{server.url}?prefix=two:deep") as two,
    ):
        assert one.emit(row) is Stored.NEW
        assert two.emit(row) is Stored.NEW
        assert len(list(one.rows())) == len(list(two.rows())) == 1
    names = {key.decode().partition(":{")[0] for key in client(server).scan_iter()}
    assert names == {"one", "one:tenants", "two:deep", "two:deep:tenants"}


def test_each_database_is_a_memory_of_its_own(server: EmbeddedServer) -> None:
    """By path or by parameter, over TCP and over the Unix socket."""
    row = started(make_identity())
    for db, url in enumerate([server.url_for(0), server.url_for(1), f"{server.url_for(9)}?db=2"]):
        with checked_memory(url) as memory:
            assert memory.emit(row) is Stored.NEW
        over_socket = server.socket_url.replace("virtual_host=0", f"virtual_host={db}")
        with checked_memory(over_socket) as memory:
            assert memory.emit(row) is Stored.REPEATED


PASSWORD = "s3cr3t"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cr3t@127.0.0.1:PORT/0",
        "redis://user:s3cr3t@127.0.0.1:PORT/0",
        "redis://127.0.0.1:PORT/0?password=s3cr3t",
        "redis://user:s3cr3t@nowhere.invalid/0",
        "redis+socket://:s3cr3t@/nowhere/server.sock",
        "redis://:s3cr3t@127.0.0.1:PORT/0?durability=sometimes",
        "redis://:s3cr3t@127.0.0.1:PORT/0?nonsense=1",
        "redis://:s3cr3t@127.0.0.1:PORT/0?db=x",
        "redis://:s3cr3t@127.0.0.1:x/0",
        "redis://:s3cr3t/1@127.0.0.1:PORT/0",
        "redis://:1s3cr3t/1@127.0.0.1:PORT/0",
        "redis://:s3cr3t?1@127.0.0.1:PORT/0",
        "redis://user:12?s3cr3t@127.0.0.1:PORT/0",
        "redis://user:12/s3cr3t@127.0.0.1:PORT/0",
        "redis://:s3cr3t#1@127.0.0.1:PORT/0",
        "redis://:#s3cr3t@127.0.0.1:PORT/0",
        "redis://:@s3cr3t@127.0.0.1:PORT/0",
        "redis://:s3cr3t[@127.0.0.1:PORT/0",
        "redis://:s3cr3t\uff03@127.0.0.1:PORT/0",
        "redis://:s3cr3t",
        "redis://user:s3cr3t",
        "user:s3cr3t@127.0.0.1:PORT/0",
        "user:s3cr3t@redis://127.0.0.1:PORT/0",
        "s3cr3t-x://127.0.0.1:PORT/0",
        "postgresql+x://user:s3cr3t@127.0.0.1/audit",
    ],
)
def test_no_error_ever_tells_the_password(url: str) -> None:
    """Whatever is wrong with URL or server: not in text, arguments, causes or traceback."""
    with EmbeddedServer(options={"requirepass": "another"}) as server:
        try:
            memory = open_memory(url.replace("PORT", str(server.port)), timeout=DEADLINE)
            with bounded():
                memory.emit(started(make_identity()))
        except AuditMemoryError as error:
            caught: AuditError = error
        else:
            pytest.fail("this password opens no server")
    told = "".join(traceback.format_exception(caught)) + repr(caught.args)
    assert PASSWORD not in without_source(told)
    chain: BaseException | None = caught
    while chain is not None:
        assert PASSWORD not in f"{chain!r}"
        chain = chain.__cause__ or chain.__context__


def without_source(text: str) -> str:
    """A traceback without the lines of this file, which name the password themselves."""
    return re.sub(rf'File "{re.escape(os.path.abspath(__file__))}".*\n.*\n', "", text)


def test_the_right_password_opens_the_server() -> None:
    """Whatever is special in it is written in percent form."""
    with EmbeddedServer(options={"requirepass": "p/?#@:%20 é"}) as server:
        quoted = "p%2F%3F%23%40%3A%2520%20%C3%A9"
        with checked_memory(with_user(server.url, f":{quoted}")) as memory:
            assert memory.emit(started(make_identity())) is Stored.NEW
        memory = open_memory(with_user(server.url, ":wrong"), timeout=DEADLINE)
        for call in (memory.check, lambda: memory.emit(started(make_identity()))):
            assert "wrong" not in unavailable(call).replace("WRONGPASS", "")


def test_the_first_row_of_a_tenant_is_never_out_of_reach(server: EmbeddedServer) -> None:
    """Where the tenant cannot be listed, its row is not stored either, or is found later."""
    admin = client(server)
    admin.set("audit:tenants", "not a set")
    with checked_memory(f"{server.url}?prefix=other"):
        pass
    memory = open_memory(server.url, timeout=DEADLINE)
    row = started(make_identity())
    assert "audit:tenants is not what the audit put there" in unavailable(lambda: memory.emit(row))
    admin.delete("audit:tenants")
    assert memory.emit(row) in (Stored.NEW, Stored.REPEATED)
    assert [r.to_bytes() for r in check_every_row(memory)] == [row.to_bytes()]
    memory.close()


def test_what_runs_is_found_without_the_history(server: EmbeddedServer) -> None:
    """The server keeps a list of the open invocations alone, however many were closed."""
    with checked_memory(server.url) as memory:
        for number in range(30):
            identity = make_identity()
            memory.emit(started(identity))
            if number % 10:
                memory.emit(completed(identity))
        assert client(server).zcard(f"audit:{{{identity.tenant_id}}}:open") == 3
        assert len(list(memory.running())) == 3


def test_an_open_memory_connects_only_when_it_is_used(server: EmbeddedServer) -> None:
    """Importing an application and opening its memory needs no server."""
    server.kill()
    memory: AuditMemory = open_memory(server.url)
    assert connections_to(server.port) == []
    server.start()
    memory.check()
    assert len(connections_to(server.port)) == 1
    memory.close()
