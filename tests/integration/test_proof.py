"""Contexts that are proven, on a real stack: what was signed runs, and nothing else does.

The forger is whoever can write to the broker, and read it: a plain client that knows Celery's
messages, and no key.
"""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final
from uuid import uuid4

import pytest
import redis
from celery import Celery, chain, chord, group, signals
from celery.beat import Scheduler
from celery.result import AsyncResult
from opentelemetry import trace

from audit import AuditRow, InvalidInvocationContext, InvocationContext, acting_as
from audit.errors import (
    ExpiredContextError,
    MissingInvocationContext,
    UnprovenContextError,
)
from audit.row import COMPLETED, NIL_TENANT, REFUSED, STARTED
from audit.schedule import Tick
from tasks import proof
from tasks.beat import TickingScheduler
from tests.integration.forger import HELD, Forger, Message
from tests.integration.otlp import OtlpSink
from tests.integration.stack import PERSONA, Stack, Worker, caller, running_stack
from tests.integration.test_publish_paths import PATH, invocations
from tests.integration.ways import WAYS, Way
from tests.support import wait_until

OLD = {"id": "2026.old", "secret": "old-" + "0123456789abcdef" * 2}
NEW = {"id": "2026.new", "secret": "new-" + "fedcba9876543210" * 2}
VICTIM = "aaaaaaaa-0000-4000-8000-00000000beef"
LIMITED_TENANT = "bbbbbbbb-0000-4000-8000-00000000cafe"
LIMITED = {"id": "ltd", "secret": "ltd-" + "0123456789abcdef" * 2}
LIMITS = {"tenants": [LIMITED_TENANT], "personas": ["cuo-*"]}
NAMES = InvocationContext("mallory@1", VICTIM).headers()
DAY = 86400


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A caller with a key, and a prefork worker that knows it and one of limited use."""
    with running_stack(tmp_path_factory.mktemp("proof"), audit_context_keys=[OLD]) as stack:
        stack.environ["AUDIT_CONTEXT_KEYS"] = json.dumps([OLD])  # of callers in other processes
        keys = json.dumps([OLD, {**LIMITED, **LIMITS}])
        stack.worker(
            "prefork", 2, environ={"AUDIT_CONTEXT_KEYS": keys}, accept_content=["json", "yaml"]
        )
        yield stack
        for row in stack.rows():
            assert row.tenant_id != VICTIM


@pytest.fixture(scope="module")
def forger(stack: Stack) -> Iterator[Forger]:
    forger = Forger(stack)
    yield forger
    forger.close()


@pytest.fixture(scope="module")
def foreign(stack: Stack) -> Iterator[Celery]:
    """A plain Celery app, which signs nothing."""
    with Celery("foreign", set_as_current=False) as app:
        app.conf.update(
            broker_url=stack.environ["CELERY_BROKER_URL"],
            result_backend=stack.environ["CELERY_RESULT_BACKEND"],
            task_default_queue="skills",
        )
        yield app


def use_keys(stack: Stack, monkeypatch: pytest.MonkeyPatch, *keys: dict[str, Any]) -> None:
    """Give the caller other keys, until the test ends."""
    monkeypatch.setitem(stack.app.conf, "audit_context_keys", list(keys))
    monkeypatch.delattr(stack.app, "skill_runtime", raising=False)


def failure(stack: Stack, task_id: str) -> BaseException:
    """What whoever asks for the result gets."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 -- the caller of this looks at it
        AsyncResult(task_id, app=stack.app).get(timeout=20)
    return caught.value


def is_refused(
    stack: Stack,
    task_id: str,
    reason: str = "bad_signature",
    error: type[Exception] = UnprovenContextError,
    skill: str = "test.effect",
) -> AuditRow:
    """One row says so, with nobody's name in it, and the caller gets an error of its own."""
    raised = failure(stack, task_id)
    assert type(raised) is error
    assert raised.http_status == 403  # type: ignore[attr-defined]
    (row,) = stack.rows(task_id=task_id)
    assert row.kind == REFUSED
    assert row.payload["reason"] == reason
    assert row.payload["skill_id"] == skill
    assert row.tenant_id == NIL_TENANT
    assert not row.payload.get("caller_persona")
    assert len(row.request_id) == 26
    assert row.meta.get("context_key") is None
    return row


def barrier(stack: Stack) -> None:
    """All that was published before has been taken by the worker, and its children have ended."""
    with caller():
        marks = [stack.skills.effect.delay(f"barrier {uuid4()}") for _ in range(4)]
    for mark in marks:
        mark.get(timeout=20)


def held(stack: Stack, forger: Forger, mark: str, **options: Any) -> Message:
    """A signed call of test.effect, out of the broker."""
    with caller():
        stack.skills.effect.apply_async((mark,), queue=HELD, **options)
    return forger.take()


# --- what is signed runs --------------------------------------------------------------------------


#: Calls made in a body have no message of their own; the one around them is proven: see below.
DIRECT: Final = {
    "publish_map": 2,
    "publish_starmap": 2,
    "publish_chunks": 4,
    "publish_direct_call": 1,
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_every_way_to_publish_is_proven(stack: Stack, way: Way) -> None:
    """Whoever publishes signs, the worker too: every started row names the key."""
    tenant = str(uuid4())
    with caller(tenant, "way@1"), trace.use_span(PATH.span()):
        way.publish(stack)
    count = way.invocations.total()
    started = invocations(stack, tenant, count)
    assert len(started) == count
    keys = Counter(row.meta.get("context_key") for row in started)
    direct = DIRECT.get(way.publish.__name__, 0)
    assert keys == +Counter({"2026.old": count - direct, None: direct})
    assert {row.payload["caller_persona"] for row in started} == {"way@1"}
    assert stack.rows(tenant_id=tenant, kind=REFUSED) == []


def test_calls_without_a_message_need_no_proof(stack: Stack) -> None:
    """Direct and eager calls are of this very process."""
    tenant = str(uuid4())
    with caller(tenant):
        assert stack.skills.echo(1) == 1
        assert stack.skills.echo.apply((2,)).get() == 2
        assert stack.skills.calls_directly.delay(3).get(timeout=20) == 3
    rows = stack.rows(tenant_id=tenant, kind=STARTED)
    assert sorted(str(row.meta.get("context_key")) for row in rows) == ["2026.old", *["None"] * 3]


class Signing(TickingScheduler, Scheduler):
    """Keeps its entries nowhere."""


def test_the_entry_of_a_beat_schedule_is_signed(stack: Stack) -> None:
    """As beat publishes it: the entry's own headers name the caller, beat's the tick."""
    tenant = str(uuid4())
    headers = InvocationContext("scheduler@1", tenant).headers()
    stack.app.conf.beat_schedule = {
        "tick": {"task": "test.echo", "schedule": 60, "args": [1], "options": {"headers": headers}}
    }
    scheduler = Signing(stack.app)
    scheduler.apply_async(scheduler.schedule["tick"], advance=False)
    (row,) = invocations(stack, tenant, 1)
    assert row.meta["context_key"] == "2026.old"
    assert row.meta["schedule"] == "tick"


@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"serializer": "yaml"}, {}])
def test_serializers_and_compression(stack: Stack, options: dict[str, Any]) -> None:
    """Signed before it is compressed, verified after."""
    policy = {"max_retries": 1}
    with caller():
        result = stack.skills.effect.apply_async(("packed",), retry_policy=policy, **options)
    started, _ = stack.pair(result.id)
    assert started.meta["context_key"] == "2026.old"


def test_a_stamped_message_that_a_receiver_changed(stack: Stack) -> None:
    """What is signed is what is sent."""

    def change(body: Any = None, headers: Any = None, **_: Any) -> None:
        body[1]["mark"] = "as a receiver has it"
        headers["x-of-mine"] = "added"

    signature = stack.skills.effect.signature(kwargs={"mark": "as it was"})
    signature.stamp(project="x")
    signals.before_task_publish.connect(change, weak=False)
    try:
        with caller():
            result = signature.apply_async()
    finally:
        signals.before_task_publish.disconnect(change)
    started, _ = stack.pair(result.id)
    assert started.meta["context_key"] == "2026.old"
    assert "as a receiver has it" in stack.journal()


def test_a_verbatim_copy_gets_rows_of_its_own(stack: Stack, forger: Forger) -> None:
    """It is what a redelivery looks like, and both its rows say so, whatever the broker does."""
    message = held(stack, forger, "copied")
    task_id = forger.put(message)
    forger.put(message)
    wait_until(lambda: len(stack.rows(task_id=task_id, kind=COMPLETED)) == 2, 20)
    rows = stack.rows(task_id=task_id, kind=STARTED)
    assert len({row.request_id for row in rows}) == 2
    assert {row.meta["context_key"] for row in rows} == {"2026.old"}
    assert stack.journal().count("copied") == 2
    assert sorted(
        [row.meta["redelivered"] for row in stack.rows(request_id=request_id)]
        for request_id in {row.request_id for row in rows}
    ) == [[False, False], [True, True]]


# --- what is not ----------------------------------------------------------------------------------


def test_a_message_that_is_not_signed(stack: Stack, foreign: Celery) -> None:
    """Headers are only a claim."""
    result = foreign.send_task("test.effect", ("unsigned",), headers=NAMES)
    is_refused(stack, result.id)
    assert "unsigned" not in stack.journal()


def test_a_message_of_nobody_is_refused_as_before(stack: Stack, foreign: Celery) -> None:
    """Whose context is not there is told so."""
    result = foreign.send_task("test.effect", ("nobody",))
    assert type(failure(stack, result.id)) is MissingInvocationContext
    (row,) = stack.rows(task_id=result.id)
    assert row.payload["reason"] == "missing_context"


def header(name: str, value: Any) -> Callable[[Message], None]:
    return lambda message: message.headers.__setitem__(name, value)


def without(name: str) -> Callable[[Message], None]:
    return lambda message: message.headers.__delitem__(name)


def part(name: str, value: Any) -> Callable[[Message], None]:
    return lambda message: message.edit(lambda body: body[2].__setitem__(name, value))


def envelope(name: str, value: Any) -> Callable[[Message], None]:
    return lambda message: message.envelope.__setitem__(name, value)


def compressed(message: Message) -> None:
    message.headers["compression"] = "application/x-gzip"
    message.edit(lambda body: body[0].__setitem__(0, "altered"))
    message.body = base64.b64encode(zlib.compress(message.body))


LINK = {"task": "test.effect", "args": ["added"], "kwargs": {}, "options": {"headers": NAMES},
        "subtask_type": None, "immutable": True}  # fmt: skip
ALTERATIONS: dict[str, Callable[[Message], None]] = {
    "persona": header("audit_persona", "mallory@1"),
    "tenant": header("audit_tenant_id", VICTIM),
    "trace": header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    "no trace": without("traceparent"),
    "parent": header("audit_parent_request_id", "01JDX3Q6Z0M3J7T4R8W2V5K9AB"),
    "human": header("audit_on_behalf_of", "ceo@example.org"),
    "group": header("group", str(uuid4())),
    "another id": header("id", str(uuid4())),
    "eta": header("eta", "2020-01-01T00:00:00+00:00"),
    "no eta": without("eta"),
    "far eta": header("eta", "2099-01-01T00:00:00+00:00"),
    "retries": header("retries", 1),
    "retries as text": header("retries", "0"),
    "stamps": header("stamps", {"link": [LINK]}),
    "stamps of a retry": lambda message: message.headers.update(
        retries=1, stamped_headers=["link"], stamps={"link": [LINK]}
    ),
    "stamped headers": header("stamped_headers", ["chain"]),
    "group index": header("group_index", 1),
    "time limit": header("timelimit", [60, 50]),
    "expires": header("expires", "2099-01-01T00:00:00+00:00"),
    "ignore result": header("ignore_result", None),
    "shadow": header("shadow", "test.fail"),
    "root task": header("root_id", str(uuid4())),
    "parent task": header("parent_id", str(uuid4())),
    "nesting": header("replaced_task_nesting", 1),
    "origin": header("origin", "gen1@elsewhere"),
    "span": lambda message: message.headers.update(
        traceparent=message.headers["traceparent"][:-4] + "0-01"
    ),
    "unknown header": header("unknown", None),
    "chain as a header": header("chain", [LINK]),
    "a tick": lambda message: message.headers.update(
        Tick(schedule="nightly", due="2026-11-29T21:45:00.000000Z", once=True).headers()
    ),
    "one header less": without("lang"),
    "no time limit": without("timelimit"),
    "argument": lambda message: message.edit(lambda body: body[0].__setitem__(0, "altered")),
    "keyword": lambda message: message.edit(lambda body: body[1].__setitem__("mark", "altered")),
    "link": part("callbacks", [LINK]),
    "errback": part("errbacks", [LINK]),
    "chain": part("chain", [LINK]),
    "chord": part("chord", {**LINK, "chord_size": 1}),
    "a part of its own": part("errbacks", [LINK, {"audit_proof": ["proven", "2026.old"]}]),
    "encoding": envelope("content-encoding", "us-ascii"),
    "type": envelope("content-type", "application/x-yaml"),
    "no signature": without("audit_signature"),
    "no signature, but a proof": lambda message: message.headers.update(
        audit_signature=None, audit_proof=["proven", "2026.old"]
    ),
    "unknown key": lambda message: message.headers.update(
        audit_signature=message.headers["audit_signature"].replace("2026.old", "2025.old")
    ),
    "issued later": lambda message: message.headers.update(
        audit_signature=message.headers["audit_signature"].replace(":1", ":2", 1)
    ),
    "parts in the headers": lambda message: message.headers.update(
        retries=1, errbacks=[LINK], callbacks=[LINK], chain=[LINK], chord={**LINK, "chord_size": 1}
    ),
    "expired as well": lambda message: message.headers.update(
        retries=1, expires="2020-01-01T00:00:00+00:00"
    ),
    "headers within headers": lambda message: message.headers.update(
        retries=1, headers={**NAMES, "audit_proof": ["proven", "2026.old"]}
    ),
}


@pytest.mark.parametrize("name", ALTERATIONS)
def test_an_altered_message_is_refused(stack: Stack, forger: Forger, name: str) -> None:
    """Whatever was altered: the body does not run, and nothing that was added runs either."""
    message = held(stack, forger, f"was {name}")
    ALTERATIONS[name](message)
    task_id = forger.put(message)
    is_refused(stack, task_id)
    barrier(stack)
    assert not {f"was {name}", "added", "altered"} & set(stack.journal())
    assert stack.rows(tenant_id=VICTIM) == []


def test_another_skill_under_the_same_signature(stack: Stack, forger: Forger) -> None:
    """The skill is signed; the row names the one that would have run."""
    message = held(stack, forger, "for another")
    message.headers["task"] = "test.fail"
    is_refused(stack, forger.put(message), skill="test.fail")


def test_what_is_compressed_by_another_is_not_run(stack: Stack, forger: Forger) -> None:
    """Celery cannot read it, or it is not what was signed."""
    message = held(stack, forger, "compressed")
    compressed(message)
    task_id = forger.put(message)
    barrier(stack)
    assert not {"compressed", "altered"} & set(stack.journal())
    assert [row.kind for row in stack.rows(task_id=task_id)] in ([], [REFUSED])


def test_headers_within_headers_of_a_proven_message_change_nothing(stack: Stack) -> None:
    """Signed or not: a human in there is no human behind the persona."""
    within = {**NAMES, "audit_on_behalf_of": "ceo@example.org"}
    with caller():
        result = stack.skills.effect.apply_async(("within",), headers={"headers": within})
    started, _ = stack.pair(result.id)
    assert started.meta.get("on_behalf_of") is None
    assert started.payload["caller_persona"] == PERSONA


def stamped(stack: Stack, forger: Forger, skill: Any, *args: Any, **stamps: Any) -> str:
    """A signed call with options of the forger's among its stamps; its task id."""
    with caller():
        skill.apply_async(args, queue=HELD)
    message = forger.take()
    message.headers.update(stamped_headers=[*stamps, "stamped_headers"])
    message.headers["stamps"] = {**stamps, "stamped_headers": []}
    message.envelope["properties"]["delivery_info"]["routing_key"] = "skills"
    return forger.put(message)


@pytest.mark.parametrize("option", ["link", "chain", "link_error"])
@pytest.mark.parametrize("name", ["retry", "autoretry", "replace"])
def test_stamps_steer_nothing_that_a_worker_publishes(
    stack: Stack, forger: Forger, name: str, option: str
) -> None:
    """Celery takes a stamp for an option of a retry, and this worker would sign what it names."""
    args = {"retry": ("m",), "autoretry": (), "replace": (7,)}[name]
    task_id = stamped(stack, forger, getattr(stack.skills, name), *args, **{option: [LINK]})
    is_refused(stack, task_id, skill=f"test.{name}")
    barrier(stack)
    assert "added" not in stack.journal()


def test_a_result_goes_into_no_other_group(stack: Stack, forger: Forger) -> None:
    """Else the body of one's own chord would be given what another's parts return."""
    with caller():
        chord([stack.skills.echo.s(1).set(queue=HELD), stack.skills.echo.s(2).set(queue="never")])(
            stack.skills.echo.s()
        )
    message = forger.take()
    message.headers["group_index"] = 5
    is_refused(stack, forger.put(message), skill="test.echo")


# --- delivered again ------------------------------------------------------------------------------


def test_what_is_delivered_again_is_proven(tmp_path: Any) -> None:
    """A child is killed, then the whole worker: Redis marks the message, and it still verifies."""
    with running_stack(tmp_path, audit_context_keys=[OLD]) as stack:
        environ = {"AUDIT_CONTEXT_KEYS": json.dumps([OLD])}
        worker = stack.worker("prefork", 1, environ=environ)
        with caller():
            poison = stack.skills.poison.delay("requeued").id
            wait_until(lambda: len(stack.rows(task_id=poison, kind=STARTED)) >= 2, 20)
            worker.kill()
            with redis.Redis.from_url(stack.server.url_for(0)) as client:
                client.flushdb()
            worker = stack.worker("prefork", 1, environ=environ)
            late = stack.skills.busy_late.delay("restored").id
        wait_until(lambda: len(stack.rows(task_id=late, kind=STARTED)) == 1, 20)
        worker.kill()
        options = {
            "visibility_timeout": 1,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        }
        again = stack.worker("prefork", 1, environ=environ, broker_transport_options=options)
        wait_until(lambda: len(stack.rows(task_id=late, kind=STARTED)) == 2, 40)
        again.kill()
        for row in stack.rows(kind=STARTED):
            assert row.meta["context_key"] == "2026.old"
        assert stack.rows(task_id=late, kind=STARTED)[1].meta["redelivered"] is True
        assert stack.rows(kind=REFUSED) == []


# --- age ------------------------------------------------------------------------------------------


def signed_at(monkeypatch: pytest.MonkeyPatch, moment: float) -> None:
    """The publisher's clock, for what it signs."""
    monkeypatch.setattr(proof, "time", SimpleNamespace(time=lambda: moment))


def test_an_old_proof_is_refused(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed more than audit_context_max_age ago, a day if nobody says otherwise."""
    signed_at(monkeypatch, time.time() - DAY - 60)
    with caller():
        result = stack.skills.effect.delay("too old")
    is_refused(stack, result.id, "expired_context", ExpiredContextError)
    assert "too old" not in stack.journal()


def test_age_counts_from_the_eta(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was signed long ago for now runs; what was due too long ago does not."""
    now = time.time()
    signed_at(monkeypatch, now - 5 * DAY)
    with caller():
        due = stack.skills.effect.apply_async(("due now",), countdown=0.5)
        long_ago = stack.skills.effect.apply_async(
            ("due then",), eta=stack.app.now().replace(year=2020)
        )
    stack.pair(due.id)
    is_refused(stack, long_ago.id, "expired_context", ExpiredContextError)
    signed_at(monkeypatch, now)
    with caller():
        late = stack.skills.effect.apply_async(
            ("signed now",), eta=stack.app.now().replace(year=2020)
        )
    stack.pair(late.id)


# --- plain tasks ----------------------------------------------------------------------------------

ECHO = {"task": "test.effect", "args": [], "kwargs": {}, "options": {}, "subtask_type": None,
        "immutable": False}  # fmt: skip
MAPS: list[tuple[str, dict[str, Any]]] = [
    ("celery.map", {"task": ECHO, "it": ["mapped"]}),
    ("celery.starmap", {"task": ECHO, "it": [["mapped"]]}),
    ("test.plain-publishes", {"x": 1}),
]


@pytest.mark.parametrize(("name", "kwargs"), MAPS)
@pytest.mark.parametrize("claim", [{}, {"audit_proof": ["proven", "2026.old"]}])
def test_a_forged_plain_task_calls_no_skill(
    stack: Stack, foreign: Celery, name: str, kwargs: dict[str, Any], claim: dict[str, Any]
) -> None:
    """Who its headers name is not proven, so nobody calls."""
    result = foreign.send_task(name, (), kwargs, headers={**NAMES, **claim})
    assert type(failure(stack, result.id)) is MissingInvocationContext
    assert "mapped" not in stack.journal()


@pytest.mark.parametrize("name", ["celery.map", "test.plain"])
def test_a_forged_plain_task_embeds_no_proof(
    stack: Stack, forger: Forger, foreign: Celery, name: str
) -> None:
    """What a body embeds would go over the headers of this worker's own."""
    options = {"link": [], "queue": HELD, "headers": NAMES}
    foreign.send_task(name, (), {"task": ECHO, "it": ["embedded"]}, **options)
    message = forger.take()
    message.edit(lambda body: body[2].update(audit_proof=["proven", "2026.old"], **NAMES))
    rejected(stack, forger, message)
    assert "embedded" not in stack.journal()


def rejected(stack: Stack, forger: Forger, message: Message) -> None:
    """The worker says that it throws the message away, and goes on."""
    worker = stack.running()
    before = worker.text().count("Received invalid task message")
    forger.put(message)
    wait_until(lambda: worker.text().count("Received invalid task message") > before, 20)
    barrier(stack)


CARRIERS: list[tuple[str, Any, dict[str, Any]]] = [
    ("test.plain", {"x": 1}, {"callbacks": [LINK]}),
    ("test.plain", {"no": 1}, {"errbacks": [LINK]}),
    ("test.plain", {"x": 1}, {"chain": [LINK]}),
    ("test.plain", {"x": 1}, {"callbacks": [{**ECHO, "task": "test.plain", "args": [1],
      "options": {"link": [LINK]}, "immutable": True}]}),
    ("celery.group", {"tasks": [LINK], "result": [["g", None], []], "group_id": "g",
      "partial_args": []}, {}),
    ("celery.chunks", {"task": LINK, "it": [["added"]], "n": 1}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kwargs", "parts"), CARRIERS)
def test_a_forged_plain_task_carries_no_caller_in(
    stack: Stack, forger: Forger, foreign: Celery, name: str, kwargs: Any, parts: dict[str, Any]
) -> None:
    """The worker would publish its signatures, and sign them as whom they name."""
    foreign.send_task(name, (), kwargs, queue=HELD)
    message = forger.take()
    message.edit(lambda body: body[2].update(parts))
    rejected(stack, forger, message)
    assert "added" not in stack.journal()
    assert stack.rows(tenant_id=VICTIM) == []


def test_plain_tasks_of_nobody_still_run(stack: Stack, foreign: Celery) -> None:
    """With callbacks, from publishers without keys; relayed headers do not stop them."""
    link = foreign.signature("test.plain", (2,), immutable=True)
    assert foreign.send_task("test.plain", (1,), link=[link]).get(timeout=20) == 1
    assert foreign.send_task("test.plain", (3,), headers=NAMES).get(timeout=20) == 3


def test_a_signed_plain_task_carries_its_caller(stack: Stack, forger: Forger) -> None:
    """And altered, it carries nobody."""
    tenant = str(uuid4())
    with caller(tenant):
        stack.skills.effect.map(["signed map"]).apply_async(queue=HELD)
    message = forger.take()
    forger.put(message)
    invocations(stack, tenant, 1)
    message.edit(lambda body: body[1].update(it=["altered map"]))
    message.headers["id"] = str(uuid4())
    assert type(failure(stack, forger.put(message))) is MissingInvocationContext
    assert "altered map" not in stack.journal()


def everything(client: Any) -> Iterator[str]:
    """All keys of a server, and all that is in them."""
    read: dict[bytes, Callable[[bytes], Any]] = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"set": client.smembers,
        b"stream": client.xrange,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
    }
    for key in client.scan_iter("*"):
        yield repr((key, read[client.type(key)](key)))


def test_nothing_is_left_under_a_forged_tenant(stack: Stack, foreign: Celery) -> None:
    """No row, no tombstone, no key in the memory."""
    result = foreign.send_task("test.effect", ("x",), headers=NAMES, time_limit=5)
    row = is_refused(stack, result.id)
    with redis.Redis.from_url(stack.memory_url) as client:
        texts = list(everything(client))
    assert any(row.request_id in text for text in texts)
    assert not any(VICTIM in text for text in texts)


# --- limits and rotation --------------------------------------------------------------------------


def test_a_key_is_for_its_tenants_and_personas(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the caller, whose copy says so, and at the worker, whatever the caller's says."""
    use_keys(stack, monkeypatch, {**LIMITED, **LIMITS})
    with caller(), pytest.raises(InvalidInvocationContext, match="may sign for this tenant"):
        stack.skills.effect.delay("not mine")
    with acting_as("cuo-1@1", tenant_id=LIMITED_TENANT):
        stack.pair(stack.skills.effect.delay("mine").id)
    use_keys(stack, monkeypatch, LIMITED)
    for persona, tenant in (("cuo-1@1", VICTIM), ("cmo-1@1", LIMITED_TENANT)):
        with acting_as(persona, tenant_id=tenant):
            is_refused(stack, stack.skills.effect.delay("not mine").id)
    assert "not mine" not in stack.journal()


def test_keys_are_changed_without_a_gap(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers learn the new key, callers sign with it, the old one goes: nothing is refused."""
    with running_stack(tmp_path, audit_context_keys=[OLD]) as stack:
        steps = [([OLD, NEW], OLD), ([OLD, NEW], NEW), ([NEW, OLD], NEW), ([NEW], NEW)]
        known: Any = None
        for keys, signer in steps:
            if keys != known:
                if known is not None:
                    stack.running().stop()
                stack.worker("prefork", 1, environ={"AUDIT_CONTEXT_KEYS": json.dumps(keys)})
                known = keys
            use_keys(stack, monkeypatch, signer)
            with caller(str(uuid4())):
                result = stack.skills.nested.delay(1)
            outer, _ = stack.pair(result.id)
            inner, _ = stack.pair(result.get(timeout=20))
            assert outer.meta["context_key"] == signer["id"]
            assert inner.meta["context_key"] == keys[0]["id"]
        assert stack.rows(kind=REFUSED) == []


# --- requests that do not verify ------------------------------------------------------------------


def test_a_task_whose_request_does_not_verify_stops_the_worker(stack: Stack) -> None:
    """One line says which, and what to change; without keys the same worker runs."""
    environ = {"AUDIT_CONTEXT_KEYS": json.dumps([OLD])}
    worker = Worker(stack, "solo", 1, app="tests.integration.careless_app", environ=environ)
    assert worker.process.wait(30) == 1
    (line,) = (line for line in worker.text().splitlines() if "does not start" in line)
    assert "test.careless" in line
    assert "must derive from tasks.request.CarryingRequest" in line
    environ = {"AUDIT_CONTEXT_KEYS": ""}
    unsigned = Worker(stack, "solo", 1, app="tests.integration.careless_app",
                      task_default_queue="elsewhere", environ=environ)  # fmt: skip
    try:
        unsigned.ready()
    finally:
        unsigned.stop()


# --- what a worker says ---------------------------------------------------------------------------


def test_a_worker_names_its_keys_and_no_secret(stack: Stack, foreign: Celery) -> None:
    """Neither at the start, nor when asked, nor in an error."""
    worker = stack.running()
    assert "contexts must be proven: KeyRing(2026.old, ltd)" in worker.text()
    inspect = stack.app.control.inspect(timeout=5)
    answers = repr([inspect.conf(with_defaults=True), inspect.report(), inspect.stats()])
    answers += stack.app.bugreport()
    assert "skills" in answers
    for key in (OLD, LIMITED):
        assert key["secret"] not in worker.text() + answers


def test_without_keys_it_works_and_is_said(tmp_path: Any) -> None:
    """Nothing is signed, nothing verified, and the start-up output warns; the counter counts."""
    with OtlpSink() as sink, running_stack(tmp_path) as stack:
        worker = stack.worker("prefork", 1)
        assert "contexts are not signed" in worker.text()
        with caller():
            started, _ = stack.pair(stack.skills.effect.delay("unsigned is fine").id)
        assert started.meta.get("context_key") is None
        worker.stop()
        environ = {**sink.environ, "AUDIT_CONTEXT_KEYS": json.dumps([OLD])}
        worker = stack.worker("prefork", 1, environ=environ)
        with caller():
            is_refused(stack, stack.skills.effect.delay("unsigned").id)
        assert worker.stop() == 0
        assert sink.total("skill_invoked_refused_total", reason="bad_signature") == 1


def test_a_secret_in_the_configuration_is_not_shown(tmp_path: Any) -> None:
    """``inspect conf`` and ``report`` answer with settings; not with these."""
    with running_stack(tmp_path, audit_context_keys=[OLD]) as stack:
        worker = stack.worker("prefork", 1, audit_context_keys=[OLD], audit_hash_keys=[NEW])
        inspect = stack.app.control.inspect(timeout=5)
        answers = repr([inspect.conf(with_defaults=True), inspect.report()])
        assert "skills" in answers
        for key in (OLD, NEW):
            assert key["secret"] not in answers + worker.text()


def test_canvases_of_forged_parts(stack: Stack, forger: Forger) -> None:
    """A refused link of a chain or a chord stops it: what comes after never runs."""
    effect = stack.skills.effect
    with caller():
        chain(effect.si("first").set(queue=HELD), effect.si("second")).apply_async()
        first = forger.take()
        chord([effect.si("part").set(queue=HELD)], effect.si("chord body")).apply_async()
        counted = forger.take()
        group(effect.si("one").set(queue=HELD)).apply_async()
        one = forger.take()
    for message in (first, counted, one):
        message.headers["audit_persona"] = "mallory@1"
        is_refused(stack, forger.put(message))
    barrier(stack)
    assert not {"first", "second", "part", "chord body", "one"} & set(stack.journal())
