"""Endings of workers of every pool, each with a host of its own: closed once, whoever is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from audit.embedded import EmbeddedServer
from tests.integration.keeping import LEASE, keeper
from tests.integration.stack import ROOT, caller, running_stack
from tests.integration.test_pools import ending
from tests.support import TENANT, wait_until


def test_a_cold_shutdown_closes_what_runs(tmp_path: Path) -> None:
    """SIGQUIT: the running skill ends as panic, terminated or shutdown."""
    with running_stack(tmp_path) as stack:
        worker = stack.worker("prefork", 1)
        with caller():
            result = stack.skills.busy.delay("cold")
        wait_until(lambda: "cold" in stack.journal())
        os.kill(worker.process.pid, signal.SIGQUIT)
        pair = stack.pair(result.id)
        assert pair[1].payload["outcome"] == "panic"
        assert pair[1].meta["reason"] in {"terminated", "shutdown"}


# --- other pools ----------------------------------------------------------------------------------


def test_gevent_revoked_and_over_its_hard_limit(tmp_path: Path) -> None:
    """A greenlet that is killed is panic, terminated; one over its hard limit is timeout."""
    with running_stack(tmp_path) as stack:
        worker = stack.worker("gevent", 4)
        with caller():
            busy = stack.skills.busy.delay("greenlet")
            over = stack.skills.busy.apply_async(("over",), time_limit=1)
        wait_until(lambda: "greenlet" in stack.journal())
        stack.app.control.revoke(busy.id, terminate=True)
        assert ending(stack.pair(busy.id)) == ("panic", "terminated")
        assert ending(stack.pair(over.id)) == ("timeout", "hard_time_limit")
        assert "the gevent pool ignores" in worker.text()
        assert len(stack.rows()) == 4


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_a_body_that_kills_a_worker_without_children_is_reconciled(
    tmp_path: Path, pool: str
) -> None:
    """Where no process is left to report it, the invocation is abandoned and closed by a keeper."""
    with running_stack(tmp_path) as stack:
        stack.environ["AUDIT_LEASE_SECONDS"] = str(LEASE)
        worker = stack.worker(pool, 1)
        assert f"the {'solo' if pool == 'solo' else 'thread'} pool ignores" in worker.text()
        assert "no keeper has been seen" in worker.text()
        with caller():
            result = stack.skills.die.delay("sigkill")
        with keeper(stack):
            assert ending(stack.pair(result.id)) == ("panic", "abandoned")
            assert len(stack.rows()) == 2
        assert worker.process.wait(20) == -signal.SIGKILL


def test_a_memory_error_ends_the_worker_and_is_on_record(tmp_path: Path) -> None:
    """MemoryError is panic and the worker exits; what runs beside it still ends on record."""
    release = tmp_path / "release"
    with running_stack(tmp_path) as stack:
        stack.environ["AUDIT_LEASE_SECONDS"] = str(LEASE)
        worker = stack.worker("prefork", 2)
        with caller():
            beside = stack.skills.hold.delay(str(release))
            wait_until(lambda: stack.journal() != [])
            result = stack.skills.memory_error.delay()
        assert ending(stack.pair(result.id)) == ("panic", "base_exception")
        with keeper(stack):
            release.touch()
            assert len(stack.pair(beside.id)) == 2
            worker.process.wait(30)
            assert len(stack.rows()) == 4


def test_a_warm_shutdown_lets_bodies_end_and_gives_the_lease_back(tmp_path: Path) -> None:
    """SIGTERM: the running body returns and is a success; the lease is gone afterwards."""
    release = tmp_path / "release"
    with running_stack(tmp_path) as stack:
        worker = stack.worker("prefork", 1)
        with caller():
            result = stack.skills.hold.delay(str(release))
        wait_until(lambda: stack.journal() != [])
        (started,) = stack.rows(task_id=result.id)
        assert stack.memory.leases({started.meta["worker"]}) == {started.meta["worker"]}
        worker.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Warm shutdown" in worker.text())
        release.touch()
        assert worker.process.wait(30) == 0
        assert ending(stack.pair(result.id)) == ("success", "returned")
        assert stack.memory.leases({started.meta["worker"]}) == set()


def test_a_direct_caller_that_dies_is_reconciled(tmp_path: Path) -> None:
    """A process that calls a skill directly holds a lease too; killed, it is closed."""
    with running_stack(tmp_path) as stack:
        code = (
            "from tests.integration.worker_app import skills\n"
            "from audit import acting_as\n"
            f"with acting_as('direct@1', '{TENANT}'):\n"
            "    skills.die('sigkill')\n"
        )
        environ = {**os.environ, **stack.environ, "AUDIT_LEASE_SECONDS": str(LEASE)}
        finished = subprocess.run(
            [sys.executable, "-c", code], env=environ | {"PYTHONPATH": str(ROOT)}, check=False
        )
        assert finished.returncode == -signal.SIGKILL
        with keeper(stack):
            rows = wait_until(lambda: r if len(r := stack.rows()) == 2 else None, 30)
        assert ending((rows[0], rows[1])) == ("panic", "abandoned")


@pytest.mark.parametrize("pool", ["solo", "threads", "gevent"])
def test_a_cold_shutdown_in_other_pools_leaves_nothing_open(tmp_path: Path, pool: str) -> None:
    """SIGQUIT: whatever the pool does to the body, exactly one completed row says it ended."""
    release = tmp_path / "release"
    with running_stack(tmp_path) as stack:
        stack.environ["AUDIT_LEASE_SECONDS"] = str(LEASE)
        worker = stack.worker(pool, 1)
        with caller():
            result = stack.skills.hold.delay(str(release))
        wait_until(lambda: stack.journal() != [])
        os.kill(worker.process.pid, signal.SIGQUIT)
        wait_until(lambda: "hutdown" in worker.text(), 20)
        release.touch()
        with keeper(stack):
            pair = stack.pair(result.id)
            assert pair[1].payload["outcome"] in {"panic", "success"}
            worker.stop()
            assert len(stack.rows()) == 2


@pytest.mark.parametrize("pool", ["solo", "threads", "gevent"])
def test_a_memory_error_is_a_panic_in_other_pools(tmp_path: Path, pool: str) -> None:
    """Whether the worker survives it or not, the invocation is closed once, as panic."""
    with running_stack(tmp_path) as stack:
        stack.worker(pool, 1)
        with caller():
            result = stack.skills.memory_error.delay()
        assert ending(stack.pair(result.id)) == ("panic", "base_exception")
        assert len(stack.rows(task_id=result.id)) == 2


def test_a_lost_broker_connection_that_cancels_what_runs(tmp_path: Path) -> None:
    """acks_late and cancelling: the run that is cancelled is panic, closed once."""
    with (
        EmbeddedServer() as memory_server,
        running_stack(tmp_path, memory_url=memory_server.url) as stack,
    ):
        stack.worker("prefork", 1, worker_cancel_long_running_tasks_on_connection_loss=True)
        with caller():
            result = stack.skills.busy_late.delay("cancelled")
        wait_until(lambda: stack.journal() != [])
        with redis.Redis.from_url(stack.server.url_for(0)) as broker:
            broker.client_kill_filter(_type="normal", skipme=True)
        started, completed = stack.pair(result.id)
        assert completed.payload["outcome"] == "panic"
        assert completed.meta["reason"] in {"terminated", "shutdown"}
        assert len(stack.rows(request_id=started.request_id)) == 2
        stack.workers[0].kill()
        stack.workers.clear()
