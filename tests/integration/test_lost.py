"""Endings that the child cannot report: closed from outside, exactly once (decision 10)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from celery.exceptions import TimeLimitExceeded, WorkerLostError

from audit.keeper import Keeper
from audit.row import COMPLETED, STARTED
from audit.spool import Spool
from tests.integration.keeping import LEASE, keeper
from tests.integration.stack import Stack, caller, running_stack
from tests.integration.test_pools import ending
from tests.support import wait_until


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: Any) -> Iterator[Stack]:
    """A host whose workers hold short leases."""
    with running_stack(tmp_path_factory.mktemp("lossy")) as stack:
        stack.environ["AUDIT_LEASE_SECONDS"] = str(LEASE)
        stack.worker("prefork", 2)
        yield stack


@pytest.mark.parametrize("how", ["sigkill", "segfault", "abort", "exit"])
def test_a_child_that_dies_is_closed_as_worker_lost(lossy: Stack, how: str) -> None:
    """However a child dies, its main process closes the invocation: panic, worker_lost."""
    with caller():
        result = lossy.skills.die.delay(how)
        with pytest.raises(WorkerLostError):
            result.get(timeout=30)
    pair = lossy.pair(result.id)
    assert ending(pair) == ("panic", "worker_lost")
    assert pair[1].meta["duration"] == "upper_bound"
    assert pair[1].payload["result_hash"] == ""
    assert "WorkerLostError" in pair[1].payload["error_message"]
    assert len(lossy.rows(task_id=result.id)) == 2


def test_a_hard_time_limit_is_a_timeout(lossy: Stack) -> None:
    """The main process kills the child and closes: timeout, hard_time_limit; no late row."""
    with caller():
        result = lossy.skills.hard_limit.delay("hard")
        with pytest.raises(TimeLimitExceeded):
            result.get(timeout=30)
    pair = lossy.pair(result.id)
    assert ending(pair) == ("timeout", "hard_time_limit")
    assert pair[1].payload["duration_ms"] >= 900
    assert len(lossy.rows(task_id=result.id)) == 2


@pytest.mark.parametrize(
    ("signame", "reasons"),
    [
        ("SIGTERM", {"terminated", "revoked"}),
        ("SIGKILL", {"revoked"}),
        ("SIGUSR2", {"terminated", "revoked"}),
    ],
)
def test_a_revoke_with_terminate_is_a_panic(lossy: Stack, signame: str, reasons: set[str]) -> None:
    """revoke(terminate=True) ends as panic with the reason that is known; one row, no late one."""
    with caller():
        result = lossy.skills.busy.delay(f"busy-{signame}")
    wait_until(lambda: f"busy-{signame}" in lossy.journal())
    lossy.app.control.revoke(result.id, terminate=True, signal=signame)
    pair = lossy.pair(result.id)
    assert pair[1].payload["outcome"] == "panic"
    assert pair[1].meta["reason"] in reasons
    wait_until(lambda: result.state == "REVOKED")
    assert len(lossy.rows(task_id=result.id)) == 2


def test_errbacks_of_a_killed_skill_have_its_caller(lossy: Stack) -> None:
    """The main process publishes them on behalf of the invocation that died."""
    with caller(persona="killed@1"):
        result = lossy.skills.die.apply_async(("sigkill",), link_error=lossy.skills.on_error.s())
    dead, _ = lossy.pair(result.id)
    errback = wait_until(
        lambda: next(
            (
                row
                for row in lossy.rows(kind=STARTED, skill_id="test.on-error")
                if row.meta["parent_request_id"] == dead.request_id
            ),
            None,
        ),
        30,
    )
    assert errback.payload["caller_persona"] == "killed@1"
    assert errback.payload["trace_id"] == dead.payload["trace_id"]


def test_a_poisoned_message_is_refused_after_three_deaths(lossy: Stack) -> None:
    """acks_late and reject_on_worker_lost: three deaths, then a refused row, then nothing."""
    with caller():
        result = lossy.skills.poison.delay("poison")
    refused = wait_until(lambda: lossy.rows(task_id=result.id, kind="skill.invoked_refused"), 60)
    rows = lossy.rows(task_id=result.id)
    assert [row.meta["reason"] for row in rows if row.kind == COMPLETED] == ["worker_lost"] * 3
    assert [row.payload["reason"] for row in refused] == ["poison"]
    assert lossy.journal().count("poison") == 3
    assert [row.meta["redelivered"] for row in rows if row.kind == STARTED] == [False, True, True]
    with pytest.raises(Exception, match="3 workers died over this message"):
        result.get(timeout=20)


def test_a_worker_that_is_killed_whole_is_reconciled(lossy: Stack) -> None:
    """SIGKILL of a worker with its children: abandoned, with a duration marked lower_bound."""
    worker = lossy.worker("prefork", 1, task_default_queue="doomed")
    with caller():
        result = lossy.skills.busy.apply_async(("doomed",), queue="doomed")
    wait_until(lambda: "doomed" in lossy.journal())
    with keeper(lossy):
        worker.kill()
        pair = lossy.pair(result.id)
    assert ending(pair) == ("panic", "abandoned")
    assert pair[1].meta["duration"] == "lower_bound"


def test_what_a_body_called_directly_is_closed_when_its_child_dies(lossy: Stack) -> None:
    """The main process knows the outer invocation alone; the inner one has the child's lease."""
    tenant = "abababab-abab-4bab-8bab-abababababab"
    with caller(tenant):
        lossy.skills.calls_die.delay("sigkill")
    with keeper(lossy):
        wait_until(lambda: len(lossy.rows(tenant_id=tenant)) == 4, 30)
    endings = {
        row.payload["skill_id"]: row.meta["reason"]
        for row in lossy.rows(tenant_id=tenant, kind=COMPLETED)
    }
    assert endings == {"test.calls-die": "worker_lost", "test.die": "abandoned"}


def test_a_living_worker_is_never_reconciled(lossy: Stack) -> None:
    """A body that runs for many leases is left alone, under a keeper that looks all the time."""
    release = lossy.directory / "release"
    with caller():
        result = lossy.skills.hold.delay(str(release))
    wait_until(lambda: f"holding {release}" in lossy.journal())
    looks: list[int] = []
    spool = Spool(lossy.directory / "spool", lossy.memory.name)
    watcher = Keeper(lossy.memory, spool, holder="watcher", lease_seconds=LEASE)
    stop = threading.Event()

    def count(_: Any) -> None:
        looks.append(1)
        if len(looks) > 6 * LEASE / watcher.interval:
            stop.set()

    watcher.keep(stop, count)
    release.touch()
    assert result.get(timeout=20) == "released"
    assert ending(lossy.pair(result.id)) == ("success", "returned")


def test_a_frozen_worker_completes_late(lossy: Stack) -> None:
    """A worker that was only cut off: abandoned stands, its completion is kept as late."""
    release = lossy.directory / "thaw"
    worker = lossy.worker("prefork", 1, task_default_queue="frozen")
    with caller():
        result = lossy.skills.hold.apply_async((str(release),), queue="frozen")
    wait_until(lambda: f"holding {release}" in lossy.journal())
    family = [psutil.Process(worker.process.pid)]
    family += family[0].children(recursive=True)
    for process in family:
        process.send_signal(signal.SIGSTOP)
    with keeper(lossy):
        pair = lossy.pair(result.id)
        assert ending(pair) == ("panic", "abandoned")
    release.touch()
    for process in family:
        process.send_signal(signal.SIGCONT)
    assert result.get(timeout=20) == "released"
    late = wait_until(lambda: lossy.rows(task_id=result.id, kind="skill.invoked_late"))
    assert [row.payload["outcome"] for row in late] == ["success"]
