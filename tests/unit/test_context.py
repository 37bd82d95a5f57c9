"""audit/context.py: persona, tenant, trace; into headers and back; in force here and not there."""

from __future__ import annotations

import asyncio
import contextvars
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from opentelemetry import trace as otel

from audit import InvocationContext, acting_as, current_context
from audit.context import (
    CONTEXT_HEADERS,
    ON_BEHALF_HEADER,
    PARENT_HEADER,
    PERSONA_HEADER,
    TENANT_HEADER,
    TRACE_HEADER,
    Trace,
    find_context,
    using,
)
from audit.errors import (
    InvalidInvocationContext,
    MissingInvocationContext,
)
from audit.row import NIL_TENANT
from tests.support import TENANT

PERSONA = "cuo-cpo@0.4.1"
PARENT = "01JDVZ3W4MC2QH7K9T5N8XBPDE"
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN_ID = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
SECRET = "s3cr3t"
JANE = "jane@example.org"


# --- persona and tenant ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "persona",
    [PERSONA, "a", "7", "Z" * 200, "svc:billing/eu+x_y.z-1@2", "0-0"],
)
def test_personas_that_are_taken(persona: str) -> None:
    """1 to 200 of letters, digits and ._:/@+-, as given."""
    assert InvocationContext(persona, TENANT).caller_persona == persona


@pytest.mark.parametrize(
    "persona",
    [
        "", " ", "a b", "-a", ".a", "@a", "Z" * 201, "a\n", "\na", "a\x00", "é",
        "\uff41", "a\u200b",
        "a,b", "a;b", "<a>", '"a"', None, 5, b"a", ["a"], {"a": 1}, UUID(TENANT), True,
    ],
)  # fmt: skip
def test_personas_that_are_refused(persona: Any) -> None:
    """Everything else, and the error says what is expected."""
    with pytest.raises(InvalidInvocationContext, match="caller_persona must be text like"):
        InvocationContext(persona, TENANT)


@pytest.mark.parametrize(
    "tenant",
    [
        TENANT,
        TENANT.upper(),
        UUID(TENANT),
        TENANT.replace("-", ""),
        f"urn:uuid:{TENANT}",
        f"{{{TENANT}}}",
    ],
)
def test_tenants_are_normalised(tenant: UUID | str) -> None:
    """However a UUID is written, one tenant is one text: lower case with hyphens."""
    assert InvocationContext(PERSONA, tenant).tenant_id == TENANT


@pytest.mark.parametrize(
    "tenant",
    [
        "", "acme", NIL_TENANT, UUID(NIL_TENANT), NIL_TENANT.replace("-", ""), None, 5, True,
        b"550e8400-e29b-41d4-a716-446655440000", UUID(TENANT).bytes, UUID(TENANT).int, [TENANT],
        TENANT[:-1], TENANT + "0", TENANT[:-1] + "g", TENANT + "\n", " " + TENANT,
        TENANT[:-1] + " ",
        " " + TENANT[1:], "+" + TENANT[1:], "0x" + TENANT[2:], TENANT[:3] + "_" + TENANT[4:],
        TENANT.replace("5", "\uff15"), TENANT.replace("-", "--", 1)[:-1],
    ],
)  # fmt: skip
def test_tenants_that_are_refused(tenant: Any) -> None:
    """The nil UUID, other types, and text not quite a UUID, which would name another tenant."""
    with pytest.raises(InvalidInvocationContext, match="tenant_id must be a UUID like"):
        InvocationContext(PERSONA, tenant)


@pytest.mark.parametrize(
    "trace_id",
    [
        "", "0" * 32, TRACE_ID.upper(), TRACE_ID[:-1], TRACE_ID + "0", TRACE_ID + "\n", "g" * 32,
        5, b"", UUID(TENANT), TRACEPARENT,
    ],
)  # fmt: skip
def test_trace_ids_that_are_refused(trace_id: Any) -> None:
    """Whoever names a trace names a W3C trace id."""
    with pytest.raises(InvalidInvocationContext, match="trace_id must be 32 lower-case hex"):
        InvocationContext(PERSONA, TENANT, trace_id)


@pytest.mark.parametrize(
    "parent", ["", "x", PARENT.lower(), PARENT + "0", "8" + PARENT[1:], 5, b""]
)
def test_parents_that_are_refused(parent: Any) -> None:
    """A parent is an invocation, named by its ULID."""
    with pytest.raises(InvalidInvocationContext, match="parent_request_id must be the ULID"):
        InvocationContext(PERSONA, TENANT, None, parent)


@pytest.mark.parametrize(
    "make",
    [
        lambda: InvocationContext(f"{SECRET} {SECRET}", TENANT),
        lambda: InvocationContext(PERSONA, SECRET),
        lambda: InvocationContext(PERSONA, TENANT, SECRET),
        lambda: InvocationContext(PERSONA, TENANT, None, SECRET),
        lambda: InvocationContext(PERSONA, TENANT, on_behalf_of=f"{SECRET} {SECRET}"),
        lambda: acting_as(PERSONA, TENANT, f"{SECRET} {SECRET}").__enter__(),
        lambda: InvocationContext([SECRET], TENANT),  # type: ignore[arg-type]
        lambda: InvocationContext.from_headers({PERSONA_HEADER: {SECRET}, TENANT_HEADER: TENANT}),
        lambda: InvocationContext.from_headers({PERSONA_HEADER: SECRET}),
        lambda: InvocationContext.from_headers({TENANT_HEADER: SECRET}),
        lambda: acting_as(f" {SECRET}", TENANT).__enter__(),
        lambda: acting_as(PERSONA, f"{SECRET}").__enter__(),
    ],
)
def test_errors_never_repeat_the_value(make: Callable[[], object]) -> None:
    """It may be someone's secret in the wrong place; its kind and length are told instead."""
    with pytest.raises((InvalidInvocationContext, MissingInvocationContext)) as caught:
        make()
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error!r} {error}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_a_context_is_a_value() -> None:
    """Frozen, equal by parts, hashable, and it survives pickling."""
    context = InvocationContext(PERSONA, TENANT, parent_request_id=PARENT)
    assert context == InvocationContext(PERSONA, UUID(TENANT), parent_request_id=PARENT)
    assert len({context, InvocationContext(PERSONA, TENANT)}) == 2
    assert pickle.loads(pickle.dumps(context)) == context  # noqa: S301
    with pytest.raises(AttributeError):
        context.tenant_id = "other"  # type: ignore[misc]


# --- traceparent ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "trace_id", "span_id", "flags"),
    [
        # The examples of W3C Trace Context, section 3.2.
        (TRACEPARENT, TRACE_ID, SPAN_ID, 1),
        (f"00-{TRACE_ID}-{SPAN_ID}-00", TRACE_ID, SPAN_ID, 0),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
         "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1),
        # Later versions are read as far as this one goes (section 3.2.4).
        (f"01-{TRACE_ID}-{SPAN_ID}-01", TRACE_ID, SPAN_ID, 1),
        (f"cc-{TRACE_ID}-{SPAN_ID}-01-what-the-future-will-be-like", TRACE_ID, SPAN_ID, 1),
        (f"fe-{TRACE_ID}-{SPAN_ID}-03", TRACE_ID, SPAN_ID, 3),
        # White space around a header's value is no part of it.
        (f" {TRACEPARENT}\t", TRACE_ID, SPAN_ID, 1),
        # Not all zeros, though nearly.
        (f"00-{'0' * 31}1-{'0' * 15}1-01", "0" * 31 + "1", "0" * 15 + "1", 1),
    ],
)  # fmt: skip
def test_traceparents_that_are_read(header: str, trace_id: str, span_id: str, flags: int) -> None:
    """Version 00 exactly, later ones with whatever follows after a hyphen."""
    assert Trace.parse(header) == Trace(trace_id=trace_id, span_id=span_id, flags=flags)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        TRACE_ID,
        f"00-{TRACE_ID}-{SPAN_ID}",
        f"00-{TRACE_ID}-{SPAN_ID}-",
        f"00-{TRACE_ID}-{SPAN_ID}-1",
        f"00-{TRACE_ID}-{SPAN_ID}-011",
        f"00-{TRACE_ID}-{SPAN_ID}-0x",
        f"{TRACEPARENT}-",
        f"{TRACEPARENT}-extra",
        f"{TRACEPARENT}.extra",
        f"cc-{TRACE_ID}-{SPAN_ID}-01.extra",
        f"cc-{TRACE_ID}-{SPAN_ID}-01extra",
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"FF-{TRACE_ID}-{SPAN_ID}-01",
        f"0-{TRACE_ID}-{SPAN_ID}-01",
        f"000-{TRACE_ID}-{SPAN_ID}-01",
        f"0x-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID.upper()}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{SPAN_ID.upper()}-01",
        f"00-{TRACE_ID[1:]}-{SPAN_ID}-01",
        f"00-{TRACE_ID}0-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{SPAN_ID[1:]}-01",
        f"00_{TRACE_ID}_{SPAN_ID}_01",
        f"00-{TRACE_ID}-{SPAN_ID}-01\n00",
        f"{TRACEPARENT},{TRACEPARENT}",
        TRACEPARENT.replace("4", "\uff14"),
        None,
        5,
        1.5,
        True,
        TRACEPARENT.encode(),
        [TRACEPARENT],
        {"traceparent": TRACEPARENT},
    ],
)
def test_traceparents_that_count_as_none(header: object) -> None:
    """A malformed one stops nothing (decision 18): neither here nor in a message's headers."""
    assert Trace.parse(header) is None
    headers = {PERSONA_HEADER: PERSONA, TENANT_HEADER: TENANT, TRACE_HEADER: header}
    assert InvocationContext.from_headers(headers).trace_id is None


def test_a_fresh_trace_is_a_valid_one() -> None:
    """Different each time, readable as a header."""
    traces = [Trace.fresh() for _ in range(50)]
    assert len({trace.trace_id for trace in traces}) == 50
    assert all(Trace.parse(trace.header()) == trace for trace in traces)


def test_a_trace_becomes_current_as_a_span() -> None:
    """What is made current is what is read back as current, ids and flags alike."""
    assert Trace.current() is None
    given = Trace.parse(TRACEPARENT)
    assert given is not None
    with otel.use_span(given.span()):
        assert Trace.current() == given
        context = InvocationContext.from_otel_context(PERSONA, TENANT)
        assert context.trace == given
        assert context.trace_id == TRACE_ID
    assert Trace.current() is None


def test_without_a_current_trace_a_fresh_one_is_made() -> None:
    """``from_otel_context`` always has a trace."""
    one, two = (InvocationContext.from_otel_context(PERSONA, TENANT) for _ in range(2))
    assert one.trace_id
    assert two.trace_id
    assert one.trace_id != two.trace_id


# --- headers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "context",
    [
        InvocationContext(PERSONA, TENANT),
        InvocationContext(PERSONA, TENANT, TRACE_ID),
        InvocationContext(PERSONA, TENANT, None, PARENT),
        InvocationContext(PERSONA, TENANT, TRACE_ID, PARENT),
        InvocationContext(PERSONA, TENANT, trace=Trace.parse(TRACEPARENT)),
        InvocationContext(PERSONA, TENANT, on_behalf_of=JANE),
        InvocationContext(PERSONA, TENANT, TRACE_ID, PARENT, on_behalf_of=JANE),
    ],
)
def test_a_context_goes_through_headers_unchanged(context: InvocationContext) -> None:
    """Headers are plain strings, and hold no part that the context lacks."""
    headers = context.headers()
    assert all(type(value) is str for value in headers.values())
    assert headers.keys() <= CONTEXT_HEADERS | {TRACE_HEADER}
    assert (TRACE_HEADER in headers) == (context.trace is not None)
    assert (PARENT_HEADER in headers) == (context.parent_request_id is not None)
    assert (ON_BEHALF_HEADER in headers) == (context.on_behalf_of is not None)
    assert InvocationContext.from_headers({**headers, "lang": "py", "id": "x"}) == context


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {PERSONA_HEADER: PERSONA},
        {TENANT_HEADER: TENANT},
        {PERSONA_HEADER: None, TENANT_HEADER: TENANT},
        {PERSONA_HEADER: PERSONA, TENANT_HEADER: None},
        {"persona": PERSONA, "tenant_id": TENANT},
    ],
)
def test_headers_without_persona_or_tenant(headers: dict[str, Any]) -> None:
    """Missing is another error than malformed, and says how to publish."""
    with pytest.raises(MissingInvocationContext, match="acting_as"):
        InvocationContext.from_headers(headers)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (PERSONA_HEADER, ""),
        (PERSONA_HEADER, 5),
        (TENANT_HEADER, ""),
        (TENANT_HEADER, NIL_TENANT),
        (TENANT_HEADER, {"__type__": "uuid"}),
        (PARENT_HEADER, "parent"),
        (PARENT_HEADER, 5),
        (ON_BEHALF_HEADER, ""),
        (ON_BEHALF_HEADER, "Jane Doe"),
        (ON_BEHALF_HEADER, [JANE]),
    ],
)
def test_headers_with_a_malformed_part(header: str, value: object) -> None:
    """What is there must be well-formed."""
    with pytest.raises(InvalidInvocationContext):
        InvocationContext.from_headers(
            {PERSONA_HEADER: PERSONA, TENANT_HEADER: TENANT, header: value}
        )


def test_what_an_invocation_publishes_inherits_its_caller() -> None:
    """Persona, tenant and trace stay, the parent is the publishing invocation (decision 16)."""
    caller = InvocationContext(PERSONA, TENANT, TRACE_ID, PARENT, on_behalf_of=JANE)
    nested = caller.published_by("01JDVZ3W4MC2QH7K9T5N8XBPDF")
    assert nested.parent_request_id == "01JDVZ3W4MC2QH7K9T5N8XBPDF"
    assert (nested.caller_persona, nested.tenant_id, nested.trace) == (
        PERSONA,
        TENANT,
        caller.trace,
    )
    moved = caller.in_trace(Trace.fresh())
    assert nested.on_behalf_of == moved.on_behalf_of == JANE
    assert moved.trace_id != TRACE_ID
    assert (moved.caller_persona, moved.tenant_id, moved.parent_request_id) == (
        PERSONA,
        TENANT,
        PARENT,
    )


# --- in force -------------------------------------------------------------------------------------


def test_outside_there_is_no_context() -> None:
    """Asking for it says how to set one."""
    assert find_context() is None
    with pytest.raises(MissingInvocationContext, match="acting_as"):
        current_context()


def test_acting_as_nests_and_resets() -> None:
    """The inner caller holds inside its block, the outer one again after it, none in the end."""
    with acting_as(PERSONA, TENANT) as outer:
        assert current_context() is outer
        with acting_as("other@1", UUID(int=7)) as inner:
            assert current_context() is inner
            assert inner.tenant_id == str(UUID(int=7))
        assert current_context() is outer
    assert find_context() is None


def test_acting_as_resets_after_an_error() -> None:
    """An exception in the block leaves no caller behind, and a bad caller changes nothing."""
    with pytest.raises(ZeroDivisionError), acting_as(PERSONA, TENANT):
        raise ZeroDivisionError
    assert find_context() is None
    with acting_as(PERSONA, TENANT) as outer:
        with pytest.raises(InvalidInvocationContext), acting_as("", TENANT):
            pytest.fail("the block of a bad caller ran")
        assert current_context() is outer


def test_a_block_that_was_abandoned_changes_nothing_when_it_is_collected() -> None:
    """A generator left inside a block is closed at any time, perhaps in another's run."""

    def block() -> Iterator[None]:
        with acting_as("gone@1", TENANT):
            yield

    with acting_as(PERSONA, TENANT):
        abandoned = block()
        next(abandoned)
    with acting_as("next@1", TENANT) as in_force:
        abandoned.close()
        assert current_context() is in_force
    assert find_context() is None


def test_a_generator_that_is_closed_in_its_block_leaves_it() -> None:
    """While its own caller is in force, closing a generator gives back the one before."""

    def block() -> Iterator[None]:
        with acting_as("inner@1", TENANT):
            yield

    with acting_as(PERSONA, TENANT) as outer:
        inner = block()
        next(inner)
        assert current_context().caller_persona == "inner@1"
        inner.close()
        assert current_context() is outer


def test_acting_as_inside_an_invocation_keeps_trace_and_parent() -> None:
    """Whoever it acts as, what it publishes was published by that invocation."""
    with (
        using(InvocationContext(PERSONA, TENANT, TRACE_ID, PARENT)),
        acting_as("other@1", UUID(int=7)) as inner,
    ):
        assert inner.trace_id == TRACE_ID
        assert inner.parent_request_id == PARENT
        assert inner.caller_persona == "other@1"


@pytest.mark.parametrize(
    "human", ["", " ", "Jane Doe", "-jane", "j" * 201, "jane\n", "é", 5, b"jane", [JANE], True]
)
def test_humans_that_are_refused(human: Any) -> None:
    """A human is spelled as a persona is."""
    assert InvocationContext(PERSONA, TENANT, on_behalf_of="j" * 200).on_behalf_of == "j" * 200
    with pytest.raises(InvalidInvocationContext, match="on_behalf_of must be text like"):
        InvocationContext(PERSONA, TENANT, on_behalf_of=human)


def test_acting_as_keeps_the_human_unless_it_names_another() -> None:
    """Whoever acts for an agent that acts for Jane acts for Jane."""
    with acting_as(PERSONA, TENANT, on_behalf_of=JANE) as outer:
        assert outer.on_behalf_of == JANE
        with acting_as("other@1", UUID(int=7)) as inner:
            assert inner.on_behalf_of == JANE
        with acting_as("other@1", UUID(int=7), "joe") as inner:
            assert inner.on_behalf_of == "joe"
    with acting_as(PERSONA, TENANT) as alone:
        assert alone.on_behalf_of is None


def test_no_context_can_be_put_in_force() -> None:
    """``using(None)`` hides the caller, for work that is nobody's."""
    with acting_as(PERSONA, TENANT) as outer:
        with using(None):
            assert find_context() is None
        assert current_context() is outer


def test_threads_do_not_share() -> None:
    """A new thread has no caller, and sets its own without a trace in another."""
    seen: list[object] = []
    both = threading.Barrier(2)

    def work(tenant: str) -> None:
        seen.append(find_context())
        with acting_as(PERSONA, tenant):
            both.wait(10)
            seen.append(current_context().tenant_id == tenant)
            both.wait(10)

    with acting_as(PERSONA, TENANT) as outer:
        threads = [threading.Thread(target=work, args=(str(UUID(int=n)),)) for n in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert current_context() is outer
    assert sorted(map(str, seen)) == ["None", "None", "True", "True"]


def test_tasks_of_asyncio_inherit_and_do_not_share() -> None:
    """A task begins with its creator's caller; what it sets stays its own."""

    async def work(tenant: str) -> str:
        assert current_context().tenant_id == TENANT
        with acting_as(PERSONA, tenant):
            await asyncio.sleep(0)
            return current_context().tenant_id

    async def run() -> list[str]:
        with acting_as(PERSONA, TENANT):
            return await asyncio.gather(*(work(str(UUID(int=n))) for n in range(1, 4)))

    assert asyncio.run(run()) == [str(UUID(int=n)) for n in range(1, 4)]
    assert find_context() is None


def test_a_copied_context_carries_the_caller() -> None:
    """``contextvars.copy_context`` takes the caller along, as executors that copy it do."""
    with acting_as(PERSONA, TENANT) as outer:
        copied = contextvars.copy_context()
    assert copied.run(current_context) is outer
    assert find_context() is None
