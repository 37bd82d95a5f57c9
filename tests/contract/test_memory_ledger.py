"""What the ledger asks of a memory (audit/memory/base.py), one suite over every memory.

Raw rows in stored order, the newest checkpoint swapped in one step, old rows trimmed while
everything else that the contract says goes on to hold.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import redis
from ulid import ULID

from audit.embedded import EmbeddedServer
from audit.errors import MemoryUnavailableError, RowError, RowRefusedError
from audit.memory import AuditMemory, open_memory
from audit.memory.base import Entry, Once, RowFilter, RowRefusal, Stored, order_of
from audit.row import COMPLETED, LATE, NIL_TENANT, AuditRow, Identity, Reason
from audit.system_rows import KEY_ROTATED, PRUNED, audit_key_rotated, audit_pruned
from audit.testing import InMemory
from tests.support import (
    HASH,
    TENANT,
    check_every_row,
    checked_memory,
    completed,
    make_ending,
    make_identity,
    now,
    refused,
    started,
)

OTHER_TENANT = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
VKEY = "ledger.example+9d2a2b1c+AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAh"
WRITERS = 8


@pytest.fixture(params=["redis", "cluster", "postgres", "sqlite", "in-memory"])
def memory(request: pytest.FixtureRequest) -> Iterator[AuditMemory]:
    """A fresh, empty memory, for every backend there is. Half of an invocation may be trimmed."""
    if request.param == "in-memory":
        yield InMemory()
        return
    if request.param != "redis":
        made = open_memory(request.getfixturevalue(f"{request.param}_url"), timeout=10)
        yield made
        made.close()
        return
    with EmbeddedServer() as server, checked_memory(server.url) as made:
        yield made
        # checked_memory wants whole invocations, which a trimmed memory has not.
        redis.Redis.from_url(server.url).flushall()


def stored(memory: AuditMemory, **parts: Any) -> list[bytes]:
    return [row.to_bytes() for row in memory.rows(**parts)]


def pages(memory: AuditMemory, limit: int, tenant_id: str = TENANT) -> Iterator[Entry]:
    after = None
    while page := memory.entries(tenant_id, after, limit):
        assert len(page) <= limit
        yield from page
        after = page[-1].position


def invoke(memory: AuditMemory, **overrides: Any) -> tuple[AuditRow, AuditRow]:
    """One closed invocation on record."""
    identity = make_identity(**overrides)
    pair = started(identity), completed(identity)
    for row in pair:
        memory.emit(row)
    return pair


def everything(memory: AuditMemory, tenant_id: str = TENANT) -> int:
    """Trim all that may go."""
    return memory.trim(tenant_id, "9" * 15 + "-0")


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """What ``work(0)`` to ``work(count - 1)`` return, begun at the same moment."""
    ready = threading.Barrier(count)

    def run(number: int) -> Any:
        ready.wait(60)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


# --- raw rows -------------------------------------------------------------------------------------


def test_a_memory_without_rows_has_no_tenants_and_no_entries(memory: AuditMemory) -> None:
    """Nothing is there, of a tenant that nobody knows either."""
    assert memory.tenants() == []
    assert memory.entries(TENANT, None, 10) == []
    assert memory.last_position(TENANT) is None
    assert memory.sealed(TENANT) is None
    assert memory.trim(TENANT, "5-0") == 0


def test_entries_are_the_stored_rows(memory: AuditMemory) -> None:
    """Same bytes, order and positions as ``rows`` gives, per tenant, whatever the page."""
    for number in range(23):
        invoke(memory, tenant_id=[TENANT, OTHER_TENANT][number % 2])
    memory.emit(refused(make_identity(tenant_id=NIL_TENANT)))
    assert memory.tenants() == sorted([TENANT, OTHER_TENANT, NIL_TENANT])
    for tenant_id in memory.tenants():
        wanted = [Entry(str(r.position), r.to_bytes()) for r in memory.rows(tenant_id)]
        for limit in (1, 2, 7, len(wanted), 1000):
            assert list(pages(memory, limit, tenant_id)) == wanted
        assert memory.last_position(tenant_id) == wanted[-1].position


def test_a_page_has_one_entry_at_least(memory: AuditMemory) -> None:
    """A limit of nothing is a mistake, not an end."""
    with pytest.raises(ValueError, match="1 entry"):
        memory.entries(TENANT, None, 0)


def test_bytes_that_are_no_row_are_entries_too(server: EmbeddedServer) -> None:
    """Nothing is parsed: what somebody else put into the stream is there to be found."""
    with checked_memory(server.url) as memory:
        client = redis.Redis.from_url(server.url)
        client.xadd(f"audit:{{{TENANT}}}:rows", {"row": b"\xff no row"})
        assert [entry.stored for entry in memory.entries(TENANT, None, 10)] == [b"\xff no row"]
        assert everything(memory) == 1


@pytest.mark.parametrize("fields", [{"foo": b"x"}, {"row": b"x", "y": b"z"}, {"a": "b", "c": "d"}])
def test_an_entry_with_other_fields_is_marked_as_foreign(
    fields: dict[str, Any], server: EmbeddedServer
) -> None:
    """With its position; whoever reads rows is told by a typed error that names it."""
    with contextlib.closing(open_memory(server.url, timeout=10)) as memory:
        client = redis.Redis.from_url(server.url)
        position = client.xadd(f"audit:{{{TENANT}}}:rows", fields).decode()
        (entry,) = memory.entries(TENANT, None, 10)
        assert (entry.position, entry.foreign) == (position, True)
        with pytest.raises(RowError, match=position):
            list(memory.rows(TENANT))


def test_a_reader_beside_writers_misses_nothing(memory: AuditMemory) -> None:
    """Going on from the last position while 8 threads write gives each row once, in order."""
    done = threading.Event()

    def write(_: int) -> list[bytes]:
        return [row.to_bytes() for _ in range(60) for row in invoke(memory)]

    def read() -> list[Entry]:
        found: list[Entry] = []
        while True:
            last_time = done.is_set()
            while page := memory.entries(TENANT, found[-1].position if found else None, 7):
                found += page
            if last_time:
                return found

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        written = list(itertools.chain(*at_once(WRITERS, write)))
        done.set()
        found = reader.result()
    assert sorted(entry.stored for entry in found) == sorted(written)
    places = [order_of(entry.position) for entry in found]
    assert places == sorted(set(places))
    assert [entry.stored for entry in found] == stored(memory)


# --- the checkpoint -------------------------------------------------------------------------------


def test_a_checkpoint_takes_the_place_of_the_one_that_was_named(memory: AuditMemory) -> None:
    """Whoever names another one than what stands there changes nothing."""
    first, second = b"log\n1\n\xe2\x80\x94\x00", b"log\n2\n"
    assert not memory.swap_sealed(TENANT, first, second)
    assert memory.sealed(TENANT) is None
    assert memory.swap_sealed(TENANT, None, first)
    assert memory.sealed(TENANT) == first
    assert not memory.swap_sealed(TENANT, None, second)
    assert not memory.swap_sealed(TENANT, second, second)
    assert memory.sealed(TENANT) == first
    assert memory.swap_sealed(TENANT, first, second)
    assert memory.sealed(TENANT) == second


def test_each_log_has_its_own_checkpoint(memory: AuditMemory) -> None:
    """One tenant's is not another's, nor that of the log named ``meta``; none makes a tenant."""
    for name in (TENANT, OTHER_TENANT, "meta"):
        assert memory.swap_sealed(name, None, name.encode())
    assert [memory.sealed(name) for name in (TENANT, "meta")] == [TENANT.encode(), b"meta"]
    assert memory.tenants() == []


def test_an_empty_checkpoint_is_none(memory: AuditMemory) -> None:
    """And so is refused."""
    with pytest.raises(ValueError, match="empty"):
        memory.swap_sealed(TENANT, None, b"")


def test_of_many_swaps_one_succeeds(memory: AuditMemory) -> None:
    """50 times 16 threads swap the same one for their own: one is told so, and its own stands."""
    old = None
    for run in range(50):
        mine = [f"{run} {number}".encode() for number in range(16)]
        swap = partial(swap_in, memory, old, mine)
        took = at_once(16, swap)
        assert took.count(True) == 1
        old = mine[took.index(True)]
        assert memory.sealed(TENANT) == old


def swap_in(memory: AuditMemory, old: bytes | None, mine: list[bytes], number: int) -> bool:
    return memory.swap_sealed(TENANT, old, mine[number])


def test_a_swap_whose_reply_was_lost_says_so(server: EmbeddedServer) -> None:
    """The error says that the checkpoint may stand, and the memory is as good as before."""
    with checked_memory(server.url, timeout=0.3) as memory:
        memory.check()
        client = redis.Redis.from_url(server.url)
        client.execute_command("CLIENT", "PAUSE", "60000", "WRITE")
        with pytest.raises(MemoryUnavailableError) as caught:
            memory.swap_sealed(TENANT, None, b"note")
        assert caught.value.maybe_stored
        client.execute_command("CLIENT", "UNPAUSE")
        stands = memory.sealed(TENANT)
        assert stands in (None, b"note")
        assert memory.swap_sealed(TENANT, stands, b"another")


# --- trimming -------------------------------------------------------------------------------------


def test_what_is_trimmed_is_gone_from_every_answer(memory: AuditMemory) -> None:
    """The rows before the position are gone, the rest stands, and other tenants lose nothing."""
    old, kept = invoke(memory), invoke(memory)
    other = invoke(memory, tenant_id=OTHER_TENANT)
    place = next(iter(memory.rows(request_id=kept[0].request_id))).position
    assert memory.trim(TENANT, str(place)) == 2
    assert memory.trim(TENANT, str(place)) == 0
    assert stored(memory, tenant_id=TENANT) == [row.to_bytes() for row in kept]
    assert [entry.stored for entry in pages(memory, 1)] == [row.to_bytes() for row in kept]
    assert stored(memory, request_id=old[0].request_id) == []
    assert stored(memory, tenant_id=TENANT, request_id=old[0].request_id) == []
    assert stored(memory, request_id=kept[0].request_id) == [row.to_bytes() for row in kept]
    assert stored(memory, tenant_id=OTHER_TENANT) == [row.to_bytes() for row in other]


def test_a_trim_says_how_far_it_went(memory: AuditMemory) -> None:
    """Behind the last row that went and not behind one that is there, whatever was asked for."""
    assert memory.trimmed(TENANT) is None
    for _ in range(2):
        invoke(memory)
    memory.emit(still_open := started(make_identity()))
    places = [order_of(entry.position) for entry in pages(memory, 10)]
    assert memory.trim(TENANT, "{}-{}".format(*places[0])) == 0
    assert memory.trimmed(TENANT) is None
    for count in (1, 4):
        before = "{}-{}".format(*places[count]) if count < 4 else "9" * 15 + "-0"
        memory.trim(TENANT, before)
        position = memory.trimmed(TENANT)
        assert position is not None
        assert places[count - 1] < order_of(position) <= places[count]
    assert stored(memory) == [still_open.to_bytes()]
    assert everything(memory) == 0
    assert memory.trimmed(TENANT) == position
    assert memory.trimmed(OTHER_TENANT) is None


def test_of_half_an_invocation_the_other_half_is_found(memory: AuditMemory) -> None:
    """A trim may fall between two rows; what is left is what a look-up gives."""
    begin, end = invoke(memory)
    place = next(iter(memory.rows(kind=COMPLETED))).position
    assert memory.trim(TENANT, str(place)) == 1
    assert stored(memory, request_id=begin.request_id) == [end.to_bytes()]
    assert memory.emit(begin) is memory.emit(end) is Stored.REPEATED


def test_positions_go_on_when_all_is_trimmed(memory: AuditMemory) -> None:
    """A tenant stays known, its last position too, and the next row comes after it."""
    invoke(memory)
    last = memory.last_position(TENANT)
    assert last is not None
    assert everything(memory) == 2
    assert memory.tenants() == [TENANT]
    assert memory.last_position(TENANT) == last
    pair = invoke(memory)
    assert [entry.stored for entry in memory.entries(TENANT, last, 10)] == [
        row.to_bytes() for row in pair
    ]


def test_an_open_invocation_is_never_trimmed(memory: AuditMemory) -> None:
    """A trim stops before its started row, runs on when it is closed, and ``running`` sees none."""
    invoke(memory)
    identity = make_identity()
    memory.emit(begin := started(identity))
    later = [row for _ in range(3) for row in invoke(memory)]
    running = [row.to_bytes() for row in memory.running()]
    assert everything(memory) == 2
    assert stored(memory) == [row.to_bytes() for row in (begin, *later)]
    assert [row.to_bytes() for row in memory.running()] == running == [begin.to_bytes()]
    assert memory.emit(completed(identity)) is Stored.NEW
    assert everything(memory) == 8
    assert list(memory.running()) == []


def test_rows_of_every_sort_are_known_after_they_were_trimmed(memory: AuditMemory) -> None:
    """Each again is no second row; each rival, second start and settling is told as before."""
    ran, dead, never, marked = (make_identity() for _ in range(4))
    rival = completed(ran, make_ending(Reason.RAISED, "late"))
    lost = completed(dead, make_ending(Reason.WORKER_LOST))
    sent = [started(ran), completed(ran), started(dead), lost, refused(never)]
    for row in sent:
        assert memory.emit(row) is Stored.NEW
    assert memory.emit(rival) is Stored.LATE
    once = Once(token="message", seconds=1000)
    for identity in (make_identity(), marked):
        memory.emit(started(identity), once)
        memory.emit(completed(identity))
    replay = list(memory.rows(request_id=marked.request_id))
    assert everything(memory) == 10

    for row in (*sent, *replay):
        assert memory.emit(row) is Stored.REPEATED
    assert memory.emit(replace_mark(replay[0]), once) is Stored.REPLAYED
    assert memory.emit(rival) is Stored.LATE
    assert memory.emit(completed(ran, make_ending(Reason.WORKER_LOST))) is Stored.SETTLED
    assert refusal_of(memory, started(ran, ts="2026-01-01T00:00:00.000000Z")) == (
        RowRefusal.SECOND_STARTED_ROW
    )
    assert refusal_of(memory, started(never)) == RowRefusal.WAS_REFUSED
    assert stored(memory) == []
    another = completed(ran, make_ending(Reason.RAISED, "later still"))
    assert memory.emit(another) is Stored.LATE
    assert [row.kind for row in memory.rows(request_id=ran.request_id)] == [LATE]


def replace_mark(row: AuditRow) -> AuditRow:
    """A replay's started row as it was sent."""
    meta = {**row.meta, "redelivered": False}
    return AuditRow(kind=row.kind, ts=row.ts, payload=row.payload, meta=meta)


def refusal_of(memory: AuditMemory, row: AuditRow) -> str:
    with pytest.raises(RowRefusedError) as caught:
        memory.emit(row)
    return caught.value.refusal


def test_a_text_that_looks_like_a_request_id_saves_no_row(memory: AuditMemory) -> None:
    """An error that quotes an open invocation's id, and a child of one, are trimmed all the same.

    And the rows that are trimmed are then known as theirs, not as the other's.
    """
    closed, other = make_identity(), make_identity()
    text = f'E: "request_id":"{other.request_id}"'
    memory.emit(started(closed))
    memory.emit(completed(closed, make_ending(Reason.RAISED, text)))
    child = invoke(memory, parent_request_id=other.request_id)
    memory.emit(started(other))
    assert everything(memory) == 4
    for row in child:
        assert memory.emit(row) is Stored.REPEATED
    assert [row.request_id for row in memory.running()] == [other.request_id]


def test_emits_go_on_while_rows_are_trimmed(memory: AuditMemory) -> None:
    """8 writers beside 2 trimmers: each emit is new, again is known, and nothing open is lost."""
    done = threading.Event()

    def trim() -> int:
        total = 0
        while not done.is_set():
            total += everything(memory)
        return total + everything(memory)

    def write(number: int) -> Identity:
        for _ in range(60):
            identity = make_identity()
            pair = started(identity), completed(identity)
            assert [memory.emit(row) for row in pair] == [Stored.NEW] * 2
            assert [memory.emit(row) for row in pair] == [Stored.REPEATED] * 2
        memory.emit(started(left := make_identity()))
        return left

    with ThreadPoolExecutor(2) as pool:
        trimmers = [pool.submit(trim) for _ in range(2)]
        still_open = at_once(WRITERS, write)
        done.set()
        trimmed = sum(trimmer.result() for trimmer in trimmers)
    assert {row.request_id for row in memory.running()} == {i.request_id for i in still_open}
    assert trimmed + len(stored(memory)) == WRITERS * 121
    for identity in still_open:
        assert memory.emit(completed(identity)) is Stored.NEW
    everything(memory)
    assert stored(memory) == list(memory.running()) == []


def test_who_follows_is_not_disturbed_by_a_trim(memory: AuditMemory) -> None:
    """New rows arrive once each, whatever was trimmed before."""
    invoke(memory)
    arriving = memory.follow(filter_of(TENANT), poll=0.01)
    assert next(arriving) is None
    everything(memory)
    pair = invoke(memory)
    found = [row.to_bytes() for row in itertools.islice(filter(None, arriving), 2)]
    assert found == [row.to_bytes() for row in pair]
    assert next(arriving) is None


def filter_of(tenant_id: str) -> RowFilter:
    return RowFilter(tenant_id=tenant_id)


def test_any_order_of_emits_and_trims_is_as_if_nothing_was_trimmed(memory: AuditMemory) -> None:
    """300 random steps twice, with trims at random places and without any: the answers agree."""
    whole, chance = InMemory(), random.Random(5)
    identities = [make_identity() for _ in range(12)]
    for step in range(300):
        row = random_row(chance, identities)
        assert answer(memory, row) == answer(whole, row), (step, row)
        if chance.random() < 0.2:
            positions = [entry.position for entry in pages(memory, 100)]
            if positions:
                memory.trim(TENANT, chance.choice(positions))
        left, full = stored(memory), stored(whole)
        assert left == full[len(full) - len(left) :]
        running = [found.to_bytes() for found in memory.running()]
        assert running == [found.to_bytes() for found in whole.running()]
    check_every_row(whole)


def random_row(chance: random.Random, identities: list[Identity]) -> AuditRow:
    identity = chance.choice(identities)
    ts = f"2026-01-01T00:00:00.00000{chance.randrange(2)}Z"
    if chance.random() < 0.05:
        identities[identities.index(identity)] = make_identity()
    match chance.randrange(5):
        case 0 | 1:
            return started(identity, ts=ts)
        case 2:
            return refused(identity, ts=ts)
        case 3:
            return completed(identity, make_ending(Reason.NOT_DISPATCHED), ts=ts)
    return completed(identity, ts=ts)


def answer(memory: AuditMemory, row: AuditRow) -> str:
    try:
        return str(memory.emit(row))
    except RowRefusedError as error:
        return error.refusal


# --- rows of the trail itself ---------------------------------------------------------------------


def system_rows() -> list[AuditRow]:
    return [
        audit_key_rotated(str(ULID()), new_key=VKEY, old_key=None, ts=now()),
        audit_key_rotated(str(ULID()), new_key=VKEY, old_key=VKEY, ts=now(), worker="keeper"),
        audit_pruned(
            str(ULID()), TENANT, before=now(), first_index=0, rows=7, root=HASH, note="", ts=now()
        ),
    ]


def test_a_row_of_the_trail_itself_is_stored_once(memory: AuditMemory) -> None:
    """Like a refused one: known again, alone under its request_id, never running, in its log."""
    rows = system_rows()
    for row in rows:
        assert memory.emit(row) is Stored.NEW
        assert memory.emit(row) is Stored.REPEATED
    assert sorted(row.kind for row in check_every_row(memory)) == [
        KEY_ROTATED,
        KEY_ROTATED,
        PRUNED,
    ]
    assert stored(memory, tenant_id=NIL_TENANT) == [row.to_bytes() for row in rows[:2]]
    assert stored(memory, request_id=rows[2].request_id) == [rows[2].to_bytes()]
    assert list(memory.running()) == []
    assert everything(memory) == 1
    assert memory.emit(rows[2]) is Stored.REPEATED


def test_a_row_of_the_trail_itself_is_no_invocation(memory: AuditMemory) -> None:
    """Nothing starts or closes under its request_id, and it takes no invocation's."""
    row = system_rows()[2]
    memory.emit(row)
    identity = make_identity(request_id=row.request_id)
    assert refusal_of(memory, started(identity)) == RowRefusal.WAS_REFUSED
    assert refusal_of(memory, completed(identity)) == RowRefusal.WAS_REFUSED
    begin, _ = invoke(memory)
    taken = audit_pruned(
        begin.request_id, TENANT, before=now(), first_index=0, rows=1, root=HASH, note="", ts=now()
    )
    assert refusal_of(memory, taken) == RowRefusal.SECOND_STARTED_ROW


def test_another_kind_of_the_module_is_refused(memory: AuditMemory) -> None:
    """A memory takes the kinds that the schema knows, and no others."""
    row = system_rows()[0]
    unknown = AuditRow(kind="audit.unknown", ts=row.ts, payload=row.payload, meta=row.meta)
    assert refusal_of(memory, unknown) == RowRefusal.NO_INVOCATION


@pytest.mark.parametrize(("first_index", "rows"), [(-1, 1), (0, 0)])
def test_nothing_pruned_is_no_row(first_index: int, rows: int) -> None:
    """A range that cannot be is refused where the row is made."""
    with pytest.raises(RowError):
        audit_pruned(
            "x",
            TENANT,
            before=now(),
            first_index=first_index,
            rows=rows,
            root=HASH,
            note="",
            ts=now(),
        )


def test_what_a_trim_leaves_behind_is_small(server: EmbeddedServer) -> None:
    """Of 2,000 trimmed rows less than a third of the bytes stays, and one page a step goes."""
    with checked_memory(server.url) as memory:
        client = redis.Redis.from_url(server.url)
        for _ in range(1000):
            invoke(memory)
        keys = [f"audit:{{{TENANT}}}:{name}" for name in ("rows", "requests", "open")]
        before = sum(int(client.memory_usage(key) or 0) for key in keys)
        assert everything(memory) == 2000
        assert client.xlen(keys[0]) == 0
        assert sum(int(client.memory_usage(key) or 0) for key in keys) < before / 3
