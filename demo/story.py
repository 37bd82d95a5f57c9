"""What the demo does with the host: chapters of calls, each by somebody for some tenant."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from audit import acting_as
from demo.skills import QUEUE, SCHEDULER, fail, nested, overrun, panic, slow
from tasks.skills import payroll_draft, probe_endpoints, queue_depth, triage_alert


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, for which tenant."""

    persona: str
    tenant_id: str


OFFICER: Final = Caller("cuo-cpo@0.4.1", "550e8400-e29b-41d4-a716-446655440000")
CLERK: Final = Caller("cuo-cfo-clerk@2.0.3", "c2a9d6f4-0b7e-4a5d-8f36-91e07b5d2c18")
TENANTS: Final = frozenset({OFFICER.tenant_id, CLERK.tenant_id, SCHEDULER.tenant_id})


@dataclass(frozen=True, slots=True)
class Call:
    """One call that was made: Celery's result, and which skill it is of."""

    skill_id: str
    result: Any

    @property
    def task_id(self) -> str:
        return str(self.result.id)

    @property
    def keeps_result(self) -> bool:
        return not self.result.ignored


@dataclass(frozen=True, slots=True)
class Chapter:
    """Calls that belong together.

    Attributes:
        title: what there is to see.
        caller: who makes all of the calls.
        calls: skill and arguments of each.
    """

    title: str
    caller: Caller
    calls: tuple[tuple[Any, Mapping[str, Any]], ...]

    def begin(self) -> list[Call]:
        """Make every call; nothing of them is waited for."""
        with acting_as(self.caller.persona, tenant_id=self.caller.tenant_id):
            return [Call(skill.name, skill.delay(**arguments)) for skill, arguments in self.calls]


def alert_group() -> dict[str, Any]:
    """A notification as Alertmanager posts it to a webhook."""
    text = Path(__file__).with_name("alertmanager.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def chapters(endpoints: list[str]) -> Iterator[Chapter]:
    """Every chapter but the last, in order.

    Args:
        endpoints: ``host:port`` of what the demo runs, to be probed.
    """
    yield Chapter(
        "The sample skills",
        OFFICER,
        (
            (triage_alert, {"alert": alert_group()}),
            (queue_depth, {"queues": [QUEUE]}),
            (payroll_draft, {"period": "2026-11", "employees": _employees()}),
            (probe_endpoints, {"endpoints": endpoints}),
        ),
    )
    yield Chapter(
        "Three bad endings: an error, a panic, a time limit",
        OFFICER,
        (
            (fail, {"iban": "DE02120300000000202051"}),
            (panic, {"reading": 70_000}),
            (overrun, {"seconds": 60}),
        ),
    )
    yield Chapter(
        "Another persona, another tenant; one amount is negative",
        CLERK,
        (
            (triage_alert, {"alert": {**alert_group(), "alerts": []}}),
            (payroll_draft, {"period": "2026-12", "employees": _employees()}),
            (payroll_draft, {"period": "2026-12", "employees": _employees(gross_cents=-1)}),
        ),
    )


NESTED: Final = Chapter(
    "A skill calls a skill: the inner call names its parent",
    OFFICER,
    ((nested, {"queue": QUEUE}),),
)


def slow_chapter(release: Path) -> Chapter:
    """A skill that runs until the file ``release`` exists."""
    return Chapter(
        "Who is running right now? Asked while a slow skill runs",
        OFFICER,
        ((slow, {"release": str(release)}),),
    )


def _employees(gross_cents: int = 612_500) -> list[dict[str, Any]]:
    return [
        {"employee_id": "e-1041", "gross_cents": 487_000, "tax_basis_points": 2_150},
        {"employee_id": "e-1077", "gross_cents": gross_cents, "tax_basis_points": 2_640},
    ]
