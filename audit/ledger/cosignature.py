"""The cosignature of a witness: ``cosignature/v1`` of C2SP tlog-cosignature.

By signing so, a witness says: at this time, this was the largest tree that I have seen of the log,
and it had grown from every one that I had seen before. What it signs is two lines of its own in
front of the checkpoint's text, so that no signature of a log can be taken for one of a witness.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from audit.ledger.merkle import MAX_SIZE

_TIMESTAMPED: Final = struct.Struct(">Q64s")


@dataclass(frozen=True, slots=True)
class Cosignature:
    """A ``timestamped_signature``.

    Attributes:
        timestamp: when the witness signed, in seconds since 1970-01-01 UTC.
        signature: of :func:`message`, Ed25519, 64 bytes.
    """

    timestamp: int
    signature: bytes

    def to_bytes(self) -> bytes:
        return _TIMESTAMPED.pack(self.timestamp, self.signature)

    @classmethod
    def parse(cls, raw: bytes) -> Cosignature | None:
        """What a signature line of a note holds behind the key id; ``None`` if it is none."""
        if len(raw) != _TIMESTAMPED.size:
            return None
        timestamp, signature = _TIMESTAMPED.unpack(raw)
        return cls(timestamp, signature) if timestamp <= MAX_SIZE else None


def message(timestamp: int, text: bytes) -> bytes:
    """What the witness signs: two lines in front of the note's text."""
    return b"cosignature/v1\ntime %d\n%b" % (timestamp, text)
