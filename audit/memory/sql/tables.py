"""The tables of a SQL memory as its queries name them, and how a row becomes a line
of them and a line a row.

``postgres.sql`` and ``sqlite.sql`` say what they are; both have the same names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, Table, Text

from audit.errors import RowError
from audit.row import AuditRow

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ESCAPED: Final = re.compile(r"\\(.)")
_METADATA: Final = MetaData()
#: Bytes that a text may have in a column, and of one that has more, those that are kept.
_LONGEST: Final = 1_000
_KEPT: Final = 900
#: Seconds that stand for ever.
FOR_EVER: Final = 10**12

ROWS: Final = Table(
    "audit_rows",
    _METADATA,
    Column("turn", BigInteger),
    Column("minor", BigInteger),
    Column("tenant_id", Text),
    Column("request_id", Text),
    Column("slot", Integer),
    Column("moment", BigInteger),
    Column("kind", Text),
    Column("skill_id", Text),
    Column("outcome", Text),
    Column("caller_persona", Text),
    Column("trace_id", Text),
    Column("task_id", Text),
    Column("stored", LargeBinary),
)
INVOCATIONS: Final = Table(
    "audit_invocations",
    _METADATA,
    Column("tenant_id", Text),
    Column("request_id", Text),
    Column("state", Text),
    Column("turn", BigInteger),
    Column("minor", BigInteger),
)
LOGS: Final = Table(
    "audit_logs",
    _METADATA,
    Column("tenant_id", Text),
    Column("sealed", LargeBinary),
    Column("sealed_position", Text),
    Column("trimmed", Text),
    Column("last_position", Text),
)
DEATHS: Final = Table(
    "audit_deaths",
    _METADATA,
    Column("tenant_id", Text),
    Column("message", Text),
    Column("deaths", BigInteger),
)
LEASES: Final = Table(
    "audit_leases",
    _METADATA,
    Column("worker", Text),
    Column("until", BigInteger),
    Column("seen", BigInteger),
)
LEADERS: Final = Table(
    "audit_leaders",
    _METADATA,
    Column("role", Text),
    Column("holder", Text),
    Column("until", BigInteger),
)


def written(text: str) -> str:
    """``text`` as a column holds it.

    No database takes a NUL or half a surrogate pair in a text, and PostgreSQL has no index entries
    of more than 2,700 bytes: of a longer text it is the beginning and the hash.
    """
    escaped = text.replace("\\", "\\\\").replace("\0", "\\0")
    encoded = escaped.encode("utf-8", "backslashreplace")
    if len(encoded) <= _LONGEST:
        return encoded.decode()
    return f"{encoded[:_KEPT].decode(errors='ignore')}\\#{hashlib.sha256(encoded).hexdigest()}"


def read(text: str) -> str:
    """What :func:`written` was given."""
    return _ESCAPED.sub(lambda found: "\0" if found[1] == "0" else found[1], text)


def columns_of(row: AuditRow) -> tuple[int | str | None, ...]:
    """What stands in the columns from ``moment`` to ``task_id``; ``None`` for what is no text."""
    payload = row.payload
    texts = (
        row.kind,
        payload.get("skill_id"),
        payload.get("outcome"),
        payload.get("caller_persona"),
        payload.get("trace_id"),
        row.meta.get("task_id"),
    )
    return _moment(row.ts), *(written(t) if isinstance(t, str) else None for t in texts)


def sound(lines: Iterable[Any]) -> Iterator[AuditRow]:
    """The rows in lines. One that is none, or another tenant's, keeps none of the others away.

    Raises:
        RowError: at the end, where there was such a line: what has one must not look whole.
    """
    first: RowError | None = None
    for line in lines:
        try:
            row = _row(line)
        except RowError as error:
            first = first or error
        else:
            yield row
    if first is not None:
        raise first


def _row(found: Any) -> AuditRow:
    position = f"{found.turn}-{found.minor}"
    row = AuditRow.from_bytes(stored_in(found), position)
    whose = row.payload.get("tenant_id")
    if not isinstance(whose, str) or written(whose) != found.tenant_id:
        raise RowError(f"stored bytes at {position} are no row of the tenant they are kept for")
    return row


def stored_in(found: Any) -> bytes:
    return b"" if found.stored is None else bytes(found.stored)


def microseconds(moment: datetime) -> int:
    """Since 1970, rounded down."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def in_microseconds(seconds: float) -> int:
    """A span of time, one that a column holds."""
    return max(1, round(min(seconds, FOR_EVER) * 1_000_000))


def moment_of(number: int) -> datetime:
    """The moment of so many microseconds since 1970, in UTC."""
    return _EPOCH + timedelta(microseconds=number)


def _moment(ts: Any) -> int | None:
    try:
        return microseconds(datetime.fromisoformat(ts))
    except (ValueError, TypeError):
        return None
