"""The memory away at the wrong moment: nothing lost, nothing twice, nobody who lives condemned."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from audit import AuditEmitFailed, AuditRow
from audit.embedded import EmbeddedServer
from audit.keeper import Keeper
from audit.row import COMPLETED, STARTED
from audit.spool import Spool
from tests.integration.proxy import Proxy
from tests.integration.stack import Stack, caller, running_stack
from tests.integration.test_pools import ending
from tests.support import wait_until

LEASE = 1.5
#: So many are longer than a lease and all patience, whoever looks (tests/unit/test_model.py).
LEASES = 3


@contextmanager
def stack_with_own_memory(directory: Path) -> Iterator[tuple[Stack, EmbeddedServer]]:
    """Broker and results on one server, the memory on another that survives its restart."""
    with (
        EmbeddedServer(directory=directory / "memory", fsync="always") as memory_server,
        running_stack(directory, memory_url=memory_server.url) as stack,
    ):
        stack.environ |= {"AUDIT_LEASE_SECONDS": str(LEASE), "AUDIT_EMIT_TIMEOUT": "0.5"}
        yield stack, memory_server


def spooled(stack: Stack) -> list[Path]:
    return sorted((stack.directory / "spool").rglob("*.row"))


def test_five_hundred_bodies_end_while_the_memory_is_away(tmp_path: Path) -> None:
    """All results reach their callers, all rows the memory after the restart, in order, once.

    New invocations are refused meanwhile.
    """
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with stack_with_own_memory(tmp_path) as (stack, memory_server):
        stack.worker("threads", 500)
        with caller():
            results = [stack.skills.wait_at.delay(str(gate), n) for n in range(500)]
        wait_until(lambda: len(stack.journal()) == 500, 60)
        memory_server.kill()
        with gate.open("w"):
            values = [result.get(timeout=60) for result in results]
        assert values == list(range(500))
        with caller(), pytest.raises(AuditEmitFailed):
            stack.skills.effect.delay("meanwhile").get(timeout=20)
        assert "meanwhile" not in stack.journal()
        waiting = [AuditRow.from_bytes(path.read_bytes()).request_id for path in spooled(stack)]
        assert len(waiting) == 500
        memory_server.start()
        wait_until(lambda: not spooled(stack), 30)
        completed = [row.request_id for row in stack.rows(kind=COMPLETED)]
        assert completed == waiting
        assert len(set(completed)) == 500


def test_an_outage_longer_than_the_lease_condemns_nobody_who_lives(tmp_path: Path) -> None:
    """The memory is away for several leases while bodies go on; a keeper looks all the time."""
    release = tmp_path / "release"
    with stack_with_own_memory(tmp_path) as (stack, memory_server):
        stack.worker("prefork", 2)
        stack.worker("solo", 1, task_default_queue="solo")
        with caller():
            results = [
                stack.skills.hold.delay(str(release)),
                stack.skills.hold.delay(str(release)),
                stack.skills.hold.apply_async((str(release),), queue="solo"),
            ]
        wait_until(lambda: len(stack.journal()) == 3, 30)
        spool = Spool(tmp_path / "keeper-spool", stack.memory.name)
        keeper = Keeper(stack.memory, spool, holder="test", lease_seconds=LEASE)
        stop, looks = threading.Event(), []
        thread = threading.Thread(target=keeper.keep, args=(stop, looks.append))
        thread.start()
        wait_until(lambda: len(looks) > 2, 20)
        memory_server.kill()
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > LEASES * LEASE, 60)
        memory_server.start()
        seen = len(looks)
        # Long enough to condemn whoever does not renew.
        wait_until(lambda: len(looks) > seen + LEASES * LEASE / keeper.interval, 60)
        release.touch()
        assert [result.get(timeout=30) for result in results] == ["released"] * 3
        for result in results:
            assert ending(stack.pair(result.id)) == ("success", "returned")
        stop.set()
        thread.join()


@pytest.mark.parametrize("kind", [STARTED, COMPLETED])
def test_a_reply_lost_after_the_write_makes_no_second_row(tmp_path: Path, kind: str) -> None:
    """The emit is repeated, the memory knows the row, the skill runs once and ends once."""
    mark = f'"kind":"{kind}"'.encode()
    with (
        EmbeddedServer() as memory_server,
        Proxy(memory_server.port) as proxy,
        running_stack(tmp_path, memory_url=memory_server.url) as stack,
    ):
        stack.worker("prefork", 1, environ={"AUDIT_MEMORY_URL": proxy.url})
        proxy.drop_reply = lambda request: mark in request and proxy.dropped < 1
        with caller():
            result = stack.skills.effect.delay("once")
            assert result.get(timeout=20) == "once"
        assert proxy.dropped == 1
        assert stack.journal() == ["once"]
        assert [row.kind for row in stack.rows()] == [STARTED, COMPLETED]


def test_a_started_row_that_landed_although_the_gate_said_no(tmp_path: Path) -> None:
    """Every reply is lost: the caller gets 503, the body does not run, the row is closed."""
    mark = f'"kind":"{STARTED}"'.encode()
    with (
        EmbeddedServer() as memory_server,
        Proxy(memory_server.port) as proxy,
        running_stack(tmp_path, memory_url=memory_server.url) as stack,
    ):
        stack.worker(
            "prefork", 1, environ={"AUDIT_MEMORY_URL": proxy.url, "AUDIT_EMIT_TIMEOUT": "0.5"}
        )
        proxy.drop_reply = lambda request: mark in request
        with caller():
            result = stack.skills.effect.delay("never")
            with pytest.raises(AuditEmitFailed):
                result.get(timeout=20)
        proxy.drop_reply = lambda _: False
        assert ending(stack.pair(result.id)) == ("error", "not_dispatched")
        assert stack.journal() == []
        assert len(stack.rows()) == 2


def test_a_started_row_that_lands_later_is_refused(tmp_path: Path) -> None:
    """The request is held back until after the tombstone: no row, no body, nothing open."""
    mark = f'"kind":"{STARTED}"'.encode()
    with (
        EmbeddedServer() as memory_server,
        Proxy(memory_server.port) as proxy,
        running_stack(tmp_path, memory_url=memory_server.url) as stack,
    ):
        stack.worker(
            "prefork", 1, environ={"AUDIT_MEMORY_URL": proxy.url, "AUDIT_EMIT_TIMEOUT": "0.5"}
        )
        proxy.hold = lambda request: mark in request
        with caller():
            result = stack.skills.effect.delay("never")
            with pytest.raises(AuditEmitFailed):
                result.get(timeout=20)
        proxy.hold = lambda _: False
        wait_until(lambda: not spooled(stack), 20)
        assert proxy.release() >= 1
        assert stack.rows() == []
        assert stack.journal() == []


def test_what_fire_and_forget_published_is_not_lost(tmp_path: Path) -> None:
    """retry_when_refused: refused, published again, run once; one pair, its caller kept."""
    with stack_with_own_memory(tmp_path) as (stack, memory_server):
        stack.worker("prefork", 1)
        memory_server.kill()
        with caller(persona="beat@1"):
            result = stack.skills.tick.apply_async(
                ("tick",), link=stack.skills.echo.s(), ignore_result=False
            )
        wait_until(lambda: result.state == "RETRY", 20)
        assert stack.journal() == []
        memory_server.start()
        assert result.get(timeout=60) == "tick"
        assert stack.journal() == ["tick"]
        started, completed = stack.pair(result.id)
        assert started.payload["caller_persona"] == "beat@1"
        assert started.meta["parent_request_id"] is None
        assert completed.payload["outcome"] == "success"
        (link,) = wait_until(lambda: stack.rows(kind=STARTED, skill_id="test.echo"), 20)
        assert link.meta["parent_request_id"] == started.request_id
