"""The checkpoint of C2SP tlog-checkpoint: which tree a log has, signed as a note.

Its text is three lines: the origin, which says of which log; the number of leaves; the root hash in
base64. Lines beyond those are read and kept, as the specification asks, and never signed here.

What is guaranteed: :func:`open_checkpoint` returns only what a key of the log itself has signed,
for the origin that was asked for; a witness's cosignature alone is not enough. An origin names no
tenant: it holds a pseudonym that nobody can compute without the secret.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from audit.errors import CheckpointError, NoteKeyError, NoteSignatureError
from audit.keys import MIN_SECRET
from audit.ledger.cosignature import Cosignature
from audit.ledger.merkle import HASH_SIZE, MAX_SIZE
from audit.ledger.note import Note, OpenedNote, open_note, sign_note
from audit.ledger.note_key import Algorithm, SignerKey, VerifierKey
from audit.ledger.text import decode_base64, decode_decimal, encode_base64, is_key_name

#: Entries that one checkpoint adds to the one before it at most.
MOST: Final = 10_000
#: Of the HMAC's 64 hex digits; 128 bits keep tenants apart by any measure.
_PSEUDONYM_DIGITS: Final = 32
_PURPOSE: Final = b"audit-ledger-origin-1:"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A tree of a log, of which nobody has said yet that it is one.

    Attributes:
        origin: of which log.
        size: how many leaves the tree has.
        root: its Merkle tree hash, 32 bytes.
        extensions: further lines of the text, which mean nothing here.

    Raises:
        CheckpointError: there is no checkpoint of those.
    """

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not all(_is_line(line) for line in (self.origin, *self.extensions)):
            raise CheckpointError("origin and extensions of a checkpoint are lines, none empty")
        if not 0 <= self.size <= MAX_SIZE:
            raise CheckpointError(f"the tree of a checkpoint has 0 to {MAX_SIZE} leaves")
        if len(self.root) != HASH_SIZE:
            raise CheckpointError(f"the root of a checkpoint has {HASH_SIZE} bytes")

    def to_text(self) -> str:
        lines = (self.origin, str(self.size), encode_base64(self.root), *self.extensions)
        return "".join(f"{line}\n" for line in lines)

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """The checkpoint of a note's text.

        Raises:
            CheckpointError: it is none.
        """
        lines = text.split("\n")
        if len(lines) < 4 or lines.pop() != "":
            raise CheckpointError("a checkpoint has three lines or more, each with its newline")
        size, root = decode_decimal(lines[1]), decode_base64(lines[2])
        if size is None or root is None:
            raise CheckpointError("a checkpoint's size is a decimal, its root is base64")
        return cls(lines[0], size, root, tuple(lines[3:]))

    def sign(self, *signers: SignerKey) -> Note:
        """The signed checkpoint, one line for each signer.

        Raises:
            CheckpointError: it has extension lines, which nobody could audit.
            NoteError: there is no signer.
        """
        if self.extensions:
            raise CheckpointError("a checkpoint with extension lines is not signed here")
        return sign_note(self.to_text(), *signers)


@dataclass(frozen=True, slots=True)
class Cosigned:
    """That a witness has seen a checkpoint, and when, in seconds since 1970-01-01 UTC."""

    witness: VerifierKey
    timestamp: int


@dataclass(frozen=True, slots=True)
class OpenedCheckpoint:
    """A checkpoint that its log has signed.

    Attributes:
        checkpoint: what was signed.
        note: the whole of it, with the lines of unknown keys.
        signed_by: the known keys of the log that did.
        cosigned: the known witnesses that did, in the order of their lines.
    """

    checkpoint: Checkpoint
    note: Note
    signed_by: tuple[VerifierKey, ...]
    cosigned: tuple[Cosigned, ...]


def open_checkpoint(
    raw: bytes,
    origin: str,
    log_keys: Iterable[VerifierKey],
    witnesses: Iterable[VerifierKey] = (),
) -> OpenedCheckpoint:
    """Parse a signed checkpoint and verify every signature of a known key.

    Args:
        raw: the signed note.
        origin: of which log it has to be.
        log_keys: the keys that the log may have signed with; several while they are changed.
        witnesses: cosignature keys that may have signed as well.

    Raises:
        NoteError: this is no note, or a known key's signature does not hold.
        NoteSignatureError: no key of the log has signed.
        NoteKeyError: a witness's key stands among those of the log, or the other way round.
        CheckpointError: it is no checkpoint, or that of another log.
    """
    logs = _of_kind(Algorithm.ED25519, log_keys)
    cosigners = _of_kind(Algorithm.COSIGNATURE, witnesses)
    opened = open_note(raw, [*logs, *cosigners])
    signed = {signature.key for signature in opened.signatures}
    signed_by = tuple(key for key in logs if (key.name, key.key_id) in signed)
    if not signed_by:
        raise NoteSignatureError("witnesses have signed the checkpoint, but no key of the log has")
    checkpoint = Checkpoint.parse(opened.text)
    if checkpoint.origin != origin:
        raise CheckpointError(f"the checkpoint is of the log {checkpoint.origin}, not of {origin}")
    return OpenedCheckpoint(checkpoint, opened.note, signed_by, _cosigned(opened, cosigners))


def _of_kind(kind: Algorithm, keys: Iterable[VerifierKey]) -> list[VerifierKey]:
    """The keys; one that could never verify anything in this place is a mistake."""
    listed = list(keys)
    for key in listed:
        if key.algorithm is not kind:
            raise NoteKeyError(
                f"{key.name} has a key of the kind {key.algorithm.name} where one of"
                f" the kind {kind.name} is needed"
            )
    return listed


def _cosigned(opened: OpenedNote, cosigners: list[VerifierKey]) -> tuple[Cosigned, ...]:
    by_id = {(key.name, key.key_id): key for key in cosigners}
    return tuple(
        Cosigned(by_id[signature.key], cosignature.timestamp)
        for signature in opened.signatures
        if signature.key in by_id
        and (cosignature := Cosignature.parse(signature.signature)) is not None
    )


def origin_of(prefix: str, tenant_id: str, secret: bytes) -> str:
    """The origin of a tenant's log: the prefix and a pseudonym, HMAC-SHA256 of the tenant's id.

    Args:
        prefix: what all logs of this ledger begin with, ``audit_ledger_origin``.
        tenant_id: whose log.
        secret: without it nobody can tell which tenant it is, and whether two logs are of one.

    Raises:
        CheckpointError: the prefix cannot begin an origin, or the secret is too short.
    """
    if not is_key_name(prefix) or prefix.endswith("/"):
        raise CheckpointError(
            "the origin of the ledger is a URL without its scheme: no spaces, no plus, no slash"
            " at its end"
        )
    if len(secret) < MIN_SECRET:
        raise CheckpointError(f"the secret of the origins takes at least {MIN_SECRET} bytes")
    pseudonym = hmac.digest(secret, _PURPOSE + tenant_id.encode(), "sha256").hex()
    return f"{prefix}/{pseudonym[:_PSEUDONYM_DIGITS]}"


def _is_line(text: str) -> bool:
    return bool(text) and not any(character < " " for character in text)
