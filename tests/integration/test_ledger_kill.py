"""A keeper that seals, killed again and again under load: every row is sealed once, none is lost.

``LEDGER_KILLS`` in the environment says how often (10).
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Final

import pytest

from audit.embedded import EmbeddedServer
from audit.ledger.checkpoint import open_checkpoint, origin_of
from audit.ledger.folder import META, LedgerFolder
from audit.ledger.keys import LedgerKeys, write_new
from audit.ledger.log import LogFolder
from audit.memory import AuditMemory, open_memory
from tests.integration.prepared import Started, celery
from tests.naive_merkle import NaiveTree
from tests.support import make_identity, refused, wait_until

KILLS: Final = int(os.environ.get("LEDGER_KILLS", "10"))
ORIGIN: Final = "host.example"
TENANTS: Final = tuple(f"550e8400-e29b-41d4-a716-44665544000{number}" for number in range(3))
ROOT: Final = Path(__file__).parents[2]
#: Seconds between two rows of the load, so that tens of thousands never come together.
PAUSE: Final = 0.002

pytestmark = pytest.mark.timeout(120 + 10 * KILLS)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text("from celery import Celery\n\napp = Celery('plain')\n")
    write_new(LedgerKeys.generate(ORIGIN), tmp_path / "keys")
    return tmp_path


def start(host: Path, url: str, *args: str) -> Started:
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "AUDIT_MEMORY_URL": url,
        "AUDIT_SPOOL_DIR": str(host / "spool"),
        "AUDIT_LEASE_SECONDS": "0.3",  # the next one leads soon after this one was killed
        "AUDIT_LEDGER_DIR": str(host / "ledger"),
        "AUDIT_LEDGER_ORIGIN": ORIGIN,
        "AUDIT_LEDGER_KEYS": str(host / "keys"),
        "AUDIT_LEDGER_SEAL_SECONDS": "0.01",
    }
    with (host / "log").open("ab") as log:
        return celery(*("-A", "app", "audit", *args), stdout=log, stderr=log, cwd=host, env=environ)


@contextmanager
def load(memory: AuditMemory) -> Iterator[None]:
    """Rows of every tenant, for as long as the block takes."""
    stop = threading.Event()

    def emit() -> None:
        for tenant_id in cycle(TENANTS):
            if stop.wait(PAUSE):
                return
            memory.emit(refused(make_identity(tenant_id=tenant_id)))

    thread = threading.Thread(target=emit)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def check(log: LogFolder, note: bytes | None, origin: str, keys: LedgerKeys) -> list[bytes]:
    """The entries of a log, whose checkpoint is of an independent tree over them."""
    assert note is not None
    assert log.checkpoint() == note
    checkpoint = open_checkpoint(note, origin, keys.verifiers_of(origin)).checkpoint
    entries = list(log.tiles.rows(checkpoint.size))
    assert NaiveTree(entries).mth(0, len(entries)) == checkpoint.root
    return entries


def test_a_keeper_killed_at_random_seals_every_row_once(host: Path, server: EmbeddedServer) -> None:
    """Sizes equal the rows, the roots those of trees over the rows, the meta log holds every
    newest checkpoint and none twice."""
    memory, dice = open_memory(server.url, timeout=10), random.Random(20261130)
    ledger, keys = LedgerFolder(host / "ledger"), LedgerKeys.load(str(host / "keys"))
    with load(memory):
        for _ in range(KILLS):
            sealed = [memory.sealed(tenant_id) for tenant_id in TENANTS]
            keeper = start(host, server.url, "keep")
            try:
                wait_until(lambda s=sealed: [memory.sealed(t) for t in TENANTS] != s, 60)  # type: ignore[misc]
                time.sleep(dice.uniform(0, 0.3))  # where it strikes is left to chance
            finally:
                keeper.kill()
                keeper.wait()
    last = start(host, server.url, "seal")
    assert last.wait(60) == 0, (host / "log").read_text()
    gathered = check(ledger.log(META), memory.sealed(META), f"{ORIGIN}/{META}", keys)
    for tenant_id in TENANTS:
        origin, note = origin_of(ORIGIN, tenant_id, keys.secret), memory.sealed(tenant_id)
        log = ledger.log(origin.rpartition("/")[2])
        stored = [row.to_bytes() for row in memory.rows(tenant_id=tenant_id)]
        assert check(log, note, origin, keys) == stored
        assert len(stored) > KILLS
        assert note in gathered
    assert len(set(gathered)) == len(gathered)
    assert b"sev-1" not in (host / "log").read_bytes()
    assert b"Traceback" not in (host / "log").read_bytes()
    memory.close()
