"""The keys of C2SP signed-note, in the text form of Go's ``sumdb/note``.

A verifier key reads ``name+id+base64``, a signer key ``PRIVATE+KEY+name+id+base64``. The id is
recomputed from what follows it, so a key that lost or changed a character is refused. Two
algorithms: Ed25519 over the note's text (logs), and the timestamped one of witnesses.

What is guaranteed: neither an error nor a repr shows any part of a signer key's secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from audit.errors import NoteKeyError
from audit.ledger.cosignature import Cosignature, message
from audit.ledger.text import decode_base64, encode_base64, is_key_name

KEY_ID_SIZE: Final = 4
_KEY_SIZE: Final = 32
_PRIVATE: Final = "PRIVATE+KEY+"


class Algorithm(IntEnum):
    """The signature types that are known here, by the byte that C2SP signed-note assigns."""

    ED25519 = 0x01
    #: ``cosignature/v1`` of C2SP tlog-cosignature.
    COSIGNATURE = 0x04


def key_id(name: str, algorithm: Algorithm, public_key: bytes) -> bytes:
    """The four bytes by which signature lines name a key; an identifier, no fingerprint."""
    return sha256(name.encode() + b"\n" + bytes([algorithm]) + public_key).digest()[:KEY_ID_SIZE]


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """A public key under its name.

    Attributes:
        name: whose key it is, for a log its origin; a URL without its scheme.
        public_key: 32 bytes, Ed25519.
        algorithm: what it verifies.

    Raises:
        NoteKeyError: name or key cannot be one.
    """

    name: str
    public_key: bytes
    algorithm: Algorithm = Algorithm.ED25519
    key_id: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check(self.name, self.public_key)
        object.__setattr__(self, "key_id", key_id(self.name, self.algorithm, self.public_key))

    def verify(self, text: bytes, signature: bytes) -> bool:
        """Whether this key made the signature (without the key id) over a note's text."""
        if self.algorithm is Algorithm.COSIGNATURE:
            cosignature = Cosignature.parse(signature)
            if cosignature is None:
                return False
            text, signature = message(cosignature.timestamp, text), cosignature.signature
        try:
            Ed25519PublicKey.from_public_bytes(self.public_key).verify(signature, text)
        except (InvalidSignature, ValueError):
            return False
        return True

    def renamed(self, name: str) -> VerifierKey:
        """The same key under another name, which gives it another id."""
        return replace(self, name=name)

    def to_text(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{_material(self.algorithm, self.public_key)}"

    @classmethod
    def parse(cls, text: str) -> VerifierKey:
        """The key of a text; white space around it does not count.

        Raises:
            NoteKeyError: it is malformed, damaged, or of an unknown algorithm.
        """
        name, given_id, algorithm, public_key = _parse(text.strip(), "verifier")
        key = cls(name, public_key, algorithm)
        if key.key_id != given_id:
            raise NoteKeyError("the verifier key is damaged: its id does not fit the rest")
        return key


@dataclass(frozen=True, slots=True)
class SignerKey:
    """A private key of a log under its name.

    Attributes:
        name: as in the verifier key.
        seed: the 32 secret bytes of RFC 8032.

    Raises:
        NoteKeyError: name or seed cannot be one.
    """

    name: str
    seed: bytes = field(repr=False)
    verifier: VerifierKey = field(init=False)

    def __post_init__(self) -> None:
        _check(self.name, self.seed)
        public_key = Ed25519PrivateKey.from_private_bytes(self.seed).public_key()
        verifier = VerifierKey(self.name, public_key.public_bytes_raw())
        object.__setattr__(self, "verifier", verifier)

    @property
    def key_id(self) -> bytes:
        return self.verifier.key_id

    def sign(self, text: bytes) -> bytes:
        """The signature, 64 bytes, over a note's text."""
        return Ed25519PrivateKey.from_private_bytes(self.seed).sign(text)

    def renamed(self, name: str) -> SignerKey:
        """The same key under another name, which gives it another id."""
        return SignerKey(name, self.seed)

    def to_text(self) -> str:
        """The secret text; whoever writes it to a file lets nobody else read that."""
        material = _material(Algorithm.ED25519, self.seed)
        return f"{_PRIVATE}{self.name}+{self.key_id.hex()}+{material}"

    @classmethod
    def generate(
        cls, name: str, *, random: Callable[[int], bytes] = secrets.token_bytes
    ) -> SignerKey:
        """A new key.

        Args:
            name: whose it is.
            random: where that many secret bytes come from.
        """
        return cls(name, random(_KEY_SIZE))

    @classmethod
    def parse(cls, text: str) -> SignerKey:
        """The key of a text; white space around it does not count.

        Raises:
            NoteKeyError: it is malformed, damaged, or of an algorithm that does not sign here.
        """
        text = text.strip()
        if not text.startswith(_PRIVATE):
            raise NoteKeyError(f"a signer key begins with {_PRIVATE}")
        name, given_id, algorithm, seed = _parse(text.removeprefix(_PRIVATE), "signer")
        if algorithm is not Algorithm.ED25519:
            raise NoteKeyError("the signer key is for an algorithm that does not sign logs")
        key = cls(name, seed)
        if key.key_id != given_id:
            raise NoteKeyError("the signer key is damaged: its id does not fit the rest")
        return key


def _parse(text: str, what: str) -> tuple[str, bytes, Algorithm, bytes]:
    """Name, id, algorithm and key of ``name+id+base64``."""
    parts = text.split("+", 2)  # base64 may hold a plus as well
    if len(parts) != 3:
        raise NoteKeyError(f"a {what} key has a name, an id and a key, with a + between them")
    given_id, material = _decode_hex(parts[1]), decode_base64(parts[2])
    if given_id is None or material is None or len(material) != 1 + _KEY_SIZE:
        raise NoteKeyError(f"the {what} key is damaged: its id or its base64 is none")
    if material[0] not in set(Algorithm):
        raise NoteKeyError(f"the {what} key is of an unknown algorithm, {material[0]:#04x}")
    return parts[0], given_id, Algorithm(material[0]), material[1:]


def _decode_hex(text: str) -> bytes | None:
    if len(text) != 2 * KEY_ID_SIZE or not set(text) <= set("0123456789abcdef"):
        return None
    return bytes.fromhex(text)


def _check(name: str, key: bytes) -> None:
    if not is_key_name(name):
        raise NoteKeyError("a key takes a name without spaces, pluses and control characters")
    if len(key) != _KEY_SIZE:
        raise NoteKeyError(f"an Ed25519 key takes {_KEY_SIZE} bytes")


def _material(algorithm: Algorithm, key: bytes) -> str:
    return encode_base64(bytes([algorithm]) + key)
