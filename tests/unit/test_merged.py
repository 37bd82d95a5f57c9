"""Merged mode: which endings are left to the result backend, and where that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery.app.task import Context

from audit.errors import SettingsError
from tasks import SkillHost
from tasks.caller import ChildState, runs
from tasks.discretion import discreet
from tasks.merged import MergedBackend, is_merged, require_fit
from tests.support import make_identity

MEMORY = "redis://127.0.0.1:1/2"


def host(backend: str = f"merged+{MEMORY}", memory: str = MEMORY, **conf: Any) -> SkillHost:
    app = SkillHost("merged", set_as_current=False)
    app.conf.update(result_backend=backend, audit_memory_url=memory, **conf)
    return app


def request(**fields: Any) -> Context:
    return Context({"id": "1", "ignore_result": False}, **fields)


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
        (lambda: host(result_serializer="pickle"), "must be JSON"),
        (lambda: host(result_compression="gzip"), "must be JSON"),
    ],
    ids=["other database", "other memory", "other serializer", "compressed"],
)
def test_a_backend_that_does_not_fit_says_why(make: Callable[[], SkillHost], says: str) -> None:
    """A worker refuses to start; where nobody asked, nothing is merged and nothing lost."""
    app = make()
    with pytest.raises(SettingsError, match=says):
        require_fit(app)
    assert not is_merged(SimpleNamespace(backend=app.backend, ignore_result=False), request())


def test_the_end_of_the_tracer_puts_what_is_held_on_record() -> None:
    """Whatever kept Celery from storing the result, and called no hook either."""
    closed: list[str] = []
    invocation = SimpleNamespace(
        close_held=lambda: closed.append("closed"), identity=make_identity()
    )
    state = ChildState(invocation, None)

    def tracer(*_: Any) -> Any:
        runs(state)
        raise SystemExit(3)

    task = SimpleNamespace(name="test.noop", body_excluded=False, app=host())
    with pytest.raises(SystemExit):
        discreet(task, tracer)("1", (), {}, {})
    assert closed == ["closed"]
