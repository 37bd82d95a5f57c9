"""`tasks.doctor`: what is said of an app, its tasks, its pools and its schedule."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from audit.context import InvocationContext
from audit.doctor.check import PROBES, Check, Level, examine
from tasks import SkillHost
from tasks.doctor import (
    beat,
    broker,
    configured_pool,
    plain_tasks,
    pool_kind,
    result_backend,
    time_limits,
    unaudited,
    worker_pools,
)
from tasks.worker import _say_what_is_not_audited
from tests.support import TENANT

CALLER = {"headers": InvocationContext("obs-scheduler@1.0.0", TENANT).headers()}
NOWHERE = "redis://:hunter2@127.0.0.1:9/0"


def nothing() -> None: ...


@pytest.fixture
def app() -> Iterator[SkillHost]:
    made = SkillHost(
        "doctored", set_as_current=False, broker="memory://", backend="cache+memory://"
    )

    @made.skill("doctored.ok", version="1.0.0", time_limit=30)
    def fine() -> None: ...

    yield made
    made.close()


def said(check: Check, level: Level, seen: str, advice: str = "") -> None:
    assert check.level is level, check
    assert seen in check.seen
    assert advice in check.advice
    assert bool(check.advice) == (level in (Level.WARN, Level.BAD))


def test_a_host_offers_its_probes_and_so_does_an_app_that_was_adopted() -> None:
    """The command line finds them on the app, which may have been no host when it was made."""
    adopted = SkillHost.adopt(Celery("old", set_as_current=False))
    for app in (adopted, SkillHost("new", set_as_current=False)):
        assert {"broker", "beat", "plain tasks"} <= {p.name for p in getattr(app, PROBES)()}


def test_tasks_that_are_not_audited_are_named(app: SkillHost) -> None:
    """Plain tasks are WARN, each by its name; Celery's own are not meant (case 107)."""
    said(plain_tasks(app), Level.OK, "none")

    @app.task(name="old.send_mail", shared=False)
    def send_mail() -> None: ...

    said(plain_tasks(app), Level.WARN, "not audited: old.send_mail", "@skill")
    assert unaudited(app.tasks.values()) == ["old.send_mail"]


def test_a_worker_says_at_its_start_what_is_not_audited(
    app: SkillHost, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning with the names; none where everything is audited (case 107)."""
    with caplog.at_level(logging.WARNING, "audit"):
        _say_what_is_not_audited(app)
        assert caplog.messages == []
        app.task(name="old.send_mail", shared=False)(nothing)
        _say_what_is_not_audited(app)
    assert caplog.messages == ["plain tasks of this app are not audited: old.send_mail"]


def test_skills_without_a_time_limit(app: SkillHost) -> None:
    """A soft limit alone is none, for a body can swallow it; a limit in the settings is one."""
    said(time_limits(app), Level.OK, "skills: 1")
    app.skill("doctored.endless", version="1.0.0", soft_time_limit=3)(nothing)
    said(time_limits(app), Level.WARN, "limit: doctored.endless", "task_time_limit")
    app.conf.task_time_limit = 30
    said(time_limits(app), Level.OK, "skills: 2")


def test_an_app_without_a_skill(app: SkillHost) -> None:
    """WARN: its modules may not be imported at all."""
    del app.tasks["doctored.ok"]
    said(time_limits(app), Level.WARN, "no skill", "imports")


def test_an_entry_of_beat_without_caller(app: SkillHost) -> None:
    """BAD where beat would not start: no caller or a malformed one, a tick that no two beats share.

    Plain tasks need none.
    """
    schedule: dict[str, dict[str, Any]] = {
        "plain": {"task": "old.send_mail", "schedule": 60},
        "named": {"task": "doctored.ok", "schedule": 60, "options": CALLER},
    }
    app.conf.beat_schedule = schedule
    said(beat(app), Level.OK, "entries of skills: 1")
    app.conf.beat_schedule = schedule | {"nameless": {"task": "doctored.ok", "schedule": 60}}
    said(beat(app), Level.BAD, "'nameless'", "does not start")
    half = {"headers": {**CALLER["headers"], "audit_tenant_id": "nobody"}}
    app.conf.beat_schedule = {"half": {"task": "doctored.ok", "schedule": 60, "options": half}}
    said(beat(app), Level.BAD, "'half'", "does not start")
    once = {"task": "doctored.ok", "schedule": 60, "options": CALLER, "once_per_tick": True}
    app.conf.beat_schedule = {"once": once}
    said(beat(app), Level.BAD, "crontab", "does not start")


@pytest.mark.parametrize("pool", ["solo", "threads", "gevent", "eventlet"])
def test_a_pool_that_ignores_limits(app: SkillHost, pool: str) -> None:
    """WARN, with what it ignores."""
    said(configured_pool(app), Level.OK, "prefork")
    app.conf.worker_pool = pool
    said(configured_pool(app), Level.WARN, "time limits", "prefork")


@pytest.mark.parametrize("pool", ["custom", "others_pool.pool:AsyncPool"])
def test_a_pool_that_nobody_here_knows(app: SkillHost, pool: str) -> None:
    """WARN: whether it keeps limits cannot be told, so OK would be a guess."""
    app.conf.worker_pool = pool
    said(configured_pool(app), Level.WARN, "not known", "prefork")


def test_pools_as_settings_and_as_workers_spell_them() -> None:
    """Both are one word."""
    assert pool_kind("threads") == pool_kind("celery.concurrency.thread:TaskPool") == "thread"
    assert pool_kind("celery.concurrency.prefork:TaskPool") == pool_kind("prefork") == "prefork"
    assert pool_kind("processes") == "prefork"


@pytest.mark.parametrize(
    ("module", "level", "seen"),
    [
        ("prefork", Level.OK, "w1 (prefork)"),
        ("solo", Level.WARN, "w1 (solo) ignores time limits"),
        ("thread", Level.WARN, "w1 (thread) ignores time limits"),
        ("others", Level.WARN, "w1 (others) is not known to keep"),
    ],
)
def test_pools_of_running_workers(
    app: SkillHost, monkeypatch: pytest.MonkeyPatch, module: str, level: Level, seen: str
) -> None:
    """Each worker that answers is named with its pool."""
    stats = {"w1": {"pool": {"implementation": f"celery.concurrency.{module}:TaskPool"}}}
    inspect = SimpleNamespace(stats=lambda: stats)
    monkeypatch.setattr(app.control, "inspect", lambda **_: inspect)
    said(worker_pools(app), level, seen)


def test_no_worker_answers(app: SkillHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not judged, whether there is none or the broker is away."""
    monkeypatch.setattr(app.control, "inspect", lambda **_: SimpleNamespace(stats=lambda: None))
    check = worker_pools(app)
    assert (check.level, check.seen) == (Level.SKIPPED, "no worker answered")
    app.conf.broker_url = NOWHERE
    check = worker_pools(app)
    assert check.level is Level.SKIPPED
    assert check.seen.startswith("workers cannot be asked: OperationalError")


def test_broker_and_result_backend_that_answer(app: SkillHost) -> None:
    """With what they are; of this one no server need be there."""
    said(broker(app), Level.WARN, "memory://... answers")
    said(result_backend(app), Level.OK, "CacheBackend answers")


@pytest.mark.parametrize("kind", ["memory", "filesystem"])
def test_a_broker_that_is_fit_for_no_audited_host(kind: str, tmp_path: Path) -> None:
    """WARN: it answers, and loses messages or keeps them in one process."""
    folders = dict.fromkeys(("data_folder_in", "data_folder_out"), str(tmp_path))
    app = SkillHost("unfit", set_as_current=False, broker=f"{kind}://")
    app.conf.broker_transport_options = folders if kind == "filesystem" else {}
    said(broker(app), Level.WARN, f"{kind}://... answers", "Redis")


def test_results_that_nobody_keeps_and_results_by_the_broker() -> None:
    """Neither has a server to ask; without results no caller hears that its skill was refused."""
    none = SkillHost("n", set_as_current=False, broker="memory://")
    said(result_backend(none), Level.WARN, "none", "AuditEmitFailed")
    rpc = SkillHost("r", set_as_current=False, broker="memory://", backend="rpc://")
    assert result_backend(rpc).level is Level.SKIPPED


def test_broker_and_result_backend_out_of_reach() -> None:
    """BAD by the error's class alone: neither a password nor any other part of a URL is told."""
    app = SkillHost("away", set_as_current=False, broker=NOWHERE, backend=NOWHERE)
    probes = [p for p in getattr(app, PROBES)() if p.name in ("broker", "result backend")]
    checks = examine(probes, 20)
    said(checks[0], Level.BAD, "OperationalError", "CELERY_BROKER_URL")
    said(checks[1], Level.BAD, "ConnectionError", "CELERY_RESULT_BACKEND")
    assert "hunter2" not in repr(checks)
