"""What a run is told by: a table for people, and a file with every finding's rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit.row import COMPLETED, LATE, REFUSED, STARTED
from chaos.closing import Closing, limit
from chaos.faults import Kind
from chaos.injector import Blow, Span
from chaos.verdict import RULES, Account, Finding

WIDTH: Final = 46


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Everything that is known after a run."""

    seed: int
    lease: float
    published: int
    account: Account
    faults: Counter[Kind]
    findings: list[Finding]
    closings: list[Closing]
    surprises: list[str]
    hung: list[str]
    left: list[str]
    seconds: float
    outage_seconds: float
    refused: int

    @property
    def clean(self) -> bool:
        return not self.findings and not self.left and not self.surprises


def table(outcome: Outcome) -> str:
    """The run at a glance."""
    return "\n".join(f"{name:<{WIDTH}}{value}" for name, value in _lines(outcome))


def _lines(outcome: Outcome) -> Iterator[tuple[str, object]]:
    account = outcome.account
    yield "skills published", outcome.published
    yield "invocations (started rows)", account.count(STARTED)
    yield "  completed rows", account.count(COMPLETED)
    yield "  bodies that ran (effects)", len(account.effects)
    yield "  told 503 and not run", outcome.refused
    yield "  refused rows", account.count(REFUSED)
    yield "faults", sum(outcome.faults.values())
    for kind in Kind:
        yield f"  {kind}", outcome.faults[kind]
    yield "seconds without the memory", f"{outcome.outage_seconds:.1f}"
    for reason, count in sorted(account.endings().items()):
        yield f"  closed as {reason}", count
    counts = Counter(finding.rule for finding in outcome.findings)
    for rule in RULES:
        yield rule, counts[rule]
    yield "late rows", account.count(LATE)
    for words, count in sorted(account.late().items()):
        yield f"  {words}", count
    yield from _slowest(outcome)
    yield "surprises", len(outcome.surprises)
    yield "hung in a cold shutdown (Celery's own)", len(outcome.hung)
    yield "left when it should have been quiet", "; ".join(outcome.left) or "nothing"
    yield "seconds", f"{outcome.seconds:.0f}"
    yield "seed", outcome.seed


def _slowest(outcome: Outcome) -> Iterator[tuple[str, object]]:
    yield "slowest closing", f"limit {limit(outcome.lease):.1f} s (lease {outcome.lease:g} s)"
    for reason in sorted({closing.reason for closing in outcome.closings}):
        closings = [closing for closing in outcome.closings if closing.reason is reason]
        seconds = sorted(closing.seconds for closing in closings)
        in_all = max(closing.in_all for closing in closings)
        yield (
            f"  {reason}",
            f"{seconds[-1]:.2f} s, median {seconds[len(seconds) // 2]:.2f} s of {len(seconds)}"
            f" (outages and keepers' absence included, {in_all:.2f} s)",
        )


def write_events(path: Path, blows: Sequence[Blow], outages: Sequence[Span]) -> None:
    """What was done to whom and when."""
    events = [(b.at, f"{b.what} {sorted(b.pids) or ''} {b.task_id or ''}") for b in blows]
    events += [(span.began, f"memory away until {span.ended:.3f}") for span in outages]
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{at:.3f} {what}\n" for at, what in sorted(events))


def write_findings(path: Path, outcome: Outcome) -> None:
    """Every finding with its rows, for whoever looks into it."""
    with path.open("w", encoding="utf-8") as file:
        for surprise in [*outcome.surprises, *outcome.hung]:
            file.write(f"surprise: {surprise}\n")
        for finding in outcome.findings:
            file.write(f"{finding.rule}: {finding.subject}\n")
            for row in finding.rows:
                file.write(f"    {row.position} {row.to_bytes().decode()}\n")
