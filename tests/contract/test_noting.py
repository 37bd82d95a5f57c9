"""What a worker's channel notes of messages: the same as kombu would, on a real broker."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from redis.client import Pipeline

from audit.embedded import EmbeddedServer
from tasks import noting
from tasks.channel import keep_client

INDEX, NOTED = "unacked_index", "unacked"


@pytest.fixture
def channel(server: EmbeddedServer) -> Iterator[Any]:
    with Celery("noting", broker=server.url, set_as_current=False).connection() as connection:
        keep_client(connection.default_channel)
        yield connection.default_channel


@pytest.fixture
def store(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def own_way(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The stacks that go redis-py's own way."""
    went: list[list[Any]] = []
    execute = Pipeline.execute

    def noted(self: Pipeline, raise_on_error: bool = True) -> Any:
        went.append(list(self.command_stack))
        return execute(self, raise_on_error)

    monkeypatch.setattr(Pipeline, "execute", noted)
    monkeypatch.setattr(noting, "_EXECUTE", noted)
    return went


def taken(channel: Any, count: int, own_way: list[Any] | None = None) -> list[Any]:
    """So many messages, published and taken; what declaring their queue took is left out."""
    queue = channel.connection.client.SimpleQueue("noted", channel=channel)
    for number in range(count):
        queue.put({"number": number})
    if own_way is not None:
        own_way.clear()
    return [queue.get(timeout=10) for _ in range(count)]


def noted(store: redis.Redis) -> tuple[int, int]:
    return store.zcard(INDEX), store.hlen(NOTED)


def test_a_message_is_noted_until_it_is_done(
    channel: Any, store: redis.Redis, own_way: list[Any]
) -> None:
    """In both keys, in one transaction each way, and redis-py's pipelines are not asked."""
    messages = taken(channel, 3, own_way)
    assert noted(store) == (3, 3)
    store.config_resetstat()
    assert {m.delivery_tag.encode() for m in messages} == set(store.hkeys(NOTED))
    messages.pop().ack()
    assert noted(store) == (2, 2)
    for message in messages:
        message.ack()
    assert noted(store) == (0, 0)
    assert own_way == []
    assert store.info("commandstats")["cmdstat_exec"]["calls"] == 3


def killed(channel: Any, store: redis.Redis) -> None:
    store.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def let_go(channel: Any, store: redis.Redis) -> None:
    channel.pool.disconnect()


def test_a_file_with_the_number_of_a_closed_connection_is_not_written_to(
    channel: Any, tmp_path: Path
) -> None:
    """The pool closes connections behind our back, and the system gives their numbers anew."""
    messages = taken(channel, 3)
    let_go(channel, channel)
    files = [(tmp_path / str(number)).open("wb") for number in range(20)]
    for message in messages:
        message.ack()
    for file in files:
        file.close()
    assert {path.stat().st_size for path in tmp_path.iterdir()} == {0}


@pytest.mark.parametrize("lose", [killed, let_go])
def test_a_connection_that_is_gone_costs_nothing_but_a_second_try(
    channel: Any, store: redis.Redis, own_way: list[Any], lose: Callable[[Any, redis.Redis], None]
) -> None:
    """By the server, or by the pool it was taken of; from then on another one serves."""
    messages = taken(channel, 3, own_way)
    lose(channel, store)
    for message in messages:
        message.ack()
    assert noted(store) == (0, 0)
    assert len(own_way) == 1


def test_an_error_is_the_one_that_redis_py_raises(channel: Any, store: redis.Redis) -> None:
    """Of the second try; and the connection that gave it is not used again."""
    (message,) = taken(channel, 1)
    store.delete(NOTED)
    store.set(NOTED, "no hash")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        message.ack()
    store.delete(NOTED)
    message.ack()
    assert noted(store) == (0, 0)


def test_everything_else_goes_redis_pys_way(
    channel: Any, store: redis.Redis, own_way: list[Any]
) -> None:
    """Other commands, watched keys, what is large: kombu gives a message back to its queue so."""
    (message,) = taken(channel, 1, own_way)
    assert own_way == []
    channel.qos.restore_by_tag(message.delivery_tag)
    assert noted(store) == (0, 0)
    assert store.llen("noted") == 1
    client = channel._create_client()
    assert client.pipeline().lpush("other", "a").execute() == [1]
    assert client.pipeline().hset(NOTED, "tag", "x" * 100_000).execute() == [1]
    assert client.pipeline(False).hset(NOTED, "tag", "y").execute() == [0]
    assert client.pipeline().execute() == []
    client.transaction(lambda pipe: (pipe.multi(), pipe.hset(NOTED, "tag", "z")), "watched")
    assert len(own_way) == 6


def test_many_threads_note_at_once(channel: Any, store: redis.Redis, own_way: list[Any]) -> None:
    """As a pool of threads does, each on a connection of its own."""
    messages = taken(channel, 200, own_way)
    shares = [messages[n::8] for n in range(8)]
    threads = [
        threading.Thread(target=lambda mine=mine: [message.ack() for message in mine])  # type: ignore[misc]
        for mine in shares
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert noted(store) == (0, 0)
    assert own_way == []


def test_a_burst_leaves_the_pool_as_it_was(channel: Any, store: redis.Redis) -> None:
    """As many at once as the pool has connections, as under gevent: one is kept, the others go
    back, so that all else finds one."""
    most = channel.pool.max_connections
    messages = taken(channel, most)
    store.execute_command("CLIENT", "PAUSE", 300, "WRITE")
    threads = [threading.Thread(target=message.ack) for message in messages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert noted(store) == (0, 0)
    assert channel._size("noted") == 0
    assert len(channel.pool._in_use_connections) <= 2


def test_a_server_that_stands_still_is_waited_for_once(
    server: EmbeddedServer, own_way: list[Any]
) -> None:
    """The timeout is told as it is, and no second try takes as long again."""
    with redis.Redis.from_url(server.url, socket_timeout=0.3) as client:
        noting.note_quickly(client)
        assert client.pipeline().hset(NOTED, "tag", "a").execute() == [1]
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.pipeline().hset(NOTED, "tag", "b").execute()
        server.resume()
        assert own_way == []
        assert client.pipeline().hset("other", "tag", "c").execute() == [1]


def test_what_a_server_tells_by_itself_is_no_answer() -> None:
    """A push of RESP3 is a list as well, of a kind of its own."""
    push = type("PushNotification", (list,), {})
    assert noting._went_well([1, 1], 2)
    assert not noting._went_well(push([1, 1]), 2)
    assert not noting._went_well([b"FAILING_OVER", 1, 2], 2)
    assert not noting._went_well([1, redis.ResponseError("no")], 2)


def test_a_signal_in_its_midst_leaves_no_reply_for_the_next(
    channel: Any, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection goes, for what it was asked may be answered still."""
    first, second = taken(channel, 2)

    def struck(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(noting.Lean, "_next", struck)
        with pytest.raises(KeyboardInterrupt):
            first.channel.qos.ack(first.delivery_tag)
    assert channel._create_client().pipeline().hset("other", "a", "b").execute() == [1]
    second.ack()
    first.channel.qos.ack(first.delivery_tag)
    assert noted(store) == (0, 0)


def test_pipelines_that_somebody_watches_are_left_alone(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As OpenTelemetry watches them. So are clients of another kind, and small pools."""
    client = redis.Redis.from_url(server.url)
    for watching in (functools.wraps(Pipeline.execute)(lambda self: []), lambda self: []):
        monkeypatch.setattr(Pipeline, "execute", watching)
        noting.note_quickly(client)
        assert type(client.pipeline()) is Pipeline
        monkeypatch.undo()
    small = redis.Redis.from_url(server.url, max_connections=noting.LEAST - 1)
    noting.note_quickly(small)
    assert type(small.pipeline()) is Pipeline

    class Other(redis.Redis):
        pass

    other = Other.from_url(server.url)
    noting.note_quickly(other)
    assert type(other.pipeline()) is Pipeline
    noting.note_quickly(client)
    assert type(client.pipeline()) is not Pipeline
