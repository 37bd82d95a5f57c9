"""Bounded reading on a server: damage, and what many tenants cost."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import pytest
import redis

from audit.board.invocation import invocation
from audit.memory.base import RowFilter
from audit.memory.page import Damaged
from audit.memory.redis import RedisMemory
from audit.row import AuditRow
from tests.pages import ALL, OTHER, invoke, rows_of, tenant, walk
from tests.support import TENANT, make_identity, refused, started


@pytest.fixture
def on_server(empty_url: str) -> Iterator[RedisMemory]:
    """The memory on a server, for what only a server has."""
    made = RedisMemory(empty_url, timeout=30)
    yield made
    made.close()


def test_what_is_no_row_is_named_and_ends_nobody(on_server: RedisMemory, empty_url: str) -> None:
    """Entries that are no row are counted, with their places, and the rows around them come."""
    client = redis.Redis.from_url(empty_url)
    key = f"audit:{{{TENANT}}}:rows"
    good = [invoke(on_server), invoke(on_server)]
    document = started(make_identity()).as_dict()
    places = [
        client.xadd(key, {"other": "x"}),
        client.xadd(key, {"row": "no json"}),
        client.xadd(key, {"row": started(make_identity(), ts="soon").to_bytes()}),
        client.xadd(key, {"row": started(make_identity(), ts="2026-01-01T00:00:00").to_bytes()}),
        client.xadd(key, {"row": redis_json({**document, "payload": {}})}),
        client.xadd(key, {"row": redis_json({**document, "ts": 7})}),
        client.xadd(key, {"row": started(make_identity(tenant_id=OTHER)).to_bytes()}),
        *(client.xadd(key, {"row": halved(document, *place)}) for place in HALVED),
        client.xadd(key, {"row": b"[" * 100_000}),
    ]
    good.append(invoke(on_server))
    for wanted in (ALL, RowFilter(since=datetime.now(UTC) - timedelta(hours=1))):
        page = on_server.page(wanted)
        assert len(page.rows) == 2 * len(good)
        assert page.damaged == tuple(Damaged(TENANT, p.decode()) for p in reversed(places))
        assert page.looked == len(page.rows) + len(page.damaged)


#: Where a text may be that a reader asks by, or shows.
HALVED = [("kind",), ("payload", "skill_id"), ("payload", "request_id"), ("meta", "task_id")]


def halved(document: dict[str, Any], *place: str) -> bytes:
    """A row, as JSON, with half a character at a place: no emit can store that."""
    forged = copy.deepcopy(document)
    reduce(dict.__getitem__, place[:-1], forged)[place[-1]] = "a\ud800"
    return json.dumps(forged).encode()


def redis_json(document: dict[str, Any]) -> bytes:
    return AuditRow(
        kind=document["kind"], ts=document["ts"], payload=document["payload"], meta={}
    ).to_bytes()


def test_a_name_that_no_cursor_takes_ends_no_walk(on_server: RedisMemory, empty_url: str) -> None:
    """A tenant that somebody forged under a very long name is left out, and every row is met."""
    invoke(on_server)
    name = "0" * 201
    with redis.Redis.from_url(empty_url) as client:
        client.sadd("audit:tenants", name)
        client.xadd(f"audit:{{{name}}}:rows", {"row": b"x"})
    invoke(on_server)
    assert len(rows_of(walk(on_server, most=1))) == 4


def test_an_entry_of_the_farthest_future_ends_nobody(
    on_server: RedisMemory, empty_url: str
) -> None:
    """The greatest position there is reads as the last moment there is."""
    row = started(make_identity())
    client = redis.Redis.from_url(empty_url)
    client.sadd("audit:tenants", TENANT)
    client.xadd(f"audit:{{{TENANT}}}:rows", {"row": row.to_bytes()}, id=f"{2**64 - 1}-{2**64 - 1}")
    page = on_server.page(ALL)
    assert [found.to_bytes() for found in page.rows] == [row.to_bytes()]
    assert page.reached is not None
    assert page.reached.year == 9999


def test_an_open_one_whose_row_is_none_is_left_out(on_server: RedisMemory, empty_url: str) -> None:
    """It counts as open, and hides no other."""
    identity = make_identity()
    on_server.emit(started(identity))
    client = redis.Redis.from_url(empty_url)
    position = client.xadd(f"audit:{{{TENANT}}}:rows", {"row": "no json"})
    client.hset(f"audit:{{{TENANT}}}:requests", "X", b"o " + position)
    client.zadd(f"audit:{{{TENANT}}}:open", {"X": 1})
    page = on_server.open_page(None, 10)
    assert ([row.request_id for row in page.rows], page.total) == ([identity.request_id], 2)


def test_what_ended_meanwhile_is_not_open(on_server: RedisMemory, empty_url: str) -> None:
    """Between two round trips an invocation can end: its started row is no longer shown as open."""
    (begin, _), still = invoke(on_server), make_identity()
    on_server.emit(started(still))
    redis.Redis.from_url(empty_url).zadd(f"audit:{{{TENANT}}}:open", {begin.request_id: 1})
    assert [row.request_id for row in on_server.open_page(None, 10).rows] == [still.request_id]


def test_forged_second_started_rows_change_no_tree(on_server: RedisMemory, empty_url: str) -> None:
    """The first row of an invocation says whose child it is, whatever a forger stores later."""
    root = make_identity(request_id="01ROOT", task_id=None)
    child = make_identity(request_id="01CHILD", task_id=None, parent_request_id="01ROOT")
    below = make_identity(request_id="01BELOW", task_id=None, parent_request_id="01CHILD")
    for identity in (root, child, below):
        on_server.emit(started(identity))
    forged = replace(child, parent_request_id="01BELOW"), replace(root, parent_request_id="01BELOW")
    client = redis.Redis.from_url(empty_url)
    for identity in forged:
        client.xadd(f"audit:{{{TENANT}}}:rows", {"row": started(identity).to_bytes()})
    view = invocation(on_server, "01ROOT", datetime.now(UTC), ledger=False)
    assert view is not None
    (line,) = view.children
    assert (line.request_id, [found.request_id for found in line.children]) == (
        "01CHILD",
        ["01BELOW"],
    )
    assert line.children[0].children == ()


def test_no_stream_is_read_back_from_before_its_first_entry(
    on_server: RedisMemory, empty_url: str
) -> None:
    """There the server would walk through the whole stream, while nobody can emit."""
    scattered = [invoke(on_server, tenant_id=tenant(number % 3)) for number in range(9)]
    client = redis.Redis.from_url(empty_url)

    def read_back() -> int:
        return int(client.info("commandstats").get("cmdstat_xrevrange", {}).get("calls", 0))

    last = rows_of(walk(on_server, most=2))
    assert len(last) == 2 * len(scattered)
    before = read_back()
    assert on_server.page(ALL, cursor="5-1/").rows == ()
    begin = last[-1]
    assert on_server.page(ALL, cursor=f"{begin.position}/{begin.tenant_id}").rows == ()
    assert read_back() == before


class Counting(RedisMemory):
    """Counts round trips and entries fetched."""

    def __init__(self, url: str) -> None:
        self.trips = self.fetched = 0
        super().__init__(url, timeout=30)

    def _exchange(self, commands: Any) -> list[Any]:
        replies = super()._exchange(commands)
        self.trips += 1
        self.fetched += sum(
            len(reply)
            for sent, reply in zip(commands, replies, strict=True)
            if "RANGE" in sent[0] or "XREVRANGE" in sent[1]
        )
        return replies


def of_many_tenants(url: str, tenants: int, busy: int) -> None:
    """Two rows of each tenant, and many newer ones of the first."""
    client = redis.Redis.from_url(url)
    pipeline = client.pipeline(transaction=False)
    for number in range(tenants):
        pipeline.sadd("audit:tenants", tenant(number))
        for minor in (1, 2):
            row = refused(make_identity(tenant_id=tenant(number))).to_bytes()
            key = f"audit:{{{tenant(number)}}}:rows"
            pipeline.xadd(key, {"row": row}, id=f"1000-{minor}")
    for number in range(busy):
        row = refused(make_identity(tenant_id=tenant(0))).to_bytes()
        pipeline.xadd(f"audit:{{{tenant(0)}}}:rows", {"row": row}, id=f"{2000 + number}-0")
    pipeline.execute()


def test_a_thousand_quiet_tenants_cost_one_small_read_each(empty_url: str) -> None:
    """Beside a busy tenant they are asked once, all together; the busy one fills the page."""
    of_many_tenants(empty_url, tenants=1000, busy=3000)
    memory = Counting(empty_url)
    page = memory.page(RowFilter(skill_id="no.such"), look=2500)
    assert {row.tenant_id for row in memory.page(ALL, most=50).rows} == {tenant(0)}
    assert page.looked > 1400
    assert len(str(page.next)) < 80
    memory.trips = memory.fetched = 0
    memory.page(RowFilter(skill_id="no.such"), look=2500)
    assert memory.fetched <= 2500
    assert memory.trips < 20
    memory.close()


def test_never_more_than_the_budget_is_fetched(empty_url: str) -> None:
    """However busy all of a thousand tenants are, and however small the budget is."""
    of_many_tenants(empty_url, tenants=1000, busy=0)
    memory = Counting(empty_url)
    for look in (1, 10, 999, 1000, 1500, 5000):
        memory.fetched = 0
        page = memory.page(RowFilter(skill_id="no.such"), look=look)
        assert memory.fetched <= max(look, 1000)
        assert 1 <= page.looked <= look
    found = walk(memory, look=1500, most=5000)
    assert len(rows_of(found)) == 2000
    memory.close()


def test_busy_tenants_are_read_together(empty_url: str) -> None:
    """Where one of many busy tenants must be read on, those that soon must be are read with it."""
    client = redis.Redis.from_url(empty_url)
    pipeline = client.pipeline(transaction=False)
    for number in range(6000):
        of = tenant(number % 300)
        row = refused(make_identity(tenant_id=of)).to_bytes()
        pipeline.sadd("audit:tenants", of)
        pipeline.xadd(f"audit:{{{of}}}:rows", {"row": row}, id=f"{1 + number}-0")
    pipeline.execute()
    memory = Counting(empty_url)
    page = memory.page(RowFilter(skill_id="no.such"), look=5000)
    assert page.looked > 2000
    assert memory.trips < page.looked / 20
    memory.close()
