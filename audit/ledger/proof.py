"""The proof of C2SP tlog-proof: one text that shows, offline, that an entry is in a log.

It holds the place of the entry, its audit path and a signed checkpoint. Whoever has the entry, the
origin and the log's verifier key needs nothing else, and no access to the log.

What is guaranteed: a proof has one form in bytes, so what was parsed is written back byte for byte;
whatever else a stranger hands in is a :class:`~audit.errors.LedgerError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from audit.errors import ProofError
from audit.ledger.checkpoint import OpenedCheckpoint, open_checkpoint
from audit.ledger.merkle import HASH_SIZE, MAX_SIZE, leaf_hash, verify_inclusion
from audit.ledger.note import MAX_BYTES, Note
from audit.ledger.note_key import VerifierKey
from audit.ledger.text import decode_base64, decode_decimal, encode_base64

#: How such files are named.
SUFFIX: Final = ".tlog-proof"

_HEADER: Final = "c2sp.org/tlog-proof@v1"
_EXTRA: Final = "extra "
_INDEX: Final = "index "


@dataclass(frozen=True, slots=True)
class TlogProof:
    """A proof of inclusion, not verified yet.

    Attributes:
        index: the place of the entry in the log, from 0.
        path: its audit path, from the leaf's sibling upward.
        checkpoint: the signed checkpoint.
        extra: whatever the prover adds; nobody vouches for it.

    Raises:
        ProofError: there is no proof of those.
    """

    index: int
    path: tuple[bytes, ...]
    checkpoint: Note
    extra: bytes = b""

    def __post_init__(self) -> None:
        if not 0 <= self.index <= MAX_SIZE:
            raise ProofError(f"the index of a proof is 0 to {MAX_SIZE}")
        if len(self.path) > MAX_SIZE.bit_length() or any(len(h) != HASH_SIZE for h in self.path):
            raise ProofError(f"a proof has at most {MAX_SIZE.bit_length()} hashes, 32 bytes each")

    def to_bytes(self) -> bytes:
        lines = [_HEADER]
        if self.extra:
            lines.append(_EXTRA + encode_base64(self.extra))
        lines.append(f"{_INDEX}{self.index}")
        lines.extend(encode_base64(sibling) for sibling in self.path)
        return "".join(f"{line}\n" for line in lines).encode() + b"\n" + self.checkpoint.to_bytes()

    @classmethod
    def parse(cls, raw: bytes) -> TlogProof:
        """The proof of those bytes, nothing of it verified.

        Raises:
            ProofError: they are none.
            NoteError: the checkpoint in them is no signed note.
        """
        head, blank, note = raw.partition(b"\n\n")
        if not blank or len(raw) > 2 * MAX_BYTES or not head.isascii():
            raise ProofError("a proof is a few lines, a blank one, and a checkpoint")
        lines = head.decode("ascii").split("\n")
        if lines.pop(0) != _HEADER:
            raise ProofError(f"a proof begins with {_HEADER}")
        extra = _extra(lines.pop(0)) if lines and lines[0].startswith(_EXTRA) else b""
        index = _index(lines.pop(0) if lines else "")
        return cls(index, tuple(_sibling(line) for line in lines), Note.parse(note), extra)

    def verify(
        self,
        entry: bytes,
        origin: str,
        log_keys: Iterable[VerifierKey],
        witnesses: Iterable[VerifierKey] = (),
    ) -> OpenedCheckpoint:
        """Hold the proof against the entry and the keys that the reader trusts.

        Args:
            entry: the bytes of the row.
            origin: of which log it has to be.
            log_keys: the keys of the log.
            witnesses: the keys of witnesses; how many must have signed is up to the reader.

        Returns:
            the checkpoint, with who has signed and cosigned it.

        Raises:
            ProofError: the entry is not at that place of the tree.
            NoteError: a known key's signature does not hold, or no key of the log has signed.
            CheckpointError: the checkpoint is malformed or of another log.
        """
        opened = open_checkpoint(self.checkpoint.to_bytes(), origin, log_keys, witnesses)
        tree = opened.checkpoint
        verify_inclusion(leaf_hash(entry), self.index, tree.size, self.path, tree.root)
        return opened


def _extra(line: str) -> bytes:
    extra = decode_base64(line.removeprefix(_EXTRA))
    if not extra:
        raise ProofError("the extra data of a proof is base64")
    return extra


def _index(line: str) -> int:
    index = decode_decimal(line.removeprefix(_INDEX))
    if not line.startswith(_INDEX) or index is None:
        raise ProofError("a proof has a line with the index of the entry, a decimal")
    return index


def _sibling(line: str) -> bytes:
    sibling = decode_base64(line)
    if sibling is None:
        raise ProofError("the hashes of a proof are base64")
    return sibling
