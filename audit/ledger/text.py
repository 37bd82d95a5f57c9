"""What the C2SP texts share: base64 with one spelling, decimals with one spelling, key names.

A value has exactly one text here, so that nobody can alter a stored text and keep its meaning.
Nothing in here raises: ``None`` says that a text is none of these, and the caller, who knows what
it was meant to be, raises its own error, which then holds no text that may be a secret.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from typing import Final

from audit.ledger.merkle import MAX_SIZE

_DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,18}")


def encode_base64(value: bytes) -> str:
    """RFC 4648, section 4, with padding."""
    return b64encode(value).decode("ascii")


def decode_base64(text: str) -> bytes | None:
    """The bytes of a text that :func:`encode_base64` could have written."""
    try:
        value = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return value if encode_base64(value) == text else None


def decode_decimal(text: str) -> int | None:
    """A count or an index: ASCII digits without leading zeroes, 0 to 2^63 - 1."""
    if _DECIMAL.fullmatch(text) is None or (value := int(text)) > MAX_SIZE:
        return None
    return value


def is_key_name(text: str) -> bool:
    """Whether C2SP signed-note allows a key of that name: no spaces, no plus, no controls."""
    return bool(text) and not any(
        character < " "
        or character == "+"
        or character.isspace()
        or "\ud800" <= character < "\ue000"
        for character in text
    )
