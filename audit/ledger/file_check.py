"""Reading the files of a log once, and holding everything against everything on the way.

The leaves against the claims, the bundles' rows and the memory's rows against the leaves. What it
comes to is said by ``file_report``.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

from audit.errors import TileError
from audit.ledger.alignment import WINDOW, Alignment
from audit.ledger.beginning import beginning, left_out
from audit.ledger.finding import Finding, Source
from audit.ledger.held_rows import BundleRows, MemoryRows, Positions, slots_of
from audit.ledger.invocations import Invocations
from audit.ledger.leaves import Chunk, Leaves
from audit.ledger.memory_check import no_row
from audit.ledger.merkle import EMPTY_ROOT, leaf_hash, root
from audit.ledger.position_check import PositionCheck
from audit.ledger.pruned_claim import Pruned, pruned_of
from audit.ledger.ranges import extend
from audit.ledger.roots import Roots, hold_all
from audit.ledger.subject import Subject
from audit.ledger.tile_directory import TileDirectory
from audit.ledger.tiles import WIDTH

#: The leaf of an entry that was sealed without any bytes. Those of others are empty if pruned.
_NOTHING: Final = leaf_hash(b"")


class FileCheck:
    """The files of a log against the claims, and the memory's rows against the files."""

    def __init__(self, subject: Subject, folder: Path, *, trust_rows: bool = False) -> None:
        self.subject = subject
        self.size = subject.claim.size
        self.directory = TileDirectory(folder)
        self.positions = Positions(folder, self.size)
        self.position_check = PositionCheck(subject, self.positions)
        trusted_root = subject.claim.root
        self.leaves = Leaves(self.directory, self.size, trusted_root, trust_rows)
        self.roots = Roots(subject, self.size)
        self._bundle_rows = BundleRows()
        self.bundles = Alignment(self._bundle_rows)
        memory, tenant = subject.memory, subject.tenant
        self.memory_rows = MemoryRows(memory, tenant) if memory and tenant else None
        self.memory = Alignment(self.memory_rows) if self.memory_rows else None
        self.left_out = self._left_out()
        self.invocations = Invocations()
        self.pruned: list[Pruned] = []
        self.bodiless: list[tuple[int, int]] = []
        self.malformed: list[Finding] = []
        self.checked = 0
        self._asked = 0

    @property
    def is_right(self) -> bool:
        """Whether the files have the root that the checkpoint claims."""
        return any(claim.size == self.size for claim in self.roots.right)

    @property
    def mark(self) -> str | None:
        """Before which position rows were trimmed from the memory, as of now."""
        memory, tenant = self.subject.memory, self.subject.tenant
        return memory.trimmed(tenant) if memory and tenant else None

    @property
    def memory_begins(self) -> int:
        """How many sealed rows come before the first that the memory has, as of now."""
        memory, tenant = self.subject.memory, self.subject.tenant
        if memory is None or tenant is None:
            return 0
        return beginning(memory, tenant, self.positions, self.directory, self.size)

    def run(self, look: Callable[[Chunk], None] = lambda chunk: None) -> None:
        """Read everything once; ``look`` gets every chunk."""
        hold_all(self.roots, 0, lambda: EMPTY_ROOT)
        for chunk in self.leaves.chunks():
            end = chunk.start + len(chunk.leaves)
            while (size := self.roots.due(end)) is not None:
                self.roots.hold(self.leaves.root_at(size, chunk))
            self._feed(chunk)
            self._read(chunk)
            look(chunk)
        self._bundle_rows.ended = True
        self.bundles.finish()
        if self.memory:
            self.memory.finish()

    def _left_out(self) -> int:
        """How many leaves the memory's rows need not be held against, for they were trimmed."""
        if self.mark is None and self.size < WINDOW:
            return 0  # few enough to be compared, whatever has become of them
        return left_out(self.memory_begins, self.size)

    def _feed(self, chunk: Chunk) -> None:
        if chunk.right and not self._bundles_are_behind():
            self._bundle_rows.pass_over(len(chunk.leaves))
        else:
            self._bundle_rows.push(chunk)
            self.bundles.feed(chunk.leaves, slots_of(chunk, self.positions))
        out = min(max(0, self.left_out - chunk.start), len(chunk.leaves))
        if self.memory and out < len(chunk.leaves):
            self._hold_positions(chunk.start + out, chunk.leaves[out:])
            slots = islice(slots_of(chunk, self.positions), out, None)
            self.memory.feed(chunk.leaves[out:], slots)

    def _hold_positions(self, start: int, leaves: list[bytes | None]) -> None:
        """Of rows that are all the sealed ones; of others the alignment sees to it."""
        rows, memory = self.memory_rows, self.memory
        if rows is None or memory is None or memory.is_behind or memory.lost is not None:
            return
        if rows.hashes(len(leaves)) == leaves:
            there = self.positions.of_bundle(start // WIDTH)[start % WIDTH :]
            self.position_check.hold(start, there, rows.positions(len(leaves)))

    def _bundles_are_behind(self) -> bool:
        return self.bundles.is_behind or bool(self._bundle_rows.hashes(1))

    def _read(self, chunk: Chunk) -> None:
        if self.subject.source is Source.META:
            self.checked += len(chunk.leaves) if chunk.right else 0
            return
        self.position_check.read(chunk.start, len(chunk.leaves))
        for at, leaf in enumerate(chunk.leaves):
            row = chunk.rows[at] if at < len(chunk.rows) else None
            pruned = row == b"" and leaf != _NOTHING
            if row is not None and not pruned and chunk.hashes[at] == leaf:
                self._row(chunk.start + at, row)
            else:
                self.invocations.unseen(chunk.start + at)
                if pruned:
                    extend(self.bodiless, chunk.start + at, 1)

    def _row(self, index: int, row: bytes) -> None:
        self.checked += 1
        if not self.invocations.add(index, row):
            self.malformed.append(no_row(self.subject, self.subject.source, index, None))
        told = pruned_of(index, row, self.subject.log, self.subject.trust)
        if told is not None and self._has_root(told):
            self.pruned.append(told)

    def _has_root(self, told: Pruned) -> bool:
        try:
            return root(told.rows, self.directory.node_reader(self.size)) == told.root
        except TileError:
            return False

    def close(self) -> None:
        self.invocations.close()
