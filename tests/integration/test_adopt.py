"""An existing Celery application adopts the host: skills are audited, the rest stays as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, chain, chord, group
from celery.app.amqp import AMQP

from audit import MissingInvocationContext
from audit.canonical import digest
from audit.errors import SkillDefinitionError
from audit.row import COMPLETED, STARTED
from tasks import SkillHost, SkillTask
from tasks.amqp import SkillAMQP
from tasks.runtime import runtime_of
from tests.integration.adopted_app import CONF, declare_skills, legacy
from tests.integration.stack import PERSONA, Stack, caller, running_stack


class OwnSkillAMQP(SkillAMQP):
    """An application's own AMQP class, derived as the host asks for."""


class OwnAMQP(AMQP):
    """An application's own AMQP class, not derived from the host's."""


class Adopted:
    """An application on both sides: this process publishes, a worker runs it."""

    def __init__(self, stack: Stack, app: Celery) -> None:
        self.stack = stack
        self.app = app
        self.add, self.fail = app.tasks["legacy.add"], app.tasks["legacy.fail"]
        self.request, self.publishes = app.tasks["legacy.request"], app.tasks["legacy.publishes"]
        self.double, self.total = app.tasks["adopted.double"], app.tasks["adopted.total"]


@pytest.fixture(scope="module")
def environ(tmp_path_factory: Any) -> Iterator[Stack]:
    """Servers and a worker of the application; the environment of this process names them."""
    with (
        running_stack(tmp_path_factory.mktemp("adopt")) as stack,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in stack.environ.items():
            patch.setenv(name, value)
        stack.worker("prefork", 2, app="tests.integration.adopted_app")
        yield stack


@pytest.fixture(scope="module")
def adopted(environ: Stack) -> Iterator[Adopted]:
    """The application adopts the host after its amqp was used: a plain task was published."""
    app, plain = legacy()
    with app:
        assert plain.add.delay(1, 2).get(timeout=20) == 3
        before = app.amqp
        SkillHost.adopt(app)
        declare_skills(app)
        assert app.amqp is not before
        yield Adopted(environ, app)


@pytest.fixture
def tenant() -> str:
    return str(uuid4())


def kinds(adopted: Adopted, tenant: str) -> list[str]:
    return [row.kind for row in adopted.stack.rows(tenant_id=tenant)]


# --- its skills -----------------------------------------------------------------------------------


def test_a_skill_of_an_adopted_app_is_audited(adopted: Adopted, tenant: str) -> None:
    """Two rows, like any skill's."""
    with caller(tenant):
        assert adopted.double.delay(21).get(timeout=20) == 42
    started, completed = adopted.stack.rows(tenant_id=tenant)
    assert (started.kind, completed.kind) == (STARTED, COMPLETED)
    assert (started.payload["skill_id"], started.payload["version"]) == ("adopted.double", "2.0.0")
    assert started.payload["args_hash"] == digest({"x": 21})
    assert completed.payload["result_hash"] == digest(42)


def test_a_skill_of_an_adopted_app_needs_a_caller(adopted: Adopted) -> None:
    """As in any host."""
    with pytest.raises(MissingInvocationContext):
        adopted.double.delay(21)


@pytest.mark.parametrize("linked", ["link", "chain"])
def test_skills_and_plain_tasks_mix(adopted: Adopted, tenant: str, linked: str) -> None:
    """A plain task between two skills carries the caller on, and leaves no row itself."""
    add, double = adopted.add, adopted.double
    with caller(tenant):
        if linked == "chain":
            result = chain(double.s(1), add.s(1), double.s()).apply_async()
            assert result.get(timeout=20) == 6
        else:
            last = double.s()
            result = last.freeze()
            double.apply_async((1,), link=add.s(1).on_error(adopted.fail.s()) | last)
            assert result.get(timeout=20) == 6
    rows = adopted.stack.rows(tenant_id=tenant)
    assert [row.kind for row in rows] == [STARTED, COMPLETED] * 2
    assert {row.payload["skill_id"] for row in rows} == {"adopted.double"}
    assert rows[2].meta["parent_request_id"] == rows[0].request_id
    assert rows[2].payload["trace_id"] == rows[0].payload["trace_id"]


def test_a_plain_task_publishes_a_skill_for_its_own_caller(adopted: Adopted, tenant: str) -> None:
    """It was published on somebody's behalf, and so is what it publishes."""
    with caller(tenant):
        task_id = adopted.publishes.delay(4).get(timeout=20)
    assert adopted.app.AsyncResult(task_id).get(timeout=20) == 8
    started, _ = adopted.stack.rows(tenant_id=tenant)
    assert started.payload["caller_persona"] == PERSONA


def test_a_plain_task_without_a_caller_publishes_no_skill(adopted: Adopted) -> None:
    """Nobody said for whom, so the plain task gets the error."""
    before = len(adopted.stack.rows())
    with pytest.raises(MissingInvocationContext):
        adopted.publishes.delay(4).get(timeout=20)
    assert len(adopted.stack.rows()) == before


# --- the rest -------------------------------------------------------------------------------------


def test_plain_tasks_are_not_audited(adopted: Adopted, tenant: str) -> None:
    """Results, errors and retries as before, and no row, whoever calls."""
    before = len(adopted.stack.rows())
    assert adopted.add.delay(1, 2).get(timeout=20) == 3
    with caller(tenant):
        assert adopted.add.delay(3, 4).get(timeout=20) == 7
        with pytest.raises(KeyError):
            adopted.fail.delay("x").get(timeout=20)
    assert len(adopted.stack.rows()) == before


def test_a_plain_tasks_request_is_what_it_was(adopted: Adopted) -> None:
    """Its class, its argument reprs and, without a caller, its headers are Celery's own."""
    told = adopted.request.delay(1, y="text").get(timeout=20)
    assert told["argsrepr"] == "(1,)"
    assert told["kwargsrepr"] == "{'y': 'text'}"
    assert told["class"] == "Task"
    assert not {name for name in told["headers"] or {} if "audit" in name}


def test_a_plain_tasks_options_are_untouched(adopted: Adopted) -> None:
    """What the application declared, and what it configured."""
    assert not isinstance(adopted.add, SkillTask)
    assert (adopted.add.max_retries, adopted.add.default_retry_delay) == (7, 11)
    assert adopted.add.acks_late is True
    for name, value in CONF.items():
        assert adopted.app.conf[name] == value
    assert not {name for name in adopted.app.conf.changes if name.startswith("audit_")}


def test_celerys_own_tasks_are_no_skills(adopted: Adopted) -> None:
    """celery.map, chunks, chord_unlock and the others stay what they are."""
    own = [task for name, task in adopted.app.tasks.items() if name.startswith("celery.")]
    assert {"celery.map", "celery.starmap", "celery.chunks", "celery.chord_unlock"} <= {
        task.name for task in own
    }
    assert not [task for task in own if isinstance(task, SkillTask)]


def test_a_skill_that_celerys_own_tasks_call_is_audited(adopted: Adopted, tenant: str) -> None:
    """map, starmap and chunks call it directly in a worker: a pair for each call."""
    double = adopted.double
    with caller(tenant):
        assert double.map([1, 2, 3]).apply_async().get(timeout=20) == [2, 4, 6]
        assert double.starmap([(4,), (5,)]).apply_async().get(timeout=20) == [8, 10]
        chunks = double.chunks([(n,) for n in range(4)], 2)
        assert chunks.apply_async().get(timeout=20) == [[0, 2], [4, 6]]
    rows = adopted.stack.rows(tenant_id=tenant)
    assert [row.kind for row in rows].count(COMPLETED) == 3 + 2 + 4
    assert len(rows) == 2 * (3 + 2 + 4)
    assert {row.payload["skill_id"] for row in rows} == {"adopted.double"}


def test_a_chord_of_an_adopted_app(adopted: Adopted, tenant: str) -> None:
    """Head and body leave their pairs."""
    head = group(adopted.double.s(n) for n in range(3))
    with caller(tenant):
        assert chord(head, adopted.total.s()).apply_async().get(timeout=20) == 6
    assert sorted(kinds(adopted, tenant)) == sorted([STARTED, COMPLETED] * 4)


# --- an AMQP class of its own ---------------------------------------------------------------------


def test_an_amqp_class_derived_from_the_hosts_is_kept(environ: Stack, tenant: str) -> None:
    """It carries the caller, so there is nothing to replace."""

    class App(Celery):
        amqp_cls = f"{__name__}:OwnSkillAMQP"

    with App("own", set_as_current=False) as app:
        app.conf.update(
            broker_url=os.environ["CELERY_BROKER_URL"],
            result_backend=os.environ["CELERY_RESULT_BACKEND"],
            task_default_queue="legacy",
        )
        amqp = app.amqp
        assert SkillHost.adopt(app).amqp is amqp
        assert type(amqp).__name__ == "OwnSkillAMQP"
        double = declare_skills(app).double
        with caller(tenant):
            assert double.delay(2).get(timeout=20) == 4
    assert len(environ.rows(tenant_id=tenant)) == 2


@pytest.mark.parametrize("way", ["class attribute", "argument"])
def test_another_amqp_class_is_refused(way: str) -> None:
    """Replacing it would take something from the application: told what to derive it from."""
    name = f"{__name__}:OwnAMQP"
    if way == "argument":
        app = Celery("own", amqp=name, set_as_current=False)
    else:
        app = type("App", (Celery,), {"amqp_cls": name})("own", set_as_current=False)
    with pytest.raises(SkillDefinitionError, match=r"derive it from tasks\.amqp:SkillAMQP"):
        SkillHost.adopt(app)
    assert app.amqp_cls == name
    assert "skill_runtime" not in vars(app)


def test_no_two_apps_share_anything() -> None:
    """Each adopted app has a runtime of its own, and a skill is in one app alone."""
    first, second = legacy()[0], legacy()[0]
    SkillHost.adopt(first)
    SkillHost.adopt(second)
    declare_skills(first)
    assert runtime_of(first) is not runtime_of(second)
    assert "adopted.double" not in second.tasks
