"""One line of a list: an invocation, or a row that stands alone.

Rows are whatever somebody stored, so what a line says of them is text, a whole number, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from audit.row import COMPLETED, LATE, REFUSED, STARTED, AuditRow, Outcome


class LineKind(StrEnum):
    """What a line is of.

    ``STARTED``: an invocation without its ending among the rows read: it runs, or its completed row
    stands elsewhere, or the filter let it not pass. ``CLOSED``: an invocation with its ending.
    """

    STARTED = "started"
    CLOSED = "closed"
    LATE = "late"
    REFUSED = "refused"
    SYSTEM = "system"


@dataclass(frozen=True, kw_only=True, slots=True)
class InvocationLine:
    """One invocation as far as its rows were read, or one row that stands alone.

    Attributes:
        kind: what it is of.
        started: its started row, where it was read.
        completed: its completed row, where it was read.
        alone: the late, refused or system row of a line of its own; else ``None``.
        children: the invocations that this one published, oldest first; in lists always empty.
    """

    kind: LineKind
    started: AuditRow | None = None
    completed: AuditRow | None = None
    alone: AuditRow | None = None
    children: tuple[InvocationLine, ...] = ()

    @property
    def row(self) -> AuditRow:
        """The newest of its rows."""
        found = self.alone or self.completed or self.started
        if found is None:
            raise ValueError("a line has a row")
        return found

    @property
    def rows(self) -> tuple[AuditRow, ...]:
        """All of its rows, in stored order."""
        return tuple(row for row in (self.started, self.completed, self.alone) if row is not None)

    @property
    def request_id(self) -> str:
        return self.row.request_id

    @property
    def tenant_id(self) -> str:
        return self.row.tenant_id

    @property
    def ts(self) -> datetime:
        """When it started, else the time of the row it has; aware."""
        return datetime.fromisoformat((self.started or self.row).ts)

    @property
    def skill_id(self) -> str | None:
        return self._said("skill_id")

    @property
    def version(self) -> str | None:
        return self._said("version")

    @property
    def caller_persona(self) -> str | None:
        return self._said("caller_persona")

    @property
    def trace_id(self) -> str | None:
        return self._said("trace_id")

    @property
    def error_message(self) -> str | None:
        return self._said("error_message")

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; ``None`` also for a word that is no outcome."""
        word = self._said("outcome")
        return Outcome(word) if word in set(Outcome) else None

    @property
    def reason(self) -> str | None:
        """The finer word of an ending, or why it was refused."""
        return text(self.row.meta.get("reason")) or text(self.row.payload.get("reason"))

    @property
    def duration_ms(self) -> int | None:
        return number(self.row.payload.get("duration_ms"))

    @property
    def duration(self) -> str | None:
        """``lower_bound`` or ``upper_bound`` where nobody measured ``duration_ms``."""
        return text(self.row.meta.get("duration"))

    @property
    def task_id(self) -> str | None:
        return text(self.row.meta.get("task_id"))

    @property
    def attempt(self) -> int | None:
        return number(self.row.meta.get("attempt"))

    @property
    def redelivered(self) -> bool:
        return self.row.meta.get("redelivered") is True

    @property
    def parent_request_id(self) -> str | None:
        return text(self.row.meta.get("parent_request_id"))

    def _said(self, name: str) -> str | None:
        return next((word for row in self.rows if (word := text(row.payload.get(name)))), None)


def lines_of(rows: Iterable[AuditRow]) -> tuple[InvocationLine, ...]:
    """Rows, newest first, as lines in the same order, a pair at the place of its newest row."""
    lines: dict[tuple[str, ...], InvocationLine] = {}
    for row in rows:
        alone = row.kind not in (STARTED, COMPLETED)
        key = (row.tenant_id, row.request_id, *((str(row.position),) if alone else ()))
        lines[key] = _with(lines.get(key), row)
    return tuple(lines.values())


def text(value: object) -> str | None:
    """``value`` where it is text, and not empty."""
    return value if isinstance(value, str) and value else None


def number(value: object) -> int | None:
    """``value`` where it is a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _with(line: InvocationLine | None, row: AuditRow) -> InvocationLine:
    started, completed = (line.started, line.completed) if line else (None, None)
    if row.kind == STARTED:
        kind = LineKind.CLOSED if completed else LineKind.STARTED
        return InvocationLine(kind=kind, started=row, completed=completed)
    if row.kind == COMPLETED:
        return InvocationLine(kind=LineKind.CLOSED, started=started, completed=row)
    kinds = {LATE: LineKind.LATE, REFUSED: LineKind.REFUSED}
    return InvocationLine(kind=kinds.get(row.kind, LineKind.SYSTEM), alone=row)
