"""A trace on a server is found by its list, whatever the list has forgotten, and at any size."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import redis

from audit.errors import MemoryUrlError
from audit.memory import open_memory
from audit.memory.base import Once, RowFilter
from audit.memory.newest import key_of
from audit.memory.redis import RedisMemory
from audit.memory.redis_trace import LONGEST
from audit.row import AuditRow, Reason, timestamp
from tests.pages import OTHER, rows_of, walk
from tests.support import (
    TENANT,
    TRACE_ID,
    completed,
    make_ending,
    make_identity,
    refused,
    started,
)

LIST = f"audit:{{{TENANT}}}:trace:{TRACE_ID}"
TRACED = f"audit:{{{TENANT}}}:traced"
DAY = 86_400
OTHER_TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def client(empty_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(empty_url) as made:
        yield made


@pytest.fixture
def memory(empty_url: str) -> Iterator[RedisMemory]:
    yield from kept_for(empty_url, 30)


@pytest.fixture
def shorter(empty_url: str) -> Iterator[RedisMemory]:
    """The same memory for a writer whose lists last a day."""
    yield from kept_for(empty_url, 1)


@pytest.fixture
def without(empty_url: str) -> Iterator[RedisMemory]:
    """The same memory for a writer that keeps no lists."""
    yield from kept_for(empty_url, 0)


def kept_for(url: str, days: int) -> Iterator[RedisMemory]:
    made = open_memory(f"{url}?trace_days={days}", timeout=30)
    assert isinstance(made, RedisMemory)
    yield made
    made.close()


def ago(memory: RedisMemory, client: redis.Redis, days: float, row: AuditRow) -> None:
    """Emit a row as it was done so long ago; a list that would have expired since is gone."""
    moment = int((time.time() - days * DAY) * 1000)
    ts = timestamp(datetime.fromtimestamp(moment / 1000, UTC))
    row = AuditRow(kind=row.kind, ts=ts, payload=row.payload, meta=row.meta)
    client.sadd("audit:tenants", row.tenant_id)
    word, _ = client.eval(
        memory.script.replace("'XADD', rows, '*'", f"'XADD', rows, '{moment}-*'"),
        *memory.command(row),
    )
    assert word == b"new"
    seconds = memory.command(row)[-1]
    if days * DAY > int(seconds if str(seconds).isdecimal() else 0):
        client.delete(LIST)


def insist(memory: RedisMemory, trace_id: str = TRACE_ID) -> None:
    """Every way of asking for the trace gives what reading everything gives."""
    everything = list(memory.rows())
    for tenant in (None, TENANT, OTHER):
        for since in (None, datetime.now(UTC) - timedelta(minutes=1)):
            wanted = RowFilter(tenant_id=tenant, trace_id=trace_id, since=since)
            expected = [row for row in everything if wanted.matches(row)]
            assert list(memory.select(wanted)) == expected, wanted
            newest = sorted(expected, key=lambda row: key_of(row.tenant_id, str(row.position)))
            assert rows_of(walk(memory, wanted, most=3)) == newest, wanted


def calls(client: redis.Redis) -> dict[str, int]:
    return {name: found["calls"] for name, found in client.info("commandstats").items()}


def varied(memory: RedisMemory, count: int) -> None:
    """Invocations of two tenants and two traces that end in every way there is."""
    dice = random.Random(count)
    for _ in range(count):
        identity = make_identity(
            tenant_id=dice.choice([TENANT, OTHER]), trace_id=dice.choice([TRACE_ID, OTHER_TRACE])
        )
        if dice.randrange(6) == 0:
            memory.emit(refused(identity))
            continue
        once = Once(token=dice.choice("ab"), seconds=60) if dice.randrange(3) == 0 else None
        memory.emit(started(identity), once)
        for reason in dice.sample([Reason.RETURNED, Reason.RAISED, Reason.ABANDONED], 2):
            if dice.randrange(3):
                memory.emit(completed(identity, make_ending(reason)))


def test_lists_give_what_reading_everything_gives(memory: RedisMemory) -> None:
    """Started, completed, late, settled, replayed and refused rows, of one tenant and of all."""
    varied(memory, 150)
    for trace_id in (TRACE_ID, OTHER_TRACE, "f" * 32, "no trace"):
        insist(memory, trace_id)


def test_an_ending_told_from_outside_is_found_by_its_own_trace(memory: RedisMemory) -> None:
    """Where a message had no trace, who reports from outside may name another than who ran it."""
    identity = make_identity(trace_id=OTHER_TRACE)
    memory.emit(started(identity))
    memory.emit(
        completed(make_identity(request_id=identity.request_id), make_ending(Reason.WORKER_LOST))
    )
    assert len(list(memory.rows(trace_id=TRACE_ID))) == 1
    insist(memory)


def test_what_a_look_costs_does_not_grow_with_the_history(
    memory: RedisMemory, client: redis.Redis
) -> None:
    """The same commands and about as many bytes beside 40 rows and beside 2,000."""
    for _ in range(3):
        memory.emit(started(make_identity()))
    spent = []
    for more in (20, 980):
        for _ in range(more):
            identity = make_identity(trace_id=OTHER_TRACE)
            memory.emit(started(identity))
            memory.emit(completed(identity))
        client.config_resetstat()
        assert len(list(memory.rows(TENANT, trace_id=TRACE_ID))) == 3
        assert len(memory.page(RowFilter(trace_id=TRACE_ID)).rows) == 3
        sent = client.info("stats")["total_net_output_bytes"]
        spent.append((calls(client), sent))
    assert spent[0][0] == spent[1][0]
    assert spent[0][0]["cmdstat_xrange"] == 8
    assert "cmdstat_xrevrange" not in spent[0][0]
    assert spent[1][1] < 1.1 * spent[0][1]
    assert spent[1][1] < 20_000


def test_a_start_renews_the_list_and_nothing_else_does(
    memory: RedisMemory, client: redis.Redis
) -> None:
    """It lasts for trace_days from the newest start; the same start again adds nothing."""
    identity = make_identity()
    memory.emit(started(identity))
    assert 30 * DAY - 60 < int(client.ttl(LIST)) <= 30 * DAY
    client.expire(LIST, 100)
    memory.emit(completed(identity))
    memory.emit(started(identity, ts=next(memory.rows()).ts))
    assert (int(client.ttl(LIST)), client.llen(LIST)) == (100, 1)
    memory.emit(started(make_identity()))
    assert (int(client.ttl(LIST)) > 29 * DAY, client.llen(LIST)) == (True, 2)


def test_what_is_older_than_the_list_is_found_all_the_same(
    memory: RedisMemory, client: redis.Redis
) -> None:
    """The older rows are read one by one: some of the trace, and one that ends behind them."""
    long_, short, new = (make_identity() for _ in range(3))
    ago(memory, client, 40, started(long_))
    ago(memory, client, 39, started(short))
    ago(memory, client, 39, completed(short))
    ago(memory, client, 38, started(make_identity(trace_id=OTHER_TRACE)))
    memory.emit(started(new))
    memory.emit(completed(long_))
    assert client.lrange(LIST, 0, -1) == [new.request_id.encode()]
    assert len(list(memory.rows(trace_id=TRACE_ID))) == 5
    insist(memory)


def test_rows_from_before_there_were_lists_are_found(
    memory: RedisMemory, without: RedisMemory, client: redis.Redis
) -> None:
    """The server says from where on rows are listed; what stands before is read."""
    without.emit(started(old := make_identity()))
    insist(memory)
    memory.emit(started(make_identity()))
    memory.emit(completed(old))
    assert client.llen(LIST) == 1
    insist(memory)
    without.emit(started(make_identity()))
    insist(memory)


def test_writers_may_keep_lists_for_different_times(
    memory: RedisMemory, shorter: RedisMemory, client: redis.Redis
) -> None:
    """A list counts for no longer than the one that kept it the shortest has promised."""
    ago(memory, client, 20, started(make_identity(trace_id=OTHER_TRACE)))
    ago(shorter, client, 2, started(make_identity()))
    insist(memory)
    memory.emit(started(make_identity()))
    assert client.llen(LIST) == 1
    insist(memory)
    insist(shorter)


def test_the_server_says_what_the_lists_cover(
    memory: RedisMemory, shorter: RedisMemory, without: RedisMemory, client: redis.Redis
) -> None:
    """Seconds, and from where on; shorter at once, longer from that row on, nothing without."""

    def emitted(by: RedisMemory) -> tuple[bytes | None, str]:
        by.emit(started(make_identity()))
        position = by.last_position(TENANT)
        return client.get(TRACED), str(position)

    assert emitted(memory)[0] == emitted(memory)[0] == b"2592000 0-0"
    assert emitted(shorter)[0] == b"86400 0-0"
    found, since = emitted(memory)
    assert found == f"2592000 {since}".encode()
    assert emitted(shorter)[0] == f"86400 {since}".encode()
    assert emitted(without)[0] is None
    found, since = emitted(shorter)
    assert found == f"86400 {since}".encode()


def test_rows_of_before_the_lists_are_read_though_they_are_of_one_invocation(
    memory: RedisMemory, without: RedisMemory, client: redis.Redis
) -> None:
    """An ending from outside, of another trace, begins the lists behind the start that has none."""
    identity = make_identity(trace_id=OTHER_TRACE)
    without.emit(started(identity))
    memory.emit(
        completed(make_identity(request_id=identity.request_id), make_ending(Reason.WORKER_LOST))
    )
    assert client.get(TRACED) == f"2592000 {memory.last_position(TENANT)}".encode()
    assert len(list(memory.rows(trace_id=OTHER_TRACE))) == 1


def test_a_connection_that_was_lost_costs_no_trace(
    memory: RedisMemory, client: redis.Redis
) -> None:
    """It is read over another one, as everything is that may be asked twice."""
    memory.emit(started(make_identity()))
    assert len(list(memory.rows(TENANT, trace_id=TRACE_ID))) == 1
    client.client_kill_filter(_type="normal", skipme=True)
    assert len(list(memory.rows(TENANT, trace_id=TRACE_ID))) == 1


def test_a_list_that_is_full_is_not_relied_on(memory: RedisMemory, client: redis.Redis) -> None:
    """It grows no further, and whoever asks reads the rows."""
    client.rpush(LIST, *["none"] * LONGEST)
    for length in (LONGEST + 1, LONGEST + 1):
        memory.emit(started(make_identity()))
        assert client.llen(LIST) == length
    assert len(list(memory.rows(trace_id=TRACE_ID))) == 2
    insist(memory)


def test_trimmed_rows_are_gone_from_the_trace_too(memory: RedisMemory) -> None:
    """What is left of it is found, and a page says that there was more."""
    first, second = make_identity(), make_identity()
    for identity in (first, second):
        memory.emit(started(identity))
        memory.emit(completed(identity))
    kept = list(memory.rows(request_id=second.request_id))
    assert memory.trim(TENANT, str(kept[0].position)) == 2
    assert list(memory.rows(trace_id=TRACE_ID)) == kept
    page = memory.page(RowFilter(trace_id=TRACE_ID))
    assert (page.rows, page.trimmed) == (tuple(reversed(kept)), True)


@pytest.mark.parametrize("days", ["", "-1", "1.5", "geheim", "36501", "\u0663", f"{0:09}{9:09}"])
def test_days_that_are_none_are_refused(days: str) -> None:
    """The text says what they are and repeats nothing."""
    with pytest.raises(MemoryUrlError, match="trace_days must be a whole number") as caught:
        RedisMemory(f"redis://127.0.0.1:1/0?trace_days={days}")
    assert "geheim" not in str(caught.value)
