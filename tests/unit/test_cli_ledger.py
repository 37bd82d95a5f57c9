"""`audit.cli_ledger`: what `seal` and `keygen` do, print, and answer as exit status."""

from __future__ import annotations

import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from audit import cli_ledger
from audit.cli import audit
from audit.errors import LedgerKeyError
from audit.ledger.folder import META, LedgerFolder
from audit.ledger.keys import LedgerKeys, write_new
from audit.testing import FakeClock, InMemory
from tests.support import make_identity, refused


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> InMemory:
    memory = InMemory()
    monkeypatch.setattr("audit.terminal.open_memory", lambda url, *, timeout: memory)
    monkeypatch.setenv("AUDIT_LEDGER_DIR", str(tmp_path / "ledger"))
    monkeypatch.setenv("AUDIT_LEDGER_ORIGIN", "host.example")
    monkeypatch.setenv("AUDIT_LEDGER_KEYS", str(tmp_path / "keys"))
    write_new(LedgerKeys.generate("host.example"), tmp_path / "keys")
    return memory


def run(*args: str) -> Result:
    obj: Any = SimpleNamespace(app=SimpleNamespace(conf={}), no_color=False)
    return CliRunner().invoke(audit, args, obj=obj)


# --- seal -----------------------------------------------------------------------------------------


def test_seal_seals_all_and_says_how_much(memory: InMemory, tmp_path: Path) -> None:
    """Exit 0; a second time there is nothing to do."""
    for _ in range(3):
        memory.emit(refused(make_identity()))
    result = run("seal")
    assert (result.exit_code, result.stdout) == (0, "rows sealed: 3; logs that have grown: 1\n")
    assert LedgerFolder(tmp_path / "ledger").log(META).checkpoint() == memory.sealed(META)
    assert run("seal").stdout == "rows sealed: 0; logs that have grown: 0\n"


def test_seal_with_a_damaged_log_is_bad_news(memory: InMemory, tmp_path: Path) -> None:
    """Exit 1, the fault on standard error, without a traceback."""
    memory.emit(refused(make_identity()))
    run("seal")
    memory._sealed.clear()
    result = run("seal")
    assert (result.exit_code, result.stdout) == (1, "rows sealed: 0; logs that have grown: 0\n")
    assert "is not as it was left" in result.stderr
    assert "audit verify" in result.stderr


def test_seal_without_a_ledger_is_wrong_usage(
    memory: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 2, with the name of the variable."""
    monkeypatch.delenv("AUDIT_LEDGER_DIR")
    result = run("seal")
    assert result.exit_code == 2
    assert "AUDIT_LEDGER_DIR" in result.stderr


@pytest.mark.parametrize("content", [None, "PRIVATE+KEY+s3cr3t\n"])
def test_seal_without_sound_keys_is_bad_news(
    content: str | None, memory: InMemory, tmp_path: Path
) -> None:
    """Exit 1; the file stays as it is, and nothing of it is shown."""
    path = tmp_path / "keys"
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    result = run("seal")
    assert result.exit_code == 1
    assert "backup" in result.stderr
    assert "s3cr3t" not in result.output
    assert (path.read_text() if path.exists() else None) == content


def test_seal_waits_for_whoever_seals_and_not_for_ever(
    memory: InMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keeper's round is short; a stuck one is told."""
    clock, folder = FakeClock(), LedgerFolder(tmp_path / "ledger")
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.pass_by(seconds)

    monkeypatch.setattr(cli_ledger, "time", SimpleNamespace(monotonic=clock, sleep=sleep))
    with folder.locked():
        result = run("seal")
    assert result.exit_code == 1
    assert "another process" in result.stderr
    assert 250 < len(waits) < 350
    assert run("seal").exit_code == 0


# --- keygen ---------------------------------------------------------------------------------------


def test_keygen_prints_keys_that_can_be_used(memory: InMemory) -> None:
    """Named after the origin; other ones each time."""
    first, second = run("keygen"), run("keygen")
    assert first.exit_code == 0
    assert LedgerKeys.parse(first.stdout).signers[0].name == "host.example"
    assert first.stdout != second.stdout


def test_keygen_writes_a_file_and_shows_the_public_key_alone(
    memory: InMemory, tmp_path: Path
) -> None:
    """Mode 0600; a file that is there is left alone, with exit 1."""
    path = tmp_path / "new"
    result = run("keygen", "-o", str(path))
    assert result.exit_code == 0
    keys = LedgerKeys.load(str(path))
    assert result.stdout == keys.verifiers[0].to_text() + "\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = run("keygen", "-o", str(path))
    assert again.exit_code == 1
    assert "never overwritten" in again.stderr
    assert LedgerKeys.load(str(path)) == keys


def test_keygen_rotates_a_file(memory: InMemory, tmp_path: Path) -> None:
    """The new key is printed, the old one stays beside it."""
    path = tmp_path / "keys"
    before = LedgerKeys.load(str(path))
    result = run("keygen", "--rotate", str(path))
    assert result.exit_code == 0
    after = LedgerKeys.load(str(path))
    assert result.stdout.splitlines() == [key.to_text() for key in after.verifiers]
    assert len(result.stdout.splitlines()) == 2
    assert "needs both" in result.stderr
    assert after.signers[1:] == before.signers
    assert "PRIVATE" not in result.output


def test_keygen_names_the_key_and_says_so(
    memory: InMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the setting, or as asked; with another name than the origin's nothing is sealed."""
    monkeypatch.delenv("AUDIT_LEDGER_ORIGIN")
    assert "named skill-host.invalid" in run("keygen").stderr
    made = run("keygen", "--origin", "audit.example.com", "-o", str(tmp_path / "asked"))
    assert made.stdout.startswith("audit.example.com+")
    assert "named audit.example.com" in made.stderr
    monkeypatch.setenv("AUDIT_LEDGER_KEYS", str(tmp_path / "asked"))
    memory.emit(refused(make_identity()))
    for command in ("seal", "prune --before 1d"):
        refusal = run(*command.split())
        assert refusal.exit_code == 1
        assert "set AUDIT_LEDGER_ORIGIN (audit_ledger_origin) to audit.example.com" in (
            refusal.stderr
        )
    assert memory.sealed(META) is None
    for origin in ("audit.example.com/eu", "audit.example.com"):
        LedgerKeys.load(str(tmp_path / "asked"), origin)
    for origin in ("audit.example.comm", "audit.example", "x/audit.example.com"):
        with pytest.raises(LedgerKeyError, match="AUDIT_LEDGER_ORIGIN"):
            LedgerKeys.load(str(tmp_path / "asked"), origin)
    assert run("keygen", "--rotate", str(tmp_path / "asked"), "--origin", "x").exit_code == 2


def test_keygen_rotates_nothing_that_is_damaged(memory: InMemory, tmp_path: Path) -> None:
    """Exit 1, and the file stays as it is."""
    path = tmp_path / "keys"
    path.write_text("damaged\n")
    result = run("keygen", "--rotate", str(path))
    assert (result.exit_code, path.read_text()) == (1, "damaged\n")


def test_keygen_makes_or_rotates_and_not_both(memory: InMemory, tmp_path: Path) -> None:
    """Exit 2, and nothing is written."""
    result = run("keygen", "-o", str(tmp_path / "x"), "--rotate", str(tmp_path / "keys"))
    assert result.exit_code == 2
    assert not (tmp_path / "x").exists()
