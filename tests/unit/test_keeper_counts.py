"""What a keeper's numbers say when something of it fails midway."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from audit.errors import MemoryUnavailableError
from audit.keeper import Keeper
from audit.keeper_http import Exporting
from audit.ledger.sealer import SealRound
from audit.memory.base import Hold, Once, Stored
from audit.row import COMPLETED, AuditRow
from audit.spool import Spool
from audit.testing import FakeClock, InMemory
from tests.support import make_identity, started

LEASE = 15.0


class Broken(InMemory):
    """A memory that can be out of reach for everything, or for one completed row."""

    away = False
    swallows = 0

    def lead(self, role: str, holder: str, seconds: float) -> bool:
        if self.away:
            raise MemoryUnavailableError("away")
        return super().lead(role, holder, seconds)

    def emit(self, row: AuditRow, once: Once | None = None, hold: Hold | None = None) -> Stored:
        if row.kind == COMPLETED and self.swallows:
            self.swallows -= 1
            if not self.swallows:
                raise MemoryUnavailableError("away")
        return super().emit(row, once, hold)


class Host:
    """One keeper, its memory and its page."""

    def __init__(self, directory: Path, exporting: Exporting) -> None:
        self.clock = FakeClock()
        self.memory = Broken(clock=self.clock)
        self._directory = directory
        self._exporting = exporting

    def keeper(self, **given: Any) -> Keeper:
        spool = Spool(self._directory, self.memory.name)
        return Keeper(
            self.memory, spool, holder="k", lease_seconds=LEASE, clock=self.clock, **given
        )

    def rounds(self, keeper: Keeper, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.pass_by(1)
            try:
                keeper.round()
            except MemoryUnavailableError:
                continue

    def value(self, name: str) -> float | None:
        text = self._exporting.text().decode()
        found = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found)) if found else None


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Exporting("k", scraped=True) as exporting:
        yield Host(tmp_path, exporting)


def test_what_a_broken_sweep_has_closed_is_counted(host: Host) -> None:
    """The memory goes away after the first of two: each counts once, when it is closed."""
    for _ in range(2):
        host.memory.emit(started(make_identity(worker="gone")))
    host.memory.swallows = 2
    keeper = host.keeper()
    host.rounds(keeper, 12)
    assert len(list(host.memory.rows(kind=COMPLETED))) == 1
    assert (host.value("skill_abandoned_total"), host.value("skill_invoked_total")) == (1, 1)
    host.rounds(keeper, 15)
    assert len(list(host.memory.rows(kind=COMPLETED))) == 2
    assert (host.value("skill_abandoned_total"), host.value("skill_invoked_total")) == (2, 2)


def test_who_cannot_renew_its_lease_leads_no_more(host: Host) -> None:
    """Cut off from the memory for longer than that lasts, it tells nothing of a leader."""
    keeper = host.keeper()
    host.memory.emit(started(make_identity(worker="gone")))
    host.rounds(keeper, 5)
    assert (host.value("skill_keeper_leads"), host.value("skill_running")) == (1, 1)
    host.memory.away = True
    host.rounds(keeper, 14)
    assert host.value("skill_keeper_leads") == 1
    host.rounds(keeper, 1)
    assert host.value("skill_keeper_leads") == 0
    assert [host.value(name) for name in ("skill_running", "skill_keeper_late_seconds")] == [
        None
    ] * 2
    host.memory.away = False
    host.rounds(keeper, 1)
    assert (host.value("skill_keeper_leads"), host.value("skill_running")) == (1, 1)


class Mistaken:
    """A sealer with a mistake of ours in it, until it is mended."""

    mended = False

    def round(self, go_on: object) -> SealRound:
        if self.mended:
            return SealRound(rows=0, logs=0, waiting=0, faults={})
        raise ZeroDivisionError


def test_a_sealer_that_fails_is_a_fault_of_the_ledger(host: Host) -> None:
    """Whatever it raised, the gauge of the sev-1 alarm says so until it goes round again."""
    sealer = Mistaken()
    keeper = host.keeper(sealer=sealer)
    host.rounds(keeper, 2)
    assert host.value("skill_ledger_faults") == 1
    sealer.mended = True
    host.rounds(keeper, 2)
    assert host.value("skill_ledger_faults") == 0
