"""An open invocation whose started row was damaged in a real memory."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import redis

from audit import open_memory
from audit.embedded import EmbeddedServer
from audit.errors import RowError
from audit.keeper import Keeper
from audit.memory.base import AuditMemory
from audit.memory.page import Damaged
from audit.memory.redis_keys import Keys
from audit.metrics import Orphans
from audit.reconciler import Reconciler
from audit.row import COMPLETED
from audit.spool import Spool
from audit.testing import FakeClock
from tests.support import TENANT, make_identity, started

OTHER = "11111111-2222-4333-8444-555555555555"


def damage(url: str, tenant_id: str, stored: bytes) -> str:
    """Put other bytes in the place of a tenant's first row; gives its position."""
    rows = Keys("audit", tenant_id).rows
    with redis.Redis.from_url(url) as server:
        entries = server.xrange(rows)
        server.delete(rows)
        for number, (position, fields) in enumerate(entries):
            server.xadd(rows, {**fields, b"row": stored} if number == 0 else fields, id=position)
        return str(entries[0][0].decode())


NO_TIME = b'{"kind":"skill.invoked_started","meta":{},"payload":{},"schema":1,"ts":"?"}'


@pytest.mark.parametrize("stored", [b'{"kind":', NO_TIME])
def test_it_keeps_no_other_open_and_is_an_orphan(
    stored: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its tenant's alarm fires after 30 s; whoever else was abandoned is closed."""
    clock = FakeClock()
    with EmbeddedServer() as server, caplog.at_level(logging.CRITICAL, "audit"):
        memory = open_memory(server.url)
        for tenant_id in (TENANT, TENANT, OTHER):
            memory.emit(started(make_identity(worker="gone", tenant_id=tenant_id)))
        position = damage(server.url, TENANT, stored)
        spool = Spool(tmp_path, memory.name)
        keeper = Keeper(memory, spool, holder="k", lease_seconds=15, clock=clock)
        sweeps = []
        for _ in range(40):
            sweeps.append(keeper.round().sweep)
            clock.pass_by(1)
        assert len(list(memory.rows(tenant_id=OTHER, kind=COMPLETED))) == 1
        assert memory.open_page(None, 9).damaged == (Damaged(TENANT, position),)
        last = sweeps[-1]
        assert last is not None
        assert (last.running, sum(len(sweep.closed) for sweep in sweeps if sweep)) == (1, 2)
        assert (last.orphans[TENANT].count, last.orphans[TENANT].seconds >= 30) == (1, True)
        assert [position in record.getMessage() for record in caplog.records] == [True]
        memory.close()


def test_another_invocations_row_in_its_place_is_damage() -> None:
    """Nobody else's alarm fires for it, and it does not pass for the other one."""
    with EmbeddedServer() as server:
        memory = open_memory(server.url)
        for tenant_id in (TENANT, OTHER, OTHER):
            memory.emit(started(make_identity(worker="gone", tenant_id=tenant_id)))
        for entry in (*memory.entries(TENANT, None, 1), memory.entries(OTHER, None, 2)[1]):
            position = damage(server.url, OTHER, entry.stored)
            assert_damaged(memory, position)
        memory.close()


def test_a_started_row_that_has_gone_is_damage() -> None:
    """What it began is open all the same, and nobody can close it."""
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
        memory = open_memory(server.url)
        for _ in range(2):
            memory.emit(started(make_identity(worker="gone", tenant_id=OTHER)))
        position = memory.entries(OTHER, None, 1)[0].position
        client.xdel(Keys("audit", OTHER).rows, position)
        assert_damaged(memory, position)
        memory.close()


def assert_damaged(memory: AuditMemory, position: str) -> None:
    """One of two open invocations of a tenant is damaged, and is an orphan of that tenant."""
    found = memory.open_page(OTHER, 9)
    assert found.damaged == (Damaged(OTHER, position),)
    assert (found.total, len(found.rows)) == (2, 1)
    with pytest.raises(RowError):
        list(memory.running(OTHER))
    sweep = Reconciler(memory, lease_seconds=15).sweep()
    assert sweep.orphans[OTHER].count == 2
    assert sweep.running == 1 + len(memory.tenants())


def test_a_tenant_whose_keys_are_damaged_is_an_orphan_too() -> None:
    """What it has open cannot be told, so it counts as one; another's damaged row counts beside."""
    clock, third = FakeClock(), "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
        memory = open_memory(server.url)
        for tenant_id in (TENANT, OTHER, OTHER, third):
            memory.emit(started(make_identity(worker="gone", tenant_id=tenant_id)))
        client.delete(Keys("audit", TENANT).open)
        client.lpush(Keys("audit", TENANT).open, "x")
        damage(server.url, OTHER, NO_TIME)
        reconciler = Reconciler(memory, lease_seconds=15, clock=clock)
        sweeps = []
        for _ in range(40):
            sweeps.append(reconciler.sweep())
            clock.pass_by(1)
        assert sum(len(sweep.closed) for sweep in sweeps) == 2
        assert sweeps[-1].running == 1
        assert sweeps[-1].orphans == {t: Orphans(count=1, seconds=39) for t in (TENANT, OTHER)}
        client.delete(Keys("audit", TENANT).open)
        assert set(reconciler.sweep().orphans) == {OTHER}
        memory.close()
