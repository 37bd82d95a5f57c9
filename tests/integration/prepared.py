"""Processes of Celery's command line that begin where ``python -m celery`` has done its imports.

Each is a process of its own, with its own environment, files, session and signals, and runs
Celery's own ``main``; only the second that its imports take is spent once for all tests. One
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
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, Self

from tests.integration import forking
from tests.integration.forking import LENGTH, exactly

ROOT = Path(__file__).resolve().parents[2]


class Process:
    """What tests use of :class:`subprocess.Popen`, for a process that another one has forked."""

    def __init__(
        self, pid: int, ended: socket.socket, stdout: IO[bytes] | None, stderr: IO[bytes] | None
    ) -> None:
        self.pid = pid
        self.returncode: int | None = None
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
                raise subprocess.TimeoutExpired("celery", timeout or 0)
            self.returncode = int(self._ended.recv(16))
            self._ended.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """The rest of both outputs, once it has ended; nothing of one that is no pipe."""
        with ThreadPoolExecutor(2) as readers:
            rest = [readers.submit(pipe.read) if pipe else None for pipe in self._pipes()]
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

    def _pipes(self) -> tuple[IO[bytes] | None, IO[bytes] | None]:
        return self.stdout, self.stderr

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes():
            if pipe:
                pipe.close()
        self.wait()


Started = Process | subprocess.Popen[bytes]


def celery(
    *arguments: str,
    cwd: Path,
    env: Mapping[str, str],
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    session: bool = False,
) -> Started:
    """Start ``python -m celery`` with ``arguments``, and nothing on its standard input.

    Args:
        stdout: as for :class:`subprocess.Popen`, and so is ``stderr``.
        session: whether the process leads a session, and so a group, of its own.
    """
    if "gevent" in arguments or _of_python(env) != _of_python(_bare_environment()):
        return subprocess.Popen(
            [sys.executable, "-m", "celery", *arguments],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=session,
        )
    order = {"arguments": arguments, "cwd": str(cwd), "env": dict(env), "session": session}
    return _parent().fork(order, stdout, stderr)


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
        self, order: Mapping[str, Any], stdout: int | IO[bytes], stderr: int | IO[bytes]
    ) -> Process:
        out, out_end = _ends(stdout)
        err, err_end = (None, out_end) if stderr == subprocess.STDOUT else _ends(stderr)
        ours, theirs = socket.socketpair()
        try:
            self._send(json.dumps(order).encode(), [theirs.fileno(), out_end, err_end])
        finally:
            theirs.close()
            for own, end in ((stdout, out_end), (stderr, err_end)):
                if own in (subprocess.PIPE, subprocess.DEVNULL):
                    os.close(end)
        return Process(int.from_bytes(exactly(ours, LENGTH), "big"), ours, out, err)

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


def _ends(output: int | IO[bytes]) -> tuple[IO[bytes] | None, int]:
    """What the test reads, if anything, and the descriptor that the process gets."""
    if output == subprocess.PIPE:
        ours, theirs = os.pipe()
        return open(ours, "rb"), theirs
    if output == subprocess.DEVNULL:
        return None, os.open(os.devnull, os.O_WRONLY)
    return None, output if isinstance(output, int) else output.fileno()


def _bare_environment() -> dict[str, str]:
    """Without what a test may have set for its own process when the first is asked for."""
    own = ("AUDIT_", "CELERY_", "FLOWER_", "OTEL_")
    bare = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return {**bare, "PYTHONPATH": str(ROOT)}


def _of_python(env: Mapping[str, str]) -> dict[str, str]:
    """What the interpreter itself reads when it starts."""
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}
