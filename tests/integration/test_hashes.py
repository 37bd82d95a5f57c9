"""Hashes in the place of values, the human behind an agent, and bodies that stay out of results."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import chain

from audit import acting_as
from audit.canonical import digest
from audit.errors import BodyExcludedError
from audit.keys import KeyRing
from audit.row import AuditRow
from tasks import SkillHost
from tasks.reprs import shown
from tests.integration.prepared import run_celery
from tests.integration.skills import declare
from tests.integration.stack import PERSONA, ROOT, Stack, caller, running_stack
from tests.support import TENANT, wait_until

SECRET = "customer-4711"
OTHER_TENANT = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
JANE = "jane@example.org"
KEYS = [{"id": "k1", "secret": "s" * 32, "tenants": [TENANT]}]
KEY = KeyRing.parse(KEYS).find("k1")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A host in which one tenant's hashes are keyed."""
    conf: dict[str, Any] = {"audit_hash_keys": KEYS, "task_send_sent_event": True}
    with running_stack(tmp_path_factory.mktemp("stack"), **conf) as stack:
        stack.worker("prefork", 2, audit_hash_keys=KEYS)
        yield stack


@pytest.fixture
def keyless(stack: Stack) -> Iterator[SkillHost]:
    """A publisher of the same broker that has no keys."""
    with SkillHost("keyless", set_as_current=False) as app:
        app.conf.update(
            broker_url=stack.environ["CELERY_BROKER_URL"],
            result_backend=stack.environ["CELERY_RESULT_BACKEND"],
            audit_memory_url=stack.memory_url,
            task_default_queue="skills",
        )
        yield app


@contextmanager
def events(stack: Stack) -> Iterator[list[dict[str, Any]]]:
    """Celery's events as they come."""
    seen: list[dict[str, Any]] = []
    ready = threading.Event()
    with stack.app.connection_for_read() as connection:
        receiver = stack.app.events.Receiver(connection, handlers={"*": seen.append})
        receiver.on_consume_ready = lambda *_, **__: ready.set()
        thread = threading.Thread(target=receiver.capture, kwargs={"wakeup": False})
        thread.start()
        try:
            assert ready.wait(10)
            yield seen
        finally:
            receiver.should_stop = True
            thread.join(10)


def message(app: SkillHost, skill: Any, *args: Any) -> dict[str, Any]:
    """The headers of a message that nobody takes from the broker."""
    queue = f"unheard-{uuid4()}"
    skill.apply_async(args, queue=queue)
    with app.connection_for_read() as connection:
        taken = connection.default_channel.basic_get(queue, no_ack=True)
    assert taken is not None
    return dict(taken.headers)


def human(row: AuditRow) -> Any:
    return row.meta.get("on_behalf_of")


# --- keyed hashes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tenant", [TENANT, OTHER_TENANT])
def test_one_hash_is_shown_everywhere(stack: Stack, tmp_path: Path, tenant: str) -> None:
    """Row, message, ``inspect`` and events: keyed for the tenant whose key it is, else plain."""
    key = KEY if tenant == TENANT else None
    gate = str(tmp_path / "gate")
    given, result = digest({"path": gate}, key), digest("released", key)
    assert given.startswith("hmac:k1:") is (tenant == TENANT)
    with caller(tenant), events(stack) as seen:
        headers = message(stack.app, stack.skills.hold, gate)
        held = stack.skills.hold.delay(gate)
        wait_until(lambda: f"holding {gate}" in stack.journal(), 20)
        active = stack.app.control.inspect(timeout=5).active()
        Path(gate).touch()
        assert held.get(timeout=20) == "released"
        wait_until(
            lambda: any(e["type"] == "task-succeeded" for e in seen if e.get("uuid") == held.id)
        )
    started, completed = stack.pair(held.id)
    assert started.payload["args_hash"] == given
    assert completed.payload["result_hash"] == result
    assert headers["argsrepr"] == headers["kwargsrepr"] == shown(given)
    ((request,),) = active.values()
    assert request["args"] == request["kwargs"] == shown(given)
    told = {event["type"]: event for event in seen if event.get("uuid") == held.id}
    for kind in ("task-sent", "task-received"):
        assert told[kind]["args"] == told[kind]["kwargs"] == shown(given)
    assert told["task-succeeded"]["result"] == shown(result)
    assert gate not in json.dumps(seen, default=str)


def test_a_publisher_without_keys_does_not_give_values_away_in_the_worker(
    stack: Stack, keyless: SkillHost
) -> None:
    """The worker shows the keyed hash over the plain one of the message."""
    echo = declare(keyless).echo
    with caller(), events(stack) as seen:
        assert message(keyless, echo, 7)["argsrepr"] == shown(digest({"x": 7}))
        sent = echo.delay(7)
        assert sent.get(timeout=20) == 7
        wait_until(lambda: [e for e in seen if e.get("uuid") == sent.id and "result" in e])
    given = digest({"x": 7}, KEY)
    assert stack.pair(sent.id)[0].payload["args_hash"] == given
    (received,) = [e for e in seen if (e.get("uuid"), e["type"]) == (sent.id, "task-received")]
    assert received["args"] == received["kwargs"] == given
    assert digest({"x": 7}) not in json.dumps(seen, default=str)


def test_an_investigator_compares_arguments_with_a_row(stack: Stack, tmp_path: Path) -> None:
    """``audit compare-args`` with the key agrees; without it, it cannot tell."""
    with caller():
        sent = stack.skills.echo.delay(SECRET)
        sent.get(timeout=20)
    request_id = stack.pair(sent.id)[0].request_id
    held = tmp_path / "arguments.json"

    def compare(arguments: dict[str, Any], **environ: str) -> int:
        held.write_text(json.dumps(arguments))
        done = run_celery(
            *("-A", "tests.integration.worker_app", "audit", "compare-args"),
            *(request_id, str(held)),
            cwd=ROOT,
            env={**stack.environ, "PYTHONPATH": str(ROOT), **environ},
        )
        assert SECRET not in done.stdout + done.stderr
        return done.returncode

    keys = json.dumps(KEYS)
    assert compare({"x": SECRET}, AUDIT_HASH_KEYS=keys) == 0
    assert compare({"x": "customer-4712"}, AUDIT_HASH_KEYS=keys) == 1
    assert compare({"x": SECRET}) == 2


# --- on behalf of ---------------------------------------------------------------------------------


def test_the_human_behind_an_agent_is_in_every_row(stack: Stack) -> None:
    """In both rows of the call, of what its body calls, of its link, and of its retries."""
    skills = stack.skills
    with acting_as(PERSONA, tenant_id=TENANT, on_behalf_of=JANE):
        outer = skills.nested.apply_async((1,), link=skills.who.si())
        again = skills.retry.delay("m")
    inner = outer.get(timeout=20)
    assert again.get(timeout=20) == "m"
    (link,) = (child for child in outer.children if child.id != inner)
    ids = [(outer.id, 0), (inner, 0), (link.id, 0), (again.id, 0), (again.id, 1), (again.id, 2)]
    for task_id, attempt in ids:
        assert [human(row) for row in stack.pair(task_id, attempt)] == [JANE, JANE]
    with caller():
        alone = skills.nested.delay(1)
        inner = alone.get(timeout=20)
    for task_id in (alone.id, inner):
        assert all("on_behalf_of" not in row.meta for row in stack.pair(task_id))


# --- body excluded --------------------------------------------------------------------------------


def stored(stack: Stack, task_id: str) -> bytes:
    """What the result backend has of a task, as it has it."""
    backend = stack.app.backend
    found = backend.get(backend.get_key_for_task(task_id))
    return found if isinstance(found, bytes) else str(found).encode()


def test_the_result_of_an_excluded_body_is_in_no_backend(stack: Stack) -> None:
    """Its caller and the next link of a chain get the reference, the rows have both hashes."""
    with caller():
        alone = stack.skills.excluded.delay(SECRET)
        linked = chain(stack.skills.excluded.s(SECRET), stack.skills.echo.s()).apply_async()
    started, completed = stack.pair(alone.id)
    reference = {"request_id": started.request_id, "result_hash": digest(SECRET, KEY)}
    assert alone.get(timeout=20) == reference
    assert SECRET.encode() not in stored(stack, alone.id)
    assert started.payload["args_hash"] == digest({"x": SECRET}, KEY)
    assert completed.payload["result_hash"] == reference["result_hash"]
    first = stack.pair(linked.parent.id)[0].request_id
    assert linked.get(timeout=20) == {**reference, "request_id": first}
    assert SECRET.encode() not in stored(stack, linked.parent.id) + stored(stack, linked.id)


def test_the_error_of_an_excluded_body_is_in_no_backend(stack: Stack) -> None:
    """Its caller gets the class and the reference, and so do an error's log and its event."""
    with caller(), events(stack) as seen:
        sent = stack.skills.excluded.delay(SECRET, fails=True)
        with pytest.raises(BodyExcludedError) as caught:
            sent.get(timeout=20)
        wait_until(lambda: [e for e in seen if e.get("uuid") == sent.id and "exception" in e])
    started, completed = stack.pair(sent.id)
    assert (caught.value.kind, caught.value.request_id) == ("ValueError", started.request_id)
    assert b"cannot use" not in stored(stack, sent.id)
    assert SECRET.encode() not in stored(stack, sent.id)
    assert completed.payload["error_message"] == "ValueError"
    assert started.payload["args_hash"] == digest({"x": SECRET, "fails": True}, KEY)
    for told in (json.dumps(seen, default=str), stack.running().text()):
        assert "cannot use" not in told
        assert SECRET not in told
