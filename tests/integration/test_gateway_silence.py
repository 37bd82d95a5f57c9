"""A gateway whose broker or result backend says nothing any more: who waits, and for how long."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from audit.embedded import EmbeddedServer
from tests.integration.gateway import gateway_of
from tests.integration.silent import SilentProxy
from tests.integration.stack import running_stack
from tests.support import wait_until

#: Few threads, and little time for each call.
SMALL = '{"threads": 2, "line": 2, "seconds": 2}'
ONE = '{"threads": 1, "line": 2, "seconds": 2}'


def test_while_the_broker_hangs_answers_are_still_given(tmp_path: Path) -> None:
    """Whoever asks for what became of a call has it, however many calls hang in the broker."""
    with EmbeddedServer() as broker, running_stack(tmp_path) as stack:
        environ = {"CELERY_BROKER_URL": broker.url}
        stack.worker("solo", 1, environ=environ)
        with gateway_of(stack, **environ, GATEWAY=SMALL) as gateway:
            known = gateway.call("test.echo", {"x": 1}, wait=20)
            broker.pause()
            try:
                with ThreadPoolExecutor(4) as pool:
                    calls = [pool.submit(gateway.call, "test.echo", {}) for _ in range(4)]
                    assert [call.result().status for call in calls] == [503] * 4
                asked = gateway.request("GET", known.json["status_link"])
            finally:
                broker.resume()
            assert (asked.status, asked.json["result"]) == (200, 1)


def test_while_the_result_backend_hangs_calls_are_still_taken(tmp_path: Path) -> None:
    """However many wait for a result that nobody can be asked for."""
    with EmbeddedServer() as results, running_stack(tmp_path) as stack:
        environ = {"CELERY_RESULT_BACKEND": results.url}
        stack.worker("solo", 1, environ=environ)
        with gateway_of(stack, **environ, GATEWAY=SMALL) as gateway:
            assert gateway.call("test.echo", {"x": 1}, wait=20).status == 200
            results.pause()
            try:
                with ThreadPoolExecutor(4) as pool:
                    waits = [pool.submit(gateway.call, "test.echo", {}, wait=4) for _ in range(4)]
                    assert [wait.result().status for wait in waits] == [504] * 4
                answer = gateway.call("test.effect", {"mark": "taken"})
                asked = gateway.request("GET", answer.headers["location"])
                again = gateway.text().count("cannot ask for a result")
            finally:
                results.resume()
            assert (answer.status, asked.fault) == (202, "results_unreachable")
            assert again == 1
            assert gateway.ended(answer)["result"] == "taken"


def test_connections_that_died_silently_are_given_up(tmp_path: Path) -> None:
    """Calls on them are answered 503, no thread is lost over them, and nothing runs twice."""
    with EmbeddedServer() as broker, running_stack(tmp_path) as stack:
        stack.worker("solo", 1, environ={"CELERY_BROKER_URL": broker.url})
        with (
            SilentProxy(broker.url) as proxy,
            gateway_of(stack, CELERY_BROKER_URL=proxy.url, GATEWAY=ONE) as gateway,
        ):
            assert gateway.call("test.effect", {"mark": "before"}, wait=20).status == 200
            proxy.lose_all()
            assert gateway.call("test.effect", {"mark": "lost"}).fault == "broker_unreachable"
            wait_until(lambda: gateway.call("test.echo", {}).status == 202, 20)
            assert gateway.call("test.effect", {"mark": "after"}, wait=20).status == 200
            assert stack.journal() == ["before", "after"]


def test_a_broker_that_hangs_for_long_gets_every_call_once(tmp_path: Path) -> None:
    """What was given up is not sent again beside what still lies in the broker's socket."""
    with EmbeddedServer() as broker, running_stack(tmp_path) as stack:
        environ = {"CELERY_BROKER_URL": broker.url}
        stack.worker("solo", 1, environ=environ)
        with gateway_of(stack, **environ, GATEWAY=ONE) as gateway:
            assert gateway.call("test.effect", {"mark": "before"}, wait=20).status == 200
            broker.pause()
            try:
                assert gateway.call("test.effect", {"mark": "hung"}).fault == "broker_unreachable"
                for _ in range(2):  # until the first one's connection is given up
                    assert gateway.call("test.effect", {"mark": "too"}).status == 503
            finally:
                broker.resume()
            wait_until(lambda: gateway.call("test.effect", {"mark": "after"}).status == 202, 20)
            wait_until(lambda: "after" in stack.journal(), 20)
            assert stack.journal().count("hung") == 1
