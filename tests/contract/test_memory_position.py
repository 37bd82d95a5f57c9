"""Beside the newest checkpoint: where the last row stands that it covers, over every memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from audit.embedded import EmbeddedServer
from audit.memory import AuditMemory
from audit.memory.base import order_of
from audit.testing import InMemory
from tests.support import TENANT, checked_memory, wait_until

OTHER_TENANT = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"


@pytest.fixture(params=["redis", "cluster", "postgres", "sqlite", "in-memory"])
def memory(request: pytest.FixtureRequest) -> Iterator[AuditMemory]:
    """A fresh, empty memory, for every backend there is."""
    if request.param == "in-memory":
        yield InMemory()
        return
    if request.param != "redis":
        with checked_memory(request.getfixturevalue(f"{request.param}_url")) as made:
            yield made
        return
    with EmbeddedServer() as server, checked_memory(server.url) as made:
        yield made


def test_a_position_takes_its_place_together_with_its_checkpoint(memory: AuditMemory) -> None:
    """And not where the swap failed."""
    assert memory.sealed_position(TENANT) is None
    assert not memory.swap_sealed(TENANT, b"other", b"1", "1-0")
    assert memory.sealed_position(TENANT) is None
    assert memory.swap_sealed(TENANT, None, b"1", "1700000000000-18446744073709551615")
    assert memory.sealed_position(TENANT) == "1700000000000-18446744073709551615"
    assert not memory.swap_sealed(TENANT, None, b"2", "2-0")
    assert memory.sealed_position(TENANT) == "1700000000000-18446744073709551615"
    assert memory.swap_sealed(TENANT, b"1", b"2", "1700000000001-0")
    assert memory.sealed(TENANT) == b"2"
    assert memory.sealed_position(TENANT) == "1700000000001-0"


def test_a_checkpoint_without_a_position_leaves_the_one_that_is_there(memory: AuditMemory) -> None:
    """As one of the same rows does that another key has signed; a log may have none at all."""
    memory.swap_sealed("meta", None, b"1")
    assert memory.sealed_position("meta") is None
    memory.swap_sealed(TENANT, None, b"1", "5-1")
    assert memory.swap_sealed(TENANT, b"1", b"2")
    assert (memory.sealed(TENANT), memory.sealed_position(TENANT)) == (b"2", "5-1")


def test_each_log_has_its_own_position(memory: AuditMemory) -> None:
    """It makes no tenant and is no row."""
    memory.swap_sealed(TENANT, None, b"1", "5-1")
    memory.swap_sealed(OTHER_TENANT, None, b"1", "6-1")
    assert memory.sealed_position(TENANT) == "5-1"
    assert memory.sealed_position(OTHER_TENANT) == "6-1"
    assert memory.tenants() == []
    assert memory.last_position(TENANT) is None


def test_an_empty_position_is_refused(memory: AuditMemory) -> None:
    """It could not be told from none; the checkpoint is not swapped either."""
    with pytest.raises(ValueError, match="empty"):
        memory.swap_sealed(TENANT, None, b"1", "")
    assert memory.sealed(TENANT) is None


def test_a_position_is_never_seen_without_its_checkpoint(memory: AuditMemory) -> None:
    """Nor a checkpoint without its position: of three looks none is older than the one before."""
    done, looks = threading.Event(), list[tuple[int, int, int]]()
    assert memory.swap_sealed(TENANT, None, b"0", "0-0")

    def look() -> None:
        while not done.is_set():
            before, position = memory.sealed(TENANT), memory.sealed_position(TENANT)
            after = memory.sealed(TENANT)
            looks.append((int(before or b""), order_of(position or "")[0], int(after or b"")))

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(500):
        old, new = str(number).encode(), str(number + 1).encode()
        assert memory.swap_sealed(TENANT, old, new, f"{number + 1}-0")
    wait_until(lambda: bool(looks), 60)
    done.set()
    reader.join()
    assert all(before <= position <= after for before, position, after in looks)
