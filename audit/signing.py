"""The proof of a context: a signature over all that a message says.

Whoever publishes signs with a key of ``audit_context_keys``; the worker verifies before it
dispatches. What is guaranteed:

* a signature holds for one serialized body and the headers around it: any of them altered, added or
  taken away, and it does not hold any more (:data:`UNSIGNED` names the few it does not cover);
* a key proves what it is allowed to prove, on both ends;
* whatever stands in the headers, the answer is a key's id or an
  :class:`~audit.errors.UnprovenContextError`, and no text repeats what stood there.

What is signed is ``audit-context-1:`` and a JSON array, so that no two claims share their bytes,
and none is the canonical form of a value, which may be hashed with the same secret. Decision 13.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from json import JSONEncoder
from operator import itemgetter
from typing import Any, Final

from audit.context import PERSONA_HEADER, TENANT_HEADER
from audit.errors import (
    ExpiredContextError,
    InvalidInvocationContext,
    UnprovenContextError,
)
from audit.keys import Key, KeyRing

#: The message header of the proof.
SIGNATURE_HEADER: Final = "audit_signature"

#: Headers that are not signed: the signature, and what comes to a message after it was signed.
#: kombu compresses a body as it sends it (what is signed is the body before), and marks what Redis
#: delivers again; nothing that a worker publishes follows from either.
UNSIGNED: Final = frozenset({SIGNATURE_HEADER, "compression", "redelivered"})
#: Nor are these: brokers count deliveries in them, and note where a message has been (``x-death``).
UNSIGNED_PREFIX: Final = "x-"

_ETA_HEADER: Final = "eta"
_SIGNATURE: Final = re.compile(
    r"1:(?P<key>[A-Za-z0-9._-]{1,64}):(?P<issued>0|[1-9][0-9]{0,11}):(?P<mac>[0-9a-f]{64})"
)
_PREFIX: Final = "audit-context-1:"
_spell: Final = JSONEncoder(separators=(",", ":"), check_circular=False).encode


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What a signature vouches for.

    Attributes:
        headers: all that the message has; a tuple in there is a list.
        content_type: how the body is to be read.
        content_encoding: likewise.
        body: the serialized message body: arguments, callbacks, errbacks, chain, chord.
    """

    headers: Mapping[str, Any]
    content_type: str | None
    content_encoding: str | None
    body: bytes

    @property
    def persona(self) -> str | None:
        """Who calls."""
        persona: str | None = self.headers.get(PERSONA_HEADER)
        return persona

    @property
    def tenant_id(self) -> str | None:
        """For whom."""
        tenant_id: str | None = self.headers.get(TENANT_HEADER)
        return tenant_id

    @property
    def eta(self) -> str | None:
        """Not to run before: ISO 8601; UTC where it names no zone."""
        eta: str | None = self.headers.get(_ETA_HEADER)
        return eta


def sign(keys: KeyRing, claim: Claim, now: float) -> str:
    """The value of :data:`SIGNATURE_HEADER`: ``1:<key id>:<issued at, unix seconds>:<64 hex>``.

    Raises:
        InvalidInvocationContext: no key may sign for this caller, or a part of the claim does
            not come out of a message as it went in.
    """
    if misfit := _misfit(claim):
        raise InvalidInvocationContext(f"{misfit} of the message cannot be signed: {_EXPECTED}")
    content = _content(claim)
    if content is None:
        raise InvalidInvocationContext(
            f"a header ({_unspeakable(claim.headers)}) of the message cannot be signed: {_JSON}"
        )
    key = keys.first_for(claim.tenant_id or "", claim.persona or "")
    if key is None:
        raise InvalidInvocationContext(
            "no key of audit_context_keys (or AUDIT_CONTEXT_KEYS) may sign for this tenant and"
            " persona: look at the tenants and personas of its keys"
        )
    issued = int(now)
    return f"1:{key.key_id}:{issued}:{_mac(key, issued, content)}"


def verify(keys: KeyRing, claim: Claim, header: object, now: float, max_age: float) -> str:
    """The id of the key that proves ``claim``.

    Args:
        keys: those that this host knows.
        claim: what the message says.
        header: its :data:`SIGNATURE_HEADER`, ``None`` without one.
        now: unix seconds.
        max_age: seconds that a signature holds, counted from when it was made, or from the ETA
            where that is later.

    Raises:
        ExpiredContextError: the proof is sound, and too old.
        UnprovenContextError: there is no proof, or it does not hold.
    """
    key, issued, mac = _parts(keys, header)
    if misfit := _misfit(claim):
        raise UnprovenContextError(f"{misfit} of the message was never signed: {_EXPECTED}")
    content = _content(claim)
    if content is None:
        raise UnprovenContextError(f"a header of the message was never signed: {_JSON}")
    if not hmac.compare_digest(mac, _mac(key, issued, content)):
        raise UnprovenContextError(
            "the signature is not of this message: it was altered, or sent again under another id"
        )
    if not key.allows(claim.tenant_id or "", claim.persona or ""):
        raise UnprovenContextError("the key of the signature is not for this tenant and persona")
    if now - max(issued, _moment(claim.eta)) > max_age:
        raise ExpiredContextError(
            f"signed more than {max_age:g} seconds (audit_context_max_age) ago, or before its ETA"
        )
    return key.key_id


_EXPECTED: Final = "texts must be text or none, the body bytes"
_JSON: Final = "names of headers must be text, their values JSON"
_NO_JSON: Final = (AttributeError, TypeError, ValueError, RecursionError)
_BY_NAME: Final = itemgetter(0)


def _misfit(claim: Claim) -> str | None:
    """The part that is of another type than its annotation: a message can hold anything."""
    headers: object = claim.headers
    if not isinstance(headers, Mapping):
        return "headers"
    for name in ("persona", "tenant_id", "eta", "content_type", "content_encoding"):
        value = getattr(claim, name)
        if value is not None and not isinstance(value, str):
            return name
    body: object = claim.body
    return None if isinstance(body, bytes) else "body"


def _content(claim: Claim) -> str | None:
    """What is signed beside key and time; ``None`` where a header has no JSON form."""
    try:
        headers = [
            pair
            for pair in claim.headers.items()
            if pair[0] not in UNSIGNED and not pair[0].startswith(UNSIGNED_PREFIX)
        ]
        headers.sort(key=_BY_NAME)
        digest = hashlib.sha256(claim.body).hexdigest()
        return _spell([claim.content_type, claim.content_encoding, digest, headers])
    except _NO_JSON:
        return None


def _unspeakable(headers: Mapping[str, Any]) -> str:
    """The name of a header that has no JSON form."""
    for name, value in headers.items():
        try:
            _spell(value)
        except _NO_JSON:
            return repr(name)
    return "its name"


def _mac(key: Key, issued: int, content: str) -> str:
    signed = f"{_PREFIX}[{_spell(key.key_id)},{issued},{content[1:]}"
    return hmac.digest(key.secret, signed.encode("ascii"), "sha256").hex()


def _parts(keys: KeyRing, header: object) -> tuple[Key, int, str]:
    if header is None:
        raise UnprovenContextError(
            "the message is not signed: its publisher needs a key (audit_context_keys)"
        )
    match = _SIGNATURE.fullmatch(header) if isinstance(header, str) else None
    if match is None:
        raise UnprovenContextError("the signature of the message is malformed")
    key = keys.find(match["key"])
    if key is None:
        raise UnprovenContextError(
            "the message is signed with a key that audit_context_keys of this host does not hold"
        )
    return key, int(match["issued"]), match["mac"]


def _moment(eta: str | None) -> float:
    """An ETA in unix seconds, 0 without one."""
    if eta is None:
        return 0.0
    try:
        moment = datetime.fromisoformat(eta)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        pass
    raise UnprovenContextError("the ETA of the message is no ISO 8601 time")
