"""Stand-ins for what an invocation meets: a memory with paired faults, a clock, a signal."""

from __future__ import annotations

import sys
from collections import deque
from types import ModuleType
from typing import Any, NoReturn, Self

from audit.errors import MemoryUnavailableError, RowRefusedError
from audit.memory import AuditMemory
from audit.memory.base import RowRefusal, Stored
from audit.row import COMPLETED, STARTED, AuditRow
from tests.support import validate_row

DOWN = MemoryUnavailableError("memory redis://host/1 did not answer as it should: refused")


class FakeMemory(AuditMemory):
    """Close once, in a dictionary; ``faults`` are what the next emits do instead of returning.

    A fault is ``None`` (none), ``(error, False)``: failed, not stored, or ``(error, True)``:
    failed, but stored. Rows of the kind ``lost`` are never stored.
    """

    def __init__(self, *faults: tuple[BaseException, bool] | None, lost: str = "") -> None:
        self.lost = lost
        self.faults = deque(faults)
        self.stored: list[AuditRow] = []
        self.emits = 0

    def emit(self, row: AuditRow) -> Stored:
        self.emits += 1
        fault = self.faults.popleft() if self.faults else None
        if row.kind == self.lost:
            raise DOWN
        if fault is None:
            return self._store(row)
        error, stored = fault
        if stored:
            self._store(row)
        raise error

    def _store(self, row: AuditRow) -> Stored:
        if row in self.stored:
            return Stored.REPEATED
        kinds = [other.kind for other in self.stored if other.request_id == row.request_id]
        if row.kind == COMPLETED and STARTED not in kinds:
            raise RowRefusedError(RowRefusal.NO_STARTED_ROW.value, row.request_id)
        if row.kind == STARTED and kinds:
            raise RowRefusedError(RowRefusal.SECOND_STARTED_ROW.value, row.request_id)
        if row.kind == COMPLETED and COMPLETED in kinds:
            return Stored.LATE
        validate_row(row)
        self.stored.append(row)
        return Stored.NEW

    def kinds(self) -> list[str]:
        return [row.kind for row in self.stored]

    def check(self) -> NoReturn:
        raise NotImplementedError

    running = select = follow = close = check


class FakeClock:
    """Monotonic seconds that pass only when told; each reading may cost some."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 100.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Strike:
    """Raises ``error`` when ``modules`` come to their n-th line, as a signal handler would."""

    def __init__(self, error: BaseException, n: int, *modules: ModuleType) -> None:
        self.place = ""
        self._error = error
        self._left = n
        self._files = {module.__file__ for module in modules}

    def __enter__(self) -> Self:
        sys.settrace(self._call)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.settrace(None)

    @property
    def struck(self) -> bool:
        return bool(self.place)

    def _call(self, frame: Any, event: str, arg: object) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: Any, event: str, arg: object) -> Any:
        if event == "line" and not self.struck:
            self._left -= 1
            if self._left < 0:
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise self._error
        return self._line
