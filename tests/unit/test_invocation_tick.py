"""audit/invocation.py: an invocation whose tick is taken."""

from __future__ import annotations

import logging

import pytest

from audit.errors import AuditEmitFailed, MemoryUnavailableError, TickTakenError
from audit.invocation import Invocation, State
from audit.memory.base import Hold
from audit.recorder import Recorder
from audit.row import REFUSED, STARTED, Identity
from tests.fakes import FakeMemory
from tests.support import HASH, make_identity

DUE = "2026-11-29T21:45:00.000000Z"


def start(memory: FakeMemory, task_id: str) -> Invocation:
    made = Invocation(identity(task_id), Recorder(memory))
    try:
        made.start(HASH, hold=Hold(token="tick", holder=task_id, seconds=60))
    except TickTakenError:
        assert made.state is State.REFUSED
    return made


def identity(task_id: str) -> Identity:
    return make_identity(task_id=task_id, schedule="nightly", due=DUE)


def test_it_is_refused_and_on_record(caplog: pytest.LogCaptureFixture) -> None:
    """A refused row of its own, under its own request_id; no sev-1, for nothing was lost."""
    memory = FakeMemory()
    first, second = start(memory, "a"), start(memory, "b")
    assert (first.state, second.state, second.open) == (State.STARTED, State.REFUSED, False)
    begun, row = memory.stored
    assert (begun.kind, row.kind) == (STARTED, REFUSED)
    assert row.request_id == second.identity.request_id
    assert row.payload["reason"] == row.meta["reason"] == "tick_taken"
    assert (row.meta["schedule"], row.meta["due"]) == ("nightly", DUE)
    assert all(record.levelno < logging.CRITICAL for record in caplog.records)


@pytest.mark.parametrize("stored", [False, True])
def test_a_signal_in_its_midst_does_not_let_it_run(stored: bool) -> None:
    """Whatever an emit was interrupted by: the tick is the other one's, and the row is there."""
    memory = FakeMemory(None, (TimeoutError("soft limit"), False), None, (TimeoutError(), stored))
    start(memory, "a")
    assert start(memory, "b").state is State.REFUSED
    assert [row.kind for row in memory.stored] == [STARTED, REFUSED]


def test_a_memory_out_of_reach_lets_nothing_start() -> None:
    """Whether the tick is taken cannot be told, so the skill does not run (503)."""
    down = (MemoryUnavailableError("down"), False)
    with pytest.raises(AuditEmitFailed):
        start(FakeMemory(down), "a")
