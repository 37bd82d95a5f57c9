"""PostgreSQL with row security: what a bound writer says of a row is what the row says itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from audit.errors import RowError
from audit.memory.base import RowFilter, Stored
from audit.memory.sql.emitted import Emitted
from audit.memory.sql.tables import written
from audit.row import AuditRow
from tests.contract.test_postgres_row_security import (  # noqa: F401
    OTHER,
    Secured,
    owner,
    roles,
    secured,
)
from tests.support import TENANT, completed, make_identity, started

_EMIT = f"SELECT audit_emit({', '.join(['%s'] * 17)})"
_COLUMNS = ("moment", "kind", "skill_id", "outcome", "caller_persona", "trace_id", "task_id")


def forged(row: AuditRow, stored: bytes, **columns: object) -> list[object]:
    """Arguments of an emit of tenant TENANT that hands over other bytes or columns than a row's."""
    emitted = Emitted.of(row, None, None)
    said = dict(zip(_COLUMNS, emitted.columns, strict=True)) | columns
    whose = [emitted.action, TENANT, emitted.request_id, stored]
    return [*whose, *said.values(), *[None] * 6]


def edited(row: AuditRow, change: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(row.to_bytes())
    change(document)
    return json.dumps(document).encode()


def bytes_of_others(row: AuditRow) -> list[bytes]:
    """Bytes that are no row of this tenant's invocation, or are none at all for who reads them."""
    plain = row.to_bytes()
    mine, theirs = f'"{TENANT}"'.encode(), f'"{OTHER}"'.encode()
    return [
        b"garbage",
        b"\xff",
        b"",
        plain.replace(mine, theirs),
        plain.decode().encode("utf-16"),
        # Of two equal keys the last counts, spelled otherwise too.
        plain.replace(b'"tenant_id":' + mine, b'"tenant_id":' + mine + b',"tenant_id":' + theirs),
        plain.replace(
            b'"tenant_id":' + mine, b'"tenant_id":' + mine + b',"tenant\\u005fid":' + theirs
        ),
        plain[:-1] + b',"payload":{"tenant_id":' + theirs + b"}}",
        plain.replace(row.request_id.encode(), make_identity().request_id.encode()),
        edited(row, lambda document: document.pop("ts")),
        edited(row, lambda document: document.pop("meta")),
        edited(row, lambda document: document.update(kind="No Kind")),
        # What Python's reader gives up on and the database's does not.
        plain[:-1] + b',"ts":' + b"[" * 2000 + b"]" * 2000 + b',"ts":"2026-01-01T00:00:00Z"}',
        plain[:-1] + b',"schema":' + b"1" * 5000 + b"}",
    ]


def test_a_bound_writer_stores_no_bytes_that_say_otherwise(secured: Secured) -> None:  # noqa: F811
    """Neither bytes of another tenant or invocation, nor garbage, nor columns that are not its."""
    host = secured.memory("host")
    host.emit(started(make_identity(tenant_id=OTHER)))
    row = started(make_identity())
    attempts = [forged(row, stored) for stored in bytes_of_others(row)]
    attempts += [
        forged(row, row.to_bytes(), **{column: "theirs"})
        for column in _COLUMNS
        if column != "moment"
    ]
    # Two backslashes to who reads them, and one, as a column holds it, to who does not look twice.
    spelled = started(make_identity(caller_persona="\\"))
    attempts.append(forged(spelled, spelled.to_bytes().replace(b"\\\\", b"\\u005c\\u005c")))
    with secured.line("rs_narrow_host") as line:
        for attempt in attempts:
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="refused"):
                line.execute(_EMIT, attempt)
        assert line.execute(_EMIT, forged(row, row.to_bytes())).fetchone() == ("new",)
    assert [found.tenant_id for found in host.rows()] == [OTHER, TENANT]


@pytest.mark.parametrize(
    "text", ["\0", "\\u0000", "\\", '"', "\\\0\\\\0", "a\n\té€😀", "long" * 1000, "\0\\€" * 1000]
)
def test_every_text_of_a_row_may_be_stored(secured: Secured, text: str) -> None:  # noqa: F811
    """With a NUL, escapes, and more than a column holds: found again by it."""
    narrow = secured.memory("narrow_host")
    identity = make_identity(caller_persona=text, trace_id=text, task_id=text, skill_id=text)
    assert narrow.emit(started(identity)) is narrow.emit(completed(identity)) is Stored.NEW
    assert len(list(narrow.rows(trace_id=text))) == 2


@pytest.mark.parametrize("stored", [b"garbage", "theirs"])
def test_rows_that_are_none_keep_no_other_tenants_away(
    secured: Secured,  # noqa: F811
    stored: bytes | str,
) -> None:
    """All others are read, and then an error tells, so that the trail does not look whole."""
    host = secured.memory("host")
    first, later = make_identity(), make_identity(tenant_id=OTHER)
    coming = host.follow(RowFilter(), poll=0.01)
    host.emit(started(first))
    forged_bytes = (
        started(make_identity(tenant_id=OTHER)).to_bytes() if stored == "theirs" else stored
    )
    with secured.line("postgres") as admin:
        ruin(admin, first.request_id, forged_bytes)
    host.emit(started(later))
    for reading in (host.rows(), host.running(), host.rows(trace_id=first.trace_id), coming):
        assert told(reading) == ([later.request_id], True)
    assert told(host.rows(OTHER)) == told(host.running(OTHER)) == ([later.request_id], False)
    assert told(host.rows(TENANT)) == told(host.running(TENANT)) == ([], True)


def ruin(admin: psycopg.Connection, request_id: str, stored: object) -> None:
    """As the owner can, who takes the trigger away."""
    admin.execute("SET session_replication_role = replica")
    changed = "UPDATE audit_rows SET stored = %s WHERE request_id = %s"
    assert admin.execute(changed, (stored, written(request_id))).rowcount == 1


def told(reading: Any) -> tuple[list[str], bool]:
    """The invocations of the rows that come, and whether an error stood at their end."""
    found = []
    try:
        for row in reading:
            if row is not None:
                found.append(row.request_id)
    except RowError:
        return found, True
    return found, False
