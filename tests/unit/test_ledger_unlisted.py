"""`audit.ledger.sealer`: a tenant that the memory's list has lost is sealed on."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.ledger.claims import Trust
from audit.ledger.finding import Kind, Verdict
from audit.ledger.folder import LedgerFolder
from audit.ledger.sources import Sources
from audit.ledger.verifier import verify
from audit.testing import InMemory
from tests.sealing import (
    KEYS,
    NEIGHBOUR,
    OTHER,
    PREFIX,
    check,
    contents,
    files,
    log_of,
    make,
    seal,
)
from tests.support import TENANT, make_identity, refused

pytestmark = pytest.mark.usefixtures("no_flush")


class Unlisting(InMemory):
    """A memory whose list of tenants has lost some names, and has others that have no rows."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: set[str] = set()
        self.named: set[str] = set()

    def tenants(self) -> list[str]:
        return sorted({*super().tenants(), *self.named} - self.lost)


@pytest.fixture
def memory() -> Unlisting:
    """Two tenants with a row each."""
    memory = Unlisting()
    for tenant_id in (TENANT, OTHER):
        memory.emit(refused(make_identity(tenant_id=tenant_id)))
    return memory


@pytest.mark.parametrize("again", [True, False])
def test_a_tenant_that_the_folder_knows_is_sealed_without_the_list(
    memory: Unlisting, tmp_path: Path, again: bool
) -> None:
    """By the sealer that served it before, and by one that starts anew; `verify` tells of it."""
    sealer = make(memory, tmp_path)
    sealer.round()
    memory.lost = {OTHER, TENANT}
    for tenant_id in (TENANT, OTHER):
        memory.emit(refused(make_identity(tenant_id=tenant_id)))
    did = (sealer if again else make(memory, tmp_path)).round()
    assert did is not None
    assert (did.rows, did.logs, did.faults) == (2, 2, {})
    assert len(contents(memory, tmp_path, OTHER)["rows"]) == 2
    trust = Trust(KEYS.verifiers, PREFIX)
    report = verify(Sources(trust=trust, ledger=tmp_path, memory=memory, secret=KEYS.secret))
    assert [(f.kind, f.tenant) for f in report.findings()] == [
        (Kind.UNLISTED, tenant) for tenant in sorted((TENANT, OTHER), key=log_of)
    ]


def test_a_line_of_the_folder_that_is_none_of_ours_is_not_served(
    memory: Unlisting, tmp_path: Path
) -> None:
    """It names another log than its tenant has, or a tenant that the memory never had."""
    seal(memory, tmp_path)
    stranger = "550e8400-e29b-41d4-a716-4466554400ff"
    lines = {**LedgerFolder(tmp_path).tenants(), "0" * 32: TENANT, "junk": "", "1" * 32: stranger}
    LedgerFolder(tmp_path).put_tenants({**lines, log_of(stranger): stranger})
    before = files(tmp_path)
    did = seal(memory, tmp_path)
    assert (did.rows, did.faults) == (0, {})
    assert files(tmp_path) == before


# --- a tenant that nothing names any more ---------------------------------------------------------


def forget(memory: Unlisting, directory: Path, tenant_id: str) -> None:
    """In the memory's list, and in the folder's."""
    memory.lost = {tenant_id}
    lines = LedgerFolder(directory).tenants()
    LedgerFolder(directory).put_tenants({k: v for k, v in lines.items() if v != tenant_id})


@pytest.mark.parametrize("again", [True, False])
def test_a_log_of_which_nothing_names_the_tenant_is_an_alarm(
    memory: Unlisting, tmp_path: Path, caplog: pytest.LogCaptureFixture, again: bool
) -> None:
    """Once, by the sealer that served it before, and by one that starts anew; the other tenant is
    sealed, and the alarm is over when the line is back."""
    sealer = make(memory, tmp_path)
    sealer.round()
    lines = LedgerFolder(tmp_path).tenants()
    forget(memory, tmp_path, OTHER)
    for tenant_id in (TENANT, OTHER):
        memory.emit(refused(make_identity(tenant_id=tenant_id)))
    sealer = sealer if again else make(memory, tmp_path)
    for rows in (1, 0):
        did = sealer.round()
        assert did is not None
        assert (did.rows, list(did.faults)) == (rows, [log_of(OTHER)])
    (alarm,) = [record for record in caplog.records if "nothing says whose" in record.getMessage()]
    assert (alarm.levelname, alarm.severity) == ("CRITICAL", "sev-1")  # type: ignore[attr-defined]
    LedgerFolder(tmp_path).put_tenants(lines)
    did = sealer.round()
    assert did is not None
    assert (did.rows, did.faults) == (1, {})


def test_what_waits_of_an_unknown_tenant_is_not_known(memory: Unlisting, tmp_path: Path) -> None:
    """`verify` says so, and does not say that nothing waits; told the tenant, it knows."""
    seal(memory, tmp_path)
    forget(memory, tmp_path, OTHER)
    memory.emit(refused(make_identity(tenant_id=OTHER)))
    report = check(memory, tmp_path)
    (finding,) = report.findings()
    assert (finding.kind, finding.log) == (Kind.MISSING, log_of(OTHER))
    assert "is not known" in finding.text
    waiting = {log.log: log.unsealed for log in report.logs}
    assert waiting == {"meta": 0, log_of(TENANT): 0, log_of(OTHER): None}
    told = check(memory, tmp_path, tenant=OTHER)
    assert [log.unsealed for log in told.logs if log.tenant] == [1]


def test_a_folder_that_is_no_log_is_no_alarm(memory: Unlisting, tmp_path: Path) -> None:
    """Nobody's `lost+found` is a tenant's."""
    (tmp_path / "lost+found").mkdir()
    assert seal(memory, tmp_path).faults == {}


def test_a_name_without_rows_gets_no_log(memory: Unlisting, tmp_path: Path) -> None:
    """It is listed before its first row, which may have been refused: nothing is written down of
    it, so nothing is missing. With a row it gets its log."""
    memory.named = {NEIGHBOUR}
    sealer = make(memory, tmp_path)
    sealer.round()
    assert set(LedgerFolder(tmp_path).tenants().values()) == {TENANT, OTHER}
    assert check(memory, tmp_path).verdict is Verdict.RIGHT
    memory.emit(refused(make_identity(tenant_id=NEIGHBOUR)))
    sealer.round()
    assert set(LedgerFolder(tmp_path).tenants().values()) == {TENANT, OTHER, NEIGHBOUR}
    assert check(memory, tmp_path).verdict is Verdict.RIGHT


def test_a_name_without_rows_that_has_a_log_is_written_down(
    memory: Unlisting, tmp_path: Path
) -> None:
    """Its keys were taken away, and its line: that is damage of that log, and told as such."""
    seal(memory, tmp_path)
    memory.named = {OTHER}
    memory._rows = [row for row in memory._rows if row.tenant_id != OTHER]
    del memory._sealed[OTHER], memory._last[OTHER]
    LedgerFolder(tmp_path).put_tenants({log_of(TENANT): TENANT})
    faults = seal(memory, tmp_path).faults
    assert "the memory knows none" in str(faults[log_of(OTHER)])
    assert LedgerFolder(tmp_path).tenants()[log_of(OTHER)] == OTHER
