"""The journal of effects: what bodies really did, whatever rows and results say.

Each body writes one line before anything else, in one write to a file opened with ``O_APPEND``: so
processes do not mix, and a process that is killed leaves a whole line or none.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

#: How much of the end of a journal :func:`recent` reads.
TAIL_BYTES: Final = 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """One body that ran.

    Attributes:
        request_id: its invocation.
        task_id: the message it ran for.
        skill: the skill's id.
        pid: the process it ran in.
        main: the worker's main process, its parent.
        at: when it began, seconds of the wall clock.
    """

    request_id: str
    task_id: str
    skill: str
    pid: int
    main: int
    at: float


def write(path: Path, request_id: str, task_id: str, skill: str) -> None:
    """Note that a body begins here and now."""
    effect = Effect(
        request_id=request_id,
        task_id=task_id,
        skill=skill,
        pid=os.getpid(),
        main=os.getppid(),
        at=time.time(),
    )
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{json.dumps(asdict(effect))}\n".encode())
    finally:
        os.close(descriptor)


def read(path: Path) -> list[Effect]:
    """Every effect, in the order of the file."""
    return [Effect(**json.loads(line)) for line in path.read_text().splitlines()]


def recent(path: Path) -> list[Effect]:
    """The latest effects, newest first."""
    if not path.exists():
        return []
    with path.open("rb") as journal:
        journal.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = journal.read().splitlines()[1:]
    return [Effect(**json.loads(line)) for line in reversed(lines)]


class Follower:
    """Reads a journal as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self) -> list[Effect]:
        """The effects since the last call; a line without its end is left for the next one."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as journal:
            journal.seek(self._read)
            whole = journal.read().rpartition(b"\n")[0]
        self._read += len(whole) + 1 if whole else 0
        return [Effect(**json.loads(line)) for line in whole.splitlines()]
