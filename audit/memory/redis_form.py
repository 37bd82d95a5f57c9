"""What a Redis or Valkey server keeps, held against the form that the audit gives it.

Somebody else may write to the server as well. What is guaranteed: a key of another type, and a
value of another form, are a :class:`MemoryDamagedError` that says whose they are, and so are told
apart from a server that does not answer. No value is ever repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Final, NoReturn

from audit.errors import MemoryDamagedError, RowError
from audit.memory.entry import order_of
from audit.memory.redis_keys import Keys
from audit.row import AuditRow

#: The one field that an entry of a stream of rows has.
ROW_FIELD: Final = b"row"
#: The greatest position there is. Behind it the server knows no range.
LAST_PLACE: Final = (2**64 - 1, 2**64 - 1)
_WRONG_TYPE: Final = "WRONGTYPE"


def refuse(prefix: str, command: Sequence[Any], error: Exception) -> NoReturn:
    """Raise what a server's refusal of a command comes to.

    Raises:
        MemoryDamagedError: a key that the command names has another type; the first one of a
            tenant says whose it is.
    """
    if _WRONG_TYPE not in str(error):
        raise error
    whose = next(filter(None, (_whose(prefix, part) for part in command)), "")
    raise damaged(prefix, whose, "a key has another type than the audit gives it") from error


def damaged(prefix: str, whose: str, what: str) -> MemoryDamagedError:
    """The error that says so; ``whose`` is a tenant, or nothing for the list of tenants."""
    where = f"{prefix}:{{{whose}}}" if whose else f"{prefix}:tenants"
    return MemoryDamagedError(
        f"the memory answers, but what it keeps under {where} is not what the audit put there:"
        f" {what}; somebody else has written it, put it back from a backup",
        tenant_id=whose,
    )


def position_in(keys: Keys, value: bytes) -> str:
    """A stored position.

    Raises:
        MemoryDamagedError: that is none.
    """
    try:
        position = value.decode("ascii")
        order_of(position)
    except ValueError:
        raise damaged(keys.prefix, keys.tenant_id, "a position is none") from None
    return position


def places_in(keys: Keys, state: bytes | None) -> list[str]:
    """Where the rows of an invocation stand that were not trimmed, by its state (append.lua).

    Raises:
        MemoryDamagedError: that is no state.
    """
    words = (state or b"").split()[1:]
    # Behind a "=" stands the digest of a row that was trimmed.
    return [position_in(keys, word) for word in words if b"=" not in word]


def started_in(keys: Keys, state: bytes) -> str:
    """Where the started row of an open invocation stands.

    Raises:
        MemoryDamagedError: its state names no place.
    """
    places = places_in(keys, state)
    if not places:
        raise damaged(keys.prefix, keys.tenant_id, "an open invocation has no started row")
    return places[0]


def number_in(prefix: str, whose: str, value: bytes) -> int:
    """A stored number.

    Raises:
        MemoryDamagedError: that is none.
    """
    try:
        return int(float(value))
    except (ValueError, OverflowError):
        raise damaged(prefix, whose, "a number is none") from None


def row_in(entry: tuple[bytes, Sequence[bytes]]) -> AuditRow:
    """The row at a position, from the names and values that stand there.

    Raises:
        RowError: that is none.
    """
    position, fields = entry
    if list(fields[::2]) != [ROW_FIELD]:
        # Not left out: a trail with something strange in it must not look whole.
        raise RowError(f"the entry at {position.decode()} is no row: it has other fields than one")
    return AuditRow.from_bytes(fields[1], position.decode())


def is_of(row: AuditRow, tenant_id: str, request_id: bytes) -> bool:
    """Whether a row is of this invocation, and not another's that was put in its place."""
    said = row.payload.get("tenant_id"), row.payload.get("request_id")
    return said == (tenant_id, request_id.decode(errors="replace"))


def insist(tenant_id: str, request_ids: Sequence[bytes], rows: Sequence[AuditRow]) -> None:
    """Hold the started rows that were found against the open invocations that name them.

    Raises:
        RowError: one has gone, or another invocation's stands in its place.
    """
    pairs = zip_longest(request_ids, rows)
    if not all(r and row and is_of(row, tenant_id, r) for r, row in pairs):
        raise RowError(f"an open invocation of tenant {tenant_id} has no started row of its own")


def _whose(prefix: str, part: Any) -> str:
    """The tenant of a key; nothing where ``part`` is none of a tenant's."""
    begin = f"{prefix}:{{"
    if not isinstance(part, str) or not part.startswith(begin):
        return ""
    return part[len(begin) :].partition("}:")[0]
