"""The contract of audit/memory/base.py, one suite over every memory.

Whatever the backend, the ``memory`` fixture ends each test by checking every stored row against the
published schema and every invocation against "close once".
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from audit.embedded import EmbeddedServer
from audit.errors import MemoryUnavailableError, RowRefusedError
from audit.memory import AuditMemory
from audit.memory.base import (
    SETTLING,
    Once,
    RowFilter,
    RowRefusal,
    Stored,
    as_replay,
    message_of,
)
from audit.row import (
    COMPLETED,
    LATE,
    REFUSED,
    STARTED,
    AuditRow,
    Ending,
    Identity,
    Reason,
    Refusal,
    timestamp,
)
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
    wait_until,
)

OTHER_TENANT = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
FORK = multiprocessing.get_context("fork")
#: More than any backend reads at once.
MANY = 1203
#: Invocations of each of several writers, and sequences of emits; CONTRACT_LONG has more of them.
EACH, SEQUENCES = (200, 60) if os.environ.get("CONTRACT_LONG") else (50, 25)


SHARED = ["redis-tcp", "redis-socket", "cluster", "postgres", "sqlite"]


@pytest.fixture(scope="module")
def kept() -> Iterator[EmbeddedServer]:
    """A server for all tests here: none of them ends it or sets anything of it."""
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def server(kept: EmbeddedServer) -> EmbeddedServer:
    """That server, as empty as a fresh one: no key, and no script that it knows."""
    with redis.Redis.from_url(kept.url) as client:
        client.flushall()
        client.script_flush()
    return kept


def url_of(request: pytest.FixtureRequest) -> str:
    """The URL of the backend that a fixture is asked for."""
    if request.param in ("cluster", "postgres", "sqlite"):
        found: str = request.getfixturevalue(f"{request.param}_url")
        return found
    server = request.getfixturevalue("server")
    return {"redis-tcp": server.url, "redis-socket": server.socket_url}[request.param]


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a fresh, empty memory, for every backend that several processes can use."""
    return url_of(request)


@pytest.fixture
def shared(url: str) -> Iterator[AuditMemory]:
    """A fresh, empty memory that several processes can use."""
    with checked_memory(url) as memory:
        yield memory


@pytest.fixture(params=[*SHARED, "in-memory"])
def memory(request: pytest.FixtureRequest) -> Iterator[AuditMemory]:
    """A fresh, empty memory, for every backend there is."""
    if request.param == "in-memory":
        memory = InMemory()
        yield memory
        check_every_row(memory)
        return
    with checked_memory(url_of(request)) as made:
        yield made


@pytest.fixture(scope="module")
def lasting() -> Iterator[dict[str, AuditMemory]]:
    """A memory of each kind, kept for many short tests."""
    with EmbeddedServer() as server, checked_memory(server.url) as memory:
        memories = {"redis": memory, "in-memory": InMemory()}
        yield memories
        check_every_row(memories["in-memory"])


@pytest.fixture
def hurried_threads() -> Iterator[None]:
    """Threads take turns so often that a step in this process that is not atomic shows."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def stored(memory: AuditMemory, **parts: Any) -> list[bytes]:
    return [row.to_bytes() for row in memory.rows(**parts)]


def kinds(memory: AuditMemory, **parts: Any) -> list[str]:
    return [row.kind for row in memory.rows(**parts)]


def next_moment() -> None:
    """Return in a later millisecond: the order of two tenants' rows is no finer than that."""
    moment = time.time_ns() // 1_000_000
    wait_until(lambda: time.time_ns() // 1_000_000 > moment + 1)


def refusal_of(memory: AuditMemory, row: AuditRow) -> str:
    with pytest.raises(RowRefusedError) as caught:
        memory.emit(row)
    assert caught.value.request_id == row.request_id
    return caught.value.refusal


# --- one invocation -------------------------------------------------------------------------------


def test_a_memory_that_nobody_wrote_to_is_empty(memory: AuditMemory) -> None:
    """Nothing stored, nothing running, for a tenant that nobody knows too."""
    memory.check()
    assert list(memory.rows()) == list(memory.rows(TENANT)) == []
    assert list(memory.running()) == list(memory.running(TENANT)) == []


def test_an_emitted_row_is_there_for_every_reader(shared: AuditMemory, url: str) -> None:
    """After emit returned, a second client reads the very bytes that were emitted."""
    identity = make_identity()
    begin, end = started(identity), completed(identity)
    assert shared.emit(begin) is Stored.NEW
    assert shared.emit(end) is Stored.NEW
    with checked_memory(url) as another:
        assert stored(another) == [begin.to_bytes(), end.to_bytes()]
        assert list(another.rows()) == [begin, end]


@pytest.mark.parametrize("reason", Reason)
def test_every_ending_can_be_stored(memory: AuditMemory, reason: Reason) -> None:
    """Each reason there is closes an invocation and comes back unchanged."""
    identity = make_identity()
    end = completed(identity, make_ending(reason))
    memory.emit(started(identity))
    assert memory.emit(end) is Stored.NEW
    assert stored(memory, kind=COMPLETED) == [end.to_bytes()]
    assert list(memory.running()) == []


def test_the_same_row_again_is_no_second_row(memory: AuditMemory) -> None:
    """Every kind of row can be sent again at any time; it is stored once and the reply says so."""
    identity, other = make_identity(), make_identity()
    sequence = [started(identity), completed(identity), refused(other)]
    for row in sequence:
        assert memory.emit(row) is Stored.NEW
        assert memory.emit(row) is Stored.REPEATED
    for row in reversed(sequence):
        assert memory.emit(row) is Stored.REPEATED
    assert stored(memory) == [row.to_bytes() for row in sequence]


def test_a_row_read_back_is_the_same_row_when_sent_again(memory: AuditMemory) -> None:
    """Rows can be replayed from what a memory gave: their bytes are the identity."""
    memory.emit(started(make_identity()))
    (row,) = memory.rows()
    assert memory.emit(row) is Stored.REPEATED


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_a_second_different_started_row_is_refused(memory: AuditMemory, closed: bool) -> None:
    """Per invocation there is one started row, before and after it is closed."""
    identity = make_identity()
    memory.emit(started(identity))
    if closed:
        memory.emit(completed(identity))
    before = stored(memory)
    second = started(identity, ts="2026-01-01T00:00:00.000000Z")
    assert refusal_of(memory, second) == RowRefusal.SECOND_STARTED_ROW
    assert stored(memory) == before


def test_a_completed_row_without_its_started_row_is_refused(memory: AuditMemory) -> None:
    """Nothing is stored of it, and the invocation can still start and complete afterwards."""
    identity = make_identity()
    end = completed(identity)
    assert refusal_of(memory, end) == RowRefusal.NO_STARTED_ROW
    assert stored(memory) == []
    assert memory.emit(started(identity)) is Stored.NEW
    assert memory.emit(end) is Stored.NEW


@pytest.mark.parametrize("reason", sorted(SETTLING))
def test_what_is_settled_before_it_started_never_starts(
    memory: AuditMemory, reason: Reason
) -> None:
    """An ending seen from outside bars an invocation that is not there, and leaves no row."""
    identity = make_identity()
    end = completed(identity, make_ending(reason))
    for _ in range(2):
        assert memory.emit(end) is Stored.BARRED
        assert refusal_of(memory, started(identity)) == RowRefusal.TOMBSTONE
    assert refusal_of(memory, completed(identity)) == RowRefusal.TOMBSTONE
    assert refusal_of(memory, refused(identity)) == RowRefusal.SECOND_STARTED_ROW
    assert stored(memory) == []
    assert list(memory.running()) == []


@pytest.mark.parametrize("reason", sorted(SETTLING))
def test_what_is_settled_while_open_is_closed(memory: AuditMemory, reason: Reason) -> None:
    """Where the started row is there, an ending seen from outside is one like any other."""
    identity = make_identity()
    begin = started(identity)
    memory.emit(begin)
    assert memory.emit(completed(identity, make_ending(reason))) is Stored.NEW
    assert memory.emit(begin) is Stored.REPEATED
    assert kinds(memory) == [STARTED, COMPLETED]
    assert list(memory.running()) == []


@pytest.mark.parametrize("reason", sorted(SETTLING))
@pytest.mark.parametrize("first", [Reason.RETURNED, Reason.RAISED, Reason.ABANDONED])
def test_settling_what_is_closed_adds_nothing(
    memory: AuditMemory, first: Reason, reason: Reason
) -> None:
    """Several see the same death from outside: whoever comes second is told so, and no rival."""
    identity = make_identity()
    memory.emit(started(identity))
    memory.emit(completed(identity, make_ending(first)))
    before = stored(memory)
    late = completed(identity, make_ending(reason), duration_ms=99)
    for _ in range(2):
        assert memory.emit(late) is Stored.SETTLED
    assert stored(memory) == before


@pytest.mark.parametrize("reason", sorted(SETTLING))
def test_settling_what_was_refused_adds_nothing(memory: AuditMemory, reason: Reason) -> None:
    """The process that died over a message need not know that it had been refused."""
    identity = make_identity()
    memory.emit(refused(identity))
    assert memory.emit(completed(identity, make_ending(reason))) is Stored.SETTLED
    assert kinds(memory) == [REFUSED]


@pytest.mark.parametrize("reason", [Reason.RETURNED, Reason.NOT_DISPATCHED, Reason.ABANDONED])
def test_a_rival_completion_is_kept_as_late_once(memory: AuditMemory, reason: Reason) -> None:
    """The first ending stands; each different later one of the body is kept beside it, once."""
    identity = make_identity()
    memory.emit(started(identity))
    first = completed(identity, make_ending(reason))
    memory.emit(first)
    rivals = [completed(identity, duration_ms=13), completed(identity, make_ending(Reason.RAISED))]
    for rival in rivals * 3:
        assert memory.emit(rival) is Stored.LATE
    assert memory.emit(first) is Stored.REPEATED
    late = list(memory.rows(kind=LATE))
    assert [(row.payload, row.meta, row.ts) for row in late] == [
        (rival.payload, rival.meta, rival.ts) for rival in rivals
    ]
    assert stored(memory, kind=COMPLETED) == [first.to_bytes()]


def test_a_refused_invocation_can_neither_start_nor_complete(memory: AuditMemory) -> None:
    """After a refused row no other row of that invocation is taken, nor a different refusal."""
    identity = make_identity()
    row = refused(identity)
    assert memory.emit(row) is Stored.NEW
    rows = [
        started(identity),
        completed(identity),
        refused(identity, Refusal.INVALID_CONTEXT),
    ]
    assert {refusal_of(memory, other) for other in rows} == {RowRefusal.WAS_REFUSED}
    assert stored(memory) == [row.to_bytes()]
    assert list(memory.running()) == []


def test_a_started_invocation_cannot_be_refused(memory: AuditMemory) -> None:
    """Whether open or closed: what ran was not refused."""
    identity = make_identity()
    memory.emit(started(identity))
    assert refusal_of(memory, refused(identity)) == RowRefusal.SECOND_STARTED_ROW
    memory.emit(completed(identity))
    assert refusal_of(memory, refused(identity)) == RowRefusal.SECOND_STARTED_ROW
    assert kinds(memory) == [STARTED, COMPLETED]


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        pytest.param(LATE, completed(make_identity()).payload, id="late"),
        pytest.param("audit.pruned", {}, id="an event of the system"),
        pytest.param("skill.invoked_completed", {}, id="a payload without tenant and request_id"),
    ],
)
def test_what_is_no_row_of_an_invocation_is_refused(
    memory: AuditMemory, kind: str, payload: dict[str, Any]
) -> None:
    """Late rows are the memory's own to write, and a row names its tenant and invocation."""
    row = AuditRow(kind=kind, ts="2026-01-01T00:00:00.000000Z", payload=payload, meta={})
    with pytest.raises(RowRefusedError):
        memory.emit(row)
    assert stored(memory) == []


AWKWARD = [
    'ValueError: "kind":"skill.invoked_completed"',
    '{"kind":"skill.invoked_completed","kind":"skill.invoked_late"}',
    r"back\slash \\ \" \u0022 %1 %s %% [%w]+ (.-)$",
    "emoji 🧯👩‍👩‍👧, é and e\u0301, \u2028 \u2029 \u0085 \ufeff \ufffd \U0010ffff",
    "control \x00 \x01 \x1f \x7f \t \r\n \b \f",
    "quote \" ' ` end",
    "]]--[[ $(reboot) ';drop table rows;--",
    "",
    "🧯" * 1024,
]


@pytest.mark.parametrize("text", AWKWARD, ids=range(len(AWKWARD)))
def test_awkward_text_survives(memory: AuditMemory, text: str) -> None:
    """No text in a row changes another part of it, not even where a late row is rewritten."""
    identity = make_identity(skill_id=text[:200] or "-", worker=text, task_id=text)
    first = completed(identity, Ending(reason=Reason.RAISED, error_message=text))
    rival = completed(identity, Ending(reason=Reason.REJECTED, error_message=text))
    begin = started(identity)
    for row in (begin, first, rival, rival):
        memory.emit(row)
    late = AuditRow(kind=LATE, ts=rival.ts, payload=rival.payload, meta=rival.meta)
    assert stored(memory) == [begin.to_bytes(), first.to_bytes(), late.to_bytes()]


# --- reading --------------------------------------------------------------------------------------


def test_running_tells_the_open_ones_oldest_first(memory: AuditMemory) -> None:
    """Started and not completed, in the order of starting: per tenant, and over all tenants."""
    ours = [make_identity(tenant_id=tenant) for tenant in [TENANT, OTHER_TENANT] * 6]
    for identity in ours:
        memory.emit(started(identity))
        next_moment()
    memory.emit(refused(make_identity()))
    memory.emit(completed(make_identity(), make_ending(Reason.NOT_DISPATCHED)))
    for identity in ours[::3]:
        memory.emit(completed(identity))
    still_open = [identity for number, identity in enumerate(ours) if number % 3]
    assert [row.request_id for row in memory.running()] == [i.request_id for i in still_open]
    for tenant in (TENANT, OTHER_TENANT):
        assert [row.request_id for row in memory.running(tenant)] == [
            identity.request_id for identity in still_open if identity.tenant_id == tenant
        ]
    assert {row.kind for row in memory.running()} == {STARTED}


def test_rows_come_in_stored_order_whatever_their_time(memory: AuditMemory) -> None:
    """A row stored later comes later, even if its ``ts`` is earlier (as after an outage)."""
    identity = make_identity()
    rows = [
        started(identity, ts="2026-03-01T00:00:00.000000Z"),
        completed(identity, ts="2026-02-01T00:00:00.000000Z"),
        started(make_identity(tenant_id=OTHER_TENANT), ts="2026-01-01T00:00:00.000000Z"),
    ]
    for row in rows:
        memory.emit(row)
        next_moment()
    assert stored(memory) == [row.to_bytes() for row in rows]


def test_many_rows_come_in_pages_and_none_is_missed(memory: AuditMemory) -> None:
    """More rows than one page holds, of two tenants: all are there once, in the order of emit."""
    emitted: dict[str, list[bytes]] = {TENANT: [], OTHER_TENANT: []}
    for number in range(MANY):
        row = started(make_identity(tenant_id=OTHER_TENANT if number % 16 else TENANT))
        memory.emit(row)
        emitted[row.tenant_id].append(row.to_bytes())
    for tenant, rows in emitted.items():
        assert stored(memory, tenant_id=tenant) == rows
        assert [row.to_bytes() for row in memory.running(tenant)] == rows
    assert Counter(stored(memory)) == Counter(itertools.chain(*emitted.values()))


def test_what_runs_comes_in_stored_order_however_dense(memory: AuditMemory) -> None:
    """More started rows than a page holds, many in one millisecond: ordered as ``rows`` are."""
    identities = [[make_identity() for _ in range(MANY // 8)] for _ in range(8)]

    def start(number: int) -> None:
        for identity in identities[number]:
            memory.emit(started(identity))

    assert in_threads(8, start) == []
    assert [row.position for row in memory.running()] == [row.position for row in memory.rows()]


@pytest.mark.parametrize("count", [500, 501])
def test_the_edge_of_a_page_loses_nothing(memory: AuditMemory, count: int) -> None:
    """As many rows as fill a page exactly, and one more."""
    rows = [started(make_identity()) for _ in range(count)]
    for row in rows:
        memory.emit(row)
    assert stored(memory) == [row.to_bytes() for row in rows]


def test_rows_written_while_reading_do_not_disturb_it(memory: AuditMemory) -> None:
    """A reader in the middle sees every row that was there when it began, each once."""
    rows = [started(make_identity()) for _ in range(MANY)]
    for row in rows:
        memory.emit(row)
    reader = memory.rows(TENANT)
    first = next(reader)
    memory.emit(started(make_identity()))
    rest = [row.to_bytes() for row in reader]
    assert [first.to_bytes(), *rest][:MANY] == [row.to_bytes() for row in rows]
    assert len(rest) - MANY in (-1, 0)


def test_positions_are_unique_and_stay(memory: AuditMemory) -> None:
    """Within a tenant each row has a position of its own, the same however the row is read."""
    identities = [make_identity() for _ in range(20)]
    for identity in identities:
        memory.emit(started(identity))
    for identity in identities[:10]:
        memory.emit(completed(identity))
    places = {row.to_bytes(): row.position for row in memory.rows(TENANT)}
    assert None not in places.values()
    assert len(set(places.values())) == 30
    again = [*memory.rows(), *memory.running()]
    for identity in identities:
        again += memory.rows(request_id=identity.request_id)
    assert {row.to_bytes(): row.position for row in again} == places


def test_rows_of_other_tenants_never_appear(memory: AuditMemory) -> None:
    """Asked for one tenant, no filter brings another's rows, not even under one request_id."""
    shared = make_identity().request_id
    for tenant in (TENANT, OTHER_TENANT):
        identity = make_identity(tenant_id=tenant, request_id=shared)
        assert memory.emit(started(identity)) is Stored.NEW
    memory.emit(completed(make_identity(tenant_id=OTHER_TENANT, request_id=shared)))
    filters: list[dict[str, Any]] = [
        {},
        {"request_id": shared},
        {"kind": STARTED},
        {"task_id": identity.task_id},
        {"trace_id": identity.trace_id},
    ]
    for parts in filters:
        assert [row.tenant_id for row in memory.rows(TENANT, **parts)] == [TENANT], parts
    assert [row.tenant_id for row in memory.running(TENANT)] == [TENANT]
    assert list(memory.running(OTHER_TENANT)) == []
    assert len(list(memory.rows(request_id=shared))) == 3
    nobody = str(uuid4())
    assert list(memory.rows(nobody)) == list(memory.rows(nobody, request_id=shared)) == []


# Every part of the fixed surface, with values that some rows have, some lack, and none has.
NOON = datetime(2026, 5, 4, 12, 0, 0, 250_000, tzinfo=UTC)
TRACES = ["0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736"]
IDS = [make_identity().request_id for _ in range(24)]
PARTS: dict[str, list[Any]] = {
    "tenant_id": [TENANT, OTHER_TENANT],
    "since": [NOON, NOON + timedelta(minutes=7), NOON + timedelta(days=1)],
    "until": [NOON, NOON + timedelta(minutes=7, microseconds=1), NOON + timedelta(days=1)],
    "kind": [STARTED, COMPLETED, LATE, REFUSED, "skill.invoked_never"],
    "skill_id": ["alerts.triage", "reports.write", "alerts"],
    "outcome": ["success", "panic"],
    "caller_persona": ["cuo-cpo@0.4.1", "batch@1"],
    "trace_id": TRACES,
    "request_id": [IDS[0], IDS[5], make_identity().request_id],
    "task_id": ["task-0", "task-2", "TASK-0"],
}


def varied_rows() -> Iterator[AuditRow]:
    """Rows of 24 invocations that differ in every part that can be asked for."""
    for number, request_id in enumerate(IDS):
        identity = make_identity(
            request_id=request_id,
            tenant_id=[TENANT, TENANT, OTHER_TENANT][number % 3],
            skill_id=["alerts.triage", "reports.write"][number % 2],
            caller_persona=["cuo-cpo@0.4.1", "batch@1", "nightly"][number // 2 % 3],
            trace_id=TRACES[number // 3 % 2],
            task_id=[f"task-{number // 2 % 4}", None][number % 5 == 4],
        )
        ts = timestamp(NOON + timedelta(minutes=number))
        if number % 8 == 7:
            yield refused(identity, ts=ts)
            continue
        yield started(identity, ts=ts)
        if number % 4 != 3:
            yield completed(identity, make_ending(list(Reason)[number % 16]), ts=ts)
        if number % 4 == 2:
            yield completed(identity, make_ending(Reason.REJECTED, "late"), ts=ts)


def passes(row: AuditRow, parts: dict[str, Any]) -> bool:
    """What the contract says of a filter, over the stored bytes alone."""
    document = json.loads(row.to_bytes())
    payload = document["payload"]
    found = {**payload, "kind": document["kind"], "task_id": document["meta"]["task_id"]}
    moment = datetime.fromisoformat(document["ts"])
    return (
        ("since" not in parts or moment >= parts["since"])
        and ("until" not in parts or moment < parts["until"])
        and all(
            found.get(part) == value
            for part, value in parts.items()
            if part not in ("since", "until")
        )
    )


def combinations() -> Iterator[dict[str, Any]]:
    """Every value alone, every pair and every triple of parts."""
    for size in range(4):
        for names in itertools.combinations(PARTS, size):
            for number in range(1 if size == 3 else 100):
                values = [PARTS[name] for name in names]
                choice = list(itertools.product(*values))
                if number < len(choice):
                    yield dict(zip(names, choice[number], strict=True))


def test_every_filter_and_every_combination(memory: AuditMemory) -> None:
    """``rows`` gives exactly the rows that pass every given part, in stored order."""
    for row in varied_rows():
        memory.emit(row)
    everything = list(memory.rows())
    assert len(everything) == 3 + 21 + 18 + 6  # refused, started, completed, late
    answers: Counter[int] = Counter()
    for parts in combinations():
        wanted = [row for row in everything if passes(row, parts)]
        assert list(memory.rows(**parts)) == wanted, parts
        answers[bool(wanted)] += 1
    assert answers[True] > 100
    assert answers[False] > 100
    whole = {name: values[0] for name, values in PARTS.items()} | {"outcome": None, "until": None}
    assert [row.request_id for row in memory.rows(**whole)] == [IDS[0]]


def test_parts_can_be_given_in_the_order_of_the_fixed_surface(memory: AuditMemory) -> None:
    """tenant_id, since, until, kind, skill_id, outcome, persona, trace, request and task id."""
    for row in varied_rows():
        memory.emit(row)
    first = next(iter(memory.rows()))
    given = memory.rows(
        TENANT, NOON, NOON + timedelta(seconds=1), STARTED, "alerts.triage", None,
        "cuo-cpo@0.4.1", TRACES[0], IDS[0], "task-0",
    )  # fmt: skip
    assert list(given) == [first]


def test_since_is_inclusive_and_until_exclusive(memory: AuditMemory) -> None:
    """To the microsecond, and whatever zone the moment is given in."""
    step = timedelta(microseconds=1)
    moments = [NOON - step, NOON, NOON + step]
    for moment in moments:
        memory.emit(started(make_identity(), ts=timestamp(moment)))

    def between(since: datetime | None, until: datetime | None) -> list[datetime]:
        return [datetime.fromisoformat(r.ts) for r in memory.rows(since=since, until=until)]

    assert between(NOON, None) == moments[1:]
    assert between(None, NOON) == moments[:1]
    assert between(NOON, NOON + step) == [NOON]
    assert between(NOON, NOON) == []
    assert between(NOON + step, NOON) == []
    east = NOON.astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert between(east, east + step) == [NOON]
    assert between(datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)) == moments


def test_follow_gives_what_arrives_and_nothing_older(memory: AuditMemory) -> None:
    """Rows emitted after the call, of known and of new tenants, then ``None`` when all is quiet."""
    memory.emit(started(make_identity()))
    arriving = memory.follow(RowFilter(kind=STARTED), poll=0.01)
    assert next(arriving) is None
    rows = [started(make_identity(tenant_id=t)) for t in (TENANT, OTHER_TENANT, TENANT)]
    for row in rows:
        memory.emit(row)
    memory.emit(refused(make_identity()))
    seen = [row for row in itertools.islice(arriving, 12) if row is not None]
    assert Counter(row.to_bytes() for row in seen) == Counter(row.to_bytes() for row in rows)
    assert next(arriving) is None


# --- leases ---------------------------------------------------------------------------------------


def test_a_lease_is_held_until_it_runs_out(memory: AuditMemory) -> None:
    """Held at once, by whoever took it and nobody else; gone by itself when it is not renewed."""
    memory.hold_lease("long", 60)
    memory.hold_lease("short", 0.05)
    wait_until(lambda: memory.leases(["long", "short", "never"]) == {"long"})


def test_a_lease_is_renewed_by_taking_it_again(memory: AuditMemory) -> None:
    """What counts is the last time it was taken, longer or shorter."""
    memory.hold_lease("w", 0.05)
    memory.hold_lease("w", 60)
    memory.hold_lease("marker", 0.1)
    wait_until(lambda: memory.leases(["marker"]) == set())
    assert memory.leases(["w"]) == {"w"}
    memory.hold_lease("w", 0.01)
    wait_until(lambda: memory.leases(["w"]) == set())


def test_a_lease_that_is_given_back_is_gone(memory: AuditMemory) -> None:
    """At once, and giving back what nobody holds is no error."""
    memory.hold_lease("w", 60)
    memory.hold_lease("other", 60)
    for _ in range(2):
        memory.drop_lease("w")
        assert memory.leases(["w", "other"]) == {"other"}


def test_nobody_asked_for_is_nobody_held(memory: AuditMemory) -> None:
    """An empty question has an empty answer."""
    memory.hold_lease("w", 60)
    assert memory.leases([]) == memory.leases(set()) == set()


def test_leases_are_seen_by_every_reader(shared: AuditMemory, url: str) -> None:
    """They live in the store: another client sees them, and who leads."""
    shared.hold_lease("w", 60)
    assert shared.lead("keeper", "a", 60)
    with checked_memory(url) as another:
        assert another.leases(["w"]) == {"w"}
        assert not another.lead("keeper", "b", 60)


def test_lived_is_from_the_started_row_to_the_last_sign_of_life(memory: AuditMemory) -> None:
    """Milliseconds; 0 for a process that gave none, or none since."""
    memory.hold_lease("early", 60)
    next_moment()
    memory.emit(started(make_identity()))
    (begun,) = memory.running()
    assert memory.lived_ms(begun, "never") == memory.lived_ms(begun, "early") == 0
    next_moment()
    memory.hold_lease("late", 60)
    lived = memory.lived_ms(begun, "late")
    assert 0 < lived < 60_000
    memory.drop_lease("late")
    assert memory.lived_ms(begun, "late") == lived


def test_one_leads_in_a_role(memory: AuditMemory) -> None:
    """The first, for as long as it renews; a role of another name has a leader of its own."""
    assert not memory.is_led("keeper")
    assert memory.lead("keeper", "a", 60)
    assert memory.is_led("keeper")
    assert not memory.lead("keeper", "b", 60)
    assert memory.lead("keeper", "a", 60)
    assert memory.lead("sealer", "b", 60)


def test_leading_is_handed_over_and_runs_out(memory: AuditMemory) -> None:
    """By giving up, which only the leader can do, or by silence."""
    memory.lead("keeper", "a", 60)
    memory.give_up("keeper", "b")
    assert not memory.lead("keeper", "b", 60)
    memory.give_up("keeper", "a")
    memory.give_up("keeper", "a")
    assert not memory.is_led("keeper")
    assert memory.lead("keeper", "b", 0.05)
    wait_until(lambda: memory.lead("keeper", "a", 60))
    assert not memory.lead("keeper", "b", 60)


def test_the_store_tells_its_time(memory: AuditMemory) -> None:
    """In UTC, and it does not stand still."""
    first = memory.store_time()
    assert first.utcoffset() == timedelta(0)
    wait_until(lambda: memory.store_time() > first)


def test_of_many_candidates_one_leads(memory: AuditMemory) -> None:
    """8 threads at once: a single yes."""
    answers: list[bool] = []
    assert in_threads(8, lambda n: answers.append(memory.lead("keeper", f"k-{n}", 60))) == []
    assert sorted(answers) == [False] * 7 + [True]


# --- deaths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", Reason)
def test_a_death_is_counted_once_per_invocation(memory: AuditMemory, reason: Reason) -> None:
    """Only what a worker died over, only the ending that stands, and however often it is sent."""
    counted = reason in (Reason.WORKER_LOST, Reason.ABANDONED)
    for deaths in range(1, 4):
        identity = make_identity(redelivered=deaths > 1)
        memory.emit(started(identity))
        end = completed(identity, make_ending(reason))
        for row in (end, end, completed(identity, make_ending(Reason.ABANDONED), duration_ms=1)):
            memory.emit(row)
        assert memory.deaths(TENANT, message_of(end)) == (deaths if counted else 0)


def test_a_death_belongs_to_a_message_of_a_tenant(memory: AuditMemory) -> None:
    """Another task, a retry of the same task, and another tenant begin at none."""
    identity = make_identity()
    memory.emit(started(identity))
    end = completed(identity, make_ending(Reason.WORKER_LOST))
    memory.emit(end)
    assert memory.deaths(TENANT, message_of(end)) == 1
    assert memory.deaths(OTHER_TENANT, message_of(end)) == 0
    assert memory.deaths(TENANT, f"{identity.task_id}/1") == 0
    assert memory.deaths(TENANT, "another/0") == 0


def test_what_never_started_killed_nobody(memory: AuditMemory) -> None:
    """A bar is no death."""
    end = completed(make_identity(), make_ending(Reason.WORKER_LOST))
    assert memory.emit(end) is Stored.BARRED
    assert memory.deaths(TENANT, message_of(end)) == 0


# --- a message that is started again --------------------------------------------------------------


def once(message: str = "message-1", seconds: int = 1000) -> Once:
    return Once(token=message, seconds=seconds)


def start_once(memory: AuditMemory, message: str = "message-1", **more: Any) -> Identity:
    """A new invocation of ``message`` that started."""
    identity = make_identity(**more)
    row = started(identity)
    memory.emit(row, once(message))
    return identity


def marks(memory: AuditMemory, **parts: Any) -> list[bool]:
    return [row.meta["redelivered"] for row in memory.rows(**parts)]


def test_a_message_that_is_started_again_is_marked(memory: AuditMemory) -> None:
    """The first keeps its row, each further one gets the other, whatever became of the first."""
    rows = [started(make_identity()) for _ in range(3)]
    answers = [memory.emit(row, once()) for row in rows[:2]]
    memory.emit(completed(make_identity(request_id=rows[0].request_id)))
    answers.append(memory.emit(rows[2], once()))
    assert answers == [Stored.NEW, Stored.REPLAYED, Stored.REPLAYED]
    wanted = [rows[0].to_bytes(), *(as_replay(row).to_bytes() for row in rows[1:])]
    assert stored(memory, kind=STARTED) == wanted
    assert [row.to_bytes() for row in memory.running()] == wanted[1:]


@pytest.mark.parametrize("replay", [False, True], ids=["first", "replay"])
def test_the_same_start_again_is_no_replay_of_itself(memory: AuditMemory, replay: bool) -> None:
    """Done again it says which of the two forms is stored: at once, later, and when closed."""
    if replay:
        start_once(memory)
    identity = make_identity()
    row = started(identity)
    answer, repeated = (
        (Stored.REPLAYED, Stored.REPLAYED) if replay else (Stored.NEW, Stored.REPEATED)
    )
    assert memory.emit(row, once()) is answer
    assert memory.emit(row, once()) is repeated
    assert start_once(memory) != identity
    assert memory.emit(row, once()) is repeated
    memory.emit(completed(identity))
    assert memory.emit(row, once()) is repeated
    assert marks(memory, request_id=identity.request_id) == [replay] * 2


def test_what_stands_is_the_row_that_can_be_sent_again(memory: AuditMemory) -> None:
    """A replay's row read back is a repetition; the form that was not stored is another row."""
    start_once(memory)
    row = started(make_identity())
    memory.emit(row, once())
    (found,) = memory.rows(request_id=row.request_id)
    assert memory.emit(found) is Stored.REPEATED
    assert memory.emit(found, once()) is Stored.REPEATED
    assert refusal_of(memory, row) == RowRefusal.SECOND_STARTED_ROW


def test_a_row_the_broker_marked_leaves_its_token_too(memory: AuditMemory) -> None:
    """A redelivery is stored as it is, and the copy that comes after it is marked."""
    row = started(make_identity(redelivered=True))
    assert memory.emit(row, once()) is Stored.NEW
    assert memory.emit(row, once()) is Stored.REPEATED
    start_once(memory)
    again = started(make_identity(redelivered=True))
    assert memory.emit(again, once()) is Stored.REPLAYED
    assert marks(memory) == [True] * 3


def test_the_mark_is_all_that_a_replay_changes(memory: AuditMemory) -> None:
    """A text that looks like the mark stays as it is, in the row and for its repetition."""
    start_once(memory)
    text = '"redelivered":false,\\"redelivered":false'
    row = started(make_identity(on_behalf_of=text, caller_persona=text))
    for _ in range(2):
        assert memory.emit(row, once()) is Stored.REPLAYED
    assert stored(memory)[1:] == [as_replay(row).to_bytes()]
    (found,) = memory.rows(request_id=row.request_id)
    assert found.payload == row.payload
    assert found.meta == {**row.meta, "redelivered": True}


def test_tokens_are_of_their_tenant_and_their_message(memory: AuditMemory) -> None:
    """Another tenant's message, and another message, are marked by nothing."""
    start_once(memory)
    start_once(memory, tenant_id=OTHER_TENANT)
    start_once(memory, "message-2")
    start_once(memory, "{message}:3 *")
    memory.emit(started(make_identity()))
    assert marks(memory) == [False] * 5


def test_what_never_started_leaves_no_token(memory: AuditMemory) -> None:
    """Neither a refused invocation nor one that was barred makes a replay of the next."""
    for bar in (refused, lambda i: completed(i, make_ending(Reason.NOT_DISPATCHED))):
        identity = make_identity()
        memory.emit(bar(identity))
        row = started(identity)
        with pytest.raises(RowRefusedError):
            memory.emit(row, once())
    start_once(memory)
    assert marks(memory, kind=STARTED) == [False]


@pytest.mark.parametrize("reason", sorted([*SETTLING, Reason.RETURNED, Reason.RAISED]))
def test_both_rows_of_a_pair_are_marked_alike(memory: AuditMemory, reason: Reason) -> None:
    """Whoever closes a replay, also who knows the message only; done again it is a repetition."""
    first, second = start_once(memory), start_once(memory)
    for identity, mark in ((first, False), (second, True)):
        end = completed(identity, make_ending(reason))
        assert memory.emit(end) is Stored.NEW
        assert memory.emit(end) is Stored.REPEATED
        assert memory.emit(as_replay(end)) is (
            Stored.REPEATED if mark else Stored.SETTLED if reason in SETTLING else Stored.LATE
        )
        assert marks(memory, request_id=identity.request_id)[:2] == [mark] * 2
    assert list(memory.running()) == []


def test_a_rival_of_a_replay_is_marked_too(memory: AuditMemory) -> None:
    """Late rows say what their invocation says, in one copy each; nothing else of them changes."""
    start_once(memory)
    identity = start_once(memory)
    memory.emit(completed(identity))
    text = 'ValueError: "redelivered":false'
    rival = completed(identity, make_ending(Reason.RAISED, text))
    for _ in range(2):
        assert memory.emit(rival) is Stored.LATE
    rows = list(memory.rows(request_id=identity.request_id))
    assert [row.kind for row in rows] == [STARTED, COMPLETED, LATE]
    assert [row.meta["redelivered"] for row in rows] == [True] * 3
    assert rows[2].payload == rival.payload


def test_a_replay_that_dies_counts_as_a_death(memory: AuditMemory) -> None:
    """The mark takes nothing from what a settled ending does besides."""
    start_once(memory)
    identity = start_once(memory)
    end = completed(identity, make_ending(Reason.WORKER_LOST))
    memory.emit(end)
    assert memory.emit(completed(identity, make_ending(Reason.ABANDONED))) is Stored.SETTLED
    assert memory.deaths(TENANT, message_of(end)) == 1


def test_a_token_is_forgotten_after_its_seconds() -> None:
    """The last start counts, and none makes what is remembered shorter."""
    clock = FakeClock()
    memory = InMemory(clock=clock)
    answers = []
    for seconds, passes in ((10, 9.5), (10, 1.0), (2, 8.5), (2, 2.0), (5, 5.0), (5, 0.0)):
        row = started(make_identity())
        answers.append(memory.emit(row, once(seconds=seconds)))
        clock.pass_by(passes)
    new, replayed = Stored.NEW, Stored.REPLAYED
    assert answers == [new, replayed, replayed, replayed, new, new]


def test_a_token_is_one_key_that_expires(server: EmbeddedServer) -> None:
    """Its time starts anew with each start and is never cut short; without a token, no key."""

    def left() -> int:
        return int(client.ttl(key))

    key = f"audit:{{{TENANT}}}:seen:message-1"
    with checked_memory(server.url) as memory, redis.Redis.from_url(server.url) as client:
        memory.emit(started(make_identity()))
        assert client.dbsize() == 6
        first = start_once(memory)
        assert (client.dbsize(), client.get(key)) == (7, first.request_id.encode())
        assert 990 < left() <= 1000
        for seconds in (3000, 20):
            row = started(make_identity())
            assert memory.emit(row, once(seconds=seconds)) is Stored.REPLAYED
            assert 2990 < left() <= 3000
        memory.emit(row, once(seconds=9000))  # a repetition, no start
        assert left() <= 3000
        assert client.dbsize() == 7
        client.delete(key)  # what its expiry does
        start_once(memory)
        assert marks(memory) == [False, False, True, True, False]


def test_a_row_that_is_not_stored_leaves_no_token(server: EmbeddedServer) -> None:
    """The step is one: where the server refuses the row in its midst, the token is not there."""
    rows, row = f"audit:{{{TENANT}}}:rows", started(make_identity())
    with checked_memory(server.url) as memory, redis.Redis.from_url(server.url) as client:
        client.set(rows, "no stream")
        with pytest.raises(MemoryUnavailableError):
            memory.emit(row, once())
        client.delete(rows)
        assert memory.emit(row, once()) is Stored.NEW


@pytest.mark.parametrize(
    "change",
    [{"token": ""}, {"token": "geheim\n"}, {"token": "geh\u00e9im"}, {"seconds": 0}],
    ids=str,
)
def test_an_unusable_once_is_an_error_that_repeats_no_token(change: dict[str, Any]) -> None:
    """Found where it is made, before anything is emitted."""
    good: dict[str, Any] = {"token": "t", "seconds": 1}
    Once(**good)
    with pytest.raises(ValueError, match="token") as caught:
        Once(**{**good, **change})
    assert "geh" not in str(caught.value)


def test_once_is_for_started_rows(memory: AuditMemory) -> None:
    """Any other row with it is an error in our own code, and is not stored."""
    for row in (completed(make_identity()), refused(make_identity())):
        with pytest.raises(ValueError, match="only a started row"):
            memory.emit(row, once())
    assert stored(memory) == []


# --- many at once ---------------------------------------------------------------------------------


def in_threads(count: int, work: Callable[[int], None]) -> list[BaseException]:
    """Run ``work(0)`` to ``work(count - 1)`` at once; the errors they ended with."""
    errors: list[BaseException] = []
    ready = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            ready.wait(60)
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def in_processes(count: int, work: Callable[[int], None]) -> Callable[[], list[int | None]]:
    """Fork processes that run ``work(0)`` ... at once; what is returned gives their exit codes."""
    ready = FORK.Barrier(count)

    def run(number: int) -> None:
        ready.wait(60)
        work(number)

    processes = [FORK.Process(target=run, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()

    def join() -> list[int | None]:
        for process in processes:
            process.join()
        return [process.exitcode for process in processes]

    return join


def test_writers_side_by_side_lose_and_double_nothing(shared: AuditMemory) -> None:
    """8 threads and 4 forked processes, one memory object for all: what they wrote is there."""
    identities = [[make_identity() for _ in range(EACH)] for _ in range(12)]

    def invoke(writer: int) -> None:
        for identity in identities[writer]:
            assert shared.emit(started(identity)) is Stored.NEW
            assert shared.emit(completed(identity)) is Stored.NEW

    shared.emit(refused(make_identity()))  # so that there is a connection to share by mistake
    join = in_processes(4, lambda number: invoke(8 + number))
    assert in_threads(8, invoke) == []
    assert join() == [0] * 4
    found = Counter((row.request_id, row.kind) for row in shared.rows() if row.kind != REFUSED)
    wanted = itertools.product(
        (identity.request_id for group in identities for identity in group), (STARTED, COMPLETED)
    )
    assert found == Counter(wanted)
    assert list(shared.running()) == []


def test_of_many_rivals_one_closes_the_invocation(shared: AuditMemory) -> None:
    """6 processes race to close the same 40 invocations: one row stands, five are kept as late."""
    identities = [make_identity() for _ in range(40)]
    for identity in identities:
        shared.emit(started(identity))

    def close(number: int) -> None:
        won = 0
        for identity in identities:
            end = completed(identity, duration_ms=number)
            stored_as = shared.emit(end)
            assert shared.emit(end) is {Stored.NEW: Stored.REPEATED}.get(stored_as, Stored.LATE)
            won += stored_as is Stored.NEW
        shared.emit(refused(make_identity(skill_id=f"rival-{number}", attempt=won)))

    assert in_processes(6, close)() == [0] * 6
    for identity in identities:
        rows = list(shared.rows(request_id=identity.request_id))
        assert [row.kind for row in rows] == [STARTED, COMPLETED] + [LATE] * 5
        assert {row.payload["duration_ms"] for row in rows[1:]} == set(range(6))
    assert sum(row.meta["attempt"] for row in shared.rows(kind=REFUSED)) == 40


def test_of_many_rivals_one_starts_the_invocation(memory: AuditMemory) -> None:
    """6 threads race to start one invocation, each in its own way: one started row is taken."""
    identities = [make_identity() for _ in range(40)]
    answers: list[str] = []

    def start(number: int) -> None:
        for identity in identities:
            try:
                row = started(identity, ts=f"2026-01-01T00:00:00.00000{number}Z")
                answers.append(memory.emit(row))
            except RowRefusedError as error:
                answers.append(error.refusal)

    assert in_threads(6, start) == []
    assert Counter(answers) == {Stored.NEW: 40, RowRefusal.SECOND_STARTED_ROW: 200}
    assert len({row.request_id for row in memory.running()}) == 40


@pytest.mark.parametrize("turn", range(50))
def test_of_many_starts_with_one_token_one_is_unmarked(
    turn: int, lasting: dict[str, AuditMemory], hurried_threads: None
) -> None:
    """12 threads start under one token at once, each twice: one has its row, eleven are marked."""
    for memory in lasting.values():
        answers: list[Stored] = []

        def start(number: int, memory: AuditMemory = memory, said: list[Stored] = answers) -> None:
            row = started(make_identity(task_id=f"turn-{turn}"))
            token = once(f"turn-{turn}")
            said.append(memory.emit(row, token))
            assert memory.emit(row, token) in (Stored.REPEATED, Stored.REPLAYED)

        assert in_threads(12, start) == []
        assert Counter(answers) == {Stored.NEW: 1, Stored.REPLAYED: 11}
        assert sorted(marks(memory, task_id=f"turn-{turn}")) == [False] + [True] * 11


def test_a_memory_used_before_a_fork_works_on_both_sides(shared: AuditMemory) -> None:
    """Connections are per process: parent and children go on at once, writing and reading."""
    shared.emit(started(make_identity(skill_id="before")))
    assert len(list(shared.rows())) == 1
    parent = os.getpid()

    def go_on(number: int) -> None:
        for _ in range(50):
            identity = make_identity(skill_id=f"side-{number}")
            assert shared.emit(started(identity)) is Stored.NEW
            (begin,) = shared.rows(request_id=identity.request_id)
            assert begin.request_id == identity.request_id
        shared.check()
        if os.getpid() != parent:
            shared.close()

    join = in_processes(4, go_on)
    go_on(4)
    assert join() == [0] * 4
    go_on(5)
    found = Counter(row.payload["skill_id"] for row in shared.rows())
    assert found == {"before": 1} | {f"side-{number}": 50 for number in range(6)}


def test_a_closed_memory_opens_again_by_itself(memory: AuditMemory) -> None:
    """``close`` gives the connections back; a later call makes new ones."""
    identity = make_identity()
    memory.emit(started(identity))
    memory.close()
    memory.close()
    assert kinds(memory) == [STARTED]
    memory.close()
    assert memory.emit(completed(identity)) is Stored.NEW


# --- any sequence ---------------------------------------------------------------------------------


class Model:
    """The contract of one tenant's memory, in plain Python."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.begun: dict[str, bytes] = {}
        self.ended: dict[str, bytes] = {}
        self.late: dict[str, list[bytes]] = {}
        self.refused: dict[str, bytes] = {}
        self.barred: set[str] = set()
        self.seen: set[str] = set()
        self.marked: set[str] = set()

    def emit(self, row: AuditRow, once: Once | None = None) -> Stored | RowRefusal:
        if row.kind == STARTED and once is not None:
            return self._start_once(row, once)
        if row.kind == COMPLETED and row.request_id in self.marked:
            row = as_replay(row)
        take = {STARTED: self._start, COMPLETED: self._complete, REFUSED: self._refuse}
        return take[row.kind](row, row.request_id, row.to_bytes())

    def running(self) -> list[bytes]:
        return [begun for request_id, begun in self.begun.items() if request_id not in self.ended]

    def _start_once(self, row: AuditRow, once: Once) -> Stored | RowRefusal:
        request_id, again = row.request_id, as_replay(row).to_bytes()
        if request_id in self.begun and self.begun[request_id] == again:
            return Stored.REPEATED if row.to_bytes() == again else Stored.REPLAYED
        replay = once.token in self.seen and request_id not in self.begun
        answer = self._start(row, request_id, again if replay else row.to_bytes())
        if answer is not Stored.NEW:
            return answer
        self.seen.add(once.token)
        if replay:
            self.marked.add(request_id)
        return Stored.REPLAYED if replay else Stored.NEW

    def _start(self, row: AuditRow, request_id: str, sent: bytes) -> Stored | RowRefusal:
        if request_id in self.refused:
            return RowRefusal.WAS_REFUSED
        if request_id in self.barred:
            return RowRefusal.TOMBSTONE
        if request_id in self.begun:
            same = self.begun[request_id] == sent
            return Stored.REPEATED if same else RowRefusal.SECOND_STARTED_ROW
        return self._keep(self.begun, request_id, sent)

    def _complete(self, row: AuditRow, request_id: str, sent: bytes) -> Stored | RowRefusal:
        if row.meta["reason"] in SETTLING and request_id not in self.begun:
            return self._bar(request_id)
        if request_id in self.refused:
            return RowRefusal.WAS_REFUSED
        if request_id in self.barred:
            return RowRefusal.TOMBSTONE
        if request_id not in self.begun:
            return RowRefusal.NO_STARTED_ROW
        if request_id in self.ended:
            return self._rival(row, request_id, sent)
        return self._keep(self.ended, request_id, sent)

    def _bar(self, request_id: str) -> Stored:
        if request_id in self.refused:
            return Stored.SETTLED
        self.barred.add(request_id)
        return Stored.BARRED

    def _rival(self, row: AuditRow, request_id: str, sent: bytes) -> Stored:
        if self.ended[request_id] == sent:
            return Stored.REPEATED
        if row.meta["reason"] in SETTLING:
            return Stored.SETTLED
        rivals = self.late.setdefault(request_id, [])
        if sent not in rivals:
            rivals.append(sent)
            late = AuditRow(kind=LATE, ts=row.ts, payload=row.payload, meta=row.meta)
            self.rows.append(late.to_bytes())
        return Stored.LATE

    def _refuse(self, row: AuditRow, request_id: str, sent: bytes) -> Stored | RowRefusal:
        if request_id in self.begun or request_id in self.barred:
            return RowRefusal.SECOND_STARTED_ROW
        if request_id in self.refused:
            same = self.refused[request_id] == sent
            return Stored.REPEATED if same else RowRefusal.WAS_REFUSED
        return self._keep(self.refused, request_id, sent)

    def _keep(self, where: dict[str, bytes], request_id: str, sent: bytes) -> Stored:
        where[request_id] = sent
        self.rows.append(sent)
        return Stored.NEW


class AnySequence(RuleBasedStateMachine):
    """Whatever is emitted in whatever order, memory and model agree on each answer and each row."""

    memory: AuditMemory

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.tenant = str(uuid4())
        self.ids = [make_identity().request_id for _ in range(3)]

    @rule(
        which=st.integers(0, 2),
        what=st.sampled_from(["start", "return", "fail", "not dispatched", "lost", "refuse"]),
        variant=st.integers(0, 2),
        token=st.sampled_from([None, "one", "other"]),
        redelivered=st.booleans(),
    )
    def emit(
        self, which: int, what: str, variant: int, token: str | None, redelivered: bool
    ) -> None:
        identity = make_identity(
            tenant_id=self.tenant, request_id=self.ids[which], redelivered=redelivered
        )
        row = self._row(identity, what, variant)
        asked = once(token) if token is not None and row.kind == STARTED else None
        expected = self.model.emit(row, asked)
        try:
            answer: Stored | str = self.memory.emit(row, asked)
        except RowRefusedError as error:
            answer = error.refusal
        assert answer == expected
        assert stored(self.memory, tenant_id=self.tenant) == self.model.rows

    @rule()
    def ask_what_runs(self) -> None:
        running = [row.to_bytes() for row in self.memory.running(self.tenant)]
        assert running == self.model.running()

    @rule(which=st.integers(0, 2))
    def ask_for_one(self, which: int) -> None:
        wanted = [
            r for r in self.model.rows if json.loads(r)["payload"]["request_id"] == self.ids[which]
        ]
        assert stored(self.memory, tenant_id=self.tenant, request_id=self.ids[which]) == wanted

    @staticmethod
    def _row(identity: Identity, what: str, variant: int) -> AuditRow:
        ts = f"2026-01-01T00:00:00.00000{variant}Z"
        match what:
            case "start":
                return started(identity, ts=ts)
            case "refuse":
                return refused(identity, ts=ts)
            case "return":
                return completed(identity, duration_ms=variant, ts=ts)
            case "fail":
                return completed(identity, make_ending(Reason.RAISED, str(variant)), ts=ts)
        reason = Reason.WORKER_LOST if what == "lost" else Reason.NOT_DISPATCHED
        return completed(identity, make_ending(reason), duration_ms=variant, ts=ts)


def test_any_sequence_of_emits_follows_the_contract(memory: AuditMemory) -> None:
    """A model of a page of Python and the memory answer alike, row for row."""

    class Machine(AnySequence):
        pass

    Machine.memory = memory
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=SEQUENCES,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
