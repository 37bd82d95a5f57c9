"""Processes of Celery's command line that begin where ``python -m celery`` has done its imports.

A worker is a process of its own, with its own environment, files, session and signals, and runs
Celery's own ``main``; only the second that its imports take is spent once for all tests. One
process, started when the first is asked for, has imported Celery, the host and nothing of a test's,
and forks. Whatever must be in place before the first import, gevent's patches or other packages,
needs a process that starts from nothing: :func:`celery` sees to that.
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from tests.integration import forking
from tests.integration.forking import LENGTH, exactly

ROOT = Path(__file__).resolve().parents[2]


class Process:
    """What tests use of :class:`subprocess.Popen`, for a process that another one has forked."""

    def __init__(self, pid: int, ended: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
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

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def celery(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdout: IO[bytes],
    stderr: IO[bytes] | None = None,
    session: bool = False,
) -> Any:
    """Start ``python -m celery`` with ``arguments``.

    Args:
        stdout: a file; ``stderr`` too, where that is no other.
        session: whether the process leads a session, and so a group, of its own.

    Returns:
        A :class:`Process`, or a :class:`subprocess.Popen` where it must start from nothing.
    """
    stderr = stderr or stdout
    if "gevent" in arguments or env.get("PYTHONPATH") != str(ROOT):
        return subprocess.Popen(
            [sys.executable, "-m", "celery", *arguments],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=session,
        )
    order = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env), "session": session}
    return _parent().fork(order, stdout.fileno(), stderr.fileno())


class _Parent:
    """The process that has imported everything, seen from the tests."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", forking.__name__, str(theirs.fileno())],
                cwd=ROOT,
                env={**_bare_environment(), "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self._end, os.getpid())

    def fork(self, order: Mapping[str, Any], stdout: int, stderr: int) -> Process:
        ours, theirs = socket.socketpair()
        text = json.dumps(order).encode()
        with theirs, self._lock:
            head = len(text).to_bytes(LENGTH, "big")
            socket.send_fds(self._orders, [head], [theirs.fileno(), stdout, stderr])
            self._orders.sendall(text)
        return Process(int.from_bytes(exactly(ours, LENGTH), "big"), ours)

    def _end(self, owner: int) -> None:
        if os.getpid() == owner:
            self._orders.close()
            self._process.wait(20)


@cache
def _parent() -> _Parent:
    return _Parent()


def _bare_environment() -> dict[str, str]:
    """Without what a test may have set for its own process when the first worker is asked for."""
    own = ("AUDIT_", "CELERY_", "FLOWER_", "OTEL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}
