"""audit/cli_retention.py: `audit prune` says what goes; and what a keeper begins beside sealing."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result

from audit import cli_keeper
from audit.cli import audit
from audit.ledger.folder import LedgerFolder
from audit.ledger.keys import write_new
from audit.ledger.sealer import Sealer
from audit.ledger.tiles import Tile
from audit.settings import AuditSettings
from audit.testing import InMemory
from tests.sealing import KEYS, OTHER, PREFIX, log_of
from tests.support import TENANT, completed, make_identity, started
from tests.witness import FakeWitness

OLD: Final = "2026-01-01T00:00:00.000000Z"
LIMIT: Final = "2026-02-01T00:00:00Z"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> InMemory:
    """300 sealed rows of each of two tenants."""
    memory = InMemory()
    for tenant_id in (TENANT, OTHER):
        for _ in range(150):
            identity = make_identity(tenant_id=tenant_id)
            memory.emit(started(identity, ts=OLD))
            memory.emit(completed(identity, ts=OLD))
    write_new(KEYS, tmp_path / "keys")
    monkeypatch.setattr("audit.terminal.open_memory", lambda url, *, timeout: memory)
    monkeypatch.setenv("AUDIT_LEDGER_DIR", str(tmp_path / "ledger"))
    monkeypatch.setenv("AUDIT_LEDGER_ORIGIN", PREFIX)
    monkeypatch.setenv("AUDIT_LEDGER_KEYS", str(tmp_path / "keys"))
    Sealer(memory, tmp_path / "ledger", origin=PREFIX, load_keys=lambda: KEYS).round()
    return memory


def run(*args: str, command: str = "prune") -> Result:
    obj: Any = SimpleNamespace(app=SimpleNamespace(conf={}), no_color=False)
    return CliRunner().invoke(audit, [command, *args], obj=obj)


def bundles(tmp_path: Path) -> int:
    found = (tmp_path / "ledger").glob("*/tile/entries/000")
    return sum(path.parts[-4] != "meta" for path in found)


def test_a_dry_run_says_what_would_go(memory: InMemory, tmp_path: Path) -> None:
    """A line for each tenant; nothing goes, and no row is written."""
    done = run("--before", LIMIT, "--dry-run")
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        f"{OTHER}: rows 0 to 255 would go; rows gone before: 0",
        f"{TENANT}: rows 0 to 255 would go; rows gone before: 0",
    ]
    assert bundles(tmp_path) == 2
    assert len(list(memory.rows())) == 600


def test_pruning_one_tenant_leaves_the_other(memory: InMemory, tmp_path: Path) -> None:
    """With --tenant the rows of that one go; again, there is nothing left."""
    done = run("--before", LIMIT, "--tenant", TENANT.upper())
    assert done.output == f"{TENANT}: rows 0 to 255 removed; rows gone before: 0\n"
    assert bundles(tmp_path) == 1
    assert len(list(memory.rows(TENANT))) == 45
    assert len(list(memory.rows(OTHER))) == 300
    again = run("--before", LIMIT, "--tenant", TENANT)
    assert again.output == f"{TENANT}: nothing removed; rows gone before: 256\n"


def test_pruning_all(memory: InMemory, tmp_path: Path) -> None:
    """Without --tenant those of all; the meta log stays as it is."""
    done = run("--before", LIMIT)
    assert done.exit_code == 0, done.output
    assert bundles(tmp_path) == 0
    assert len(list(memory.rows())) == 90


def test_what_is_left_can_be_exported(memory: InMemory, tmp_path: Path) -> None:
    """A pack of rows behind the pruned ones; one that would need those says so."""
    for _ in range(2):
        identity = make_identity()
        memory.emit(started(identity, ts="2026-03-01T00:00:00.000000Z"))
        memory.emit(completed(identity, ts="2026-03-01T00:00:00.000000Z"))
    assert run("--before", LIMIT, "--tenant", TENANT).exit_code == 0

    def export(name: str, *more: str) -> Result:
        output = ("--tenant", TENANT, "-o", str(tmp_path / name))
        return run(*output, *more, command="export")

    done = export("a", "--since", "2026-02-15T00:00:00Z")
    assert done.exit_code == 0, done.output
    for more in ((), ("--since", "2025-12-01T00:00:00Z"), ("--until", LIMIT)):
        said = export("b", *more).output
        assert "rows 0 to 255 are not here" in said
        assert "ask --since" in said
    empty = export("c", "--since", "2999-01-01T00:00:00Z").output
    assert "no sealed row lies in that time" in empty
    assert "rows 0 to 255 are not here" in empty


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((), "Missing option '--before'"),
        (("--before", "soon"), "is no time"),
        (("--before", "2999-01-01T00:00:00Z"), "must not lie in the future"),
        (("--before", "1d", "--tenant", "x"), "is no UUID"),
    ],
)
def test_wrong_usage(memory: InMemory, args: tuple[str, ...], text: str) -> None:
    """Status 2, and what to do."""
    done = run(*args)
    assert (done.exit_code, text in done.output) == (2, True)


def test_without_a_ledger_or_keys_nothing_goes(
    memory: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder is wrong usage, no keys an error; every row stays."""
    monkeypatch.delenv("AUDIT_LEDGER_KEYS")
    assert run("--before", LIMIT).exit_code == 1
    monkeypatch.delenv("AUDIT_LEDGER_DIR")
    assert run("--before", LIMIT).exit_code == 2
    assert len(list(memory.rows())) == 600


def test_a_damaged_ledger_is_status_1(memory: InMemory, tmp_path: Path) -> None:
    """What is damaged is said, and stays."""
    path = next((tmp_path / "ledger").glob("*/tile/entries/000"))
    path.write_bytes(path.read_bytes().replace(b"triage", b"triaGe", 1))
    done = run("--before", LIMIT)
    assert (done.exit_code, "audit verify" in done.output) == (1, True)


def test_a_fault_of_one_tenant_keeps_no_other(memory: InMemory, tmp_path: Path) -> None:
    """Whichever it is: the fault is told, the other tenant is pruned, and the status is 1."""
    for damaged, whole in ((OTHER, TENANT), (TENANT, OTHER)):
        folder = tmp_path / damaged
        shutil.copytree(tmp_path / "ledger", folder)
        path = LedgerFolder(folder).log(log_of(damaged)).root / Tile(None, 0).to_path()
        path.write_bytes(path.read_bytes().replace(b"triage", b"triaGe", 1))
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("AUDIT_LEDGER_DIR", str(folder))
            done = run("--before", LIMIT, "--dry-run")
        assert done.exit_code == 1
        assert done.stdout == f"{whole}: rows 0 to 255 would go; rows gone before: 0\n"
        assert done.stderr.startswith(f"Error: {damaged}: rows 0 to 255 in ")


def test_an_outage_is_told_once(memory: InMemory) -> None:
    """A memory that does not answer is no fault of each tenant."""
    tenants = memory.tenants()
    memory.tenants = lambda: tenants  # type: ignore[method-assign]
    memory.down = True
    done = run("--before", LIMIT)
    assert (done.exit_code, done.output.count("Error")) == (1, 1)


def test_the_keeper_begins_what_the_settings_ask_for(tmp_path: Path) -> None:
    """Witnesses and hot retention, each only where it is set, and neither without a ledger."""
    pair = ("http://127.0.0.1:1", FakeWitness().key.to_text())
    for changes, count in [
        ({}, 0),
        ({"ledger_witnesses": (pair,)}, 1),
        ({"hot_retention": 5.0}, 1),
        ({"ledger_witnesses": (pair,), "hot_retention": 5.0}, 2),
        ({"ledger_witnesses": (pair,), "hot_retention": 5.0, "ledger_dir": None}, 0),
    ]:
        fields: dict[str, Any] = {"ledger_dir": str(tmp_path), **changes}
        assert len(cli_keeper._duties(AuditSettings(**fields), InMemory())) == count
