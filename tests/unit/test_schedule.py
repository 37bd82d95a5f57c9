"""audit/schedule.py and `audit duplicates`: ticks in headers, and ticks that ran twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from audit.cli import audit
from audit.errors import InvalidInvocationContext
from audit.row import Identity, Reason, Refusal
from audit.schedule import DUE_HEADER, ONCE_HEADER, SCHEDULE_HEADER, Tick, duplicates, tick_of
from audit.testing import InMemory
from tests.support import (
    TENANT,
    completed,
    make_ending,
    make_identity,
    refused,
    started,
    validate_row,
)

DUE = "2026-11-29T21:45:00.000000Z"
OTHER_TENANT = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"


@pytest.mark.parametrize("once", [False, True])
def test_a_tick_goes_through_headers(once: bool) -> None:
    """And into a row that the schema accepts."""
    tick = Tick(schedule="nightly sweep", due=DUE, once=once)
    assert Tick.from_headers(tick.headers()) == tick == tick_of(tick.headers())
    validate_row(started(make_identity(schedule=tick.schedule, due=tick.due)))


def test_headers_that_name_no_tick() -> None:
    """Most messages come of no schedule."""
    assert Tick.from_headers({"audit_persona": "cuo@1"}) is None


@pytest.mark.parametrize(
    "change",
    [
        {SCHEDULE_HEADER: None},
        {SCHEDULE_HEADER: ""},
        {SCHEDULE_HEADER: 7},
        {SCHEDULE_HEADER: "skill('geheim')"},
        {SCHEDULE_HEADER: "geheim\n"},
        {SCHEDULE_HEADER: "x" * 201},
        {DUE_HEADER: None},
        {DUE_HEADER: "2026-11-29T21:45:00Z"},
        {DUE_HEADER: "2026-02-30T21:45:00.000000Z"},
        {DUE_HEADER: 1.5},
        {ONCE_HEADER: "geheim"},
        {ONCE_HEADER: 1},
    ],
)
def test_a_malformed_tick_is_an_error_that_repeats_nothing(change: dict[str, Any]) -> None:
    """It would otherwise pass for a tick that anybody may run, or end up in a row."""
    headers = {**Tick(schedule="nightly", due=DUE, once=True).headers(), **change}
    with pytest.raises(InvalidInvocationContext) as caught:
        Tick.from_headers(headers)
    assert "geheim" not in str(caught.value)
    assert tick_of(headers) is None


def test_every_tick_has_a_token_of_its_own() -> None:
    """Of skill, name and due time; whether it may run once only is no part of its name."""
    made = [Tick(schedule=s, due=d) for s in ("a", "b") for d in (DUE, DUE.replace("45", "46"))]
    assert len({tick.token(skill) for tick in made for skill in ("x", "y")}) == 8
    assert Tick(schedule="a", due=DUE, once=True).token("x") == made[0].token("x")


# --- ticks that ran twice -------------------------------------------------------------------------


def run(memory: InMemory, task_id: str, reason: Reason = Reason.RETURNED, **facts: Any) -> Identity:
    made = {"task_id": task_id, "schedule": "nightly", "due": DUE, **facts}
    identity = make_identity(**made)
    memory.emit(started(identity))
    memory.emit(completed(identity, make_ending(reason)))
    return identity


def found(memory: InMemory) -> list[str]:
    return [row.request_id for row in duplicates(memory.rows)]


def test_a_tick_under_two_task_ids_is_a_duplicate() -> None:
    """All its runs are told, in stored order."""
    memory = InMemory()
    ran = [run(memory, name).request_id for name in ("a", "b", "a")]
    run(memory, "a", due=DUE.replace("45", "46"))
    assert found(memory) == ran


@pytest.mark.parametrize(
    "second",
    [
        {"task_id": "a"},
        {"task_id": "a", "attempt": 1},
        {"task_id": "a", "redelivered": True},
        {"task_id": "b", "tenant_id": OTHER_TENANT},
        {"task_id": "b", "schedule": "daily"},
        {"task_id": "b", "skill_id": "others.skill"},
        {"task_id": "b", "due": DUE.replace("45", "46")},
        {"task_id": "b", "schedule": None, "due": None},
        {"task_id": "b", "reason": Reason.NOT_DISPATCHED},
    ],
)
def test_what_is_no_duplicate(second: dict[str, Any]) -> None:
    """The same message again, another tick, no tick; what was never dispatched did not run."""
    memory = InMemory()
    run(memory, "a")
    run(memory, **second)
    assert found(memory) == []


def test_what_was_refused_did_not_run() -> None:
    """As the second message of a tick that runs once."""
    memory = InMemory()
    run(memory, "a")
    late = make_identity(task_id="b", schedule="nightly", due=DUE)
    memory.emit(refused(late, Refusal.TICK_TAKEN))
    assert found(memory) == []


def ask(monkeypatch: pytest.MonkeyPatch, memory: InMemory, *more: str) -> Result:
    monkeypatch.setattr("audit.terminal.open_memory", lambda url, *, timeout: memory)
    for variable in ("AUDIT_MEMORY_URL", "AUDIT_LEDGER_DIR"):
        monkeypatch.delenv(variable, raising=False)
    given = SimpleNamespace(app=SimpleNamespace(conf={}), no_color=False)
    return CliRunner().invoke(audit, ["duplicates", *more], obj=given)


def test_the_command_lists_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 1 where there are any of the tenant; --json gives the stored rows."""
    memory = InMemory()
    assert (ask(monkeypatch, memory).exit_code, ask(monkeypatch, memory).output) == (0, "")
    ids = [run(memory, name).request_id for name in ("a", "b")]
    answer = ask(monkeypatch, memory)
    assert answer.exit_code == 1
    assert [line.split("\t")[4] for line in answer.output.splitlines()[1:]] == ids
    stored = [row.to_bytes().decode() for row in duplicates(memory.rows)]
    assert ask(monkeypatch, memory, "--json").output.splitlines() == stored
    assert ask(monkeypatch, memory, "--tenant", TENANT).exit_code == 1
    for narrower in (["--tenant", OTHER_TENANT], ["--since", "2100-01-01T00:00:00Z"]):
        assert ask(monkeypatch, memory, *narrower).exit_code == 0
