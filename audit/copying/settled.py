"""Whether a memory shows all rows of a tenant in order, or holds some back yet.

PostgreSQL gives entries only below the oldest transaction that is open anywhere in its cluster, for
before those no row can come any more. A copy that took what it is shown for all that there is would
leave out rows that were acknowledged, or write into a target that holds others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from audit.errors import CopyError
from audit.memory.base import AuditMemory, order_of

#: Seconds between two looks for rows that were stored and do not show yet, and how many looks.
LOOK: Final = 0.1
LOOKS: Final = 100


def settled_position(
    memory: AuditMemory, tenant_id: str, where: str, pause: Callable[[float], None]
) -> str | None:
    """The position of the last row, once all that are stored now are settled; ``None``: no row.

    Args:
        memory: which.
        tenant_id: whose rows.
        where: what the memory is to the copy.
        pause: waits so many seconds.

    Raises:
        CopyError: they do not become so.
        AuditMemoryError: the memory did not answer.
    """
    newest = memory.newest_position(tenant_id)
    for _ in range(LOOKS):
        last = memory.last_position(tenant_id)
        if newest is None or (last is not None and order_of(last) >= order_of(newest)):
            return last
        pause(LOOK)
    raise CopyError(
        f"rows at the {where} are not settled: another transaction is open there, in whatever"
        " database of the cluster; end it, then copy again"
    )
