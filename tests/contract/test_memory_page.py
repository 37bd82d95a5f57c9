"""Bounded reading (audit/memory/page.py), one suite over every memory."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from audit.errors import MemoryUnavailableError
from audit.memory import AuditMemory, open_memory
from audit.memory.base import RowFilter
from audit.memory.page import Page
from audit.row import COMPLETED, STARTED, AuditRow, Reason, timestamp
from audit.testing import InMemory
from tests.pages import ALL, OTHER, invoke, rows_of, tenant, walk
from tests.support import (
    TENANT,
    completed,
    make_ending,
    make_identity,
    started,
    wait_until,
)


@pytest.fixture(params=["redis", "cluster", "postgres", "sqlite", "in-memory"])
def memory(request: pytest.FixtureRequest) -> Iterator[AuditMemory]:
    """A fresh, empty memory, for every backend there is."""
    if request.param == "in-memory":
        yield InMemory()
        return
    url = "empty_url" if request.param == "redis" else f"{request.param}_url"
    made = open_memory(request.getfixturevalue(url), timeout=30)
    yield made
    made.close()


def scattered(memory: AuditMemory, tenants: int, invocations: int) -> list[AuditRow]:
    """Rows of many tenants, a few of them busy; each row as it is stored."""
    dice = random.Random(7)
    for _ in range(invocations):
        invoke(memory, tenant_id=tenant(min(dice.randrange(tenants), dice.randrange(tenants))))
    return list(memory.rows())


def next_moment() -> None:
    """Return in a later millisecond: the order of open invocations is no finer than that."""
    moment = time.time_ns() // 1_000_000
    wait_until(lambda: time.time_ns() // 1_000_000 > moment + 1)


def newest_first(rows: list[AuditRow]) -> list[bytes]:
    def place(row: AuditRow) -> tuple[int, int, str]:
        major, _, minor = str(row.position).partition("-")
        return -int(major), -int(minor), row.tenant_id

    return [row.to_bytes() for row in sorted(rows, key=place)]


def test_an_empty_memory_has_an_empty_page(memory: AuditMemory) -> None:
    """Where nothing was ever stored, a page is empty, and it is the last."""
    assert memory.page(ALL) == Page(rows=())
    assert memory.page(RowFilter(tenant_id=TENANT, request_id="none")) == Page(rows=())


def test_a_page_begins_with_the_newest_row(memory: AuditMemory) -> None:
    """The rows of a page are the newest, the newest first, with the bytes that are stored."""
    pairs = [invoke(memory) for _ in range(10)]
    page = memory.page(ALL, most=4)
    expected = [pairs[9][1], pairs[9][0], pairs[8][1], pairs[8][0]]
    assert [row.to_bytes() for row in page.rows] == [row.to_bytes() for row in expected]
    assert page.looked == 4
    assert page.next == f"{page.rows[-1].position}/{TENANT}"


@pytest.mark.parametrize(("most", "look"), [(1, 1), (3, 100), (100, 7), (1000, 5000)])
def test_pages_in_a_row_give_each_row_once(memory: AuditMemory, most: int, look: int) -> None:
    """From cursor to cursor every row of every tenant comes once, in one total order."""
    stored = scattered(memory, tenants=9, invocations=60)
    pages = walk(memory, most=most, look=look)
    assert [row.to_bytes() for row in rows_of(pages)] == newest_first(stored)
    assert sum(page.looked for page in pages) == len(stored)
    assert all(len(page.rows) <= most and page.looked <= look for page in pages)


def test_a_row_that_comes_meanwhile_moves_nothing(memory: AuditMemory) -> None:
    """The cursor is a point in the order: what is stored behind it changes no later page."""
    stored = scattered(memory, tenants=4, invocations=20)
    first = memory.page(ALL, most=10)
    invoke(memory, tenant_id=tenant(2))
    invoke(memory, tenant_id=tenant(77))
    rest = [memory.page(ALL, most=10, cursor=first.next)]
    while rest[-1].next:
        rest.append(memory.page(ALL, most=10, cursor=rest[-1].next))
    assert [row.to_bytes() for row in rows_of([first, *rest])] == newest_first(stored)


def test_a_filter_that_never_matches_is_bounded(memory: AuditMemory) -> None:
    """A page without a row looks at no more than it may, says so, and can be gone on from."""
    scattered(memory, tenants=5, invocations=50)
    page = memory.page(RowFilter(skill_id="no.such"), look=30)
    assert page.rows == ()
    assert 10 < page.looked <= 30
    assert page.next is not None
    assert page.reached is not None
    pages = walk(memory, RowFilter(skill_id="no.such"), look=30)
    assert sum(page.looked for page in pages) == 100


@pytest.mark.parametrize(
    "parts",
    [
        {"tenant_id": tenant(1)},
        {"kind": COMPLETED},
        {"outcome": "panic"},
        {"skill_id": "odd.one"},
        {"kind": STARTED, "caller_persona": "other@1", "tenant_id": tenant(0)},
    ],
)
def test_a_filter_passes_what_select_passes(memory: AuditMemory, parts: dict[str, Any]) -> None:
    """Pages and select agree on what a filter lets pass."""
    for number in range(40):
        identity = make_identity(
            tenant_id=tenant(number % 3),
            skill_id="odd.one" if number % 4 == 1 else "even.one",
            caller_persona="other@1" if number % 5 else "cuo-cpo@0.4.1",
        )
        memory.emit(started(identity))
        reason = Reason.WORKER_LOST if number % 7 == 0 else Reason.RETURNED
        memory.emit(completed(identity, make_ending(reason)))
    found = rows_of(walk(memory, RowFilter(**parts), most=5, look=20))
    assert found
    assert [r.to_bytes() for r in found] == newest_first(list(memory.rows(**parts)))


def test_an_invocation_is_found_by_the_index(memory: AuditMemory) -> None:
    """With request_id only its own entries are looked at, wherever in the history they stand."""
    pair = invoke(memory)
    scattered(memory, tenants=5, invocations=100)
    wanted = RowFilter(request_id=pair[0].request_id)
    page = memory.page(wanted, look=5)
    assert [row.to_bytes() for row in page.rows] == [pair[1].to_bytes(), pair[0].to_bytes()]
    assert (page.looked, page.next) == (2, None)
    pages = walk(memory, wanted, most=1)
    assert [row.kind for row in rows_of(pages)] == [COMPLETED, STARTED]


def test_since_ends_the_walk(memory: AuditMemory) -> None:
    """Where no row can be of that time any more, the page ends, without a look at the history."""
    scattered(memory, tenants=3, invocations=50)
    future = datetime.now(UTC) + timedelta(hours=3)
    assert memory.page(RowFilter(since=future)) == Page(rows=())
    past = datetime.now(UTC) - timedelta(hours=3)
    assert len(memory.page(RowFilter(since=past), most=1000).rows) == 100


def test_reached_is_the_stores_time(memory: AuditMemory) -> None:
    """A page says of when its oldest entry is, by the store, whatever the row's own ts is."""
    before = datetime.now(UTC) - timedelta(seconds=1)
    identity = make_identity()
    memory.emit(started(identity, ts=timestamp(before - timedelta(days=9))))
    page = memory.page(ALL)
    assert page.reached is not None
    assert before < page.reached < before + timedelta(seconds=60)
    assert memory.stored_at(page.rows[0]) == page.reached


def test_a_page_can_begin_at_a_moment(memory: AuditMemory) -> None:
    """By the store's clock; before the first row nothing comes, from now on everything."""
    assert memory.page(ALL, cursor=memory.cursor_at(datetime.now(UTC))) == Page(rows=())
    early = invoke(memory)
    next_moment()
    moment = memory.stored_at(memory.page(ALL).rows[0])
    late = invoke(memory, tenant_id=OTHER)
    assert [*memory.page(ALL, cursor=memory.cursor_at(moment)).rows] == [*reversed(early)]
    now = memory.cursor_at(datetime.now(UTC) + timedelta(hours=1))
    assert [*memory.page(ALL, cursor=now).rows] == [*reversed(early + late)]
    for past in (moment - timedelta(days=1), datetime.fromtimestamp(-10, UTC)):
        assert memory.page(ALL, cursor=memory.cursor_at(past)).rows == ()


def test_only_a_row_of_a_memory_has_a_time_of_storing(memory: AuditMemory) -> None:
    """A row that comes from nowhere is refused."""
    with pytest.raises(ValueError, match=r"None|no memory"):
        memory.stored_at(started(make_identity()))


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "1",
        "1-1",
        "-1-1/x",
        "x/y",
        "1-1/x\ny",
        f"1-{2**64}/x",
        "1-1/" + "x" * 300,
        "\u0661-\u0661/x",
    ],
)
def test_what_is_no_cursor_is_refused(memory: AuditMemory, cursor: str) -> None:
    """A cursor comes from an address that anybody can write: a malformed one is a ValueError."""
    invoke(memory)
    with pytest.raises(ValueError, match="no cursor"):
        memory.page(ALL, cursor=cursor)


@pytest.mark.parametrize("cursor", ["0-0/", "0-0/x", f"{2**64 - 1}-{2**64 - 1}/"])
def test_a_cursor_at_either_end_is_one(memory: AuditMemory, cursor: str) -> None:
    """Below the first place there is nothing, below the last there is everything."""
    invoke(memory)
    page = memory.page(ALL, cursor=cursor)
    assert len(page.rows) == (0 if cursor.startswith("0-0") else 2)


@pytest.mark.parametrize("bounds", [{"most": 0}, {"look": 0}])
def test_a_page_of_nothing_is_refused(memory: AuditMemory, bounds: dict[str, int]) -> None:
    """A page has a row and looks at an entry, at least."""
    with pytest.raises(ValueError, match="1 row"):
        memory.page(ALL, **bounds)
    with pytest.raises(ValueError, match="1 row"):
        memory.open_page(None, 0)


def test_a_page_says_that_rows_were_trimmed(memory: AuditMemory) -> None:
    """Where the memory begins because older rows were trimmed, the last page says so."""
    gone, kept = invoke(memory), invoke(memory)
    invoke(memory, tenant_id=OTHER)
    whole = memory.page(ALL)
    assert not whole.trimmed
    memory.trim(TENANT, str(memory.page(RowFilter(tenant_id=TENANT)).rows[1].position))
    assert memory.page(ALL).trimmed
    assert not memory.page(ALL, most=1).trimmed
    assert not memory.page(RowFilter(tenant_id=OTHER)).trimmed
    assert memory.page(RowFilter(request_id=gone[0].request_id)) == Page(rows=(), trimmed=True)
    assert not memory.page(RowFilter(request_id=kept[0].request_id)).trimmed


def test_the_oldest_open_ones_come_first(memory: AuditMemory) -> None:
    """An open page has the invocations open longest, of all tenants, and how many there are.

    Closed ones do not count, whoever closed them.
    """
    identities = [make_identity(tenant_id=tenant(number % 7)) for number in range(40)]
    for identity in identities:
        memory.emit(started(identity))
        next_moment()
    memory.emit(completed(identities[0]))
    memory.emit(completed(identities[1], make_ending(Reason.WORKER_LOST)))
    page = memory.open_page(None, 5)
    assert page.total == 38
    by_age = [row.to_bytes() for row in memory.running()]
    assert [row.to_bytes() for row in page.rows] == by_age[:5]
    assert memory.open_page(tenant(3), 100).total == 6
    assert [r.to_bytes() for r in memory.open_page(None, 100).rows] == by_age
    assert memory.open_page(OTHER, 5).total == 0


def test_a_memory_that_is_down_says_so() -> None:
    """No page is made up."""
    memory = InMemory()
    memory.down = True
    with pytest.raises(MemoryUnavailableError):
        memory.page(ALL)
    with pytest.raises(MemoryUnavailableError):
        memory.open_page(None, 1)


def test_a_page_leaves_out_whom_it_is_told_to(memory: AuditMemory) -> None:
    """Nothing of that tenant is looked at, nor counted as open; all others are as ever."""
    for number in range(3):
        invoke(memory, tenant_id=tenant(number))
        memory.emit(started(make_identity(tenant_id=tenant(number))))
    without = {tenant(1)}
    page, still_open = memory.page(ALL, without=without), memory.open_page(None, 9, without=without)
    assert {row.tenant_id for row in page.rows} == {tenant(0), tenant(2)}
    assert page.looked == 6
    assert {row.tenant_id for row in still_open.rows} == {tenant(0), tenant(2)}
    assert still_open.total == 2
    own = RowFilter(tenant_id=tenant(1), request_id="none")
    assert memory.page(own, without=without) == Page(rows=())
