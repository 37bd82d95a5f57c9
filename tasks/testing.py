"""A pytest plugin: the ``audited`` fixture runs skills in the test, and shows their rows.

Ask for it in the root ``conftest.py``: ``pytest_plugins = ["tasks.testing"]``. It is no entry
point, because it imports Celery, which no other project's tests should pay for.

Guaranteed: no server is touched by calls of the skills, direct or published with ``delay`` and
``apply_async``, of every host app that exists when the fixture is made; a test that makes another
one, or leaves an invocation open, fails; afterwards the apps are as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pytest
from celery import Celery
from celery._state import _get_active_apps

from audit.context import InvocationContext, acting_as
from audit.memory import AuditMemory
from audit.recorder import Recorder
from audit.row import REFUSED, AuditRow
from audit.settings import AuditSettings
from audit.spool import Spool
from audit.testing import InMemory, Pair, on_record, pairs_of
from tasks.runtime import SkillRuntime

PERSONA: Final = "tester@1.0.0"
TENANT: Final = "550e8400-e29b-41d4-a716-446655440000"
_EAGER: Final = "task_always_eager"
_MADE_LATE: Final = (
    "made while the test ran, so their skills used the real memory and broker: {}. Import their"
    " modules where pytest collects the test, not in it, or name them in the fixture audited_apps"
)


class InMemoryRuntime(SkillRuntime):
    """A runtime over a memory in this process; without leases, for their threads outlive a test."""

    def __init__(self, app: Any, memory: AuditMemory, spool_dir: Path) -> None:
        super().__init__(app)
        self._one_memory = memory
        self._spool_dir = spool_dir

    @cached_property
    def settings(self) -> AuditSettings:
        return replace(super().settings, spool_dir=str(self._spool_dir))

    @property
    def recorder(self) -> Recorder:
        """With a new breaker each time: a test does not wait until an outage is forgotten."""
        return Recorder(self.memory, self.spool)

    def hold_lease(self, holder: str) -> None:
        """No lease."""

    def _open_memory(self, at_most: float = 0) -> AuditMemory:
        return self._one_memory


class Audited:
    """What a test asks about the invocations it caused.

    Attributes:
        memory: the memory, with faults to set; see :class:`audit.testing.InMemory`.
    """

    def __init__(self, memory: InMemory, spool: Spool, apps: Sequence[Celery]) -> None:
        self.memory = memory
        self._spool = spool
        self._apps = apps

    @staticmethod
    def acting_as(
        persona: str = PERSONA, tenant_id: str = TENANT, on_behalf_of: str | None = None
    ) -> AbstractContextManager[InvocationContext]:
        """As :func:`audit.acting_as`, with a caller to begin with."""
        return acting_as(persona, tenant_id, on_behalf_of)

    @property
    def rows(self) -> list[AuditRow]:
        return list(self.memory.rows())

    def pairs(self, skill: Any = None) -> list[Pair]:
        """The invocations of a skill (the task or its id), or of all, oldest first.

        A name that is no skill's fails: whatever is said of all its invocations would hold.
        """
        found = pairs_of(self.rows, _id(skill))
        if isinstance(skill, str) and not found and not self._has(skill):
            raise AssertionError(
                f"no app that is tested has a skill {skill!r}\n{on_record(self.rows)}"
            )
        return found

    def pair(self, skill: Any = None) -> Pair:
        """The one invocation of a skill; none, or more than one, fails."""
        found = self.pairs(skill)
        if len(found) != 1:
            raise AssertionError(
                f"expected one invocation of {_id(skill) or 'any skill'}, found {len(found)}\n"
                f"{on_record(self.rows)}"
            )
        return found[0]

    def assert_success(self, skill: Any = None) -> Pair:
        """One invocation, and it succeeded."""
        return self.pair(skill).succeeded()

    def assert_refused(self, skill: Any, reason: str) -> AuditRow:
        """One refused row of the skill, for this reason."""
        wanted = [r for r in self.rows if r.kind == REFUSED and r.payload["skill_id"] == _id(skill)]
        if [row.meta["reason"] for row in wanted] != [reason]:
            raise AssertionError(f"expected {reason} once\n{on_record(self.rows)}")
        return wanted[0]

    def assert_nothing(self) -> None:
        """Nothing is on record."""
        if self.rows:
            raise AssertionError(f"expected nothing on record\n{on_record(self.rows)}")

    def assert_none_open(self) -> None:
        """Every started row has its completed row; the fixture asks this at its end."""
        if still := [pair for pair in self.pairs() if pair.is_open]:
            raise AssertionError(f"open invocations: {len(still)}\n{on_record(self.rows)}")

    def _has(self, skill_id: str) -> bool:
        return any(skill_id in app.tasks for app in self._apps)

    @contextmanager
    def memory_down(self) -> Iterator[None]:
        """The memory takes nothing inside; at the end what was spooled is replayed."""
        self.memory.down = True
        try:
            yield
        finally:
            self.memory.down = False
            self._spool.replay(self.memory)


def _id(skill: Any) -> str | None:
    return skill if skill is None or isinstance(skill, str) else str(skill.name)


def _hosts() -> list[Celery]:
    return [app for app in _get_active_apps() if hasattr(app, "skill_runtime")]


@pytest.fixture
def audited_apps() -> list[Celery]:
    """The apps whose skills are tested: every host of this process. Override it to name others."""
    return _hosts()


@pytest.fixture
def audited(
    audited_apps: list[Celery], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Audited]:
    """Skills run in the test, on a memory in this process."""
    memory, spool_dir, known = InMemory(), tmp_path / "spool", [*_hosts(), *audited_apps]
    with monkeypatch.context() as patch:
        for app in audited_apps:
            runtime = InMemoryRuntime(app, memory, spool_dir)
            patch.setattr(app, "skill_runtime", runtime)
            patch.setitem(app.conf, _EAGER, True)
        audited = Audited(memory, Spool(spool_dir, memory.name), audited_apps)
        yield audited
    audited.assert_none_open()
    if late := [str(app.main) for app in _hosts() if app not in known]:
        raise AssertionError(_MADE_LATE.format(", ".join(late)))
