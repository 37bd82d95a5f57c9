"""Who calls, for which tenant, in which trace: the invocation context.

The context of a caller lives in a :class:`contextvars.ContextVar` (so threads, greenlets and
asyncio tasks each have their own), and travels in message headers. This module turns headers into
a context and back, and says clearly what is wrong with a context that cannot be used.

Decisions 16 to 18; W3C Trace Context, section 3.2 (traceparent).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from opentelemetry import trace

from audit.errors import InvalidInvocationContext, MissingInvocationContext
from audit.row import NIL_TENANT

#: Message headers of the context; ``traceparent`` is the W3C one and shared with OpenTelemetry.
PERSONA_HEADER: Final = "audit_persona"
TENANT_HEADER: Final = "audit_tenant_id"
PARENT_HEADER: Final = "audit_parent_request_id"
ON_BEHALF_HEADER: Final = "audit_on_behalf_of"
TRACE_HEADER: Final = "traceparent"
#: Other vendors' notes on the same trace: none of ours, and worth nothing in another trace.
TRACE_STATE_HEADER: Final = "tracestate"

CONTEXT_HEADERS: Final = frozenset({PERSONA_HEADER, TENANT_HEADER, PARENT_HEADER, ON_BEHALF_HEADER})

_PERSONA = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
#: ``UUID`` itself takes blanks, signs and underscores for digits, and so another tenant's id.
_UUID = re.compile(
    r"(urn:uuid:|\{)?[0-9A-Fa-f]{8}(-?[0-9A-Fa-f]{4}){3}-?[0-9A-Fa-f]{12}\}?",
)
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})"
    r"-(?P<span>(?!0{16})[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<rest>-.*)?",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """One place in a W3C trace: what a ``traceparent`` header says."""

    trace_id: str
    span_id: str
    flags: int = 1

    @classmethod
    def fresh(cls) -> Trace:
        """A new trace, for a caller that has none (decision 18)."""
        return cls(trace_id=_random_hex(16), span_id=_random_hex(8))

    @classmethod
    def parse(cls, header: object) -> Trace | None:
        """The trace a ``traceparent`` header names; ``None`` when it is malformed."""
        if not isinstance(header, str):
            return None
        match = _TRACEPARENT.fullmatch(header.strip())
        if match is None or (match["version"] == "00" and match["rest"]):
            return None
        return cls(trace_id=match["trace"], span_id=match["span"], flags=int(match["flags"], 16))

    @classmethod
    def current(cls) -> Trace | None:
        """The trace of OpenTelemetry's current span, ``None`` without a valid one."""
        context = trace.get_current_span().get_span_context()
        if not context.is_valid:
            return None
        return cls(
            trace_id=f"{context.trace_id:032x}",
            span_id=f"{context.span_id:016x}",
            flags=int(context.trace_flags),
        )

    def header(self) -> str:
        """The ``traceparent`` header."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    def span(self) -> trace.Span:
        """A span that records nothing and stands at this place, to be made current."""
        return trace.NonRecordingSpan(
            trace.SpanContext(
                trace_id=int(self.trace_id, 16),
                span_id=int(self.span_id, 16),
                is_remote=True,
                trace_flags=trace.TraceFlags(self.flags),
            )
        )


@dataclass(frozen=True, slots=True)
class InvocationContext:
    """For whom a skill runs.

    Args:
        caller_persona: the calling agent, e.g. ``cuo-cpo@0.4.1``: 1 to 200 of ``A-Z a-z 0-9``
            and ``._:/@+-``, beginning with a letter or digit.
        tenant_id: UUID of the tenant, as :class:`uuid.UUID` or text; never the nil UUID.
        trace_id: the caller's W3C trace id (32 lower-case hex digits, not all zeros). ``None``
            takes the trace that is current when the skill is published.
        parent_request_id: the invocation that publishes, if any.
        on_behalf_of: the human behind the agent, e.g. ``jane@example.org``; spelled as a persona.

    Raises:
        InvalidInvocationContext: a part is malformed; the text says which and what is expected.
    """

    caller_persona: str
    tenant_id: str
    trace_id: str | None = None
    parent_request_id: str | None = None
    trace: Trace | None = None
    on_behalf_of: str | None = None

    def __init__(
        self,
        caller_persona: str,
        tenant_id: UUID | str,
        trace_id: str | None = None,
        parent_request_id: str | None = None,
        *,
        trace: Trace | None = None,
        on_behalf_of: str | None = None,
    ) -> None:
        if trace is None and trace_id is not None:
            trace = Trace(trace_id=_checked_trace_id(trace_id), span_id=_random_hex(8))
        put = object.__setattr__
        put(self, "caller_persona", _checked_persona(caller_persona))
        put(self, "tenant_id", _checked_tenant(tenant_id))
        put(self, "trace_id", trace and trace.trace_id)
        put(self, "parent_request_id", _checked_parent(parent_request_id))
        put(self, "trace", trace)
        put(self, "on_behalf_of", _checked_human(on_behalf_of))

    @classmethod
    def from_otel_context(cls, caller_persona: str, tenant_id: UUID | str) -> InvocationContext:
        """The context in OpenTelemetry's current trace, or in a fresh one where there is none."""
        return cls(caller_persona, tenant_id, trace=Trace.current() or Trace.fresh())

    @classmethod
    def from_headers(cls, headers: Mapping[str, Any]) -> InvocationContext:
        """The context that message headers carry.

        A malformed ``traceparent`` never stops a skill: it counts as none (decision 18).

        Raises:
            MissingInvocationContext: persona or tenant is not there.
            InvalidInvocationContext: one is there and malformed.
        """
        persona, tenant = headers.get(PERSONA_HEADER), headers.get(TENANT_HEADER)
        if persona is None or tenant is None:
            raise MissingInvocationContext()
        return cls(
            persona,
            tenant,
            parent_request_id=headers.get(PARENT_HEADER),
            trace=Trace.parse(headers.get(TRACE_HEADER)),
            on_behalf_of=headers.get(ON_BEHALF_HEADER),
        )

    def headers(self) -> dict[str, str]:
        """The message headers that carry this context, e.g. for the entry of a beat schedule."""
        headers = {PERSONA_HEADER: self.caller_persona, TENANT_HEADER: self.tenant_id}
        if self.parent_request_id is not None:
            headers[PARENT_HEADER] = self.parent_request_id
        if self.on_behalf_of is not None:
            headers[ON_BEHALF_HEADER] = self.on_behalf_of
        if self.trace is not None:
            headers[TRACE_HEADER] = self.trace.header()
        return headers

    def in_trace(self, trace: Trace) -> InvocationContext:
        """The same caller in ``trace``."""
        return self._with(trace, self.parent_request_id)

    def published_by(self, request_id: str) -> InvocationContext:
        """The same caller as inherited by what the invocation ``request_id`` publishes."""
        return self._with(self.trace, request_id)

    def _with(self, trace: Trace | None, parent_request_id: str | None) -> InvocationContext:
        """A copy; what was checked once is not checked again, for this is on every call's way."""
        copy = object.__new__(InvocationContext)
        put = object.__setattr__
        put(copy, "caller_persona", self.caller_persona)
        put(copy, "tenant_id", self.tenant_id)
        put(copy, "trace_id", trace and trace.trace_id)
        put(copy, "parent_request_id", parent_request_id)
        put(copy, "trace", trace)
        put(copy, "on_behalf_of", self.on_behalf_of)
        return copy


_current: ContextVar[InvocationContext | None] = ContextVar("audit_context", default=None)


def current_context() -> InvocationContext:
    """The context in force here: inside a skill's body the caller's, else what ``acting_as`` set.

    Raises:
        MissingInvocationContext: none is in force.
    """
    context = _current.get()
    if context is None:
        raise MissingInvocationContext()
    return context


def find_context() -> InvocationContext | None:
    """As :func:`current_context`, but ``None`` where none is in force."""
    return _current.get()


@contextmanager
def acting_as(
    caller_persona: str, tenant_id: UUID | str, on_behalf_of: str | None = None
) -> Iterator[InvocationContext]:
    """Call skills as ``caller_persona`` for ``tenant_id`` inside the block.

    Inside a running skill the new caller keeps the invocation's trace and parent: whoever it acts
    as, what it publishes was published by that invocation. Without ``on_behalf_of`` it also acts
    for the human that was acted for outside the block.

    Raises:
        InvalidInvocationContext: persona, tenant or human is malformed.
    """
    outer = _current.get()
    if on_behalf_of is None and outer is not None:
        on_behalf_of = outer.on_behalf_of
    context = InvocationContext(
        caller_persona,
        tenant_id,
        parent_request_id=outer.parent_request_id if outer is not None else None,
        trace=outer.trace if outer is not None else None,
        on_behalf_of=on_behalf_of,
    )
    with using(context):
        yield context


@contextmanager
def using(context: InvocationContext | None) -> Iterator[None]:
    """Put ``context`` in force inside the block.

    A block that its generator never left is closed when that is collected, perhaps in the midst of
    another invocation: then nothing is put back over whoever is in force there.
    """
    token, abandoned = enter(context), False
    try:
        yield
    except GeneratorExit:
        abandoned = _current.get() is not context
        raise
    finally:
        if not abandoned:
            leave(token)


def enter(context: InvocationContext | None) -> Token[InvocationContext | None]:
    """Put ``context`` in force; undo it with :func:`leave`."""
    return _current.set(context)


def leave(token: Token[InvocationContext | None]) -> None:
    """Undo :func:`enter`."""
    _current.reset(token)


def _checked_persona(persona: object) -> str:
    if isinstance(persona, str) and _PERSONA.fullmatch(persona):
        return persona
    raise InvalidInvocationContext(
        f"caller_persona must be text like 'cuo-cpo@0.4.1' (1 to 200 of letters, digits and"
        f" ._:/@+-), got {_kind(persona)}"
    )


def _checked_human(human: object) -> str | None:
    if human is None or (isinstance(human, str) and _PERSONA.fullmatch(human)):
        return human
    raise InvalidInvocationContext(
        f"on_behalf_of must be text like 'jane@example.org' (1 to 200 of letters, digits and"
        f" ._:/@+-), got {_kind(human)}"
    )


def _checked_tenant(tenant: object) -> str:
    # Text alone is cached: 1, True and 1.0 are one key to a dictionary.
    return _tenant_text(tenant) if type(tenant) is str else _tenant_of(tenant)


def _tenant_of(tenant: object) -> str:
    if isinstance(tenant, UUID) or (isinstance(tenant, str) and _UUID.fullmatch(tenant)):
        text = str(UUID(str(tenant)))
        if text != NIL_TENANT:
            return text
    raise InvalidInvocationContext(
        f"tenant_id must be a UUID like '550e8400-e29b-41d4-a716-446655440000' and not the nil"
        f" UUID, got {_kind(tenant)}"
    )


#: The same few tenants come again and again, and parsing a UUID is on every invocation's way.
_tenant_text = lru_cache(maxsize=4096)(_tenant_of)


def _checked_trace_id(trace_id: object) -> str:
    if isinstance(trace_id, str) and _TRACE_ID.fullmatch(trace_id):
        return trace_id
    raise InvalidInvocationContext(
        "trace_id must be 32 lower-case hex digits and not all zeros (a W3C trace id), got"
        f" {_kind(trace_id)}"
    )


def _checked_parent(parent: object) -> str | None:
    if parent is None:
        return None
    if isinstance(parent, str) and _ULID.fullmatch(parent):
        return parent
    raise InvalidInvocationContext(
        f"parent_request_id must be the ULID of an invocation, got {_kind(parent)}"
    )


def _kind(value: object) -> str:
    """What ``value`` is, without repeating it: it may be someone's secret in the wrong place."""
    if isinstance(value, str):
        return f"text of {len(value)} characters"
    return type(value).__name__


def _random_hex(size: int) -> str:
    """``2 * size`` random hex digits, not all zeros."""
    while not int(digits := secrets.token_hex(size), 16):
        continue
    return digits


__all__ = [
    "CONTEXT_HEADERS",
    "InvocationContext",
    "Trace",
    "acting_as",
    "current_context",
    "find_context",
    "using",
]
