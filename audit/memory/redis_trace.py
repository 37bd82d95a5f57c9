"""The lists of traces on a Redis or Valkey server: which invocations a trace has.

A started row is put into the list of its trace in the step that stores it, and so are a refused
one and an ending that is told from outside (append.lua); a list says request_ids, whose states say
where all of their rows are. Lists expire, may have been begun after the rows, and writers may keep
them for different times. So the server also says what they cover. What is guaranteed:

* every row stored at :attr:`Traced.start` or later is found by the lists, or by the states of what
  started before: whoever reads older rows one by one misses nothing;
* a trace of more invocations than a list holds, one whose id is no W3C trace id, and a tenant
  whose writers keep no lists, have no :class:`Traced`: there is the history to read, as ever;
* a look is one round trip for all tenants, and takes no longer for a longer history.

One thing is lost: an invocation whose started row is older than that and was trimmed before its end
is found by its request_id, and no longer by its trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from audit.memory.base import RowFilter, order_of
from audit.memory.connection import Command
from audit.memory.redis_form import number_in, position_in
from audit.memory.redis_keys import Keys, is_listed

#: Request_ids that a list holds; append.lua lets it have one more, which says that it is full.
LONGEST: Final = 5_000
#: How far a server's clock may be set back without a list being taken for a longer one.
SET_BACK_MS: Final = 3_600_000
#: The clock of the node that has the key; TIME by itself has none, and goes to some other node.
_TIME: Final = "return redis.call('TIME')"


@dataclass(frozen=True, slots=True)
class Traced:
    """What the lists say of a trace, of one tenant.

    Attributes:
        request_ids: its invocations, some perhaps twice.
        start: the position from which on these are all.
        older: whether any row of the tenant stands before it.
    """

    request_ids: Sequence[bytes]
    start: str
    older: bool


class RedisTraces:
    """The lists of a memory.

    Args:
        ask: sends commands that may be sent twice, in one go, and gives their raw replies.
        prefix: of the keys.
    """

    def __init__(self, ask: Callable[[Sequence[Command]], Sequence[Any]], prefix: str) -> None:
        self._ask = ask
        self._prefix = prefix

    def look(self, tenants: Sequence[str], wanted: RowFilter) -> Mapping[str, Traced]:
        """What is known of the trace that is wanted, of each tenant of which it is."""
        trace_id = wanted.trace_id
        if trace_id is None or wanted.request_id is not None or not is_listed(trace_id):
            return {}
        every = [Keys(self._prefix, tenant) for tenant in tenants]
        asked = [command for keys in every for command in _commands(keys, trace_id)]
        replies = self._ask(asked) if asked else ()
        found = {
            keys.tenant_id: self._traced(keys, *replies[4 * at : 4 * at + 4])
            for at, keys in enumerate(every)
        }
        return {tenant: traced for tenant, traced in found.items() if traced is not None}

    def _traced(
        self,
        keys: Keys,
        request_ids: list[bytes],
        covers: bytes | None,
        oldest: Any,
        time: Sequence[bytes],
    ) -> Traced | None:
        if not oldest:
            return Traced((), "0-0", older=False)
        if covers is None or len(request_ids) > LONGEST:
            return None
        lasting, _, begun = covers.partition(b" ")
        seconds = number_in(keys.prefix, keys.tenant_id, lasting)
        expired = f"{max(0, (int(time[0]) - seconds) * 1000 + SET_BACK_MS)}-0"
        start = max(position_in(keys, begun), expired, key=order_of)
        older = order_of(oldest[0][0].decode()) < order_of(start)
        return Traced(request_ids, start, older)


def _commands(keys: Keys, trace_id: str) -> tuple[Command, ...]:
    # The list before what the lists cover, and the time last: what is found is at least what these
    # promise.
    return (
        ("LRANGE", keys.trace(trace_id), "0", str(LONGEST)),
        ("GET", keys.traced),
        ("XRANGE", keys.rows, "-", "+", "COUNT", "1"),
        ("EVAL_RO", _TIME, "1", keys.rows),
    )
