"""Metrics of the skills (S1.11), per process, and nothing lost when children are recycled."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from audit.row import COMPLETED
from tests.integration.otlp import OtlpSink
from tests.integration.stack import caller, running_stack
from tests.support import wait_until


def test_counters_equal_rows_although_every_child_is_recycled(tmp_path: Path) -> None:
    """One task per child, ten children: the sums over all processes equal the rows."""
    with OtlpSink() as sink, running_stack(tmp_path) as stack:
        worker = stack.worker("prefork", 2, worker_max_tasks_per_child=1, environ=sink.environ)
        with caller():
            for number in range(10):
                (stack.skills.fail if number % 5 == 0 else stack.skills.noop).delay("x")
        wait_until(lambda: len(stack.rows(kind=COMPLETED)) == 10, 60)
        worker.stop()
        rows = Counter(
            (row.payload["skill_id"], row.payload["outcome"]) for row in stack.rows(kind=COMPLETED)
        )
        for (skill_id, outcome), count in rows.items():
            assert sink.total("skill_invoked_total", skill_id=skill_id, outcome=outcome) == count
        assert sink.total("skill_invoked_duration_ms") == 10
        assert len(sink.instances()) == 10
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
