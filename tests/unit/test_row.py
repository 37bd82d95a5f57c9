"""audit/row.py: what a row holds, its bytes, and the published schema."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from audit.errors import RowError
from audit.row import (
    COMPLETED,
    KIND_PATTERN,
    LATE,
    NIL_TENANT,
    REFUSED,
    STARTED,
    AuditRow,
    Ending,
    Outcome,
    Reason,
    Refusal,
    row_schema,
    skill_invoked_completed,
    skill_invoked_started,
    timestamp,
)
from audit.system_rows import KEY_ROTATED, PRUNED, audit_key_rotated, audit_pruned
from tests.support import (
    HASH,
    TENANT,
    TRACE_ID,
    completed,
    inlined_validator,
    make_ending,
    make_identity,
    refused,
    row_check,
    row_validator,
    started,
    validate_row,
)

TS = "2026-11-29T21:45:38.123456Z"
REQUEST_ID = "01JDVZ3W4MC2QH7K9T5N8XBPDE"
PARENT_ID = "01JDVZ3W4MC2QH7K9T5N8XBPDF"
IDENTITY = make_identity(request_id=REQUEST_ID, parent_request_id=PARENT_ID, attempt=2)
VKEY = "ledger.example/0a1b+9d2a2b1c+AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAh"
KEYED_HASH = f"hmac:{'Az09._-' + 'k' * 57}:{HASH}"

#: Decision 9's table.
ENDINGS = {
    "success": {"returned", "returned_after_soft_limit", "ignored"},
    "error": {"raised", "retried", "rejected", "uncanonical_result", "not_dispatched"},
    "panic": {
        "base_exception", "worker_lost", "revoked", "terminated", "shutdown", "abandoned",
    },
    "timeout": {"soft_time_limit", "hard_time_limit"},
}  # fmt: skip


# --- what a row holds -----------------------------------------------------------------------------


def test_the_started_row_to_the_letter() -> None:
    """The specification's keys plus nothing, in the envelope of decision 3."""
    assert started(IDENTITY, ts=TS).as_dict() == {
        "schema": 1,
        "kind": "skill.invoked_started",
        "ts": TS,
        "payload": {
            "skill_id": "alerts.triage",
            "version": "1.0.0",
            "caller_persona": "cuo-cpo@0.4.1",
            "args_hash": HASH,
            "tenant_id": TENANT,
            "trace_id": TRACE_ID,
            "request_id": REQUEST_ID,
        },
        "meta": {
            "task_id": "7f1f4c1e-93a1-4f0f-9d0c-1f3f6d1f7a10",
            "attempt": 2,
            "redelivered": False,
            "parent_request_id": PARENT_ID,
            "worker": "worker-1",
            "reason": None,
        },
    }


def test_the_completed_row_to_the_letter() -> None:
    """The specification's keys plus the tenant (decision 2), the reason in meta."""
    row = completed(IDENTITY, make_ending(Reason.HARD_TIME_LIMIT, "late"), duration_ms=30, ts=TS)
    assert row.kind == "skill.invoked_completed"
    assert row.payload == {
        "skill_id": "alerts.triage",
        "outcome": "timeout",
        "duration_ms": 30,
        "result_hash": "",
        "error_message": "late",
        "tenant_id": TENANT,
        "trace_id": TRACE_ID,
        "request_id": REQUEST_ID,
    }
    assert row.meta == {**started(IDENTITY).meta, "reason": "hard_time_limit"}


def test_the_refused_row_to_the_letter() -> None:
    """Decision 1's keys, no hash of arguments that may have none."""
    row = refused(IDENTITY, Refusal.MISSING_CONTEXT, ts=TS)
    assert row.kind == "skill.invoked_refused"
    assert row.payload == {
        "skill_id": "alerts.triage",
        "version": "1.0.0",
        "caller_persona": "cuo-cpo@0.4.1",
        "tenant_id": TENANT,
        "trace_id": TRACE_ID,
        "request_id": REQUEST_ID,
        "reason": "missing_context",
    }
    assert row.meta == {**started(IDENTITY).meta, "reason": "missing_context"}


@pytest.mark.parametrize("facts", [{"on_behalf_of": "jane@example.org"}, {"context_key": "2026.a"}])
def test_meta_holds_the_human_and_the_key_where_there_are_any(facts: dict[str, str]) -> None:
    """In every row of the invocation, and as absent keys everywhere else."""
    identity = make_identity(request_id=REQUEST_ID, **facts)
    plain = make_identity(request_id=REQUEST_ID)
    for make in (started, completed, refused):
        row = make(identity, ts=TS)  # type: ignore[operator]
        assert row.meta == {**make(plain, ts=TS).meta, **facts}  # type: ignore[operator]
        validate_row(row)


def test_both_rows_say_the_same_of_their_invocation() -> None:
    """request_id, tenant, trace and all of meta but the reason agree (S1.9)."""
    begin, end = started(IDENTITY), completed(IDENTITY)
    for key in ("skill_id", "tenant_id", "trace_id", "request_id"):
        assert begin.payload[key] == end.payload[key]
    assert {**begin.meta, "reason": 0} == {**end.meta, "reason": 0}
    assert begin.request_id == end.request_id == REQUEST_ID
    assert begin.tenant_id == end.tenant_id == TENANT


def test_kinds_are_spelled_as_specified() -> None:
    """And match the specification's pattern."""
    assert [STARTED, COMPLETED, LATE, REFUSED] == [
        "skill.invoked_started",
        "skill.invoked_completed",
        "skill.invoked_late",
        "skill.invoked_refused",
    ]
    assert KIND_PATTERN.pattern == r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*"


@pytest.mark.parametrize(
    "kind",
    ["", "skill", "skill.", ".started", "Skill.started", "skill.invoked-started", "a.b.c",
     "1a.b", "a.1b", "a._b", "a.b\n", " a.b", "ä.b"],
)  # fmt: skip
def test_a_kind_out_of_pattern_is_refused(kind: str) -> None:
    """No row with such a kind can be made."""
    with pytest.raises(RowError, match="must match"):
        AuditRow(kind=kind, ts=TS, payload={}, meta={})


def test_rows_are_frozen() -> None:
    """Neither attributes nor payload nor meta can change, not through the caller's dicts either."""
    payload, meta = dict(started(IDENTITY).payload), dict(started(IDENTITY).meta)
    row = AuditRow(kind=STARTED, ts=TS, payload=payload, meta=meta)
    before = row.to_bytes()
    with pytest.raises(FrozenInstanceError):
        row.ts = "now"  # type: ignore[misc]
    with pytest.raises(TypeError):
        row.payload["tenant_id"] = "other"  # type: ignore[index]
    with pytest.raises(TypeError):
        row.meta["worker"] = "other"  # type: ignore[index]
    payload["tenant_id"] = meta["worker"] = "other"
    row.as_dict()["payload"]["tenant_id"] = "other"
    assert row.to_bytes() == before


def test_position_and_bytes_make_no_other_row() -> None:
    """A row read back equals the one emitted."""
    row = started(IDENTITY, ts=TS)
    again = AuditRow.from_bytes(row.to_bytes(), "17-1")
    assert again == row
    assert again.position == "17-1"
    assert row.position is None


def test_a_negative_duration_is_refused() -> None:
    """Duration counts from 0 (decision 11)."""
    assert completed(IDENTITY, duration_ms=0).payload["duration_ms"] == 0
    with pytest.raises(RowError, match="negative"):
        completed(IDENTITY, duration_ms=-1)


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_its_outcome(reason: Reason) -> None:
    """As in decision 9's table; the ending and the row say the same."""
    (outcome,) = (name for name, reasons in ENDINGS.items() if reason.value in reasons)
    assert reason.outcome == outcome
    row = completed(IDENTITY, make_ending(reason))
    assert row.payload["outcome"] == outcome
    assert row.meta["reason"] == reason.value
    validate_row(row)


def test_outcomes_and_reasons_are_closed_sets() -> None:
    """The specification's four outcomes; the reasons of the table, each under one outcome."""
    assert {outcome.value for outcome in Outcome} == set(ENDINGS)
    listed = [reason for reasons in ENDINGS.values() for reason in reasons]
    assert sorted(reason.value for reason in Reason) == sorted(listed)


def test_timestamps_are_utc_with_microseconds() -> None:
    """RFC 3339 with six digits, also where they are zeros, whatever the zone."""
    east = timezone(timedelta(hours=5, minutes=30))
    assert timestamp(datetime(2026, 11, 29, 21, 45, tzinfo=UTC)) == "2026-11-29T21:45:00.000000Z"
    assert timestamp(datetime(2026, 1, 1, 2, 0, 0, 1, tzinfo=east)) == "2025-12-31T20:30:00.000001Z"


# --- bytes ----------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=60)


@st.composite
def rows(draw: st.DrawFn) -> AuditRow:
    """Rows of any texts, well-formed or not."""
    identity = make_identity(
        request_id=draw(texts),
        skill_id=draw(texts),
        version=draw(texts),
        caller_persona=draw(texts),
        tenant_id=draw(texts),
        task_id=draw(st.none() | texts),
        attempt=draw(st.integers(0, 2**53 - 1)),
        redelivered=draw(st.booleans()),
        worker=draw(texts),
    )
    if draw(st.booleans()):
        return skill_invoked_started(identity, draw(texts), ts=draw(texts))
    ending = Ending(
        reason=draw(st.sampled_from(Reason)),
        result_hash=draw(texts),
        error_message=draw(st.none() | texts),
    )
    duration_ms = draw(st.integers(0, 2**53 - 1))
    return skill_invoked_completed(identity, ending, duration_ms, ts=draw(texts))


@given(rows())
def test_bytes_are_the_canonical_form(row: AuditRow) -> None:
    """``to_bytes`` equals RFC 8785 of the document, whatever the texts."""
    assert row.to_bytes() == rfc8785.dumps(row.as_dict())


@given(rows(), st.sampled_from([None, 1, 4]), st.booleans())
def test_reading_keeps_the_bytes(row: AuditRow, indent: int | None, ascii: bool) -> None:
    """What was stored comes back to the byte, even if somebody stored it in another form."""
    stored = json.dumps(row.as_dict(), indent=indent, ensure_ascii=ascii).encode()
    again = AuditRow.from_bytes(stored)
    assert again.to_bytes() == stored
    assert again == row


def test_a_lone_surrogate_has_no_bytes() -> None:
    """Text that UTF-8 cannot hold is an error of ours, not one of a codec."""
    row = started(make_identity(task_id="\ud800"))
    with pytest.raises(RowError, match="UTF-8"):
        row.to_bytes()


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"null",
        b"[]",
        b'"row"',
        b"{",
        b"\xff\xfe{}",
        b"[" * 200_000,
        b'{"kind":"a.b","meta":{},"payload":{},"schema":1}',
        b'{"kind":"A.b","meta":{},"payload":{},"schema":1,"ts":""}',
        b'{"kind":5,"meta":{},"payload":{},"schema":1,"ts":""}',
        b'{"kind":"a.b","meta":null,"payload":{},"schema":1,"ts":""}',
        b'{"kind":"a.b","meta":{},"payload":"text","schema":1,"ts":""}',
        b'{"kind":"a.b","meta":{},"payload":[],"schema":1,"ts":""}',
    ],
)
def test_bytes_that_are_no_row(stored: bytes) -> None:
    """The error names the place in the memory."""
    with pytest.raises(RowError, match="17-1"):
        AuditRow.from_bytes(stored, "17-1")


# --- the published schema -------------------------------------------------------------------------


def document(row: AuditRow) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row.to_bytes())
    return found


VALID: dict[str, AuditRow] = {
    "started": started(IDENTITY, ts=TS),
    "root": started(make_identity(parent_request_id=None, task_id=None, worker=""), ts=TS),
    "returned": completed(IDENTITY, ts=TS),
    "ignored": completed(IDENTITY, make_ending(Reason.IGNORED), ts=TS),
    "raised": completed(IDENTITY, make_ending(Reason.RAISED, ""), ts=TS),
    "panic": completed(IDENTITY, make_ending(Reason.ABANDONED, "x" * 1024), duration_ms=0, ts=TS),
    "refused": refused(IDENTITY, ts=TS),
    "nobody": refused(make_identity(tenant_id=NIL_TENANT, caller_persona=""), ts=TS),
    "keyed": skill_invoked_started(
        make_identity(on_behalf_of="j" * 200, context_key="k" * 64), KEYED_HASH, ts=TS
    ),
    "keyed result": completed(
        IDENTITY, Ending(reason=Reason.RETURNED, result_hash=KEYED_HASH), ts=TS
    ),
    "late": AuditRow(
        kind=LATE, ts=TS, payload=completed(IDENTITY).payload, meta=completed(IDENTITY).meta
    ),
    "key rotated": audit_key_rotated(REQUEST_ID, new_key=VKEY, old_key=VKEY, ts=TS, worker="k"),
    "first key": audit_key_rotated(REQUEST_ID, new_key=VKEY, old_key=None, ts=TS),
    "pruned": audit_pruned(
        REQUEST_ID, TENANT, before=TS, first_index=0, rows=1, root=HASH, note="", ts=TS
    ),
    "pruned nobody's": audit_pruned(
        REQUEST_ID,
        NIL_TENANT,
        before=TS,
        first_index=2**40,
        rows=2**40,
        root=HASH,
        note="n" * 4096,
        ts=TS,
    ),
}


def test_the_schema_is_a_schema() -> None:
    """It passes its own draft's meta-schema and comes with the package, a fresh copy each time."""
    assert row_schema() == row_validator().schema
    row_schema().clear()
    assert row_schema()["title"] == "Audit row"


@pytest.mark.parametrize("name", VALID)
def test_the_schema_takes_every_kind_of_row(name: str) -> None:
    """Each kind there is, at its edges."""
    validate_row(VALID[name])


@pytest.mark.parametrize("refusal", Refusal)
def test_the_schema_takes_every_refusal(refusal: Refusal) -> None:
    """Each reason for not starting."""
    validate_row(refused(IDENTITY, refusal))


@pytest.mark.parametrize("bound", ["lower_bound", "upper_bound"])
def test_the_schema_takes_what_meta_may_hold_besides(bound: str) -> None:
    """How exact the duration is; which schedule was due when (decision 3)."""
    row = completed(IDENTITY, make_ending(Reason.ABANDONED))
    meta = {**row.meta, "duration": bound, "schedule": "nightly", "due": TS}
    validate_row(AuditRow(kind=row.kind, ts=row.ts, payload=row.payload, meta=meta))


def put(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        for name in path[:-1]:
            found = found[name]
        found[path[-1]] = to

    change.__name__ = f"{'.'.join(path)}={to!r:.40}"
    return change


def drop(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        for name in path[:-1]:
            found = found[name]
        del found[path[-1]]

    change.__name__ = f"no {'.'.join(path)}"
    return change


def all_of(*changes: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        for one in changes:
            one(found)

    return change


EVERYWHERE = [
    *(
        put("request_id", to=value)
        for value in ("", None, 5, REQUEST_ID.lower(), REQUEST_ID[:-1], REQUEST_ID + "0",
                      "8" + REQUEST_ID[1:], REQUEST_ID[:-1] + "I", REQUEST_ID + "\n")
    ),
    *(
        put("tenant_id", to=value)
        for value in ("", None, TENANT.upper(), TENANT.replace("-", ""), TENANT + "\n", "acme")
    ),
    *(
        put("trace_id", to=value)
        for value in ("", None, "0" * 32, TRACE_ID.upper(), TRACE_ID[1:], TRACE_ID + "\n", 1)
    ),
    put("skill_id", to=""),
    put("skill_id", to=None),
    put("extra", to=1),
    put("args", to={"q": "secret"}),
    put("result", to="secret"),
    *(drop(key) for key in ("request_id", "tenant_id", "trace_id", "skill_id")),
]  # fmt: skip
META = [
    *(drop(key) for key in started(IDENTITY).meta),
    put("attempt", to=-1),
    put("attempt", to="0"),
    put("attempt", to=True),
    put("redelivered", to=None),
    put("redelivered", to=1),
    put("parent_request_id", to="parent"),
    put("parent_request_id", to=""),
    put("worker", to=None),
    put("task_id", to=5),
    put("duration", to="exact"),
    *(put("on_behalf_of", to=value) for value in ("", None, 5, "x" * 201)),
    *(put("context_key", to=value) for value in ("", None, 5, "x" * 65, "a:b", "a b", "a\n")),
    put("extra", to=1),
]  # fmt: skip
ENVELOPE = [
    *(drop(key) for key in ("schema", "kind", "ts", "payload", "meta")),
    put("extra", to=1),
    put("schema", to=2),
    put("schema", to="1"),
    put("schema", to=True),
    put("kind", to="skill.invoked_unknown"),
    put("kind", to="skill.invoked_started\n"),
    put("payload", to=[]),
    put("meta", to=None),
    *(
        put("ts", to=value)
        for value in ("", None, "2026-11-29", "2026-11-29T21:45:38Z", "2026-11-29T21:45:38.123Z",
                      "2026-11-29T21:45:38.123456+00:00", "2026-11-29 21:45:38.123456Z", TS + "\n",
                      "2026-13-29T21:45:38.123456Z", "2026-11-32T21:45:38.123456Z",
                      "2026-11-29T24:45:38.123456Z", "2026-11-29T21:60:38.123456Z",
                      "2026-11-29T21:45:60.123456Z", "2026-00-29T21:45:38.123456Z", 1764452738)
    ),
]  # fmt: skip
NO_INVOCATION = [
    *(put("payload", "request_id", to=value) for value in ("", None, REQUEST_ID.lower())),
    *(put("payload", key, to="x") for key in ("extra", "args", "skill_id", "reason")),
    *(drop("payload", key) for key in ("tenant_id", "request_id")),
    *(put("meta", key, to="x") for key in ("task_id", "reason", "extra")),
    put("meta", "attempt", to=1),
    put("meta", "redelivered", to=True),
    put("meta", "parent_request_id", to=REQUEST_ID),
    *(drop("meta", key) for key in started(IDENTITY).meta),
    put("kind", to=STARTED),
    put("kind", to=REFUSED),
    put("kind", to="audit.unknown"),
]
OWN: dict[str, list[Callable[[dict[str, Any]], None]]] = {
    "started": [
        *(
            put("payload", "args_hash", to=v)
            for v in ("", None, HASH.upper(), HASH[1:], f"{HASH}\n")
        ),
        *(
            put("payload", "args_hash", to=v)
            for v in (
                f"hmac:{HASH}",
                f"hmac::{HASH}",
                f"hmac:a:b:{HASH}",
                f"hmac:{'k' * 65}:{HASH}",
                f"hmac:k:{HASH[1:]}",
                f"hmac:k:{HASH}0",
                f"hmac:k:{HASH}\n",
                f"hmac:k:{HASH.upper()}",
                f"HMAC:k:{HASH}",
                f"sha256:{HASH}",
                f" hmac:k:{HASH}",
                "hmac:k:",
            )
        ),
        *(put("payload", "caller_persona", to=v) for v in ("", None, "x" * 201)),
        *(put("payload", "version", to=v) for v in ("", None, 1)),
        *(drop("payload", key) for key in ("args_hash", "caller_persona", "version")),
        put("payload", "outcome", to="success"),
        put("payload", "tenant_id", to=NIL_TENANT),
        put("meta", "reason", to="returned"),
        put("kind", to=COMPLETED),
        put("kind", to=REFUSED),
    ],
    "returned": [
        put("payload", "tenant_id", to=NIL_TENANT),
        put("payload", "result_hash", to=""),
        put("payload", "result_hash", to=None),
        put("payload", "error_message", to="oh"),
        put("payload", "error_message", to=""),
        put("payload", "caller_persona", to="cuo"),
        *(put("payload", "duration_ms", to=v) for v in (-1, None, "1", 1.5, True)),
        *(put("payload", "outcome", to=v) for v in ("error", "ok", None, "")),
        *(put("meta", "reason", to=v) for v in (None, "raised", "ignored", "worker_lost", "bored")),
        *(drop("payload", key) for key in ("outcome", "duration_ms")),
        *(drop("payload", key) for key in ("result_hash", "error_message")),
        put("kind", to=STARTED),
        put("kind", to=REFUSED),
    ],
    "ignored": [put("payload", "result_hash", to=HASH), put("meta", "reason", to="returned")],
    "raised": [
        put("payload", "result_hash", to=HASH),
        put("payload", "error_message", to=None),
        put("payload", "error_message", to="x" * 1025),
        *(put("payload", "outcome", to=v) for v in ("success", "panic", "timeout")),
        *(put("meta", "reason", to=v) for v in ("returned", "abandoned", "soft_time_limit", None)),
        all_of(put("payload", "outcome", to="success"), put("payload", "error_message", to=None)),
    ],
    "panic": [put("payload", "outcome", to="error"), put("meta", "reason", to="raised")],
    "refused": [
        *(put("payload", "reason", to=v) for v in (None, "", "returned", "bored")),
        *(put("meta", "reason", to=v) for v in (None, "raised", "bored")),
        put("payload", "args_hash", to=HASH),
        put("payload", "version", to=""),
        *(drop("payload", key) for key in ("caller_persona", "version", "reason")),
        put("kind", to=STARTED),
        put("kind", to=COMPLETED),
        put("kind", to=LATE),
    ],
    "late": [put("payload", "outcome", to="error"), put("meta", "reason", to=None)],
    "key rotated": [
        *(put("payload", "new_key", to=v) for v in (None, "", "x", VKEY + "\n", "a b" + VKEY, 1)),
        put("payload", "new_key", to=f"PRIVATE+KEY+{VKEY}"),
        put("payload", "old_key", to=f"PRIVATE+KEY+{VKEY}"),
        put("payload", "old_key", to=""),
        put("payload", "tenant_id", to=TENANT),
        *(drop("payload", key) for key in ("new_key", "old_key")),
        *NO_INVOCATION,
        put("kind", to=PRUNED),
    ],
    "pruned": [
        *(put("payload", "before", to=v) for v in (None, "", "2026-11-29", TS + "\n")),
        *(put("payload", "first_index", to=v) for v in (-1, None, "0", True)),
        *(put("payload", "rows", to=v) for v in (0, None, "1")),
        *(put("payload", "note", to=v) for v in (None, 1, "n" * 4097)),
        *(drop("payload", key) for key in ("before", "first_index", "rows", "note")),
        *NO_INVOCATION,
        put("kind", to=KEY_ROTATED),
    ],
}


def inside(part: str, change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    def change_part(found: dict[str, Any]) -> None:
        change(found[part])

    change_part.__name__ = f"{part}: {change.__name__}"
    return change_part


COMMON = [
    *ENVELOPE,
    *(inside("payload", change) for change in EVERYWHERE),
    *(inside("meta", change) for change in META),
]
EVERY_KIND = ("started", "returned", "refused", "late")
WRONG = [
    pytest.param(name, change, id=f"{name} with {change.__name__}")
    for name in OWN
    for change in OWN[name] + (COMMON if name in EVERY_KIND else [])
]


@pytest.mark.parametrize(("name", "change"), WRONG)
def test_the_schema_rejects_what_is_no_row(
    name: str, change: Callable[[dict[str, Any]], None]
) -> None:
    """One thing wrong with a valid row: a key too few or too many, a value out of its set."""
    found = document(VALID[name])
    before = copy.deepcopy(found)
    change(found)
    assert found != before or json.dumps(found) != json.dumps(before)
    assert not row_validator().is_valid(found)
    assert not inlined_validator().is_valid(found)
    assert not row_check()(found)
