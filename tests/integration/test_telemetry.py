"""Metrics of the skills (S1.11), per process: the sums over all of them equal the rows."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from audit.row import COMPLETED, LATE, STARTED, Reason
from tests.integration.otlp import OtlpSink
from tests.integration.prepared import celery
from tests.integration.stack import ROOT, Stack, caller, running_stack
from tests.integration.test_outage import spooled, stack_with_own_memory
from tests.support import wait_until


@pytest.mark.parametrize("interval", ["3600000", "100"])
def test_counters_equal_rows_although_every_child_is_recycled(
    tmp_path: Path, interval: str
) -> None:
    """One task per child, ten children: the sums over all processes equal the rows.

    Also while the main process exports ten times a second, whatever it does when it forks.
    """
    with OtlpSink() as sink, running_stack(tmp_path) as stack:
        environ = {**sink.environ, "OTEL_METRIC_EXPORT_INTERVAL": interval}
        worker = stack.worker("prefork", 2, worker_max_tasks_per_child=1, environ=environ)
        with caller():
            for number in range(10):
                (stack.skills.fail if number % 5 == 0 else stack.skills.noop).delay("x")
        wait_until(lambda: len(stack.rows(kind=COMPLETED)) == 10, 60)
        worker.stop()
        assert_counters_equal_rows(sink, stack)
        assert sink.total("skill_invoked_duration_ms") == 10
        assert len(sink.instances("skill_invoked_total")) == 10
        assert sum(span.name.startswith("run/") for span in sink.spans()) == 10


def test_metrics_of_a_pool_that_does_not_fork(tmp_path: Path) -> None:
    """A threads worker exports its metrics when it is shut down."""
    with OtlpSink() as sink, running_stack(tmp_path) as stack:
        worker = stack.worker("threads", 2, environ=sink.environ)
        with caller():
            for _ in range(5):
                stack.skills.noop.delay().get(timeout=20)
        worker.stop()
        assert sink.total("skill_invoked_total", skill_id="test.noop", outcome="success") == 5
        assert {who["skill.host.role"] for who in sink.resources()} == {"worker"}


def test_what_the_body_cannot_report_is_counted_by_whoever_closes_it(tmp_path: Path) -> None:
    """A killed child and a hard limit by the main process, a killed worker's by the keeper."""
    with OtlpSink() as sink, running_stack(tmp_path) as stack:
        conf = {"worker_max_tasks_per_child": 1, "environ": {**sink.environ, **QUICK}}
        worker = stack.worker("prefork", 2, **conf)
        with caller():
            stack.skills.noop.delay()
            stack.skills.die.delay("sigkill")
            stack.skills.hard_limit.delay("limited")
        wait_until(lambda: len(stack.rows(kind=COMPLETED)) == 3, 60)
        worker.stop()
        doomed = stack.worker("prefork", 2, **conf)
        with caller():
            stack.skills.noop.delay()
            wait_until(lambda: len(stack.rows(kind=COMPLETED)) == 4, 60)
            stack.skills.busy.delay("abandoned")
        wait_until(lambda: len(stack.rows(kind=STARTED)) == 5, 60)
        wait_for_exports_of(sink, 4)
        doomed.kill()
        keep_until_closed(stack, sink, 5)
        reasons = Counter(row.meta["reason"] for row in stack.rows(kind=COMPLETED))
        assert reasons[Reason.ABANDONED] == reasons[Reason.HARD_TIME_LIMIT] == 1
        assert reasons[Reason.WORKER_LOST] == 1
        assert_counters_equal_rows(sink, stack)
        assert sink.total("skill_abandoned_total") == 1
        roles = {who["skill.host.role"] for who in sink.resources()}
        assert roles == {"worker", "child", "keeper"}
        pids = [who["process.pid"] for who in sink.resources()]
        assert len(pids) == len(set(pids))


def test_spooled_rows_are_counted_once(tmp_path: Path) -> None:
    """A body's own ending by its child, a hard limit's by the main process that replays it."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with OtlpSink() as sink, stack_with_own_memory(tmp_path) as (stack, memory_server):
        worker = stack.worker("prefork", 3, worker_max_tasks_per_child=1, environ=sink.environ)
        with caller():
            results = [stack.skills.wait_at.delay(str(gate), n) for n in range(2)]
            wait_until(lambda: len(stack.journal()) == 2, 60)
            # Last, so that its limit does not strike while the memory is still there.
            stack.skills.busy.apply_async(("busy",), time_limit=8)
        wait_until(lambda: len(stack.journal()) == 3, 60)
        memory_server.kill()
        with gate.open("w"):
            assert [result.get(timeout=60) for result in results] == [0, 1]
        wait_until(lambda: len(spooled(stack)) == 3, 60)
        memory_server.start()
        wait_until(lambda: not spooled(stack), 60)
        worker.stop()
        assert len(stack.rows(kind=COMPLETED)) == 3
        assert_counters_equal_rows(sink, stack)
        assert sink.total("skill_audit_emit_failures_total", stage="completed") >= 3


QUICK = {"AUDIT_LEASE_SECONDS": "3"}


def assert_counters_equal_rows(sink: OtlpSink, stack: Stack) -> None:
    """Of every skill and outcome."""
    rows = Counter(
        (row.payload["skill_id"], row.payload["outcome"]) for row in stack.rows(kind=COMPLETED)
    )
    counted = {
        (skill_id, outcome): sink.total("skill_invoked_total", skill_id=skill_id, outcome=outcome)
        for skill_id, outcome in rows
    }
    assert counted == dict(rows)
    assert sink.total("skill_invoked_total") == sum(rows.values())
    assert stack.rows(kind=LATE) == []


def wait_for_exports_of(sink: OtlpSink, count: int) -> None:
    wait_until(lambda: sink.total("skill_invoked_total") == count, 30)


def keep_until_closed(stack: Stack, sink: OtlpSink, count: int) -> None:
    """A keeper as a process of its own, until so many are closed."""
    keeper = celery(
        *("-A", "tests.integration.worker_app", "audit", "keep"),
        cwd=stack.directory,
        env={**os.environ, **stack.environ, **sink.environ, **QUICK, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(stack.rows(kind=COMPLETED)) == count, 60)
    finally:
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(30) == 0
