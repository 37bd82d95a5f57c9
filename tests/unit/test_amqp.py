"""tasks/amqp.py: what a message says of its caller, of its arguments, and of its place in a trace.

Everything is published to Celery's in-memory broker and read back from there: what these tests look
at is the message as a worker would get it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, chain, chord, group, signals
from kombu.exceptions import SerializerNotInstalled
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.instrumentation.celery.utils import CTX_KEY
from opentelemetry.sdk.trace import TracerProvider

from audit.canonical import digest
from audit.context import InvocationContext, Trace, acting_as, using
from audit.errors import (
    CanonicalizationError,
    InvalidInvocationContext,
    MissingInvocationContext,
    SkillArgumentsError,
    SkillDefinitionError,
)
from tasks import SkillHost
from tasks.amqp import SkillAMQP
from tests.support import TENANT, TRACE_ID

PERSONA = "cuo-cpo@0.4.1"
OTHER_TENANT = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
PARENT = "01JDX3Q6Z0M3J7T4R8W2V5K9AB"
SECRET = "card-4111111111111111"


class Post:
    """An app and the messages it sent."""

    def __init__(self, app: Celery) -> None:
        self.app = app

    def sent(self) -> list[Any]:
        """Takes every message out of the broker."""
        taken = []
        with self.app.connection_for_read() as connection:
            channel = connection.default_channel
            channel.queue_declare(self.app.conf.task_default_queue)
            while (message := channel.basic_get(self.app.conf.task_default_queue)) is not None:
                taken.append(message)
        return taken

    def one(self) -> Any:
        (message,) = self.sent()
        return message


def declare(app: SkillHost) -> None:
    @app.skill("test.echo", version="1")
    def echo(x: Any = None) -> Any:
        return x

    @app.task(name="test.plain", shared=False)
    def plain(x: Any = None) -> Any:
        return x


@pytest.fixture
def post() -> Iterator[Post]:
    with SkillHost("unit", broker="memory://", backend="cache+memory://") as app:
        app.conf.update(audit_instrument=False, task_default_queue=f"unit-{uuid4()}")
        declare(app)
        yield Post(app)


def caller() -> AbstractContextManager[Any]:
    return acting_as(PERSONA, tenant_id=TENANT)


def at(place: Trace) -> AbstractContextManager[Any]:
    """The place made OpenTelemetry's current one."""
    return trace.use_span(place.span(), end_on_exit=False)


# --- who calls ------------------------------------------------------------------------------------


def test_the_context_goes_into_the_message(post: Post) -> None:
    """Persona, tenant and a traceparent; no parent where no invocation publishes."""
    with caller():
        post.app.tasks["test.echo"].delay(1)
    headers = post.one().headers
    assert (headers["audit_persona"], headers["audit_tenant_id"]) == (PERSONA, TENANT)
    assert Trace.parse(headers["traceparent"]) is not None
    assert "audit_parent_request_id" not in headers


def test_the_context_in_force_goes_over_what_came_along(post: Post) -> None:
    """A retry copies the headers of the attempt before; what is stale or forged is replaced."""
    stale = InvocationContext("mallory@1", OTHER_TENANT, parent_request_id=PARENT).headers()
    with caller():
        post.app.tasks["test.echo"].apply_async((1,), headers={**stale, "x-of-mine": "kept"})
    headers = post.one().headers
    assert (headers["audit_persona"], headers["audit_tenant_id"]) == (PERSONA, TENANT)
    assert "audit_parent_request_id" not in headers
    assert headers["x-of-mine"] == "kept"


def test_headers_may_name_the_caller_where_nothing_is_in_force(post: Post) -> None:
    """As the entry of a beat schedule does."""
    context = InvocationContext("beat@1", TENANT, TRACE_ID, PARENT)
    post.app.tasks["test.echo"].apply_async((1,), headers=context.headers())
    headers = post.one().headers
    assert headers["audit_persona"] == "beat@1"
    assert headers["audit_parent_request_id"] == PARENT
    assert headers["traceparent"] == context.headers()["traceparent"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"audit_persona": 5},
        {"audit_persona": "x" * 10_000},
        {"audit_tenant_id": [TENANT]},
        {"audit_tenant_id": "acme"},
        {"audit_parent_request_id": "no-ulid"},
    ],
    ids=str,
)
def test_headers_that_name_a_malformed_caller_are_refused(post: Post, wrong: Any) -> None:
    """At publishing, in words; nothing is sent."""
    headers = {**InvocationContext(PERSONA, TENANT).headers(), **wrong}
    with pytest.raises(InvalidInvocationContext, match=r"must be|got"):
        post.app.tasks["test.echo"].apply_async((1,), headers=headers)
    assert post.sent() == []


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "delay": lambda app, echo: echo.delay(1),
    "apply_async": lambda app, echo: echo.apply_async((1,), countdown=1),
    "send_task": lambda app, echo: app.send_task("test.echo", (1,)),
    "signature": lambda app, echo: echo.s(1).apply_async(),
    "signature by name": lambda app, echo: app.signature("test.echo", (1,)).apply_async(),
    "group": lambda app, echo: group(echo.s(1), echo.s(2)).apply_async(),
    "chain": lambda app, echo: chain(echo.s(1), echo.s()).apply_async(),
    "chord": lambda app, echo: chord([echo.s(1)], echo.s()).apply_async(),
    "map": lambda app, echo: echo.map([1]).apply_async(headers={}),
}


@pytest.mark.parametrize("way", [way for way in WAYS if way != "map"])
def test_a_skill_is_not_published_without_a_caller(post: Post, way: str) -> None:
    """The error says what to do, and nothing is sent."""
    with pytest.raises(MissingInvocationContext, match="acting_as"):
        WAYS[way](post.app, post.app.tasks["test.echo"])
    assert post.sent() == []


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_publish_carries_the_caller(post: Post, way: str) -> None:
    """Each message that leaves this process names persona and tenant, plain tasks' too."""
    with caller():
        WAYS[way](post.app, post.app.tasks["test.echo"])
    sent = post.sent()
    assert sent
    for message in sent:
        assert message.headers["audit_persona"] == PERSONA
        assert message.headers["audit_tenant_id"] == TENANT


def test_plain_tasks_need_no_caller_and_get_no_header(post: Post) -> None:
    """A plain task's message is what Celery makes of it."""
    post.app.tasks["test.plain"].delay(1)
    headers = post.one().headers
    assert not {name for name in headers if name.startswith("audit_")}
    assert "traceparent" not in headers


def test_a_name_that_this_process_does_not_know_needs_no_caller(post: Post) -> None:
    """It may be a plain task elsewhere; if it is a skill, its worker refuses it."""
    post.app.send_task("elsewhere.task", (1,))
    assert "audit_persona" not in post.one().headers


# --- headers that are not the caller's ------------------------------------------------------------


@pytest.mark.parametrize("name", ["id", "task"])
@pytest.mark.parametrize("task", ["test.echo", "test.plain"])
def test_a_header_may_not_replace_what_is_executed(post: Post, name: str, task: str) -> None:
    """Celery would run another task, or under another id, than the one that was published."""
    with caller(), pytest.raises(InvalidInvocationContext, match=f"own '{name}'.*leave it out"):
        post.app.tasks[task].apply_async((1,), headers={name: "test.other"})
    assert post.sent() == []


def test_a_header_may_repeat_what_is_executed(post: Post) -> None:
    """An application that copies a whole request's headers changes nothing."""
    with caller():
        post.app.tasks["test.echo"].apply_async(
            (1,), task_id="mine", headers={"id": "mine", "task": "test.echo"}
        )
    assert post.one().headers["id"] == "mine"


def test_a_request_id_never_travels(post: Post) -> None:
    """A retry copies it out of the attempt before; the receiving worker makes its own."""
    with caller():
        post.app.tasks["test.echo"].apply_async((1,), headers={"audit_request_id": PARENT})
        post.app.tasks["test.plain"].apply_async((1,), headers={"audit_request_id": PARENT})
    post.app.tasks["test.plain"].apply_async((1,), headers={"audit_request_id": PARENT})
    assert all("audit_request_id" not in message.headers for message in post.sent())


def test_task_protocol_1_is_refused(post: Post) -> None:
    """It has no headers to carry the caller."""
    post.app.conf.task_protocol = 1
    with caller(), pytest.raises(SkillDefinitionError, match="task_protocol must be 2"):
        post.app.tasks["test.echo"].delay(1)
    assert post.sent() == []


# --- arguments ------------------------------------------------------------------------------------


def told(message: Any) -> str:
    """All that a message tells without its body."""
    return json.dumps([message.headers, message.properties])


@pytest.mark.parametrize("options", [{}, {"argsrepr": SECRET, "kwargsrepr": SECRET}], ids=str)
def test_a_skills_arguments_are_shown_as_their_hash(post: Post, options: dict[str, str]) -> None:
    """argsrepr and kwargsrepr are the args_hash, whatever the caller or the skill wants shown."""
    with caller():
        post.app.tasks["test.echo"].apply_async((SECRET,), **options)
    message = post.one()
    shown = f"sha256:{digest({'x': SECRET})}"
    assert (message.headers["argsrepr"], message.headers["kwargsrepr"]) == (shown, shown)
    assert SECRET not in json.dumps(message.headers)
    assert message.payload[0] == [SECRET]


def test_the_sent_event_shows_the_hash(post: Post) -> None:
    """Event monitors get what the headers have."""
    events: list[dict[str, Any]] = []

    class Dispatcher:
        def publish(self, name: str, event: dict[str, Any], *rest: Any, **options: Any) -> None:
            events.append(event)

    post.app.conf.task_send_sent_event = True
    post.app.amqp.__dict__["_event_dispatcher"] = Dispatcher()
    with caller():
        post.app.tasks["test.echo"].delay(x=SECRET)
    (event,) = events
    shown = f"sha256:{digest({'x': SECRET})}"
    assert (event["args"], event["kwargs"]) == (shown, shown)
    assert SECRET not in json.dumps(event)


def test_plain_tasks_keep_their_reprs(post: Post) -> None:
    """Adopting the host changes nothing for them."""
    with caller():
        post.app.tasks["test.plain"].delay(1)
        post.app.tasks["test.plain"].apply_async((1,), argsrepr="<one>")
    first, second = post.sent()
    assert (first.headers["argsrepr"], first.headers["kwargsrepr"]) == ("(1,)", "{}")
    assert second.headers["argsrepr"] == "<one>"


def test_an_unknown_names_arguments_are_shown_as_a_hash(post: Post) -> None:
    """It may be a skill: shown is the hash of what is sent, as it is sent."""
    post.app.send_task("elsewhere.task", (SECRET,), {"y": 1})
    message = post.one()
    shown = f"sha256:{digest({'args': [SECRET], 'kwargs': {'y': 1}})}"
    assert (message.headers["argsrepr"], message.headers["kwargsrepr"]) == (shown, shown)
    assert SECRET not in told(message)


def test_an_unknown_name_may_have_arguments_without_a_hash(post: Post) -> None:
    """Whether that is an error is for the task's own process to say."""
    post.app.send_task("elsewhere.task", (float("nan"), SECRET))
    message = post.one()
    assert message.headers["argsrepr"] == "sha256:no-canonical-form"
    assert SECRET not in told(message)


def cyclic() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (float("nan"), r"\$\.x"),
        ([1, float("inf")], r"\$\.x\[1\]"),
        ({"a": [float("-inf")]}, r"\$\.x\.\{key 0\}\[0\]"),
        (f"{SECRET}\ud800", r"\$\.x"),
        ({"\udfff": 1}, r"\$\.x\.\{key 0\}"),
        ({SECRET}, r"\$\.x"),
        (object(), r"\$\.x"),
        (cyclic(), r"\$\.x\[1\]"),
        (nested(200), r"\$\.x\[0\]\[0\]"),
        ({1: "a", "1": "b"}, r"\$\.x\.\{key 1\}"),
    ],
    ids=["nan", "inf", "-inf", "surrogate", "its key", "set", "object", "cycle", "deep", "keys"],
)
def test_arguments_without_canonical_form_are_not_sent(post: Post, value: Any, place: str) -> None:
    """The error names the place and never the value."""
    with caller(), pytest.raises(CanonicalizationError, match=place) as caught:
        post.app.tasks["test.echo"].delay(value)
    assert SECRET not in str(caught.value)
    assert post.sent() == []


@pytest.mark.parametrize(
    ("args", "kwargs", "misfit"),
    [((1, 2), {}, "positional"), ((1,), {"x": 1}, "x"), ((), {"why": 1}, "why")],
)
def test_arguments_that_do_not_fit_are_not_sent(
    post: Post, args: tuple[int, ...], kwargs: dict[str, int], misfit: str
) -> None:
    """Also where Celery's own check of arguments does not look: at send_task."""
    with caller(), pytest.raises(TypeError):
        post.app.tasks["test.echo"].apply_async(args, kwargs)
    with caller(), pytest.raises(SkillArgumentsError, match=misfit):
        post.app.send_task("test.echo", args, kwargs)
    assert post.sent() == []


def test_publishing_options_reach_celery(post: Post) -> None:
    """What is not ours is passed on as it is."""
    with caller():
        post.app.tasks["test.echo"].apply_async(
            (1,), countdown=60, expires=120, shadow="other", priority=3, reply_to="somewhere"
        )
    message = post.one()
    assert message.headers["shadow"] == "other"
    assert message.headers["eta"] < message.headers["expires"]
    assert message.properties["reply_to"] == "somewhere"
    assert message.properties["priority"] == 3


# --- the place in the trace -----------------------------------------------------------------------


@pytest.fixture
def current() -> Iterator[list[Trace | None]]:
    """OpenTelemetry's current place at the moment of each publish: what instrumentors inject."""
    seen: list[Trace | None] = []

    def look(**_: Any) -> None:
        seen.append(Trace.current())

    signals.before_task_publish.connect(look)
    yield seen
    signals.before_task_publish.disconnect(look)


def published(post: Post, context: InvocationContext) -> Trace:
    with using(context):
        post.app.tasks["test.echo"].delay(1)
    place = Trace.parse(post.one().headers["traceparent"])
    assert place is not None
    return place


HERE = Trace(trace_id=TRACE_ID, span_id="00f067aa0ba902b7")
SAME_TRACE = Trace(trace_id=TRACE_ID, span_id="1111111111111111", flags=0)
ELSEWHERE = Trace(trace_id="0af7651916cd43dd8448eb211c80319c", span_id="b7ad6b7169203331")


def test_a_caller_without_a_trace_gets_a_fresh_one(post: Post, current: list[Any]) -> None:
    """Each publish one of its own; an SDK's root span may still go before it."""
    context = InvocationContext(PERSONA, TENANT)
    first, second = published(post, context), published(post, context)
    assert first.trace_id != second.trace_id
    assert current == [None, None]


def test_the_current_span_is_the_trace_of_a_caller_without_one(
    post: Post, current: list[Any]
) -> None:
    """acting_as inside a traced request: the skill belongs to that request's trace."""
    with at(HERE):
        assert published(post, InvocationContext(PERSONA, TENANT)) == HERE
    assert current == [HERE]


def test_the_current_span_stands_for_its_own_trace(post: Post, current: list[Any]) -> None:
    """A span made inside a body is the parent of what is published under it."""
    with at(SAME_TRACE):
        assert published(post, InvocationContext(PERSONA, TENANT, trace=HERE)) == SAME_TRACE
    assert current == [SAME_TRACE]


@pytest.mark.parametrize("span", [None, ELSEWHERE], ids=["no span", "a span of another trace"])
def test_the_callers_trace_goes_before_any_other(
    post: Post, current: list[Any], span: Trace | None
) -> None:
    """It is also made current while publishing, so that an instrumentor injects the same one."""
    with at(span) if span else nullcontext():
        assert published(post, InvocationContext(PERSONA, TENANT, trace=HERE)) == HERE
        assert Trace.current() == span
    assert current == [HERE]


def test_the_publishing_invocation_is_the_parent(post: Post) -> None:
    """What a body publishes names the invocation it was published by."""
    context = InvocationContext(PERSONA, TENANT, trace=HERE)
    with using(context.published_by(PARENT)):
        post.app.tasks["test.echo"].delay(1)
    headers = post.one().headers
    assert headers["audit_parent_request_id"] == PARENT
    assert headers["traceparent"] == HERE.header()


@pytest.mark.parametrize("traceparent", ["garbage", "", 5, ["00"], "00-" + "0" * 32 + "-1-01"])
def test_a_malformed_traceparent_never_stops_a_publish(post: Post, traceparent: Any) -> None:
    """It counts as none (decision 18)."""
    headers = {**InvocationContext(PERSONA, TENANT).headers(), "traceparent": traceparent}
    post.app.tasks["test.echo"].apply_async((1,), headers=headers)
    assert Trace.parse(post.one().headers["traceparent"]) is not None


@pytest.fixture
def instrumented() -> Iterator[None]:
    """OpenTelemetry's Celery instrumentor at work, as in every host, with an SDK behind it."""
    instrumentor = CeleryInstrumentor()
    if before := instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()
    instrumentor.instrument(tracer_provider=TracerProvider())
    yield
    instrumentor.uninstrument()
    if before:
        instrumentor.instrument()


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("name", ["test.echo", "test.plain", "elsewhere.task"])
@pytest.mark.parametrize("trace_of_caller", [None, HERE, ELSEWHERE], ids=["none", "same", "other"])
def test_publishing_leaves_the_current_span_as_it_was(
    post: Post, name: str, trace_of_caller: Trace | None
) -> None:
    """Even where it fails: there the instrumentor never leaves the span it entered, and the next
    publish would land in a stranger's trace."""

    def publish_twice() -> None:
        with using(InvocationContext(PERSONA, TENANT, trace=trace_of_caller)), at(HERE):
            span = trace.get_current_span()
            post.app.send_task(name, (1,))
            assert trace.get_current_span() is span
            with pytest.raises(SerializerNotInstalled):
                post.app.send_task(name, (1,), serializer="no such thing")
            assert trace.get_current_span() is span
            # What the instrumentor left behind resets the context once more when it goes.
            vars(post.app.tasks.get(name, post)).pop(CTX_KEY, None)

    copy_context().run(publish_twice)


# --- errbacks -------------------------------------------------------------------------------------


def one(task_id: str) -> None: ...
def none_at_all() -> None: ...
def two(request: Any, exc: Any) -> None: ...
def optional(task_id: str, verbose: bool = False) -> None: ...
def surplus(*args: Any) -> None: ...
def one_and_surplus(task_id: str, *args: Any) -> None: ...
def keyword_only(task_id: str, *, verbose: bool = False) -> None: ...
def needs_keyword(task_id: str, *, verbose: bool) -> None: ...
def two_and_keyword(task_id: str, extra: int, *, verbose: bool = False) -> None: ...
def optional_and_keyword(task_id: str, extra: int = 0, *, verbose: bool = False) -> None: ...
def one_and_keywords(task_id: str, **more: Any) -> None: ...


ERRBACKS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], bool, bool]] = [
    # body, args and kwargs it brings along, immutable, whether it may serve
    (one, (), {}, False, True),
    (one, (), {}, True, False),
    (one, ("x",), {}, True, True),
    (one, ("x",), {}, False, False),
    (none_at_all, (), {}, False, False),
    (none_at_all, (), {}, True, True),
    (two, (), {}, False, False),
    (two, ("x",), {}, False, True),
    (two, (), {"exc": 1}, False, True),
    (two, (), {"request": 1}, False, False),
    (two, ("x", "y"), {}, True, False),
    (optional, (), {}, False, False),
    (optional, (True,), {}, False, True),
    (optional, (), {"verbose": True}, False, True),
    (surplus, (), {}, False, False),
    (one_and_surplus, (), {}, False, False),
    (keyword_only, (), {}, False, True),
    (keyword_only, (), {"verbose": True}, False, True),
    (needs_keyword, (), {}, False, False),
    (needs_keyword, (), {"verbose": True}, False, True),
    (two_and_keyword, (), {"verbose": True}, False, False),
    (optional_and_keyword, (), {"verbose": True}, False, False),
    (optional_and_keyword, (), {"extra": 1, "verbose": True}, False, True),
    (one_and_keywords, (), {"a": 1, "b": 2}, False, True),
]


@pytest.mark.parametrize(
    ("body", "args", "kwargs", "immutable", "fits"),
    ERRBACKS,
    ids=[f"{e[0].__name__}{e[1]}{e[2]}{'i' if e[3] else ''}" for e in ERRBACKS],
)
def test_an_errback_is_called_with_the_id_alone_or_not_published(
    post: Post,
    body: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    immutable: bool,
    fits: bool,
) -> None:
    """What Celery would call inline, with values that are no JSON, and what could not take the id
    of the failed task, is refused where it is published; nothing is sent."""
    errback = post.app.skill("test.errback", version="1")(body)
    signature = errback.signature(args, kwargs, immutable=immutable)
    inline = post.app.backend._errback_arity_greater(signature, 1)
    assert not (fits and inline), "this test's own table contradicts Celery"
    with caller():
        if fits:
            post.app.tasks["test.echo"].apply_async((1,), link_error=signature)
        else:
            with pytest.raises(SkillDefinitionError, match=r"test\.errback cannot be an errback"):
                post.app.tasks["test.echo"].apply_async((1,), link_error=signature)
    assert len(post.sent()) == fits


def test_a_plain_tasks_errbacks_are_checked_as_well(post: Post) -> None:
    """A skill is a skill whatever it is linked to."""
    errback = post.app.skill("test.errback", version="1")(two)
    with caller(), pytest.raises(SkillDefinitionError):
        post.app.tasks["test.plain"].apply_async((1,), link_error=[errback.s()])
    assert post.sent() == []


def test_errbacks_that_are_no_skills_are_celerys_business(post: Post) -> None:
    """Plain ones of any arity, unknown names, groups."""
    plain_two = post.app.task(two, name="test.plain-two", shared=False)
    unknown = post.app.signature("elsewhere.task")
    with caller():
        post.app.tasks["test.echo"].apply_async(
            (1,), link_error=[plain_two.s(), unknown, group(plain_two.s())]
        )
    assert len(post.one().payload[2]["errbacks"]) == 3


# --- the class itself -----------------------------------------------------------------------------


def test_the_producer_pool_is_celerys(post: Post) -> None:
    """One a process, the same at every call."""
    assert isinstance(post.app.amqp, SkillAMQP)
    assert post.app.amqp.producer_pool is post.app.amqp.publisher_pool
    assert post.app.amqp.producer_pool is super(SkillAMQP, post.app.amqp).producer_pool
