"""`audit.memory.redis`: the list of tenants is written anew by whoever emits."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
import redis

from audit.embedded import EmbeddedServer
from audit.memory.connection import Command, Line
from audit.memory.redis import RedisMemory
from audit.memory.redis_names import NAMED_FOR
from tests.support import TENANT, completed, make_identity, refused, started

LIST = "audit:tenants"


class Clock:
    """The monotonic clock, and what a test puts on top."""

    ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.mark.parametrize("make", [started, refused])
def test_a_name_that_was_taken_out_of_the_list_comes_back(
    server: EmbeddedServer, make: type
) -> None:
    """With the next row that a worker emits a second later, over the connection that it has."""
    clock = Clock()
    memory = RedisMemory(server.url, clock=clock)
    with redis.Redis.from_url(server.url) as client:
        memory.emit(make(make_identity()))
        assert client.srem(LIST, TENANT) == 1
        assert memory.tenants() == []
        clock.ahead += NAMED_FOR
        memory.emit(make(make_identity()))
        assert memory.tenants() == [TENANT]
    memory.close()


def test_naming_costs_a_busy_worker_nothing(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command more a second, in the same round trip as the row."""
    sent: list[list[str]] = []
    exchange = Line.exchange

    def spy(line: Line, commands: Sequence[Command], *more: object) -> list[object]:
        sent.append([command[0] for command in commands])
        return exchange(line, commands, *more)  # type: ignore[arg-type]

    moment = time.monotonic()
    memory = RedisMemory(server.url, timeout=30, clock=lambda: moment)
    memory.check()
    monkeypatch.setattr(Line, "exchange", spy)
    for _ in range(5):
        identity = make_identity()
        memory.emit(started(identity))
        memory.emit(completed(identity))
    assert sent == [["SADD", "EVALSHA"], *[["EVALSHA"]] * 9]
    moment += NAMED_FOR
    memory.emit(started(make_identity()))
    assert sent[10:] == [["SADD", "EVALSHA"]]
    memory.close()
