"""tasks/refused.py: a message that the gate refused comes back later, if its skill says so."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery.app.trace import build_tracer
from celery.exceptions import Retry

from audit.context import InvocationContext
from audit.errors import AuditEmitFailed
from audit.row import COMPLETED, STARTED
from tasks import SkillHost, runtime
from tasks.refused import FIRST_SECONDS, LONGEST_SECONDS, REFUSALS_HEADER, publish_again
from tests.fakes import DOUBT, DOWN, FakeMemory
from tests.support import TENANT

ERROR = AuditEmitFailed("start", "the memory is down")


class Skill:
    """Records what is published again."""

    def __init__(self, *, retry_when_refused: bool = True, max_refusals: int = 12) -> None:
        self.retry_when_refused = retry_when_refused
        self.max_refusals = max_refusals
        self.published: list[dict[str, Any]] = []

    def signature_from_request(self, request: Any, args: Any, kwargs: Any, **options: Any) -> Any:
        return SimpleNamespace(apply_async=lambda: self.published.append(options))


def refuse(skill: Skill, refusals: Any = None, **request: Any) -> float | None:
    """One refusal; in how many seconds the message comes back, or nothing."""
    fields = {"is_eager": False, "retries": 3, "headers": {"x": "y"}, **request}
    if refusals is not None:
        fields[REFUSALS_HEADER] = refusals
    try:
        publish_again(skill, SimpleNamespace(**fields), (1,), {"a": 2}, ERROR)
    except Retry as retry:
        return float(retry.when)
    return None


def test_a_skill_that_does_not_ask_for_it_is_not_published_again() -> None:
    """Its caller got the error and decides."""
    skill = Skill(retry_when_refused=False)
    assert refuse(skill) is None
    assert skill.published == []


def test_an_eager_call_is_not_published_again() -> None:
    """Its caller stands there and gets the error."""
    assert refuse(Skill(), is_eager=True) is None


def test_the_task_is_told_what_happened_and_when_it_goes_on() -> None:
    """Celery's Retry, with the error that the caller would have had."""
    skill = Skill()
    with pytest.raises(Retry) as caught:
        publish_again(
            skill, SimpleNamespace(is_eager=False, retries=0, headers=None), (), {}, ERROR
        )
    assert caught.value.exc is ERROR
    assert [options["countdown"] for options in skill.published] == [caught.value.when]


def test_the_message_counts_its_refusals_and_keeps_its_retries() -> None:
    """A refusal is no retry of the skill's own: nothing of it has run."""
    skill = Skill()
    refuse(skill)
    refuse(skill, 1)
    assert [options["headers"] for options in skill.published] == [
        {"x": "y", REFUSALS_HEADER: 1},
        {"x": "y", REFUSALS_HEADER: 2},
    ]
    assert {options["retries"] for options in skill.published} == {3}


def test_a_message_is_refused_for_good_after_so_many_times() -> None:
    """As often as the skill says, and not once more."""
    skill = Skill(max_refusals=2)
    assert refuse(skill, 1) is not None
    skill.published.clear()
    assert refuse(skill, 2) is None
    assert refuse(skill, 10**9) is None


@pytest.mark.parametrize("forged", [-1, 0, "7", True, 2.5, None, [1]])
def test_a_count_that_is_none_counts_as_none(forged: Any) -> None:
    """A foreign publisher may have put anything there."""
    skill = Skill()
    refuse(skill, forged)
    assert skill.published[0]["headers"][REFUSALS_HEADER] == 1


def test_the_delay_doubles_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first seconds on; however many times, it stays a number."""
    monkeypatch.setattr(random, "uniform", lambda low, high: 1.0)
    skill = Skill(max_refusals=10_000)
    delays = [refuse(skill, times) for times in (0, 1, 2, 3, 6, 7, 100, 5000)]
    assert delays[:4] == [FIRST_SECONDS * factor for factor in (1, 2, 4, 8)]
    assert delays[4:] == [LONGEST_SECONDS] * 4


def test_the_delay_is_spread() -> None:
    """What was refused together does not come back together: a quarter to either side."""
    skill = Skill()
    delays = [refuse(skill) or 0.0 for _ in range(200)]
    assert 0.75 * FIRST_SECONDS <= min(delays) < 0.9 * FIRST_SECONDS
    assert 1.1 * FIRST_SECONDS < max(delays) <= 1.25 * FIRST_SECONDS


# --- in a host ------------------------------------------------------------------------------------


@pytest.fixture
def memory() -> FakeMemory:
    return FakeMemory()


@pytest.fixture
def app(memory: FakeMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SkillHost]:
    monkeypatch.setattr(runtime, "open_memory", lambda url, timeout: memory)
    with SkillHost("refused", broker="memory://", backend="cache+memory://") as app:
        app.conf.update(
            audit_instrument=False,
            audit_spool_dir=str(tmp_path),
            task_default_queue=f"refused-{uuid4()}",
        )

        @app.skill("test.tick", version="1", retry_when_refused=True)
        def tick(mark: str) -> str:
            return mark

        yield app


def deliver(app: SkillHost, task_id: str, headers: dict[str, Any]) -> None:
    """As a pool child does with a message."""
    request = {"id": task_id, "task": "test.tick", "delivery_info": {}, **headers}
    skill = app.tasks["test.tick"]
    build_tracer(skill.name, skill, app=app)(task_id, ["mark"], {}, request)


def sent(app: SkillHost) -> list[Any]:
    taken = []
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        channel.queue_declare(app.conf.task_default_queue)
        while (message := channel.basic_get(app.conf.task_default_queue)) is not None:
            taken.append(message)
    return taken


@pytest.mark.parametrize("error", [DOWN, DOUBT], ids=["down", "doubt"])
def test_a_refused_message_is_in_the_broker_again(
    app: SkillHost, memory: FakeMemory, error: Exception
) -> None:
    """The same task id, caller and arguments, later, with its count; and delivered again with the
    memory back, it runs."""
    memory.plan.append((error, False))
    task_id = str(uuid4())
    deliver(app, task_id, InvocationContext("beat@1", TENANT).headers())
    assert app.backend.get_state(task_id) == "RETRY"
    (message,) = sent(app)
    assert message.headers["id"] == task_id
    assert message.headers["retries"] == 0
    assert datetime.fromisoformat(message.headers["eta"]) > datetime.now(UTC)
    again = InvocationContext.from_headers(message.headers)
    assert (again.caller_persona, again.tenant_id) == ("beat@1", TENANT)
    assert message.headers[REFUSALS_HEADER] == 1
    runtime.runtime_of(app).recorder._breaker.succeeded()
    deliver(app, task_id, dict(message.headers))
    assert app.backend.get_state(task_id) == "SUCCESS"
    assert [kind for kind in memory.kinds() if kind in (STARTED, COMPLETED)] == [STARTED, COMPLETED]


def test_a_message_that_the_gate_lets_through_is_not_published_again(
    app: SkillHost, memory: FakeMemory
) -> None:
    """Nothing is left in the broker."""
    deliver(app, str(uuid4()), InvocationContext("beat@1", TENANT).headers())
    assert memory.kinds() == [STARTED, COMPLETED]
    assert sent(app) == []


def test_a_message_without_a_caller_is_refused_for_good(app: SkillHost, memory: FakeMemory) -> None:
    """It would be refused again: a row says so, and nothing comes back."""
    task_id = str(uuid4())
    deliver(app, task_id, {})
    assert app.backend.get_state(task_id) == "FAILURE"
    assert memory.kinds() == ["skill.invoked_refused"]
    assert sent(app) == []
