"""Every pool, eager mode and direct calls give the pair, and say alike how the body ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import group

from audit import AuditRow, MissingInvocationContext
from audit.canonical import digest
from audit.row import COMPLETED, STARTED
from tests.integration.stack import Stack, caller, running_stack
from tests.support import TENANT, wait_until

POOLS = {"prefork": 2, "solo": 1, "threads": 4, "gevent": 4}


@pytest.fixture(scope="module", params=POOLS)
def pooled(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Stack]:
    """A host whose one worker has the pool."""
    with running_stack(tmp_path_factory.mktemp(request.param)) as stack:
        stack.worker(request.param, POOLS[request.param])
        yield stack


def ending(rows: tuple[AuditRow, AuditRow]) -> tuple[str, str]:
    return rows[1].payload["outcome"], rows[1].meta["reason"]


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("echo", (1,), ("success", "returned")),
        ("fail", ("x",), ("error", "raised")),
        ("nan", ("x",), ("error", "uncanonical_result")),
        ("a_set", (), ("error", "uncanonical_result")),
        ("ignore", (), ("success", "ignored")),
        ("reject", (), ("error", "rejected")),
        ("an_async", (1,), ("success", "returned")),
        ("private", ("x",), ("success", "returned")),
        ("calls_directly", (1,), ("success", "returned")),
    ],
)
def test_an_ending_is_the_same_in_every_pool(
    pooled: Stack, name: str, args: tuple[Any, ...], expected: tuple[str, str]
) -> None:
    """Outcome and reason do not depend on the pool."""
    with caller():
        result = getattr(pooled.skills, name).delay(*args)
    pair = pooled.pair(result.id)
    assert ending(pair) == expected
    assert bool(pair[1].payload["result_hash"]) == (expected[1] == "returned")
    assert pair[1].payload["duration_ms"] >= 0
    assert "duration" not in pair[1].meta
    assert len(pooled.rows(request_id=pair[0].request_id)) == 2


def test_each_attempt_of_a_retry_is_an_invocation(pooled: Stack) -> None:
    """Two retries: three pairs under one task id, attempts 0 to 2, the last one a success."""
    with caller():
        result = pooled.skills.retry.delay("mark")
        assert result.get(timeout=20) == "mark"
    pairs = [pooled.pair(result.id, attempt) for attempt in range(3)]
    assert [ending(pair) for pair in pairs] == [
        ("error", "retried"),
        ("error", "retried"),
        ("success", "returned"),
    ]
    assert len({started.request_id for started, _ in pairs}) == 3
    assert pairs[1][0].meta["parent_request_id"] == pairs[0][0].request_id


def test_autoretry_is_retried_and_keeps_the_caller(pooled: Stack) -> None:
    """An autoretry ends its attempt as retried; the next has the same persona, tenant and trace."""
    with caller():
        result = pooled.skills.autoretry.delay()
        assert result.get(timeout=20) == "done"
    first, second = pooled.pair(result.id, 0), pooled.pair(result.id, 1)
    assert (ending(first), ending(second)) == (("error", "retried"), ("success", "returned"))
    for key in ("caller_persona", "tenant_id", "trace_id"):
        assert first[0].payload[key] == second[0].payload[key]


def test_an_async_body_is_retried_by_autoretry(pooled: Stack) -> None:
    """Celery's own wrappers see the errors of an async body."""
    with caller():
        result = pooled.skills.async_autoretry.delay()
        assert result.get(timeout=20) == "done"
    assert ending(pooled.pair(result.id, 0)) == ("error", "retried")
    assert ending(pooled.pair(result.id, 1)) == ("success", "returned")


def test_concurrent_async_bodies_all_run_to_their_end(pooled: Stack) -> None:
    """Twenty async bodies at once: each returns its own value under its own caller."""
    with caller(persona="async@1"):
        results = [pooled.skills.an_async.delay(x) for x in range(20)]
    assert [r.get(timeout=30) for r in results] == [
        {"x": x, "persona": "async@1"} for x in range(20)
    ]


@pytest.mark.parametrize("name", ["nested", "async_nested", "nested_in_thread"])
def test_a_nested_call_inherits_the_caller_and_names_its_parent(pooled: Stack, name: str) -> None:
    """Persona, tenant and trace are inherited; parent_request_id is the publishing invocation."""
    with caller():
        result = getattr(pooled.skills, name).delay(7)
        child_id = result.get(timeout=20)
    (parent, _), (child, _) = pooled.pair(result.id), pooled.pair(child_id)
    for key in ("caller_persona", "tenant_id", "trace_id"):
        assert parent.payload[key] == child.payload[key]
    assert child.meta["parent_request_id"] == parent.request_id


def test_a_thread_without_the_context_publishes_nothing(pooled: Stack) -> None:
    """A body's thread that was not given the context has no caller, and is told so."""
    with caller():
        result = pooled.skills.nested_in_bare_thread.delay(7)
        assert result.get(timeout=20) == "MissingInvocationContext"


def test_a_panic_leaves_its_row_in_every_pool(tmp_path: Path) -> None:
    """A BaseException is panic wherever it strikes, even where it ends the worker (solo)."""
    with running_stack(tmp_path) as stack:
        for pool, size in POOLS.items():
            worker = stack.worker(pool, size)
            with caller():
                result = stack.skills.panic.delay()
            assert ending(stack.pair(result.id)) == ("panic", "base_exception")
            worker.stop()


# --- soft time limits: prefork only, other pools ignore them


def test_a_swallowed_soft_limit_is_told_from_a_body_that_made_it(stack: Stack) -> None:
    """A body that catches SoftTimeLimitExceeded and returns: success, and the reason says it."""
    with caller():
        result = stack.skills.swallow.delay()
        assert result.get(timeout=20) == "partial"
        afterwards = stack.skills.echo.delay(1)
    assert ending(stack.pair(result.id)) == ("success", "returned_after_soft_limit")
    assert ending(stack.pair(afterwards.id)) == ("success", "returned")


def test_replace_is_two_invocations(pooled: Stack) -> None:
    """A replaced task ends as ignored; its replacement, under the same task id, has its caller."""
    with caller():
        result = pooled.skills.replace.delay(5)
        assert result.get(timeout=20) == 5
    rows = wait_until(lambda: r if len(r := pooled.rows(task_id=result.id)) == 4 else None)
    first = [row for row in rows if row.payload["skill_id"] == "test.replace"]
    second = [row for row in rows if row.payload["skill_id"] == "test.echo"]
    assert ending((first[0], first[1])) == ("success", "ignored")
    assert ending((second[0], second[1])) == ("success", "returned")
    assert second[0].meta["parent_request_id"] == first[0].request_id


# --- without a worker -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def eager(tmp_path_factory: Any) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("eager"), task_always_eager=True) as stack:
        yield stack


def test_eager_mode_gives_the_pair(eager: Stack) -> None:
    """An eager call is an invocation: two rows, hashes, the caller's trace."""
    with caller():
        result = eager.skills.echo.delay(x=1)
    assert result.get() == 1
    started, completed = eager.pair(result.id)
    assert started.payload["args_hash"] == digest({"x": 1})
    assert completed.payload["result_hash"] == digest(1)
    assert started.payload["trace_id"] == completed.payload["trace_id"]


def test_eager_endings(eager: Stack) -> None:
    """Errors, retries and results without canonical form end as they do in a worker."""
    with caller():
        failed = eager.skills.fail.apply(("x",))
        retried = eager.skills.retry.apply(("m",))
        nan = eager.skills.nan.apply(("x",))
        thrown = eager.skills.fail.s("y")
        with pytest.raises(ValueError, match="cannot use y"):
            thrown.apply(throw=True, task_id="thrown")
    assert ending(eager.pair(failed.id)) == ("error", "raised")
    assert ending(eager.pair("thrown")) == ("error", "raised")
    assert ending(eager.pair(nan.id)) == ("error", "uncanonical_result")
    assert retried.get() == "m"
    assert sum(row.meta["reason"] == "retried" for row in eager.rows(kind=COMPLETED)) == 2


def test_eager_links_are_published_by_their_invocation(eager: Stack) -> None:
    """A link of an eager call inherits the caller and names the invocation it follows."""
    with caller():
        result = eager.skills.echo.apply_async((1,), link=eager.skills.bound.s())
    started, completed = eager.pair(result.id)
    following = next(
        row
        for row in eager.rows(kind=STARTED, skill_id="test.bound")
        if row.meta["parent_request_id"] == started.request_id
    )
    assert following.payload["tenant_id"] == TENANT
    assert following.payload["trace_id"] == completed.payload["trace_id"]


def test_eager_without_a_caller_raises_and_runs_nothing(eager: Stack) -> None:
    """Eager mode demands a caller as publishing does."""
    with pytest.raises(MissingInvocationContext):
        eager.skills.effect.delay("eager without caller")
    assert "eager without caller" not in eager.journal()


def test_a_direct_call_is_an_invocation_without_task_id(eager: Stack) -> None:
    """skill(x) leaves a pair; its errors reach the caller as they are; run() is no invocation."""
    with caller("33333333-3333-4333-8333-333333333333"):
        assert eager.skills.echo(4) == 4
        assert eager.skills.echo.run(5) == 5
        with pytest.raises(ValueError, match="cannot use z"):
            eager.skills.fail("z")
        assert eager.skills.calls_itself(2) == 2
    rows = eager.rows(tenant_id="33333333-3333-4333-8333-333333333333")
    assert {row.meta["task_id"] for row in rows} == {None}
    echo = [row for row in rows if row.payload["skill_id"] == "test.echo"]
    itself = [row for row in rows if row.payload["skill_id"] == "test.calls-itself"]
    assert [row.kind for row in echo] == [STARTED, COMPLETED]
    assert [row.kind for row in itself] == [STARTED] * 3 + [COMPLETED] * 3
    assert [row.meta["parent_request_id"] for row in itself[:3]] == [
        None,
        itself[0].request_id,
        itself[1].request_id,
    ]


def test_an_async_skill_called_out_of_a_running_loop(eager: Stack) -> None:
    """Called directly inside async code, an async skill still runs to its end, with its caller."""

    async def main() -> Any:
        with caller(persona="loop@1"):
            return eager.skills.an_async(1)

    assert asyncio.run(main()) == {"x": 1, "persona": "loop@1"}


def test_map_and_starmap_leave_a_pair_for_every_call(stack: Stack) -> None:
    """Celery's own map runs skills by direct calls: each is an invocation with the caller."""
    tenant = "44444444-4444-4444-8444-444444444444"
    with caller(tenant):
        assert stack.skills.echo.map([1, 2, 3]).apply_async().get(timeout=20) == [1, 2, 3]
        assert stack.skills.add.starmap([(1, 2), (3, 4)]).apply_async().get(timeout=20) == [3, 7]
        chunks = group(stack.skills.add.chunks([(i, i) for i in range(4)], 2).group())
        assert chunks.apply_async().get(timeout=20) == [[0, 2], [4, 6]]
    assert len(stack.rows(tenant_id=tenant)) == 2 * (3 + 2 + 4)
