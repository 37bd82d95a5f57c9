"""One invocation: its rows, and around it parent, children and the attempts of its task.

Children and attempts are looked for in a bounded stretch of its tenant's rows around its own, for
no index leads to them: forward for children and later attempts, backward for earlier attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Final

from audit.board.around import around
from audit.board.beside import beside_damage
from audit.board.line import InvocationLine, LineKind, lines_of
from audit.board.overview import age_seconds, held_leases
from audit.board.standing import ProofState, proof_of
from audit.memory.base import AuditMemory, RowFilter
from audit.memory.page import Page
from audit.row import COMPLETED, LATE, STARTED, AuditRow

#: Rows of one invocation that are read: two, and late ones.
ROWS: Final = 100


class State(StrEnum):
    """Where an invocation stands.

    ``SYSTEM``: it is none, but a row of the trail itself. ``TRIMMED``: its rows have left the
    memory, and are read from the ledger.
    """

    RUNNING = "running"
    CLOSED = "closed"
    REFUSED = "refused"
    SYSTEM = "system"
    TRIMMED = "trimmed"


@dataclass(frozen=True, kw_only=True, slots=True)
class InvocationView:
    """One invocation.

    Attributes:
        request_id: its id.
        tenant_id: whose; ``None`` where its rows were trimmed.
        state: where it stands.
        line: its started and completed row, or the row that stands alone; ``None`` where trimmed.
        started: its started row; ``None`` also where that one alone was trimmed.
        completed: its completed row.
        late: every late completion, oldest first.
        others: refused and system rows.
        age_seconds: since it started, while it is running, never below 0; else ``None``.
        has_lease: while it is running, whether the lease of its process is held; else ``None``.
        parent: what published it, where that is in the memory and may be seen.
        parent_request_id: what its rows say published it.
        children: what it published, oldest first, nested; 20 levels at most.
        attempts: started under the same task id, itself included, oldest first. Empty without one.
        looked: entries looked at for children and attempts.
        complete: whether that was all there is; else there may be more of them.
        proof: whether the ledger has its rows.
        stored: the stored bytes of its rows, in stored order.
        damaged: entries looked at that are no row.
    """

    request_id: str
    tenant_id: str | None
    state: State
    line: InvocationLine | None = None
    started: AuditRow | None = None
    completed: AuditRow | None = None
    late: tuple[AuditRow, ...] = ()
    others: tuple[AuditRow, ...] = ()
    age_seconds: float | None = None
    has_lease: bool | None = None
    parent: InvocationLine | None = None
    parent_request_id: str | None = None
    children: tuple[InvocationLine, ...] = ()
    attempts: tuple[InvocationLine, ...] = ()
    looked: int = 0
    complete: bool = True
    proof: ProofState = ProofState.NOT_CONFIGURED
    stored: tuple[bytes, ...] = ()
    damaged: int = 0


def invocation(
    memory: AuditMemory,
    request_id: str,
    now: datetime,
    *,
    ledger: bool,
    tenant_id: str | None = None,
    look: int = 2_000,
) -> InvocationView | None:
    """One invocation; ``None`` where the memory has never had a row of it.

    Beside a tenant whose keys are damaged, an invocation of another one is found.

    Args:
        memory: where the rows are.
        request_id: its id.
        now: aware.
        ledger: whether one is configured.
        tenant_id: whose rows may be seen; ``None`` for all.
        look: entries to look at for children and attempts.

    Raises:
        AuditMemoryError: the memory did not answer, or it may be a damaged tenant's.
    """

    def read(without: Set[str]) -> InvocationView | None:
        return _read(
            memory, request_id, now, without, ledger=ledger, tenant_id=tenant_id, look=look
        )

    view, errors = beside_damage(read, tenant_id)
    if view is None and errors:
        raise errors[0]
    return view


def _read(
    memory: AuditMemory,
    request_id: str,
    now: datetime,
    without: Set[str],
    *,
    ledger: bool,
    tenant_id: str | None,
    look: int,
) -> InvocationView | None:
    wanted = RowFilter(tenant_id=tenant_id, request_id=request_id)
    page = memory.page(wanted, most=ROWS, look=ROWS, without=without)
    if not page.rows:
        return _without_rows(request_id, page)
    # Two tenants can have rows under one id only where somebody forges them: one is shown.
    tenant = page.rows[-1].tenant_id
    rows = [row for row in reversed(page.rows) if row.tenant_id == tenant]
    find = partial(_find, memory, tenant_id, without)
    return _view(memory, rows, now, page, find, ledger=ledger, look=look)


def _without_rows(request_id: str, page: Page) -> InvocationView | None:
    if not page.trimmed:
        return None
    # Only what is sealed leaves the memory.
    return InvocationView(
        request_id=request_id, tenant_id=None, state=State.TRIMMED, proof=ProofState.SEALED
    )


def _view(
    memory: AuditMemory,
    rows: Sequence[AuditRow],
    now: datetime,
    page: Page,
    find: Callable[[str | None], InvocationLine | None],
    *,
    ledger: bool,
    look: int,
) -> InvocationView:
    started, completed = _first(rows, STARTED), _first(rows, COMPLETED)
    lines = lines_of(rows)
    line = next((found for found in lines if found.kind is not LineKind.LATE), lines[0])
    state = _state(line)
    found = around(memory, line, look)
    runs = state is State.RUNNING
    parent_request_id = line.parent_request_id
    return InvocationView(
        request_id=line.request_id,
        tenant_id=line.tenant_id,
        state=state,
        line=line,
        started=started,
        completed=completed,
        late=tuple(row for row in rows if row.kind == LATE),
        others=tuple(row for row in rows if row.kind not in (STARTED, COMPLETED, LATE)),
        age_seconds=age_seconds(rows[0], now) if runs else None,
        has_lease=_has_lease(memory, rows[0]) if runs else None,
        parent=find(parent_request_id),
        parent_request_id=parent_request_id,
        children=found.children,
        attempts=found.attempts,
        looked=found.looked,
        complete=found.complete and page.next is None,
        proof=proof_of(memory, rows, configured=ledger),
        stored=tuple(row.to_bytes() for row in rows),
        damaged=found.damaged + len(page.damaged),
    )


def _state(line: InvocationLine) -> State:
    return {
        LineKind.STARTED: State.RUNNING,
        LineKind.REFUSED: State.REFUSED,
        LineKind.SYSTEM: State.SYSTEM,
    }.get(line.kind, State.CLOSED)


def _first(rows: Sequence[AuditRow], kind: str) -> AuditRow | None:
    return next((row for row in rows if row.kind == kind), None)


def _has_lease(memory: AuditMemory, started: AuditRow) -> bool | None:
    return next(iter(held_leases(memory, [started]).values()), None)


def _find(
    memory: AuditMemory, tenant_id: str | None, without: Set[str], request_id: str | None
) -> InvocationLine | None:
    """By the index; not where it is another tenant's, and only one may be seen."""
    if request_id is None:
        return None
    wanted = RowFilter(tenant_id=tenant_id, request_id=request_id)
    found = memory.page(wanted, most=ROWS, look=ROWS, without=without)
    return next((line for line in lines_of(found.rows) if line.kind is not LineKind.LATE), None)
