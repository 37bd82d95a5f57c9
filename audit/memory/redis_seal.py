"""What the ledger asks of a Redis or Valkey server: raw rows, the newest checkpoint, trimming.

Each is one command or script call. A checkpoint is swapped in one step, together with the position
of the last row that it covers, and a page of rows is
trimmed in one step, so whoever emits meanwhile sees either state and no other. What somebody else
put into a stream is an entry as well, marked as foreign, so that it is found and ends nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, Final

from audit.memory.base import Entry, order_of
from audit.memory.entry import check_limit, check_swap
from audit.memory.redis_form import LAST_PLACE, ROW_FIELD, position_in
from audit.memory.redis_keys import Keys

#: Rows trimmed in one step. Emits wait for that long, so it is short: about a millisecond.
TRIM_PAGE: Final = 100

_TRIM: Final = resources.files("audit.memory").joinpath("trim.lua").read_text(encoding="utf-8")
_SWAP: Final = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
if ARGV[3] ~= '' then redis.call('SET', KEYS[2], ARGV[3]) end
return 1
"""
#: The stream remembers its last position when all of its rows are gone.
_LAST: Final = """
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local info = redis.call('XINFO', 'STREAM', KEYS[1])
for at = 1, #info, 2 do
  if info[at] == 'last-generated-id' then return info[at + 1] end
end
"""


class RedisSeal:
    """The ledger's part of a memory.

    Args:
        ask: sends one command to a judged server and gives its reply, unparsed; translates errors.
        write: the same, for what must be on as many replicas as rows must.
        prefix: of the keys.
    """

    def __init__(self, ask: Callable[..., Any], write: Callable[..., Any], prefix: str) -> None:
        self._ask = ask
        self._write = write
        self._prefix = prefix

    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        check_limit(limit)
        if after is not None and order_of(after) == LAST_PLACE:
            return []
        start = "-" if after is None else f"({after}"
        page = self._ask("XRANGE", self._keys(tenant_id).rows, start, "+", "COUNT", str(limit))
        return [entry_of(position.decode(), fields) for position, fields in page]

    def last_position(self, tenant_id: str) -> str | None:
        last = self._ask("EVAL_RO", _LAST, "1", self._keys(tenant_id).rows)
        return None if last is None else str(last.decode())

    def sealed(self, tenant_id: str) -> bytes | None:
        note: bytes | None = self._ask("GET", self._keys(tenant_id).sealed)
        return note

    def sealed_position(self, tenant_id: str) -> str | None:
        position = self._ask("GET", self._keys(tenant_id).sealed_position)
        return None if position is None else str(position.decode(errors="replace"))

    def swap_sealed(
        self, tenant_id: str, old: bytes | None, new: bytes, position: str | None
    ) -> bool:
        check_swap(new, position)
        keys, given = self._keys(tenant_id), (old or b"", new, position or b"")
        return bool(self._write("EVAL", _SWAP, "2", keys.sealed, keys.sealed_position, *given))

    def trim(self, tenant_id: str, before: str) -> int:
        keys, total = self._keys(tenant_id), 0
        while True:
            of_tenant = (keys.rows, keys.requests, keys.trimmed)
            removed = int(self._write("EVAL", _TRIM, "3", *of_tenant, before, str(TRIM_PAGE)))
            total += removed
            if removed < TRIM_PAGE:
                return total

    def trimmed(self, tenant_id: str) -> str | None:
        keys = self._keys(tenant_id)
        position = self._ask("GET", keys.trimmed)
        return None if position is None else position_in(keys, position)

    def _keys(self, tenant_id: str) -> Keys:
        return Keys(self._prefix, tenant_id)


def entry_of(position: str, fields: Sequence[bytes]) -> Entry:
    """The entry at a position, from the names and values that the server gives."""
    if len(fields) == 2 and fields[0] == ROW_FIELD:
        return Entry(position, fields[1])
    return Entry(position, b"\0".join(fields), foreign=True)
