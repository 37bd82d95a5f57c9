"""A caller never leaks from one invocation into the next of the same process (decision 16)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry import trace

from audit import AuditRow, MissingInvocationContext
from audit.context import Trace
from audit.row import COMPLETED, STARTED
from tests.integration.publishers import OTHER_PERSONA, OTHER_TENANT
from tests.integration.stack import Stack, caller, running_stack
from tests.support import wait_until

#: Pools whose bodies share one process: one after the other, or at once.
POOLS = {"prefork": 1, "threads": 4, "gevent": 4}

#: Every kind of body thirty times; ``LEAK_CALLS=1000`` makes so many calls.
CALLS = int(os.environ.get("LEAK_CALLS", "330"))
TENANTS = ("11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222")

#: What the bodies do, in turn; ``overruns`` takes its time and is strewn in.
HOWS = (
    *("returns", "fails", "publishes", "async", "acts and raises", "retries"),
    *("abandons a block", "ignores", "async fails", "async acts", "returns"),
)
#: How the attempts of a body end; one that returns says who its caller was.
ENDINGS = {
    "fails": ("raised",),
    "acts and raises": ("raised",),
    "abandons a block": ("raised",),
    "async fails": ("raised",),
    "ignores": ("ignored",),
    "retries": ("retried", "returned"),
    "overruns": ("returned_after_soft_limit",),
}
#: As whom a body publishes one nested call: as its caller, or as somebody else.
PUBLISHES_AS = {
    "publishes": "caller",
    "abandons a block": "caller",
    "acts and raises": "other",
    "async acts": "other",
}


@dataclass(frozen=True)
class Call:
    """One call, and what its rows must say."""

    how: str
    persona: str
    tenant_id: str
    trace_id: str
    result: Any

    @property
    def endings(self) -> tuple[str, ...]:
        return ENDINGS.get(self.how, ("returned",))

    @property
    def seen(self) -> str:
        return f"{self.persona} {self.tenant_id} {self.trace_id}"


@pytest.fixture(scope="module", params=POOLS)
def shared(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Stack]:
    """A host whose one worker runs every body in one process."""
    with running_stack(tmp_path_factory.mktemp(request.param)) as stack:
        stack.worker(request.param, POOLS[request.param])
        yield stack


def publish(stack: Stack, number: int, how: str) -> Call:
    """Call as one tenant and then the other, each time in a trace of its own."""
    place, side = Trace.fresh(), number % 2
    skill = stack.skills.mixed_async if how.startswith("async") else stack.skills.mixed
    options = {"soft_time_limit": 0.3} if how == "overruns" else {}
    with caller(TENANTS[side], f"persona-{side}@1"), trace.use_span(place.span()):
        result = skill.apply_async((how, number), **options)
    return Call(how, f"persona-{side}@1", TENANTS[side], place.trace_id, result)


def publish_all(stack: Stack, *, overruns: bool) -> list[Call]:
    calls = []
    for number in range(CALLS):
        how = "overruns" if overruns and number % 50 == 25 else HOWS[number % len(HOWS)]
        calls.append(publish(stack, number, how))
    return calls


def ended(stack: Stack, calls: list[Call]) -> list[AuditRow]:
    """Every row, once all calls and what they published have ended."""
    children = sum(call.how in PUBLISHES_AS for call in calls)
    count = sum(len(call.endings) for call in calls) + children
    for call in calls:
        if call.how != "ignores":  # such a call never has a result
            call.result.get(timeout=90, propagate=False)
    wait_until(lambda: len(stack.rows(kind=COMPLETED)) >= count, 90)
    rows = stack.rows()
    assert len(rows) == 2 * count
    return rows


def test_hundreds_of_interleaved_calls_keep_their_callers(
    request: pytest.FixtureRequest, shared: Stack
) -> None:
    """Two tenants in one process: body, rows, retries and nested calls each have their own caller;
    whoever then publishes without a caller has none."""
    pool = request.node.callspec.params["shared"]
    calls = publish_all(shared, overruns=pool == "prefork")
    rows = ended(shared, calls)
    started = [row for row in rows if row.kind == STARTED]
    by_task: dict[str, list[AuditRow]] = {}
    for row in started:
        by_task.setdefault(str(row.meta["task_id"]), []).append(row)
    children = {row.meta["parent_request_id"]: row for row in started if is_child(row)}
    reasons = {row.request_id: row.meta["reason"] for row in rows if row.kind == COMPLETED}
    for call in calls:
        own = sorted(by_task[call.result.id], key=lambda row: row.meta["attempt"])
        assert [caller_of(row) for row in own] == [call.seen] * len(call.endings), call
        assert tuple(reasons[row.request_id] for row in own) == call.endings, call
        check_child(call, own[0], children)
        if call.endings[-1].startswith("returned"):
            assert call.result.get(timeout=10) == call.seen
    assert len(children) == sum(call.how in PUBLISHES_AS for call in calls)
    nobody_is_left_in_force(shared)


def is_child(row: AuditRow) -> bool:
    return row.payload["skill_id"] == "test.echo"


def caller_of(row: AuditRow) -> str:
    payload = row.payload
    return f"{payload['caller_persona']} {payload['tenant_id']} {payload['trace_id']}"


def check_child(call: Call, parent: AuditRow, children: dict[Any, AuditRow]) -> None:
    if call.how not in PUBLISHES_AS:
        return
    acting = PUBLISHES_AS[call.how] == "other"
    expected = f"{OTHER_PERSONA} {OTHER_TENANT} {call.trace_id}" if acting else call.seen
    assert caller_of(children[parent.request_id]) == expected, call


def nobody_is_left_in_force(stack: Stack) -> None:
    """A plain task that publishes a skill, sent without a caller, is refused every time."""
    before = len(stack.rows())
    results = [stack.skills.plain_publishes.delay(1) for _ in range(12)]
    for result in results:
        with pytest.raises(MissingInvocationContext):
            result.get(timeout=20)
    assert len(stack.rows()) == before
