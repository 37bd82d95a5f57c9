"""tasks/proof.py and what the worker's main process does with it: proven, or nothing of it stays.

Messages are published to Celery's in-memory broker, where :class:`Post` takes them out again; what
a forger puts back is handed to the request class as the worker does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery import Celery, Task, signals
from celery._state import _task_stack
from celery.app.task import Context
from celery.exceptions import InvalidTaskError
from celery.worker.request import Request
from celery.worker.state import revoked
from kombu.exceptions import OperationalError

from audit.context import InvocationContext, acting_as
from audit.errors import (
    ExpiredContextError,
    InvalidInvocationContext,
    MissingInvocationContext,
    SkillDefinitionError,
    UnprovenContextError,
)
from audit.keys import KeyRing
from audit.settings import AuditSettings
from audit.signing import SIGNATURE_HEADER
from tasks import SkillHost, SkillTask, proof, runtime
from tasks.caller import publishing_context
from tasks.proof import (
    PROOF_HEADER,
    SigningProducer,
    is_unproven,
    message_token,
    names_a_caller,
    proof_of,
    proven_by,
    proven_context,
    verifies,
)
from tasks.reception import CARRYING, DISCREET, give_requests
from tasks.reprs import WITHHELD
from tasks.request import CarryingRequest, SkillRequest
from tests.fakes import FakeMemory
from tests.support import TENANT

PERSONA = "cuo-cpo@0.4.1"
OTHER = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
KEYS = [{"id": "2026.a", "secret": "s" * 32}]
RING = KeyRing.parse(KEYS)
NAMES = InvocationContext("mallory@1", OTHER).headers()


class Post:
    """An app with a key, and the messages it sent."""

    def __init__(self, app: SkillHost, memory: FakeMemory) -> None:
        self.app = app
        self.memory = memory

    @property
    def settings(self) -> AuditSettings:
        return runtime.runtime_of(self.app).settings

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

    def proof(self, message: Any) -> list[str] | None:
        return proof_of(message, message.headers, self.settings)


@pytest.fixture
def post(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Post]:
    memory = FakeMemory()
    monkeypatch.setattr(runtime, "open_memory", lambda url, timeout: memory)
    with SkillHost("proof", broker="memory://", backend="cache+memory://") as app:
        app.conf.update(
            audit_instrument=False,
            audit_context_keys=KEYS,
            audit_hash_keys=[{"id": "h", "secret": "h" * 32}],
            audit_spool_dir=str(tmp_path),
            task_default_queue=f"proof-{uuid4()}",
        )

        @app.skill("test.echo", version="1", retry_on_worker_lost=True)
        def echo(x: Any = None) -> Any:
            return x

        @app.task(name="test.plain", shared=False, retry_on_worker_lost=True)
        def plain(x: Any = None) -> Any:
            return x

        yield Post(app, memory)


def caller(persona: str = PERSONA, tenant: str = TENANT) -> Any:
    return acting_as(persona, tenant_id=tenant)


def signed(post: Post, name: str = "test.echo", **options: Any) -> Any:
    with caller():
        post.app.tasks[name].apply_async((1,), **options)
    return post.one()


# --- signing --------------------------------------------------------------------------------------


def test_what_is_published_is_proven(post: Post) -> None:
    """By the key's id, with whatever Celery puts into body and headers."""
    message = signed(post, countdown=5, link=post.app.tasks["test.echo"].s(), retries=3)
    assert post.proof(message) == ["proven", "2026.a"]


@pytest.mark.parametrize("compression", [None, "gzip", "bzip2"])
@pytest.mark.parametrize("serializer", ["json", "yaml", "pickle"])
def test_any_serializer_and_compression(
    post: Post, serializer: str, compression: str | None
) -> None:
    """What is signed is the body before compression, of whatever content type."""
    message = signed(post, serializer=serializer, compression=compression)
    assert post.proof(message) == ["proven", "2026.a"]
    assert message.headers.get("compression") is None or compression


def test_stamps_and_a_group(post: Post) -> None:
    """Stamped messages are proven as others are."""
    signature = post.app.tasks["test.echo"].s(1)
    signature.stamp(project="x")
    with caller():
        signature.apply_async()
    message = post.one()
    assert message.headers["stamps"]
    assert post.proof(message) == ["proven", "2026.a"]


def test_a_receiver_that_changes_the_message_is_signed_after_it(post: Post) -> None:
    """The last word before publishing is still the publisher's own."""

    def change(headers: Any = None, body: Any = None, **_: Any) -> None:
        headers["retries"] = 2
        body[1]["x"] = "changed"

    signals.before_task_publish.connect(change, weak=False)
    try:
        with caller():
            post.app.tasks["test.echo"].apply_async()
    finally:
        signals.before_task_publish.disconnect(change)
    message = post.one()
    assert message.payload[1] == {"x": "changed"}
    assert post.proof(message) == ["proven", "2026.a"]


def test_what_came_along_is_no_proof(post: Post) -> None:
    """A retry copies the headers of the attempt before; its signature is of its own."""
    stale = {SIGNATURE_HEADER: "1:x:0:" + "0" * 64, PROOF_HEADER: ["proven", "x"]}
    message = signed(post, headers=stale)
    assert message.headers[SIGNATURE_HEADER] != stale[SIGNATURE_HEADER]
    assert PROOF_HEADER not in message.headers


def test_a_plain_task_without_a_caller_is_not_signed(post: Post) -> None:
    """There is nothing to prove."""
    post.app.tasks["test.plain"].delay(1)
    message = post.one()
    assert SIGNATURE_HEADER not in message.headers
    assert post.proof(message) == ["nobody", ""]


def test_a_caller_without_a_key_publishes_nothing(post: Post) -> None:
    """A key can be limited; the text says where to look, and holds no secret."""
    post.app.conf.audit_context_keys = [{**KEYS[0], "tenants": [OTHER], "personas": ["ops-*"]}]
    with caller(), pytest.raises(InvalidInvocationContext, match="audit_context_keys") as caught:
        post.app.tasks["test.echo"].delay(1)
    assert "s" * 32 not in str(caught.value)
    assert post.sent() == []
    with caller("ops-1@1", OTHER):
        post.app.tasks["test.echo"].delay(1)
    assert post.proof(post.one()) == ["proven", "2026.a"]


class Recorder:
    """A producer whose connection breaks once."""

    def __init__(self) -> None:
        self.published: list[dict[str, Any]] = []
        self.connection = "its own"

    def publish(self, body: Any, *args: Any, **options: Any) -> str:
        self.published.append({"body": body, **options, "headers": dict(options["headers"] or {})})
        if len(self.published) == 1:
            raise OperationalError("gone")
        return "sent"


def test_a_publish_that_is_tried_again_is_signed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its age counts from the last time, and nothing is serialized twice over."""
    clock = iter([100.0, 200.0])
    monkeypatch.setattr(proof, "time", SimpleNamespace(time=lambda: next(clock)))
    inner = Recorder()
    producer = SigningProducer(inner, RING)
    headers = {"task": "t", "id": "i", "audit_persona": PERSONA, "audit_tenant_id": TENANT}
    with pytest.raises(OperationalError):
        producer.publish([[1], {}, {}], headers=headers, serializer="json")
    assert producer.publish([[1], {}, {}], headers=headers, serializer="json") == "sent"
    first, second = inner.published
    assert first["headers"][SIGNATURE_HEADER].split(":")[2] == "100"
    assert second["headers"][SIGNATURE_HEADER].split(":")[2] == "200"
    assert first["body"] == second["body"] == "[[1], {}, {}]"
    assert "serializer" not in second
    assert second["content_type"] == "application/json"
    assert producer.connection == "its own"


@pytest.mark.parametrize("headers", [None, {}, {"hostname": "w"}, {"task": "t"}])
def test_what_carries_no_caller_passes_through(headers: Any) -> None:
    """Events, and plain tasks that nobody called."""
    inner = Recorder()
    inner.published.append({})
    SigningProducer(inner, RING).publish({"a": 1}, headers=headers, serializer="json")
    assert inner.published[1] == {"body": {"a": 1}, "serializer": "json", "headers": headers or {}}


def test_a_header_that_cannot_be_signed_is_not_published(post: Post) -> None:
    """The caller is told which one."""
    with caller(), pytest.raises(InvalidInvocationContext, match=r"header \('when'\)"):
        post.app.tasks["test.echo"].apply_async((1,), headers={"when": uuid4()})
    assert post.sent() == []


# --- what a proof is ------------------------------------------------------------------------------

GARBAGE = [5, True, "", "proven", [], ["proven"], ["proven", 5], [["proven"], "k"], {"proven": "k"},
           ["proven", "k", "x"], b"proven", ["", ""], [None, None]]  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE, ids=repr)
def test_garbage_in_the_place_of_a_proof_proves_nothing(garbage: Any) -> None:
    """And is no error of another kind."""
    message = {**NAMES, PROOF_HEADER: garbage, SIGNATURE_HEADER: garbage}
    assert is_unproven(message)
    assert proven_by(message) is None
    assert message_token(message) is None
    with pytest.raises(UnprovenContextError):
        proven_context(message, message, RING)


def test_a_message_that_was_never_verified() -> None:
    """It is not unproven, where there are no keys; where there are, it proves nothing."""
    assert not is_unproven(NAMES)
    assert proven_by(NAMES) is None
    assert proven_context({}, NAMES, KeyRing()).caller_persona == "mallory@1"
    with pytest.raises(UnprovenContextError, match="never verified"):
        proven_context(NAMES, NAMES, RING)


@pytest.mark.parametrize(
    ("proof", "error"),
    [
        (["unproven", "no"], UnprovenContextError),
        (["expired", "old"], ExpiredContextError),
        (["nobody", ""], MissingInvocationContext),
    ],
)
def test_each_word_has_its_error(proof: list[str], error: type[Exception]) -> None:
    """Refusals tell them apart."""
    with pytest.raises(error) as caught:
        proven_context({**NAMES, PROOF_HEADER: proof}, NAMES, RING)
    assert type(caught.value) is error


def test_a_proven_context_is_what_was_verified() -> None:
    """Headers within headers were not: nobody signed them."""
    message = {**InvocationContext(PERSONA, TENANT).headers(), PROOF_HEADER: ["proven", "k"]}
    claimed = {**message, "audit_on_behalf_of": "ceo@example.org"}
    assert proven_context(message, claimed, RING).on_behalf_of is None


def test_a_token_is_of_one_message(post: Post) -> None:
    """Every copy has it, and nothing else."""
    message, other = signed(post), signed(post)
    tokens = {
        message_token({**each.headers, PROOF_HEADER: post.proof(each)})
        for each in (message, message, other)
    }
    assert len(tokens) == 2
    assert None not in tokens
    assert message_token(message.headers) is None


def test_without_keys_nothing_is_verified(post: Post) -> None:
    """And a message's own word of it is dropped."""
    message = signed(post)
    settings = AuditSettings()
    assert proof_of(message, message.headers, settings) is None
    post.app.conf.audit_context_keys = []
    del post.app.skill_runtime
    message.headers[PROOF_HEADER] = ["proven", "k"]
    assert PROOF_HEADER not in receive(post, message)._request_dict


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ([1, "audit_persona", {"a": ["audit_persona"]}], False),
        ({"options": {"headers": NAMES}}, True),
        ([[{"chain": [{"link": ({"headers": NAMES},)}]}]], True),
        (None, False),
    ],
)
def test_where_a_caller_is_named(value: Any, names: bool) -> None:
    """As a key, at any depth."""
    assert names_a_caller(value) is names


# --- receiving ------------------------------------------------------------------------------------


def receive(post: Post, message: Any, kind: type[Request] = SkillRequest) -> Any:
    """As the worker's strategy does with a message of protocol 2."""
    return kind(
        message,
        app=post.app,
        body=message.body,
        headers=message.headers,
        eventer=None,
        decoded=False,
    )


def forged(post: Post, name: str = "test.echo", embed: Any = None, **headers: Any) -> Any:
    """An unsigned message that names a caller, and what shall be published in its name."""
    foreign = Celery("foreign", broker="memory://", set_as_current=False)
    message = foreign.amqp.as_task_v2(str(uuid4()), name, (1,), {})
    body = (*message.body[:2], {**message.body[2], **(embed or {})})
    with foreign.producer_pool.acquire() as producer:
        producer.publish(
            body,
            routing_key=post.app.conf.task_default_queue,
            serializer="json",
            headers={**message.headers, **NAMES, **headers},
            declare=[post.app.amqp.queues[post.app.conf.task_default_queue]],
        )
    return post.one()


def signature(post: Post, name: str = "test.echo") -> dict[str, Any]:
    """What the worker would publish, and sign, as the caller it names itself."""
    made = post.app.signature(name, (1,), options={"headers": NAMES}, app=post.app)
    return dict(made)


def lost() -> ExceptionInfo:
    try:
        raise WorkerLostError("gone")
    except WorkerLostError:
        return ExceptionInfo()


MAIN_PROCESS: dict[str, Callable[[Any], Any]] = {
    "the child is lost": lambda request: request.on_failure(lost()),
    "hard time limit": lambda request: request.on_timeout(False, 1),
    "soft time limit": lambda request: request.on_timeout(True, 1),
    "revoked": lambda request: (revoked.add(request.id), request.revoked()),
}


@pytest.mark.parametrize("way", MAIN_PROCESS)
@pytest.mark.parametrize("place", ["body", "headers", "context"])
def test_a_forged_skill_publishes_nothing_from_the_main_process(
    post: Post, way: str, place: str
) -> None:
    """Neither errbacks nor links, nor a chord, nor itself once more; and nobody's row is made."""
    parts = {
        "errbacks": [signature(post)],
        "callbacks": [signature(post)],
        "chain": [signature(post)],
        "chord": {**signature(post), "chord_size": 1},
    }
    more = {} if place == "body" else parts if place == "headers" else {"headers": NAMES}
    request = receive(post, forged(post, embed=parts if place == "body" else None, **more))
    assert is_unproven(request._request_dict)
    MAIN_PROCESS[way](request)
    assert post.sent() == []
    assert post.memory.stored == []


@pytest.mark.parametrize("way", MAIN_PROCESS)
def test_a_forged_plain_task_names_nobody_from_the_main_process(post: Post, way: str) -> None:
    """It may be run again, as plain tasks are; nothing it publishes has a caller."""
    request = receive(post, forged(post, "test.plain", headers=NAMES), CarryingRequest)
    MAIN_PROCESS[way](request)
    for message in post.sent():
        assert "audit_persona" not in message.headers
        assert SIGNATURE_HEADER not in message.headers


@pytest.mark.parametrize("part", ["errbacks", "callbacks", "chain", "chord"])
@pytest.mark.parametrize("place", ["body", "headers"])
def test_a_plain_task_whose_signatures_name_a_caller_is_rejected(
    post: Post, part: str, place: str
) -> None:
    """This worker would publish and sign them, as whom they name."""
    value = signature(post) if part == "chord" else [signature(post)]
    where = {"embed": {part: value}} if place == "body" else {part: value}
    message = forged(post, "test.plain", **where)
    with pytest.raises(InvalidTaskError, match="names a caller"):
        receive(post, message, CarryingRequest)


@pytest.mark.parametrize("part", [PROOF_HEADER, "audit_request_id", "is_eager", "id"])
@pytest.mark.parametrize("kind", [SkillRequest, CarryingRequest])
def test_a_body_replaces_no_header(post: Post, part: str, kind: type[Request]) -> None:
    """Celery puts everything a body embeds over the headers, in the child."""
    name = "test.echo" if kind is SkillRequest else "test.plain"
    message = forged(post, name, embed={part: ["proven", "2026.a"]})
    with pytest.raises(InvalidTaskError, match="nothing else"):
        receive(post, message, kind)


def test_plain_tasks_of_nobody_are_left_as_they_are(post: Post) -> None:
    """Callbacks, chains and all, where no caller is named."""
    plain = post.app.tasks["test.plain"]
    plain.apply_async((1,), link=plain.s(), link_error=plain.si())
    request = receive(post, post.one(), CarryingRequest)
    assert request._context.errbacks
    request.on_failure(lost())
    assert len(post.sent()) >= 1


def test_a_refusal_waits_for_nothing(post: Post) -> None:
    """A forged ETA keeps no worker busy, a forged expiry hides no refusal, no limit kills."""
    past, future = "2020-01-01T00:00:00+00:00", "2099-01-01T00:00:00+00:00"
    request = receive(post, forged(post, eta=future, expires=past, timelimit=[1, 1]))
    assert (request.eta, request.expires, request.time_limits) == (None, None, (None, None))
    assert not request.revoked()


def test_a_forger_learns_no_hash(post: Post) -> None:
    """Events show the hash of arguments, keyed: only those of a proven tenant."""
    assert receive(post, forged(post))._argsrepr == WITHHELD
    assert receive(post, signed(post))._argsrepr.startswith("hmac:h:")


@pytest.mark.parametrize("kind", [SkillRequest, CarryingRequest])
def test_headers_out_of_a_body_are_not_proven(post: Post, kind: type[Request]) -> None:
    """Hybrid messages, and those of protocol 1: what is used is not what the signature is of."""
    message = signed(post)
    for taken in (message.headers, {**message.headers, "stamps": {"link": []}}):
        request = kind(
            message, app=post.app, body=((1,), {}, {}), headers=taken, eventer=None, decoded=True
        )
        assert is_unproven(request._request_dict)
        assert "audit_persona" not in request._request_dict


@pytest.mark.parametrize("name", ["test.plain", "test.echo"])
def test_headers_within_headers_are_dropped(post: Post, name: str) -> None:
    """Signed or not: Celery would take them for all that a retry has."""
    message = signed(post, name, headers={"headers": {"audit_on_behalf_of": "ceo@example.org"}})
    assert message.headers["headers"]
    kind = SkillRequest if name == "test.echo" else CarryingRequest
    request = receive(post, message, kind)
    assert proven_by(request._request_dict) == "2026.a"
    assert "headers" not in request._request_dict


# --- whose requests verify ------------------------------------------------------------------------


def nothing() -> None:
    return None


class OwnRequest(Request):
    """Of an application."""


@pytest.mark.parametrize("own", [Request, "celery.worker.request:Request", CARRYING])
def test_a_worker_with_keys_verifies_every_task(post: Post, own: Any) -> None:
    """Plain ones and Celery's own too, however Celery's request class is named."""
    late = post.app.task(nothing, name="test.own", shared=False, Request=own)
    assert verifies(late) is (own == CARRYING)
    give_requests(post.app, proven=True)
    assert post.app.tasks["test.plain"].Request == late.Request == CARRYING
    for name in ("celery.map", "celery.starmap", "celery.group", "celery.chord"):
        assert post.app.tasks[name].Request == DISCREET
    assert all(verifies(task) for task in post.app.tasks.values())


def test_a_request_of_an_application_stays_where_it_may(post: Post) -> None:
    """Without keys any; with keys one that derives from ours."""

    class Own(CarryingRequest):
        pass

    plain = post.app.task(nothing, name="test.own", shared=False, Request=OwnRequest)
    give_requests(post.app, proven=False)
    assert plain.Request is OwnRequest
    plain.Request = Own
    give_requests(post.app, proven=True)
    assert plain.Request is Own


def test_a_task_that_is_not_verified_stops_a_worker_with_keys(post: Post) -> None:
    """It would publish, and sign, what its message names as whom the message names."""
    post.app.task(nothing, name="test.own", shared=False, Request=OwnRequest)
    with pytest.raises(SkillDefinitionError, match=r"test\.own.*tasks\.request\.CarryingRequest"):
        give_requests(post.app, proven=True)


def test_a_task_that_is_not_verified_carries_nothing(post: Post) -> None:
    """Whatever its message says of having been: it was declared since."""
    give_requests(post.app, proven=True)
    late = post.app.task(nothing, name="test.late", shared=False)
    claims = {**NAMES, PROOF_HEADER: ["proven", "2026.a"]}
    assert carried(late, claims) is None
    assert carried(post.app.tasks["test.plain"], claims) is not None


def carried(task: Task, message: dict[str, Any]) -> InvocationContext | None:
    """On whose behalf ``task`` would publish in a child, given such a message."""
    _task_stack.push(task)
    task.request_stack.push(Context(message, called_directly=False))
    try:
        return publishing_context()
    finally:
        task.request_stack.pop()
        _task_stack.pop()


def test_a_skill_that_is_not_verified_stops_the_worker(post: Post) -> None:
    """Its messages would be believed."""

    class Careless(SkillTask):
        abstract = True
        Request = OwnRequest

    post.app.skill("test.careless", version="1", base=Careless)(nothing)
    with pytest.raises(SkillDefinitionError, match=r"test\.careless.*SkillRequest"):
        give_requests(post.app, proven=True)
