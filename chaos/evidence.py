"""What a run leaves behind to be judged: the memory, the spool, results, and what logs tell."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import redis

from audit import open_memory
from audit.memory import AuditMemory
from audit.spool import QUARANTINE, Spool
from chaos.place import Place
from chaos.verdict import QUARANTINED, REPORTED_LOST, Finding

READ_SECONDS: Final = 30.0
#: In a log record that carries a whole row, because no other place took it.
LOST_ROW: Final = "; the row: "


@contextmanager
def memory_of(place: Place) -> Iterator[AuditMemory]:
    memory = open_memory(place.memory, timeout=READ_SECONDS)
    try:
        yield memory
    finally:
        memory.close()


def spool_of(place: Place, memory: AuditMemory) -> Spool:
    return Spool(place.spool, memory.name)


def results_of(place: Place) -> dict[str, dict[str, Any]]:
    backend: Any = redis.Redis.from_url(place.results, socket_timeout=READ_SECONDS)
    with backend:
        keys = list(backend.scan_iter("celery-task-meta-*", count=1000))
        stored = [value for page in _pages(keys) for value in backend.mget(page)]
    results = [json.loads(value) for value in stored if value is not None]
    return {result["task_id"]: result for result in results}


def _pages(keys: Sequence[bytes], size: int = 500) -> Iterator[Sequence[bytes]]:
    for begin in range(0, len(keys), size):
        yield keys[begin : begin + size]


def set_aside(place: Place, memory: AuditMemory) -> list[Finding]:
    folder = spool_of(place, memory).directory / QUARANTINE
    return [Finding(QUARANTINED, str(path)) for path in sorted(folder.glob("*"))]


def reported_lost(directory: Path) -> list[Finding]:
    return [
        Finding(REPORTED_LOST, f"{path.name}: {line}")
        for path in sorted(directory.glob("*.log"))
        for line in path.read_text(errors="replace").splitlines()
        if LOST_ROW in line
    ]
