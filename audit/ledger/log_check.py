"""One log: its checkpoints against one another, and its rows against the newest of them.

The rows come from the files, from the memory or from both. Files that end where an older checkpoint
does are held against that one; what is beyond was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from audit.ledger.claims import Claim, Claimed, forks, rollbacks
from audit.ledger.evidence import Evidence
from audit.ledger.file_report import check_files
from audit.ledger.finding import Finding, Kind, LogReport, Source
from audit.ledger.leaves import Chunk, reaches
from audit.ledger.memory_check import check_memory, unsealed
from audit.ledger.sources import Sources, held, read_tenants
from audit.ledger.subject import Subject
from audit.ledger.tile_directory import TileDirectory
from audit.ledger.waiting import Waiting

_ABSENT: Final = {Kind.MISSING, Kind.ROLLBACK}


def check_log(
    sources: Sources,
    log: str,
    tenant: str | None,
    source: Source,
    further: list[Claimed],
    look: Callable[[Chunk], None],
    evidence: Evidence | None = None,
) -> tuple[LogReport, Claim | None]:
    """What a log's report is, and the claim that its rows were held against."""
    began = sources.limits.now()
    now = list(held(sources, log, tenant, source))
    if not further and _is_new(sources, now, log, tenant):
        return unsealed(log, sources.memory, tenant, Waiting(sources.limits, began)), None
    claimed = [*now, *further]
    findings = [c.finding for c in claimed if c.finding is not None]
    claims = [c.claim for c in claimed if c.claim is not None]
    trusted = [claim for claim in claims if claim.trusted]
    newest = max(trusted or claims, key=lambda claim: claim.size, default=None)
    if newest is None:
        found = _named(_without_any(findings), tenant)
        report = unsealed(log, sources.memory, tenant)
        return replace(report, findings=(*found, *report.findings)), None
    findings += rollbacks(log, [c.claim for c in now if c.claim], newest)
    forked = list(forks(log, trusted))
    findings += [finding for _, finding in forked]
    others = [c for c in trusted if c is not newest and all(c is not f for f, _ in forked)]
    alternatives = [claim for claim, _ in forked if claim.size == newest.size]
    subject = Subject(
        log=log, tenant=tenant, trust=sources.trust, source=source,
        memory=sources.memory if source is not Source.META else None,
        claims=[newest, *alternatives, *others],
        older=evidence.of(log, newest.size) if evidence else (),
        limits=sources.limits, began=began,
    )  # fmt: skip
    report = _rows(sources, subject, [c.claim for c in now if c.claim], look)
    told = {(f.kind, f.source, f.index) for f in findings}
    more = [f for f in report.findings if (f.kind, f.source, f.index) not in told]
    return replace(report, findings=(*_named(findings, tenant), *more)), newest


def _rows(
    sources: Sources, subject: Subject, now: list[Claim], look: Callable[[Chunk], None]
) -> LogReport:
    """The rows against the claims, from whatever there is."""
    memory, tenant, ledger = subject.memory, subject.tenant, sources.ledger
    if ledger is None:
        if memory is None or tenant is None:
            return LogReport(log=subject.log, tenant=tenant, sealed=subject.claim.size)
        return check_memory(replace(subject, source=Source.MEMORY), memory, tenant)
    folder = ledger / subject.log
    in_file = [claim for claim in now if claim.name.startswith("the file")]
    size = in_file[0].size if in_file and in_file[0].trusted else subject.claim.size
    if not (folder / "tile").is_dir() and subject.claim.size:
        return _without_files(subject)
    if size < subject.claim.size and not reaches(TileDirectory(folder), size, subject.claim.size):
        return _cut(subject, in_file[0], folder, look)
    return check_files(subject, folder, look)


def _without_files(subject: Subject) -> LogReport:
    size = subject.claim.size
    missing = subject.finding(
        Kind.MISSING, subject.source, index=0, count=size, text="the log has no tiles at all"
    )
    report = LogReport(log=subject.log, tenant=subject.tenant, sealed=size)
    if subject.memory is not None and subject.tenant is not None:
        report = check_memory(
            replace(subject, source=Source.MEMORY), subject.memory, subject.tenant
        )
    return replace(report, findings=(missing, *report.findings))


def _cut(subject: Subject, kept: Claim, folder: Path, look: Callable[[Chunk], None]) -> LogReport:
    """Files that end where an older checkpoint does: held against that; the rest is cut."""
    count = subject.claim.size - kept.size
    cut = subject.finding(Kind.CUT, subject.source, index=kept.size, count=count)
    claims = [kept, *(c for c in subject.claims if c.size < kept.size)]
    older = (claim for claim in subject.older if claim.size <= kept.size)
    shorter = replace(subject, claims=claims, older=older, memory=None)
    report = check_files(shorter, folder, look)
    found = [cut, *report.findings]
    if subject.memory is not None and subject.tenant is not None:
        whole = replace(subject, source=Source.MEMORY, older=())
        rows = check_memory(whole, subject.memory, subject.tenant)
        known = {(f.kind, f.index) for f in found}
        found += [f for f in rows.findings if (f.kind, f.index) not in known]
        report = replace(report, unsealed=rows.unsealed, opened=rows.opened)
    return replace(report, sealed=subject.claim.size, findings=tuple(found))


def _is_new(sources: Sources, now: list[Claimed], log: str, tenant: str | None) -> bool:
    """Whether nothing was sealed yet: no checkpoint, no tile, no line that names the log.

    A first seal that was broken off leaves those as well; sealing again makes them right.
    """
    tiles = sources.ledger is not None and (sources.ledger / log / "tile").is_dir()
    kept = any(c.claim or (c.finding and c.finding.kind not in _ABSENT) for c in now)
    return not (kept or tiles or log in read_tenants(sources.ledger))


def _without_any(findings: list[Finding]) -> list[Finding]:
    """Where no place has a checkpoint, it is missing once."""
    if {finding.kind for finding in findings} != _ABSENT:
        return findings
    text = "neither the memory nor the files have a checkpoint; was its first seal broken off?"
    return [replace(f, text=text) for f in findings if f.kind is Kind.MISSING]


def _named(findings: Iterable[Finding], tenant: str | None) -> tuple[Finding, ...]:
    return tuple(replace(finding, tenant=tenant) for finding in findings)
