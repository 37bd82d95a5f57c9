"""`audit verify` again and again while a ledger is sealed, trimmed, pruned and given new keys.

``LEDGER_BESIDE_SECONDS`` in the environment says for how long (10).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from typing import Final

import pytest

from audit.embedded import EmbeddedServer
from audit.ledger.claims import Trust
from audit.ledger.finding import Report, Verdict
from audit.ledger.folder import LedgerFolder
from audit.ledger.keys import LedgerKeys
from audit.ledger.pruning import Pruner
from audit.ledger.retention import HotRetention
from audit.ledger.sources import Sources
from audit.ledger.verifier import verify
from audit.memory import AuditMemory, open_memory
from tests.sealing import KEYS, NEIGHBOUR, OTHER, PREFIX, make
from tests.support import TENANT, completed, make_identity, started, wait_until

SECONDS: Final = float(os.environ.get("LEDGER_BESIDE_SECONDS", "10"))
TENANTS: Final = (TENANT, OTHER, NEIGHBOUR)
ROTATIONS: Final = 4

pytestmark = pytest.mark.timeout(120 + 10 * SECONDS)


class Host:
    """What goes on at once, each with a connection of its own."""

    def __init__(self, url: str, root: Path) -> None:
        self.url, self.root = url, root
        self.keys = [KEYS]
        self.rows = self.trimmed = self.pruned = self.prunes = 0
        self.faults: list[object] = []
        self.stop = threading.Event()

    @property
    def newest(self) -> LedgerKeys:
        return self.keys[-1]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        duties = (self.write, self.keep, self.prune, self.rotate)
        threads = [threading.Thread(target=self.guarded, args=(duty,)) for duty in duties]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()

    def guarded(self, duty: Callable[[AuditMemory], None]) -> None:
        try:
            with closing(open_memory(self.url, timeout=10)) as memory:
                duty(memory)
        except Exception as error:
            self.faults.append(error)

    def write(self, memory: AuditMemory) -> None:
        for tenant_id in cycle(TENANTS):
            if self.stop.is_set():
                return
            identity = make_identity(tenant_id=tenant_id)
            memory.emit(started(identity))
            memory.emit(completed(identity))
            self.rows += 2

    def keep(self, memory: AuditMemory) -> None:
        sealer = make(memory, self.root, load_keys=lambda: self.newest)
        hot = HotRetention(memory, LedgerFolder(self.root), seconds=0.1)
        while not self.stop.wait(0.01):
            did = sealer.round()
            self.faults += did.faults.values() if did else []
            went = hot.trim()
            self.trimmed += went.rows
            self.faults += went.faults.values()

    def prune(self, memory: AuditMemory) -> None:
        sealer = make(memory, self.root, load_keys=lambda: self.newest)
        while not self.stop.wait(0.1):
            keys, before = self.newest, datetime.now(UTC) - timedelta(seconds=0.2)
            pruner = Pruner(
                memory, LedgerFolder(self.root), origin=PREFIX, keys=keys, seal=sealer.round
            )
            for tenant_id in TENANTS:
                self.pruned += pruner.prune(pruner.plan(tenant_id, before))
            self.prunes += 1

    def rotate(self, memory: AuditMemory) -> None:
        """Never twice within one prune, which has read its keys in the beginning."""
        seen = 0
        while len(self.keys) <= ROTATIONS and not self.stop.wait(0.05):
            if self.prunes > seen + 1:
                seen = self.prunes
                self.keys.append(self.newest.rotated())

    def verify(self, memory: AuditMemory) -> Report:
        trust = Trust(self.newest.verifiers, PREFIX)  # older ones sign as well
        return verify(Sources(trust=trust, memory=memory, ledger=self.root, secret=KEYS.secret))


def test_nothing_that_keeps_a_ledger_is_a_finding(server: EmbeddedServer, tmp_path: Path) -> None:
    """Sealing, trims, prunes and new keys beside a verify that never rests: not one finding, and
    every row is accounted for in the end."""
    host, until = Host(server.url, tmp_path / "ledger"), time.monotonic() + SECONDS
    with closing(open_memory(server.url, timeout=10)) as memory, host.at_work():
        wait_until(lambda: host.pruned or host.faults, 60)
        while time.monotonic() < until or (len(host.keys) <= ROTATIONS and not host.faults):
            report = host.verify(memory)
            assert list(report.findings()) == []
    assert host.faults == []
    assert min(host.trimmed, host.pruned) > 0
    assert len(host.keys) == ROTATIONS + 1
    with closing(open_memory(server.url, timeout=10)) as memory:
        make(memory, host.root, load_keys=lambda: host.newest).round()
        report = host.verify(memory)
        assert report.verdict is Verdict.RIGHT
        sealed = sum(log.sealed for log in report.logs if log.tenant in TENANTS)
        assert sealed >= host.rows
