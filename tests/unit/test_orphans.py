"""What a sweep says of open invocations without a live lease, for the alarm after 30 s."""

from __future__ import annotations

import pytest

from audit.errors import MemoryUnavailableError
from audit.metrics import Orphans
from audit.reconciler import Reconciler
from audit.testing import FakeClock, InMemory
from tests.support import TENANT, make_identity, started

LEASE = 600.0  # nothing is condemned within these tests
OTHER = "11111111-2222-4333-8444-555555555555"


class Scene:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.memory = InMemory(clock=self.clock)
        self.reconciler = Reconciler(self.memory, lease_seconds=LEASE, clock=self.clock)

    def start(self, worker: str, tenant_id: str = TENANT) -> None:
        self.memory.emit(started(make_identity(worker=worker, tenant_id=tenant_id)))

    def orphans(self, after: float = 0.0) -> dict[str, Orphans]:
        self.clock.pass_by(after)
        return dict(self.reconciler.sweep().orphans)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_they_are_counted_per_tenant_from_when_the_lease_was_seen_absent(scene: Scene) -> None:
    """Who lives has none, and shows a zero."""
    scene.memory.hold_lease("alive", 10_000)
    scene.start("gone")
    scene.start("gone")
    scene.start("alive")
    scene.start("alive", OTHER)
    scene.orphans()
    scene.start("gone-later")
    scene.orphans(20)
    assert scene.orphans(15) == {
        TENANT: Orphans(count=3, seconds=35.0),
        OTHER: Orphans(count=0, seconds=0.0),
    }


def test_a_lease_that_is_seen_again_ends_it(scene: Scene) -> None:
    """The time begins anew should it be gone once more."""
    scene.start("w")
    scene.orphans()
    scene.memory.hold_lease("w", 10)
    assert scene.orphans(9) == {TENANT: Orphans(count=0, seconds=0.0)}
    assert scene.orphans(9) == {TENANT: Orphans(count=1, seconds=0.0)}


def test_a_keeper_that_looks_too_seldom_to_close_anything_is_heard_of(scene: Scene) -> None:
    """A break in looking starts the observation of leases anew, and not this."""
    scene.start("w")
    scene.orphans()
    assert scene.orphans(LEASE) == {TENANT: Orphans(count=1, seconds=LEASE)}


def test_during_an_outage_nobody_could_renew(scene: Scene) -> None:
    """Time counts from when the memory answers again."""
    scene.start("w")
    scene.orphans()
    scene.memory.down = True
    with pytest.raises(MemoryUnavailableError):
        scene.orphans(60)
    scene.memory.down = False
    assert scene.orphans() == {TENANT: Orphans(count=1, seconds=0.0)}


def test_what_the_sweep_closes_is_no_orphan() -> None:
    """The alarm is for what stays open."""
    scene = Scene()
    scene.reconciler = Reconciler(scene.memory, lease_seconds=15, clock=scene.clock)
    scene.start("w")
    for _ in range(10):
        assert scene.orphans(1)[TENANT].count == 1
    assert scene.orphans(1)[TENANT].count == 0
    assert scene.orphans(1) == {}
