"""What somebody else has put in the place of what a server keeps of a tenant, key by key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from audit.errors import MemoryDamagedError, MemoryUnavailableError
from audit.memory.base import RowFilter, Stored
from audit.memory.redis import RedisMemory
from tests.pages import invoke
from tests.support import TENANT, TRACE_ID, make_identity, started, wait_until

OTHER = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
REQUEST = "01KB8Z5T3MZJ9Y2V4Q6R8S0TAW"


@pytest.fixture
def memory(empty_url: str) -> Iterator[RedisMemory]:
    """Two tenants, each with a closed invocation and an open one."""
    made = RedisMemory(empty_url, timeout=30)
    for tenant_id in (TENANT, OTHER):
        invoke(made, tenant_id=tenant_id)
        made.emit(started(make_identity(tenant_id=tenant_id, request_id=REQUEST)))
    yield made
    made.close()


@pytest.fixture
def client(empty_url: str) -> redis.Redis:
    return redis.Redis.from_url(empty_url)


def replace(client: redis.Redis, key: str) -> None:
    """A list stands where something else did."""
    client.delete(f"audit:{{{TENANT}}}:{key}")
    client.lpush(f"audit:{{{TENANT}}}:{key}", "x")


def asks(memory: RedisMemory, tenant_id: str | None) -> dict[str, Callable[[], Any]]:
    """Every question, of one tenant, or of all."""
    asked: dict[str, Callable[[], Any]] = {
        "select": lambda: list(memory.select(RowFilter(tenant_id=tenant_id))),
        "select one": lambda: list(memory.rows(tenant_id, request_id=REQUEST)),
        "running": lambda: list(memory.running(tenant_id)),
        "page": lambda: memory.page(RowFilter(tenant_id=tenant_id)),
        "page of one": lambda: memory.page(RowFilter(tenant_id=tenant_id, request_id=REQUEST)),
        "select trace": lambda: list(memory.rows(tenant_id, trace_id=TRACE_ID)),
        "page of trace": lambda: memory.page(RowFilter(tenant_id=tenant_id, trace_id=TRACE_ID)),
        "open_page": lambda: memory.open_page(tenant_id, 5),
        "follow": lambda: next(memory.follow(RowFilter(tenant_id=tenant_id), poll=0)),
    }
    if tenant_id is not None:
        asked |= {
            "entries": lambda: memory.entries(tenant_id, None, 5),
            "last_position": lambda: memory.last_position(tenant_id),
            "sealed": lambda: memory.sealed(tenant_id),
            "sealed_position": lambda: memory.sealed_position(tenant_id),
            "swap_sealed": lambda: memory.swap_sealed(tenant_id, b"old", b"new"),
            "trimmed": lambda: memory.trimmed(tenant_id),
            "trim": lambda: memory.trim(tenant_id, "1-0"),
            "deaths": lambda: memory.deaths(tenant_id, "message"),
            "emit": lambda: memory.emit(started(make_identity(tenant_id=tenant_id))),
        }
    return asked


def failing(memory: RedisMemory, tenant_id: str | None) -> set[str]:
    """The questions that have no answer; the error always names the tenant and no value."""
    found: dict[str, MemoryDamagedError] = {}
    for name, ask in asks(memory, tenant_id).items():
        try:
            ask()
        except MemoryDamagedError as error:
            found[name] = error
    for damage in found.values():
        assert damage.tenant_id == TENANT
        assert f"audit:{{{TENANT}}}" in str(damage)
        assert "secret" not in str(damage)
    return set(found)


FAILING: dict[str, tuple[set[str], set[str]]] = {
    "rows": (
        {"entries", "last_position", "trim", "emit"},
        {"select", "select one", "running", "page", "page of one", "open_page", "follow"}
        | {"select trace", "page of trace"},
    ),
    "requests": (
        {"emit"},
        {"select one", "running", "page of one", "open_page", "select trace", "page of trace"},
    ),
    "open": ({"emit"}, {"running", "open_page"}),
    "deaths": ({"deaths"}, set()),
    "sealed": ({"sealed", "swap_sealed"}, set()),
    "sealed_position": ({"sealed_position"}, set()),
    "trimmed": ({"trimmed"}, {"page", "page of trace"}),
    "traced": ({"emit"}, {"select trace", "page of trace"}),
}


@pytest.mark.parametrize("key", FAILING)
def test_a_key_of_another_type_is_an_error_of_its_tenant(
    memory: RedisMemory, client: redis.Redis, key: str
) -> None:
    """Whatever needs the key says so and names the tenant; another tenant has every answer."""
    replace(client, key)
    of_one, of_all = FAILING[key]
    assert failing(memory, TENANT) == of_one | of_all
    assert failing(memory, None) == of_all
    assert failing(memory, OTHER) == set()
    memory.check()


@pytest.mark.parametrize(
    "mark", [b"\xff", b"abc", b"secret", b"", b"1-2-3", b"18446744073709551616"]
)
def test_a_mark_of_trimming_that_is_no_position_is_an_error_of_its_tenant(
    memory: RedisMemory, client: redis.Redis, mark: bytes
) -> None:
    """Not a value that nobody can read, nor an end of whoever asks."""
    client.set(f"audit:{{{TENANT}}}:trimmed", mark)
    assert failing(memory, TENANT) == {"trimmed", "page", "page of trace"}
    assert failing(memory, OTHER) == set()


@pytest.mark.parametrize("covers", [b"\xff", b"secret", b"", b"1", b"1 x", b"x 1-1", b"1 1-1 1"])
def test_what_lists_of_traces_cover_is_said_or_is_an_error(
    memory: RedisMemory, client: redis.Redis, covers: bytes
) -> None:
    """A trace has no answer then, until the next row says anew what they cover."""
    client.set(f"audit:{{{TENANT}}}:traced", covers)
    assert failing(memory, None) == {"select trace", "page of trace"}
    assert failing(memory, OTHER) == set()
    assert memory.emit(started(make_identity())) is Stored.NEW
    assert failing(memory, TENANT) == set()


def test_a_list_of_a_trace_that_is_none_lets_nothing_start_in_it(
    memory: RedisMemory, client: redis.Redis
) -> None:
    """A row that nobody would find by its trace is not stored; other traces go on."""
    client.set(f"audit:{{{TENANT}}}:trace:{TRACE_ID}", "secret")
    assert failing(memory, TENANT) == {"emit", "select trace", "page of trace"}
    assert len(list(memory.rows(TENANT))) == 3
    assert memory.emit(started(make_identity(trace_id="f" * 32))) is Stored.NEW


@pytest.mark.parametrize("state", [b"o", b"o \xff", b"o secret", b"o -"])
def test_a_state_that_is_none_is_an_error_of_its_tenant(
    memory: RedisMemory, client: redis.Redis, state: bytes
) -> None:
    """Where the rows of an invocation stand can then not be said."""
    client.hset(f"audit:{{{TENANT}}}:requests", REQUEST, state)
    of_one = {"running", "open_page"}
    if state != b"o":
        of_one |= {"select one", "page of one", "select trace", "page of trace"}
    assert failing(memory, TENANT) == failing(memory, None) == of_one
    assert failing(memory, OTHER) == set()


def test_a_number_that_is_none_is_an_error_of_its_tenant(
    memory: RedisMemory, client: redis.Redis
) -> None:
    """The deaths of workers over a message, and when a worker was seen last."""
    client.hset(f"audit:{{{TENANT}}}:deaths", "message", "secret")
    assert failing(memory, TENANT) == {"deaths"}
    (row,) = memory.rows(OTHER, request_id=REQUEST)
    for seen in ("abc", "inf"):
        client.set("audit:{lease:w}:seen", seen)
        with pytest.raises(MemoryDamagedError):
            memory.lived_ms(row, "w")


def test_a_list_of_tenants_that_is_none_is_an_error_of_no_tenant(
    memory: RedisMemory, client: redis.Redis
) -> None:
    """Nor is it an outage."""
    client.delete("audit:tenants")
    client.lpush("audit:tenants", "x")
    with pytest.raises(MemoryDamagedError, match="audit:tenants") as raised:
        memory.tenants()
    assert raised.value.tenant_id == ""
    assert memory.entries(TENANT, None, 5)


def test_another_tenants_row_is_stored_beside_it(memory: RedisMemory, client: redis.Redis) -> None:
    """An emit that failed so may have stored its row, and the next one is no worse for it."""
    replace(client, "open")
    with pytest.raises(MemoryDamagedError) as raised:
        memory.emit(started(make_identity()))
    assert raised.value.maybe_stored
    assert memory.emit(started(make_identity(tenant_id=OTHER))) is Stored.NEW


def test_what_is_no_position_is_refused(memory: RedisMemory) -> None:
    """By whoever is asked to read on from there; behind the last one there is, nothing stands."""
    for after in ("abc", "1_0-0", " 1-0", "18446744073709551616-0"):
        with pytest.raises(ValueError, match="position"):
            memory.entries(TENANT, after, 1)
    last = f"{2**64 - 1}-{2**64 - 1}"
    assert memory.entries(TENANT, last, 1) == []


def test_following_all_meets_a_tenant_whose_rows_can_have_no_successor(
    memory: RedisMemory, client: redis.Redis
) -> None:
    """The others' rows come."""
    last = f"{2**64 - 1}-{2**64 - 1}"
    client.xadd(f"audit:{{{TENANT}}}:rows", {"row": "x"}, id=last)
    coming = memory.follow(RowFilter(), poll=0.01)
    row = started(make_identity(tenant_id=OTHER))
    memory.emit(row)
    assert wait_until(lambda: next(coming)).to_bytes() == row.to_bytes()


def test_a_server_that_is_gone_is_an_outage() -> None:
    """And nobody's damage."""
    memory = RedisMemory("redis://127.0.0.1:1/0", timeout=1)
    for ask in (memory.tenants, lambda: memory.trimmed(TENANT)):
        with pytest.raises(MemoryUnavailableError) as raised:
            ask()
        assert not isinstance(raised.value, MemoryDamagedError)
