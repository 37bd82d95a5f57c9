"""tasks/coroutine.py: an ``async def`` body runs to its end, wherever it is called."""

from __future__ import annotations

import asyncio
import contextvars
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery._state import get_current_task
from celery.app.task import Context
from celery.exceptions import Ignore, SoftTimeLimitExceeded

from audit.embedded import EmbeddedServer
from audit.row import COMPLETED, STARTED
from tasks.coroutine import PerThread, in_lent_thread, run_to_its_end
from tests.support import TENANT, checked_memory

ROOT = Path(__file__).parents[2]

_colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


class OwnPanicError(BaseException):
    """A panic of a library's own."""


@pytest.fixture
def task() -> Any:
    def body() -> None: ...

    task = Celery("unit", set_as_current=False).task(body, name="test.task", shared=False)
    task.request_stack.push(Context(id="this one", called_directly=False))
    yield task
    task.request_stack.pop()
    assert task.request_stack.top is None


def inside_a_loop(task: Any, make: Any) -> Any:
    """As a direct call out of code that runs in an event loop."""

    async def main() -> Any:
        return run_to_its_end(task, make())

    return asyncio.run(main())


def outside_any_loop(task: Any, make: Any) -> Any:
    """As a pool child does."""
    return run_to_its_end(task, make())


WAYS = pytest.mark.parametrize("way", [outside_any_loop, inside_a_loop], ids=lambda w: w.__name__)


@WAYS
def test_the_value_comes_back(way: Any, task: Any) -> None:
    """After everything that was awaited."""

    async def body() -> list[int]:
        return await asyncio.gather(*(asyncio.sleep(0.001, n) for n in range(3)))

    assert way(task, body) == [0, 1, 2]


@WAYS
@pytest.mark.parametrize(
    "error",
    [ValueError("no"), SoftTimeLimitExceeded(), Ignore(), OwnPanicError("unwrap"), SystemExit(3)],
    ids=lambda e: type(e).__name__,
)
def test_the_error_comes_back_as_it_is(way: Any, task: Any, error: BaseException) -> None:
    """The very same object, so that the ending is what it would be in a plain body."""

    async def body() -> None:
        await asyncio.sleep(0)
        raise error

    with pytest.raises(type(error)) as caught:
        way(task, body)
    assert caught.value is error


@WAYS
def test_context_and_current_request_go_along(way: Any, task: Any) -> None:
    """What the body publishes is published by its invocation, and self.request is its own."""

    async def body() -> tuple[str, str, Any]:
        await asyncio.sleep(0)
        return _colour.get(), task.request.id, get_current_task()

    token = _colour.set("blue")
    try:
        colour, request_id, current = way(task, body)
    finally:
        _colour.reset(token)
    assert (colour, request_id) == ("blue", "this one")
    assert current is task or way is outside_any_loop


@WAYS
def test_what_the_body_sets_stays_inside(way: Any, task: Any) -> None:
    """Nothing of one invocation is left for the next."""

    async def body() -> None:
        _colour.set("red")

    way(task, body)
    assert _colour.get() == "none"


def test_a_running_loop_gets_its_thread_back(task: Any) -> None:
    """The coroutine runs in a thread of its own there, which ends with it."""
    before = threading.active_count()

    async def body() -> str:
        return threading.current_thread().name

    assert outside_any_loop(task, body) == threading.current_thread().name
    assert inside_a_loop(task, body).startswith("skill")
    assert threading.active_count() == before


def test_nested_calls_each_run_to_their_end(task: Any) -> None:
    """An async body that calls an async skill directly."""

    async def inner() -> int:
        await asyncio.sleep(0.001)
        return 1

    async def outer() -> int:
        return 1 + run_to_its_end(task, inner())

    assert outside_any_loop(task, outer) == inside_a_loop(task, outer) == 2


def test_without_gevent_there_is_one_of_everything() -> None:
    """Made at the first call, shared by every thread."""
    made: list[object] = []
    per_thread = PerThread(lambda: made.append(object()) or made[-1])
    assert made == []
    seen = [per_thread.get()]
    thread = threading.Thread(target=lambda: seen.append(per_thread.get()))
    thread.start()
    thread.join()
    assert seen == made * 2
    assert in_lent_thread() is False


# --- under gevent, which must patch a process before anything else runs ---------------------------

PATCHED = """
from gevent import monkey
monkey.patch_all()
import asyncio, json, sys
import gevent

def all_of(function, count):
    jobs = [gevent.spawn(function, n) for n in range(count)]
    gevent.joinall(jobs, raise_error=True)
    return [job.value for job in jobs]
"""

THREADS = """
from celery import Celery
from tasks.coroutine import PerThread, in_lent_thread, run_to_its_end

native = monkey.get_original("threading", "get_ident")
made = []
holders = PerThread(lambda: made.append(native()) or object())

def nothing(): ...
task = Celery("unit", set_as_current=False).task(nothing, name="test.task", shared=False)

async def body(n):
    await asyncio.sleep(0.05)
    return n, native(), in_lent_thread(), holders.get() is holders.get()

async def failing():
    raise SystemExit("as it is")

seen = all_of(lambda n: run_to_its_end(task, body(n)), 8)
try:
    run_to_its_end(task, failing())
except SystemExit as error:
    left = str(error)
print(json.dumps({
    "main": native(), "lent": in_lent_thread(), "own": holders.get() is holders.get(),
    "seen": seen, "made": made, "left": left,
}))
"""

CONNECTIONS = """
from audit import acting_as
from tasks import SkillHost

url, tenant = sys.argv[1:]
app = SkillHost("gevent", broker=url, backend=url, set_as_current=True)
app.conf.update(audit_memory_url=url, audit_instrument=False)

@app.skill("test.plain-body", version="1")
def plain_body(n):
    return n

@app.skill("test.async-body", version="1")
async def async_body(n):
    await asyncio.sleep(0.001)
    plain_body.apply_async((n,), ignore_result=True)
    return plain_body(n)

def call(n):
    with acting_as("gevent@1", tenant_id=tenant):
        if n % 2:
            return async_body(n)
        plain_body.apply_async((n,), ignore_result=True)
        return plain_body(n)

print(json.dumps(all_of(call, 80)))
"""


def patched(script: str, *arguments: str) -> Any:
    """What ``script`` printed as JSON, in a process that gevent patched."""
    done = subprocess.run(
        [sys.executable, "-c", PATCHED + script, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_under_gevent_every_coroutine_is_lent_a_thread() -> None:
    """Never the main one, whose greenlets go on; values and errors come back from there."""
    told = patched(THREADS)
    numbers, threads, lent, same = zip(*told["seen"], strict=True)
    assert numbers == tuple(range(8))
    assert told["main"] not in threads
    assert all(lent)
    assert told["lent"] is False
    assert told["left"] == "as it is"
    # What holds connections: one for each lent thread, and one for the main thread.
    assert all(same)
    assert told["own"] is True
    assert sorted(told["made"]) == sorted({*threads, told["main"]})


def test_under_gevent_no_connection_crosses_a_thread(server: EmbeddedServer) -> None:
    """Bodies in lent threads and in the main one publish and emit at once: all of it succeeds.

    gevent binds a socket to its thread; one that crossed over raised "Cannot switch to a different
    thread" in whoever came next.
    """
    url = server.url_for(1)
    assert patched(CONNECTIONS, url, TENANT) == list(range(80))
    with checked_memory(url) as memory:
        kinds = [row.kind for row in memory.rows(tenant_id=TENANT)]
    assert kinds.count(STARTED) == kinds.count(COMPLETED) == 40 + 40 + 40
