"""A cluster whose master dies: what stays, what is lost, and that what is lost is named.

What a replica has when it takes over is decided by the test: it follows, or was cut off before.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.doctor.check import Level
from audit.doctor.local import spool as spool_check
from audit.errors import MemoryUnavailableError, RowRefusedError
from audit.ledger.finding import META, Kind, Source
from audit.memory import open_memory
from audit.memory.base import RowRefusal, Stored
from audit.memory.connection import Lines
from audit.memory.redis import RedisMemory
from audit.memory.redis_keys import Keys
from audit.recorder import Recorder
from audit.row import COMPLETED, AuditRow, Reason
from audit.spool import QUARANTINE, Spool
from tests import sealing
from tests.cluster import Cluster, cut_off, is_in_step, is_linked, take_over
from tests.pages import tenant
from tests.sealing import log_of, seal
from tests.support import TENANT, completed, make_ending, make_identity, started, wait_until
from tests.writing import acknowledged, failed, writing

NO_START = RowRefusal.NO_STARTED_ROW.value
ONLY = "only 0 of the 1 replicas that the memory URL asks for have acknowledged"
TENANTS = [tenant(number) for number in range(12)]


@pytest.fixture
def pair() -> Iterator[Cluster]:
    """One master with one replica; the master ends in each test."""
    with Cluster.start(masters=1, replicas=1) as pair:
        yield pair


def fail_over(pair: Cluster) -> None:
    pair.masters[0].kill()
    take_over(pair.replicas[0][0])


def rows(found: list[AuditRow]) -> Counter[bytes]:
    return Counter(row.to_bytes() for row in found)


def test_nothing_acknowledged_by_a_replica_is_lost_under_load() -> None:
    """Each master of three dies under its writers; with replicas=1 every row they were told of
    is there once, and they go on where a replica is attached again."""
    with Cluster.start(replicas=1) as cluster:
        url = cluster.url(replicas=1)
        with writing(url, TENANTS, timeout=1) as writers:
            for at, master in enumerate(cluster.masters):
                before = len(acknowledged(writers))
                wait_until(lambda before=before: len(acknowledged(writers)) > before + 50, 30)
                master.kill()
                take_over(cluster.replicas[at][0])
                master.start()  # comes back as the replica of its replica
                wait_until(lambda master=master: is_linked(master), 30)
            before = len(acknowledged(writers))
            wait_until(lambda: len(acknowledged(writers)) > before + 50, 30)
        memory = open_memory(url, timeout=10)
        there, told = rows(list(memory.rows())), rows(acknowledged(writers))
        assert max(there.values()) == 1
        assert told - there == Counter()
        assert set(memory.tenants()) == set(TENANTS)
        memory.close()


def test_writers_live_through_a_fail_over_within_their_deadline(pair: Cluster) -> None:
    """None of them hears of it where another master is there in time, unless the last start before
    that was lost."""
    with writing(pair.url(), TENANTS[:3], timeout=20) as writers:
        wait_until(lambda: len(acknowledged(writers)) > 50)
        fail_over(pair)
        before = len(acknowledged(writers))
        wait_until(lambda: len(acknowledged(writers)) > before + 50, 30)
    assert {str(error).partition(": ")[2] for error in failed(writers)} <= {NO_START}


def test_a_row_that_no_replica_has_is_not_acknowledged(
    pair: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the replica stands still emit raises, and so does the repeat over another connection;
    once it goes on, the repeat is no second row, and the row outlives its master."""
    monkeypatch.setattr("audit.memory.redis_names.NAMED_FOR", 600)
    memory = RedisMemory(pair.url(replicas=1), timeout=1)
    memory.emit(started(make_identity()))
    line = memory._lines.take(time.monotonic() + 10, Keys("audit", TENANT).rows)
    memory.emit(started(make_identity()))
    memory._lines.give_back(line)  # two connections now that have written and named the tenant
    row, (replica,) = started(make_identity()), pair.replicas[0]
    replica.pause()
    monkeypatch.setattr(Lines, "drop_idle", lambda lines: None)  # the other one outlives the first
    for _ in range(2):
        with pytest.raises(MemoryUnavailableError, match=ONLY) as caught:
            memory.emit(row)
        assert caught.value.maybe_stored
    replica.resume()
    patient = open_memory(pair.url(replicas=1), timeout=10)
    assert patient.emit(row) is Stored.REPEATED
    fail_over(pair)
    assert row.to_bytes() in rows(list(patient.rows()))


def test_a_tenant_that_no_replica_has_listed_gets_no_row(pair: Cluster) -> None:
    """Its name is as safe as its rows are to be, before there is one; that the master has the name
    since an earlier try proves nothing."""
    (replica,) = pair.replicas[0]
    memories = [open_memory(pair.url(replicas=1), timeout=1) for _ in range(2)]
    for memory in memories:
        memory.check()
    replica.pause()
    for memory in memories:
        with pytest.raises(MemoryUnavailableError, match=ONLY) as caught:
            memory.emit(started(make_identity()))
        assert not caught.value.maybe_stored
        assert list(memory.rows(TENANT)) == []
        memory.close()
    replica.resume()


def test_what_was_sealed_and_then_lost_is_named(pair: Cluster, tmp_path: Path) -> None:
    """Without replicas to wait for, a fail-over loses rows, and `audit verify` says which; the
    sealer goes no further."""
    memory = open_memory(pair.url(), timeout=10)
    first, lost = make_identity(), make_identity()
    for row in (started(first), completed(first)):
        memory.emit(row)
    seal(memory, tmp_path / "ledger")
    wait_until(lambda: is_in_step(pair.masters[0], pair.replicas[0][0]))
    cut_off(pair.masters[0])
    for row in (started(lost), completed(lost)):
        memory.emit(row)
    assert seal(memory, tmp_path / "ledger").rows == 2
    assert list(sealing.check(memory, tmp_path / "ledger").findings()) == []
    fail_over(pair)
    after = make_identity()
    for row in (started(after), completed(after)):
        memory.emit(row)
    found = list(sealing.check(memory, tmp_path / "ledger").findings())
    (cut,) = [f for f in found if f.kind is Kind.CUT]
    assert (cut.log, cut.index, cut.count) == (log_of(TENANT), 2, 2)
    assert cut.request_id == lost.request_id
    assert {(f.kind, f.source) for f in found} == {
        (Kind.CUT, Source.MEMORY),
        (Kind.ROLLBACK, Source.MEMORY),
    }
    did = seal(memory, tmp_path / "ledger")
    assert (did.rows, set(did.faults)) == (0, {META, log_of(TENANT)})
    memory.close()


def test_a_completion_whose_start_was_lost_is_kept_and_reported(
    pair: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The memory refuses it, so it is on no record: it lies in the quarantine, byte for byte,
    whether its writer had it or the spool; the log and the doctor say so."""
    memory = open_memory(pair.url(), timeout=10)
    spool = Spool(tmp_path, memory.name)
    recorder = Recorder(memory, spool)
    direct, spooled, seen = (make_identity() for _ in range(3))
    wait_until(lambda: is_in_step(pair.masters[0], pair.replicas[0][0]))
    cut_off(pair.masters[0])
    for identity in (direct, spooled, seen):
        recorder.start(started(identity))
    fail_over(pair)
    ends = [completed(direct), completed(spooled)]
    with pytest.raises(RowRefusedError, match=NO_START):
        recorder.complete(ends[0])
    spool.keep(ends[1])
    assert spool.replay(memory).quarantined == 1
    kept = [path.read_bytes() for path in sorted((spool.directory / QUARANTINE).glob("*.row"))]
    assert Counter(kept) == rows(ends)
    assert spool_check(spool).level is Level.BAD
    from_outside = completed(seen, make_ending(Reason.HARD_TIME_LIMIT))
    recorder.settle(from_outside)
    (told,) = [r for r in caplog.records if getattr(r, "audit_row", "")]
    assert told.audit_row.encode() == from_outside.to_bytes()  # type: ignore[attr-defined]
    assert list(memory.rows(kind=COMPLETED)) == []
    memory.close()
