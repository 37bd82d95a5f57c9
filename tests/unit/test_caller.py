"""tasks/caller.py: on whose behalf this process acts, inside a body, after it, and outside."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from celery import Celery
from celery._state import _task_stack
from celery.app.task import Context

from audit.context import InvocationContext, acting_as, using
from tasks.caller import (
    CHILD_STATE,
    REQUEST_ID_HEADER,
    ChildState,
    child_state,
    context_headers,
    is_skill,
    one_task,
    publishing_context,
    runs,
)
from tasks.caller import running as running_here
from tests.support import TENANT, TRACE_ID

PERSONA = "cuo-cpo@0.4.1"
PARENT = "01JDX3Q6Z0M3J7T4R8W2V5K9AB"
MESSAGE = InvocationContext(PERSONA, TENANT, TRACE_ID, PARENT, on_behalf_of="jane@example.org")
INHERITED = MESSAGE.published_by("01JDX3Q6Z0M3J7T4R8W2V5K9AC")
OTHER = InvocationContext("other@1", TENANT)


@pytest.fixture(scope="module")
def task() -> Any:
    def body() -> None: ...

    return Celery("unit", set_as_current=False).task(body, name="test.task", shared=False)


@contextmanager
def running(task: Any, request: Context) -> Iterator[None]:
    """As Celery's tracer has it while a task runs, and while it publishes what follows."""
    _task_stack.push(task)
    task.request_stack.push(request)
    try:
        yield
    finally:
        task.request_stack.pop()
        _task_stack.pop()


def request(state: object = None, **headers: Any) -> Context:
    made = Context(headers, called_directly=False)
    if state is not None:
        vars(made)[CHILD_STATE] = state
    return made


def test_outside_any_task_the_context_in_force_publishes() -> None:
    """And nothing is in force by default."""
    assert publishing_context() is None
    with using(OTHER):
        assert publishing_context() is OTHER


def test_inside_a_body_the_invocation_publishes(task: Any) -> None:
    """The host has put the inherited context in force."""
    with running(task, request(ChildState(object(), INHERITED))), using(INHERITED):
        assert publishing_context() is INHERITED


def test_after_the_body_the_invocation_still_publishes(task: Any) -> None:
    """Celery publishes links and the next link of a chain with the request still pushed."""
    with running(task, request(ChildState(object(), INHERITED))):
        assert publishing_context() is INHERITED


def test_after_an_eager_body_its_caller_does_not_publish(task: Any) -> None:
    """What was in force before the invocation is not its own: links inherit from the invocation."""
    with using(OTHER), running(task, request(ChildState(object(), INHERITED))):
        assert publishing_context() is INHERITED


def test_acting_as_goes_before_the_invocation(task: Any) -> None:
    """In a body and in a hook after it, whoever acts as another publishes as that one."""
    with running(task, request(ChildState(object(), INHERITED))):
        with acting_as("other@1", tenant_id=TENANT) as in_a_hook:
            assert publishing_context() is in_a_hook
        with using(INHERITED), acting_as("other@1", tenant_id=TENANT) as in_the_body:
            assert publishing_context() is in_the_body
            assert in_the_body.parent_request_id == INHERITED.parent_request_id


def test_a_plain_task_carries_on_what_its_message_says(task: Any) -> None:
    """celery.map and an application's plain tasks: the caller is the one who published them."""
    with running(task, request(**MESSAGE.headers())):
        carried = publishing_context()
        assert carried is not None
        assert carried.headers() == MESSAGE.headers()


def test_a_plain_task_may_act_as_somebody(task: Any) -> None:
    """acting_as goes before what the message says."""
    with running(task, request(**MESSAGE.headers())), using(OTHER):
        assert publishing_context() is OTHER


@pytest.mark.parametrize(
    "headers", [{}, {"audit_persona": PERSONA}, {"audit_persona": 5, "audit_tenant_id": TENANT}]
)
def test_a_plain_task_without_a_usable_caller_has_none(task: Any, headers: dict[str, Any]) -> None:
    """What its message says wrongly stops nothing; a skill that it publishes is refused there."""
    with running(task, request(**headers)):
        assert publishing_context() is None


def test_a_refused_skill_publishes_as_its_message_says(task: Any) -> None:
    """Its errbacks have its caller although it never started."""
    with running(task, request(**MESSAGE.headers())):
        carried = publishing_context()
        assert carried is not None
        assert carried.caller_persona == PERSONA


def test_another_thread_of_a_body_has_no_caller(task: Any) -> None:
    """It has neither the context variable nor Celery's stack."""
    seen: list[Any] = []
    with running(task, request(ChildState(object(), INHERITED))), using(INHERITED):
        thread = threading.Thread(target=lambda: seen.append(publishing_context()))
        thread.start()
        thread.join()
    assert seen == [None]


# --- what a message cannot claim ------------------------------------------------------------------


@pytest.mark.parametrize(
    "forged", [{"invocation": "running"}, ["x"], "running", True, {CHILD_STATE: {}}], ids=str
)
def test_a_message_claims_no_state(task: Any, forged: object) -> None:
    """A header spelled like our own key is no state of an invocation."""
    delivered = request(**{CHILD_STATE: forged}, **MESSAGE.headers())
    assert child_state(delivered) is None
    with running(task, delivered):
        carried = publishing_context()
        assert carried is not None
        assert carried.headers() == MESSAGE.headers()


def test_no_request_has_no_state() -> None:
    """Outside any task."""
    assert child_state(None) is None


def test_a_state_keeps_what_was_in_force() -> None:
    """The context outside the invocation, to tell it from what a body puts in force."""
    with using(OTHER):
        assert ChildState(object(), INHERITED).outside is OTHER
    assert ChildState(object(), INHERITED).outside is None


# --- where the headers are ------------------------------------------------------------------------


def test_a_delivered_messages_headers_are_attributes() -> None:
    """Celery makes every header of a message an attribute of the request."""
    assert context_headers(request(**MESSAGE.headers())) == MESSAGE.headers()


def test_an_eager_calls_headers_are_nested() -> None:
    """apply() keeps them under headers."""
    assert context_headers(request(headers=MESSAGE.headers())) == MESSAGE.headers()


@pytest.mark.parametrize("nested", [None, 5, "text", ["audit_persona"]], ids=str)
def test_a_header_named_headers_may_be_anything(nested: object) -> None:
    """A foreign publisher may have put it there."""
    assert set(context_headers(request(headers=nested)).values()) == {None}


def test_a_class_attribute_is_no_header() -> None:
    """Celery's Context has defaults for names it knows; none of ours may come from there."""

    class Odd(Context):
        audit_persona = "mallory@1"

    assert context_headers(Odd({}))["audit_persona"] is None


def test_the_request_id_is_no_context() -> None:
    """It says which delivery this is, not who calls."""
    assert REQUEST_ID_HEADER not in context_headers(request(**{REQUEST_ID_HEADER: PARENT}))


# --- the invocation that runs here ----------------------------------------------------------------


def test_nothing_runs_outside() -> None:
    """And what one_task held ends with it, whatever leaves it."""
    state = ChildState(object(), INHERITED)

    def leave() -> None:
        with one_task():
            runs(state)
            assert running_here() is state
            raise KeyError

    assert running_here() is None
    with pytest.raises(KeyError):
        leave()
    assert running_here() is None


SAID: Final = "outer values, own values, deep values"


def test_a_task_that_a_worker_runs_knows_of_none_around_it() -> None:
    """In a solo worker or a test another one may run there; its own values alone are masked."""
    outer = ChildState(object(), INHERITED, ("outer",))
    with one_task():
        runs(outer)
        with one_task():
            assert running_here() is None
            own = ChildState(object(), INHERITED, ("own values",))
            assert own.values.mask(SAID) == "outer values, ***, deep values"
        assert running_here() is outer


def test_a_call_in_a_body_is_masked_with_its_callers_values_too() -> None:
    """What the body passes on may be a piece of what it was given; after it the caller runs on."""
    outer = ChildState(object(), INHERITED, ("outer values",))
    with one_task():
        runs(outer)
        with one_task(nested=True):
            assert running_here() is outer
            inner = ChildState(object(), INHERITED, ["own values"])
            runs(inner)
            assert inner.values.mask(SAID) == "***, ***, deep values"
            with one_task(nested=True):
                deeper = ChildState(object(), INHERITED, ("deep values",))
                assert deeper.values.mask(SAID) == "***, ***, ***"
        assert running_here() is outer
        assert outer.values.mask(SAID) == "***, own values, deep values"


def test_another_thread_runs_nothing() -> None:
    """Threads that a body starts have no context of its own."""
    seen: list[Any] = []
    with one_task():
        runs(ChildState(object(), INHERITED))
        thread = threading.Thread(target=lambda: seen.append(running_here()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_a_skill_is_told_by_what_it_can(task: Any) -> None:
    """Plain tasks have no hash of arguments; nor has what is no task."""

    class Skill:
        def args_hash(self) -> None: ...

    assert is_skill(Skill())
    assert not is_skill(task)
    assert not is_skill(None)
