"""Verifying: everything is derived anew, from the memory, from files, or from both.

Every row is hashed again and every hash of every tile is built again; a checkpoint counts for what
a known key has signed. The meta log comes first: what it says of the other logs is held against
them. A sealer begins it before all else, so where anything is sealed and there is none, that is a
finding. What is guaranteed: nothing is written or repaired, nothing of what seals is used (a test
holds that), memory stays flat, where nothing was checked, the report is no pass, and a given
checkpoint that nothing could be held against is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Final

from audit.errors import CheckpointError, MemoryDamagedError
from audit.ledger.claims import Claim, log_of
from audit.ledger.evidence import Evidence, digest_of
from audit.ledger.finding import META, Finding, Kind, LogReport, Report, Source
from audit.ledger.log_check import check_log
from audit.ledger.memory_check import unsealed
from audit.ledger.overdue import with_overdue
from audit.ledger.sources import KnownLogs, Sources, cosigned, given, meta_is_known, state_of
from audit.ledger.tenant_reads import ReadMemory, TenantReads
from audit.ledger.traces import of_meta, of_tenant
from audit.ledger.unlisted import with_unlisted
from audit.ledger.waiting import Waiting

#: How often a log is checked again at most, where something changed meanwhile.
_AGAIN: Final = 2


def verify(sources: Sources) -> Report:
    """Check everything there is of the ledger.

    Raises:
        AuditMemoryError: the memory does not answer, or its list of tenants is none.
        CheckpointError: a given checkpoint cannot be held against anything here.
    """
    if sources.memory is not None:
        sources = replace(sources, memory=TenantReads(sources.memory))
    with closing(_Verification(sources)) as verification:
        reports = list(verification.reports())
    return Report(tuple(with_unlisted(sources, list(with_overdue(sources, reports)))))


class _Verification:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._known = KnownLogs(sources)
        self._evidence = Evidence()
        self._meta_size = 0
        self._has_meta = False

    def close(self) -> None:
        self._evidence.close()

    def reports(self) -> Iterator[LogReport]:
        """The meta log's first, then each log's."""
        meta = self._meta()
        self._evidence.sort()
        logs = self._known.logs([*self._evidence.newest, *self._evidence.beyond])
        self._refuse_what_is_not_checked(logs)
        found = [
            self._log(log, tenant)
            for log, tenant in sorted(logs.items(), key=lambda item: digest_of(item[0]))
        ]
        self._refuse_what_was_not_held(found)
        if self._sources.ledger is not None and not self._has_meta:
            meta = self._meta_of(found)
        meta = self._with_traces(meta)
        yield from [meta] if meta is not None else []
        yield from found
        yield from self._unsealed_tenants()

    def _meta(self) -> LogReport | None:
        self._has_meta = meta_is_known(self._sources)
        if not self._has_meta:
            return None
        report, claim = self._meta_log()
        self._meta_size = claim.size if claim else 0
        self._evidence.cosigned = report.cosigned
        trusted = claim is not None and claim.trusted
        if not trusted or any(f.kind is Kind.DIVERGENT for f in report.findings):
            self._evidence.close()  # it proves nothing about the others
            self._evidence = Evidence()
        elif self._sources.ledger is not None:
            meta = self._sources.ledger / META
            self._evidence.look_beyond(meta, self._meta_size, self._sources.trust)
        found = tuple(replace(finding, tenant=None) for finding in report.findings)
        return replace(report, tenant=None, findings=found) if found or report.sealed else None

    def _meta_log(self) -> tuple[LogReport, Claim | None]:
        """What the files have, where what the memory has of it cannot be read."""

        def checked(sources: Sources) -> tuple[LogReport, Claim | None]:
            further = [*given(sources, META), *cosigned(sources)]
            return check_log(sources, META, META, Source.META, further, self._evidence.gather)

        try:
            return checked(self._sources)
        except MemoryDamagedError as error:
            report, claim = checked(replace(self._sources, memory=None))
            found = (_damaged(META, META, error), *report.findings)
            return replace(report, findings=found), claim

    def _meta_of(self, found: list[LogReport]) -> LogReport | None:
        """Of what there was none before the logs were read.

        One that was sealed meanwhile has its meta log by now, for a sealer begins with that.
        """
        if not any(log.sealed for log in found):
            return None
        self._evidence.close()
        self._evidence = Evidence()
        meta = self._meta()
        if self._has_meta:
            return meta
        text = "logs are sealed, but there is no meta log, in which their checkpoints have to be"
        gone = Finding(kind=Kind.MISSING, source=Source.META, log=META, text=text)
        return LogReport(log=META, tenant=None, findings=(gone,))

    def _with_traces(self, meta: LogReport | None) -> LogReport | None:
        """With what tells that the meta log was taken back; after all that may grow meanwhile."""
        found = () if meta is not None and meta.findings else tuple(self._traces())
        if not found:
            return meta
        meta = meta or LogReport(log=META, tenant=None)
        return replace(meta, findings=(*meta.findings, *found))

    def _traces(self) -> Iterator[Finding]:
        """What is damaged only now costs no log its report."""
        try:
            yield from of_meta(self._sources)
        except MemoryDamagedError as error:
            yield replace(_damaged(META, META, error), tenant=None)

    def _refuse_what_is_not_checked(self, logs: Collection[str]) -> None:
        named = {log_of(raw) for raw in self._sources.given}
        if META in named and self._sources.ledger is None:
            raise CheckpointError("a given checkpoint is of the meta log, which is in files alone")
        if not named <= {META, *logs}:
            raise CheckpointError("a given checkpoint is none, or of a log that is not checked")

    def _refuse_what_was_not_held(self, found: list[LogReport]) -> None:
        """Without files: a log of which the memory knows no tenant, or that was trimmed."""
        named = {log_of(raw) for raw in self._sources.given}
        if any(log.log in named and not (log.checked or log.findings) for log in found):
            raise CheckpointError("a given checkpoint is of a log of which no rows were checked")

    def _log(self, log: str, tenant: str | None) -> LogReport:
        """A tenant that the memory cannot be asked for stops no other."""
        try:
            report = self._log_settled(log, tenant)
        except MemoryDamagedError as error:
            report = self._log_without_memory(log, tenant, error)
        if tenant is None and self._sources.memory is not None:
            report = replace(report, unsealed=None)
        return replace(report, findings=(*self._known.strays(log, tenant), *report.findings))

    def _log_without_memory(
        self, log: str, tenant: str | None, error: MemoryDamagedError
    ) -> LogReport:
        """That it cannot be asked, and what the files come to."""
        report = LogReport(log=log, tenant=tenant)
        if self._sources.ledger is not None:
            self._evidence.sort()
            report = self._log_once(replace(self._sources, memory=None), log, tenant)
        found = (_damaged(log, tenant, error), *report.findings)
        return replace(report, unsealed=None, findings=found)

    def _log_settled(self, log: str, tenant: str | None) -> LogReport:
        """Findings may come of a seal, a trim or a prune in between; then it is checked again."""
        before = state_of(self._sources, log, tenant)
        report = self._log_once(self._sources, log, tenant)
        for _ in range(_AGAIN):
            now = state_of(self._sources, log, tenant)
            if not report.findings or now == before:
                break
            self._evidence.sort()  # what was read of it is wanted once more
            before, report = now, self._log_once(self._sources, log, tenant)
        if not report.findings and self._has_meta:  # else there is more to tell than traces do
            return replace(report, findings=tuple(of_tenant(self._sources, log, tenant)))
        return report

    def _log_once(self, sources: Sources, log: str, tenant: str | None) -> LogReport:
        further = given(sources, log)
        if sources.ledger is not None:
            meta = sources.ledger / META
            claimed = self._evidence.claim(log, meta, self._meta_size, sources.trust)
            further += [claimed] if claimed else []
            further += [self._evidence.beyond[log]] if log in self._evidence.beyond else []
        report, _ = check_log(
            sources, log, tenant, Source.LEDGER, further, lambda chunk: None, self._evidence
        )
        return report

    def _unsealed_tenants(self) -> Iterator[LogReport]:
        memory = self._sources.memory
        for tenant in self._known.memory_tenants():
            if memory is not None and self._known.log_of_tenant(tenant) is None:
                yield self._unsealed(memory, tenant)

    def _unsealed(self, memory: ReadMemory, tenant: str) -> LogReport:
        limits = self._sources.limits
        try:
            memory.sealed(tenant)  # what is none was not looked into so far
            return unsealed("", memory, tenant, Waiting(limits, limits.now()))
        except MemoryDamagedError as error:
            found = (_damaged("", tenant, error),)
            return LogReport(log="", tenant=tenant, unsealed=None, findings=found)


def _damaged(log: str, tenant: str | None, error: MemoryDamagedError) -> Finding:
    return Finding(
        kind=Kind.MALFORMED, source=Source.MEMORY, log=log, tenant=tenant, text=str(error)
    )
