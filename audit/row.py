"""The row: one audit record, an envelope around a payload.

What is guaranteed here:

* a row is frozen, and its kind and payload keys are exactly those of the specification (S1.1, S1.2)
  plus ``tenant_id`` on both sides (S1.9);
* :meth:`AuditRow.to_bytes` gives RFC 8785 canonical JSON, and a row that was read from a memory
  gives back the very bytes that were stored: those bytes ARE the row;
* no argument and no result ever enters a row, only hashes (S1.3).

The published schema is ``audit/row.schema.json``; :func:`row_schema` loads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from importlib import resources
from types import MappingProxyType
from typing import Any, Final, Literal

import orjson

from audit.errors import RowError

SCHEMA_VERSION: Final = 1

STARTED: Final = "skill.invoked_started"
COMPLETED: Final = "skill.invoked_completed"
LATE: Final = "skill.invoked_late"
REFUSED: Final = "skill.invoked_refused"

KIND_PATTERN: Final = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")

#: Stands for the tenant where none is proven: only in rows of the kind ``skill.invoked_refused``.
NIL_TENANT: Final = "00000000-0000-0000-0000-000000000000"


class Outcome(StrEnum):
    """How an invocation ended, in the specification's four words (S1.2)."""

    SUCCESS = "success"
    ERROR = "error"
    PANIC = "panic"
    TIMEOUT = "timeout"


class Reason(StrEnum):
    """The finer word beside the outcome; each belongs to exactly one :class:`Outcome`."""

    RETURNED = "returned"
    RETURNED_AFTER_SOFT_LIMIT = "returned_after_soft_limit"
    IGNORED = "ignored"
    RAISED = "raised"
    RETRIED = "retried"
    REJECTED = "rejected"
    UNCANONICAL_RESULT = "uncanonical_result"
    NOT_DISPATCHED = "not_dispatched"
    BASE_EXCEPTION = "base_exception"
    WORKER_LOST = "worker_lost"
    REVOKED = "revoked"
    TERMINATED = "terminated"
    SHUTDOWN = "shutdown"
    ABANDONED = "abandoned"
    SOFT_TIME_LIMIT = "soft_time_limit"
    HARD_TIME_LIMIT = "hard_time_limit"

    @property
    def outcome(self) -> Outcome:
        """The outcome this reason belongs to."""
        return _OUTCOMES[self]


class Refusal(StrEnum):
    """Why an invocation was not allowed to start (the ``reason`` of a refused row)."""

    MISSING_CONTEXT = "missing_context"
    INVALID_CONTEXT = "invalid_context"
    BAD_ARGUMENTS = "bad_arguments"
    UNCANONICAL_ARGUMENTS = "uncanonical_arguments"
    POISON = "poison"
    BAD_SIGNATURE = "bad_signature"
    EXPIRED_CONTEXT = "expired_context"
    TICK_TAKEN = "tick_taken"


_OUTCOMES: Final[Mapping[Reason, Outcome]] = {
    **dict.fromkeys(
        (Reason.RETURNED, Reason.RETURNED_AFTER_SOFT_LIMIT, Reason.IGNORED), Outcome.SUCCESS
    ),
    **dict.fromkeys(
        (
            Reason.RAISED,
            Reason.RETRIED,
            Reason.REJECTED,
            Reason.UNCANONICAL_RESULT,
            Reason.NOT_DISPATCHED,
        ),
        Outcome.ERROR,
    ),
    **dict.fromkeys(
        (
            Reason.BASE_EXCEPTION,
            Reason.WORKER_LOST,
            Reason.REVOKED,
            Reason.TERMINATED,
            Reason.SHUTDOWN,
            Reason.ABANDONED,
        ),
        Outcome.PANIC,
    ),
    **dict.fromkeys((Reason.SOFT_TIME_LIMIT, Reason.HARD_TIME_LIMIT), Outcome.TIMEOUT),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How one invocation ended.

    Attributes:
        reason: the finer word; ``outcome`` follows from it.
        result_hash: hash of the result, ``""`` unless the body returned (decision 9).
        error_message: type and masked text of the error, ``None`` on success.
    """

    reason: Reason
    result_hash: str = ""
    error_message: str | None = None

    @property
    def outcome(self) -> Outcome:
        return self.reason.outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """What both rows of one invocation say alike, and what only the started row says of it.

    Attributes:
        request_id: ULID of this one invocation.
        skill_id: the Celery name of the task that is executed.
        version: the skill's version.
        caller_persona: who calls, e.g. ``cuo-cpo@0.4.1``.
        tenant_id: UUID in lower-case text; the nil UUID where no tenant is proven.
        trace_id: W3C trace id of the caller, 32 lower-case hex digits.
        task_id: Celery's id of the message, ``None`` for a direct call.
        attempt: Celery's ``retries``.
        redelivered: whether the message was handed out before: the broker says so, or the memory
            knows the message.
        parent_request_id: the invocation that published this one, if any.
        worker: id of the process group that runs it, new at each boot.
        on_behalf_of: the human behind the persona, where one is named.
        context_key: id of the key that proved all this, where context is signed.
        schedule: the entry of a beat schedule whose tick this is, where it is one.
        due: when that tick was due, as rows write a moment; there where ``schedule`` is.
    """

    request_id: str
    skill_id: str
    version: str
    caller_persona: str
    tenant_id: str
    trace_id: str
    task_id: str | None = None
    attempt: int = 0
    redelivered: bool = False
    parent_request_id: str | None = None
    worker: str = ""
    on_behalf_of: str | None = None
    context_key: str | None = None
    schedule: str | None = None
    due: str | None = None

    def meta(self, reason: str | None = None, duration: str | None = None) -> dict[str, Any]:
        """The envelope's ``meta`` (decision 3)."""
        meta = {
            "task_id": self.task_id,
            "attempt": self.attempt,
            "redelivered": self.redelivered,
            "parent_request_id": self.parent_request_id,
            "worker": self.worker,
            "reason": reason,
        }
        if duration is not None:
            meta["duration"] = duration
        if self.on_behalf_of is not None:
            meta["on_behalf_of"] = self.on_behalf_of
        if self.context_key is not None:
            meta["context_key"] = self.context_key
        if self.schedule is not None:
            meta.update(schedule=self.schedule, due=self.due)
        return meta


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditRow:
    """One audit record.

    Attributes:
        kind: e.g. ``skill.invoked_started``.
        ts: UTC, RFC 3339 with microseconds, e.g. ``2026-11-29T21:45:38.123456Z``.
        payload: exactly the keys of the specification for that kind.
        meta: the envelope's own facts (decision 3).
        schema: version of the published schema.
        position: where the memory stored it; ``None`` before that. Opaque, ordered within a tenant.
    """

    kind: str
    ts: str
    payload: Mapping[str, Any]
    meta: Mapping[str, Any]
    schema: int = SCHEMA_VERSION
    position: str | None = field(default=None, compare=False)
    _stored: bytes | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not KIND_PATTERN.fullmatch(self.kind):
            raise RowError(f"kind {self.kind!r} must match {KIND_PATTERN.pattern}")
        object.__setattr__(self, "payload", MappingProxyType(dict(self.payload)))
        object.__setattr__(self, "meta", MappingProxyType(dict(self.meta)))

    @property
    def request_id(self) -> str:
        return str(self.payload["request_id"])

    @property
    def tenant_id(self) -> str:
        return str(self.payload["tenant_id"])

    def to_bytes(self) -> bytes:
        """The stored form: RFC 8785 canonical JSON in UTF-8.

        A row holds only strings, small whole numbers, booleans and null under ASCII keys. For
        these, what orjson writes with sorted keys IS the canonical form, at a fraction of the
        cost; a test compares the two.

        Raises:
            RowError: a text holds a lone surrogate, or something else has no JSON form.
        """
        if self._stored is not None:
            return self._stored
        try:
            return orjson.dumps(self.as_dict(), option=orjson.OPT_SORT_KEYS)
        except orjson.JSONEncodeError as error:
            raise RowError(f"the row has no JSON form: {error}") from None

    def as_dict(self) -> dict[str, Any]:
        """The row as a plain JSON document."""
        return {
            "schema": self.schema,
            "kind": self.kind,
            "ts": self.ts,
            "payload": dict(self.payload),
            "meta": dict(self.meta),
        }

    @classmethod
    def from_bytes(cls, stored: bytes, position: str | None = None) -> AuditRow:
        """Read a stored row, keeping its bytes.

        Raises:
            RowError: the bytes are no row; the text says why.
        """
        try:
            document = json.loads(stored)
            if not isinstance(document["payload"], dict) or not isinstance(document["meta"], dict):
                raise TypeError("payload and meta must be objects")
            return cls(
                kind=document["kind"],
                ts=document["ts"],
                payload=document["payload"],
                meta=document["meta"],
                schema=document["schema"],
                position=position,
                _stored=stored,
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RowError(f"stored bytes at {position} are no row: {error!r}") from error


def timestamp(moment: datetime) -> str:
    """``moment`` (aware) as the envelope writes it."""
    there = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return there.isoformat(timespec="microseconds")[:-6] + "Z"  # +00:00


def skill_invoked_started(identity: Identity, args_hash: str, *, ts: str) -> AuditRow:
    """The row that must be durable before the body runs (S1.1)."""
    return AuditRow(
        kind=STARTED,
        ts=ts,
        payload={
            "skill_id": identity.skill_id,
            "version": identity.version,
            "caller_persona": identity.caller_persona,
            "args_hash": args_hash,
            "tenant_id": identity.tenant_id,
            "trace_id": identity.trace_id,
            "request_id": identity.request_id,
        },
        meta=identity.meta(),
    )


def skill_invoked_completed(
    identity: Identity,
    ending: Ending,
    duration_ms: int,
    *,
    ts: str,
    duration: Literal["lower_bound", "upper_bound"] | None = None,
) -> AuditRow:
    """The row that says how the invocation ended and how long it took (S1.2).

    ``duration`` says what ``duration_ms`` is where nobody who ran the body measured it.
    """
    if duration_ms < 0:
        raise RowError(f"duration_ms must not be negative, got {duration_ms}")
    return AuditRow(
        kind=COMPLETED,
        ts=ts,
        payload={
            "skill_id": identity.skill_id,
            "outcome": ending.outcome.value,
            "duration_ms": duration_ms,
            "result_hash": ending.result_hash,
            "error_message": ending.error_message,
            "tenant_id": identity.tenant_id,
            "trace_id": identity.trace_id,
            "request_id": identity.request_id,
        },
        meta=identity.meta(ending.reason.value, duration),
    )


def skill_invoked_refused(identity: Identity, refusal: Refusal, *, ts: str) -> AuditRow:
    """The row of an invocation that was not allowed to start (decision 1)."""
    return AuditRow(
        kind=REFUSED,
        ts=ts,
        payload={
            "skill_id": identity.skill_id,
            "version": identity.version,
            "caller_persona": identity.caller_persona,
            "tenant_id": identity.tenant_id,
            "trace_id": identity.trace_id,
            "request_id": identity.request_id,
            "reason": refusal.value,
        },
        meta=identity.meta(reason=refusal.value),
    )


def row_schema() -> dict[str, Any]:
    """The published JSON Schema (draft 2020-12) of every row."""
    text = resources.files("audit").joinpath("row.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
