"""What tests share: rows to emit, the rules every stored row keeps, and how to wait.

The house rule is that the published schema holds for every row that any test produces: a test that
writes rows ends with :func:`check_every_row`, which the ``memory`` fixtures call by themselves.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest
import rfc8785
from jsonschema import Draft202012Validator
from ulid import ULID

from audit import open_memory
from audit.memory import AuditMemory
from audit.row import (
    COMPLETED,
    LATE,
    REFUSED,
    STARTED,
    AuditRow,
    Ending,
    Identity,
    Outcome,
    Reason,
    Refusal,
    row_schema,
    skill_invoked_completed,
    skill_invoked_refused,
    skill_invoked_started,
    timestamp,
)
from audit.system_rows import SYSTEM_KINDS
from tests.compiled import Check, compiled

T = TypeVar("T")

TENANT = "550e8400-e29b-41d4-a716-446655440000"
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
HASH = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def missing(reason: str) -> NoReturn:
    """End the test because this machine lacks something: skipped on a laptop, failed in CI.

    A machine that tests for others (environment variable ``CI``) must have everything, or a green
    run would prove less than it says.
    """
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (no reason to skip where CI is set)", pytrace=False)
    pytest.skip(reason)


def require(binary: str) -> str:
    """The path of a program, this environment's own first, then PATH's; else :func:`missing`."""
    own = Path(sys.executable).parent / binary
    found = str(own) if os.access(own, os.X_OK) else shutil.which(binary)
    if found is None:
        missing(f"this machine has no {binary}")
    return found


def wait_until(condition: Callable[[], T], timeout: float = 10) -> T:
    """What ``condition`` returns, as soon as that is true; fails when it never is in time."""
    deadline = time.monotonic() + timeout
    while True:
        began = time.monotonic()
        if value := condition():
            return value
        now = time.monotonic()
        if now > deadline:
            pytest.fail(f"waited {timeout:g} s in vain")
        # A look that costs much is rare, or it takes the time of those who are waited for.
        time.sleep(min(max(0.005, 4 * (now - began)), 0.2))


# --- rows to emit ---------------------------------------------------------------------------------


def make_identity(**overrides: Any) -> Identity:
    """A well-formed invocation with a request_id of its own."""
    fields: dict[str, Any] = {
        "request_id": str(ULID()),
        "skill_id": "alerts.triage",
        "version": "1.0.0",
        "caller_persona": "cuo-cpo@0.4.1",
        "tenant_id": TENANT,
        "trace_id": TRACE_ID,
        "task_id": "7f1f4c1e-93a1-4f0f-9d0c-1f3f6d1f7a10",
        "worker": "worker-1",
    }
    return Identity(**{**fields, **overrides})


def make_ending(reason: Reason = Reason.RETURNED, error_message: str = "ValueError: no") -> Ending:
    """A well-formed ending for a reason: a hash where a result was kept, a message on failure."""
    if reason.outcome is not Outcome.SUCCESS:
        return Ending(reason=reason, error_message=error_message)
    return Ending(reason=reason, result_hash="" if reason is Reason.IGNORED else HASH)


def started(identity: Identity, *, ts: str | None = None) -> AuditRow:
    return skill_invoked_started(identity, HASH, ts=ts or now())


def completed(
    identity: Identity,
    ending: Ending | None = None,
    *,
    duration_ms: int = 12,
    ts: str | None = None,
) -> AuditRow:
    return skill_invoked_completed(identity, ending or make_ending(), duration_ms, ts=ts or now())


def refused(
    identity: Identity,
    refusal: Refusal = Refusal.BAD_ARGUMENTS,
    *,
    ts: str | None = None,
) -> AuditRow:
    return skill_invoked_refused(identity, refusal, ts=ts or now())


def now() -> str:
    return timestamp(datetime.now(UTC))


# --- what every stored row keeps ------------------------------------------------------------------


@functools.cache
def row_validator() -> Draft202012Validator:
    """Of the published schema, as it stands."""
    Draft202012Validator.check_schema(row_schema())
    return Draft202012Validator(row_schema())


@functools.cache
def inlined_validator() -> Draft202012Validator:
    """Of the same schema, with what it refers to in its place: half the time a row."""
    return Draft202012Validator(_inlined(row_schema(), row_schema()["$defs"]))


@functools.cache
def row_check() -> Check:
    """The same schema once more, for the thousands of rows that are valid."""
    return compiled(inlined_validator().schema)


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inlined(part, definitions) for part in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        assert set(node) == {"$ref"}
        return _inlined(definitions[node["$ref"].removeprefix("#/$defs/")], definitions)
    return {name: _inlined(part, definitions) for name, part in node.items() if name != "$defs"}


def validate_row(row: AuditRow) -> None:
    """The row's bytes are canonical JSON (RFC 8785) that the published schema accepts."""
    document = json.loads(row.to_bytes())
    if not row_check()(document):
        inlined_validator().validate(document)
        pytest.fail("jsonschema takes a row that tests/compiled.py does not")
    assert row.to_bytes() == rfc8785.dumps(document)


def check_every_row(memory: AuditMemory) -> list[AuditRow]:
    """All rows of a memory that nobody writes to any more, each valid and each invocation whole.

    Per tenant and request_id: at most one started and one completed row, the started one first; no
    completed row without it; late rows only after the completed one; a refused row alone.
    """
    rows = list(memory.rows())
    invocations: defaultdict[tuple[str, str], list[AuditRow]] = defaultdict(list)
    for row in rows:
        validate_row(row)
        invocations[row.tenant_id, row.request_id].append(row)
    for invocation in invocations.values():
        _check_invocation(invocation)
    _check_running(memory, invocations)
    return rows


def _check_invocation(rows: list[AuditRow]) -> None:
    kinds = [row.kind for row in rows]
    late = kinds.count(LATE)
    if kinds[0] == STARTED:
        assert kinds in ([STARTED], [STARTED, COMPLETED] + [LATE] * late), kinds
    else:
        assert kinds == [REFUSED] or (len(kinds) == 1 and kinds[0] in SYSTEM_KINDS), kinds


def _check_running(memory: AuditMemory, invocations: dict[tuple[str, str], list[AuditRow]]) -> None:
    still_open = {key for key, rows in invocations.items() if [r.kind for r in rows] == [STARTED]}
    assert {(row.tenant_id, row.request_id) for row in memory.running()} == still_open


@contextmanager
def checked_memory(url: str, *, timeout: float = 10.0) -> Iterator[AuditMemory]:
    """A memory whose every row is checked in the end."""
    memory = open_memory(url, timeout=timeout)
    try:
        yield memory
        check_every_row(memory)
    finally:
        memory.close()
