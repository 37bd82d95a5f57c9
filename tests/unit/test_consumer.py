"""tasks/consumer.py: what ends with a message, what does not, and whose requests are looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import WorkerShutdown
from celery.worker.consumer import Consumer
from celery.worker.request import Request

from tasks import SkillHost, runtime
from tasks.consumer import SteadyConsumer, steady
from tasks.reception import CARRYING
from tests.fakes import FakeMemory


class LostError(ValueError):
    """Of a transport: the connection is gone."""


class Letter:
    """A message, as far as a consumer handles one."""

    def __init__(self, **headers: Any) -> None:
        self.headers: Any = {"task": "t", "id": "i", **headers}
        self.body = b""
        self.acknowledged = False
        self.rejected: list[bool] = []

    def reject_log_error(self, logger: Any, errors: Any, requeue: bool = False) -> None:
        self.rejected.append(requeue)


def handler(monkeypatch: pytest.MonkeyPatch, receive: Callable[[Any], Any]) -> Any:
    """What a consumer does with a message, where Celery does ``receive``."""
    monkeypatch.setattr(Consumer, "create_task_handler", lambda self: receive)
    consumer = SteadyConsumer.__new__(SteadyConsumer)
    consumer.connection_errors, consumer.channel_errors = (LostError, KeyError), ()
    consumer.task_consumer = SimpleNamespace(channel=object())
    return consumer.create_task_handler()


def raising(error: BaseException) -> Callable[[Any], Any]:
    def receive(message: Any) -> None:
        raise error

    return receive


@pytest.mark.parametrize(
    "error", [TypeError(), ValueError(), AttributeError(), KeyError(), RecursionError()], ids=repr
)
def test_a_message_that_celery_stumbles_over_is_rejected_for_good(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Once, never back into the queue, and the record withholds what it was."""
    message = Letter()
    error.args = ("hunter2",)
    handler(monkeypatch, raising(error))(message)
    assert message.rejected == [False]
    assert type(error).__name__ in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    "error", [LostError(), ConnectionError(), WorkerShutdown(), KeyboardInterrupt()], ids=repr
)
def test_what_is_not_the_message_s_fault_goes_through(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Lost connections, also those that are a ValueError, and the end of the worker."""
    message = Letter()
    with pytest.raises(type(error)):
        handler(monkeypatch, raising(error))(message)
    assert message.rejected == []


def test_a_request_that_was_handed_on_is_not_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the pool is none of the message."""
    made: list[Any] = []
    monkeypatch.setattr(Consumer, "__init__", lambda self, hand_on: made.append(hand_on))

    def broken_pool(request: Any) -> None:
        raise TypeError

    SteadyConsumer(broken_pool)
    message = Letter()
    receive = handler(monkeypatch, lambda each: made[0](SimpleNamespace(message=each)))
    with pytest.raises(TypeError):
        receive(message)
    assert message.rejected == []


@pytest.mark.parametrize(
    "headers", [{"timelimit": ["x"]}, {"id": 5}, {"stamps": [1]}, {"stamped_headers": "x"}]
)
def test_headers_that_celery_uses_too_late_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, headers: dict[str, Any]
) -> None:
    """Also a plain task's: it would stumble once the request is on its way."""
    seen: list[Any] = []
    receive, message = handler(monkeypatch, seen.append), Letter(**headers)
    receive(message)
    assert (seen, message.rejected) == ([], [False])
    receive(Letter(timelimit=[1, None]))
    assert len(seen) == 1


# --- whose requests are looked at -----------------------------------------------------------------


class OwnConsumer(Consumer):
    """Of an application."""


class OwnRequest(Request):
    """Of an application."""


def test_an_application_s_own_consumer_is_steady_too() -> None:
    """And made so once."""
    assert steady(Consumer) is SteadyConsumer
    made = steady(OwnConsumer)
    assert issubclass(made, SteadyConsumer)
    assert issubclass(made, OwnConsumer)
    assert made is steady(OwnConsumer) is steady(made)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[SkillHost]:
    monkeypatch.setattr(runtime, "open_memory", lambda url, timeout: FakeMemory())
    with SkillHost("consumer", broker="memory://", backend="cache+memory://") as app:
        app.conf.update(
            audit_context_keys=[{"id": "k", "secret": "s" * 32}], audit_spool_dir=str(tmp_path)
        )
        yield app


def nothing() -> None:
    return None


def test_a_task_that_was_declared_late_is_received_as_others(
    monkeypatch: pytest.MonkeyPatch, app: SkillHost
) -> None:
    """No task is delivered before a strategy is made for it, and by then its request verifies."""
    made: list[Any] = []
    monkeypatch.setattr(
        Consumer, "update_strategies", lambda self: made.append(late.Request), raising=True
    )
    consumer = SteadyConsumer.__new__(SteadyConsumer)
    consumer.app = app
    late = app.task(nothing, name="test.late", shared=False)
    consumer.update_strategies()
    assert made == [CARRYING]


def test_a_task_that_verifies_nothing_ends_the_worker_it_comes_to(
    monkeypatch: pytest.MonkeyPatch, app: SkillHost, caplog: pytest.LogCaptureFixture
) -> None:
    """Before any message of it is taken."""
    monkeypatch.setattr(Consumer, "update_strategies", lambda self: pytest.fail("taken"))
    consumer = SteadyConsumer.__new__(SteadyConsumer)
    consumer.app = app
    app.task(nothing, name="test.own", shared=False, Request=OwnRequest)
    with pytest.raises(WorkerShutdown):
        consumer.update_strategies()
    assert "test.own" in caplog.text
