"""Leaks on purpose, which the verdict must find: ``python -m soak --leak child main``."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import redis
from celery import signals

#: Which leaks the processes under test have, with spaces between.
VARIABLE: Final = "SOAK_LEAK"
#: Bytes kept for each invocation.
KEPT: Final = 2048
LOOK_SECONDS: Final = 0.1

_kept: list[object] = []


class Leak(StrEnum):
    """What is not given back."""

    CHILD = "child"
    MAIN = "main"
    CONNECTION = "connection"
    SPOOL = "spool"


def open_up() -> None:
    """Spring the leaks that the environment names."""
    for name in os.environ.get(VARIABLE, "").split():
        _SIGNALS[Leak(name)].connect(_LEAKS[Leak(name)], weak=False)


def _keep_memory(**_: Any) -> None:
    _kept.append(b"x" * (KEPT - 1) + bytes([len(_kept) % 256]))


def _keep_connection() -> None:
    connection: Any = redis.Redis.from_url(os.environ["AUDIT_MEMORY_URL"], socket_timeout=1)
    connection.ping()
    _kept.append(connection)


def _keep_file() -> None:
    folder = Path(os.environ["AUDIT_SPOOL_DIR"])
    folder.mkdir(exist_ok=True)
    (folder / f"left-{time.time_ns()}").touch()


def _watching(leak: Callable[[], None]) -> Callable[..., None]:
    """What starts a thread of the main process that leaks whenever the memory has come back."""

    def watch() -> None:
        memory: Any = redis.Redis.from_url(os.environ["AUDIT_MEMORY_URL"], socket_timeout=0.1)
        away = False
        while True:
            time.sleep(LOOK_SECONDS)
            try:
                memory.ping()
            except redis.RedisError:
                away = True
                continue
            if away:
                with contextlib.suppress(redis.RedisError):
                    leak()
                    away = False

    return lambda **_: threading.Thread(target=watch, daemon=True).start()


_LEAKS: Final[dict[Leak, Callable[..., None]]] = {
    Leak.CHILD: _keep_memory,
    Leak.MAIN: _keep_memory,
    Leak.CONNECTION: _watching(_keep_connection),
    Leak.SPOOL: _watching(_keep_file),
}
_SIGNALS: Final[dict[Leak, Any]] = {
    Leak.CHILD: signals.task_prerun,
    Leak.MAIN: signals.task_received,
    Leak.CONNECTION: signals.worker_ready,
    Leak.SPOOL: signals.worker_ready,
}
