"""Each invocation on record exactly once: rows, bodies that ran, and results, tenant by tenant.

The rules are those of :mod:`chaos.verdict`. An invocation has its rows in one tenant, so a tenant
at a time is judged, and the whole history never is in memory at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from audit.memory import AuditMemory
from audit.row import COMPLETED, STARTED
from chaos import journal
from chaos.evidence import memory_of, reported_lost, results_of, set_aside
from chaos.journal import Effect
from chaos.place import Place
from chaos.run import UNAVAILABLE
from chaos.verdict import UNACCOUNTED, Account, Finding, judge
from soak.publisher import IDS

#: One of so many invocations has its rows held against the schema: for 400,000 rows that alone
#: would take minutes.
VALIDATE_EVERY: Final = 10


@dataclass(kw_only=True, slots=True)
class Tally:
    """What is known of all invocations together.

    Attributes:
        published: calls.
        started: rows.
        completed: rows.
        refused: calls that were told 503, and did not run.
        endings: how often each reason closed an invocation.
        findings: what must not be.
    """

    published: int = 0
    started: int = 0
    completed: int = 0
    refused: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


class Accountant:
    """Judges what a run left behind."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._results = results_of(place)
        self._effects = _by_request(journal.read(place.journal))
        self._tally = Tally()
        self._known: set[str] = set(self._results)

    def judge(self) -> Tally:
        with memory_of(self._place) as memory:
            for tenant_id in memory.tenants():
                self._add(Account(*self._of_tenant(memory, tenant_id)))
            self._tally.findings += set_aside(self._place, memory)
        self._add(self._rest())
        self._count_calls()
        self._tally.findings += reported_lost(self._place.directory)
        return self._tally

    def _of_tenant(self, memory: AuditMemory, tenant_id: str) -> Any:
        rows = list(memory.rows(tenant_id))
        effects = [
            effect
            for request_id in {row.request_id for row in rows}
            for effect in self._effects.pop(request_id, ())
        ]
        tasks = {str(row.meta.get("task_id")) for row in rows}
        self._known |= tasks
        results = {task: self._results.pop(task) for task in tasks if task in self._results}
        return rows, effects, self._states(results)

    def _rest(self) -> Account:
        """Bodies and results that no row speaks of."""
        effects = [effect for some in self._effects.values() for effect in some]
        return Account([], effects, self._states(self._results))

    def _states(self, results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        self._tally.refused += sum(
            isinstance(result["result"], dict) and result["result"].get("exc_type") == UNAVAILABLE
            for result in results.values()
        )
        return {task: str(result["status"]) for task, result in results.items()}

    def _add(self, account: Account) -> None:
        self._tally.started += account.count(STARTED)
        self._tally.completed += account.count(COMPLETED)
        self._tally.endings += account.endings()
        self._tally.findings += judge(account, VALIDATE_EVERY)

    def _count_calls(self) -> None:
        """Each call left a row or a result: nothing vanished without a word."""
        called = (self._place.directory / IDS).read_text().split()
        self._tally.published = len(called)
        self._tally.findings += [
            Finding(UNACCOUNTED, task_id) for task_id in called if task_id not in self._known
        ]


def _by_request(effects: list[Effect]) -> dict[str, list[Effect]]:
    found: dict[str, list[Effect]] = {}
    for effect in effects:
        found.setdefault(effect.request_id, []).append(effect)
    return found
