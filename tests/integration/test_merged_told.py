"""Merged mode: the row follows what the caller is told, and nothing that a body stores by itself.

In this process, on a real server: Celery's own tracer runs skills that store states of their own,
beside the same with Celery's own backend.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
import redis
from celery.app.trace import build_tracer
from celery.exceptions import Ignore
from celery.signals import before_task_publish

from audit.context import InvocationContext, acting_as
from audit.embedded import EmbeddedServer
from audit.errors import SettingsError, SkillArgumentsError
from audit.invocation import new_request_id
from audit.row import COMPLETED, STARTED
from tasks import SkillHost
from tasks.merged import prove
from tests.support import TENANT

HEADERS = InvocationContext("cuo-cpo@0.4.1", TENANT).headers()
ERROR = ValueError("a step failed")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


def host(server: EmbeddedServer, prefix: str, directory: Path) -> SkillHost:
    app = SkillHost("told", broker="memory://", set_as_current=False)
    app.conf.update(
        audit_memory_url=server.url,
        result_backend=f"{prefix}{server.url}",
        audit_instrument=False,
        audit_spool_dir=str(directory),
    )
    return app


def progress(self: Any) -> str:
    self.update_state(state="FAILURE", meta=ERROR)
    return "well"


def ignored(self: Any) -> str:
    self.update_state(state="FAILURE", meta=ERROR)
    raise Ignore


def of_another(self: Any) -> str:
    self.backend.store_result("another-task", ERROR, "FAILURE", request=self.request)
    return "well"


def failed_itself(self: Any) -> str:
    self.backend.mark_as_failure(self.request.id, ERROR, request=self.request)
    return "well"


@pytest.mark.parametrize("body", [progress, ignored, of_another, failed_itself])
def test_a_failure_that_a_body_stores_is_not_its_ending(
    server: EmbeddedServer, tmp_path: Path, body: Callable[[Any], str]
) -> None:
    """It runs on, and its invocation with it; rows and results are those of Celery's backend."""
    seen = {}
    for prefix in ("merged+", ""):
        with redis.Redis.from_url(server.url) as store, host(server, prefix, tmp_path) as app:
            store.flushdb()
            skill: Any = app.skill("test.body", version="1.0.0", bind=True)(watched(body, store))
            skill.__trace__ = build_tracer(skill.name, skill, app=app)
            request = {"id": "one", "task": skill.name, "delivery_info": {}, **HEADERS}
            copy_context().run(skill.__trace__, "one", [], {}, request)
            result = json.loads(store.get("celery-task-meta-one") or b"{}")
            endings = [row["payload"]["outcome"] for row in rows(store, COMPLETED)]
            seen[prefix] = (endings, result.get("status"), result.get("result"))
    assert seen["merged+"] == seen[""]
    assert seen[""][0] == ["success"]


def own(skill: Any, n: int) -> str:
    return "deep" if n else f"then {skill(n=1)}"


def refused(skill: Any, n: int) -> str:
    with pytest.raises(SkillArgumentsError):
        skill(nonsense=n)
    return "well"


@pytest.mark.parametrize("prefix", ["merged+", ""], ids=["merged", "plain"])
@pytest.mark.parametrize(
    ("body", "outcomes", "told"),
    [(own, ["success", "success"], "then deep"), (refused, ["success"], "well")],
    ids=["runs", "is refused"],
)
def test_a_body_that_calls_its_own_skill(
    server: EmbeddedServer,
    tmp_path: Path,
    prefix: str,
    body: Callable[[Any, int], str],
    outcomes: list[str],
    told: str,
) -> None:
    """The call is an invocation of its own, of no message; how it ends ends that alone."""

    def run(self: Any, n: int = 0) -> str:
        return body(self, n)

    with redis.Redis.from_url(server.url) as store, host(server, prefix, tmp_path) as app:
        store.flushdb()
        skill: Any = app.skill("test.body", version="1.0.0", bind=True)(run)
        skill.__trace__ = build_tracer(skill.name, skill, app=app)
        request = {"id": "one", "task": skill.name, "delivery_info": {}, **HEADERS}
        request["audit_request_id"] = new_request_id()
        copy_context().run(skill.__trace__, "one", [], {}, request)
        assert [row["payload"]["outcome"] for row in rows(store, COMPLETED)] == outcomes
        assert store.zcard(f"audit:{{{TENANT}}}:open") == 0
        of_messages = [row["meta"]["task_id"] for row in rows(store, STARTED)]
        assert of_messages == ["one", None][: len(outcomes)]
        assert json.loads(store.get("celery-task-meta-one") or b"{}")["result"] == told


def test_a_retry_of_its_own_in_a_call_of_its_own_is_published(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """As Celery has it, the message that is running is published again; both calls are retried."""
    sent: list[str] = []

    def run(self: Any, n: int = 0) -> str:
        if n == 0:
            return str(self(n=1))
        assert (self.request.id, self.request.called_directly) == ("one", False)
        self.update_state(state="PROGRESS", meta={"n": n})
        raise self.retry(countdown=0)

    with redis.Redis.from_url(server.url) as store, host(server, "merged+", tmp_path) as app:
        store.flushdb()
        skill: Any = app.skill("test.body", version="1.0.0", bind=True)(run)
        skill.__trace__ = build_tracer(skill.name, skill, app=app)
        request = {
            **{"id": "one", "task": skill.name, "delivery_info": {}, "called_directly": False},
            **{"audit_request_id": new_request_id(), **HEADERS},
        }

        def published(headers: dict[str, Any], **_: Any) -> None:
            sent.append(headers["id"])

        before_task_publish.connect(published)
        copy_context().run(skill.__trace__, "one", [], {}, request)
        before_task_publish.disconnect(published)
        assert sent == ["one"]
        reasons = [row["meta"]["reason"] for row in rows(store, COMPLETED)]
        assert reasons == ["retried", "retried"]
        assert len({row["payload"]["request_id"] for row in rows(store, STARTED)}) == 2
        # What was published has a result that waits, until somebody collects it; then
        # it says so to the server, and looks for one that is gone for 20 s.
        gc.collect()
        assert store.zcard(f"audit:{{{TENANT}}}:open") == 0


def test_a_body_that_is_called_directly_reads_the_request_that_was_pushed(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """As tests of applications push one by hand; the invocation is of no message all the same."""
    with redis.Redis.from_url(server.url) as store, host(server, "", tmp_path) as app:
        store.flushdb()

        @app.skill("test.read", version="1.0.0", bind=True)
        def read(self: Any) -> list[Any]:
            return [self.request.id, self.request.retries]

        skill: Any = read
        skill.push_request(id="pushed", retries=2)
        with acting_as("cuo-cpo@0.4.1", TENANT):
            assert skill() == ["pushed", 2]
        skill.pop_request()
        (start,) = rows(store, STARTED)
        assert (start["meta"]["task_id"], start["meta"]["attempt"]) == (None, 0)


def test_an_excluded_body_gets_what_its_own_skill_returned(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """Its caller is the body: the reference is for those who read the result backend."""
    got: list[Any] = []

    def run(self: Any, n: int = 0) -> str:
        if n == 0:
            got.append(self(n=1))
        return "secret"

    with redis.Redis.from_url(server.url) as store, host(server, "merged+", tmp_path) as app:
        store.flushdb()
        skill: Any = app.skill("test.x", version="1.0.0", bind=True, body_excluded=True)(run)
        skill.__trace__ = build_tracer(skill.name, skill, app=app)
        request = {"id": "one", "task": skill.name, "delivery_info": {}, **HEADERS}
        copy_context().run(skill.__trace__, "one", [], {}, request)
        assert got == ["secret"]
        assert b"secret" not in (store.get("celery-task-meta-one") or b"")


def watched(body: Callable[[Any], str], store: redis.Redis) -> Callable[[Any], str]:
    """The body; behind it, its invocation is open still."""

    def run(self: Any) -> str:
        try:
            return body(self)
        finally:
            assert store.zcard(f"audit:{{{TENANT}}}:open") == 1
            assert rows(store, COMPLETED) == []

    return run


def rows(store: redis.Redis, kind: str) -> list[dict[str, Any]]:
    entries = store.xrange(f"audit:{{{TENANT}}}:rows")
    found = [json.loads(fields[b"row"]) for _, fields in entries]
    return [row for row in found if row["kind"] == kind]


def test_a_backend_on_another_server_of_the_same_name_is_found_out(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """What the memory stores on trial is not there: each result would be told to nobody."""
    with EmbeddedServer() as other, host(server, "merged+", tmp_path) as app:
        prove(app)
        with redis.Redis.from_url(other.url) as elsewhere:
            vars(app.backend)["client"] = elsewhere
            with pytest.raises(SettingsError, match="another server under the same name"):
                prove(app)
