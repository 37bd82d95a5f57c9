"""Who counts an ending: each completed row once, whoever writes it, spools it or replays it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.errors import MemoryUnavailableError
from audit.invocation import Invocation
from audit.keeper_http import Exporting
from audit.reconciler import Reconciler
from audit.recorder import Recorder
from audit.row import COMPLETED, Reason
from audit.spool import Spool
from audit.testing import FakeClock, InMemory
from tests.support import HASH, completed, make_ending, make_identity, started


class Scene:
    """A host's spool, its memory, and what is counted."""

    def __init__(self, directory: Path, exporting: Exporting) -> None:
        self.clock = FakeClock()
        self.memory = InMemory(clock=self.clock)
        self.spool = Spool(directory, self.memory.name)
        self._exporting = exporting

    def total(self, name: str) -> int:
        text = self._exporting.text().decode()
        return sum(int(float(n)) for n in re.findall(rf"^{name}\S* (\S+)$", text, re.MULTILINE))

    @property
    def counted(self) -> int:
        return self.total("skill_invoked_total")

    @property
    def rows(self) -> int:
        return len(list(self.memory.rows(kind=COMPLETED)))

    def running(self) -> Invocation:
        made = Invocation(make_identity(), Recorder(self.memory, self.spool))
        made.start(HASH)
        made.begin()
        return made


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Exporting("k", scraped=True) as exporting:
        yield Scene(tmp_path, exporting)


@pytest.mark.parametrize("reason", [Reason.RETURNED, Reason.TERMINATED])
def test_an_ending_counts_where_it_closes(scene: Scene, reason: Reason) -> None:
    """At once."""
    scene.running().close(make_ending(reason))
    assert scene.counted == scene.rows == 1


@pytest.mark.parametrize("reason", [Reason.RETURNED, Reason.RAISED, Reason.TERMINATED])
def test_a_spooled_ending_counts_once(scene: Scene, reason: Reason) -> None:
    """A body's own when it is spooled, another when it is replayed; again adds nothing."""
    made = scene.running()
    scene.memory.down = True
    made.close(make_ending(reason))
    scene.memory.down = False
    scene.spool.replay(scene.memory)
    scene.spool.replay(scene.memory)
    assert scene.counted == scene.rows == 1


def test_what_adds_nothing_counts_for_nothing(scene: Scene) -> None:
    """A child closed, then its parent reports; the parent's waited in the spool, or did not."""
    made = scene.running()
    made.close(make_ending())
    lost = completed(made.identity, make_ending(Reason.WORKER_LOST))
    Recorder(scene.memory, scene.spool).settle(lost)
    scene.spool.keep(lost)
    scene.spool.replay(scene.memory)
    assert scene.counted == scene.rows == 1


def test_a_child_that_is_told_to_exit_after_its_parent_has_closed(scene: Scene) -> None:
    """Its ending adds nothing and counts for nothing."""
    made = scene.running()
    scene.memory.emit(completed(made.identity, make_ending(Reason.SHUTDOWN)))
    made.close(make_ending(Reason.TERMINATED))
    assert scene.rows == 1
    assert scene.counted == 0  # the parent's, which this test stood in for, counts


def test_a_late_completion_counts_as_late(scene: Scene) -> None:
    """The keeper that closed it has counted it."""
    made = scene.running()
    reconciler = Reconciler(scene.memory, lease_seconds=15, clock=scene.clock)
    for _ in range(14):
        reconciler.sweep()
        scene.clock.pass_by(1)
    assert scene.counted == scene.rows == 1
    made.close(make_ending())
    assert scene.counted == scene.rows == 1
    assert scene.total("skill_invoked_late_total") == 1


def test_an_invocation_that_never_started_counts_if_it_leaves_a_row(scene: Scene) -> None:
    """Its started row had landed after all, and the replay closes it."""
    identity = make_identity()
    scene.memory.emit(started(identity))
    scene.spool.keep(completed(identity, make_ending(Reason.NOT_DISPATCHED)))
    scene.memory.down = True
    with pytest.raises(MemoryUnavailableError):
        scene.spool.replay(scene.memory)
    assert scene.counted == 0
    scene.memory.down = False
    scene.spool.replay(scene.memory)
    assert scene.counted == scene.rows == 1
