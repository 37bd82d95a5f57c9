"""One invocation: its rows, and around it parent, children and the attempts of its task.

Children and attempts are looked for in a bounded stretch of its tenant's rows around its own, for
no index leads to them: forward for children and later attempts, backward for earlier attempts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from audit.board.line import InvocationLine
from audit.board.standing import ProofState
from audit.memory.base import AuditMemory
from audit.row import AuditRow


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

    Args:
        memory: where the rows are.
        request_id: its id.
        now: aware.
        ledger: whether one is configured.
        tenant_id: whose rows may be seen; ``None`` for all.
        look: entries to look at for children and attempts.

    Raises:
        AuditMemoryError: the memory did not answer.
    """
    raise NotImplementedError
