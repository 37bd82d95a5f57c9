"""Sealing one log: its entries become leaves, its tiles files, and a checkpoint covers them.

The commit point is one swap in the memory: the checkpoint, and with it the position of the last row
that it covers, where its entries have some. Tiles are durable before it, and until it nobody reads
them; the file ``checkpoint`` comes after it. So wherever a crash strikes, the next one who seals
finds an old tree with some files beside it that it writes again, or a new tree that lacks no more
than that file.

What is guaranteed: two who seal the same log never fork it, for one of the swaps fails; what is
sealed and was changed or lost since is an error, and nothing of it is repaired. Files that no
checkpoint covers are no part of a log: they stay until they are written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from audit.errors import (
    CheckpointError,
    LedgerDamagedError,
    LedgerRaceError,
    NoteError,
    ProofError,
    TileConflictError,
    TileError,
)
from audit.ledger.checkpoint import MOST as MOST
from audit.ledger.checkpoint import Checkpoint, open_checkpoint
from audit.ledger.edge import Edge, Growth
from audit.ledger.keys import LedgerKeys
from audit.ledger.log import LogFolder
from audit.ledger.merkle import root
from audit.ledger.note import Note
from audit.ledger.tenant_reads import SealingMemory
from audit.ledger.tiles import new_tiles


@dataclass(frozen=True, slots=True)
class Open:
    """A log that was found as it was left.

    Attributes:
        note: its newest checkpoint, as the memory has it; ``None`` before the first.
        edge: its right edge.
    """

    note: bytes | None = None
    edge: Edge = field(default_factory=Edge)


class LogSealer:
    """Seals one log. Whoever uses it holds the lock of the ledger.

    Args:
        memory: where the newest checkpoint is.
        log: the folder of the log.
        role: what the memory keeps the checkpoint under: the tenant's id, or the meta log's name.
        origin: of the log.
        keys: what signs.
        positions: whether its entries have positions in the memory.
    """

    def __init__(
        self,
        memory: SealingMemory,
        log: LogFolder,
        *,
        role: str,
        origin: str,
        keys: LedgerKeys,
        positions: bool,
    ) -> None:
        self.log = log
        self._memory = memory
        self._role = role
        self._origin = origin
        self._keys = keys
        self._positions = positions

    def open(self) -> Open:
        """Find the log as it was left, and put its checkpoint file in order after a crash.

        Raises:
            LedgerDamagedError: it is not as it was left.
            LedgerError: its folder cannot be used.
            AuditMemoryError: the memory did not answer.
        """
        note, filed = self._memory.sealed(self._role), self.log.checkpoint()
        with self._damage():
            if note is None:
                if filed is not None:
                    raise LedgerDamagedError("it has a checkpoint, of which the memory knows none")
                return Open()
            checkpoint = self._verified(note)
            edge = Edge.read(self.log, checkpoint.size, positions=self._positions)
            if edge.frontier.root() != checkpoint.root:
                raise LedgerDamagedError("its tiles do not make up the root that was signed")
            up_to_date = filed is not None and self._is_newest(filed, note, checkpoint)
        if not up_to_date:  # a crash between swap and file
            self.log.put_checkpoint(note)
        return Open(note, edge)

    def is_signed(self, note: bytes) -> bool:
        """Whether each of the signers has signed that checkpoint, which is verified."""
        signed = {signature.key for signature in Note.parse(note).signatures}
        verifiers = (signer.verifier for signer in self._keys.signers_of(self._origin))
        return all((key.name, key.key_id) in signed for key in verifiers)

    def sign_anew(self, opened: Open) -> Open:
        """Have all signers sign the newest checkpoint, where one has not; of the same tree.

        That is how a log to which nothing is added is carried over to a new key. A crash between
        swap and file is put right by :meth:`open`, one before it by the next who calls this.

        Raises: as :meth:`append`.
        """
        if opened.note is None or self.is_signed(opened.note):
            return opened
        return self._commit(opened, opened.edge, None)

    def tidy(self, opened: Open) -> None:
        """Remove what a crash may have left, once, before anything is sealed.

        Raises:
            LedgerError: the disk does not let go of it.
        """
        self.log.drop_unnamed()
        self.log.tidy(list(new_tiles(max(0, opened.edge.size - MOST), opened.edge.size)))

    def begin(self) -> Open:
        """Sign the empty tree of a log that has no checkpoint, so that it has one before any entry.

        A crash between swap and file is put right by :meth:`open`.

        Raises: as :meth:`append`.
        """
        return self._commit(Open(), Edge(), None)

    def append(self, opened: Open, entries: Sequence[bytes], positions: Sequence[str] = ()) -> Open:
        """Seal entries, at most :data:`MOST`.

        Args:
            opened: the log as it is.
            entries: what comes next, 1 or more.
            positions: where the memory has them.

        Raises:
            LedgerRaceError: somebody else has sealed some of them.
            LedgerError: an entry is too large, or the folder cannot be used.
            AuditMemoryError: the memory did not answer; whether it was sealed, :meth:`open` finds
                out.
        """
        growth = opened.edge.extend(entries, positions)
        self._write(opened, growth)
        grown = self._commit(opened, growth.edge, positions[-1] if positions else None)
        self.log.tidy([tile for tile, _ in growth.tiles])
        return grown

    def insist_on(self, opened: Open) -> None:
        """See to it that nobody has sealed more since the log was opened.

        Raises:
            LedgerRaceError: somebody has.
            AuditMemoryError: the memory did not answer.
        """
        if self._memory.sealed(self._role) != opened.note:
            raise self._race()

    # --- inside -------------------------------------------------------------------------------

    def _verified(self, note: bytes) -> Checkpoint:
        keys = self._keys.verifiers_of(self._origin)
        return open_checkpoint(note, self._origin, keys).checkpoint

    def _is_newest(self, filed: bytes, note: bytes, newest: Checkpoint) -> bool:
        """Whether the checkpoint in the file is the memory's, and not one before it.

        One before it may be of the same tree, with the signatures of fewer keys.
        """
        checkpoint = self._verified(filed)
        if checkpoint.size > newest.size:
            raise LedgerDamagedError("the memory was rolled back: its checkpoint is an older one")
        found = root(checkpoint.size, self.log.tiles.node_reader(newest.size))
        if found != checkpoint.root:
            raise LedgerDamagedError("memory and folder have checkpoints of two different trees")
        return filed == note

    def _write(self, opened: Open, growth: Growth) -> None:
        try:
            self.log.grow(growth.tiles, growth.positions)
        except TileConflictError:
            if self._memory.sealed(self._role) != opened.note:
                raise self._race() from None
            if opened.note is None and self._positions:
                with self._damage():  # nothing says how far a checkpoint went that was once there
                    raise
            # Of a crash whose rows the memory has lost since, before anything covered them.
            self.log.grow(growth.tiles, growth.positions, replace=True)

    def _commit(self, opened: Open, edge: Edge, position: str | None) -> Open:
        """Sign the tree up to that edge; from the swap on it is the log's."""
        checkpoint = Checkpoint(self._origin, edge.size, edge.frontier.root())
        note = checkpoint.sign(*self._keys.signers_of(self._origin)).to_bytes()
        self._swap(opened.note, note, position)
        self.log.put_checkpoint(note)
        return Open(note, edge)

    def _swap(self, old: bytes | None, new: bytes, position: str | None) -> None:
        if self._memory.swap_sealed(self._role, old, new, position):
            return
        if self._memory.sealed(self._role) != new:  # else a swap of ours whose reply was lost
            raise self._race()

    def _race(self) -> LedgerRaceError:
        return LedgerRaceError(
            f"somebody else seals {self.log.root} as well, and what they sealed stands; keepers of"
            " one memory share one folder (AUDIT_LEDGER_DIR)"
        )

    @contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except (LedgerDamagedError, NoteError, CheckpointError, TileError, ProofError) as error:
            raise LedgerDamagedError(
                f"the log {self.log.root} is not as it was left: {error}; nothing of it is sealed"
                " until that is put right, run `audit verify`"
            ) from error
