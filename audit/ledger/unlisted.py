"""Which tenants of the ledger the memory's list of tenants lacks.

Whoever goes by that list (the reconciler, `list`, hot retention) passes over such a tenant. A name
never leaves it by anything of ours, and the next row of the tenant puts it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from audit.ledger.finding import Finding, Kind, LogReport, Source
from audit.ledger.sources import Sources


def with_unlisted(sources: Sources, reports: Sequence[LogReport]) -> Iterator[LogReport]:
    """The reports, with findings for tenants that have a log and are not listed."""
    # Asked after all logs were looked up: a name is listed before it gets a log.
    listed = None if sources.memory is None else set(sources.memory.tenants())
    for report in reports:
        if listed is None or not report.log or report.tenant is None or report.tenant in listed:
            yield report
        else:
            yield replace(report, findings=(*report.findings, _finding(report)))


def _finding(report: LogReport) -> Finding:
    text = "the memory's list of tenants lacks the tenant of this log"
    return Finding(
        kind=Kind.UNLISTED, source=Source.MEMORY, log=report.log, tenant=report.tenant, text=text
    )
