"""tasks/refusal.py: invocations that may not start, and the row that says why."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from audit.context import InvocationContext
from audit.errors import (
    AuditEmitFailed,
    CanonicalizationError,
    ExpiredContextError,
    InvalidInvocationContext,
    InvocationError,
    MissingInvocationContext,
    PoisonedMessageError,
    SkillArgumentsError,
    UnprovenContextError,
)
from audit.row import NIL_TENANT, REFUSED, Refusal
from tasks import SkillHost, runtime
from tasks.caller import REQUEST_ID_HEADER
from tasks.refusal import REFUSALS, refuse, refuse_poison
from tests.fakes import DOWN, FakeMemory
from tests.support import TENANT

CALLER = InvocationContext("cuo-cpo@0.4.1", TENANT, on_behalf_of="jane@example.org")
REQUEST_ID = "01JDX3Q6Z0M3J7T4R8W2V5K9AB"


@pytest.fixture
def memory() -> FakeMemory:
    return FakeMemory()


@pytest.fixture
def skill(memory: FakeMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.setattr(runtime, "open_memory", lambda url, timeout: memory)
    with SkillHost("refusal", broker="memory://", backend="cache+memory://") as app:
        app.conf.update(audit_instrument=False, audit_spool_dir=str(tmp_path), audit_max_deaths=2)

        @app.skill("test.echo", version="1")
        def echo(x: Any = None) -> Any:
            return x

        yield echo


def request(**fields: Any) -> Any:
    return SimpleNamespace(id="task", retries=1, **{REQUEST_ID_HEADER: REQUEST_ID, **fields})


# --- the row --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (MissingInvocationContext(), "missing_context"),
        (InvalidInvocationContext("no"), "invalid_context"),
        (ExpiredContextError("no"), "expired_context"),
        (UnprovenContextError("no"), "bad_signature"),
        (SkillArgumentsError("no"), "bad_arguments"),
        (CanonicalizationError("$", "no"), "uncanonical_arguments"),
        (PoisonedMessageError("no"), "poison"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_error_has_a_word(
    skill: Any, memory: FakeMemory, error: Exception, refusal: str
) -> None:
    """One row of a kind of its own, of the invocation as it was received."""
    refuse(skill, vars(request()), lambda: CALLER, error)
    (row,) = memory.stored
    assert (row.kind, row.meta["reason"]) == (REFUSED, refusal)
    assert (row.request_id, row.tenant_id) == (REQUEST_ID, TENANT)
    assert (row.meta["task_id"], row.meta["attempt"]) == ("task", 1)
    assert row.meta["on_behalf_of"] == "jane@example.org"


def test_the_table_is_whole_and_no_line_is_dead() -> None:
    """Every word has its error, and none stands behind one that takes its errors already."""
    kinds = list(REFUSALS)
    assert set(REFUSALS.values()) == set(Refusal)
    for number, kind in enumerate(kinds):
        assert not any(issubclass(kind, before) for before in kinds[:number])


@pytest.mark.parametrize("error", [MissingInvocationContext(), UnprovenContextError("no")])
def test_who_proves_nothing_has_no_tenant(
    skill: Any, memory: FakeMemory, error: InvocationError
) -> None:
    """The row stands under the nil tenant, and names no caller."""

    def find() -> InvocationContext:
        raise error

    refuse(skill, vars(request()), find, error)
    (row,) = memory.stored
    assert row.tenant_id == NIL_TENANT
    assert row.payload["caller_persona"] == ""


# --- poison ---------------------------------------------------------------------------------------


def message(redelivered: bool = True) -> dict[str, Any]:
    return {"id": "task", "retries": 1, "delivery_info": {"redelivered": redelivered}}


class Deaths:
    """A memory that tells how often a message was fatal, and for whom it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, memory: FakeMemory, deaths: Any) -> None:
        self.asked: list[Any] = []
        self.deaths = deaths
        monkeypatch.setattr(memory, "deaths", self)

    def __call__(self, tenant_id: str, name: str) -> int:
        self.asked.append((tenant_id, name))
        if isinstance(self.deaths, Exception):
            raise self.deaths
        return int(self.deaths)


@pytest.mark.parametrize(("deaths", "poison"), [(0, False), (1, False), (2, True), (3, True)])
def test_so_many_workers_may_die(
    skill: Any, memory: FakeMemory, monkeypatch: pytest.MonkeyPatch, deaths: int, poison: bool
) -> None:
    """And not one more, over one attempt of one message of one tenant."""
    counted = Deaths(monkeypatch, memory, deaths)
    if poison:
        with pytest.raises(PoisonedMessageError, match="at most 2"):
            refuse_poison(skill, message(), CALLER)
    else:
        refuse_poison(skill, message(), CALLER)
    assert counted.asked == [(TENANT, "task/1")]


def test_a_message_that_was_not_redelivered_costs_no_look(
    skill: Any, memory: FakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can have died over it."""
    counted = Deaths(monkeypatch, memory, 99)
    refuse_poison(skill, message(redelivered=False), CALLER)
    assert counted.asked == []


def test_a_memory_that_does_not_tell_stops_it(
    skill: Any,
    memory: FakeMemory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As if its started row were not durable: 503, and sev-1."""
    Deaths(monkeypatch, memory, DOWN)
    with caplog.at_level(logging.CRITICAL, "audit"), pytest.raises(AuditEmitFailed) as caught:
        refuse_poison(skill, message(), CALLER)
    assert caught.value.http_status == 503
    (alarm,) = caplog.records
    assert alarm.severity == "sev-1"  # type: ignore[attr-defined]
