"""A result that a memory stores in one step with its completed row."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from audit.embedded import EmbeddedServer
from audit.errors import AuditMemoryError
from audit.memory import AuditMemory, open_memory
from audit.memory.base import Stored
from audit.memory.result import TaskResult
from audit.row import Reason
from audit.testing.memory import InMemory
from tests.support import completed, make_ending, make_identity, started

KEY = "celery-task-meta-1"
RESULT = TaskResult(key=KEY, value='{"status": "SUCCESS", "result": 1}', seconds=60)


@pytest.fixture
def store(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        client.flushdb()
        yield client


def test_both_are_stored_and_told(memory: AuditMemory, store: redis.Redis) -> None:
    """The row is new, the result is there with its expiry, and whoever waits hears of it."""
    identity = make_identity()
    row = completed(identity)
    memory.emit(started(identity))
    with store.pubsub() as waiting:
        waiting.subscribe(KEY)
        assert waiting.get_message(timeout=5) is not None
        assert memory.emit_with_result(row, RESULT) is Stored.NEW
        told = waiting.get_message(timeout=5)
    assert told is not None
    assert told["data"] == RESULT.value.encode()
    assert store.get(KEY) == RESULT.value.encode()
    assert 0 < store.ttl(KEY) <= 60
    assert memory.emit_with_result(row, RESULT) is Stored.REPEATED


@pytest.mark.parametrize("reason", [Reason.WORKER_LOST, None], ids=["closed before", "not started"])
def test_where_the_row_is_not_stored_the_result_is_not(
    memory: AuditMemory, store: redis.Redis, reason: Reason | None
) -> None:
    """A rival closed it, or it never started: the caller of this decides what to tell."""
    identity = make_identity()
    if reason is not None:
        memory.emit(started(identity))
        memory.emit(completed(identity, make_ending(reason)))
        assert memory.emit_with_result(completed(identity), RESULT) is Stored.LATE
    else:
        with pytest.raises(AuditMemoryError):
            memory.emit_with_result(completed(identity), RESULT)
    assert store.get(KEY) is None


def test_what_is_no_result_is_replaced(memory: AuditMemory, store: redis.Redis) -> None:
    """Something of another type under its key stops neither."""
    identity = make_identity()
    store.rpush(KEY, "no result")
    memory.emit(started(identity))
    assert memory.emit_with_result(completed(identity), RESULT) is Stored.NEW
    assert store.get(KEY) == RESULT.value.encode()


@pytest.mark.parametrize("lacking", ["publish", "set", "get", "keys", "channels"])
def test_a_user_without_the_rights_is_found_out_on_trial(
    memory: AuditMemory, store: redis.Redis, server: EmbeddedServer, lacking: str
) -> None:
    """Before a worker takes a message, and not with each of its endings."""
    memory.prove_results(KEY, "trial")
    rights = ["~audit:*", "+@all", "~celery-task-meta-*", "&celery-task-meta-*"]
    if lacking in ("keys", "channels"):
        rights.remove({"keys": "~celery-task-meta-*", "channels": "&celery-task-meta-*"}[lacking])
    else:
        rights.append(f"-{lacking}")
    store.execute_command("ACL", "SETUSER", "host", "reset", "on", ">secret", *rights)
    bound = open_memory(server.url.replace("redis://", "redis://host:secret@"))
    bound.check()
    with pytest.raises(AuditMemoryError):
        bound.prove_results(KEY, "trial")
    bound.close()
    store.execute_command("ACL", "DELUSER", "host")


def test_a_memory_that_stores_no_results_says_so() -> None:
    """Its ``results_at`` names no place."""
    memory = InMemory()
    assert memory.results_at is None
    with pytest.raises(NotImplementedError):
        memory.emit_with_result(completed(make_identity()), RESULT)
    with pytest.raises(NotImplementedError):
        memory.prove_results(KEY, "trial")
