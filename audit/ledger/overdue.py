"""Which open invocations are open for too long.

Where a memory is asked, their age is what the clock says, and one whose worker holds its lease is
still running. From files alone it is measured against the newest row of any log of the ledger: so
a quiet log hides nothing, and an old copy accuses nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from audit.ledger.finding import Finding, Kind, LogReport, Source
from audit.ledger.invocations import Opened
from audit.ledger.sources import Sources


def with_overdue(sources: Sources, reports: Sequence[LogReport]) -> Iterator[LogReport]:
    """The reports, with findings for what is overdue."""
    newest = max((report.newest for report in reports), default=0.0)
    now = newest if sources.memory is None else sources.limits.now()
    for report in reports:
        late = [one for one in report.opened if now - one.since > sources.limits.open_for]
        found = [_finding(sources, report, one) for one in _dead(sources, late)]
        yield replace(report, findings=(*report.findings, *found), opened=())


def _dead(sources: Sources, late: list[Opened]) -> list[Opened]:
    """Those that nobody runs any more, as far as is known."""
    if sources.memory is None or not late:
        return late
    alive = sources.memory.leases({one.worker for one in late})
    return [one for one in late if one.worker not in alive]


def _finding(sources: Sources, report: LogReport, one: Opened) -> Finding:
    return Finding(
        kind=Kind.OVERDUE, source=Source.MEMORY if sources.ledger is None else Source.LEDGER,
        log=report.log, tenant=report.tenant, index=one.index, request_id=one.request_id,
        text=f"started {one.ts}, not completed",
    )  # fmt: skip
