"""Merged mode: which endings are left to the result backend, and where that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from celery.app.task import Context
from celery.app.trace import trace_ok_t
from celery.exceptions import Ignore, SoftTimeLimitExceeded

from audit.doctor.check import Level
from audit.errors import SettingsError, SkillDefinitionError
from audit.invocation import Invocation
from audit.recorder import Recorder
from audit.row import COMPLETED, Reason
from audit.testing.memory import InMemory
from tasks import SkillHost
from tasks.caller import CHILD_STATE, ChildState, runs
from tasks.discretion import discreet
from tasks.doctor import result_backend
from tasks.held import close_held
from tasks.merged import MergedBackend, _waiting, is_merged, require_fit
from tasks.reception import give_requests
from tests.support import make_ending, make_identity

MEMORY = "redis://127.0.0.1:1/2"


def host(backend: str = f"merged+{MEMORY}", memory: str = MEMORY, **conf: Any) -> SkillHost:
    app = SkillHost("merged", set_as_current=False)
    app.conf.update(result_backend=backend, audit_memory_url=memory, **conf)
    return app


def behind_other_sentinels() -> SkillHost:
    """Of a service with the name that most have."""
    return host(
        "merged+sentinel://10.9.9.9:26379/0",
        "redis+sentinel://10.0.0.1:26379/mymaster/0",
        result_backend_transport_options={"master_name": "mymaster"},
    )


def request(**fields: Any) -> Context:
    return Context({"id": "1", "ignore_result": False, "called_directly": False}, **fields)


def test_a_plain_message_is_merged() -> None:
    """Nothing is published before its result."""
    app = host()
    task = SimpleNamespace(backend=app.backend, ignore_result=False)
    assert isinstance(app.backend, MergedBackend)
    assert is_merged(task, request())


@pytest.mark.parametrize("name", ["callbacks", "errbacks", "chain", "chord", "ignore_result"])
def test_what_celery_publishes_first_is_not(name: str) -> None:
    """Celery publishes links before the result, and stores no result that is to be ignored."""
    app = host()
    task = SimpleNamespace(backend=app.backend, ignore_result=False)
    assert not is_merged(task, request(**{name: [{"task": "next"}]}))
    assert not is_merged(SimpleNamespace(backend=app.backend, ignore_result=True), request())


def test_another_backend_merges_nothing() -> None:
    """Celery's own backend is left as it is."""
    app = host(backend=MEMORY)
    task = SimpleNamespace(backend=app.backend, ignore_result=False)
    assert not is_merged(task, request())
    require_fit(app)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: host(backend="merged+redis://127.0.0.1:1/3"), "spelled alike"),
        (lambda: host(memory="sqlite:///audit.db"), "none that stores results"),
        (lambda: host(memory=f"{MEMORY}?replicas=1"), "wait for no replicas"),
        (lambda: behind_other_sentinels(), "spelled alike"),
        (lambda: host(result_serializer="pickle"), "must be JSON"),
        (lambda: host(result_compression="gzip"), "must be JSON"),
        (lambda: host(result_expires=-1), "must not expire"),
    ],
    ids=[
        *("other database", "other memory", "replicas", "other sentinels"),
        *("other serializer", "compressed", "expired"),
    ],
)
def test_a_backend_that_does_not_fit_says_why(make: Callable[[], SkillHost], says: str) -> None:
    """A worker refuses to start; where nobody asked, nothing is merged and nothing lost."""
    app = make()
    with pytest.raises(SettingsError, match=says):
        require_fit(app)
    assert not is_merged(SimpleNamespace(backend=app.backend, ignore_result=False), request())


@pytest.mark.parametrize("left", [SystemExit(3), None], ids=["an exit", "nothing"])
def test_the_end_of_the_tracer_puts_what_is_held_on_record(left: BaseException | None) -> None:
    """Whatever kept Celery from storing the result, and called no hook either; as it went on."""
    memory = InMemory()
    invocation = Invocation(make_identity(), Recorder(memory))
    invocation.start("0" * 64)
    invocation.hold(make_ending())
    state = ChildState(invocation, None)
    state.merged = True

    def tracer(*_: Any) -> Any:
        runs(state)
        if left is not None:
            raise left
        return trace_ok_t("well", None, 0.1, "well")

    task = SimpleNamespace(name="test.noop", body_excluded=False, app=host())
    with suppress(SystemExit):
        discreet(task, tracer)("1", (), {}, {})
    (completed,) = memory.rows(kind=COMPLETED)
    assert completed.payload["outcome"] == ("success" if left is None else "panic")


@pytest.mark.parametrize(
    ("held", "told", "reason"),
    [
        (Reason.RETURNED, SoftTimeLimitExceeded(), Reason.SOFT_TIME_LIMIT),
        (Reason.RETURNED, ValueError(), Reason.RAISED),
        (Reason.RAISED, SoftTimeLimitExceeded(), Reason.SOFT_TIME_LIMIT),
        (Reason.SOFT_TIME_LIMIT, ValueError(), Reason.RAISED),
        (Reason.RAISED, KeyError(), Reason.RAISED),
        (Reason.RAISED, Ignore(), Reason.RAISED),
        (Reason.RETURNED, "well", Reason.RETURNED),
    ],
)
def test_what_is_held_follows_what_is_told(held: Reason, told: object, reason: Reason) -> None:
    """Nobody has seen it: an error behind the body replaces it, a success or another failure."""
    memory = InMemory()
    invocation = Invocation(make_identity(), Recorder(memory))
    invocation.start("0" * 64)
    invocation.hold(make_ending(held))
    state = ChildState(invocation, None)
    state.merged = True
    close_held(state, told)
    assert [row.meta["reason"] for row in memory.rows(kind=COMPLETED)] == [reason]


def test_progress_that_others_store_meanwhile_is_no_result() -> None:
    """A thread of the body's with its request: the ending waits on for its own result."""
    app = host()
    state = ChildState(SimpleNamespace(held_reason=Reason.RETURNED), None)
    state.merged = True
    mine = request()
    vars(mine)[CHILD_STATE] = state
    assert _waiting("1", "SUCCESS", mine) is state.invocation
    assert _waiting("1", "FAILURE", mine) is None
    assert _waiting("1", "PROGRESS", mine) is None
    assert _waiting("2", "SUCCESS", mine) is None
    app.close()


def test_arguments_of_an_excluded_body_stay_out_of_the_result() -> None:
    """result_extended would keep them in this backend as in Celery's own, of which it is one."""
    app = host(result_extended=True)

    @app.skill("test.excluded", version="1.0.0", body_excluded=True)
    def excluded(mark: str) -> str:
        return mark

    assert excluded.name in app.tasks
    with pytest.raises(SkillDefinitionError, match="result_extended"):
        give_requests(app, proven=False)


def test_the_doctor_says_what_a_worker_would() -> None:
    """A backend that does not fit is bad news before any worker is started."""
    check = result_backend(host(backend="merged+redis://127.0.0.1:1/3"))
    assert check.level is Level.BAD
    assert "spelled alike" in check.seen
