"""Bad input at every door: told in words that help, nothing lost, nothing half done.

Three doors: the start of a worker, publishing, and the messages of publishers that are no hosts. A
plain Celery app plays the latter: it may write anything into a header.
"""

from __future__ import annotations

import re
import socketserver
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
import redis
from celery import Celery, chain, chord, group
from celery.result import AsyncResult

from audit import (
    AuditRow,
    CanonicalizationError,
    InvalidInvocationContext,
    InvocationContext,
    MissingInvocationContext,
)
from audit.canonical import digest
from audit.context import Trace
from audit.embedded import EmbeddedServer
from audit.errors import NotStartedError, SkillArgumentsError, SkillDefinitionError
from audit.row import COMPLETED, NIL_TENANT, REFUSED, STARTED
from tasks import SkillHost, SkillTask
from tasks.host import skill
from tests.integration.skills import declare
from tests.integration.stack import PERSONA, Stack, Worker, caller, running_stack
from tests.support import TENANT, wait_until

TRACE = "0af7651916cd43dd8448eb211c80319c"
SECRET = "card-4111111111111111"
FORGED = "01JDX3Q6Z0M3J7T4R8W2V5K9AB"


@pytest.fixture(autouse=True)
def _goes_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test that used the worker, the same worker still runs skills."""
    yield
    if "stack" in request.fixturenames:
        stack: Stack = request.getfixturevalue("stack")
        with caller():
            assert stack.skills.echo.delay("still here").get(timeout=20) == "still here"


@pytest.fixture(scope="module")
def foreign(stack: Stack) -> Iterator[Celery]:
    """A plain Celery app that publishes to the same worker."""
    with Celery("foreign", set_as_current=False) as app:
        app.conf.update(
            broker_url=stack.environ["CELERY_BROKER_URL"],
            result_backend=stack.environ["CELERY_RESULT_BACKEND"],
            task_default_queue="skills",
        )
        yield app


@pytest.fixture
def tenant() -> str:
    """A tenant of the test's own, to find its rows by."""
    return str(uuid4())


def headers_for(tenant: str, **more: Any) -> dict[str, Any]:
    return {**InvocationContext(PERSONA, tenant).headers(), **more}


def failure(result: AsyncResult) -> BaseException:
    """What the caller gets."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 -- the caller of this looks at it
        result.get(timeout=20)
    return caught.value


def send_raw(foreign: Celery, headers: dict[str, Any], args: Any, kwargs: Any) -> str:
    """Send test.effect with arguments that Celery itself would not let pass; its task id."""
    message = foreign.amqp.as_task_v2(str(uuid4()), "test.effect")
    message = message._replace(body=(args, kwargs, message.body[2]))
    with foreign.producer_pool.acquire() as producer:
        foreign.amqp.send_task_message(producer, "test.effect", message, headers=headers)
    return str(message.headers["id"])


def the_refused_row(stack: Stack, tenant: str, task_id: str) -> AuditRow:
    """The one row of a message: that it was refused."""
    (row,) = stack.rows(tenant_id=tenant, task_id=task_id)
    assert row.kind == REFUSED
    return row


def the_pair(stack: Stack, tenant: str) -> tuple[AuditRow, AuditRow]:
    """The rows of the one invocation of a tenant."""
    started, completed = stack.rows(tenant_id=tenant)
    assert (started.kind, completed.kind) == (STARTED, COMPLETED)
    assert started.payload["trace_id"] == completed.payload["trace_id"]
    return started, completed


# --- a worker that does not start -----------------------------------------------------------------


class OldServer(socketserver.ThreadingTCPServer):
    """Speaks enough of Redis to say that it is Redis 6."""

    daemon_threads = True
    allow_reuse_address = True

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while line := self.rfile.readline():
                words = []
                for _ in range(int(line[1:])):
                    size = int(self.rfile.readline()[1:])
                    words.append(self.rfile.read(size + 2)[:-2])
                self.wfile.write(self.answer(words[0].upper()))

        def answer(self, command: bytes) -> bytes:
            if command == b"INFO":
                info = b"# Server\r\nredis_version:6.2.14\r\nmaxmemory_policy:noeviction\r\n"
                return b"$%d\r\n%s\r\n" % (len(info), info)
            if command == b"CONFIG":
                return b"*2\r\n$11\r\nappendfsync\r\n$8\r\neverysec\r\n"
            return b"$40\r\n" + b"0" * 40 + b"\r\n" if command == b"SCRIPT" else b"+OK\r\n"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), self.Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.server_address[1]}/0"


def does_not_start(stack: Stack, **conf: Any) -> str:
    """What a worker says that ends by itself without having taken a message."""
    worker = Worker(stack, "prefork", 1, **conf)
    stack.workers.append(worker)
    assert worker.process.wait(30) == 1
    text = worker.text()
    assert " ready." not in text
    return text


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        (
            "AUDIT_MEMORY_URL",
            "mongodb://host/audit",
            "unknown memory scheme 'mongodb': use one of redis://",
        ),
        (
            "AUDIT_MEMORY_URL",
            "redis://:hunter/2@host/0",
            "cannot tell user, password, host and port",
        ),
        ("AUDIT_EMIT_TIMEOUT", "soon", "audit_emit_timeout (or AUDIT_EMIT_TIMEOUT): takes seconds"),
        ("AUDIT_EMIT_TIMEOUT", "0", "takes seconds between 0.01 and 3600"),
    ],
    ids=["scheme", "password", "no number", "zero"],
)
def test_a_worker_does_not_start_with_a_setting_that_cannot_be_used(
    stack: Stack, variable: str, value: str, told: str
) -> None:
    """One line says which setting and what it takes, without its value; the exit status is 1."""
    text = does_not_start(stack, environ={variable: value})
    (line,) = (line for line in text.splitlines() if "This worker does not start: " in line)
    assert told in line
    assert "Traceback" not in text
    assert "hunter/2" not in text


def test_a_worker_does_not_start_on_a_server_that_is_too_old(stack: Stack) -> None:
    """It names the version it found and those it needs."""
    with OldServer() as server:
        text = does_not_start(stack, environ={"AUDIT_MEMORY_URL": server.url})
        server.shutdown()
    assert "This worker does not start: the memory server is too old: Redis 6.2.14" in text
    assert "Redis 7.0 or Valkey 8" in text


def test_a_worker_does_not_start_on_a_server_that_evicts(stack: Stack) -> None:
    """It names the policy and the one to set."""
    with EmbeddedServer(options={"maxmemory-policy": "allkeys-lru"}) as server:
        text = does_not_start(stack, environ={"AUDIT_MEMORY_URL": server.url})
    assert "This worker does not start: the memory server may evict rows" in text
    assert "maxmemory-policy is allkeys-lru, set it to noeviction" in text


def test_a_worker_does_not_start_with_task_protocol_1(stack: Stack) -> None:
    """What it published could not carry the caller."""
    text = does_not_start(stack, task_protocol=1)
    assert "This worker does not start: task_protocol must be 2" in text


# --- publishing -----------------------------------------------------------------------------------


class Publisher:
    """A host whose messages nobody consumes: what it sent is still there."""

    def __init__(self, stack: Stack) -> None:
        self.app = SkillHost("publisher", set_as_current=False)
        self.app.conf.update(
            broker_url=stack.environ["CELERY_BROKER_URL"],
            result_backend=stack.environ["CELERY_RESULT_BACKEND"],
            audit_memory_url=stack.memory_url,
            task_default_queue=f"nobody-{uuid4()}",
        )
        self.skills = declare(self.app)
        self._stack = stack
        self._broker = redis.Redis.from_url(stack.environ["CELERY_BROKER_URL"])
        self._rows = len(stack.rows())

    def assert_nothing_happened(self) -> None:
        """No message, no row."""
        assert self._broker.llen(self.app.conf.task_default_queue) == 0
        assert len(self._stack.rows()) == self._rows


@pytest.fixture
def publisher(stack: Stack) -> Iterator[Publisher]:
    publisher = Publisher(stack)
    with publisher.app:
        yield publisher


WAYS: dict[str, Callable[[Publisher, Any], Any]] = {
    "delay": lambda p, effect: effect.delay("x"),
    "apply_async": lambda p, effect: effect.apply_async(("x",), countdown=1),
    "send_task": lambda p, effect: p.app.send_task("test.effect", ("x",)),
    "signature": lambda p, effect: effect.s("x").apply_async(),
    "group": lambda p, effect: group(effect.s("x"), effect.s("y")).apply_async(),
    "chain": lambda p, effect: chain(effect.s("x"), effect.si("y")).apply_async(),
    "chord": lambda p, effect: chord([effect.s("x")], effect.si("y")).apply_async(),
    "apply": lambda p, effect: effect.apply(("x",)),
    "signature.apply": lambda p, effect: effect.s("x").apply(),
    "direct call": lambda p, effect: effect("x"),
    "direct async call": lambda p, effect: p.skills.an_async(1),
}


@pytest.mark.parametrize("way", WAYS)
def test_nobody_calls(publisher: Publisher, way: str) -> None:
    """Without persona and tenant every call is refused where it is made, and told what to do."""
    with pytest.raises(MissingInvocationContext, match=r"with acting_as\(persona, tenant_id="):
        WAYS[way](publisher, publisher.skills.effect)
    publisher.assert_nothing_happened()


@pytest.mark.parametrize(
    ("persona", "tenant_id", "told"),
    [
        (PERSONA, "acme", "tenant_id must be a UUID like"),
        (PERSONA, NIL_TENANT, "not the nil UUID"),
        (PERSONA, 5, "tenant_id must be a UUID like .* got int"),
        ("", TENANT, "caller_persona must be text like 'cuo-cpo@0.4.1'"),
        ("x" * 201, TENANT, "got text of 201 characters"),
        ("two words", TENANT, "1 to 200 of letters, digits"),
    ],
)
def test_a_malformed_caller(publisher: Publisher, persona: Any, tenant_id: Any, told: str) -> None:
    """Persona and tenant are refused where they are named."""
    with (
        pytest.raises(InvalidInvocationContext, match=told),
        caller(tenant_id, persona),
    ):
        publisher.skills.effect.delay("x")
    publisher.assert_nothing_happened()


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append({"again": value})
    return value


def nested(depth: int) -> Any:
    value: Any = SECRET
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ([1, float("nan")], r"\$\.x\[1\]: NaN or an infinity"),
        ({"deep": [float("-inf")]}, r"\$\.x\.\{key 0\}\[0\]: NaN or an infinity"),
        (f"{SECRET}\ud800", r"\$\.x: a lone surrogate"),
        ({SECRET}, r"\$\.x: type set has no JSON form"),
        (object(), r"\$\.x: type object has no JSON form"),
        (cyclic(), r"\$\.x\[0\]\.\{key 0\}: a value that contains itself"),
        (nested(200), r"nested deeper than 128 levels"),
    ],
    ids=["nan", "infinity", "surrogate", "set", "object", "cycle", "deep"],
)
@pytest.mark.parametrize("way", ["delay", "send_task", "chain"])
def test_arguments_without_canonical_form(
    publisher: Publisher, way: str, value: Any, place: str
) -> None:
    """The error names the place of the value, never the value; nothing is sent."""
    echo = publisher.skills.echo
    publish: Callable[[], Any] = {
        "delay": lambda: echo.delay(value),
        "send_task": lambda: publisher.app.send_task("test.echo", (value,)),
        "chain": lambda: chain(echo.s(value), echo.s()).apply_async(),
    }[way]
    with caller(), pytest.raises(CanonicalizationError, match=place) as caught:
        publish()
    assert SECRET not in str(caught.value)
    publisher.assert_nothing_happened()


def test_arguments_that_do_not_fit(publisher: Publisher) -> None:
    """Celery's own check says so at delay, the host's wherever Celery does not look."""
    with caller(), pytest.raises(TypeError, match=r"mark"):
        publisher.skills.effect.delay()
    with caller(), pytest.raises(SkillArgumentsError, match="unexpected keywords: why"):
        publisher.app.send_task("test.effect", ("x",), {"why": SECRET})
    publisher.assert_nothing_happened()


@pytest.mark.parametrize("header", ["id", "task"])
def test_a_forged_header_at_the_hosts_own_publisher(publisher: Publisher, header: str) -> None:
    """Nobody runs another task than the one that is published, or under another id."""
    with caller(), pytest.raises(InvalidInvocationContext, match=f"'{header}'"):
        publisher.skills.echo.apply_async((1,), headers={header: "test.effect"})
    publisher.assert_nothing_happened()


def test_an_errback_of_two_arguments(publisher: Publisher) -> None:
    """Celery would call it inline with values that are no JSON."""
    errback = publisher.skills.two_argument_errback
    with caller(), pytest.raises(SkillDefinitionError, match="exactly one argument"):
        publisher.skills.fail.apply_async(("x",), link_error=errback.s())
    publisher.assert_nothing_happened()


def test_task_protocol_1_at_the_hosts_own_publisher(publisher: Publisher) -> None:
    """Its messages could not carry the caller."""
    publisher.app.conf.task_protocol = 1
    with caller(), pytest.raises(SkillDefinitionError, match="task_protocol must be 2"):
        publisher.skills.echo.delay(1)
    publisher.assert_nothing_happened()


# --- declaring ------------------------------------------------------------------------------------


def body(x: int) -> int:
    return x


@pytest.mark.parametrize(
    ("skill_id", "options", "told"),
    [
        ("test.bad", {}, r"test\.bad needs a version, like version='1\.0\.0'; got ''"),
        ("test.bad", {"version": None}, "needs a version"),
        ("test.bad", {"version": "1 0"}, "needs a version"),
        ("test.bad", {"version": 1}, "needs a version"),
        ("Test.Bad", {"version": "1"}, "must be words of a-z and 0-9 joined by"),
        ("", {"version": "1"}, "must be words"),
        ("test..bad", {"version": "1"}, "must be words"),
        ("t" * 201, {"version": "1"}, "at most 200 characters"),
        (5, {"version": "1"}, "must be words"),
        ("test.bad", {"version": "1", "name": "other"}, "its id is its name, leave out name="),
        ("test.bad", {"version": "1", "base": Celery().Task}, "subclass of SkillTask"),
        ("test.bad", {"version": "1", "app": None}, "say in which app, with app="),
        ("test.bad", {"version": "1", "app": Celery("x")}, r"call SkillHost\.adopt\(app\) first"),
    ],
)
def test_a_skill_that_could_not_be_audited(
    skill_id: Any, options: dict[str, Any], told: str
) -> None:
    """The declaration is refused, and says what to change; no task is made."""
    host = SkillHost("declaring", set_as_current=False)
    with pytest.raises(SkillDefinitionError, match=told):
        skill(skill_id, **{"app": host, **options})(body)
    assert not [name for name in host.tasks if not name.startswith("celery.")]


def test_a_skill_that_is_declared_the_long_way_needs_a_version_too() -> None:
    """app.task(base=SkillTask) and a class of its own make no skill without version."""
    host = SkillHost("declaring", set_as_current=False)
    with pytest.raises(SkillDefinitionError, match="needs a version"):
        host.task(body, name="test.bad", base=SkillTask, shared=False, lazy=False)

    class Bad(SkillTask):
        name = "test.bad"

        def run(self) -> None: ...

    with pytest.raises(SkillDefinitionError, match="needs a version"):
        host.register_task(Bad())


# --- messages of a foreign publisher --------------------------------------------------------------


def test_no_caller_in_the_message(stack: Stack, foreign: Celery) -> None:
    """Refused: the row says so under the nil tenant, the caller is told what is missing."""
    result = foreign.send_task("test.effect", ("without a caller",))
    error = failure(result)
    assert type(error) is MissingInvocationContext
    assert "acting_as" in str(error)
    row = the_refused_row(stack, NIL_TENANT, result.id)
    assert row.payload["reason"] == row.meta["reason"] == "missing_context"
    assert (row.payload["skill_id"], row.payload["version"]) == ("test.effect", "1.0.0")
    assert row.payload["caller_persona"] == ""
    assert "without a caller" not in stack.journal()


@pytest.mark.parametrize("link", ["link_error", "link"])
def test_no_caller_in_a_message_with_links(stack: Stack, foreign: Celery, link: str) -> None:
    """No link of it runs either, for it would have no caller."""
    callback = foreign.signature("test.effect", ("linked",), immutable=True, app=foreign)
    result = foreign.send_task("test.effect", ("unlinked",), **{link: callback})
    assert type(failure(result)) is MissingInvocationContext
    the_refused_row(stack, NIL_TENANT, result.id)
    with caller():
        stack.skills.effect.delay("fence").get(timeout=20)
    assert not {"linked", "unlinked"} & set(stack.journal())


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"audit_persona": 5}, "caller_persona must be text like .*got int"),
        ({"audit_persona": {"name": SECRET}}, "got dict"),
        ({"audit_persona": "x" * 10_000}, "got text of 10000 characters"),
        ({"audit_persona": "line\nfeed"}, "got text of 9 characters"),
        ({"audit_tenant_id": [TENANT]}, "tenant_id must be a UUID like .*got list"),
        ({"audit_tenant_id": NIL_TENANT}, "not the nil UUID"),
        ({"audit_tenant_id": True}, "got bool"),
        ({"audit_parent_request_id": "no ULID"}, "parent_request_id must be the ULID"),
        ({"audit_parent_request_id": 7}, "got int"),
    ],
    ids=str,
)
def test_a_malformed_caller_in_the_message(
    stack: Stack, foreign: Celery, wrong: dict[str, Any], told: str
) -> None:
    """Refused as invalid_context; the caller is told which part and what is expected."""
    headers = headers_for(TENANT, **wrong)
    result = foreign.send_task("test.effect", ("malformed caller",), headers=headers)
    error = failure(result)
    assert type(error) is InvalidInvocationContext
    assert re.search(told, str(error))
    row = the_refused_row(stack, NIL_TENANT, result.id)
    assert row.payload["reason"] == "invalid_context"
    assert SECRET not in str(error)
    assert "malformed caller" not in stack.journal()


@pytest.mark.parametrize(
    "traceparent",
    [
        *(5, 1.5, True, {"a": 1}, ["00"], "", "garbage", "x" * 100_000),
        *(f"00-{TRACE}", f"00-{'0' * 32}-{'1' * 16}-01", f"00-{TRACE.upper()}-{'1' * 16}-01"),
        f"ff-{TRACE}-{'1' * 16}-01",
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_malformed_traceparent_never_stops_a_skill(
    stack: Stack, foreign: Celery, tenant: str, traceparent: Any
) -> None:
    """It counts as none; both rows agree on a fresh trace."""
    headers = headers_for(tenant, traceparent=traceparent)
    result = foreign.send_task("test.echo", (1,), headers=headers)
    assert result.get(timeout=20) == 1
    started, _ = the_pair(stack, tenant)
    assert Trace.parse(f"00-{started.payload['trace_id']}-{'1' * 16}-01") is not None
    assert started.payload["trace_id"] not in {TRACE, "0" * 32}


@pytest.mark.parametrize(
    ("retries", "attempt"),
    [("many", 0), (-1, 0), (True, 0), (1.5, 0), ([3], 0), (None, 0), (3, 3), (2**70, 0)],
    ids=str,
)
def test_retries_may_be_anything(
    stack: Stack, foreign: Celery, tenant: str, retries: Any, attempt: int
) -> None:
    """What is no number of attempts counts as the first; the skill runs."""
    headers = headers_for(tenant, retries=retries)
    assert foreign.send_task("test.echo", (1,), headers=headers).get(timeout=20) == 1
    assert the_pair(stack, tenant)[0].meta["attempt"] == attempt


@pytest.mark.parametrize(
    "forged",
    [
        {"audit_request_id": FORGED},
        {"audit_request_id": {"a": 1}},
        {"_skill_child_state": {"invocation": "running"}},
        {"called_directly": True},
        {"is_eager": True},
        {"headers": {"audit_persona": "mallory@1", "audit_tenant_id": TENANT}},
        {"delivery_info": {"redelivered": True}},
        {"redelivered": True},
        {"hostname": 5},
        {"args": [SECRET], "kwargs": {"x": SECRET}},
    ],
    ids=lambda forged: next(iter(forged)),
)
def test_a_message_cannot_forge_what_the_worker_knows(
    stack: Stack, foreign: Celery, tenant: str, forged: dict[str, Any]
) -> None:
    """The rows tell what the worker itself saw."""
    result = foreign.send_task("test.echo", (1,), headers=headers_for(tenant, **forged))
    assert result.get(timeout=20) == 1
    started, completed = the_pair(stack, tenant)
    assert started.request_id == completed.request_id != FORGED
    assert started.payload["caller_persona"] == PERSONA
    assert started.payload["args_hash"] == digest({"x": 1})
    assert started.meta["redelivered"] is False
    assert started.meta["task_id"] == result.id


@pytest.mark.parametrize("forged", ["_skill_child_state", "called_directly", "is_eager"])
def test_a_forged_state_opens_no_gate(
    stack: Stack, foreign: Celery, tenant: str, forged: str
) -> None:
    """A skill that skips the started row does not run for a message that claims to have one."""
    headers = headers_for(tenant, **{forged: True})
    result = foreign.send_task("test.forgetful", (f"forged {forged}",), headers=headers)
    assert type(failure(result)) is NotStartedError
    assert stack.rows(tenant_id=tenant) == []
    assert f"forged {forged}" not in stack.journal()


@pytest.mark.parametrize(
    "poison",
    [
        {"id": ["x"]},
        {"id": {"a": 1}},
        {"id": None},
        {"timelimit": 5},
        {"timelimit": "x"},
        {"timelimit": ["x", "y"]},
        {"timelimit": [1, 2, 3]},
        {"stamped_headers": 5},
        {"stamped_headers": [["x"]], "stamps": {}},
        {"stamped_headers": ["x"], "stamps": 5},
    ],
    ids=str,
)
def test_a_header_that_would_end_the_worker(
    stack: Stack, foreign: Celery, tenant: str, poison: dict[str, Any]
) -> None:
    """Rejected for good, with the header's name in the log: Celery would end for it, and every
    other worker that got the message back."""
    worker = stack.running()
    complaint = f"header '{next(iter(poison))}' has no value that Celery could use"
    if "stamps" in poison:
        complaint = "' has no value that Celery could use"
    before = worker.text().count(complaint)
    headers = headers_for(tenant, **poison)
    foreign.send_task("test.effect", ("poison",), headers=headers)
    wait_until(lambda: worker.text().count(complaint) > before, 20)
    assert stack.rows(tenant_id=tenant) == []
    assert "poison" not in stack.journal()


@pytest.mark.parametrize("timelimit", [None, [None, None], [60, 30], [60.5, None], []], ids=str)
def test_time_limits_in_the_message_are_kept(
    stack: Stack, foreign: Celery, tenant: str, timelimit: Any
) -> None:
    """What Celery can use is no poison."""
    headers = headers_for(tenant, timelimit=timelimit)
    assert foreign.send_task("test.echo", (1,), headers=headers).get(timeout=20) == 1
    the_pair(stack, tenant)


def test_the_row_tells_what_was_executed(stack: Stack, foreign: Celery, tenant: str) -> None:
    """Published as one task under one id, forged into another: the rows say what really ran."""
    forged_id = f"forged-{uuid4()}"
    headers = headers_for(tenant, id=forged_id, task="test.effect")
    foreign.send_task("test.echo", ("executed instead",), headers=headers)
    assert foreign.AsyncResult(forged_id).get(timeout=20) == "executed instead"
    started, completed = the_pair(stack, tenant)
    assert started.payload["skill_id"] == completed.payload["skill_id"] == "test.effect"
    assert started.meta["task_id"] == completed.meta["task_id"] == forged_id
    assert "executed instead" in stack.journal()


@pytest.mark.parametrize(
    ("task_id", "told"),
    [
        ("x" * 100_000, "x" * 255),
        (
            "null\x00 bell\x07 escape\x1b[31m line\n feed",
            "null\x00 bell\x07 escape\x1b[31m line\n feed",
        ),
        ("é\u2028\u202e", r"\xe9\u2028\u202e"),
    ],
    ids=["huge", "control characters", "no ASCII"],
)
def test_a_task_id_may_be_any_text(
    stack: Stack, foreign: Celery, tenant: str, task_id: str, told: str
) -> None:
    """It stands in the rows in ASCII, and not longer than 255 characters."""
    task_id = f"{tenant} {task_id}"
    result = foreign.send_task("test.echo", (1,), task_id=task_id, headers=headers_for(tenant))
    assert result.get(timeout=20) == 1
    started, completed = the_pair(stack, tenant)
    assert started.meta["task_id"] == completed.meta["task_id"] == f"{tenant} {told}"[:255]


@pytest.mark.parametrize(
    ("args", "kwargs", "misfit"),
    [
        ((), {}, "missing: mark"),
        (("x", "y"), {}, "2 positional where at most 1 can be"),
        (("x",), {"mark": SECRET}, "given both by position and by name: mark"),
        (("x",), {"other": SECRET}, "unexpected keywords: other"),
    ],
)
def test_arguments_of_a_foreign_publisher_that_do_not_fit(
    stack: Stack,
    foreign: Celery,
    tenant: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    misfit: str,
) -> None:
    """Refused as bad_arguments, with caller and tenant; the caller is told names, no values."""
    result = foreign.send_task("test.effect", args, kwargs, headers=headers_for(tenant))
    error = failure(result)
    assert type(error) is SkillArgumentsError
    assert misfit in str(error)
    assert SECRET not in str(error)
    row = the_refused_row(stack, tenant, result.id)
    assert (row.payload["reason"], row.payload["caller_persona"]) == ("bad_arguments", PERSONA)
    assert not {"x", "y"} & set(stack.journal())


def test_arguments_that_do_not_fit_a_skill_the_publisher_does_not_know(
    stack: Stack, tenant: str
) -> None:
    """Another host publishes by name: it cannot check, so the worker refuses."""
    with SkillHost("elsewhere", set_as_current=False) as app, caller(tenant):
        app.conf.update(
            broker_url=stack.environ["CELERY_BROKER_URL"],
            result_backend=stack.environ["CELERY_RESULT_BACKEND"],
            task_default_queue="skills",
        )
        result = app.send_task("test.effect", ("x", "y"))
        assert type(failure(result)) is SkillArgumentsError
    assert the_refused_row(stack, tenant, result.id).payload["reason"] == "bad_arguments"


@pytest.mark.parametrize(
    "value",
    [float("nan"), [float("inf")], f"{SECRET}\ud800", {"\udfff": SECRET}, nested(200)],
    ids=["nan", "infinity", "surrogate", "surrogate key", "deep"],
)
def test_arguments_of_a_foreign_publisher_without_canonical_form(
    stack: Stack, foreign: Celery, tenant: str, value: Any
) -> None:
    """JSON as Python writes it can carry them: refused as uncanonical_arguments."""
    result = foreign.send_task("test.echo", (value,), headers=headers_for(tenant))
    error = failure(result)
    assert type(error) is CanonicalizationError
    assert "$.x" in str(error)
    assert SECRET not in str(error)
    row = the_refused_row(stack, tenant, result.id)
    assert row.payload["reason"] == "uncanonical_arguments"


@pytest.mark.parametrize(
    "body",
    [
        ("text", {}),
        (5, {}),
        (None, {}),
        ({"mark": "x"}, {}),
        (True, {}),
        ("x", {}),
        (["x"], {"": SECRET}),
    ],
    ids=str,
)
def test_arguments_that_are_none(
    stack: Stack, foreign: Celery, tenant: str, body: tuple[Any, Any]
) -> None:
    """Positional arguments are a list; whatever else a message has there, the skill is refused."""
    task_id = send_raw(foreign, headers_for(tenant), *body)
    error = failure(foreign.AsyncResult(task_id))
    assert type(error) is SkillArgumentsError
    assert SECRET not in str(error)
    assert the_refused_row(stack, tenant, task_id).payload["reason"] == "bad_arguments"
    assert not {"x", "t", "mark"} & set(stack.journal())


@pytest.mark.parametrize("kwargs", [["x"], None, "mark", 5], ids=str)
def test_keywords_that_are_none(stack: Stack, foreign: Celery, tenant: str, kwargs: Any) -> None:
    """Celery's tracer itself gives up on such a message, before any hook: nothing runs."""
    complaint = "Task keyword arguments is not a mapping"
    worker = stack.running()
    before = worker.text().count(complaint)
    send_raw(foreign, headers_for(tenant), ["x"], kwargs)
    wait_until(lambda: worker.text().count(complaint) > before, 20)
    assert stack.rows(tenant_id=tenant) == []
    assert "x" not in stack.journal()


def test_a_message_of_protocol_1(stack: Stack, foreign: Celery) -> None:
    """It has no headers, so it has no caller: refused, not run."""
    with Celery("ancient", set_as_current=False) as ancient:
        ancient.conf.update(foreign.conf.changes)
        ancient.conf.update(
            broker_url=foreign.conf.broker_url,
            result_backend=foreign.conf.result_backend,
            task_default_queue="skills",
            task_protocol=1,
        )
        result = ancient.send_task("test.effect", ("protocol 1",))
        assert type(failure(result)) is MissingInvocationContext
    assert the_refused_row(stack, NIL_TENANT, result.id).payload["reason"] == "missing_context"
    assert "protocol 1" not in stack.journal()


def test_ten_megabytes_work_end_to_end(stack: Stack, tenant: str) -> None:
    """A large argument is hashed like a small one, and never enters a row."""
    text = "0123456789" * 1_000_000
    with caller(tenant):
        assert stack.skills.length.delay(text).get(timeout=60) == len(text)
    started, completed = the_pair(stack, tenant)
    assert started.payload["args_hash"] == digest({"text": text})
    assert completed.payload["result_hash"] == digest(len(text))
    assert len(started.to_bytes()) < 1000


# --- skills that get in the way of their own audit ------------------------------------------------


def test_a_before_start_that_forgets_super(stack: Stack, tenant: str) -> None:
    """Its body never runs, and the error says what to call."""
    with caller(tenant):
        error = failure(stack.skills.forgetful.delay("forgetful"))
    assert type(error) is NotStartedError
    assert "super().before_start(task_id, args, kwargs)" in str(error)
    assert stack.rows(tenant_id=tenant) == []
    assert "forgetful" not in stack.journal()


def test_a_before_start_that_swallows_a_refusal(stack: Stack, foreign: Celery, tenant: str) -> None:
    """The body of a refused message does not run, whatever the skill makes of the error."""
    headers = headers_for(tenant, audit_persona=5)
    result = foreign.send_task("test.swallows-refusal", ("swallowed",), headers=headers)
    assert type(failure(result)) is NotStartedError
    the_refused_row(stack, NIL_TENANT, result.id)
    assert "swallowed" not in stack.journal()


def test_a_before_start_that_swallows_a_failed_emit(tmp_path_factory: Any) -> None:
    """Nor does that of an invocation whose started row nobody took."""
    with EmbeddedServer() as server:
        url = server.url
    with running_stack(tmp_path_factory.mktemp("swallows")) as stack:
        stack.worker("prefork", 1, environ={"AUDIT_MEMORY_URL": url})
        with caller():
            result = stack.skills.swallows_refusal.delay("swallowed, too")
        assert type(failure(result)) is NotStartedError
        assert stack.journal() == []
