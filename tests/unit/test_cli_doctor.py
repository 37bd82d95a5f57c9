"""`audit doctor`: lines, JSON, and exit status."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from audit.cli import audit
from audit.doctor.check import PROBES, Check, Level, Probe, bad, ok, warn
from audit.keeper import ROLE
from audit.testing import InMemory


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> InMemory:
    fake = InMemory()
    fake.lead(ROLE, "keeper", 60)
    monkeypatch.setattr("audit.terminal.open_memory", lambda url, *, timeout: fake)
    for variable in ("AUDIT_MEMORY_URL", "AUDIT_EMIT_TIMEOUT", "AUDIT_LEDGER_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AUDIT_SPOOL_DIR", str(tmp_path / "spool"))
    return fake


def run(*args: str, checks: list[Check] | None, conf: dict[str, Any] | None = None) -> Result:
    app = SimpleNamespace(conf=conf or {})
    if checks is not None:
        probes = [Probe(name=check.name, look=lambda c=check: c) for check in checks]  # type: ignore[misc]
        setattr(app, PROBES, lambda: probes)
    return CliRunner().invoke(
        audit, ["doctor", *args], obj=SimpleNamespace(app=app, no_color=False)
    )


def levels(result: Result) -> dict[str, str]:
    return {line.split("\t")[1]: line.split("\t")[0] for line in result.stdout.splitlines()}


def test_a_host_without_trouble_gives_exit_status_0() -> None:
    """WARN and SKIPPED are no trouble."""
    result = run(checks=[warn("pool", "solo", "use prefork"), ok("broker", "answers")])
    assert (result.exit_code, result.stderr) == (0, "")
    assert levels(result)["ledger keys"] == "SKIPPED"
    assert "WARN\tpool\tsolo\tuse prefork\n" in result.stdout


def test_one_bad_line_gives_exit_status_1() -> None:
    """Whoever said it; the other lines are all there."""
    result = run(checks=[bad("broker", "gone\x1b[2J", "start it")])
    assert result.exit_code == 1
    assert "BAD\tbroker\tgone\N{REPLACEMENT CHARACTER}[2J\tstart it\n" in result.stdout
    assert levels(result)["memory"] == "OK"


def test_json_has_one_object_a_check() -> None:
    """With the four parts of a check."""
    result = run("--json", checks=[bad("broker", "gone", "start it")])
    lines = list(map(json.loads, result.stdout.splitlines()))
    assert lines[-1] == {"name": "broker", "level": "BAD", "seen": "gone", "advice": "start it"}
    assert {line["level"] for line in lines} <= set(Level)


def test_a_setting_that_cannot_be_used_is_a_bad_line() -> None:
    """It is named, what hangs on it is skipped, and what does not is looked at all the same."""
    result = run(checks=[ok("broker", "answers")], conf={"audit_emit_timeout": "soon"})
    assert result.exit_code == 1
    found = levels(result)
    assert (found["settings"], found["memory"], found["broker"]) == ("BAD", "SKIPPED", "OK")
    assert "audit_emit_timeout" in result.stdout


def test_an_app_that_is_no_host_is_bad() -> None:
    """Its tasks leave no rows at all."""
    result = run(checks=None)
    assert result.exit_code == 1
    assert levels(result)["host"] == "BAD"
    assert "SkillHost.adopt(app)" in result.stdout
