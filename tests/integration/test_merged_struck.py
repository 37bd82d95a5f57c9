"""Merged mode under signals at any line: what is on record and what the caller gets stay one.

In this process, on a real server: Celery's own tracer runs a skill, and a signal handler raises at
one line after the other, of ours and of Celery's, between the body and the end of the tracer.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
import redis
from celery._state import _task_stack
from celery.app import trace
from celery.app.trace import build_tracer
from celery.backends import base
from celery.backends import redis as celery_redis
from celery.exceptions import SoftTimeLimitExceeded

from audit import invocation, recorder
from audit.context import InvocationContext
from audit.embedded import EmbeddedServer
from audit.row import COMPLETED, STARTED
from tasks import SkillHost, discretion, held, merged, task
from tests.fakes import Strike
from tests.support import TENANT

HEADERS = InvocationContext("cuo-cpo@0.4.1", TENANT).headers()
OURS = (invocation, recorder, task, merged, held, discretion)
CELERYS = (base, celery_redis, trace)


class Bench:
    """A host in this process, whose skill is run by Celery's tracer."""

    def __init__(self, app: SkillHost, store: redis.Redis) -> None:
        self.store = store
        self._app = app

        @app.skill("test.struck", version="1.0.0")
        def struck(fails: bool) -> str:
            self.ran = True
            if fails:
                raise ValueError("no")
            return "well"

        self._skill: Any = struck

    def run(self, task_id: str, *, fails: bool) -> None:
        self.ran = False
        request = {"id": task_id, "task": self._skill.name, "delivery_info": {}, **HEADERS}
        self._skill.__trace__ = build_tracer(self._skill.name, self._skill, app=self._app)
        try:
            # A signal may strike where Celery takes down what it put up for the task.
            copy_context().run(self._skill.__trace__, task_id, [fails], {}, request)
        finally:
            for stack in (_task_stack, self._skill.request_stack):
                while stack.top is not None:
                    stack.pop()

    def seen(self, task_id: str) -> tuple[list[str], list[str], str | None]:
        """Kinds and outcomes of its rows, and the status of its result."""
        entries = self.store.xrange(f"audit:{{{TENANT}}}:rows")
        rows = [json.loads(fields[b"row"]) for _, fields in entries]
        own = [row for row in rows if row["meta"]["task_id"] == task_id]
        meta = json.loads(self.store.get(f"celery-task-meta-{task_id}") or b"{}")
        outcomes = [row["payload"]["outcome"] for row in own if row["kind"] == COMPLETED]
        return [row["kind"] for row in own], outcomes, meta.get("status")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: Any) -> Iterator[Bench]:
    directory: Path = tmp_path_factory.mktemp("struck")
    logging.disable()  # pytest would keep every record, with all that hangs on its traceback
    with (
        EmbeddedServer() as server,
        redis.Redis.from_url(server.url) as store,
        SkillHost("struck", broker="memory://", set_as_current=False) as app,
    ):
        app.conf.update(
            audit_memory_url=server.url,
            result_backend=f"merged+{server.url}",
            audit_instrument=False,
            audit_spool_dir=str(directory),
        )
        yield Bench(app, store)
    logging.disable(logging.NOTSET)


def struck(
    bench: Bench, error: BaseException, modules: tuple[Any, ...], *, fails: bool
) -> Iterator[tuple[list[str], list[str], str | None, str]]:
    """One run for every line, with the signal at that line: what is seen then, and the line."""
    bench.run("warm-up", fails=fails)
    for number in range(5_000):
        bench.store.flushdb()
        task_id = f"struck-{number}"
        with (
            Strike(error, number, *modules) as strike,
            contextlib.suppress(BaseException),
        ):
            bench.run(task_id, fails=fails)
        if not strike.struck:
            assert number > 40, "the signals missed the code under test"
            return
        if bench.ran:
            yield *bench.seen(task_id), strike.place


@pytest.mark.filterwarnings("ignore:Exception raised outside body")
@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize("modules", [OURS, CELERYS], ids=["ours", "celery's"])
def test_a_soft_limit_at_any_line(bench: Bench, modules: tuple[Any, ...], fails: bool) -> None:
    """Both rows, once, and a success on record exactly where the caller gets one."""
    for kinds, outcomes, status, place in struck(
        bench, SoftTimeLimitExceeded(), modules, fails=fails
    ):
        assert kinds == [STARTED, COMPLETED], place
        if status is not None:
            assert (outcomes == ["success"]) == (status == "SUCCESS"), place


@pytest.mark.parametrize("modules", [OURS, CELERYS], ids=["ours", "celery's"])
def test_an_exit_at_any_line(bench: Bench, modules: tuple[Any, ...]) -> None:
    """SIGTERM behind the body: a success is on record only where its result is stored."""
    for kinds, outcomes, status, place in struck(bench, SystemExit(3), modules, fails=False):
        assert kinds == [STARTED, COMPLETED], place
        assert (outcomes == ["success"]) == (status == "SUCCESS"), place
