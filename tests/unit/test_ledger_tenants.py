"""audit/ledger/sources.py: whose a log is, held against the memory and against the secret."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.ledger.finding import Finding, Kind, Source, Verdict
from audit.ledger.folder import META, LedgerFolder
from audit.testing import InMemory
from tests.sealing import KEYS, NEIGHBOUR, check, kinds, log_of, two_tenants
from tests.support import TENANT

pytestmark = pytest.mark.usefixtures("no_flush")


@pytest.fixture
def memory(tmp_path: Path) -> InMemory:
    return two_tenants(tmp_path / "a")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "a"


def keep_lines(root: Path, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    LedgerFolder(root).put_tenants(change(LedgerFolder(root).tenants()))


def forget(memory: InMemory, tenant_id: str) -> None:
    """All of a tenant's keys in the memory."""
    del memory._sealed[tenant_id], memory._last[tenant_id]
    memory._rows = [row for row in memory._rows if row.tenant_id != tenant_id]


@pytest.mark.parametrize("secret", [KEYS.secret, None])
def test_a_log_of_which_a_memory_knows_no_tenant_is_a_finding(
    secret: bytes | None, memory: InMemory, root: Path
) -> None:
    """Keys and line are gone; from files alone it is right, as ever."""
    forget(memory, NEIGHBOUR)
    keep_lines(root, lambda lines: {log: of for log, of in lines.items() if of != NEIGHBOUR})
    report = check(memory, root, secret=secret)
    assert kinds(report) == [(Kind.MISSING, Source.LEDGER, log_of(NEIGHBOUR))]
    assert check(None, root).verdict is Verdict.RIGHT
    shutil.rmtree(root / log_of(NEIGHBOUR))
    assert (Kind.MISSING, Source.LEDGER, log_of(NEIGHBOUR)) in kinds(check(memory, root))


@pytest.mark.parametrize("secret", [KEYS.secret, None])
def test_a_tenant_that_only_the_files_know_is_a_finding(
    secret: bytes | None, memory: InMemory, root: Path
) -> None:
    """Its keys in the memory are gone, its line is there."""
    forget(memory, NEIGHBOUR)
    log = log_of(NEIGHBOUR)
    assert kinds(check(memory, root, secret=secret)) == [
        (Kind.ROLLBACK, Source.MEMORY, log), (Kind.CUT, Source.MEMORY, log),
        (Kind.UNLISTED, Source.MEMORY, log),
    ]  # fmt: skip


def test_a_line_that_is_gone_is_found_in_the_memory(memory: InMemory, root: Path) -> None:
    """It says whose the log is as well; the next round writes the line again."""
    (root / "tenants").unlink()
    for secret in (KEYS.secret, None):
        assert check(memory, root, secret=secret).verdict is Verdict.RIGHT


def swapped(lines: dict[str, str]) -> dict[str, str]:
    return dict(zip(lines, reversed(lines.values()), strict=True))


@pytest.mark.parametrize("beside", [True, False])
def test_lines_that_name_the_wrong_tenants_are_findings(
    beside: bool, memory: InMemory, root: Path
) -> None:
    """With the secret; the rows are held against the right tenants all the same."""
    keep_lines(root, swapped)
    report = check(memory if beside else None, root)
    logs = {log_of(TENANT), log_of(NEIGHBOUR)}
    assert {f.log for f in report.findings()} == logs
    assert kinds(report) == [
        (Kind.ALTERED, Source.LEDGER, log.log) for log in report.logs if log.log != META
    ]
    tenants = {log_of(TENANT): TENANT, log_of(NEIGHBOUR): NEIGHBOUR}
    told = {log.log: log.tenant for log in report.logs if log.log != META}
    assert told == (tenants if beside else dict.fromkeys(tenants))
    if beside:
        assert check(memory, root, secret=None).verdict is Verdict.WRONG


def test_a_wrong_line_hides_no_tenant_that_is_gone(memory: InMemory, root: Path) -> None:
    """The log of one is said to be of somebody else, whom the memory has or has not."""
    forget(memory, NEIGHBOUR)
    log = log_of(NEIGHBOUR)
    for somebody in (TENANT, "550e8400-e29b-41d4-a716-446655440002"):
        keep_lines(root, lambda lines, of=somebody: lines | {log: of})  # type: ignore[misc]
        found: list[Finding] = list(check(memory, root).findings())
        assert [(f.kind, f.log, f.tenant) for f in found] == [(Kind.ALTERED, log, None)]
        assert check(memory, root, secret=None).verdict is Verdict.WRONG
