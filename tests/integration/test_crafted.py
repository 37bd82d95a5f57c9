"""Messages that are none: each is thrown away for good, and the worker that met it goes on.

A forger writes into the broker what no publisher would. Celery and kombu look at much of it before
any request class does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
import redis

from tests.integration.forger import HELD, Forger, Message
from tests.integration.stack import Stack, Worker, caller, running_stack
from tests.support import wait_until

SECRET = "card-4111111111111111"


@pytest.fixture(scope="module", params=["prefork", "solo"])
def stack(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Stack]:
    """A worker without keys: nothing refuses these messages before Celery looks at them."""
    with running_stack(tmp_path_factory.mktemp("crafted")) as stack:
        stack.worker(request.param, 1)
        yield stack


@pytest.fixture(scope="module")
def forger(stack: Stack) -> Iterator[Forger]:
    forger = Forger(stack)
    yield forger
    forger.close()


@pytest.fixture
def broker(stack: Stack) -> Iterator[Any]:
    with redis.Redis.from_url(stack.server.url_for(0)) as client:
        yield client


def held(stack: Stack, forger: Forger, task: str = "test.effect") -> Message:
    """A good message, out of the broker."""
    with caller():
        stack.app.send_task(task, (1,), queue=HELD)
    message = forger.take()
    message.envelope["properties"]["delivery_info"]["routing_key"] = "skills"
    return message


def goes_on(stack: Stack, broker: Any, worker: Worker) -> None:
    """The same worker takes the next message, and the one before is nowhere any more."""
    with caller():
        assert stack.skills.echo.delay("alive").get(timeout=20) == "alive"
    assert worker.process.poll() is None
    wait_until(lambda: not (broker.llen("skills") or broker.hlen("unacked")), 20)
    assert broker.zcard("unacked_index") == 0
    assert SECRET not in worker.text()


def header(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda envelope: envelope["headers"].update(values)


def envelope(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda whole: whole.__setitem__(name, value)


def property_(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda whole: whole["properties"].__setitem__(name, value)


SHAPES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "task: list": header(task=[SECRET]),
    "task: object": header(task={SECRET: 1}),
    "task: number": header(task=5),
    "task: none": header(task=None),
    "type: list": envelope("content-type", [SECRET]),
    "type: object": envelope("content-type", {SECRET: 1}),
    "type: none": envelope("content-type", None),
    "encoding: list": envelope("content-encoding", [SECRET]),
    "encoding: object": envelope("content-encoding", {SECRET: 1}),
    "encoding: unknown": envelope("content-encoding", SECRET),
    "headers: list": envelope("headers", [SECRET]),
    "headers: text": envelope("headers", SECRET),
    "headers: number": envelope("headers", 5),
    "headers: none": envelope("headers", None),
    "id: list": header(id=[SECRET]),
    "id: object": header(id={SECRET: 1}),
    "id: gone": lambda whole: whole["headers"].pop("id"),
    "time limit": header(timelimit=[SECRET]),
    "stamps": header(stamped_headers=5, stamps=[SECRET]),
    "compression": header(compression=[SECRET]),
    "body: number": envelope("body", 5),
    "body: list": envelope("body", [SECRET]),
    "body: object": envelope("body", {SECRET: 1}),
    "body: none": envelope("body", None),
    "body: not of its encoding": envelope("body", "%" + SECRET),
    "properties: list": envelope("properties", [SECRET]),
    "properties: gone": lambda whole: whole.pop("properties"),
    "body encoding": property_("body_encoding", [SECRET]),
    "tag: list": property_("delivery_tag", [SECRET]),
    "tag: gone": lambda whole: whole["properties"].pop("delivery_tag"),
    "delivery: list": property_("delivery_info", [SECRET]),
    "delivery: empty": property_("delivery_info", {"a": SECRET}),
}


@pytest.mark.parametrize("task", ["test.effect", "test.plain", "test.unheard-of"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_message_of_any_shape_ends_no_worker(
    stack: Stack, forger: Forger, broker: Any, shape: str, task: str
) -> None:
    """A skill's, a plain task's or nobody's: it is gone, the next one runs, nothing was shown."""
    worker = stack.running()
    message = held(stack, forger, task)
    SHAPES[shape](message.envelope)
    broker.lpush("skills", json.dumps(message.envelope))
    goes_on(stack, broker, worker)


RAW = [
    SECRET, "", "5", "null", f'["{SECRET}"]', b"\xff\xfe", "{", "[" * 100_000,
    '{"headers": {"a": {"__type__": "uuid", "__value__": 5}}}',
    '{"headers": {"a": {"__type__": "datetime", "__value__": "x"}}}',
    '{"headers": {"a": {"__type__": ["x"], "__value__": 5}}}',
]  # fmt: skip


@pytest.mark.parametrize("raw", RAW, ids=range(len(RAW)))
def test_what_is_no_message_at_all_ends_no_worker(stack: Stack, broker: Any, raw: Any) -> None:
    """Not JSON, not an object, or what kombu's JSON cannot make a value of."""
    worker = stack.running()
    broker.lpush("skills", raw)
    goes_on(stack, broker, worker)


def test_a_record_says_what_was_thrown_away(stack: Stack, forger: Forger, broker: Any) -> None:
    """The class of the error, and nothing of the message."""
    worker = stack.running()
    message = held(stack, forger)
    message.headers.update(task=[SECRET], id=str(uuid4()))
    before = worker.text().count("no task could be made of (TypeError)")
    broker.lpush("skills", json.dumps(message.envelope))
    goes_on(stack, broker, worker)
    assert worker.text().count("no task could be made of (TypeError)") == before + 1
