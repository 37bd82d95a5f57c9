"""What an emit sends to a Redis or Valkey server: the keys of a tenant, the call of the script.

Keys, all of one tenant in one slot (``{...}`` is the hash tag)::

    PREFIX:{TENANT}:rows      stream    the rows, field ``row`` holding the stored bytes
    PREFIX:{TENANT}:requests  hash      request_id -> state (see append.lua)
    PREFIX:{TENANT}:open      zset      request_ids started and not completed, by server time
    PREFIX:{TENANT}:deaths    hash      message -> how many workers died over it
    PREFIX:{TENANT}:seen:...  string    token of a message -> who started it first; with expiry
    PREFIX:{TENANT}:tick:...  string    token of a tick -> the message that took it; with expiry
    PREFIX:{TENANT}:sealed    string    the newest sealed checkpoint; TENANT may be another log
    PREFIX:{TENANT}:trimmed   string    the position before which rows were trimmed
    PREFIX:tenants            set       every tenant that has rows
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from audit.errors import RowRefusedError
from audit.memory.base import (
    DEATHS,
    SETTLING,
    Hold,
    Once,
    RowRefusal,
    insist_on_started,
    message_of,
)
from audit.memory.connection import Command
from audit.row import COMPLETED, REFUSED, STARTED, AuditRow
from audit.system_rows import SYSTEM_KINDS

#: What is of no invocation is stored as a refused row is: once, alone.
_ACTIONS: Final = {
    STARTED: "started",
    COMPLETED: "completed",
    REFUSED: "refused",
    **dict.fromkeys(SYSTEM_KINDS, "refused"),
}


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one tenant."""

    prefix: str
    tenant_id: str

    @property
    def rows(self) -> str:
        return f"{self.prefix}:{{{self.tenant_id}}}:rows"

    @property
    def requests(self) -> str:
        return f"{self.prefix}:{{{self.tenant_id}}}:requests"

    @property
    def open(self) -> str:
        return f"{self.prefix}:{{{self.tenant_id}}}:open"

    @property
    def deaths(self) -> str:
        return f"{self.prefix}:{{{self.tenant_id}}}:deaths"

    @property
    def sealed(self) -> str:
        return f"{self.prefix}:{{{self.tenant_id}}}:sealed"

    @property
    def trimmed(self) -> str:
        return f"{self.prefix}:{{{self.tenant_id}}}:trimmed"

    def seen(self, token: str) -> str:
        return f"{self.prefix}:{{{self.tenant_id}}}:seen:{token}"

    def tick(self, token: str) -> str:
        return f"{self.prefix}:{{{self.tenant_id}}}:tick:{token}"


def command_of(prefix: str, row: AuditRow, once: Once | None, hold: Hold | None = None) -> Command:
    """What EVALSHA is called with for ``row``: the number of keys, the keys, the arguments.

    Raises:
        ValueError: ``once`` or ``hold`` came with another row than a started one.
        RowRefusedError: the row is none that can be emitted.
    """
    action, keys = _action(row), Keys(prefix, row.tenant_id)
    dead = message_of(row) if row.meta.get("reason") in DEATHS else ""
    always = (keys.rows, keys.requests, keys.open, keys.deaths)
    given = (action, row.request_id, row.to_bytes(), dead)
    # "4" and no number: a signal handler that raises while hiredis turns a number into text
    # ends the process with a segmentation fault (seen with hiredis 3.5).
    if once is None and hold is None:
        return ("4", *always, *given)
    insist_on_started(row)
    asked = () if once is None else (keys.seen(once.token),)
    remembered = "" if once is None else str(once.seconds)
    if hold is None:
        return ("5", *always, *asked, *given, remembered)
    taken = (*asked, keys.tick(hold.token))
    number = "5" if once is None else "6"
    return (number, *always, *taken, *given, remembered, str(hold.seconds), hold.holder)


def _action(row: AuditRow) -> str:
    action = _ACTIONS.get(row.kind)
    if action is None or not {"tenant_id", "request_id"} <= row.payload.keys():
        request_id = str(row.payload.get("request_id", ""))
        raise RowRefusedError(RowRefusal.NO_INVOCATION.value, request_id)
    if row.kind == COMPLETED and row.meta.get("reason") in SETTLING:
        return "settled"
    return action
