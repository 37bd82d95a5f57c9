"""An open invocation whose started row was damaged in a real memory."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import redis

from audit import open_memory
from audit.embedded import EmbeddedServer
from audit.keeper import Keeper
from audit.memory.page import Damaged
from audit.memory.redis_keys import Keys
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
