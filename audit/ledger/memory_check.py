"""The rows of a memory against the claims, without any files.

The memory alone cannot tell which row is wrong, only that the rows do not have the signed root.
What it says of its own trims is believed only as far as it explains that there are too few rows,
and then nothing was checked, which is no pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from audit.ledger.claims import Claim
from audit.ledger.finding import Finding, Kind, LogReport, Source
from audit.ledger.held_rows import MemoryRows, SealedMemory, StoredEntry
from audit.ledger.invocations import Invocations, is_row, request_id_of
from audit.ledger.merkle import EMPTY_ROOT, Frontier
from audit.ledger.roots import Roots, by_roots, hold_all
from audit.ledger.subject import Subject
from audit.ledger.waiting import Waiting
from audit.memory.base import order_of


def check_memory(subject: Subject, memory: SealedMemory, tenant: str) -> LogReport:
    """The rows of the memory against the claims, without any files.

    Where the mark of a trim explains that rows are missing at the beginning, there is no root to be
    had, and nothing is checked but whether what is there are rows, each once.
    """
    with closing(_MemoryCheck(subject, memory, tenant)) as check:
        check.run()
        return check.report()


class _MemoryCheck:
    """One reading of a memory's rows."""

    def __init__(self, subject: Subject, memory: SealedMemory, tenant: str) -> None:
        self._subject = subject
        self._memory = memory
        self._tenant = tenant
        self._size = subject.claim.size
        self._rows = MemoryRows(memory, tenant)
        self._frontier = Frontier()
        self._roots = Roots(subject, self._size)
        self._invocations = Invocations()
        self._first: str | None = None
        self._no_rows: list[Finding] = []
        self._behind: list[Finding] = []
        self._waiting = Waiting(subject.limits, subject.began)

    def close(self) -> None:
        self._invocations.close()

    def run(self) -> None:
        """Read everything once."""
        log = self._subject.log
        hold_all(self._roots, 0, lambda: EMPTY_ROOT)
        for entries, hashes in self._rows.pages():
            self._first = self._first or entries[0].position
            for entry, hashed in zip(entries, hashes, strict=True):
                if self._frontier.size < self._size:
                    self._hold(entry, hashed or b"")
                else:
                    self._behind += strange(log, self._tenant, entry, self._waiting)
                    self._invocations.add_unsealed(entry.stored)

    def report(self) -> LogReport:
        """After :meth:`run`."""
        if any(claim.size == self._size for claim in self._roots.right):
            return self._right()
        return self._trimmed() if self._is_explained() else self._wrong()

    def _hold(self, entry: StoredEntry, hashed: bytes) -> None:
        at = self._frontier.size
        if not self._invocations.add(at, entry.stored):
            self._no_rows.append(no_row(self._subject, Source.MEMORY, at, entry.position))
        self._frontier.append(hashed)
        if self._roots.due(self._frontier.size) is not None:
            hold_all(self._roots, self._frontier.size, self._frontier.root)

    def _is_explained(self) -> bool:
        """Whether the first rows may have been trimmed: fewer are there than were sealed, and the
        first is not before the mark, as of now."""
        mark = self._memory.trimmed(self._tenant)
        if mark is None or self._rows.count >= self._size:
            return False
        try:
            return self._first is None or order_of(self._first) >= order_of(mark)
        except ValueError:
            return False

    def _right(self) -> LogReport:
        waiting = self._waiting.findings(self._subject.log, self._tenant)
        return self._told(
            [*self._no_rows, *self._behind, *self._by_roots(), *waiting, *self._duplicates()],
            checked=self._size, opened=tuple(self._invocations.opened()),
        )  # fmt: skip

    def _wrong(self) -> LogReport:
        """Rows that were not sealed like that say nothing of invocations."""
        return self._told([*self._no_rows, *self._behind, *self._by_roots()])

    def _trimmed(self) -> LogReport:
        """The first rows are in the bundles only, so which index the others have is not known."""
        found = [replace(finding, index=None) for finding in [*self._no_rows, *self._duplicates()]]
        return LogReport(
            log=self._subject.log, tenant=self._subject.tenant, sealed=self._size,
            trimmed=self._size - self._rows.count, findings=tuple(found),
        )  # fmt: skip

    def _told(self, findings: list[Finding], **more: Any) -> LogReport:
        return LogReport(
            log=self._subject.log, tenant=self._subject.tenant, sealed=self._size,
            unsealed=self._rows.count - self._frontier.size, cosigned=self._roots.cosigned_to,
            findings=tuple(findings), newest=self._invocations.newest, **more,
        )  # fmt: skip

    def _by_roots(self) -> Iterator[Finding]:
        return by_roots(self._subject, self._roots, Source.MEMORY, self._frontier.size)

    def _duplicates(self) -> Iterator[Finding]:
        def rows() -> Iterator[tuple[bytes, str | None]]:
            return _memory_rows(self._memory, self._tenant)

        return of_invocations(self._subject, self._invocations, rows)


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


def unsealed(
    log: str, memory: SealedMemory | None, tenant: str | None, waiting: Waiting | None = None
) -> LogReport:
    """The rows of a memory where nothing is sealed, so that each may be any row.

    ``waiting`` says which of them wait for too long; without it none does.
    """
    if memory is None or tenant is None:
        return LogReport(log=log, tenant=tenant)
    rows = MemoryRows(memory, tenant)
    found = [
        f for page, _ in rows.pages() for one in page for f in strange(log, tenant, one, waiting)
    ]
    found += waiting.findings(log, tenant) if waiting else ()
    return LogReport(log=log, tenant=tenant, unsealed=rows.count, findings=tuple(found))


def strange(
    log: str, tenant: str | None, entry: StoredEntry, waiting: Waiting | None = None
) -> list[Finding]:
    """A finding if an entry that is not sealed is no row either; a row waits to be sealed."""
    if entry.foreign or not is_row(entry.stored):
        return [strange_at(log, tenant, entry.position)]
    if waiting is not None:
        waiting.add(entry.stored, entry.position)
    return []


def strange_at(log: str, tenant: str | None, position: str | None) -> Finding:
    text = "not sealed, and no row: somebody else has put it there"
    return Finding(
        kind=Kind.MALFORMED, source=Source.MEMORY, log=log, tenant=tenant,
        position=position, text=text,
    )  # fmt: skip


def no_row(subject: Subject, source: Source, index: int, position: str | None) -> Finding:
    text = "the sealed bytes are no row"
    return subject.finding(Kind.MALFORMED, source, index=index, position=position, text=text)
