"""A row that the server stored while something beside it failed: nobody is told that it is not."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from audit.embedded import EmbeddedServer
from audit.errors import MemoryUnavailableError
from audit.memory import open_memory
from audit.memory.base import Stored
from audit.memory.connection import AGAIN
from audit.memory.redis_talk import insist_on
from audit.row import AuditRow
from tests.cluster import ask, replicated, told
from tests.support import TENANT, make_identity, started, wait_until

Pair = tuple[EmbeddedServer, EmbeddedServer]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with replicated() as pair:
        yield pair


def stored(server: EmbeddedServer, row: AuditRow) -> bool:
    return ask(server, "HGET", f"audit:{{{TENANT}}}:requests", row.request_id) is not None


def as_user(server: EmbeddedServer, *rights: str) -> str:
    """The URL of a user who may do all but what these take away."""
    ask(server, "ACL", "SETUSER", "less", "reset", "on", ">x", "~*", "&*", "+@all", *rights)
    return server.url.replace("redis://", "redis://less:x@")


@pytest.mark.parametrize(
    ("right", "parameters"), [("-wait", "?replicas=1"), ("-srem", "?replicas=1"), ("-sadd", "")]
)
def test_only_the_scripts_own_error_says_that_a_row_is_not_there(
    pair: Pair, right: str, parameters: str
) -> None:
    """Where the user may not wait, or not name the tenant, the row stands all the same."""
    memory = open_memory(as_user(pair[0], right) + parameters, timeout=5)
    row = started(make_identity())
    with pytest.raises(MemoryUnavailableError) as caught:
        memory.emit(row)
    assert stored(pair[0], row)
    assert caught.value.maybe_stored
    as_user(pair[0], "-xadd")
    with pytest.raises(MemoryUnavailableError) as caught:
        memory.emit(row := started(make_identity()))
    assert not stored(pair[0], row)
    assert not caught.value.maybe_stored
    memory.close()


def test_a_repeat_that_could_not_be_written_again_is_not_acknowledged(pair: Pair) -> None:
    """Its replicas were waited for by nobody; the row may be on the master alone."""
    url = as_user(pair[0]) + "?replicas=1"
    memory, row = open_memory(url, timeout=5), started(make_identity())
    assert memory.emit(row) is Stored.NEW
    as_user(pair[0], "-hset")
    with pytest.raises(MemoryUnavailableError) as caught:
        memory.emit(row)
    assert caught.value.maybe_stored
    memory.close()


def test_an_error_of_wait_is_no_word_on_the_row() -> None:
    """A demoted master is asked again, or another one is; whatever else is wrong is told."""
    for text in ("UNBLOCKED force unblock", "WAIT cannot be used with replica instances. Since"):
        with pytest.raises(AGAIN) as caught:
            insist_on(1, ResponseError(text))
        assert not isinstance(caught.value, ResponseError)
    with pytest.raises(MemoryUnavailableError, match="no permissions"):
        insist_on(1, NoPermissionError("no permissions"))


def test_a_master_that_is_demoted_while_it_waits_leaves_doubt(pair: Pair) -> None:
    """The row stands there and may be on the replica; who emits asks again, and hears who is none
    any more. (Last: the pair is none afterwards.)"""
    master, replica = pair
    memory, row = open_memory(f"{master.url}?replicas=1", timeout=5), started(make_identity())
    memory.emit(started(make_identity()))
    raised: list[MemoryUnavailableError] = []

    def emit() -> None:
        with pytest.raises(MemoryUnavailableError) as caught:
            memory.emit(row)
        raised.append(caught.value)

    replica.pause()
    try:
        emitting = threading.Thread(target=emit)
        emitting.start()
        wait_until(lambda: told(master, "blocked_clients") == "1")
        ask(master, "REPLICAOF", "127.0.0.1", "1")
        emitting.join()
    finally:
        replica.resume()
    (error,) = raised
    assert stored(master, row)
    assert error.maybe_stored
    assert "UNBLOCKED" not in str(error)
    memory.close()
