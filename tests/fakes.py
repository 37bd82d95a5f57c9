"""Stand-ins for what an invocation meets: a memory that fails as told, and a signal."""

from __future__ import annotations

import sys
from collections import deque
from types import ModuleType
from typing import Any, Self

from audit.errors import MemoryUnavailableError
from audit.memory.base import Hold, Once, Stored
from audit.row import AuditRow
from audit.testing import InMemory
from tests.support import validate_row

DOWN = MemoryUnavailableError("memory redis://host/1 did not answer as it should: refused")
#: The same, and the row may have landed.
DOUBT = MemoryUnavailableError("memory redis://host/1 did not answer in time", maybe_stored=True)


class FakeMemory(InMemory):
    """A memory in this process whose next emits end as told, in any exception there is.

    A fault is ``None`` (none), ``(error, False)``: failed, not stored, or ``(error, True)``:
    failed, but stored. Rows of the kind ``lost`` are never stored.
    """

    def __init__(self, *faults: tuple[BaseException, bool] | None, lost: str = "") -> None:
        super().__init__()
        self.lost = lost
        self.plan = deque(faults)
        self.emits = 0

    def emit(self, row: AuditRow, once: Once | None = None, hold: Hold | None = None) -> Stored:
        self.emits += 1
        fault = self.plan.popleft() if self.plan else None
        if row.kind == self.lost:
            raise DOWN
        validate_row(row)
        if fault is None:
            return super().emit(row, once, hold)
        error, stored = fault
        if stored:
            super().emit(row, once, hold)
        raise error

    @property
    def stored(self) -> list[AuditRow]:
        return list(self.rows())

    def kinds(self) -> list[str]:
        return [row.kind for row in self.stored]


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
                # One error strikes many runs: what it carries from the last would grow with each.
                self._error.__context__ = None
                raise self._error.with_traceback(None)
        return self._line
