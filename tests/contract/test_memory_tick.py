"""A started row that takes its tick (``Hold``), over every memory."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from audit.embedded import EmbeddedServer
from audit.errors import MemoryUnavailableError, RowRefusedError
from audit.memory import AuditMemory
from audit.memory.base import Hold, Once, RowRefusal, Stored
from audit.row import REFUSED, STARTED, Reason, Refusal
from audit.testing import FakeClock, InMemory
from tests.support import (
    TENANT,
    check_every_row,
    checked_memory,
    completed,
    make_ending,
    make_identity,
    refused,
    started,
)

OTHER_TENANT = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
ONCE = Once(token="message-1", seconds=1000)


@pytest.fixture(params=["redis", "cluster", "postgres", "sqlite", "in-memory"])
def memory(request: pytest.FixtureRequest) -> Iterator[AuditMemory]:
    """A fresh, empty memory, for every backend there is."""
    if request.param == "in-memory":
        memory = InMemory()
        yield memory
        check_every_row(memory)
        return
    if request.param == "redis":
        url = request.getfixturevalue("server").url
    else:
        url = request.getfixturevalue(f"{request.param}_url")
    with checked_memory(url) as made:
        yield made


def hold(holder: str, tick: str = "tick-1", seconds: int = 1000) -> Hold:
    return Hold(token=tick, holder=holder, seconds=seconds)


def is_taken(memory: AuditMemory, by: Hold, once: Once | None = None, **facts: Any) -> bool:
    """Whether the start of one more invocation is refused because its tick is taken."""
    try:
        memory.emit(started(make_identity(task_id=by.holder, **facts)), once, by)
    except RowRefusedError as error:
        return error.refusal == RowRefusal.TICK_TAKEN
    return False


def test_the_second_message_of_a_tick_is_refused(memory: AuditMemory) -> None:
    """Nothing of it is stored, until its refused row is."""
    assert not is_taken(memory, hold("task-1"))
    late = make_identity(task_id="task-2")
    for _ in range(2):  # its repetition, too
        with pytest.raises(RowRefusedError, match=RowRefusal.TICK_TAKEN):
            memory.emit(started(late), hold=hold("task-2"))
    assert [row.meta["task_id"] for row in memory.rows()] == ["task-1"]
    assert [row.meta["task_id"] for row in memory.running()] == ["task-1"]
    assert memory.emit(refused(late, Refusal.TICK_TAKEN)) is Stored.NEW
    assert [row.kind for row in memory.rows()] == [STARTED, REFUSED]


@pytest.mark.parametrize("once", [None, ONCE])
def test_its_holder_may_start_again(memory: AuditMemory, once: Once | None) -> None:
    """A redelivery and a retry of the first message have its task id, and run."""
    assert not is_taken(memory, hold("task-1"), once)
    assert not is_taken(memory, hold("task-1"), once)
    assert not is_taken(memory, hold("task-1"), attempt=1)
    assert [row.meta["redelivered"] for row in memory.rows()] == [False, once is not None, False]
    assert is_taken(memory, hold("task-2"), once)


def test_the_same_start_again_is_the_same_row(memory: AuditMemory) -> None:
    """An emit whose reply was lost is done again, with or without a token of its message."""
    for number, once in enumerate((None, ONCE)):
        row, taking = started(make_identity()), hold("task-1", f"tick-{number}")
        assert memory.emit(row, once, taking) is Stored.NEW
        assert memory.emit(row, once, taking) is Stored.REPEATED


def test_a_refused_message_leaves_no_token(memory: AuditMemory) -> None:
    """It never started: were it let in later, it would be no replay."""
    assert not is_taken(memory, hold("task-1"))
    assert is_taken(memory, hold("task-2"), ONCE)
    assert memory.emit(started(make_identity()), ONCE) is Stored.NEW


def test_ticks_are_of_their_tenant(memory: AuditMemory) -> None:
    """Another tenant's tick of that name is another tick, and so is another tick."""
    assert not is_taken(memory, hold("task-1"))
    assert not is_taken(memory, hold("task-2", "tick-2"))
    assert not is_taken(memory, hold("task-2"), tenant_id=OTHER_TENANT)


def test_a_start_that_is_barred_takes_no_tick(memory: AuditMemory) -> None:
    """It never ran, so the tick is anybody's."""
    barred = make_identity()
    memory.emit(completed(barred, make_ending(Reason.NOT_DISPATCHED)))
    with pytest.raises(RowRefusedError, match=RowRefusal.TOMBSTONE):
        memory.emit(started(barred), hold=hold("task-1"))
    assert not is_taken(memory, hold("task-2"))


def test_of_many_messages_of_a_tick_one_starts(memory: AuditMemory) -> None:
    """12 threads race for each of 40 ticks: one of them starts."""
    answers: list[tuple[int, bool]] = []

    def race(number: int) -> None:
        for tick in range(40):
            answers.append((tick, is_taken(memory, hold(f"task-{number}", f"tick-{tick}"))))

    threads = [threading.Thread(target=race, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(answers) == {
        **{(tick, False): 1 for tick in range(40)},
        **{(tick, True): 11 for tick in range(40)},
    }


def test_a_tick_stays_taken_for_its_seconds() -> None:
    """They count from the last start of its holder."""
    clock = FakeClock()
    memory = InMemory(clock=clock)
    answers = []
    for holder, passes in (("a", 9.5), ("b", 0), ("a", 9.5), ("b", 1), ("b", 0), ("a", 0)):
        answers.append(is_taken(memory, hold(holder, seconds=10)))
        clock.pass_by(passes)
    assert answers == [False, True, False, True, False, True]


def test_a_tick_is_one_key_that_expires(server: EmbeddedServer) -> None:
    """It holds who took it; where the server refuses the row, it is not there."""
    key, rows = (f"audit:{{{TENANT}}}:{name}" for name in ("tick:tick-1", "rows"))
    with checked_memory(server.url) as memory, redis.Redis.from_url(server.url) as client:
        client.set(rows, "no stream")
        with pytest.raises(MemoryUnavailableError):
            memory.emit(started(make_identity()), hold=hold("task-1"))
        assert not client.exists(key)
        client.delete(rows)
        assert not is_taken(memory, hold("task-1"))
        assert client.get(key) == b"task-1"
        assert 990 < int(client.ttl(key)) <= 1000
        assert not is_taken(memory, hold("task-1", seconds=2000))
        assert 1990 < int(client.ttl(key)) <= 2000


@pytest.mark.parametrize(
    "change",
    [{"token": ""}, {"holder": ""}, {"holder": "geheim\n"}, {"token": "geh\u00e9im"}],
)
def test_an_unusable_hold_is_an_error_that_repeats_nothing(change: dict[str, Any]) -> None:
    """Token and holder are printable ASCII, the seconds one or more."""
    with pytest.raises(ValueError, match="printable ASCII") as caught:
        Hold(**{"token": "tick-1", "holder": "task-1", "seconds": 5, **change})
    assert "geh" not in str(caught.value)
    with pytest.raises(ValueError, match="a second at least"):
        hold("task-1", seconds=0)


def test_a_hold_is_for_started_rows(memory: AuditMemory) -> None:
    """Nothing else takes a tick."""
    for row in (refused(make_identity()), completed(make_identity())):
        with pytest.raises(ValueError, match="only a started row"):
            memory.emit(row, hold=hold("task-1"))
    assert list(memory.rows()) == []
