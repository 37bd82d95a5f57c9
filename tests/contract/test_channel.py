"""A worker's channel keeps one client of the broker, on a real one."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker.consumer import Consumer

from audit.embedded import EmbeddedServer
from tasks.channel import keep_client
from tasks.consumer import SteadyConsumer


@pytest.fixture
def channel(server: EmbeddedServer) -> Iterator[Any]:
    with Celery("channel", broker=server.url, set_as_current=False).connection() as connection:
        yield connection.default_channel


def made_by(channel: Any) -> list[Any]:
    """Every client that the channel has its transport make from now on."""
    made: list[Any] = []
    client = channel.Client

    def noted(**options: Any) -> Any:
        made.append(client(**options))
        return made[-1]

    channel.Client = noted
    return made


def test_one_client_serves_every_message(channel: Any) -> None:
    """Messages come, are noted as taken, and acknowledged; kombu alone makes two for each."""
    made = made_by(channel)
    keep_client(channel)
    keep_client(channel)
    queue = channel.connection.client.SimpleQueue("kept", channel=channel)
    for number in range(5):
        queue.put({"number": number})
    for number in range(5):
        message = queue.get(timeout=10)
        assert message.payload == {"number": number}
        message.ack()
    assert len(made) == 1


def test_it_goes_with_its_pool(channel: Any) -> None:
    """After a connection was lost kombu makes a new pool; the client of the old one is let go."""
    keep_client(channel)
    first = channel._create_client()
    assert channel._create_client() is first
    channel._disconnect_pools()
    second = channel._create_client()
    assert second is not first
    assert second.connection_pool is channel.pool
    assert second.ping()


def test_the_client_that_waits_is_its_own(channel: Any) -> None:
    """BRPOP holds a connection of another pool: never the kept one."""
    keep_client(channel)
    assert channel._create_client(asynchronous=True) is not channel._create_client()


def test_other_transports_are_left_alone() -> None:
    """A channel that makes no clients has nothing to keep."""
    plain = SimpleNamespace()
    keep_client(plain)
    assert vars(plain) == {}


def test_a_worker_does_so(channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With each connection that its consumer makes."""
    monkeypatch.setattr(Consumer, "create_task_handler", lambda self: None)
    consumer = SteadyConsumer.__new__(SteadyConsumer)
    consumer.task_consumer = SimpleNamespace(channel=channel)
    consumer.create_task_handler()
    assert channel._create_client() is channel._create_client()
