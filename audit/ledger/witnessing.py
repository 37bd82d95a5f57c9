"""Cosignatures for the meta log: its newest checkpoint is shown to every witness.

What the witnesses sign is kept beside the checkpoint, in ``meta/checkpoint.cosigned``: the newest
checkpoint that at least one of them has cosigned, with the log's own signatures first. Whoever
serves the meta log to clients that insist on witnesses serves that file as ``checkpoint``; the
sealer goes on at its own pace beside it, and every tile of the cosigned tree stays.

What is guaranteed: only verified signatures get into the file, a smaller tree never takes the place
of a larger one, and sealing never waits: :meth:`Witnessing.poke` only begins. A witness that does
not answer holds up no other. One that has seen another tree is an alarm (sev-1).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from audit import metrics
from audit.errors import (
    CheckpointError,
    LedgerDamagedError,
    LedgerError,
    NoteError,
    WitnessError,
    WitnessRefusalError,
)
from audit.ledger.background import Background
from audit.ledger.checkpoint import OpenedCheckpoint, open_checkpoint
from audit.ledger.folder import META, LedgerFolder
from audit.ledger.keys import LedgerKeys
from audit.ledger.merkle import consistency_proof
from audit.ledger.note import Note, Signature
from audit.ledger.note_key import VerifierKey
from audit.ledger.witness import SECONDS, Witness

logger: Final = logging.getLogger("audit")

#: Seconds between two times that the witnesses are asked.
EVERY: Final = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WitnessRound:
    """What came of asking once.

    Attributes:
        size: of the tree that was to be cosigned.
        cosigned: the witnesses that have, by name; those too that had before.
        faults: what is wrong with each of the others, by name.
    """

    size: int
    cosigned: frozenset[str]
    faults: dict[str, LedgerError]


def witnesses_of(pairs: Iterable[tuple[str, str]]) -> tuple[Witness, ...]:
    """The witnesses of the setting ``audit_ledger_witnesses``: of each the URL and the key's text.

    Raises:
        NoteKeyError: a key is damaged, or is none of a witness.
        WitnessError: a URL is none, or two have one name.
    """
    found = tuple(Witness(url, VerifierKey.parse(vkey)) for url, vkey in pairs)
    if len({witness.name for witness in found}) < len(found):
        raise WitnessError("two witnesses have one name: remove one of audit_ledger_witnesses")
    return found


class Witnessing:
    """Has the meta log of a ledger cosigned.

    Args:
        folder: the ledger's.
        witnesses: whom to ask.
        origin: what the origins of its logs begin with.
        load_keys: reads the keys that verify the log's own checkpoint.
        every: seconds between two times (:meth:`poke`).
        seconds: what each witness may take.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        folder: LedgerFolder,
        witnesses: Sequence[Witness],
        *,
        origin: str,
        load_keys: Callable[[], LedgerKeys],
        every: float = EVERY,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._meta = folder.log(META)
        self._witnesses = witnesses
        self._origin = f"{origin}/{META}"
        self._load_keys = load_keys
        self._seconds = seconds
        self._background = Background("witnessing", self._watch, every, clock)
        self._told: dict[str, str] = {}

    def poke(self) -> bool:
        """Begin to ask, if it is time and nobody is being asked; never waits, never raises."""
        return bool(self._witnesses) and self._background.poke()

    def round(self) -> WitnessRound | None:
        """Ask those who have not cosigned the newest checkpoint; ``None``: it covers nothing yet.

        Raises:
            LedgerDamagedError: witnesses have seen a larger tree than there is.
        LedgerError: the meta log cannot be read, or its newest checkpoint is not its own.
        """
        opened = self._opened(self._meta.checkpoint())
        if opened is None:
            return None
        kept = self._kept()
        if kept is not None and self._is_behind(kept):
            raise LedgerDamagedError(
                f"the meta log was rolled back: it has {opened.checkpoint.size} leaves, and"
                f" witnesses have seen {kept.checkpoint.size}; run `audit verify`"
            )
        if not opened.checkpoint.size:
            return None  # begun, and without entries: there is nothing to speak for
        lines, faults = self._ask(opened, kept)
        if lines:
            self._keep(opened, lines)
        self._forgive(opened, faults)
        faulty = frozenset(faults)
        names = frozenset(witness.name for witness in self._witnesses)
        return WitnessRound(size=opened.checkpoint.size, cosigned=names - faulty, faults=faults)

    # --- asking -------------------------------------------------------------------------------

    def _ask(
        self, opened: OpenedCheckpoint, kept: OpenedCheckpoint | None
    ) -> tuple[list[Signature], dict[str, LedgerError]]:
        """Side by side, each in a thread that the end of the process does not wait for."""
        lines: list[Signature] = []
        faults: dict[str, LedgerError] = {}
        size = opened.checkpoint.size

        def ask(witness: Witness, old: int) -> None:
            try:
                node = self._meta.tiles.node_reader(size)
                prove = lambda seen: consistency_proof(seen, size, node)  # noqa: E731
                lines.append(witness.cosign(opened, old, prove, seconds=self._seconds))
            except LedgerError as error:
                faults[witness.name] = error

        threads = [
            threading.Thread(target=ask, args=(witness, old), daemon=True)
            for witness in self._witnesses
            if (old := _seen(witness, opened, kept)) is not None
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return lines, faults

    def _forgive(self, opened: OpenedCheckpoint, faults: dict[str, LedgerError]) -> None:
        """A larger tree is none that was cut off here if, by now, there is one as large.

        Another keeper may lead since, and ask as well.
        """
        for name, error in faults.items():
            if isinstance(error, WitnessRefusalError) and error.disagrees:
                size = opened.checkpoint.size
                if error.seen is not None and error.seen > size and error.seen <= self._size():
                    faults[name] = WitnessRefusalError(str(error), seen=error.seen)

    def _is_behind(self, kept: OpenedCheckpoint) -> bool:
        """Looked at once more, for both files may have been replaced meanwhile."""
        return kept.checkpoint.size > self._size()

    def _size(self) -> int:
        newest = self._opened(self._meta.checkpoint())
        return 0 if newest is None else newest.checkpoint.size

    # --- what is kept -------------------------------------------------------------------------

    def _opened(self, raw: bytes | None) -> OpenedCheckpoint | None:
        if raw is None:
            return None
        log_keys = self._load_keys().verifiers_of(self._origin)
        keys = [witness.key for witness in self._witnesses]
        return open_checkpoint(raw, self._origin, log_keys, keys)

    def _kept(self) -> OpenedCheckpoint | None:
        try:
            return self._opened(self._meta.cosigned())
        except (NoteError, CheckpointError) as error:
            logger.error("checkpoint.cosigned is damaged and is made anew: %s", error)
            return None

    def _keep(self, opened: OpenedCheckpoint, lines: Sequence[Signature]) -> None:
        kept = self._kept()  # once more: another keeper may have been here meanwhile
        if kept is not None and kept.checkpoint.size > opened.checkpoint.size:
            return
        same = kept is not None and kept.checkpoint == opened.checkpoint
        note: Note = kept.note if same and kept is not None else opened.note
        self._meta.put_cosigned(note.adding(*lines).to_bytes())

    # --- in the background --------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            did = self.round()
            faults = did.faults if did else {}
        except LedgerError as error:
            faults = {META: error}
        metrics.witnessed(failing=len(faults))
        self._tell(faults)

    def _tell(self, faults: dict[str, LedgerError]) -> None:
        """Each fault once, for as long as it lasts."""
        for name, error in faults.items():
            if self._told.get(name) == str(error):
                continue
            damaged = isinstance(error, LedgerDamagedError)
            if damaged or (isinstance(error, WitnessRefusalError) and error.disagrees):
                logger.critical("the ledger may be damaged: %s", error, extra={"severity": "sev-1"})
            else:
                logger.error("not cosigned: %s", error, extra={"severity": "sev-2"})
        self._told = {name: str(error) for name, error in faults.items()}


def _seen(witness: Witness, opened: OpenedCheckpoint, kept: OpenedCheckpoint | None) -> int | None:
    """The size that a witness has seen last, as far as is known here; ``None``: this very one."""
    if kept is None or witness.key not in {cosigned.witness for cosigned in kept.cosigned}:
        return 0
    return None if kept.checkpoint == opened.checkpoint else kept.checkpoint.size
