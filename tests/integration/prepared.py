"""Processes that begin where ``python -m celery``, or another program, has done its imports.

Each is a process of its own, with its own environment, files, session and signals, and runs
the program as ``-m`` does; only the second that its imports take is spent once for all tests. One
process (``tests/integration/forking.py``), started when the first is asked for, has imported
Celery, the host and nothing of a test's, and forks. Whatever must be in place before the first
import, gevent's patches or other packages, gets a process that starts from nothing.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, Self

from tests.integration import forking
from tests.integration.forking import LENGTH, exactly

ROOT = Path(__file__).resolve().parents[2]


#: When output and compiled files are written: the same in every process, whatever it was told.
HABITS = frozenset({"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"})

Pipe = IO[bytes] | None
Standard = int | IO[bytes]


class Process:
    """What tests use of :class:`subprocess.Popen`, for a process that another one has forked."""

    def __init__(
        self, pid: int, ended: socket.socket, stdin: Pipe, stdout: Pipe, stderr: Pipe
    ) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self._ended = ended

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = int(self._ended.recv(16))
            self._ended.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """The rest of both outputs, once it has ended; nothing of one that is no pipe."""
        if self.stdin:
            self.stdin.close()
        with ThreadPoolExecutor(2) as readers:
            rest = [pipe and readers.submit(pipe.read) for pipe in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        out, err = (part.result() if part else b"" for part in rest)
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe:
                pipe.close()
        self.wait()


Started = Process | subprocess.Popen[bytes]


def celery(*arguments: str, **options: Any) -> Started:
    """Start ``python -m celery`` with ``arguments``; options as for :func:`start`."""
    return start("celery", *arguments, **options)


def start(
    module: str,
    *arguments: str,
    cwd: Path,
    env: Mapping[str, str],
    stdin: Standard = subprocess.DEVNULL,
    stdout: Standard,
    stderr: Standard,
    session: bool = False,
) -> Started:
    """Start ``python -m MODULE`` with ``arguments``.

    Args:
        stdin: as for :class:`subprocess.Popen`, and so are ``stdout`` and ``stderr``.
        session: whether the process leads a session, and so a group, of its own.
    """
    if "gevent" in arguments or _of_python(env) != _of_python(_bare_environment()):
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=session,
        )
    order = {"cwd": str(cwd), "env": dict(env), "session": session}
    order |= {"module": module, "arguments": arguments}
    return _parent().fork(order, stdin, stdout, stderr)


def run_celery(
    *arguments: str, cwd: Path, env: Mapping[str, str], timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """What :func:`subprocess.run` gives for it, its outputs as text."""
    pipe = subprocess.PIPE
    with celery(*arguments, cwd=cwd, env=env, stdout=pipe, stderr=pipe) as process:
        out, err = process.communicate(timeout)
    status = process.returncode
    assert status is not None
    return subprocess.CompletedProcess(arguments, status, out.decode(), err.decode())


class _Parent:
    """The process that has imported everything, seen from the tests."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", forking.__name__, str(theirs.fileno())],
                cwd=ROOT,
                env=_bare_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self._end, os.getpid())

    def fork(
        self, order: Mapping[str, Any], stdin: Standard, stdout: Standard, stderr: Standard
    ) -> Process:
        ours, theirs = socket.socketpair()
        with ExitStack() as theirs_alone:
            theirs_alone.enter_context(theirs)
            pipes, ends = [], [theirs.fileno()]
            for standard, writes in ((stdin, False), (stdout, True), (stderr, True)):
                pipe, end = _ends(standard, writes, theirs_alone)
                pipes.append(pipe)
                ends.append(end)
            self._send(json.dumps(order).encode(), ends)
        return Process(int.from_bytes(exactly(ours, LENGTH), "big"), ours, *pipes)

    def _send(self, text: bytes, descriptors: list[int]) -> None:
        with self._lock:
            socket.send_fds(self._orders, [len(text).to_bytes(LENGTH, "big")], descriptors)
            self._orders.sendall(text)

    def _end(self, owner: int) -> None:
        if os.getpid() == owner:
            self._orders.close()
            self._process.wait(20)


@cache
def _parent() -> _Parent:
    return _Parent()


def _ends(standard: Standard, writes: bool, theirs_alone: ExitStack) -> tuple[Pipe, int]:
    """What the test has, if anything, and the descriptor that the process gets."""
    if standard == subprocess.PIPE:
        reading, writing = os.pipe()
        ours, theirs = (reading, writing) if writes else (writing, reading)
        theirs_alone.callback(os.close, theirs)
        return open(ours, "rb" if writes else "wb"), theirs
    if standard == subprocess.DEVNULL:
        theirs = os.open(os.devnull, os.O_RDWR)
        theirs_alone.callback(os.close, theirs)
        return None, theirs
    return None, standard if isinstance(standard, int) else standard.fileno()


def _bare_environment() -> dict[str, str]:
    """Without what a test may have set for its own process when the first is asked for."""
    own = ("AUDIT_", "CELERY_", "FLOWER_", "OTEL_")
    bare = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return {**bare, "PYTHONPATH": str(ROOT)}


def _of_python(env: Mapping[str, str]) -> dict[str, str]:
    """What the interpreter itself reads when it starts, and what it does depends on."""
    return {
        name: value
        for name, value in env.items()
        if name.startswith("PYTHON") and name not in HABITS
    }
