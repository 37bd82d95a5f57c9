"""What is around an invocation: what it published, and the attempts of its task.

No index leads there, so a bounded stretch of its tenant's rows is read: back from its first row for
earlier attempts, then on from there for what it published, what that published, and later attempts.
Whatever a row claims about its parent, each invocation is put into the tree once, below one parent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from audit.board.line import InvocationLine, LineKind, lines_of, text
from audit.memory.base import AuditMemory, RowFilter, order_of
from audit.memory.newest import Cursor, row_of
from audit.row import COMPLETED, REFUSED, STARTED, AuditRow

#: Levels of children.
DEPTH: Final = 20
#: Entries read at once.
CHUNK: Final = 500
#: One part of so many of the look goes backward.
BACKWARD: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Around:
    """What was found around an invocation; see :class:`audit.board.invocation.InvocationView`."""

    children: tuple[InvocationLine, ...] = ()
    attempts: tuple[InvocationLine, ...] = ()
    looked: int = 0
    complete: bool = True
    damaged: int = 0


def around(memory: AuditMemory, own: InvocationLine, look: int) -> Around:
    """Look around the invocation of ``own``, at ``look`` entries at most (2 at least)."""
    begin = own.rows[0]
    family = _Family(own, text(begin.meta.get("task_id")))
    # Without the started row, what it published early may have been trimmed as well.
    family.complete = own.kind in (LineKind.REFUSED, LineKind.SYSTEM) or own.started is not None
    back = max(1, look // BACKWARD) if family.task_id else 0
    if back:
        _look_back(memory, begin, family, back)
    _look_on(memory, begin, family, max(1, look - back))
    return Around(
        children=family.tree(),
        attempts=family.attempts(),
        looked=family.looked,
        complete=family.complete,
        damaged=family.damaged,
    )


@dataclass(slots=True)
class _Family:
    """The invocations of interest, in the order in which they were met."""

    own: InvocationLine
    task_id: str | None
    rows: dict[str, list[AuditRow]] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)
    looked: int = 0
    damaged: int = 0
    complete: bool = True

    def meet(self, row: AuditRow) -> None:
        """A row behind the first of the invocation itself."""
        request_id = row.request_id
        if request_id == self.own.request_id:
            return
        if row.kind == COMPLETED and request_id in self.rows:
            self.rows[request_id].append(row)
        if row.kind in (STARTED, REFUSED) and request_id not in self.rows:
            child = self._adopt(row)
            if child or self._is_attempt(row):
                self.rows[request_id] = [row]

    def tree(self) -> tuple[InvocationLine, ...]:
        """The children, nested. Youngest first, so that each has its children when it is built."""
        below: dict[str, list[InvocationLine]] = {}
        for request_id, parent in reversed(self.parents.items()):
            children = tuple(reversed(below.pop(request_id, [])))
            below.setdefault(parent, []).append(
                replace(_line(self.rows[request_id]), children=children)
            )
        return tuple(reversed(below.get(self.own.request_id, [])))

    def attempts(self) -> tuple[InvocationLine, ...]:
        """All that ran or were refused under the same task id, in stored order."""
        if self.task_id is None:
            return ()
        lines = [_line(rows) for rows in self.rows.values() if self._is_attempt(rows[0])]
        return tuple(sorted([*lines, self.own], key=lambda line: order_of(_place(line))))

    def _adopt(self, row: AuditRow) -> bool:
        parent = text(row.meta.get("parent_request_id"))
        depth = 0 if parent == self.own.request_id else self.depths.get(parent or "")
        if parent is None or depth is None:
            return False
        if depth == DEPTH:
            self.complete = False
            return False
        self.parents[row.request_id], self.depths[row.request_id] = parent, depth + 1
        return True

    def _is_attempt(self, row: AuditRow) -> bool:
        return self.task_id is not None and row.meta.get("task_id") == self.task_id


def _look_back(memory: AuditMemory, begin: AuditRow, family: _Family, look: int) -> None:
    wanted = RowFilter(tenant_id=begin.tenant_id, task_id=family.task_id)
    cursor = str(Cursor.behind(begin.tenant_id, str(begin.position)))
    page = memory.page(wanted, most=look, look=look, cursor=cursor)
    family.looked += page.looked
    family.damaged += len(page.damaged)
    family.complete &= page.next is None and not page.trimmed
    for line in reversed(lines_of(page.rows)):
        if line.kind in (LineKind.STARTED, LineKind.CLOSED, LineKind.REFUSED):
            family.rows.setdefault(line.request_id, list(line.rows))


def _look_on(memory: AuditMemory, begin: AuditRow, family: _Family, look: int) -> None:
    after, left = str(begin.position), look
    while left:
        limit = min(CHUNK, left)
        entries = memory.entries(begin.tenant_id, after, limit)
        for entry in entries:
            row = row_of(entry, begin.tenant_id)
            family.damaged += row is None
            if row is not None:
                family.meet(row)
        family.looked += len(entries)
        if len(entries) < limit:
            return
        left, after = left - limit, entries[-1].position
    family.complete &= not memory.entries(begin.tenant_id, after, 1)


def _line(rows: list[AuditRow]) -> InvocationLine:
    return lines_of(reversed(rows))[0]


def _place(line: InvocationLine) -> str:
    return str(line.rows[0].position)
