"""audit/tail.py: what a look counts, and what leaves the five minutes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from audit import tail as module
from audit.errors import MemoryUnavailableError
from audit.memory.base import Entry
from audit.tail import PAGE, WINDOW, Tail
from audit.testing import FakeClock, InMemory
from tests.support import TENANT, completed, make_identity, refused, started

OTHER = "11111111-2222-4333-8444-555555555555"


class Heard:
    """Stands in for :mod:`audit.metrics`."""

    def __init__(self) -> None:
        self.rows: Counter[tuple[str, str]] = Counter()
        self.last: dict[str, int] = {}
        self.behind = False

    def arrived(self, tenant_id: str, kinds: Mapping[str, int]) -> None:
        self.rows.update({(tenant_id, kind): count for kind, count in kinds.items()})

    def balance(self, by_tenant: Mapping[str, int], *, behind: bool) -> None:
        self.last, self.behind = dict(by_tenant), behind


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    heard = Heard()
    monkeypatch.setattr(module, "metrics", heard)
    return heard


def start(memory: InMemory, count: int, tenant_id: str = TENANT) -> None:
    for _ in range(count):
        memory.emit(started(make_identity(tenant_id=tenant_id)))


def test_started_minus_completed_per_tenant(heard: Heard) -> None:
    """From the first look on; what was there before is not counted, what is refused is neither."""
    memory = InMemory()
    before = make_identity()
    memory.emit(started(before))
    tail = Tail(memory, seconds=1, clock=FakeClock())
    tail.look()
    assert heard.last == {}
    start(memory, 3)
    start(memory, 2, OTHER)  # a tenant that nobody knew
    memory.emit(refused(make_identity()))
    tail.look()
    assert heard.last == {TENANT: 3, OTHER: 2}
    memory.emit(completed(before))
    tail.look()
    tail.look()
    assert heard.last == {TENANT: 2, OTHER: 2}
    assert heard.rows == {
        (TENANT, "skill.invoked_started"): 3,
        (TENANT, "skill.invoked_refused"): 1,
        (TENANT, "skill.invoked_completed"): 1,
        (OTHER, "skill.invoked_started"): 2,
    }


def test_rows_leave_the_window(heard: Heard) -> None:
    """After five minutes, and so does a tenant that has none in it any more."""
    memory, clock = InMemory(), FakeClock()
    tail = Tail(memory, seconds=1, clock=clock)
    tail.look()
    start(memory, 3)
    tail.look()
    clock.pass_by(WINDOW - 1)
    start(memory, 1, OTHER)
    tail.look()
    assert heard.last == {TENANT: 3, OTHER: 1}
    clock.pass_by(2)
    tail.look()
    assert heard.last == {OTHER: 1}
    clock.pass_by(WINDOW)
    tail.look()
    assert heard.last == {}


def test_a_look_ends_in_time_and_the_next_goes_on(heard: Heard) -> None:
    """It says that it is behind; no row is lost or counted twice, and every tenant has its turn."""
    memory, clock = InMemory(), FakeClock(step=0.1)
    tail = Tail(memory, seconds=0.5, clock=clock)
    tail.look()
    start(memory, 2 * PAGE + 1)
    start(memory, 2, OTHER)
    looks = 0
    while looks == 0 or heard.behind:
        tail.look()
        looks += 1
        assert looks < 20
    assert looks > 1
    assert heard.last == {TENANT: 2 * PAGE + 1, OTHER: 2}


def test_what_is_kept_does_not_grow_with_the_load(heard: Heard) -> None:
    """A look a second for ten minutes leaves some thirty buckets."""
    memory, clock = InMemory(), FakeClock()
    tail = Tail(memory, seconds=1, clock=clock)
    for _ in range(600):
        start(memory, 1)
        tail.look()
        clock.pass_by(1)
    assert len(tail._buckets) <= 31
    assert 290 <= heard.last[TENANT] <= 311


def test_an_outage_loses_nothing(heard: Heard) -> None:
    """The look raises, and the next one counts what came meanwhile."""
    memory = InMemory()
    tail = Tail(memory, seconds=1, clock=FakeClock())
    tail.look()
    start(memory, 1)
    memory.down = True
    with pytest.raises(MemoryUnavailableError):
        tail.look()
    memory.down = False
    start(memory, 1)
    tail.look()
    assert heard.last == {TENANT: 2}


def test_what_is_no_row_is_counted_as_damaged(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And ends nothing; an entry of somebody else's form is left to the ledger."""
    memory = InMemory()
    tail = Tail(memory, seconds=1, clock=FakeClock())
    tail.look()
    start(memory, 1)
    entries = [Entry("1-0", b"\xff"), Entry("2-0", b"x", foreign=True)]
    monkeypatch.setattr(memory, "entries", lambda *_: entries)
    tail.look()
    assert heard.rows == {(TENANT, "damaged"): 1}
