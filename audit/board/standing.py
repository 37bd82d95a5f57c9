"""How far the ledger has come, and what of that holds for a row, from what the memory knows of it.

Nothing is verified here: that is ``audit verify``'s work.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
