"""One log, checked: its files, the rows of the memory, and everything its checkpoints claim.

Which side is wrong is decided by the signed root: where the files do not have it and the memory's
rows do, what differs was changed in the files. Where neither has it, the last place that an older
checkpoint still fits narrows down where the change is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from audit.errors import TileError
from audit.ledger.alignment import Alignment, Difference, Slot, differences
from audit.ledger.claims import Claim, fork
from audit.ledger.finding import Finding, Kind, LogReport, Source
from audit.ledger.held_rows import BundleRows, MemoryRows, Positions, SealedMemory, slots_of
from audit.ledger.invocations import Invocations, request_id_of
from audit.ledger.leaves import Chunk, Leaves
from audit.ledger.merkle import EMPTY_ROOT, Frontier, leaf_hash
from audit.ledger.tile_directory import TileDirectory
from audit.ledger.tiles import WIDTH, tile_of

_PRUNED: Final = b'{"kind":"audit.pruned"'
_MOST_FORKS: Final = 100
#: How many single rows the memory is asked for, to name what the files have lost.
_MOST_ASKED: Final = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What is still fine.

    Attributes:
        open_for: seconds that an invocation may be without its completed row.
        hot_for: rows older than so many seconds (against the newest sealed row) may be missing at
            the beginning of the memory, where the bundles have them; ``None``: none may.
    """

    open_for: float = 45.0
    hot_for: float | None = None


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is to be checked.

    Attributes:
        log: its pseudonym.
        tenant: whose, if known.
        source: what findings about its files name.
        folder: of the log, where its files are to be read.
        memory: where the tenant's rows are to be read.
        claims: what checkpoints say, the one to hold the rows against first.
        older: further claims, by size: those of the meta log.
        limits: what is still fine.
    """

    log: str
    tenant: str | None
    source: Source = Source.LEDGER
    folder: Path | None = None
    memory: SealedMemory | None = None
    claims: Sequence[Claim] = ()
    older: Iterable[Claim] = ()
    limits: Limits = field(default_factory=Limits)

    @property
    def claim(self) -> Claim:
        return self.claims[0]

    def finding(self, kind: Kind, source: Source, **more: Any) -> Finding:
        return Finding(kind=kind, source=source, log=self.log, tenant=self.tenant, **more)


class Roots:
    """Holds claims against the roots of a growing tree."""

    def __init__(self, subject: Subject, size: int) -> None:
        self._newest = size
        claims = sorted((c for c in subject.claims if c.size <= size), key=lambda c: c.size)
        self._claims = _merged(claims, subject.older)
        self._next = next(self._claims, None)
        self.right: list[Claim] = []
        self.wrong: list[Claim] = []
        self.fits_to = 0

    def due(self, end: int) -> int | None:
        """The size of the next claim up to ``end``."""
        return self._next.size if self._next and self._next.size <= end else None

    def hold(self, root: bytes | None) -> None:
        """The root at the size that is due."""
        claim, self._next = self._next, next(self._claims, None)
        if claim is None or root is None:
            return
        if claim.root == root:
            self.fits_to = claim.size
            if claim.size == self._newest:
                self.right.append(claim)
        elif len(self.wrong) < _MOST_FORKS:
            self.wrong.append(claim)


def _merged(claims: list[Claim], older: Iterable[Claim]) -> Iterator[Claim]:
    at = 0
    for claim in older:
        while at < len(claims) and claims[at].size <= claim.size:
            yield claims[at]
            at += 1
        yield claim
    yield from claims[at:]


# --- from the memory alone ------------------------------------------------------------------------


def check_memory(subject: Subject, memory: SealedMemory, tenant: str) -> LogReport:
    """The rows of the memory against the claims, without any files."""
    size = subject.claim.size
    rows, frontier, roots = MemoryRows(memory, tenant), Frontier(), Roots(subject, size)
    invocations = Invocations(subject.limits.open_for)
    malformed: list[Finding] = []
    _hold_all(roots, 0, lambda: EMPTY_ROOT)
    for entries, hashes in rows.pages():
        for entry, hashed in zip(entries, hashes, strict=True):
            if frontier.size >= size:
                invocations.add_unsealed(entry.stored)
                continue
            if not invocations.add(frontier.size, entry.stored):
                malformed.append(_no_row(subject, Source.MEMORY, frontier.size, entry.position))
            frontier.append(hashed or b"")
            if roots.due(frontier.size) is not None:
                _hold_all(roots, frontier.size, frontier.root)
    findings = [*malformed, *_by_roots(subject, roots, Source.MEMORY, frontier.size)]
    checked = size if any(claim.size == size for claim in roots.right) else 0
    if checked:  # rows that were not sealed like that say nothing
        findings += _of_invocations(subject, invocations, lambda: _memory_rows(memory, tenant))
    invocations.close()
    return LogReport(
        log=subject.log, tenant=subject.tenant, sealed=size, checked=checked,
        unsealed=rows.count - frontier.size, findings=tuple(findings),
    )  # fmt: skip


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


def _hold_all(roots: Roots, size: int, root: Callable[[], bytes | None]) -> None:
    while roots.due(size) is not None:
        roots.hold(root())


def _memory_rows(memory: SealedMemory, tenant: str) -> Iterator[tuple[bytes, str | None]]:
    for entries, _ in MemoryRows(memory, tenant).pages():
        yield from ((entry.stored, entry.position) for entry in entries)


# --- from files, and the memory beside them -------------------------------------------------------


class FileCheck:
    """The files of a log against the claims, and the memory's rows against the files."""

    def __init__(self, subject: Subject, folder: Path, *, trust_rows: bool = False) -> None:
        self._subject = subject
        self._size = subject.claim.size
        self._directory = TileDirectory(folder)
        self._positions = Positions(folder, self._size)
        trusted_root = subject.claim.root
        self.leaves = Leaves(self._directory, self._size, trusted_root, trust_rows)
        self.roots = Roots(subject, self._size)
        self._bundle_rows = BundleRows()
        self._bundles = Alignment(self._bundle_rows)
        memory, tenant = subject.memory, subject.tenant
        self._memory_rows = MemoryRows(memory, tenant) if memory and tenant else None
        self._memory = Alignment(self._memory_rows) if self._memory_rows else None
        self._invocations = Invocations(subject.limits.open_for)
        self._pruned: list[tuple[int, int]] = []
        self._bodiless: list[tuple[int, int]] = []
        self._malformed: list[Finding] = []
        self._checked = 0
        self._asked = 0

    @property
    def is_right(self) -> bool:
        """Whether the files have the root that the checkpoint claims."""
        return any(claim.size == self._size for claim in self.roots.right)

    def run(self, look: Callable[[Chunk], None] = lambda chunk: None) -> None:
        """Read everything once; ``look`` gets every chunk."""
        _hold_all(self.roots, 0, lambda: EMPTY_ROOT)
        for chunk in self.leaves.chunks():
            end = chunk.start + len(chunk.leaves)
            while (size := self.roots.due(end)) is not None:
                self.roots.hold(self.leaves.root_at(size, chunk))
            self._feed(chunk)
            self._read(chunk)
            look(chunk)
        self._bundle_rows.ended = True
        self._bundles.finish()
        if self._memory:
            self._memory.finish()

    def _feed(self, chunk: Chunk) -> None:
        if chunk.right and not self._bundles_are_behind():
            self._bundle_rows.pass_over(len(chunk.leaves))
        else:
            self._bundle_rows.push(chunk)
            self._bundles.feed(chunk.leaves, slots_of(chunk, self._positions))
        if self._memory:
            self._memory.feed(chunk.leaves, slots_of(chunk, self._positions))

    def _bundles_are_behind(self) -> bool:
        return self._bundles.is_behind or bool(self._bundle_rows.hashes(1))

    def _read(self, chunk: Chunk) -> None:
        if self._subject.source is Source.META:
            self._checked += len(chunk.leaves) if chunk.right else 0
            return
        for at, leaf in enumerate(chunk.leaves):
            row = chunk.rows[at] if at < len(chunk.rows) else None
            if row and chunk.hashes[at] == leaf:
                self._row(chunk.start + at, row)
            else:
                self._invocations.unseen(chunk.start + at)
                if row == b"":
                    _extend(self._bodiless, chunk.start + at, 1)

    def _row(self, index: int, row: bytes) -> None:
        self._checked += 1
        if not self._invocations.add(index, row):
            self._malformed.append(_no_row(self._subject, self._subject.source, index, None))
        if row.startswith(_PRUNED):
            self._pruned += _pruned_range(row)

    def close(self) -> None:
        self._invocations.close()

    # --- what came out ------------------------------------------------------------------------

    def report(self) -> LogReport:
        """After :meth:`run`."""
        subject = self._subject
        unsealed = self._unsealed()
        memory_is_right = not self.is_right and self._memory_is_right()
        findings = [*self._malformed, *self._flaws()]
        findings += self._of_alignment(self._bundles, subject.source)
        trimmed, of_memory = self._of_memory(memory_is_right)
        findings += of_memory
        findings += self._above(memory_is_right)
        if (not memory_is_right and not self._explained(findings)) or self.is_right:
            findings += _by_roots(subject, self.roots, subject.source, self._size)
        findings += self._of_invocations(memory_is_right)
        return LogReport(
            log=subject.log, tenant=subject.tenant, sealed=self._size, checked=self._checked,
            unsealed=unsealed, trimmed=trimmed, findings=tuple(findings),
            pruned=sum(count for _, count in self._bodiless),
        )  # fmt: skip

    def _of_invocations(self, memory_is_right: bool) -> Iterator[Finding]:
        """Judged by sealed rows only: those of the files, or else the memory's, or not at all."""
        subject = self._subject
        if self.is_right:
            yield from _of_invocations(subject, self._invocations, self._bodies)
        elif memory_is_right and subject.memory and subject.tenant:
            rows = replace(subject, older=(), claims=[c for c in subject.claims if c.size])
            told = check_memory(rows, subject.memory, subject.tenant).findings
            yield from (f for f in told if f.kind in (Kind.OVERDUE, Kind.DUPLICATE))

    def _explained(self, findings: list[Finding]) -> bool:
        """Whether a root that is missing is no more than what is said already."""
        told = (Kind.DIVERGENT, Kind.MISSING, Kind.MALFORMED)
        return not self.is_right and not self.roots.wrong and any(f.kind in told for f in findings)

    def _memory_is_right(self) -> bool:
        memory, tenant = self._subject.memory, self._subject.tenant
        return bool(memory and tenant and memory_has_root(memory, tenant, self._subject.claims))

    def _unsealed(self) -> int:
        if self._memory is None or self._memory_rows is None:
            return 0
        for entries, _ in self._memory_rows.pages():
            for entry in entries:
                self._invocations.add_unsealed(entry.stored)
        sealed = self._memory.alike + sum(
            len(gap.rows) for gap in self._memory.gaps if not gap.last
        )
        edited = [d for d in differences(self._memory.gaps) if d.row is not None]
        ends = {row.index for gap in self._memory.gaps if gap.last for row in gap.rows}
        sealed += len({d.row.index for d in edited if d.row} & ends)
        return self._memory_rows.count - sealed

    def _flaws(self) -> Iterator[Finding]:
        for flaw in self.leaves.flaws.values():
            bodiless = (flaw.index, flaw.count)
            if flaw.is_bundle and flaw.kind is Kind.MISSING and self._covered(*bodiless):
                _extend(self._bodiless, *bodiless)
                continue
            yield self._at(flaw.kind, self._subject.source, flaw.index, flaw.count, text=flaw.path)
        for index, count in list(self._bodiless):
            if not self._covered(index, count):
                text = "no audit.pruned row says why its bytes are gone"
                yield self._at(Kind.DELETED, self._subject.source, index, count, text=text)

    def _covered(self, index: int, count: int) -> bool:
        """Whether rows were pruned, as rows that are sealed themselves say."""
        for first, rows in sorted(self._pruned):
            if first <= index < first + rows:
                gone = min(count, first + rows - index)
                index, count = index + gone, count - gone
        return count <= 0

    def _of_alignment(self, alignment: Alignment, source: Source) -> Iterator[Finding]:
        for difference in differences(alignment.gaps):
            yield self._differs(difference, source, alignment.cut)
        if alignment.lost is not None:
            text = "from here on nothing fits"
            count = self._size - alignment.lost
            yield self._at(Kind.DIVERGENT, source, alignment.lost, count, text=text)

    def _of_memory(self, memory_is_right: bool) -> tuple[int, list[Finding]]:
        if self._memory is None:
            return 0, []
        trimmed, found = 0, []
        for difference in differences(self._memory.gaps):
            if self._may_be_trimmed(difference):
                trimmed += difference.count
            elif memory_is_right:
                found.append(self._differs(_turned(difference), self._subject.source, 0))
            else:
                found.append(self._differs(difference, Source.MEMORY, self._memory.cut))
        if self._memory.lost is not None:
            text = "from here on the memory and the files have nothing in common"
            count = self._size - self._memory.lost
            found.append(
                self._at(Kind.DIVERGENT, Source.MEMORY, self._memory.lost, count, text=text)
            )
        return trimmed, found

    def _may_be_trimmed(self, difference: Difference) -> bool:
        """Whether rows are missing at the beginning of the memory as retention wants it."""
        leaf = difference.leaf
        if leaf is None or leaf.index or difference.kind not in (Kind.DELETED, Kind.CUT):
            return False
        if self._covered(0, difference.count):
            return True
        hot_for = self._subject.limits.hot_for
        last = self._body(difference.count - 1)
        newest = self._invocations.newest
        return hot_for is not None and bool(last) and newest - _ts(last or b"") >= hot_for

    def _above(self, memory_is_right: bool) -> Iterator[Finding]:
        """Tiles that do not fit the leaves below them: altered, or the leaves were."""
        if self.is_right:
            for tile, places in self.leaves.above.items():
                index = places[0] * WIDTH**tile.level if tile.level else 0
                yield self._at(Kind.ALTERED, self._subject.source, index, text=tile.to_path())
        elif not memory_is_right:
            text = "rows were changed together with their tile, but not with the one above it"
            for tile, places in self.leaves.above.items():
                for place in places if tile.level == 1 else ():
                    width = tile_of(0, place, self._size).width
                    yield self._at(
                        Kind.DIVERGENT, self._subject.source, place * WIDTH, width, text=text
                    )

    def _differs(self, difference: Difference, source: Source, cut: int) -> Finding:
        leaf, row = difference.leaf, difference.row
        place = leaf or row
        index = place.index if place else 0
        position = (row.position if row else None) or (leaf.position if leaf else None)
        request_id = (leaf.request_id if leaf else None) or (row.request_id if row else None)
        if request_id is None and leaf is not None:
            request_id = self._told_by_memory(leaf)
        count = difference.count + (cut if difference.kind is Kind.CUT else 0)
        text = f"now at place {row.index:,}" if difference.kind is Kind.REORDERED and row else ""
        return self._at(
            difference.kind, source, index, count,
            position=position, request_id=request_id, text=text,
        )  # fmt: skip

    def _told_by_memory(self, leaf: Slot) -> str | None:
        """Whose a row was that the files have lost, if the memory still has it."""
        memory, tenant = self._subject.memory, self._subject.tenant
        if memory is None or tenant is None or self._asked >= _MOST_ASKED:
            return None
        self._asked += 1
        before = self._positions.of_row(leaf.index - 1) if leaf.index else None
        for entry in memory.entries(tenant, before, 1) if before or not leaf.index else ():
            if leaf_hash(entry.stored) == leaf.hash:
                return request_id_of(entry.stored)
        return None

    def _at(self, kind: Kind, source: Source, index: int, count: int = 1, **more: Any) -> Finding:
        found = self._subject.finding(kind, source, index=index, count=count, **more)
        if found.position is None and kind is not Kind.INSERTED:
            found = replace(found, position=self._positions.of_row(index))
        return found

    def _body(self, index: int) -> bytes | None:
        try:
            rows = self._directory.entries(tile_of(None, index // WIDTH, self._size))
        except TileError:
            return None
        return rows[index % WIDTH]

    def _bodies(self) -> Iterator[tuple[bytes, str | None]]:
        for chunk in Leaves(self._directory, self._size, self._subject.claim.root).chunks():
            for at in range(len(chunk.leaves)):
                row = chunk.rows[at] if at < len(chunk.rows) else None
                yield row or b"", self._positions.of_row(chunk.start + at) if row else None


def check_files(
    subject: Subject, folder: Path, look: Callable[[Chunk], None] = lambda chunk: None
) -> LogReport:
    """The files of a log, and the memory beside them where there is one."""
    with closing(FileCheck(subject, folder)) as check:
        check.run(look)
        if check.is_right or not check.leaves.undecided:
            return check.report()
        with closing(FileCheck(subject, folder, trust_rows=True)) as other:
            other.run()
            return other.report() if other.is_right else check.report()


# --- findings -------------------------------------------------------------------------------------


def _by_roots(subject: Subject, roots: Roots, source: Source, held: int) -> Iterator[Finding]:
    """What the roots say by themselves."""
    size = subject.claim.size
    if held < size:
        yield subject.finding(Kind.CUT, source, index=held, count=size - held)
        return
    if any(claim.size == size for claim in roots.right):
        for claim in roots.wrong:
            if claim.trusted and claim not in subject.claims[:1]:
                yield replace(fork(subject.log, claim, "the rows"), tenant=subject.tenant)
        return
    first = roots.fits_to
    yield subject.finding(
        Kind.DIVERGENT, source, index=first, count=size - first,
        text=f"these rows do not have the root of {subject.claim.name}",
    )  # fmt: skip


def _of_invocations(
    subject: Subject,
    invocations: Invocations,
    rows: Callable[[], Iterator[tuple[bytes, str | None]]],
) -> Iterator[Finding]:
    for opened in invocations.overdue():
        yield subject.finding(
            Kind.OVERDUE, subject.source, index=opened.index, request_id=opened.request_id,
            text=f"started {opened.ts}, not completed",
        )  # fmt: skip
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


def _no_row(subject: Subject, source: Source, index: int, position: str | None) -> Finding:
    text = "the sealed bytes are no row"
    return subject.finding(Kind.MALFORMED, source, index=index, position=position, text=text)


def _turned(difference: Difference) -> Difference:
    """The same seen from the memory, where that is the side which is right."""
    kinds = {Kind.DELETED: Kind.INSERTED, Kind.CUT: Kind.INSERTED, Kind.INSERTED: Kind.DELETED}
    kind = kinds.get(difference.kind, difference.kind)
    if difference.leaf is not None and difference.row is not None:
        return Difference(kind, difference.row, difference.leaf, difference.count)
    return replace(difference, kind=kind)


def _extend(ranges: list[tuple[int, int]], index: int, count: int) -> None:
    if ranges and sum(ranges[-1]) == index:
        ranges[-1] = ranges[-1][0], ranges[-1][1] + count
    else:
        ranges.append((index, count))


def _pruned_range(row: bytes) -> list[tuple[int, int]]:
    """Which rows an ``audit.pruned`` row speaks of."""
    try:
        payload = json.loads(row)["payload"]
        return [(int(payload["first_index"]), int(payload["rows"]))]
    except (ValueError, KeyError, TypeError):
        return []


def _ts(row: bytes) -> float:
    try:
        return datetime.fromisoformat(row[-29:-2].decode()).timestamp()
    except ValueError:
        return float("inf")
