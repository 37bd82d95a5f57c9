"""Persona, tenant and trace on every way to publish (decisions 16 to 18)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from opentelemetry import trace

from audit import AuditRow, InvocationContext
from audit.context import Trace
from audit.row import COMPLETED, STARTED
from tests.integration.stack import ROOT, Stack, caller, running_stack
from tests.integration.ways import WAYS, Way, publish_link
from tests.support import wait_until

PATH = Trace(trace_id="0af7651916cd43dd8448eb211c80319c", span_id="b7ad6b7169203331")


def invocations(stack: Stack, tenant: str, count: int) -> list[AuditRow]:
    """The started rows of a tenant, once ``count`` invocations have ended."""

    def ended() -> bool:
        return len(stack.rows(tenant_id=tenant, kind=COMPLETED)) >= count

    wait_until(ended, 30)
    return stack.rows(tenant_id=tenant, kind=STARTED)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_the_caller_arrives(stack: Stack, way: Way) -> None:
    """Every invocation that comes of a call has its persona, tenant and trace, and its parent."""
    tenant = str(uuid4())
    with caller(tenant, "way@1"), trace.use_span(PATH.span()):
        way.publish(stack)
    started = invocations(stack, tenant, way.invocations.total())
    assert {row.payload["caller_persona"] for row in started} == {"way@1"}
    assert {row.payload["trace_id"] for row in started} == {PATH.trace_id}
    skills = {row.request_id: row.payload["skill_id"].removeprefix("test.") for row in started}
    family = Counter(
        (skills[row.request_id], skills.get(row.meta["parent_request_id"], "-")) for row in started
    )
    assert family == way.invocations
    # No parent is one that nobody knows.
    assert {row.meta["parent_request_id"] for row in started} <= {*skills, None}


def test_a_group_of_one_call_has_no_parent_and_a_link_has(stack: Stack) -> None:
    """parent_request_id is the invocation that published, and nothing where a caller did."""
    tenant = "55555555-5555-4555-8555-555555555555"
    with caller(tenant):
        publish_link(stack)
    first, *links = invocations(stack, tenant, 3)
    assert first.meta["parent_request_id"] is None
    assert {row.meta["parent_request_id"] for row in links} == {first.request_id}


def test_headers_never_outlive_their_caller(stack: Stack) -> None:
    """Headers that came along with a message do not replace the caller in force."""
    stale = InvocationContext("stale@1", "66666666-6666-4666-8666-666666666666").headers()
    with caller("77777777-7777-4777-8777-777777777777", "fresh@1"):
        result = stack.skills.echo.apply_async((1,), headers=stale)
    started, _ = stack.pair(result.id)
    assert started.payload["caller_persona"] == "fresh@1"
    assert started.payload["tenant_id"] == "77777777-7777-4777-8777-777777777777"


def test_a_caller_without_a_trace_gets_a_fresh_one_in_both_rows(stack: Stack) -> None:
    """Without a valid trace at the caller one is made, and both rows agree (decision 18)."""
    with caller():
        results = [stack.skills.noop.delay() for _ in range(2)]
    pairs = [stack.pair(result.id) for result in results]
    ids = [{row.payload["trace_id"] for row in pair} for pair in pairs]
    assert all(len(found) == 1 for found in ids)
    assert ids[0] != ids[1]


@pytest.fixture(scope="module")
def beat(tmp_path_factory: Any) -> Iterator[Stack]:
    """A host with a worker and a real beat, with the scheduler of Celery's own."""
    directory = tmp_path_factory.mktemp("beat")
    with running_stack(directory) as stack:
        stack.worker("solo", 1)
        (directory / "beat_app.py").write_text(
            "from tests.integration.worker_app import app\n"
            "from audit import InvocationContext\n"
            "headers = InvocationContext('scheduler@1', '88888888-8888-4888-8888-888888888888')\n"
            "app.conf.beat_schedule = {\n"
            "    'with': {'task': 'test.echo', 'schedule': 0.5, 'args': [1],\n"
            "             'options': {'headers': headers.headers()}},\n"
            "    'without': {'task': 'test.effect', 'schedule': 0.5, 'args': ['nobody']},\n"
            "}\n"
            "app.conf.beat_scheduler = 'celery.beat:PersistentScheduler'\n"
        )
        with (directory / "beat.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "beat_app", "beat", "-l", "INFO"],
                cwd=directory,
                env={**os.environ, **stack.environ, "PYTHONPATH": f"{ROOT}:{directory}"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            yield stack
        finally:
            process.terminate()
            process.wait(20)


def test_a_beat_entry_names_its_own_caller(beat: Stack) -> None:
    """A tick runs as the entry's persona for its tenant, each tick in a trace of its own."""
    started = invocations(beat, "88888888-8888-4888-8888-888888888888", 3)
    assert {row.payload["caller_persona"] for row in started} == {"scheduler@1"}
    assert {row.meta["parent_request_id"] for row in started} == {None}
    traces = [row.payload["trace_id"] for row in started]
    assert len(set(traces)) == len(traces)


def test_a_beat_entry_without_a_caller_is_not_published(beat: Stack) -> None:
    """Beat says what is missing, publishes nothing, and its other entries go on."""
    log = beat.directory / "beat.log"
    wait_until(lambda: "no caller persona and tenant" in log.read_text(), 20)
    assert beat.journal() == []
    invocations(beat, "88888888-8888-4888-8888-888888888888", 5)


def test_a_plain_celery_caller_with_context_headers_is_served(stack: Stack) -> None:
    """A foreign publisher that sends the documented headers is a caller like any other."""
    plain = Celery("plain", broker=stack.server.url_for(0), set_as_current=False)
    headers = InvocationContext("foreign@1", "99999999-9999-4999-8999-999999999999").headers()
    result = plain.send_task("test.echo", (1,), queue="skills", headers=headers)
    started, _ = stack.pair(result.id)
    assert started.payload["caller_persona"] == "foreign@1"
    plain.close()
