"""The memory behind real sentinels, and a single server whose replica must have every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery.app.task import Context

from audit.doctor.check import Level
from audit.doctor.store import store_probes
from audit.errors import MemoryUnavailableError, MemoryUnsuitableError
from audit.invocation import Invocation, new_request_id
from audit.memory import open_memory
from audit.memory.base import RowRefusal, Stored
from audit.recorder import Recorder
from audit.row import COMPLETED, STARTED
from tasks import SkillHost
from tasks.caller import CHILD_STATE, ChildState
from tasks.merged import prove, require_fit
from tests.cluster import ask, cut_off, replicated, told
from tests.pages import tenant
from tests.sentinels import SERVICE, Watched, watched
from tests.support import (
    TENANT,
    checked_memory,
    completed,
    make_ending,
    make_identity,
    started,
    wait_until,
)
from tests.writing import WRITERS, acknowledged, failed, writing

NO_START = RowRefusal.NO_STARTED_ROW.value
ONLY = "only 0 of the 1 replicas that the memory URL asks for have acknowledged"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Watched]:
    """A master with a replica and one sentinel."""
    with watched(tmp_path) as guarded:
        yield guarded


def test_writers_live_through_a_fail_over_of_sentinel(guarded: Watched) -> None:
    """The master dies under them. None hears of it, unless the last start before that was lost;
    what they emit from then on is at the new master, once."""
    with writing(guarded.url(), [tenant(1), tenant(2)], timeout=20) as writers:
        wait_until(lambda: len(acknowledged(writers)) > 50)
        guarded.master.kill()
        before = {row.to_bytes() for row in acknowledged(writers)}
        wait_until(lambda: len(acknowledged(writers)) > len(before) + 50, 30)
    assert {str(error).partition(": ")[2] for error in failed(writers)} <= {NO_START}
    memory = open_memory(guarded.url())
    there = Counter(row.to_bytes() for row in memory.rows())
    assert max(there.values()) == 1
    assert len({row.to_bytes() for row in acknowledged(writers)} - before - set(there)) <= WRITERS
    memory.close()


def test_a_master_that_dies_is_replaced_by_the_one_the_sentinel_names(guarded: Watched) -> None:
    """Reading and writing go on there, and the row that the replica had acknowledged is there."""
    identity = make_identity()
    with checked_memory(guarded.url(replicas=1)) as memory:
        assert memory.emit(started(identity)) is Stored.NEW
    with checked_memory(guarded.url(), timeout=30) as memory:
        assert [row.request_id for row in memory.running()] == [identity.request_id]
        guarded.master.kill()
        assert memory.emit(completed(identity)) is Stored.NEW
        assert guarded.named() == [guarded.replica.port]


def test_a_replica_that_is_taken_for_the_master_gets_no_row(guarded: Watched) -> None:
    """The sentinel is behind: it names one that has become a replica, as none may be written to."""
    memory, fresh = (open_memory(guarded.url(), timeout=1) for _ in range(2))
    memory.emit(started(make_identity()))
    ask(guarded.master, "REPLICAOF", "127.0.0.1", guarded.replica.port)
    for warm_or_not in (memory, fresh):
        with pytest.raises(MemoryUnavailableError, match="no master any more"):
            warm_or_not.emit(started(make_identity()))
        warm_or_not.close()


def test_the_doctor_reads_a_url_of_sentinels(guarded: Watched) -> None:
    """Memory, writes, durability and clock are looked at, at the master."""
    memory = open_memory(guarded.url())
    found = {p.name: p.look() for p in store_probes(memory, 60)}
    for name in ("memory", "writes", "clock"):
        assert found[name].level is Level.OK
    assert found["memory"].seen == f"127.0.0.1:{guarded.ports[0]}/audit/0 audit answers"
    memory.close()


def test_a_sentinel_that_knows_no_such_service_says_so(guarded: Watched) -> None:
    """And a URL whose first sentinel is gone finds the next."""
    (port,) = guarded.ports
    memory = open_memory(f"redis+sentinel://127.0.0.1:{port}/other", timeout=0.5)
    with pytest.raises(MemoryUnavailableError, match="knows no master 'other'"):
        memory.check()
    memory.close()
    with checked_memory(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/audit") as memory:
        assert memory.emit(started(make_identity())) is Stored.NEW


def test_a_single_server_waits_for_its_replica_too() -> None:
    """With replicas=1 a row is acknowledged by both, or not at all; nothing else is judged fit."""
    with replicated() as (master, replica):
        url = f"{master.url}?replicas=1"
        with checked_memory(url, timeout=0.5) as memory:
            assert memory.emit(started(make_identity())) is Stored.NEW
            assert told(replica, "db0").startswith("keys=")
            row = started(make_identity())
            replica.pause()
            with pytest.raises(MemoryUnavailableError, match=ONLY) as caught:
                memory.emit(row)
            assert caught.value.maybe_stored
            with pytest.raises(MemoryUnavailableError, match=ONLY):
                memory.swap_sealed(TENANT, None, b"checkpoint")
            replica.resume()
        with checked_memory(url) as memory:
            assert memory.emit(row) is Stored.REPEATED
            cut_off(master)
            with pytest.raises(MemoryUnsuitableError, match="attach replicas"):
                open_memory(url).check()


def test_a_result_is_merged_at_whichever_server_is_the_master(guarded: Watched) -> None:
    """The result backend behind sentinels: both at the first master, and both at its successor."""
    hosts = ";".join(f"sentinel://127.0.0.1:{port}/0" for port in guarded.ports)
    app = SkillHost("merged", set_as_current=False)
    app.conf.update(
        audit_memory_url=guarded.url(),
        result_backend=f"merged+{hosts}",
        result_backend_transport_options={"master_name": SERVICE},
    )
    require_fit(app)
    prove(app)
    memory = open_memory(guarded.url(), timeout=30)
    for server in (guarded.master, guarded.replica):
        identity = make_identity(request_id=new_request_id(), task_id=f"at-{server.port}")
        invocation = Invocation(identity, Recorder(memory))
        invocation.start("0" * 64)
        invocation.hold(make_ending())
        request = Context({"id": identity.task_id})
        vars(request)[CHILD_STATE] = state = ChildState(invocation, None)
        state.merged = True
        app.backend.store_result(identity.task_id, "well", "SUCCESS", request=request)
        assert [row.kind for row in memory.rows(task_id=identity.task_id)] == [STARTED, COMPLETED]
        assert b'"well"' in ask(server, "GET", f"celery-task-meta-{identity.task_id}")
        if server is guarded.master:
            guarded.master.kill()
    memory.close()
    app.close()
