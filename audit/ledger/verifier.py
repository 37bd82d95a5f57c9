"""Verifying: everything is derived anew, from the memory, from files, or from both.

Every row is hashed again and every hash of every tile is built again; a checkpoint counts for what
a known key has signed. The meta log comes first: what it says of the other logs is held against
them. What is guaranteed: nothing is written or repaired, nothing of what seals is used (a test
holds that), memory stays flat, and where nothing was checked, the report is no pass.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Final

from audit.errors import CheckpointError, TileError
from audit.ledger.checkpoint import Checkpoint, origin_of
from audit.ledger.claims import Claim, Claimed, Trust, forks, log_of, read_claim, rollbacks
from audit.ledger.file_report import check_files
from audit.ledger.finding import META, Finding, Kind, LogReport, Report, Source
from audit.ledger.held_rows import MemoryRows, SealedMemory
from audit.ledger.leaves import Chunk, reaches
from audit.ledger.memory_check import check_memory
from audit.ledger.note import Note
from audit.ledger.spill import Spill
from audit.ledger.subject import Limits, Subject
from audit.ledger.tile_directory import TileDirectory
from audit.ledger.tiles import WIDTH, tile_of

_RECORD: Final = struct.Struct(">16sQQ32s")
_TRIES: Final = 20
_PAUSE: Final = 0.1


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What to verify, and against what.

    Attributes:
        trust: whose signatures count.
        ledger: the folder of the ledger, or a copy of it.
        memory: where the rows are.
        tenant: this tenant only, and the meta log.
        given: checkpoints (signed notes) that were kept elsewhere.
        secret: of the pseudonyms, where it is at hand.
        limits: what is still fine.
        pause: waits so many seconds, where a sealer may be at work between two writes.
    """

    trust: Trust
    ledger: Path | None = None
    memory: SealedMemory | None = None
    tenant: str | None = None
    given: tuple[bytes, ...] = ()
    secret: bytes | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)
    pause: Callable[[float], None] = time.sleep


def verify(sources: Sources) -> Report:
    """Check everything there is of the ledger.

    Raises:
        AuditMemoryError: the memory does not answer.
        CheckpointError: a given checkpoint cannot be held against anything here.
    """
    return Report(tuple(_Verification(sources).reports()))


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The checkpoints of a log in both places, of one moment."""

    in_memory: bytes | None
    in_file: bytes | None


class _Verification:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._tenants = _read_tenants(sources.ledger)
        self._spill = Spill(_RECORD.size)
        self._newest: dict[str, tuple[int, bytes, int]] = {}
        self._cosigned: dict[str, int] = {}
        self._meta_size = 0

    def reports(self) -> Iterator[LogReport]:
        meta = self._meta()
        if meta is not None:
            yield meta
        evidence, logs = _Evidence(self._spill), self._logs()
        if not {log_of(raw) for raw in self._sources.given} <= {META, *logs}:
            raise CheckpointError("a given checkpoint is none, or of a log that is not checked")
        for log, tenant in sorted(logs.items(), key=lambda item: _digest(item[0])):
            yield self._log(log, tenant, evidence)
        yield from self._unsealed_tenants()
        self._spill.close()

    # --- which logs there are -----------------------------------------------------------------

    def _logs(self) -> dict[str, str | None]:
        """Every log that anything knows of, with its tenant where that is known."""
        logs: dict[str, str | None] = dict.fromkeys([*self._folders(), *self._newest])
        logs.update(self._tenants)
        wanted = self._sources.tenant
        for tenant in [*self._memory_tenants(), *([wanted] if wanted else [])]:
            if (log := self._log_of(tenant)) is not None:
                logs[log] = tenant
        for raw in self._sources.given:
            if (named := log_of(raw)) is not None:
                logs.setdefault(named, None)
        logs.pop(META, None)
        return logs if wanted is None else {k: v for k, v in logs.items() if v == wanted}

    def _folders(self) -> Iterator[str]:
        ledger = self._sources.ledger
        for folder in sorted(ledger.iterdir()) if ledger and ledger.is_dir() else ():
            if (folder / "checkpoint").exists() or (folder / "tile").is_dir():
                yield folder.name

    def _memory_tenants(self) -> list[str]:
        memory, wanted = self._sources.memory, self._sources.tenant
        found = memory.tenants() if memory else []
        return [tenant for tenant in found if wanted in (None, tenant)]

    def _log_of(self, tenant: str) -> str | None:
        for log, other in self._tenants.items():
            if other == tenant:
                return log
        sources = self._sources
        if sources.secret is not None and sources.trust.prefix:
            log = origin_of(sources.trust.prefix, tenant, sources.secret).rpartition("/")[2]
            if sources.ledger is not None and (sources.ledger / log).is_dir():
                return log
        raw = sources.memory.sealed(tenant) if sources.memory else None
        return None if raw is None else log_of(raw)

    def _unsealed_tenants(self) -> Iterator[LogReport]:
        memory = self._sources.memory
        for tenant in self._memory_tenants():
            if memory is not None and self._log_of(tenant) is None:
                rows = MemoryRows(memory, tenant)
                count = sum(len(page) for page, _ in rows.pages())
                yield LogReport(log="", tenant=tenant, unsealed=count)

    # --- the meta log -------------------------------------------------------------------------

    def _meta(self) -> LogReport | None:
        there = self._sources.ledger is not None and (self._sources.ledger / META).is_dir()
        known = self._sources.memory is not None and self._sources.memory.sealed(META) is not None
        if self._sources.ledger is None or not (there or known):
            return None
        further = self._given(META)
        report, claim = self._check(META, META, Source.META, further, self._gather)
        self._meta_size = claim.size if claim else 0
        if any(f.kind in (Kind.DIVERGENT, Kind.UNTRUSTED) for f in report.findings):
            self._spill, self._newest, self._cosigned = Spill(_RECORD.size), {}, {}
        elif claim is None or not claim.cosigned:
            self._cosigned = {}
        found = tuple(replace(finding, tenant=None) for finding in report.findings)
        return replace(report, tenant=None, findings=found)

    def _gather(self, chunk: Chunk) -> None:
        """What the meta log says of the other logs; only from entries that are the sealed ones."""
        for at, leaf in enumerate(chunk.leaves):
            row = chunk.rows[at] if at < len(chunk.rows) else None
            if not row or chunk.hashes[at] != leaf or (log := log_of(row)) is None:
                continue
            checkpoint = Checkpoint.parse(Note.parse(row).text)
            size, root, index = checkpoint.size, checkpoint.root, chunk.start + at
            self._spill.add(_RECORD.pack(_digest(log), size, index, root))
            if log not in self._newest or self._newest[log][0] <= size:
                self._newest[log] = size, root, index
            self._cosigned[log] = max(size, self._cosigned.get(log, 0))

    def _given(self, log: str) -> list[Claimed]:
        trust, given = self._sources.trust, self._sources.given
        return [
            read_claim(raw, log, Source.GIVEN, "the given checkpoint", trust)
            for raw in given
            if log_of(raw) == log
        ]

    def _from_meta(self, log: str) -> Claimed | None:
        """The newest checkpoint of a log that the meta log has."""
        if log not in self._newest or self._sources.ledger is None:
            return None
        index = self._newest[log][2]
        directory = TileDirectory(self._sources.ledger / META)
        try:
            entries = directory.entries(tile_of(None, index // WIDTH, self._meta_size))
        except TileError:
            return None
        name = f"the checkpoint at {index:,} of the meta log"
        raw = entries[index % WIDTH]
        return read_claim(raw, log, Source.META, name, self._sources.trust)

    # --- one log ------------------------------------------------------------------------------

    def _log(self, log: str, tenant: str | None, evidence: _Evidence) -> LogReport:
        further = self._given(log)
        if (claimed := self._from_meta(log)) is not None:
            further.append(claimed)
        report, claim = self._check(
            log, tenant, Source.LEDGER, further, lambda chunk: None, evidence
        )
        cosigned = self._cosigned.get(log, 0)
        if claim is not None and claim.cosigned:
            cosigned = max(cosigned, claim.size)
        return replace(report, cosigned=min(cosigned, report.sealed))

    def _check(
        self,
        log: str,
        tenant: str | None,
        source: Source,
        further: list[Claimed],
        look: Callable[[Chunk], None],
        evidence: _Evidence | None = None,
    ) -> tuple[LogReport, Claim | None]:
        """What a log's report is, and the claim that its rows were held against."""
        held = list(self._held(log, tenant, source))
        claimed = [*held, *further]
        findings = [c.finding for c in claimed if c.finding is not None]
        claims = [c.claim for c in claimed if c.claim is not None]
        trusted = [claim for claim in claims if claim.trusted]
        newest = max(trusted or claims, key=lambda claim: claim.size, default=None)
        if newest is None:
            return self._nothing(log, tenant, findings), None
        findings += rollbacks(log, [c.claim for c in held if c.claim], newest)
        forked = list(forks(log, trusted))
        findings += [finding for _, finding in forked]
        others = [c for c in trusted if c is not newest and all(c is not f for f, _ in forked)]
        alternatives = [claim for claim, _ in forked if claim.size == newest.size]
        subject = Subject(
            log=log, tenant=tenant, source=source,
            memory=self._sources.memory if source is not Source.META else None,
            claims=[newest, *alternatives, *others],
            older=evidence.of(log, newest.size) if evidence else (),
            limits=self._sources.limits,
        )  # fmt: skip
        report = self._rows(subject, [c.claim for c in held if c.claim], look)
        told = {(f.kind, f.source, f.index) for f in findings}
        more = [f for f in report.findings if (f.kind, f.source, f.index) not in told]
        named = [replace(f, tenant=tenant) for f in findings]
        return replace(report, findings=(*named, *more)), newest

    def _rows(
        self, subject: Subject, held: list[Claim], look: Callable[[Chunk], None]
    ) -> LogReport:
        """The rows against the claims, from whatever there is."""
        memory, tenant, ledger = subject.memory, subject.tenant, self._sources.ledger
        if ledger is None:
            if memory is None or tenant is None:
                return LogReport(log=subject.log, tenant=tenant, sealed=subject.claim.size)
            return check_memory(replace(subject, source=Source.MEMORY), memory, tenant)
        folder = ledger / subject.log
        in_file = [claim for claim in held if claim.name.startswith("the file")]
        size = in_file[0].size if in_file and in_file[0].trusted else subject.claim.size
        if not (folder / "tile").is_dir() and subject.claim.size:
            return self._without_files(subject)
        if size < subject.claim.size and not reaches(
            TileDirectory(folder), size, subject.claim.size
        ):
            return self._cut(subject, in_file[0], folder, look)
        return check_files(subject, folder, look)

    def _without_files(self, subject: Subject) -> LogReport:
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

    def _cut(
        self, subject: Subject, kept: Claim, folder: Path, look: Callable[[Chunk], None]
    ) -> LogReport:
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
            report = replace(report, unsealed=rows.unsealed)
        return replace(report, sealed=subject.claim.size, findings=tuple(found))

    def _nothing(self, log: str, tenant: str | None, findings: list[Finding]) -> LogReport:
        named = tuple(replace(finding, tenant=tenant) for finding in findings)
        return LogReport(log=log, tenant=tenant, findings=named)

    def _held(self, log: str, tenant: str | None, source: Source) -> Iterator[Claimed]:
        """The checkpoints that have to be up to date: the file's and the memory's."""
        trust, now = self._sources.trust, self._snapshot(log, tenant)
        if now.in_file is not None:
            yield read_claim(now.in_file, log, source, "the file checkpoint", trust)
        elif self._sources.ledger is not None:
            text = f"{log}/checkpoint is not there"
            yield Claimed(None, Finding(kind=Kind.MISSING, source=source, log=log, text=text))
        if now.in_memory is not None:
            name = "the checkpoint in the memory"
            yield read_claim(now.in_memory, log, Source.MEMORY, name, trust)
        elif self._sources.memory is not None and tenant is not None:
            text = "the memory has no checkpoint of this log"
            gone = Finding(kind=Kind.ROLLBACK, source=Source.MEMORY, log=log, index=0, text=text)
            yield Claimed(None, gone)

    def _snapshot(self, log: str, tenant: str | None) -> _Snapshot:
        """Both checkpoints; a sealer may be at work, so they are read again until they agree."""
        now = _Snapshot(None, None)
        for _ in range(_TRIES):
            memory, ledger = self._sources.memory, self._sources.ledger
            in_memory = memory.sealed(tenant) if memory is not None and tenant else None
            now = _Snapshot(in_memory, _content(ledger / log / "checkpoint") if ledger else None)
            if memory is None or ledger is None or not tenant or _alike(now):
                break
            self._sources.pause(_PAUSE)
        return now


class _Evidence:
    """The checkpoints of the meta log, of one log after the other, by their sizes."""

    def __init__(self, spill: Spill) -> None:
        self._records = iter(spill)
        self._next = next(self._records, None)

    def of(self, log: str, most: int) -> Iterator[Claim]:
        """The claims about a log; logs are asked for in the order of their digests."""
        wanted = _digest(log)
        while self._next is not None:
            digest, size, index, root = _RECORD.unpack(self._next)
            if digest > wanted:
                return
            self._next = next(self._records, None)
            if digest == wanted and size <= most:
                name = f"the checkpoint at {index:,} of the meta log"
                yield Claim(Source.META, name, size, root)


def _alike(now: _Snapshot) -> bool:
    """Whether both are one checkpoint, whatever witnesses have added to one of them."""
    if now.in_file is None or now.in_memory is None:
        return False
    return now.in_file.partition(b"\n\n")[0] == now.in_memory.partition(b"\n\n")[0]


def _digest(log: str) -> bytes:
    return sha256(log.encode()).digest()[:16]


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _read_tenants(ledger: Path | None) -> dict[str, str]:
    """Which tenant's a log is, from the operator's file; an outsider does not have it."""
    raw = (_content(ledger / "tenants") if ledger else None) or b""
    lines = (line.split() for line in raw.decode("utf-8", "replace").splitlines())
    return {line[0]: line[1] for line in lines if len(line) == 2}
