"""Runs a Valkey or Redis server of our own, for a machine that has none.

::

    with EmbeddedServer(fsync="always") as server:
        memory = open_memory(server.url)

What it guarantees:

- **No orphan.** However the launcher ends (return, exception, Ctrl-C, SIGTERM, SIGKILL), its server
  ends too, even a paused one. The launcher is the process that called ``start()``; an ``exec``
  counts as its end, the end of the thread that called ``start()`` does not.
- **One server a directory.** A second one over the same append-only file is refused.
- **Nothing acknowledged is lost** when the server alone is killed, with ``fsync="always"``; with
  ``"everysec"`` up to two seconds may be, if the disk is slow at that moment.
- **Nobody else's.** Directory and Unix socket are for this user alone, the TCP port for this
  machine alone, but for every user of it: where that matters, ``tcp=False`` and ``socket_url``.

A launcher that dies by a signal it does not handle leaves its temporary directory behind, without
a server: nobody is left who could remove it.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import fcntl
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote

from audit.binary import find_server
from audit.errors import EmbeddedServerError

#: True where the kernel can end a child with its parent; elsewhere a watcher process does it.
KERNEL_GUARD = sys.platform.startswith("linux")

_SOCKET_PATH_BYTES = 103  # sun_path: 104 bytes on macOS, 108 on Linux, the closing NUL included
_PORT_ATTEMPTS = 5
_START_SECONDS = 30.0  # a long append-only file takes its time to load
_STOP_SECONDS = 10.0
_LOCK_SECONDS = 5.0
_POLL_SECONDS = 0.005

# The handle finds, asks and ends the server by these, so an option may not change them.
_RESERVED = frozenset({"bind", "port", "unixsocket", "dir", "logfile", "daemonize"})

# Both guards run in a fresh interpreter that turns into the server by exec (about 15 ms). The other
# way, subprocess's preexec_fn, runs Python between fork and exec of a process that has threads,
# where any lock may be held for ever.
#
# The signal is SIGKILL, because a paused server leaves SIGTERM pending; what that may cost stands
# in the module's docstring. A launcher that died before prctl sends nothing: hence the getppid.
# The signal reaches the server alone: a child that rewrites the append-only file ends by itself,
# within about a second, when it finds nobody to report to.
_KERNEL_GUARD = """
import ctypes, os, signal, sys
launcher, lock, *command = sys.argv[1:]
PR_SET_PDEATHSIG = 1
if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)) != 0:
    sys.exit("cannot tie the server to its launcher: prctl failed")
if os.getppid() != int(launcher):
    sys.exit("the launcher has ended")
os.execv(command[0], command)
"""

# Standard input is the leash, a pipe that only the launcher can write to and never does: end of
# file means that it has ended. As a child of the server the watcher cannot be fooled by a reused
# process id: when the server is gone, so is its parenthood. Limit: a child that the launcher forks
# without exec (multiprocessing's fork) holds the leash too; the server then ends with the last one.
_WATCHER_GUARD = """
import os, signal, sys
launcher, lock, *command = sys.argv[1:]
server = os.getpid()
if os.fork() == 0:
    os.close(int(lock))
    os.read(0, 1)
    if os.getppid() == server:
        os.killpg(server, signal.SIGKILL)
    os._exit(0)
os.execv(command[0], command)
"""


class EmbeddedServer:
    """A server of our own: started, asked, disturbed and ended through this handle.

    A handle belongs to the process that started it, and to one thread at a time. In a forked child
    its ``stop()`` does nothing.

    Args:
        directory: where the data, ``server.log`` and the socket live; made with mode 0700 and kept.
            ``None`` makes a temporary one that ``stop()`` removes.
        fsync: when the append-only file is forced to disk, as in ``appendfsync``.
        maxmemory: as in ``maxmemory``, say ``"64mb"``; writes beyond it fail, nothing is evicted.
        options: further settings of the server, by name, which win over ours.
        tcp: listen on a free port of 127.0.0.1 too, not on the Unix socket alone.
    """

    def __init__(
        self,
        *,
        directory: Path | None = None,
        fsync: Literal["everysec", "always"] = "everysec",
        maxmemory: str | None = None,
        options: Mapping[str, str] | None = None,
        tcp: bool = True,
    ) -> None:
        self._options = {name.lower(): value for name, value in (options or {}).items()}
        if reserved := _RESERVED & self._options.keys():
            raise EmbeddedServerError(
                f"the embedded server sets {', '.join(sorted(reserved))} itself: leave it out"
            )
        if maxmemory is not None:
            self._options.setdefault("maxmemory", maxmemory)
        self._kept = directory and directory.absolute()
        self._fsync = fsync
        self._tcp = tcp
        self._owner: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._port: int | None = None
        self._directory: Path | None = None
        self._socket: Path | None = None
        self._temporary: list[Path] = []
        self._leash: int | None = None
        self._log_start = 0

    def start(self) -> Self:
        """Start the server and wait until it answers; does nothing if it runs already.

        After ``kill()`` the same directory and the same port are used again.

        Raises:
            EmbeddedServerError: there is no binary, the directory is in use or open to others, or
                the server ended or stayed silent; the text then ends with its log.
        """
        if self._process is not None and self._owner != os.getpid():
            raise EmbeddedServerError("this handle belongs to the process that started its server")
        if self.running:
            return self
        binary = find_server()
        self._owner = os.getpid()
        atexit.register(self.stop)
        try:
            self._prepare_directory()
            self._launch(binary)
        except BaseException as error:
            self.stop()
            if isinstance(error, OSError):
                raise EmbeddedServerError(f"cannot start {binary}: {error}") from error
            raise
        return self

    def stop(self) -> None:
        """End the server in order, by force if it takes too long, and remove what is temporary."""
        if self._owner != os.getpid():  # a forked child leaves its parent's server alone
            return
        if self._process is not None:
            _end(self._process)
        self._process = None
        self._drop_leash()
        while self._temporary:
            shutil.rmtree(self._temporary.pop(), ignore_errors=True)
        self._directory = self._socket = None
        atexit.unregister(self.stop)

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would; ``start()`` then recovers its data."""
        process = self._running_process()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._drop_leash()

    def pause(self) -> None:
        """Stop the server in its tracks: clients still connect, and wait."""
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)
        # The signal takes effect a little later, or finds the server ended (no child then).
        with contextlib.suppress(ChildProcessError):
            if hasattr(os, "waitid"):  # on macOS from Python 3.13 on
                os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a paused server go on."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether this process runs the server; a paused one runs."""
        mine = self._process if self._owner == os.getpid() else None
        return mine is not None and mine.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._running_process().pid

    @property
    def port(self) -> int:
        """TCP port on 127.0.0.1; the same for the life of the handle."""
        if self._port is None:
            raise EmbeddedServerError("the server has no TCP port: start() it, with tcp=True")
        return self._port

    @property
    def url(self) -> str:
        """``redis://`` URL of database 0."""
        return self.url_for(0)

    def url_for(self, db: int) -> str:
        """``redis://`` URL of a database, 0 to 15."""
        return f"redis://127.0.0.1:{self.port}/{db}"

    @property
    def directory(self) -> Path:
        """Where the data and ``server.log`` live."""
        return _started(self._directory)

    @property
    def socket_path(self) -> Path:
        """The Unix socket, in the directory or, where that path is too long, in a short one."""
        return _started(self._socket)

    @property
    def socket_url(self) -> str:
        """``redis+socket://`` URL of database 0, as Celery and ``open_memory`` read it."""
        return f"redis+socket://{quote(str(self.socket_path))}?virtual_host=0"

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is None or not self.running:
            raise EmbeddedServerError("this process runs no such server: start() it first")
        return self._process

    def _prepare_directory(self) -> None:
        if self._directory is None:
            self._directory = self._kept or self._make_temporary()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Refused rather than changed: others may have a right to it.
        if self._directory.stat().st_mode & 0o077:
            raise EmbeddedServerError(
                f"{self._directory} is open to other users: chmod 700 it, or name a directory "
                "that does not exist yet"
            )
        if self._socket is None:
            self._socket = self._short_enough(self._directory / "server.sock")

    def _make_temporary(self, parent: str | None = None) -> Path:
        made = Path(tempfile.mkdtemp(prefix="skillhost-", dir=parent))
        self._temporary.append(made)
        return made

    def _short_enough(self, path: Path) -> Path:
        if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES:
            return path
        # $TMPDIR may be as long; what is made in /tmp is made private, under a new name.
        return self._make_temporary("/tmp") / path.name  # noqa: S108

    def _launch(self, binary: str) -> None:
        for _ in range(_PORT_ATTEMPTS):
            port = self._port or (_free_port() if self._tcp else 0)
            process = self._spawn(self._command(binary, port))
            if self._wait_for_answer(process):
                self._port = port or None
                return
        raise EmbeddedServerError(f"the server found no port to listen on:\n{self._log_tail()}")

    def _command(self, binary: str, port: int) -> list[str]:
        settings = {
            "daemonize": "no",
            "dir": str(self.directory),
            "logfile": str(self._log),
            "bind": "127.0.0.1",
            "protected-mode": "yes",
            "port": str(port),
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "700",
            "databases": "16",
            "save": "",
            "appendonly": "yes",
            "appendfsync": self._fsync,
            "maxmemory-policy": "noeviction",
            **self._options,
        }
        return [binary, *(word for name in settings for word in (f"--{name}", settings[name]))]

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        guard = _KERNEL_GUARD if KERNEL_GUARD else _WATCHER_GUARD
        spawned: _Spawned = concurrent.futures.Future()
        self._drop_leash()
        with contextlib.ExitStack() as stack:
            lock = self._lock_directory()
            stack.callback(os.close, lock)
            stdin, self._leash = os.pipe()
            stack.callback(os.close, stdin)
            log = stack.enter_context(self._log.open("ab"))
            self._log_start = self._log.stat().st_size
            popen = functools.partial(
                subprocess.Popen[bytes],
                # -I and -S: neither the environment nor site-packages has a say in the guard.
                [sys.executable, "-I", "-S", "-c", guard, str(os.getpid()), str(lock), *command],
                stdin=stdin,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                # Ctrl-C in the terminal goes to the launcher, which then ends the server in order.
                start_new_session=True,
            )
            # A Ctrl-C while we wait for the thread: what it spawned is still ours to end.
            stack.callback(concurrent.futures.wait, [spawned])
            threading.Thread(target=self._attend, args=(popen, spawned), daemon=True).start()
            return spawned.result()

    def _attend(self, popen: _Popen, spawned: _Spawned) -> None:
        """Spawn the server and stay until it ends.

        The kernel's parent-death signal follows the THREAD that spawned: this one therefore lives
        as long as its server. It is a daemon, because Python joins all others before it runs
        atexit, and so would wait for a server that only atexit stops.
        """
        try:
            self._process = popen()
        except BaseException as error:
            spawned.set_exception(error)
        else:
            spawned.set_result(self._process)
            self._process.wait()

    def _lock_directory(self) -> int:
        """Descriptor of the locked lock file, for the server to inherit.

        The lock is the server's, not the launcher's: it lasts as long as one may write here.
        """
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + _LOCK_SECONDS  # a predecessor may be ending just now
        while not _try_lock(lock):
            if time.monotonic() > deadline:
                os.close(lock)
                raise EmbeddedServerError(
                    f"another server runs in {self.directory}: end it, or name another directory"
                )
            time.sleep(_POLL_SECONDS)
        return lock

    def _wait_for_answer(self, process: subprocess.Popen[bytes]) -> bool:
        """True when the server answers, False when somebody else took its port first."""
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(self.socket_path):
            if process.poll() is not None:
                tail = self._log_tail()
                if "Failed listening on port" in tail:
                    return False
                raise EmbeddedServerError(
                    f"the server ended, status {process.returncode}, saying:\n{tail}"
                )
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"no answer in {_START_SECONDS:g} s, the server saying:\n{self._log_tail()}"
                )
            time.sleep(_POLL_SECONDS)
        return True

    @property
    def _log(self) -> Path:
        return self.directory / "server.log"

    def _log_tail(self) -> str:
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return "\n".join(log.read().decode(errors="replace").splitlines()[-20:])

    def _drop_leash(self) -> None:
        if self._leash is not None:
            os.close(self._leash)
            self._leash = None


_Popen = Callable[[], "subprocess.Popen[bytes]"]
_Spawned = concurrent.futures.Future["subprocess.Popen[bytes]"]


def _started(path: Path | None) -> Path:
    if path is None:
        raise EmbeddedServerError("the server has no directory yet: start() it first")
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _answers(path: Path) -> bool:
    # Asked over the socket, not the port: in a directory of our own nobody else can answer.
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        try:
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            # NOAUTH: the options set a password; LOADING, on the other hand, is no answer yet.
            return client.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)  # it may be paused
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
