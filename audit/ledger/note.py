"""The signed note of C2SP signed-note: a text, a blank line, and one line for each signature.

What is guaranteed: a note has one form in bytes, so what was parsed is written back byte for byte;
:func:`open_note` returns only what a known key has signed; a known key's bad signature is refused
however many good ones stand beside it; lines of unknown keys are kept and count for nothing.

Limits: the specification leaves them to the reader; a note here has at most 1,000,000 bytes and
100 signatures, as in Go's ``sumdb/note`` and ``tlog``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from audit.errors import NoteError, NoteKeyError, NoteSignatureError
from audit.ledger.note_key import KEY_ID_SIZE, SignerKey, VerifierKey
from audit.ledger.text import decode_base64, encode_base64, is_key_name

MAX_BYTES: Final = 1_000_000
MAX_SIGNATURES: Final = 100

_DASH: Final = "\N{EM DASH} "


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature line.

    Attributes:
        name: of the key.
        key_id: of the key, 4 bytes.
        signature: what the key's algorithm has made, at least one byte.
    """

    name: str
    key_id: bytes
    signature: bytes

    def __post_init__(self) -> None:
        if not is_key_name(self.name) or len(self.key_id) != KEY_ID_SIZE or not self.signature:
            raise NoteError("a signature takes the name and the id of a key, and some bytes")

    @property
    def key(self) -> tuple[str, bytes]:
        """What identifies the key, and with it the algorithm."""
        return self.name, self.key_id

    def to_line(self) -> str:
        return f"{_DASH}{self.name} {encode_base64(self.key_id + self.signature)}\n"

    @classmethod
    def parse(cls, line: str) -> Signature:
        """The signature of a line without its newline."""
        name, _, base64 = line.removeprefix(_DASH).partition(" ")
        raw = decode_base64(base64)
        if not line.startswith(_DASH) or raw is None:
            raise NoteError("a signature line is: em dash, space, key name, space, base64")
        return cls(name, raw[:KEY_ID_SIZE], raw[KEY_ID_SIZE:])


@dataclass(frozen=True, slots=True)
class Note:
    """A text and its signatures, of which nobody has said yet that they hold.

    Attributes:
        text: ends in a newline, which is signed as well.
        signatures: in the order of their lines.

    Raises:
        NoteError: this is no note.
    """

    text: str
    signatures: tuple[Signature, ...]

    def __post_init__(self) -> None:
        if not _encode(self.text).endswith(b"\n"):
            raise NoteError("the text of a note ends in a newline")
        if any(character < " " and character != "\n" for character in self.text):
            raise NoteError("a note has no control characters but newlines")
        if not 1 <= len(self.signatures) <= MAX_SIGNATURES:
            raise NoteError(f"a note has 1 to {MAX_SIGNATURES} signatures")

    def to_bytes(self) -> bytes:
        lines = "".join(signature.to_line() for signature in self.signatures)
        return f"{self.text}\n{lines}".encode()

    @classmethod
    def parse(cls, raw: bytes) -> Note:
        """The note of those bytes, its signatures unverified.

        Raises:
            NoteError: they are none, or too many.
        """
        if len(raw) > MAX_BYTES:
            raise NoteError(f"a note has at most {MAX_BYTES:,} bytes")
        text, blank, lines = _decode(raw).rpartition("\n\n")
        if not blank or not lines.endswith("\n"):
            raise NoteError("a note is a text, a blank line, and signature lines")
        if lines.count("\n") > MAX_SIGNATURES:
            raise NoteError(f"a note has 1 to {MAX_SIGNATURES} signatures")
        signatures = [Signature.parse(line) for line in lines[:-1].split("\n")]
        return cls(text + "\n", tuple(signatures))

    def adding(self, *signatures: Signature) -> Note:
        """The note with more signatures; a key's new one takes the place of its old one."""
        added = {signature.key for signature in signatures}
        kept = [signature for signature in self.signatures if signature.key not in added]
        return Note(self.text, (*kept, *signatures))


@dataclass(frozen=True, slots=True)
class OpenedNote:
    """A note that at least one known key has signed, and whose known signatures all hold.

    Attributes:
        note: as it was read, the lines of unknown keys included.
        signatures: those of known keys.
    """

    note: Note
    signatures: tuple[Signature, ...]

    @property
    def text(self) -> str:
        return self.note.text


def sign_note(text: str, *signers: SignerKey) -> Note:
    """A text with one signature for each signer, in their order.

    Raises:
        NoteError: the text cannot be one of a note, or there is no signer.
    """
    message = _encode(text)
    return Note(text, tuple(Signature(s.name, s.key_id, s.sign(message)) for s in signers))


def open_note(raw: bytes, known: Iterable[VerifierKey]) -> OpenedNote:
    """Parse a note and verify the signature of every known key.

    Raises:
        NoteError: this is no note.
        NoteSignatureError: a known key's signature does not hold, or no known key has signed.
        NoteKeyError: two of the known keys have one name and one id.
    """
    note, keys = Note.parse(raw), _by_id(known)
    message = note.text.encode()
    verified = [signature for signature in note.signatures if signature.key in keys]
    for signature in verified:
        if not keys[signature.key].verify(message, signature.signature):
            raise NoteSignatureError(f"the signature of {_spell(signature)} does not hold")
    if not verified:
        raise NoteSignatureError(f"none of the known keys has signed the note: {_list(keys)}")
    return OpenedNote(note, tuple(verified))


def _by_id(known: Iterable[VerifierKey]) -> dict[tuple[str, bytes], VerifierKey]:
    keys: dict[tuple[str, bytes], VerifierKey] = {}
    for key in known:
        if keys.setdefault((key.name, key.key_id), key) != key:
            raise NoteKeyError("two of the known keys have one name and one id")
    return keys


def _spell(signature: Signature) -> str:
    return f"{signature.name}+{signature.key_id.hex()}"


def _list(keys: Iterable[tuple[str, bytes]]) -> str:
    return ", ".join(f"{name}+{key_id.hex()}" for name, key_id in keys) or "there is none"


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise NoteError("a note is UTF-8") from error


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise NoteError("the text of a note has a UTF-8 form") from error
