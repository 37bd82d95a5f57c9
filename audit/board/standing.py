"""How far the ledger has come, and what of that holds for a row, from what the memory knows of it.

Nothing is verified here: that is ``audit verify``'s work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from audit.errors import LedgerError
from audit.ledger.checkpoint import Checkpoint
from audit.ledger.note import Note
from audit.memory.base import AuditMemory, order_of
from audit.memory.page import Page
from audit.row import AuditRow

#: Logs shown: each costs two questions.
LOGS: Final = 20


class ProofState(StrEnum):
    """Whether the ledger has the rows of an invocation.

    ``UNKNOWN``: something is sealed, and the memory does not know up to where.
    """

    NOT_CONFIGURED = "not configured"
    WAITING = "waiting"
    SEALED = "sealed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class LogState:
    """How far one tenant's log has come.

    Attributes:
        tenant_id: whose.
        sealed: rows that its newest checkpoint says it has; 0 where there is none.
        waiting: rows that are not sealed, as far as was looked; ``None`` where the memory does not
            know up to where it is sealed.
        more: whether there may be more of those, further back than was looked.
    """

    tenant_id: str
    sealed: int
    waiting: int | None
    more: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerState:
    """How far the ledger has come.

    Attributes:
        configured: whether there is one.
        logs: of the tenants that the rows looked at are of, most rows first, at most 20.
        tenants: how many tenants there are in all.
    """

    configured: bool
    logs: tuple[LogState, ...] = ()
    tenants: int = 0


def ledger_state(memory: AuditMemory, page: Page, *, configured: bool) -> LedgerState:
    """How far the ledger has come, as far as the entries of an unfiltered ``page`` tell.

    One that was not said to be configured is, where the memory has a checkpoint all the same.
    """
    positions: dict[str, list[str]] = defaultdict(list)
    for row in page.rows:
        positions[row.tenant_id].append(str(row.position))
    for entry in page.damaged:
        positions[entry.tenant_id].append(entry.position)
    busiest = sorted(positions, key=lambda tenant: (-len(positions[tenant]), tenant))[:LOGS]
    notes = {tenant: memory.sealed(tenant) for tenant in busiest}
    if not configured and not any(notes.values()):
        return LedgerState(configured=False)
    complete = page.next is None
    logs = (_log(memory, t, notes[t], positions[t], complete=complete) for t in busiest)
    return LedgerState(configured=True, logs=tuple(logs), tenants=len(memory.tenants()))


def proof_of(memory: AuditMemory, rows: Sequence[AuditRow], *, configured: bool) -> ProofState:
    """Whether the ledger has all of ``rows``, which are of one tenant."""
    tenant = rows[0].tenant_id
    if memory.sealed(tenant) is None:
        return ProofState.WAITING if configured else ProofState.NOT_CONFIGURED
    sealed = _sealed_to(memory, tenant)
    if sealed is None:
        return ProofState.UNKNOWN
    newest = max(order_of(str(row.position)) for row in rows)
    return ProofState.SEALED if newest <= sealed else ProofState.WAITING


def _log(
    memory: AuditMemory,
    tenant: str,
    note: bytes | None,
    positions: Sequence[str],
    *,
    complete: bool,
) -> LogState:
    if note is None:
        return LogState(tenant_id=tenant, sealed=0, waiting=len(positions), more=not complete)
    sealed = _sealed_to(memory, tenant)
    if sealed is None:
        return LogState(tenant_id=tenant, sealed=_size(note), waiting=None)
    waiting = sum(order_of(position) > sealed for position in positions)
    more = waiting == len(positions) and not complete
    return LogState(tenant_id=tenant, sealed=_size(note), waiting=waiting, more=more)


def _sealed_to(memory: AuditMemory, tenant: str) -> tuple[int, int] | None:
    """Up to where a tenant's rows are sealed; ``None``: the memory has no position that says so."""
    sealed = memory.sealed_position(tenant)
    try:
        return None if sealed is None else order_of(sealed)
    except ValueError:
        return None


def _size(note: bytes) -> int:
    """What a checkpoint says of its log. Whoever must be sure verifies it."""
    try:
        return Checkpoint.parse(Note.parse(note).text).size
    except LedgerError:
        return 0
