"""What the check of a log's files has found, said as exactly as it is known.

Which side is wrong is decided by the signed root: where the files do not have it and the memory's
rows do, what differs was changed in the files. Where neither has it, the last place that an older
checkpoint still fits narrows down where the change is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from audit.ledger.alignment import Alignment, Difference, Slot, differences
from audit.ledger.file_check import FileCheck
from audit.ledger.finding import Finding, Kind, LogReport, Source
from audit.ledger.invocations import Opened, request_id_of
from audit.ledger.leaves import Chunk, Leaves
from audit.ledger.memory_check import (
    check_memory,
    memory_has_root,
    of_invocations,
    strange,
    strange_at,
)
from audit.ledger.merkle import leaf_hash
from audit.ledger.ranges import extend
from audit.ledger.roots import by_roots
from audit.ledger.subject import Subject
from audit.ledger.tiles import WIDTH, tile_of
from audit.ledger.waiting import Waiting
from audit.memory.base import order_of
from audit.row import COMPLETED

#: How many single rows the memory is asked for, to name what the files have lost.
_MOST_ASKED: Final = 1000


def check_files(
    subject: Subject, folder: Path, look: Callable[[Chunk], None] = lambda chunk: None
) -> LogReport:
    """The files of a log, and the memory beside them where there is one."""
    with closing(FileCheck(subject, folder)) as check:
        check.run(look)
        if check.is_right or not check.leaves.undecided:
            return FileReport(check).report()
        with closing(FileCheck(subject, folder, trust_rows=True)) as other:
            other.run()
            return FileReport(other).report() if other.is_right else FileReport(check).report()


class FileReport:
    """Findings of one :class:`FileCheck` that has run."""

    def __init__(self, check: FileCheck) -> None:
        self._check = check
        self._subject = check.subject
        self._asked = 0

    def report(self) -> LogReport:
        """After :meth:`FileCheck.run`."""
        subject = self._subject
        foreign: list[Finding] = []
        unsealed = self._unsealed(foreign)
        memory_is_right = not self._check.is_right and self._memory_is_right()
        findings = [*self._check.malformed, *self._flaws()]
        findings += self._of_alignment(self._check.bundles, subject.source)
        trimmed, of_memory = self._of_memory(memory_is_right)
        findings += of_memory
        findings += self._above(memory_is_right)
        told = bool(findings) and (memory_is_right or self._explained(findings))
        if self._check.is_right or not told:
            findings += by_roots(subject, self._check.roots, subject.source, self._check.size)
        findings += [*foreign, *self._of_positions()]
        repeated, opened = self._of_invocations(memory_is_right)
        findings += repeated
        return LogReport(
            log=subject.log, tenant=subject.tenant, sealed=self._check.size,
            checked=self._check.checked, unsealed=unsealed, trimmed=trimmed,
            cosigned=self._check.roots.cosigned_to,
            pruned=sum(count for _, count in self._check.bodiless), findings=tuple(findings),
            opened=opened, newest=self._check.invocations.newest,
        )  # fmt: skip

    def _of_invocations(self, memory_is_right: bool) -> tuple[list[Finding], tuple[Opened, ...]]:
        """Judged by sealed rows only: those of the files, or else the memory's, or not at all."""
        subject, invocations = self._subject, self._check.invocations
        if self._check.is_right:
            found = of_invocations(subject, invocations, self._bodies)
            return list(found), tuple(invocations.opened())
        if not (memory_is_right and subject.memory and subject.tenant):
            return [], ()
        rows = replace(subject, older=(), claims=[c for c in subject.claims if c.size])
        told = check_memory(rows, subject.memory, subject.tenant)
        return [f for f in told.findings if f.kind is Kind.DUPLICATE], told.opened

    def _of_positions(self) -> Iterator[Finding]:
        """Where leaves are not the sealed ones, which position is whose is not known."""
        yield from self._check.position_check.flaws()
        if self._check.is_right and self._check.memory:
            yield from self._check.position_check.altered(self._check.memory.elsewhere)

    def _explained(self, findings: list[Finding]) -> bool:
        """Whether the findings say already why the root is not the signed one."""
        known = any(claim.size == self._check.size for claim in self._check.roots.wrong)
        lost = not known and any(f.kind in (Kind.MISSING, Kind.MALFORMED) for f in findings)
        return lost or any(f.kind is Kind.DIVERGENT for f in findings)

    def _memory_is_right(self) -> bool:
        memory, tenant = self._subject.memory, self._subject.tenant
        return bool(memory and tenant and memory_has_root(memory, tenant, self._subject.claims))

    def _unsealed(self, found: list[Finding]) -> int:
        """How many rows are not sealed; with findings for those that are none."""
        log, tenant = self._subject.log, self._subject.tenant
        if self._check.memory is None or self._check.memory_rows is None:
            return 0
        waiting, edited = Waiting(self._subject.limits, self._subject.began), self._edited_ends()
        for slot in self._check.memory.behind:
            if slot.request_id is None:
                found.append(strange_at(log, tenant, slot.position))
            elif slot.index not in edited:
                waiting.add_at(slot.ts or "", slot.position, slot.request_id)
            if slot.kind == COMPLETED and slot.request_id:
                self._check.invocations.close_one(slot.request_id)
        for entries, _ in self._check.memory_rows.pages():
            for entry in entries:
                found += strange(log, tenant, entry, waiting)
                self._check.invocations.add_unsealed(entry.stored)
        if self._check.memory.lost is None:  # else it is not known which are sealed
            found += waiting.findings(log, tenant)
        sealed = self._check.memory.alike + sum(
            len(gap.rows) for gap in self._check.memory.gaps if not gap.last
        )
        return self._check.memory_rows.count - sealed - len(edited)

    def _edited_ends(self) -> set[int]:
        """Which rows at the end of the memory are no new ones: sealed ones that were edited."""
        gaps = self._check.memory.gaps if self._check.memory else []
        ends = {row.index for gap in gaps if gap.last for row in gap.rows}
        return {d.row.index for d in differences(gaps) if d.row is not None} & ends

    def _flaws(self) -> Iterator[Finding]:
        for flaw in self._check.leaves.flaws.values():
            bodiless = (flaw.index, flaw.count)
            if flaw.is_bundle and flaw.kind is Kind.MISSING and self._covered(*bodiless):
                extend(self._check.bodiless, *bodiless)
                continue
            yield self._at(flaw.kind, self._subject.source, flaw.index, flaw.count, text=flaw.path)
        for index, count in list(self._check.bodiless):
            if not self._covered(index, count):
                text = "no audit.pruned row says why its bytes are gone"
                yield self._at(Kind.DELETED, self._subject.source, index, count, text=text)

    def _covered(self, index: int, count: int) -> bool:
        """Whether rows were pruned, as rows that are sealed themselves say."""
        return index + count <= max((told.rows for told in self._check.pruned), default=0)

    def _of_alignment(self, alignment: Alignment, source: Source) -> Iterator[Finding]:
        for difference in differences(alignment.gaps):
            yield self._differs(difference, source, alignment.cut)
        if alignment.lost is not None:
            text = "from here on nothing fits"
            count = self._check.size - alignment.lost
            yield self._at(Kind.DIVERGENT, source, alignment.lost, count, text=text)

    def _of_memory(self, memory_is_right: bool) -> tuple[int, list[Finding]]:
        if self._check.memory is None:
            return 0, []
        found, trimmed = [], self._check.left_out
        if trimmed and not self._may_be_trimmed(trimmed):
            found.append(self._at(Kind.DELETED, Source.MEMORY, 0, trimmed))
            trimmed = 0
        for difference in differences(self._check.memory.gaps):
            if self._was_trimmed(difference):
                trimmed += difference.count
            elif memory_is_right:
                found.append(self._differs(_turned(difference), self._subject.source, 0))
            else:
                found.append(self._differs(difference, Source.MEMORY, self._check.memory.cut))
        if self._check.memory.lost is not None:
            text = "from here on the memory and the files have nothing in common"
            count = self._check.size - self._check.memory.lost
            found.append(
                self._at(Kind.DIVERGENT, Source.MEMORY, self._check.memory.lost, count, text=text)
            )
        return trimmed, found

    def _was_trimmed(self, difference: Difference) -> bool:
        """Whether rows are missing at the beginning of the memory as retention wants it."""
        leaf = difference.leaf
        if leaf is None or difference.kind not in (Kind.DELETED, Kind.CUT):
            return False
        end = leaf.index + difference.count
        if not self._may_be_trimmed(end):
            return False
        # Beyond where the memory began at first: somebody has trimmed it while it was read.
        return leaf.index == self._check.left_out or end <= self._check.memory_begins

    def _may_be_trimmed(self, count: int) -> bool:
        """Whether the first rows may be gone from the memory: it says itself that they were."""
        mark, last = self._check.mark, self._check.positions.of_row(count - 1)
        try:
            return bool(mark and last) and order_of(last or "") < order_of(mark or "")
        except ValueError:
            return False

    def _above(self, memory_is_right: bool) -> Iterator[Finding]:
        """Tiles that do not fit the leaves below them: altered, or the leaves were."""
        if self._check.is_right:
            for tile, places in self._check.leaves.above.items():
                index = places[0] * WIDTH**tile.level if tile.level else 0
                yield self._at(Kind.ALTERED, self._subject.source, index, text=tile.to_path())
        elif not memory_is_right:
            text = "rows were changed together with their tile, but not with the one above it"
            for tile, places in self._check.leaves.above.items():
                for place in places if tile.level == 1 else ():
                    width = tile_of(0, place, self._check.size).width
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
        before = self._check.positions.of_row(leaf.index - 1) if leaf.index else None
        try:
            found = memory.entries(tenant, before, 1) if before or not leaf.index else ()
        except ValueError:
            return None  # the file's line is no position
        for entry in found:
            if leaf_hash(entry.stored) == leaf.hash:
                return request_id_of(entry.stored)
        return None

    def _at(self, kind: Kind, source: Source, index: int, count: int = 1, **more: Any) -> Finding:
        found = self._subject.finding(kind, source, index=index, count=count, **more)
        if found.position is None and kind is not Kind.INSERTED:
            found = replace(found, position=self._check.positions.of_row(index))
        return found

    def _bodies(self) -> Iterator[tuple[bytes, str | None]]:
        for chunk in Leaves(
            self._check.directory, self._check.size, self._subject.claim.root
        ).chunks():
            for at in range(len(chunk.leaves)):
                row = chunk.rows[at] if at < len(chunk.rows) else None
                yield row or b"", self._check.positions.of_row(chunk.start + at) if row else None


def _turned(difference: Difference) -> Difference:
    """The same seen from the memory, where that is the side which is right."""
    kinds = {Kind.DELETED: Kind.INSERTED, Kind.CUT: Kind.INSERTED, Kind.INSERTED: Kind.DELETED}
    kind = kinds.get(difference.kind, difference.kind)
    if difference.leaf is not None and difference.row is not None:
        return Difference(kind, difference.row, difference.leaf, difference.count)
    return replace(difference, kind=kind)
