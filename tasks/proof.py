"""Contexts that are proven: signed where a message is published, verified where one is received.

What is signed is the serialized body, as it goes to the broker, and every header. It is signed last
of all, after every receiver of ``before_task_publish``, and verified
by the worker's main process before anything of the message is used. What came of that stands in a
header that no message can bring along: :class:`Verifying` puts it there, and takes out of the
message whatever else could pass for it. Decision 13.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from kombu.serialization import dumps
from kombu.utils.imports import symbol_by_name

from audit.context import PERSONA_HEADER, TENANT_HEADER, InvocationContext
from audit.errors import ExpiredContextError, MissingInvocationContext, UnprovenContextError
from audit.keys import KeyRing
from audit.settings import AuditSettings
from audit.signing import SIGNATURE_HEADER, Claim, sign, verify

#: Where the receiving process leaves, over whatever a message claims, what came of verifying it.
PROOF_HEADER: Final = "audit_proof"

_PROVEN, _UNPROVEN, _EXPIRED, _NOBODY = "proven", "unproven", "expired", "nobody"


class Verifying:
    """The mark of a request class that verifies; what another one hands on is proven by nothing."""


def verifies(task: Any) -> bool:
    """Whether a worker verifies the messages of a task before it runs."""
    return issubclass(symbol_by_name(task.Request), Verifying)


class SigningProducer:
    """A kombu producer that signs the messages that carry a context, and no other (events)."""

    def __init__(self, producer: Any, keys: KeyRing) -> None:
        self._producer = producer
        self._keys = keys

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(
        self,
        body: Any,
        *args: Any,
        headers: Any = None,
        serializer: str | None = None,
        **options: Any,
    ) -> Any:
        """Called by Celery with a message that is complete."""
        if headers is None or "task" not in headers or PERSONA_HEADER not in headers:
            return self._producer.publish(
                body, *args, headers=headers, serializer=serializer, **options
            )
        kind, encoding, payload = dumps(body, serializer=serializer)
        claim = _claim(headers, kind, encoding, payload)
        headers[SIGNATURE_HEADER] = sign(self._keys, claim, time.time())
        options.update(content_type=kind, content_encoding=encoding)
        return self._producer.publish(payload, *args, headers=headers, **options)


def proof_of(
    message: Any, used: Mapping[str, Any], settings: AuditSettings, *, as_sent: bool = True
) -> list[str] | None:
    """What comes of verifying a received message, for :data:`PROOF_HEADER`; ``None`` without keys.

    Args:
        message: kombu's message; its own headers are verified, which nobody has changed.
        used: the headers that are used of it.
        settings: the keys, and how long a proof holds.
        as_sent: whether those are the message's own. Celery takes some of other protocols out of
            the body, and over them nothing was signed.
    """
    keys = settings.context_keys
    if not keys:
        return None
    if used.get(PERSONA_HEADER) is None or used.get(TENANT_HEADER) is None:
        return [_NOBODY, ""]
    if not as_sent:
        return [_UNPROVEN, "only messages of task protocol 2 can be proven"]
    headers = message.headers
    claim = _claim(headers, message.content_type, message.content_encoding, message.body)
    signature = headers.get(SIGNATURE_HEADER)
    try:
        return [_PROVEN, verify(keys, claim, signature, time.time(), settings.context_max_age)]
    except UnprovenContextError as error:
        word = _EXPIRED if isinstance(error, ExpiredContextError) else _UNPROVEN
        return [word, str(error)]


def is_unproven(message: Mapping[str, Any]) -> bool:
    """Whether a message was verified, and its context is not proven."""
    proof = _proof(message)
    return proof is not None and proof[0] != _PROVEN


def proven_by(message: Mapping[str, Any]) -> str | None:
    """The id of the key that proved a message's context."""
    proof = _proof(message)
    return proof[1] if proof is not None and proof[0] == _PROVEN else None


def proven_context(
    message: Mapping[str, Any], headers: Mapping[str, Any], keys: KeyRing
) -> InvocationContext:
    """The context of a delivered message, proven where there are keys.

    Args:
        message: the fields of the request; where there are keys, they alone count, for they are
            what was verified.
        headers: its context headers, wherever it has them.
        keys: ``audit_context_keys``.

    Raises:
        MissingInvocationContext, InvalidInvocationContext: there is none that could be used.
        UnprovenContextError: it is not proven.
    """
    if not keys:
        return InvocationContext.from_headers(headers)
    word, text = _proof(message) or (_UNPROVEN, "the message was never verified")
    if word == _PROVEN:
        return InvocationContext.from_headers(message)
    if word == _NOBODY:
        raise MissingInvocationContext
    raise (ExpiredContextError if word == _EXPIRED else UnprovenContextError)(text)


def names_a_caller(value: Any) -> bool:
    """Whether something in what a message holds could name a caller where it is published."""
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            if PERSONA_HEADER in part:
                return True
            left.extend(part.values())
        elif isinstance(part, list | tuple):
            left.extend(part)
    return False


def message_token(message: Mapping[str, Any]) -> str | None:
    """What names a proven message, and every verbatim copy of it; no other message has it."""
    signature = message.get(SIGNATURE_HEADER)
    return str(signature).rpartition(":")[2] if proven_by(message) is not None else None


def _proof(message: Mapping[str, Any]) -> tuple[str, str] | None:
    proof = message.get(PROOF_HEADER)
    if isinstance(proof, list | tuple) and len(proof) == 2:
        word, text = proof
        if isinstance(word, str) and isinstance(text, str):
            return word, text
    return None if proof is None else (_UNPROVEN, "the message was never verified")


def _claim(headers: Mapping[str, Any], kind: Any, encoding: Any, body: Any) -> Claim:
    return Claim(
        headers=headers,
        content_type=kind,
        content_encoding=encoding,
        body=_bytes(body, encoding),
    )


def _bytes(body: Any, encoding: Any) -> Any:
    """The serialized body as it is on the wire; transports hand over bytes, text or a view."""
    if isinstance(body, str):
        return body.encode(encoding if encoding in ("utf-8", "us-ascii") else "utf-8")
    return bytes(body) if isinstance(body, bytearray | memoryview) else body
