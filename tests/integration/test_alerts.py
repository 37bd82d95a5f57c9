"""deploy/prometheus, deploy/grafana, docs/alarms.md: each alarm fires, and only when it should."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from audit import metrics
from audit.keeper_http import Exporting
from tests.support import TENANT, require

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/alerts.yml"
FAILED: Final = 'skill_audit_emit_failures_total{stage="start", instance="%s"}'
REFUSED: Final = 'skill_invoked_refused_total{skill_id="s", reason="%s"}'
BUCKET: Final = 'skill_audit_emit_duration_ms_bucket{stage="start", le="%s"}'
TENANTS: Final = f'tenant_id="{TENANT}"'

SLOW: Final = {
    BUCKET % "50": "0+90x200",
    BUCKET % "100": "0+100x200",
    BUCKET % "+Inf": "0+100x200",
}

#: Children that export once, at their end: each series is there with all it will ever say.
SHORT_LIVED: Final = {
    f'{(BUCKET % bound)[:-1]}, instance="child-{number}"}}': f"{'_ ' * 6 * number}{value}x60"
    for number in range(20)
    for bound, value in (("50", 90), ("100", 100), ("+Inf", 100))
}

#: Alarm, when it is looked at, the series (a value every 10 s), whether it fires.
CASES: Final[list[tuple[str, str, dict[str, str], bool]]] = [
    ("SkillAuditEmitFailed", "3m", {FAILED % "w": "0x9 1x20"}, True),
    ("SkillAuditEmitFailed", "3m", {FAILED % "w": "4x40"}, True),  # nobody knew it before
    ("SkillAuditEmitFailed", "3m", {FAILED % "gone": "_x9 1x3 stale"}, False),
    ("SkillAuditEmitFailed", "2m", {FAILED % "short-lived": "_x9 1x5 stale"}, True),
    ("SkillAuditEmitFailed", "20m", {FAILED % "w": "4x200"}, False),
    ("SkillAuditEmitFailed", "20m", {FAILED % "w": "0x200"}, False),
    ("SkillLedgerFault", "1m", {"skill_ledger_faults": "0 1x10"}, True),
    ("SkillLedgerFault", "1m", {"skill_ledger_faults": "0x10"}, False),
    ("SkillLedgerFinding", "1m", {"skill_ledger_findings": "2x10"}, True),
    ("SkillLedgerFinding", "1m", {"skill_ledger_findings": "0x10"}, False),
    ("SkillOrphaned", "1m", {f"skill_orphaned_seconds{{{TENANTS}}}": "0+10x10"}, True),
    ("SkillOrphaned", "1m", {f"skill_orphaned_seconds{{{TENANTS}}}": "29x10"}, False),
    (
        "SkillStartedNotCompleted",
        "12m",
        {f"skill_started_minus_completed{{{TENANTS}}}": "3x100"},
        True,
    ),
    (
        "SkillStartedNotCompleted",
        "12m",
        # One long skill: it leaves the window after five minutes, and is no pile.
        {f"skill_started_minus_completed{{{TENANTS}}}": "0x30 1x30 0x40"},
        False,
    ),
    ("SkillSpooled", "3m", {'skill_spooled{instance="w"}': "1x30"}, True),
    ("SkillSpooled", "3m", {'skill_spooled{instance="w"}': "0 7x6 0x30"}, False),
    ("SkillSpoolNearlyFull", "1m", {'skill_spooled{instance="w"}': "501x10"}, True),
    ("SkillSpoolNearlyFull", "1m", {'skill_spooled_bytes{instance="w"}': "5300000x10"}, True),
    (
        "SkillSpoolNearlyFull",
        "1m",
        {'skill_spooled{instance="w"}': "500x10", 'skill_spooled_bytes{instance="w"}': "9x10"},
        False,
    ),
    ("SkillAbandoned", "3m", {"skill_abandoned_total": "0x9 1x20"}, True),
    ("SkillAbandoned", "20m", {"skill_abandoned_total": "1x200"}, False),
    ("SkillEmitSlow", "20m", SLOW, True),
    ("SkillEmitSlow", "20m", SHORT_LIVED, True),
    (
        "SkillEmitSlow",
        "20m",
        {BUCKET % "50": "90x200", BUCKET % "+Inf": "100x200"},
        False,
    ),  # of old
    ("SkillEmitSlow", "20m", {BUCKET % "50": "0+96x200", BUCKET % "+Inf": "0+100x200"}, False),
    ("SkillKeeperLate", "2m", {"skill_keeper_late_seconds": "0+10x20"}, True),
    ("SkillKeeperLate", "2m", {"skill_keeper_leads": "0x20"}, True),  # nobody leads
    (
        "SkillKeeperLate",
        "2m",
        {
            'skill_keeper_late_seconds{instance="hangs"}': "0+10x20",
            'skill_keeper_late_seconds{instance="leads"}': "1x20",
        },
        False,
    ),
    ("SkillContextRefused", "3m", {REFUSED % "missing_context": "0x9 1x20"}, True),
    ("SkillContextRefused", "3m", {REFUSED % "bad_signature": "_x9 1x20"}, True),
    ("SkillContextRefused", "3m", {REFUSED % "bad_arguments": "0x9 1x20"}, False),
    ("SkillContextRefused", "30m", {REFUSED % "missing_context": "2x300"}, False),
]


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


FIRES: Final = 'count(ALERTS{alertname="%s", alertstate="firing"}) > bool 0'


def fires(alert: str, when: str, series: dict[str, str], directory: Path) -> bool:
    """Whether promtool says that an alarm of that name fires, whatever its labels."""
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "10s",
        "tests": [
            {
                "interval": "10s",
                "input_series": [{"series": n, "values": v} for n, v in series.items()],
                "promql_expr_test": [
                    {
                        "expr": FIRES % alert,
                        "eval_time": when,
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    }
                ],
            }
        ],
    }
    path = directory / "test.yml"
    path.write_text(yaml.safe_dump(test))
    done = subprocess.run(
        [require("promtool"), "test", "rules", str(path)], capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 or "got: nil" in said or "got:" in said, said
    return done.returncode == 0


@pytest.mark.parametrize(("alert", "when", "series", "expected"), CASES)
def test_an_alarm_fires_when_it_should(
    alert: str, when: str, series: dict[str, str], expected: bool, tmp_path: Path
) -> None:
    """And stays quiet when it should."""
    assert fires(alert, when, series, tmp_path) is expected


def test_each_alarm_has_a_case_that_fires_and_one_that_does_not() -> None:
    """No alarm without a test."""
    names = {rule["alert"] for rule in rules()}
    assert {name for name, *_, fired in CASES if fired} == names
    assert {name for name, *_, fired in CASES if not fired} == names


def test_the_files_are_what_prometheus_reads() -> None:
    """Rules and configuration, judged by promtool."""
    for kind, name in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        command = [require("promtool"), "check", kind, str(RULES.parent / name)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


# --- names ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def names() -> Iterator[set[str]]:
    """Every name that comes out of a keeper's page when all instruments have something to say."""
    with Exporting("k", scraped=True) as exporting:
        say_all()
        text = exporting.text().decode()
        yield {s.name for family in text_string_to_metric_families(text) for s in family.samples}


def say_all() -> None:
    metrics.skill_invoked("s", "success", 3)
    metrics.skill_late("s")
    metrics.skill_refused("s", "poison")
    metrics.emit_took("start", 1.5)
    metrics.leads(True)
    seen = metrics.Orphans(count=1, seconds=3.5)
    metrics.swept(running=1, oldest_seconds=4.0, orphans={TENANT: seen})
    metrics.arrived(TENANT, {"skill.invoked_started": 2})
    metrics.balance({TENANT: 2}, behind=False)
    metrics.spooled(0, 0)
    metrics.witnessed(failing=0)
    metrics.sealed(rows=1, waiting=0, faults=0)
    metrics.verified(findings=0)


def asked_for(expressions: list[str]) -> set[str]:
    return set(re.findall(r"\bskill_\w+", " ".join(expressions))) - LABELS


LABELS: Final = {"skill_id"}


def dashboard() -> list[str]:
    """Every expression of the dashboard."""
    document = json.loads((ROOT / "deploy/grafana/dashboard.json").read_text())
    found = [target["expr"] for panel in document["panels"] for target in panel.get("targets", ())]
    return found + [v["query"] for v in document["templating"]["list"] if v["type"] == "query"]


def test_alarms_ask_for_names_that_exist(names: set[str]) -> None:
    """As Prometheus gets them: a counter ends in one _total, a histogram has no unit twice."""
    assert asked_for([rule["expr"] for rule in rules()]) <= names


def test_the_dashboard_asks_for_names_that_exist(names: set[str]) -> None:
    """It has a panel for each alarm's names, too."""
    asked = asked_for(dashboard())
    assert asked <= names
    assert asked >= asked_for([rule["expr"] for rule in rules()])


def test_every_instrument_has_something_to_say(names: set[str]) -> None:
    """Else the comparison above would pass by an instrument that is never heard."""
    declared = {*metrics._COUNTERS, *metrics._GAUGES, metrics._LATE}
    assert declared <= names
    assert {f"{name}_count" for name in metrics._HISTOGRAMS} <= names


# --- the runbook ----------------------------------------------------------------------------------


def test_each_alarm_has_its_paragraph() -> None:
    """Under the anchor that its annotation names: what it means, what to look at, what to do."""
    text = (ROOT / "docs/alarms.md").read_text()
    parts = dict(re.findall(r"^### (\w+)\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL))
    for rule in rules():
        assert rule["annotations"]["runbook"] == f"docs/alarms.md#{rule['alert'].lower()}"
        paragraph = parts.pop(rule["alert"])
        for word in ("**Means:**", "**Look at:**", "**Do:**"):
            assert word in paragraph, (rule["alert"], word)
        assert rule["labels"]["severity"] in {"sev-1", "sev-2", "sev-3"}
    assert parts == {}
