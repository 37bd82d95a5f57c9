"""What an emit sends to a Redis or Valkey server: the keys of a tenant, the call of the script.

Keys, all of one tenant in one slot (``{...}`` is the hash tag)::

    PREFIX:{TENANT}:rows      stream    the rows, field ``row`` holding the stored bytes
    PREFIX:{TENANT}:requests  hash      request_id -> state (see append.lua)
    PREFIX:{TENANT}:open      zset      request_ids started and not completed, by server time
    PREFIX:{TENANT}:deaths    hash      message -> how many workers died over it
    PREFIX:{TENANT}:seen:...  string    token of a message -> who started it first; with expiry
    PREFIX:{TENANT}:tick:...  string    token of a tick -> the message that took it; with expiry
    PREFIX:{TENANT}:trace:... list      request_ids of a trace, as they started; with expiry
    PREFIX:{TENANT}:traced    string    what these lists cover: "SECONDS START" (see append.lua)
    PREFIX:{TENANT}:sealed    string    the newest sealed checkpoint; TENANT may be another log
    PREFIX:{TENANT}:sealed_position  string  where the last row stands that this one covers
    PREFIX:{TENANT}:trimmed   string    the position before which rows were trimmed
    PREFIX:tenants            set       every tenant that has rows
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from audit.memory.action import action_of
from audit.memory.base import (
    DEATHS,
    Hold,
    Once,
    insist_on_started,
    message_of,
)
from audit.memory.connection import Command
from audit.memory.result import TaskResult
from audit.row import AuditRow

#: Words of append.lua after which nothing may have been written just now.
HERE_BEFORE: Final = frozenset({b"repeated", b"replayed", b"late", b"settled"})

# A server waits for what a connection has written itself, and a name that is there is no write.
_NAME_AGAIN: Final = """
redis.call('SREM', KEYS[1], ARGV[1])
redis.call('SADD', KEYS[1], ARGV[1])
"""
_STATE_AGAIN: Final = """
local state = redis.call('HGET', KEYS[1], ARGV[1])
if state then redis.call('HSET', KEYS[1], ARGV[1], state) end
"""

_TRACE_ID: Final = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one tenant."""

    prefix: str
    tenant_id: str

    @property
    def tenants(self) -> str:
        return f"{self.prefix}:tenants"

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
    def sealed_position(self) -> str:
        return f"{self.prefix}:{{{self.tenant_id}}}:sealed_position"

    @property
    def trimmed(self) -> str:
        return f"{self.prefix}:{{{self.tenant_id}}}:trimmed"

    @property
    def traced(self) -> str:
        return f"{self.prefix}:{{{self.tenant_id}}}:traced"

    def trace(self, trace_id: str) -> str:
        return f"{self.prefix}:{{{self.tenant_id}}}:trace:{trace_id}"

    def seen(self, token: str) -> str:
        return f"{self.prefix}:{{{self.tenant_id}}}:seen:{token}"

    def tick(self, token: str) -> str:
        return f"{self.prefix}:{{{self.tenant_id}}}:tick:{token}"


def command_with_result(prefix: str, row: AuditRow, result: TaskResult) -> Command:
    """What EVALSHA of the merged script is called with (see merged.lua).

    Raises:
        ValueError: another row than one that tells how its body ended, by who ran it.
        RowRefusedError: the row is none that can be emitted.
    """
    if action_of(row) != "completed":
        raise ValueError("only a completed row of who ran the body has a result beside it")
    _, *rest = command_of(prefix, row, None, trace_seconds=0)
    seconds = "" if result.seconds is None else str(result.seconds)
    return ("5", *rest[:4], result.key, *rest[4:], result.value, seconds)


def is_listed(trace_id: object) -> TypeGuard[str]:
    """Whether a trace has a list of its own: what is no W3C trace id makes no key."""
    return isinstance(trace_id, str) and _TRACE_ID.fullmatch(trace_id) is not None


def command_of(
    prefix: str,
    row: AuditRow,
    once: Once | None,
    hold: Hold | None = None,
    *,
    trace_seconds: int,
) -> Command:
    """What EVALSHA is called with for ``row``: the number of keys, the keys, the arguments.

    Raises:
        ValueError: ``once`` or ``hold`` came with another row than a started one.
        RowRefusedError: the row is none that can be emitted.
    """
    action, keys = action_of(row), Keys(prefix, row.tenant_id)
    dead = message_of(row) if row.meta.get("reason") in DEATHS else ""
    always = (keys.rows, keys.requests, keys.open, keys.deaths)
    given = (action, row.request_id, row.to_bytes(), dead)
    if once is not None or hold is not None:
        insist_on_started(row)
    # "4" and no number: a signal handler that raises while hiredis turns a number into text
    # ends the process with a segmentation fault (seen with hiredis 3.5).
    if action == "completed":
        return ("4", *always, *given)
    trace_id, kept_for = row.payload.get("trace_id"), str(trace_seconds)
    if not is_listed(trace_id):
        trace_id, kept_for = "", ""
    lists = (keys.trace(trace_id), keys.traced)
    return _asking(keys, once, hold, (*always, *lists), (*given, kept_for))


def _asking(
    keys: Keys,
    once: Once | None,
    hold: Hold | None,
    always: Sequence[str],
    given: Sequence[str | bytes],
) -> Command:
    """The same with the keys and arguments of token and tick."""
    if once is None and hold is None:
        return ("6", *always, *given)
    asked = () if once is None else (keys.seen(once.token),)
    remembered = "" if once is None else str(once.seconds)
    if hold is None:
        return ("7", *always, *asked, *given, remembered)
    taken = (*asked, keys.tick(hold.token))
    number = "7" if once is None else "8"
    return (number, *always, *taken, *given, remembered, str(hold.seconds), hold.holder)


def naming(prefix: str, tenant_id: str, replicas: int = 0) -> Command:
    """What puts a tenant into the list; with replicas to wait for, always a write."""
    tenants = Keys(prefix, tenant_id).tenants
    if replicas:
        return ("EVAL", _NAME_AGAIN, "1", tenants, tenant_id)
    return ("SADD", tenants, tenant_id)


def written_again(command: Command) -> Command:
    """A write that changes nothing, behind which :func:`command_of`'s row is, wherever it got."""
    number, requests = int(command[0]), command[2]
    return ("EVAL", _STATE_AGAIN, "1", requests, command[number + 2])
