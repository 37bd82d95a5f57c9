"""The keys of a ledger: what signs its checkpoints, what verifies them, what hides its tenants.

They are lines of text, in a file that nobody else may read or in the setting itself::

    # white space around a line, empty lines, and lines that begin with # do not count
    PRIVATE+KEY+skill-host.invalid+aabbccdd+...     signs; the first is the newest
    PRIVATE+KEY+skill-host.invalid+eeff0011+...     signs too, while both overlap
    skill-host.invalid+22334455+...                 signed once, and verifies what it signed
    secret ...                                      base64, for the pseudonyms of the tenants

What is guaranteed: a damaged key is an error and stays as it is, no key is ever made in the place
of one; neither an error nor a repr shows anything of a secret; a file is never overwritten, and one
in which keys are rotated is replaced whole, or not at all.
"""

from __future__ import annotations

import contextlib
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from audit.errors import LedgerKeyError, NoteKeyError
from audit.keys import MIN_SECRET
from audit.ledger.durable import flush_folder, replace_file, write_file
from audit.ledger.note_key import SignerKey, VerifierKey
from audit.ledger.text import decode_base64, encode_base64, is_key_name

_PRIVATE: Final = "PRIVATE+KEY+"
_PSEUDONYMS: Final = "secret "
_OWNER_ONLY: Final = 0o600
_HELP: Final = "restore the keys of this ledger from their backup; none is made in their place"


@dataclass(frozen=True, slots=True)
class LedgerKeys:
    """The keys of one ledger.

    Attributes:
        signers: what signs; the first is the newest, and while keys are changed all of them sign.
        retired: public keys that have signed once.
        secret: makes the pseudonyms of the tenants; the same for as long as the ledger lives.

    Raises:
        LedgerKeyError: there is no signer, one key is there twice, or the secret is too short.
    """

    signers: tuple[SignerKey, ...]
    retired: tuple[VerifierKey, ...]
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not self.signers:
            raise LedgerKeyError(f"there is no line that begins with {_PRIVATE}: {_HELP}")
        if len(self.secret) < MIN_SECRET:
            raise LedgerKeyError(f"there is no secret of {MIN_SECRET} bytes or more: {_HELP}")
        if len({key.public_key for key in self.verifiers}) < len(self.verifiers):
            raise LedgerKeyError("one key is there twice: remove one of the lines")

    @property
    def verifiers(self) -> tuple[VerifierKey, ...]:
        """All that verifies, the newest first."""
        return (*(signer.verifier for signer in self.signers), *self.retired)

    def signers_of(self, origin: str) -> tuple[SignerKey, ...]:
        """The signers under the name of a log."""
        return tuple(signer.renamed(origin) for signer in self.signers)

    def verifiers_of(self, origin: str) -> tuple[VerifierKey, ...]:
        """The verifiers under the name of a log."""
        return tuple(verifier.renamed(origin) for verifier in self.verifiers)

    def rotated(self, *, random: Callable[[int], bytes] = secrets.token_bytes) -> LedgerKeys:
        """These keys with a new signer first.

        The one that was first goes on signing beside it; those behind it sign no longer, their
        secrets are gone, and they verify what they have signed.
        """
        newest, *older = self.signers
        made = SignerKey.generate(newest.name, random=random)
        retired = (*(signer.verifier for signer in older), *self.retired)
        return LedgerKeys((made, newest), retired, self.secret)

    def to_text(self) -> str:
        """The secret text; whoever writes it to a file lets nobody else read that."""
        keys = (*(key.to_text() for key in self.signers), *(key.to_text() for key in self.retired))
        return "".join(f"{line}\n" for line in (*keys, _PSEUDONYMS + encode_base64(self.secret)))

    @classmethod
    def generate(
        cls, name: str, *, random: Callable[[int], bytes] = secrets.token_bytes
    ) -> LedgerKeys:
        """Keys for a new ledger.

        Args:
            name: what the key is called where it stands by itself; ``audit_ledger_origin``.
            random: where that many secret bytes come from.

        Raises:
            LedgerKeyError: a key cannot have that name.
        """
        if not is_key_name(name):
            raise LedgerKeyError("a key takes a name without spaces, pluses and control characters")
        return cls((SignerKey.generate(name, random=random),), (), random(MIN_SECRET))

    @classmethod
    def parse(cls, text: str) -> LedgerKeys:
        """The keys of a text.

        Raises:
            LedgerKeyError: a line is malformed or damaged; the text says which, never what it has.
        """
        signers: list[SignerKey] = []
        retired: list[VerifierKey] = []
        found: list[bytes] = []
        for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
            fault = _take(line, signers, retired, found)
            if fault:
                raise LedgerKeyError(f"line {number} of the ledger's keys: {fault}; {_HELP}")
        if len(found) != 1:
            raise LedgerKeyError(f"there must be one secret, there are {len(found)}: {_HELP}")
        return cls(tuple(signers), tuple(retired), found[0])

    @classmethod
    def load(cls, text_or_path: str | None, origin: str | None = None) -> LedgerKeys:
        """The keys of the setting ``audit_ledger_keys``: their text, or the path of their file.

        Args:
            text_or_path: that setting.
            origin: what is to be signed or verified, ``audit_ledger_origin``. A key is known by its
                name: what another name has signed nobody could verify with the key handed out.

        Raises:
            LedgerKeyError: there are none, they are damaged, others may read the file, or a signer
                is named neither as the origin nor as what its path begins with.
        """
        if not text_or_path:
            raise LedgerKeyError(
                "the ledger has no keys: make them once, `audit keygen -o FILE`, keep a copy of"
                " that file, and set AUDIT_LEDGER_KEYS to its path"
            )
        if _PRIVATE in text_or_path or "\n" in text_or_path:
            keys = cls.parse(text_or_path)
        else:
            keys = cls.parse(_read(Path(text_or_path)))
        if origin is not None:
            keys.insist_on(origin)
        return keys

    def insist_on(self, origin: str) -> None:
        """Raise LedgerKeyError unless everything that signs is named for that origin."""
        for name in (signer.name for signer in self.signers):
            if not f"{origin}/".startswith(f"{name}/"):
                raise LedgerKeyError(
                    f"the ledger's key is named {name}, but its origin is {origin}: set"
                    f" AUDIT_LEDGER_ORIGIN (audit_ledger_origin) to {name}, or for a new ledger"
                    " make keys with that setting (`audit keygen`)"
                )


def _take(
    line: str, signers: list[SignerKey], retired: list[VerifierKey], found: list[bytes]
) -> str:
    """Put what a line holds where it belongs; what is wrong with it, if anything."""
    try:
        if line.startswith(_PRIVATE):
            signers.append(SignerKey.parse(line))
        elif line.startswith(_PSEUDONYMS):
            secret = decode_base64(line.removeprefix(_PSEUDONYMS).strip())
            if secret is None:
                return "the secret is damaged, it is no base64"
            found.append(secret)
        elif line and not line.startswith("#"):
            retired.append(VerifierKey.parse(line))
    except NoteKeyError as error:
        return str(error)
    return ""


def _read(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        content = path.read_bytes()
    except OSError as error:
        fault = str(error.strerror)
    else:
        if not stat.S_ISREG(mode) or stat.S_IMODE(mode) & 0o077:
            raise LedgerKeyError(
                "others may read the file of AUDIT_LEDGER_KEYS: `chmod 600` it, and rotate the keys"
                " if others may have (`audit keygen --rotate FILE`)"
            )
        with contextlib.suppress(UnicodeDecodeError):
            return content.decode()
        fault = "it is no text"
    # Not its name: a secret may have been set in the place of a path.
    raise LedgerKeyError(f"the file of AUDIT_LEDGER_KEYS cannot be read: {fault}; {_HELP}")


def write_new(keys: LedgerKeys, path: Path) -> None:
    """Write keys to a new file that only its owner may read.

    Raises:
        LedgerKeyError: there is a file already, which was left alone, or the disk does not take it.
    """
    try:
        write_file(path, keys.to_text().encode(), mode=_OWNER_ONLY)
        flush_folder(path.parent)
    except FileExistsError:
        raise LedgerKeyError(
            "there is a file of that name, and keys are never overwritten: name another, or rotate"
            " the keys in it with --rotate"
        ) from None
    except OSError as error:
        raise LedgerKeyError(f"the keys cannot be written there: {error.strerror}") from error


def rotate_file(path: Path, *, random: Callable[[int], bytes] = secrets.token_bytes) -> LedgerKeys:
    """Put a new signer first in a file of keys (:meth:`LedgerKeys.rotated`), and return its keys.

    Raises:
        LedgerKeyError: the keys in it are damaged or open to others, or the disk does not take the
            new ones; the file was left as it is.
    """
    keys = LedgerKeys.parse(_read(path)).rotated(random=random)
    try:
        replace_file(path, keys.to_text().encode(), mode=_OWNER_ONLY)
    except OSError as error:
        raise LedgerKeyError(f"the keys cannot be written there: {error.strerror}") from error
    return keys
