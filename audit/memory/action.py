"""What a row does to its invocation, and what a store answers: the words that all stores share."""

from __future__ import annotations

from typing import Final

from audit.errors import RowRefusedError
from audit.memory.base import SETTLING, RowRefusal, Stored
from audit.row import COMPLETED, REFUSED, STARTED, AuditRow
from audit.system_rows import SYSTEM_KINDS

#: What is of no invocation is stored as a refused row is: once, alone.
_ACTIONS: Final = {
    STARTED: "started",
    COMPLETED: "completed",
    REFUSED: "refused",
    **dict.fromkeys(SYSTEM_KINDS, "refused"),
}

_REFUSALS: Final = {
    "no_started_row": RowRefusal.NO_STARTED_ROW,
    "second_started_row": RowRefusal.SECOND_STARTED_ROW,
    "tombstone": RowRefusal.TOMBSTONE,
    "was_refused": RowRefusal.WAS_REFUSED,
    "tick_taken": RowRefusal.TICK_TAKEN,
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


def verdict_of(word: str, row: AuditRow) -> Stored:
    """What became of an emitted row, by a store's word.

    Raises:
        RowRefusedError: the word is a refusal.
    """
    if word in _REFUSALS:
        raise RowRefusedError(_REFUSALS[word].value, row.request_id)
    return Stored(word)
