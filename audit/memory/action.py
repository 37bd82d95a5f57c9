"""What a row does to its invocation: the word that every store decides by."""

from __future__ import annotations

from typing import Final

from audit.errors import RowRefusedError
from audit.memory.base import SETTLING, RowRefusal
from audit.row import COMPLETED, REFUSED, STARTED, AuditRow
from audit.system_rows import SYSTEM_KINDS

#: What is of no invocation is stored as a refused row is: once, alone.
_ACTIONS: Final = {
    STARTED: "started",
    COMPLETED: "completed",
    REFUSED: "refused",
    **dict.fromkeys(SYSTEM_KINDS, "refused"),
}


def action_of(row: AuditRow) -> str:
    """started, completed (told by who ran the body), settled (told by another), or refused.

    Raises:
        RowRefusedError: the row is none that can be emitted.
    """
    action = _ACTIONS.get(row.kind)
    if action is None or not {"tenant_id", "request_id"} <= row.payload.keys():
        request_id = str(row.payload.get("request_id", ""))
        raise RowRefusedError(RowRefusal.NO_INVOCATION.value, request_id)
    if row.kind == COMPLETED and row.meta.get("reason") in SETTLING:
        return "settled"
    return action
