"""The memory on a real cluster of three nodes: where rows lie, and slots that move meanwhile."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from audit.doctor.check import Level
from audit.doctor.store import store_probes
from audit.embedded import EmbeddedServer
from audit.errors import MemoryDamagedError, MemoryUnavailableError, MemoryUnsuitableError
from audit.memory import AuditMemory, open_memory
from audit.memory.base import RowFilter, Stored
from audit.memory.redis_keys import Keys
from audit.row import AuditRow, Reason
from tests.cluster import Cluster, ask, client
from tests.pages import tenant
from tests.support import (
    check_every_row,
    checked_memory,
    completed,
    make_ending,
    make_identity,
    started,
    wait_until,
)
from tests.writing import acknowledged, failed, writing

TENANTS = [tenant(number) for number in range(12)]


@pytest.fixture
def prefix(cluster_url: str) -> str:
    return cluster_url.partition("prefix=")[2]


@pytest.fixture
def memory(cluster_url: str) -> Iterator[AuditMemory]:
    with checked_memory(cluster_url) as memory:
        yield memory


def rows(found: list[AuditRow]) -> Counter[bytes]:
    return Counter(row.to_bytes() for row in found)


def apart(cluster: Cluster, prefix: str) -> str:
    """A tenant whose rows are on another node than the list of tenants."""
    listed = cluster.master_of(Keys(prefix, "").tenants)
    return next(t for t in TENANTS if cluster.master_of(Keys(prefix, t).rows) != listed)


def test_tenants_spread_over_all_nodes(cluster: Cluster, memory: AuditMemory, prefix: str) -> None:
    """Each node has some tenants, and every question is answered as if it were one server."""
    opened = [make_identity(tenant_id=t) for t in TENANTS]
    emitted = [started(identity) for identity in opened]
    emitted += [completed(identity) for identity in opened[:4]]
    for row in emitted:
        assert memory.emit(row) is Stored.NEW
    for at, node in enumerate(cluster.masters):
        mine = [t for t in TENANTS if cluster.master_of(Keys(prefix, t).rows) == at]
        assert mine
        assert {t for t in TENANTS if client(node).keys(Keys(prefix, t).rows)} == set(mine)
    assert memory.tenants() == sorted(TENANTS)
    assert rows(list(memory.rows())) == rows(emitted)
    assert rows(list(memory.page(RowFilter()).rows)) == rows(emitted)
    assert {row.tenant_id for row in memory.open_page(None, 50).rows} == set(TENANTS[4:])
    for number in range(9):
        memory.hold_lease(f"worker-{number}", 60)
    assert len(memory.leases([f"worker-{number}" for number in range(12)])) == 9
    memory.check()


def test_no_row_is_stored_before_its_tenant_is_listed(
    cluster: Cluster, cluster_url: str, prefix: str
) -> None:
    """Where the node with the list takes no name, the other node gets no row."""
    tenant_id, listed = apart(cluster, prefix), Keys(prefix, "").tenants
    node = client(cluster.masters[cluster.master_of(listed)])
    node.set(listed, "no list")
    memory, row = open_memory(cluster_url), started(make_identity(tenant_id=tenant_id))
    with pytest.raises(MemoryDamagedError):
        memory.emit(row)
    assert list(memory.rows(tenant_id)) == []
    node.delete(listed)
    assert memory.emit(row) is Stored.NEW
    assert memory.tenants() == [tenant_id]
    memory.close()


def test_a_slot_moves_while_writers_emit(cluster: Cluster, cluster_url: str, prefix: str) -> None:
    """Back and forth: no writer notices, no row is lost, none is there twice."""
    moving = TENANTS[0]
    key = Keys(prefix, moving).rows
    at = cluster.master_of(key)
    ends = (cluster.masters[at], cluster.masters[(at + 1) % 3])
    slot = ask(ends[0], "CLUSTER", "KEYSLOT", key)
    with writing(cluster_url, [moving, *TENANTS[1:3]]) as writers:
        for source, target in (ends, ends[::-1]) * 2:
            before = len(acknowledged(writers))
            wait_until(lambda before=before: len(acknowledged(writers)) > before + 30)
            cluster.begin_move(slot, source, target)
            cluster.move_keys(slot, source, target)
            cluster.end_move(slot, source, target)
    assert failed(writers) == []
    with checked_memory(cluster_url) as memory:
        assert rows(list(memory.rows())) == rows(acknowledged(writers))


def test_a_slot_on_its_way_is_read_and_written_where_its_keys_are(
    cluster: Cluster, memory: AuditMemory, prefix: str
) -> None:
    """Half moved, and nobody says so but the nodes that are asked; then moved for good."""
    tenant_id = TENANTS[0]
    key = Keys(prefix, tenant_id).rows
    at = cluster.master_of(key)
    source, target = cluster.masters[at], cluster.masters[(at + 1) % 3]
    slot = ask(source, "CLUSTER", "KEYSLOT", key)
    running, died = (make_identity(tenant_id=tenant_id) for _ in range(2))
    emitted = [started(running), started(died)]
    # So that every key of the tenant is there: a script wants all of them on one node.
    emitted.append(completed(died, make_ending(Reason.WORKER_LOST)))
    for row in emitted:
        memory.emit(row)
    cluster.begin_move(slot, source, target)
    try:
        cluster.move_keys(slot, source, target)
        assert rows(list(memory.rows(tenant_id))) == rows(emitted)
        assert [row.request_id for row in memory.running(tenant_id)] == [running.request_id]
        emitted.append(started(make_identity(tenant_id=tenant_id)))
        assert memory.emit(emitted[-1]) is Stored.NEW
    finally:
        cluster.end_move(slot, source, target)
    assert rows(list(memory.rows())) == rows(emitted)
    emitted.append(completed(running))
    assert memory.emit(emitted[-1]) is Stored.NEW
    assert rows(check_every_row(memory)) == rows(emitted)
    cluster.begin_move(slot, target, source)
    cluster.move_keys(slot, target, source)
    cluster.end_move(slot, target, source)


def test_a_node_of_a_cluster_is_no_memory_by_itself(cluster: Cluster, prefix: str) -> None:
    """Whoever spells it redis:// is told what to write."""
    tenant_id = apart(cluster, prefix)
    node = cluster.masters[cluster.master_of(Keys(prefix, "").tenants)]
    memory = open_memory(f"{node.url}?prefix={prefix}")
    with pytest.raises(MemoryUnsuitableError, match=r"redis\+cluster://"):
        memory.emit(started(make_identity(tenant_id=tenant_id)))
    memory.close()


def test_replicas_are_insisted_on_before_a_row_is_sent(cluster: Cluster, prefix: str) -> None:
    """A node without a replica gets nothing from a memory that wants one."""
    memory = open_memory(cluster.url(prefix, replicas=1))
    for call in (memory.check, lambda: memory.emit(started(make_identity()))):
        with pytest.raises(MemoryUnsuitableError, match="replicas=1, but the server has 0: attach"):
            call()
    assert list(memory.rows()) == []
    memory.close()


def test_a_cluster_of_which_nobody_answers_is_out_of_reach_in_time() -> None:
    """And the error names the nodes."""
    memory = open_memory("redis+cluster://u:hunter2@127.0.0.1:1,127.0.0.1:2", timeout=0.5)
    for call in (memory.check, memory.tenants, lambda: memory.emit(started(make_identity()))):
        with pytest.raises(MemoryUnavailableError, match=re.escape("127.0.0.1:1,127")) as caught:
            call()
        assert "hunter2" not in str(caught.value)
    memory.close()


def test_the_doctor_looks_at_every_node(cluster: Cluster, cluster_url: str) -> None:
    """All is well; then one node of three may evict, and the line of the durability says so."""
    memory = open_memory(cluster_url)
    probes = {probe.name: probe for probe in store_probes(memory, 60)}
    for name in ("memory", "writes", "clock", "leases"):
        assert probes[name].look().level is Level.OK, name
    assert probes["durability"].look().level is Level.WARN
    with client(cluster.masters[2]) as node:
        node.config_set("maxmemory-policy", "allkeys-lru")
        found = probes["durability"].look()
        node.config_set("maxmemory-policy", "noeviction")
    assert found.level is Level.BAD
    assert "set it to noeviction" in found.seen
    memory.close()


def test_a_node_that_hangs_costs_its_own_tenants_the_deadline_and_others_nothing() -> None:
    """Whether the node is asked for a row or for the topology: each call ends in time, and what the
    other node has is read and written meanwhile."""
    with Cluster.start(masters=2) as pair:
        for node in pair.masters:
            client(node).config_set("cluster-node-timeout", 60_000)
        on = {pair.master_of(Keys("audit", t).rows): t for t in TENANTS}
        listed = pair.master_of(Keys("audit", "").tenants)
        warm = open_memory(pair.url(), timeout=0.6)
        for tenant_id in on.values():
            warm.emit(started(make_identity(tenant_id=tenant_id)))
        hanging = pair.masters[1 - listed]
        cold = open_memory(f"redis+cluster://{hosts(hanging, pair.masters[listed])}", timeout=0.6)
        hanging.pause()
        for memory in (warm, cold):
            began = time.monotonic()
            with pytest.raises(MemoryUnavailableError):
                memory.emit(started(make_identity(tenant_id=on[1 - listed])))
            with pytest.raises(MemoryUnavailableError):
                list(memory.running())
            assert memory.emit(started(make_identity(tenant_id=on[listed]))) is Stored.NEW
            assert list(memory.running(on[listed]))
            assert time.monotonic() - began < 2 * 0.6 + 5
            memory.close()


def hosts(*nodes: EmbeddedServer) -> str:
    return ",".join(f"127.0.0.1:{node.port}" for node in nodes)
