"""tasks/gateway_calls.py: what it tells of an error, and how far it looks for it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from audit.memory.base import RowFilter
from audit.memory.page import LOOK, Page
from audit.row import AuditRow, Ending, Reason
from audit.testing import InMemory
from tasks import SkillHost
from tasks.gateway_calls import Calls, Outcome, State
from tasks.gateway_links import Ticket
from tasks.testing import InMemoryRuntime
from tests.pages import OTHER, invoke
from tests.support import TENANT, completed, make_identity, started

TEXT = "ValueError: cannot use ***"
BUSY = 1_500


class Bounded(InMemory):
    """A memory that is read in pages alone; it counts what they look at."""

    looked = 0

    def select(self, wanted: RowFilter) -> Iterator[AuditRow]:
        raise AssertionError("read without a bound")

    def page(self, wanted: RowFilter, **bounds: Any) -> Page:
        page = super().page(wanted, **bounds)
        self.looked += page.looked
        return page


class Scene:
    """A gateway's calls over a memory whose clock is set by hand."""

    def __init__(self, tmp_path: Any) -> None:
        self.clock = self.done = datetime.now(UTC)
        self.memory = Bounded(now=lambda: self.clock)
        self.ticket = Ticket(str(uuid4()), TENANT)
        app = SkillHost("gateway-calls")
        app.skill_runtime = InMemoryRuntime(app, self.memory, tmp_path)
        self.calls = Calls(app, 10)

    def fail(self, text: str = TEXT, **overrides: Any) -> None:
        identity = make_identity(task_id=self.ticket.task_id, **overrides)
        self.memory.emit(started(identity))
        self.memory.emit(completed(identity, Ending(reason=Reason.RAISED, error_message=text)))
        self.done = datetime.now(UTC)  # what comes later may take long

    def others(self) -> None:
        for _ in range(BUSY):
            invoke(self.memory)

    def told(self) -> Any:
        error = ValueError("s3cret")
        outcome = Outcome(state=State.FAILED, error=error, done=self.done)
        return self.calls.told(self.ticket, outcome)


@pytest.fixture
def scene(tmp_path: Any) -> Scene:
    return Scene(tmp_path)


def test_a_busy_tenant_hides_no_text(scene: Scene) -> None:
    """Whatever else its seconds before had, the text is found at once."""
    scene.others()
    scene.fail()
    assert scene.told() == {"type": "ValueError", "message": TEXT}
    assert scene.memory.looked < 10


def test_what_came_later_hides_it_neither(scene: Scene) -> None:
    """It is looked for around the time of the result, and not from the newest row on."""
    scene.fail()
    scene.clock += timedelta(minutes=1)
    for _ in range(2):
        scene.others()
    assert scene.told() == {"type": "ValueError", "message": TEXT}
    assert scene.memory.looked < 10


def test_clocks_that_disagree_hide_no_fresh_text(scene: Scene) -> None:
    """A store whose clock is a minute ahead has it among the newest."""
    scene.clock += timedelta(minutes=1)
    scene.fail()
    assert scene.told()["message"] == TEXT


def test_the_last_attempt_is_told(scene: Scene) -> None:
    """Of a message that was tried twice."""
    scene.fail("ValueError: once more", attempt=0)
    scene.fail(attempt=1)
    assert scene.told()["message"] == TEXT


def test_another_tenants_row_is_not(scene: Scene) -> None:
    """Under the same task id, and where nothing is found the type alone is told."""
    scene.fail(tenant_id=OTHER)
    assert scene.told() == {"type": "ValueError", "message": None}


def test_the_look_is_bounded(scene: Scene) -> None:
    """Where there is nothing to find, no more is looked at than two pages may."""
    for _ in range(3):
        scene.others()
    assert scene.told()["message"] is None
    assert scene.memory.looked <= 2 * LOOK
