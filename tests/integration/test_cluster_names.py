"""The node with the list of tenants goes away: who is listed goes on, and who is new waits."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from audit.errors import MemoryUnavailableError
from audit.memory import open_memory
from audit.memory.base import RowFilter, Stored
from audit.memory.redis_keys import Keys
from tests.cluster import Cluster, ask, client
from tests.pages import tenant
from tests.support import TRACE_ID, make_identity, started, wait_until

TENANTS = [tenant(number) for number in range(12)]
LISTED = Keys("audit", "").tenants
TIMEOUT = 2.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster.start() as made:
        for node in made.nodes:
            client(node).config_set("cluster-require-full-coverage", "no")
        yield made


def test_listed_tenants_of_other_nodes_go_on_without_the_list(cluster: Cluster) -> None:
    """Every second anew, over old connections and new ones, whether the list's node hangs or is
    gone; a tenant that was never named gets no row, and a name that was taken out comes back."""
    at = cluster.master_of(LISTED)
    home = cluster.masters[at]
    known, new = [t for t in TENANTS if cluster.master_of(Keys("audit", t).rows) != at][:2]
    memory = open_memory(cluster.url(), timeout=TIMEOUT)
    memory.emit(started(make_identity(tenant_id=known)))
    client(home).srem(LISTED, known)

    def emitted(seconds: float) -> int:
        until, count = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            began = time.monotonic()
            assert memory.emit(started(make_identity(tenant_id=known))) is Stored.NEW
            assert time.monotonic() - began < TIMEOUT
            count += 1
        return count

    def is_listed() -> bool:
        return emitted(0.01) > 0 and bool(client(home).sismember(LISTED, known))

    wait_until(is_listed)
    home.pause()
    try:
        assert emitted(1.5) > 10
    finally:
        home.resume()
    home.kill()
    others = [node for node in cluster.masters if node is not home]
    wait_until(lambda: all(b"fail" in ask(node, "CLUSTER", "NODES") for node in others), 30)
    assert emitted(1.5) > 10
    with pytest.raises(MemoryUnavailableError):
        memory.emit(started(make_identity(tenant_id=new)))
    assert all(not client(node).keys(Keys("audit", new).rows) for node in others)
    memory.close()


def test_a_trace_of_a_listed_tenant_needs_its_own_node_alone(cluster: Cluster) -> None:
    """What its list covers is held against the clock of the node that keeps it."""
    at = cluster.master_of(LISTED)
    known = next(t for t in TENANTS if cluster.master_of(Keys("audit", t).rows) != at)
    memory = open_memory(cluster.url(), timeout=TIMEOUT)
    memory.emit(row := started(make_identity(tenant_id=known)))
    cluster.masters[at].kill()
    wanted = RowFilter(tenant_id=known, trace_id=TRACE_ID)
    assert memory.page(wanted).rows == tuple(memory.select(wanted))
    assert [found.to_bytes() for found in memory.select(wanted)] == [row.to_bytes()]
    memory.close()
