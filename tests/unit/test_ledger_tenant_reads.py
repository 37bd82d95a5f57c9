"""audit/ledger/tenant_reads.py: a tenant at fault, a timeout that passes, a memory that is down."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from audit.errors import MemoryDamagedError, MemoryUnavailableError, MemoryUnsuitableError
from audit.ledger.finding import Kind, Source, Verdict
from audit.ledger.folder import META
from audit.ledger.tenant_reads import SealerReads, TenantReads
from audit.testing import InMemory
from tests.sealing import (
    NEIGHBOUR,
    check,
    contents,
    emit,
    kinds,
    log_of,
    make,
    meta_of,
    two_tenants,
)
from tests.support import TENANT

pytestmark = pytest.mark.usefixtures("no_flush")

READS = ("entries", "last_position", "sealed", "sealed_position", "trimmed")


class Silent(InMemory):
    """A memory that does not answer for one tenant, some times or always."""

    def __init__(self) -> None:
        super().__init__()
        self.silent = 0
        self.checks = 0
        self.unfit = False

    def check(self) -> None:
        self.checks += 1
        if self.unfit:
            raise MemoryUnsuitableError("the memory server may evict rows")
        super().check()

    def _of(self, tenant_id: str) -> None:
        if tenant_id == TENANT and self.silent:
            self.silent -= 1
            raise MemoryUnavailableError("no reply within the deadline")

    def entries(self, tenant_id: str, after: str | None, limit: int) -> Any:
        self._of(tenant_id)
        return super().entries(tenant_id, after, limit)

    def last_position(self, tenant_id: str) -> str | None:
        self._of(tenant_id)
        return super().last_position(tenant_id)

    def sealed(self, tenant_id: str) -> bytes | None:
        self._of(tenant_id)
        return super().sealed(tenant_id)

    def sealed_position(self, tenant_id: str) -> str | None:
        self._of(tenant_id)
        return super().sealed_position(tenant_id)

    def trimmed(self, tenant_id: str) -> str | None:
        self._of(tenant_id)
        return super().trimmed(tenant_id)


@pytest.fixture
def memory() -> Silent:
    """Two tenants, with 4 and 6 rows."""
    memory = Silent()
    emit(memory, NEIGHBOUR, 4, 1)
    emit(memory, TENANT, 6, 2)
    return memory


def asking(memory: Silent, name: str, tenant_id: str = TENANT) -> Callable[[], Any]:
    more = (None, 5) if name == "entries" else ()
    return lambda: getattr(TenantReads(memory), name)(tenant_id, *more)


@pytest.mark.parametrize("name", READS)
def test_a_read_that_fails_once_is_done_again(memory: Silent, name: str) -> None:
    """One timeout accuses nobody."""
    wanted = asking(memory, name)()
    memory.silent = 1
    assert asking(memory, name)() == wanted
    assert memory.checks == 1


@pytest.mark.parametrize("name", READS)
def test_a_read_that_fails_twice_is_the_tenants_where_the_memory_answers(
    memory: Silent, name: str
) -> None:
    """The error names it; another tenant's answer comes."""
    memory.silent = 2
    with pytest.raises(MemoryDamagedError, match=TENANT) as raised:
        asking(memory, name)()
    assert raised.value.tenant_id == TENANT
    memory.silent = 2
    asking(memory, name, NEIGHBOUR)()


@pytest.mark.parametrize("name", READS)
def test_where_nothing_answers_no_tenant_is_at_fault(memory: Silent, name: str) -> None:
    """Nor where the server is not fit any more."""
    memory.down = True
    with pytest.raises(MemoryUnavailableError, match="down") as raised:
        asking(memory, name)()
    assert not isinstance(raised.value, MemoryDamagedError)
    memory.down, memory.unfit, memory.silent = False, True, 2
    with pytest.raises(MemoryUnsuitableError):
        asking(memory, name)()


def test_a_memory_that_goes_down_between_two_tries_accuses_nobody() -> None:
    """It answered when it was asked after the first, and does not after the second."""

    class Going(Silent):
        def check(self) -> None:
            super().check()
            self.down = True

    memory = Going()
    memory.silent = 1
    with pytest.raises(MemoryUnavailableError, match="down") as raised:
        TenantReads(memory).trimmed(TENANT)
    assert not isinstance(raised.value, MemoryDamagedError)


def test_damage_that_the_memory_tells_is_not_asked_for_twice() -> None:
    """It is certain."""

    class Damaged(Silent):
        def trimmed(self, tenant_id: str) -> str | None:
            raise MemoryDamagedError("a position is none", tenant_id=tenant_id)

    memory = Damaged()
    with pytest.raises(MemoryDamagedError, match="is none"):
        TenantReads(memory).trimmed(TENANT)
    assert memory.checks == 0


def test_a_swap_that_fails_accuses_no_tenant(memory: Silent) -> None:
    """It is not done again either: a server that takes no writes answers all the same."""

    class Full(Silent):
        swaps = 0

        def swap_sealed(self, *args: Any, **more: Any) -> bool:
            self.swaps += 1
            raise MemoryUnavailableError("out of memory")

    full = Full()
    with pytest.raises(MemoryUnavailableError) as raised:
        SealerReads(full).swap_sealed(TENANT, None, b"note", "1-0")
    assert not isinstance(raised.value, MemoryDamagedError)
    assert full.swaps == 1


# --- who goes on ----------------------------------------------------------------------------------


def test_a_silent_tenant_is_an_alarm_and_all_others_are_sealed_and_gathered(
    memory: Silent, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, for as long as it lasts; then it is sealed as if nothing had been."""
    sealer = make(memory, tmp_path)
    sealer.round()
    emit(memory, NEIGHBOUR, 2, 3)
    emit(memory, TENANT, 2, 4)
    memory.silent = 1_000_000
    with caplog.at_level(logging.WARNING, logger="audit"):
        for _ in range(3):
            did = sealer.round()
            assert did is not None
            assert list(did.faults) == [log_of(TENANT)]
    (alarm,) = caplog.records
    assert (alarm.levelname, alarm.severity) == ("CRITICAL", "sev-1")  # type: ignore[attr-defined]
    assert len(contents(memory, tmp_path, NEIGHBOUR)["rows"]) == 4 + 2
    assert len(meta_of(memory, tmp_path)) == 3
    memory.silent = 0
    did = sealer.round()
    assert did is not None
    assert (did.rows, did.faults) == (2, {})
    assert check(memory, tmp_path).verdict is Verdict.RIGHT


def test_a_timeout_that_passes_is_no_alarm_and_no_finding(memory: Silent, tmp_path: Path) -> None:
    """Neither of the sealer nor of the verifier."""
    sealer = make(memory, tmp_path)
    memory.silent = 1
    did = sealer.round()
    assert did is not None
    assert did.faults == {}
    memory.silent = 1
    assert check(memory, tmp_path).verdict is Verdict.RIGHT


def test_a_silent_tenant_is_a_finding_there_and_all_other_logs_are_checked(
    memory: Silent, tmp_path: Path
) -> None:
    """Its files are checked alone, and how much waits to be sealed is not known."""
    make(memory, tmp_path).round()
    memory.silent = 1_000_000
    report = check(memory, tmp_path)
    (finding,) = report.findings()
    assert (finding.kind, finding.source, finding.log) == (
        Kind.MALFORMED,
        Source.MEMORY,
        log_of(TENANT),
    )
    told = {log.tenant: (log.checked, log.unsealed) for log in report.logs if log.tenant}
    assert told == {NEIGHBOUR: (4, 0), TENANT: (6, None)}


def test_a_memory_that_is_down_is_an_error_and_no_finding(memory: Silent, tmp_path: Path) -> None:
    """Whoever seals waits; whoever verifies is told, and nothing is called right or wrong."""
    sealer = make(memory, tmp_path)
    sealer.round()
    memory.down = True
    for ask in (sealer.round, lambda: check(memory, tmp_path)):
        with pytest.raises(MemoryUnavailableError, match="down"):
            ask()


@pytest.mark.parametrize("asked", range(1, 6))
def test_a_meta_log_that_fails_at_any_look_leaves_all_others_checked(
    asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its traces are looked for as well, which is behind all logs."""
    memory, looks = two_tenants(tmp_path), list[str]()

    def sealed(tenant_id: str) -> bytes | None:
        looks.extend([tenant_id] if tenant_id == META else ())
        if tenant_id == META and len(looks) >= asked:
            raise MemoryDamagedError("the meta log's keys are none", tenant_id=META)
        return InMemory.sealed(memory, tenant_id)

    monkeypatch.setattr(memory, "sealed", sealed)
    report = check(memory, tmp_path)
    assert kinds(report) == [(Kind.MALFORMED, Source.MEMORY, META)] * (asked <= len(looks))
    assert {log.tenant: log.checked for log in report.logs if log.tenant} == {
        NEIGHBOUR: 4,
        TENANT: 10,
    }
