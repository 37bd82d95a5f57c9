"""Taking a ledger along: the same trees in a folder of their own, for whoever seals the target.

Entries, hashes, checkpoints and keys are the same files. Only the positions beside the bundles are
written anew, for the target has its rows elsewhere; no signature covers them. What is guaranteed:
neither the source nor its ledger is changed; the target has a checkpoint only after everything that
it covers is durable in the new folder, the meta log's last of all, so that a keeper that comes too
early finds damage and seals nothing; and a run that was killed is done again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from audit.copying.sealed import Seal
from audit.errors import CopyError
from audit.ledger.checkpoint import Checkpoint
from audit.ledger.durable import flush_folder, make_folder, replace_file
from audit.ledger.folder import META, LedgerFolder
from audit.ledger.log import LogFolder, errors_of_folder
from audit.ledger.merkle import root
from audit.ledger.note import Note
from audit.ledger.tiles import WIDTH, tile_of
from audit.memory.base import AuditMemory, Entry

#: There while the folder is unfinished.
_MARK: Final = "copying"
_NOT_TAKEN: Final = {"lock", _MARK}


@dataclass(frozen=True, slots=True)
class _Sealed:
    """A log as the target shall have it: its name, its checkpoint, where its last row stands."""

    name: str
    note: bytes
    position: str | None


class Positions:
    """Where the target has the sealed rows of a tenant, on their way into files beside the bundles.

    Args:
        log: the new folder of its log.
        size: how many rows are sealed.
    """

    def __init__(self, log: LogFolder, size: int) -> None:
        self._log = log
        self._size = size
        self._lines: list[str] = []
        self._bundle = 0
        self.last: str | None = None

    def add(self, entries: Sequence[Entry]) -> None:
        """The next rows, as the target has them.

        Raises:
            LedgerError: the disk does not take the file.
        """
        left = self._size - self._bundle * WIDTH - len(self._lines)
        self._lines += [entry.position for entry in entries[: max(0, left)]]
        while self._lines and self._bundle * WIDTH < self._size:
            tile = tile_of(None, self._bundle, self._size)
            if len(self._lines) < tile.width:
                return
            lines, self._lines = self._lines[: tile.width], self._lines[tile.width :]
            self._log.grow([], [(tile, lines)], replace=True)
            self._bundle, self.last = self._bundle + 1, lines[-1]


class LedgerCopy:
    """A ledger on its way into a new folder.

    Args:
        ledger: the source's.
        folder: the new one; empty, not there yet, or an older or unfinished copy.
        source: the memory that it was sealed from.
        target: the memory that has its rows now.
    """

    def __init__(
        self, ledger: Path, folder: Path, source: AuditMemory, target: AuditMemory
    ) -> None:
        self._ledger = LedgerFolder(ledger)
        self._folder = LedgerFolder(folder)
        self._source = source
        self._target = target
        self._tenants: dict[str, tuple[str, bytes, Positions]] = {}

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Nobody seals or prunes either ledger meanwhile.

        Raises:
            CopyError: somebody does, or the new folder is one of somebody else.
            LedgerError: a folder cannot be used.
        """
        if self._ledger.root.resolve() == self._folder.root.resolve():
            raise CopyError("the ledger cannot be copied into itself: give another folder")
        with ExitStack() as stack:
            for folder in (self._ledger, self._folder):
                if not stack.enter_context(folder.locked()):
                    raise CopyError(f"{folder.root} is in use: stop the keeper, then copy again")
            self._mark()
            yield

    def positions(self, tenant_id: str, seal: Seal) -> Positions:
        """Where the target has a tenant's rows, to be filled until :meth:`finish`."""
        name = "" if seal.log is None else seal.log.root.name
        positions = Positions(self._folder.log(name), seal.size)
        if seal.note is not None:
            self._tenants[tenant_id] = name, seal.note, positions
        return positions

    def finish(self) -> None:
        """Copy the files, then give the target its checkpoints.

        Raises:
            CopyError: memory and ledger do not agree, or the target has checkpoints of its own.
            LedgerError: a folder cannot be used.
            AuditMemoryError: a memory did not answer.
        """
        logs = {
            tenant_id: _Sealed(name, note, positions.last)
            for tenant_id, (name, note, positions) in self._tenants.items()
        }
        meta = self._ledger.log(META).checkpoint()
        if meta is not None:
            logs[META] = _Sealed(META, meta, None)  # behind all others
        there = {role: self._insist(role, log.name, log.note) for role, log in logs.items()}
        with errors_of_folder(self._folder.root):
            self._copy_files()
        for role, log in logs.items():
            self._swap(role, there[role], log)
        with errors_of_folder(self._folder.root):
            (self._folder.root / _MARK).unlink(missing_ok=True)
            flush_folder(self._folder.root)

    # --- inside -------------------------------------------------------------------------------

    def _mark(self) -> None:
        """Say that the folder is unfinished, so that nobody takes another one for it."""
        top = self._folder.root
        with errors_of_folder(top):
            names = {path.name for path in top.iterdir()} - {"lock"}
            found = self._folder.log(META).checkpoint()
            if names and _MARK not in names and not self._has_grown_from(META, found):
                raise CopyError(f"{top} is not empty, and is no copy of the ledger: give another")
            replace_file(top / _MARK, b"unfinished: run `audit copy` again\n")

    def _has_grown_from(self, name: str, note: bytes | None) -> bool:
        """Whether that checkpoint is this or an older one of that log of the source's ledger."""
        log = self._ledger.log(name)
        newest = log.checkpoint()
        if note is None or newest is None:
            return False
        old, new = (Checkpoint.parse(Note.parse(one).text) for one in (note, newest))
        if old.origin != new.origin or old.size > new.size:
            return False
        return root(old.size, log.tiles.node_reader(new.size)) == old.root

    def _insist(self, role: str, name: str, note: bytes) -> bytes | None:
        """What the target has now, which may be an older checkpoint of the same log."""
        if self._source.sealed(role) != note:
            raise CopyError(f"ledger and source have two checkpoints of {role}: run `audit seal`")
        there = self._target.sealed(role)
        if there is not None and not self._has_grown_from(name, there):
            raise CopyError(f"the target has a checkpoint of its own of {role}, and keeps it")
        return there

    def _swap(self, role: str, there: bytes | None, sealed: _Sealed) -> None:
        if there == sealed.note:
            return
        if not self._target.swap_sealed(role, there, sealed.note, sealed.position):
            raise CopyError(f"somebody else seals {role} in the target: stop its keeper")

    def _copy_files(self) -> None:
        folders = {self._folder.root}
        for path in sorted(self._ledger.root.rglob("*")):
            name = path.relative_to(self._ledger.root)
            if path.is_file() and not _is_ours(name):
                copied = self._folder.root / name
                make_folder(copied.parent)
                _copy(path, copied)
                folders.add(copied.parent)
        for folder in folders:
            flush_folder(folder)


def _is_ours(name: Path) -> bool:
    """Whether it is no part of the trees: positions, locks, what crashes have left."""
    return (
        name.parts[0] in _NOT_TAKEN
        or "positions" in name.parts
        or ".unnamed" in name.parts
        or name.suffix == ".unnamed"
    )


def _copy(path: Path, copied: Path) -> None:
    """A copy with the same mode; one of the same bytes is left as it is."""
    if copied.exists() and copied.read_bytes() == path.read_bytes():
        return
    unnamed = copied.with_name(f".{uuid4().hex}.unnamed")
    try:
        shutil.copy2(path, unnamed)
        with unnamed.open("rb") as written:
            os.fsync(written.fileno())
        unnamed.rename(copied)
    finally:
        unnamed.unlink(missing_ok=True)
