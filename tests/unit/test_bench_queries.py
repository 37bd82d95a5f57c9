"""The bench of queries: its history is the same each time, and its verdict is its figures'."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from itertools import islice
from typing import Any

import pytest

from audit.row import AuditRow
from bench.past import END, WEEKS, Past
from bench.queries import FLAT, Asked, measure, report
from tests.support import validate_row


def test_a_history_is_the_same_each_time() -> None:
    """To the byte; its rows are in the order of their time, valid, and of the weeks it is said."""
    past = Past(2_000)
    rows = list(past)
    assert [row.to_bytes() for row in rows] == [row.to_bytes() for row in Past(2_000)]
    assert [row.ts for row in rows] == sorted(row.ts for row in rows)
    assert len(rows) == 2_000
    days = (END - moment_of(rows[0])).days
    assert days == 7 * WEEKS - 1
    assert abs((END - moment_of(rows[-1])).total_seconds()) < 86_400
    for row in rows[::50]:
        validate_row(row)


def moment_of(row: AuditRow) -> Any:
    return datetime.fromisoformat(row.ts)


def test_a_history_has_what_a_host_has() -> None:
    """Several tenants, every outcome, refusals, traces of one invocation and of ten."""
    rows = list(islice(Past(10_000), 10_000))
    assert len({row.tenant_id for row in rows}) == 8
    assert {row.payload.get("outcome") for row in rows} == {
        None, "success", "error", "panic", "timeout",
    }  # fmt: skip
    traces = Counter(row.payload["trace_id"] for row in rows if "version" in row.payload)
    assert (min(traces.values()), max(traces.values())) == (1, 10)
    assert len({row.kind for row in rows}) == 3


def asked(**changes: Any) -> Asked:
    usual: dict[str, Any] = {
        "memory": "redis", "what": "trace_id", "rows": 10, "aim": 0.020, "took": [0.010],
        "cpu": 0.001, "found": 1, "peak": 1000,
    }  # fmt: skip
    return Asked(**(usual | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["Every aim is met", ": flat"]),
        ({"took": [0.010] * 18 + [0.020] * 2}, ["over its aim at p95: redis: trace_id."]),
        ({"aim": None, "took": []}, ["Every aim is met"]),
        ({"peak": FLAT}, ["NOT flat"]),
    ],
)
def test_queries_are_held_against_their_aims(changes: dict[str, Any], words: list[str]) -> None:
    """p95 under the aim, and memory under the bound."""
    printed = report([asked(), asked(**changes)])
    for word in words:
        assert word in printed


def test_a_tiny_run() -> None:
    """Every query finds what is there."""
    measured = {one.what: one.found for one in measure(["sqlite"], 4_000, 1)}
    assert measured["request_id"] == 2
    assert measured["trace_id"] == measured["trace_id and tenant"]
    assert measured["trace_id"] == measured["first page of a trace_id"] >= 1
    assert measured["a tenant's week, outcome error, first page"] >= 1
    assert measured["a tenant's week, a skill that is not there, first page"] == 0
