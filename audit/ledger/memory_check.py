"""The rows of a memory against the claims, without any files.

The memory alone cannot tell which row is wrong, only that the rows do not have the signed root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from audit.ledger.claims import Claim
from audit.ledger.finding import Finding, Kind, LogReport, Source
from audit.ledger.held_rows import MemoryRows, SealedMemory, StoredEntry
from audit.ledger.invocations import Invocations, Opened, is_row, request_id_of
from audit.ledger.merkle import EMPTY_ROOT, Frontier
from audit.ledger.roots import Roots, by_roots, hold_all
from audit.ledger.subject import Subject


def check_memory(subject: Subject, memory: SealedMemory, tenant: str) -> LogReport:
    """The rows of the memory against the claims, without any files.

    Of a memory that was trimmed nothing can be checked like that, and nothing is found.
    """
    size = subject.claim.size
    rows, frontier, roots = MemoryRows(memory, tenant), Frontier(), Roots(subject, size)
    invocations = Invocations()
    malformed: list[Finding] = []
    hold_all(roots, 0, lambda: EMPTY_ROOT)
    for entries, hashes in rows.pages():
        for entry, hashed in zip(entries, hashes, strict=True):
            if frontier.size >= size:
                malformed += strange(subject.log, tenant, entry)
                invocations.add_unsealed(entry.stored)
                continue
            if not invocations.add(frontier.size, entry.stored):
                malformed.append(no_row(subject, Source.MEMORY, frontier.size, entry.position))
            frontier.append(hashed or b"")
            if roots.due(frontier.size) is not None:
                hold_all(roots, frontier.size, frontier.root)
    findings = [*malformed, *by_roots(subject, roots, Source.MEMORY, frontier.size)]
    checked = size if any(claim.size == size for claim in roots.right) else 0
    if not checked and memory.trimmed(tenant) is not None:
        return _trimmed(subject, rows.count)
    opened: tuple[Opened, ...] = ()
    if checked:  # rows that were not sealed like that say nothing
        opened = tuple(invocations.opened())
        findings += of_invocations(subject, invocations, lambda: _memory_rows(memory, tenant))
    invocations.close()
    return LogReport(
        log=subject.log, tenant=subject.tenant, sealed=size, checked=checked,
        unsealed=rows.count - frontier.size, cosigned=roots.cosigned_to, findings=tuple(findings),
        opened=opened, newest=invocations.newest,
    )  # fmt: skip


def _trimmed(subject: Subject, count: int) -> LogReport:
    """The first rows are in the bundles only, and without them there is no root to be had."""
    size = subject.claim.size
    return LogReport(
        log=subject.log, tenant=subject.tenant, sealed=size, trimmed=max(0, size - count)
    )


def memory_has_root(memory: SealedMemory, tenant: str, claims: Sequence[Claim]) -> bool:
    """Whether the first rows of a memory have the root of one of the claims of the newest size."""
    frontier, size = Frontier(), claims[0].size
    for _, hashes in MemoryRows(memory, tenant).pages():
        for hashed in hashes[: size - frontier.size]:
            frontier.append(hashed or b"")
        if frontier.size == size:
            break
    root = frontier.root()
    return frontier.size == size and any(c.root == root for c in claims if c.size == size)


def _memory_rows(memory: SealedMemory, tenant: str) -> Iterator[tuple[bytes, str | None]]:
    for entries, _ in MemoryRows(memory, tenant).pages():
        yield from ((entry.stored, entry.position) for entry in entries)


def of_invocations(
    subject: Subject,
    invocations: Invocations,
    rows: Callable[[], Iterator[tuple[bytes, str | None]]],
) -> Iterator[Finding]:
    """Rows that are the second of their kind."""
    wanted = set(invocations.repeated())
    seen: set[tuple[bytes, str | None]] = set()
    for index, (row, position) in enumerate(rows() if wanted else ()):
        if index not in wanted:
            continue
        key = row[: row.find(b",")], request_id_of(row)
        if key in seen:
            yield subject.finding(
                Kind.DUPLICATE, subject.source, index=index, position=position, request_id=key[1]
            )
        seen.add(key)


def unsealed(log: str, memory: SealedMemory | None, tenant: str | None) -> LogReport:
    """The rows of a memory where nothing is sealed, so that each may be any row."""
    if memory is None or tenant is None:
        return LogReport(log=log, tenant=tenant)
    rows = MemoryRows(memory, tenant)
    found = [f for page, _ in rows.pages() for one in page for f in strange(log, tenant, one)]
    return LogReport(log=log, tenant=tenant, unsealed=rows.count, findings=tuple(found))


def strange(log: str, tenant: str | None, entry: StoredEntry) -> list[Finding]:
    """A finding if an entry that is not sealed is no row either."""
    if not entry.foreign and is_row(entry.stored):
        return []
    return [strange_at(log, tenant, entry.position)]


def strange_at(log: str, tenant: str | None, position: str | None) -> Finding:
    text = "not sealed, and no row: somebody else has put it there"
    return Finding(
        kind=Kind.MALFORMED, source=Source.MEMORY, log=log, tenant=tenant,
        position=position, text=text,
    )  # fmt: skip


def no_row(subject: Subject, source: Source, index: int, position: str | None) -> Finding:
    text = "the sealed bytes are no row"
    return subject.finding(Kind.MALFORMED, source, index=index, position=position, text=text)
