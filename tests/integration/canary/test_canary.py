"""Secrets that go through a skill are found nowhere but in the broker and the result backend.

The canary: secrets in every place of arguments, results, exceptions and reasons go along every way
to publish and into every ending, and then everything that anybody said about it is searched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.row import COMPLETED, REFUSED, STARTED
from tests.integration.canary.channels import Document
from tests.integration.canary.host import Host, host
from tests.integration.canary.report import report
from tests.integration.canary.secrets import Mint, encodings, texts
from tests.integration.canary.ways import CALM, IN_THREADS

#: What each channel must have said, or else it was not searched: what a document is called, and
#: what stands in it.
SAID: dict[str, list[tuple[str, str]]] = {
    "rows": [(kind, "canary.echo") for kind in (STARTED, COMPLETED, REFUSED)],
    "events": [
        *((f"task-{what}", "'uuid'") for what in ("sent", "received", "started", "succeeded")),
        *((f"task-{what}", "'uuid'") for what in ("failed", "retried", "rejected", "revoked")),
        ("task-failed", "Retries|retries"),
        ("worker-offline", "w0@test"),
    ],
    "logs": [
        ("worker-0.log", r"DEBUG/MainProcess\] TaskPool: Apply"),
        ("worker-0.log", r"canary.echo\[.* received"),
        ("worker-0.log", r"canary.echo\[.* succeeded in "),
        ("worker-0.log", r"canary.retry\[.* retry: Retry in "),
        ("worker-0.log", r"canary.fail-raw\[.* raised unexpected: "),
        ("worker-0.log", r"canary.exit|SystemExit"),
        ("worker-0.log", "unregistered task of type 'canary.unknown'"),
        ("worker-0.log", "Can't decode message body"),
        ("worker-0.log", "Received invalid task message|Received and deleted unknown message"),
        ("worker-0.log", r"canary.reject\[.* reject requeue"),
        ("worker-0.log", "canary.ignore.* ignored"),
        ("worker-0.log", r"Soft time limit \(1s\) exceeded"),
        ("worker-0.log", r"Hard time limit \(1s\) exceeded"),
        ("worker-0.log", "WorkerLostError"),
        ("worker-0.log", "did not work: "),
        ("caller.log", "raised unexpected: "),
        ("caller.log", "did not work: "),
        ("flower.log", "Visit me at"),
    ],
    "log records": [
        *((name, "'exc_info': .<class") for name in ("caller.records", "worker.records")),
        ("worker.records", "'data': {"),
    ],
    "spans": [
        ("run/canary.echo", "SERVER|CONSUMER"),
        ("run/canary.fail-raw", "exception.message"),
        ("run/canary.retry", "celery.retry.reason"),
        ("apply_async/canary.echo", "PRODUCER"),
        ("own", "exception.message"),
    ],
    "Flower pages": [
        *((f"200 {page}", "<html") for page in ("/$", "/tasks$", "/workers$", "/broker$")),
        ("200 /worker/w0@test", "canary.hold"),
        ("200 /task/", "canary.echo"),
        ("200 /tasks/datatable", "canary.echo"),
        ("200 /metrics", "flower_"),
    ],
    "Flower API": [
        *((f"200 /api/{what}", "canary.echo") for what in ("tasks", "task/info/")),
        ("200 /api/workers", "w0@test"),
        ("403 /api/task/result/", ""),
    ],
    "inspect": [
        *((question, "canary.hold") for question in ("active", "query_task")),
        *((question, "canary.echo") for question in ("reserved", "scheduled")),
        *((question, "w0@test") for question in ("stats", "conf", "report")),
    ],
    "spool": [("", "invoked_completed")],
    "signals": [("", "ValueError"), ("", "Retry"), ("", "KeyError")],
    "results": [("", '"request_id"'), ("", "BodyExcludedError")],
}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """The whole scenario, once, after all its processes have ended."""
    with host(tmp_path_factory.mktemp("canary")) as found:
        with found.flower() as flower:
            worker = found.worker()
            with found.caller() as caller:
                found.publish(caller, CALM)
                found.closed()
                found.hold(caller, flower)
            worker.stop()
            found.look_again(flower)
        yield found


@pytest.mark.parametrize("channel", SAID)
def test_no_secret_is_found(everything: Host, channel: str) -> None:
    """No row, event, log, span, Flower page or answer, inspect answer or spool file has one."""
    documents = [d for d in everything.documents() if d.channel == channel]
    found = report(everything, documents)
    if found:
        pytest.fail(found, pytrace=False)


def test_no_secret_is_found_where_threads_run_bodies(tmp_path: Path) -> None:
    """Bodies side by side in one process are masked each with its own values."""
    with host(tmp_path) as found:
        worker = found.worker(pool="threads")
        with found.caller() as caller:
            found.publish(caller, IN_THREADS)
            found.closed()
            worker.stop()
        assert "task-failed" in found.events.types()
        told = report(found, found.documents())
    if told:
        pytest.fail(told, pytrace=False)


def test_no_channel_is_left_out(everything: Host) -> None:
    """Every channel that the scenario has is one that is searched."""
    assert {document.channel for document in everything.documents()} == set(SAID)


@pytest.mark.parametrize("channel", SAID)
def test_a_channel_said_what_could_give_a_secret_away(everything: Host, channel: str) -> None:
    """The search is worth something: each channel spoke of every kind of ending."""
    documents = [d for d in everything.documents() if d.channel == channel]
    unsaid = [
        (name, text)
        for name, text in SAID[channel]
        if not any(re.match(name, d.name) and re.search(text, d.text) for d in documents)
    ]
    assert unsaid == []


@pytest.mark.parametrize("channel", SAID)
def test_a_planted_secret_is_reported(everything: Host, channel: str) -> None:
    """A secret in what a channel said is reported, in whatever form it stands there."""
    said = next(d for d in everything.documents() if d.channel == channel and d.text).text
    mint, before, after = Mint(everything.seed), said[:1000], said[1000:2000]
    for place, secret in texts(mint, 0).items():
        for form, text in encodings(secret).items():
            planted = f"{before} {text} {after}"
            found = report(everything, [Document(channel, "planted", planted)])
            assert f"{channel}: " in found, (place, form)
            assert everything.paths[0] in found, (place, form)
            assert place in found, (place, form)


def test_the_hash_stands_where_the_arguments_would(everything: Host) -> None:
    """Events and rows can be joined by eye: what is shown for arguments is the row's args_hash."""
    task_id = everything.ids["delay"]
    started, _ = everything.stack.pair(task_id)
    shown = f"sha256:{started.payload['args_hash']}"
    seen = [e for e in everything.events.seen if e.get("uuid") == task_id and "args" in e]
    assert {event["type"] for event in seen} == {"task-sent", "task-received"}
    assert {(event["args"], event["kwargs"]) for event in seen} == {(shown, shown)}


def test_the_hash_stands_where_the_result_would(everything: Host) -> None:
    """What the event of a success shows for the result is the row's result_hash."""
    task_id = everything.ids["delay"]
    _, completed = everything.stack.pair(task_id)
    (seen,) = (
        event
        for event in everything.events.seen
        if event["type"] == "task-succeeded" and event["uuid"] == task_id
    )
    assert f"sha256:{completed.payload['result_hash']}" in seen["result"]
