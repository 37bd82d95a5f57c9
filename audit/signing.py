"""The proof of a context: a signature over who calls, what is called, and what is sent.

Whoever publishes signs with a key of ``audit_context_keys``; the worker verifies before it
dispatches. What is guaranteed:

* a signature holds for one task id, one skill, one caller, one attempt and one serialized body: any
  of them altered, or the whole of it under another id, and it does not hold any more;
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
from dataclasses import dataclass
from datetime import UTC, datetime
from json import JSONEncoder
from typing import Final

from audit.errors import (
    ExpiredContextError,
    InvalidInvocationContext,
    UnprovenContextError,
)
from audit.keys import Key, KeyRing

#: The message header of the proof.
SIGNATURE_HEADER: Final = "audit_signature"

_SIGNATURE: Final = re.compile(
    r"1:(?P<key>[A-Za-z0-9._-]{1,64}):(?P<issued>0|[1-9][0-9]{0,11}):(?P<mac>[0-9a-f]{64})"
)
_PREFIX: Final = "audit-context-1:"
_TEXTS: Final = (
    "task_id",
    "skill_id",
    "persona",
    "tenant_id",
    "trace_id",
    "parent_request_id",
    "on_behalf_of",
    "group_id",
    "eta",
    "content_type",
    "content_encoding",
)
_MAX_ATTEMPT: Final = 2**31 - 1
_spell: Final = JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What a signature vouches for; ``None`` where the message does not say.

    Attributes:
        task_id: Celery's id of the message.
        skill_id: the Celery name of the task.
        persona: who calls.
        tenant_id: for whom.
        trace_id: in which W3C trace.
        parent_request_id: the invocation that publishes.
        on_behalf_of: the human behind the persona.
        group_id: the group whose results a chord's body gets.
        attempt: Celery's ``retries``.
        eta: not to run before, as the message has it: ISO 8601; UTC where it names no zone.
        content_type: how the body is to be read.
        content_encoding: likewise.
        body: the serialized message body: arguments, callbacks, errbacks, chain, chord.
    """

    task_id: str | None
    skill_id: str | None
    persona: str | None
    tenant_id: str | None
    trace_id: str | None
    parent_request_id: str | None
    on_behalf_of: str | None
    group_id: str | None
    attempt: int
    eta: str | None
    content_type: str | None
    content_encoding: str | None
    body: bytes


def sign(keys: KeyRing, claim: Claim, now: float) -> str:
    """The value of :data:`SIGNATURE_HEADER`: ``1:<key id>:<issued at, unix seconds>:<64 hex>``.

    Raises:
        InvalidInvocationContext: no key may sign for this caller, or a part of the claim is of a
            type that does not come out of a message as it went in.
    """
    if misfit := _misfit(claim):
        raise InvalidInvocationContext(f"{misfit} of the message cannot be signed: {_EXPECTED}")
    key = keys.first_for(claim.tenant_id or "", claim.persona or "")
    if key is None:
        raise InvalidInvocationContext(
            "no key of audit_context_keys (or AUDIT_CONTEXT_KEYS) may sign for this tenant and"
            " persona: look at the tenants and personas of its keys"
        )
    issued = int(now)
    return f"1:{key.key_id}:{issued}:{_mac(key, issued, claim)}"


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
    if not hmac.compare_digest(mac, _mac(key, issued, claim)):
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


_EXPECTED: Final = "texts must be text or none, the attempt a small whole number, the body bytes"


def _misfit(claim: Claim) -> str | None:
    """The field that is of another type than its annotation: headers can hold anything."""
    for name in _TEXTS:
        value = getattr(claim, name)
        if value is not None and not isinstance(value, str):
            return name
    attempt: object = claim.attempt
    if type(attempt) is not int or not 0 <= attempt <= _MAX_ATTEMPT:
        return "attempt"
    body: object = claim.body
    return None if isinstance(body, bytes) else "body"


def _mac(key: Key, issued: int, claim: Claim) -> str:
    signed = _spell(
        [
            key.key_id,
            issued,
            claim.task_id,
            claim.skill_id,
            claim.persona,
            claim.tenant_id,
            claim.trace_id,
            claim.parent_request_id,
            claim.on_behalf_of,
            claim.group_id,
            claim.attempt,
            claim.eta,
            claim.content_type,
            claim.content_encoding,
            hashlib.sha256(claim.body).hexdigest(),
        ]
    )
    return hmac.digest(key.secret, f"{_PREFIX}{signed}".encode("ascii"), "sha256").hex()


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
