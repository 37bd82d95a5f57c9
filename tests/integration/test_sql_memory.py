"""The host on a memory in a SQL database: a real worker, its deaths, an outage, a sealed ledger."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit import AuditEmitFailed
from audit.memory import migrate_memory
from audit.row import STARTED
from demo.postgres import PostgresServer
from tests.integration.keeping import LEASE, keeper
from tests.integration.stack import Stack, caller, running_stack
from tests.integration.test_pools import ending
from tests.support import wait_until


@pytest.fixture(params=["postgres", "sqlite"])
def stack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    url = request.getfixturevalue(f"{request.param}_url")
    with running_stack(tmp_path, memory_url=url) as made:
        made.environ["AUDIT_LEASE_SECONDS"] = str(LEASE)
        yield made


def test_every_ending_is_on_record(stack: Stack) -> None:
    """Success, error, a child that is killed, a worker that is killed whole: a pair each."""
    worker = stack.worker("prefork", 2)
    with caller():
        fine, wrong = stack.skills.echo.delay({"a": 1}), stack.skills.fail.delay("this")
        killed = stack.skills.die.delay("sigkill")
    assert ending(stack.pair(fine.id)) == ("success", "returned")
    assert ending(stack.pair(wrong.id)) == ("error", "raised")
    assert ending(stack.pair(killed.id)) == ("panic", "worker_lost")
    with caller():
        left = stack.skills.busy.delay("left alone")
    wait_until(lambda: "left alone" in stack.journal())
    worker.process.send_signal(signal.SIGKILL)
    worker.kill()
    with keeper(stack):
        assert ending(stack.pair(left.id)) == ("panic", "abandoned")
    assert len(stack.rows()) == 8
    assert list(stack.memory.running()) == []


def test_without_the_memory_no_skill_runs(tmp_path: Path) -> None:
    """While PostgreSQL is down the caller gets a 503; when it is back, skills run again."""
    server = PostgresServer()
    try:
        migrate_memory(server.url())
        with running_stack(tmp_path, memory_url=server.url()) as stack:
            stack.worker("prefork", 1)
            server.stop()
            with caller():
                refused = stack.skills.effect.delay("must not happen")
                with pytest.raises(AuditEmitFailed) as caught:
                    refused.get(timeout=30)
                assert caught.value.http_status == 503
                server.start()
                wait_until(lambda: _runs(stack), 60)
            assert "must not happen" not in stack.journal()
            assert {row.kind for row in stack.rows(kind=STARTED)} == {STARTED}
    finally:
        server.close()


def _runs(stack: Stack) -> bool:
    try:
        return bool(stack.skills.echo.delay(1).get(timeout=30) == 1)
    except AuditEmitFailed:
        return False
