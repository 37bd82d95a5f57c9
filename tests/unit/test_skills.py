"""What the sample skills return; they are read as documentation, so they must be right."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from celeryconfig import beat_schedule
from tasks import app
from tasks.skills import payroll_draft, probe_endpoints, queue_depth, triage_alert

DOCUMENT = json.loads((Path(__file__).parents[2] / "demo" / "alertmanager.json").read_text())


def test_triage_of_the_document_that_ships() -> None:
    """The worst firing alert decides; Alertmanager's own grouping key is kept."""
    firing = [alert for alert in DOCUMENT["alerts"] if alert["status"] == "firing"]
    triage = triage_alert.run(DOCUMENT)
    assert triage["firing"] == len(firing) > 0
    assert triage["severity"] == "critical"
    assert triage["route"] == "pager"
    assert triage["grouping_key"] == DOCUMENT["groupKey"]


@pytest.mark.parametrize(
    ("severities", "severity", "route"),
    [
        (["info", "warning"], "warning", "ticket"),
        (["none"], "none", "log"),
        (["odd"], "warning", "ticket"),
        (["error", "page"], "page", "pager"),
        ([], "resolved", "log"),
    ],
)
def test_triage_by_severity(severities: list[str], severity: str, route: str) -> None:
    """Unknown severities count as warnings; without a firing alert all is resolved."""
    alerts = [{"status": "firing", "labels": {"severity": word}} for word in severities]
    alerts.append({"status": "resolved", "labels": {"severity": "page"}})
    triage = triage_alert.run({"version": "4", "alerts": alerts, "groupLabels": {"b": 2, "a": 1}})
    assert (triage["severity"], triage["route"]) == (severity, route)
    assert triage["grouping_key"] == "{a=1,b=2}"


@pytest.mark.parametrize("document", [{}, {"version": "3", "alerts": []}, {"version": "4"}])
def test_what_is_no_notification_is_an_error(document: dict[str, Any]) -> None:
    """Another document is refused, not guessed at."""
    with pytest.raises(ValueError, match="Alertmanager"):
        triage_alert.run(document)


def test_payroll_is_exact_in_cents_and_kept_nowhere() -> None:
    """Half a cent rounds up; the result stays out of the result backend."""
    people = [
        {"employee_id": "a", "gross_cents": 500_000, "tax_basis_points": 3_000},
        {"employee_id": "b", "gross_cents": 1, "tax_basis_points": 5_000},
    ]
    draft = payroll_draft.run("2026-11", people)
    assert draft == {
        "period": "2026-11",
        "payments": {"a": 350_000, "b": 0},
        "total_cents": 350_000,
    }
    assert payroll_draft.body_excluded is True


@pytest.mark.parametrize(("gross", "rate"), [(-1, 0), (1, -1), (1, 10_001)])
def test_payroll_refuses_what_cannot_be(gross: int, rate: int) -> None:
    """A negative amount and a rate beyond all are errors that name no amount."""
    person = {"employee_id": "a", "gross_cents": gross, "tax_basis_points": rate}
    with pytest.raises(ValueError, match="negative or a tax rate"):
        payroll_draft.run("2026-11", [person])


def test_endpoints_are_told_apart() -> None:
    """Open and closed, in the order of the question; a bad spelling is an error."""

    async def probe() -> Any:
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            return port, await asyncio.to_thread(
                probe_endpoints.run, [f"127.0.0.1:{port}", "127.0.0.1:1"]
            )

    port, found = asyncio.run(probe())
    assert found == {f"127.0.0.1:{port}": "open", "127.0.0.1:1": "closed"}
    with pytest.raises(ValueError, match="host:port"):
        probe_endpoints.run(["nowhere"])


def test_the_schedule_that_ships_names_a_caller_and_a_skill() -> None:
    """Its entry can be published by beat: a skill that is there, persona, tenant, arguments."""
    (entry,) = beat_schedule.values()
    assert app.tasks[entry["task"]] is app.tasks[queue_depth.name]
    assert {"audit_persona", "audit_tenant_id"} <= entry["options"]["headers"].keys()
    queue_depth.args_hash((), entry["kwargs"])
