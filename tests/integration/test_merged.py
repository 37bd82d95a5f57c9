"""Merged mode: neither a result nor its completed row is ever seen without the other.

A real worker whose result backend is ``merged+redis://`` in the memory's own database. Celery's own
backend, which a reader without the host would use, reads what it stores.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery, chord, group
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError

from audit.embedded import EmbeddedServer
from audit.memory.base import order_of
from audit.row import COMPLETED, STARTED
from tasks.merged import LARGEST
from tests.integration.stack import Stack, Worker, caller, running_stack
from tests.integration.test_pools import ending
from tests.support import TENANT, wait_until

#: One look at both: the tasks among KEYS[3...] of which one is there and the other is not.
LOOK = """
local completed = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
  local row = cjson.decode(entry[2][2])
  if row.kind == 'skill.invoked_completed' then completed[row.meta.task_id] = true end
end
local apart = {}
for _, key in ipairs(redis.call('KEYS', 'celery-task-meta-*')) do
  local task_id = string.sub(key, 18)
  if not completed[task_id] then apart[#apart + 1] = 'result alone: ' .. task_id end
  completed[task_id] = nil
end
for task_id in pairs(completed) do apart[#apart + 1] = 'row alone: ' .. task_id end
return apart
"""


@pytest.fixture(scope="module")
def merged(tmp_path_factory: Any) -> Iterator[Stack]:
    with EmbeddedServer() as server:
        url, directory = server.url_for(2), tmp_path_factory.mktemp("merged")
        with running_stack(directory, memory_url=url, merged=True) as stack:
            stack.worker("prefork", 2)
            yield stack


@pytest.fixture
def store(merged: Stack) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(merged.memory_url) as client:
        yield client


def meta(store: redis.Redis, task_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(store.get(f"celery-task-meta-{task_id}") or b"{}")
    return found


def test_neither_is_seen_without_the_other(merged: Stack, store: redis.Redis) -> None:
    """Looks in one atomic step, all the time that successes and errors come in."""
    apart: list[Any] = []
    done = threading.Event()
    store.flushdb()

    def look() -> None:
        with redis.Redis.from_url(merged.memory_url) as client:
            while not done.is_set():
                apart.extend(client.eval(LOOK, 1, f"audit:{{{TENANT}}}:rows"))

    looker = threading.Thread(target=look)
    looker.start()
    with caller():
        results = [merged.skills.effect.delay(f"seen-{number}") for number in range(150)]
        failed = [merged.skills.fail.delay(f"seen-{number}") for number in range(50)]
    assert [result.get(timeout=60) for result in results] == [f"seen-{n}" for n in range(150)]
    for result in failed:
        with pytest.raises(ValueError, match="cannot use"):
            result.get(timeout=60)
    done.set()
    looker.join()
    assert apart == []
    rows = merged.rows(tenant_id=TENANT, kind=COMPLETED)
    assert len(rows) == 200
    assert {r.id for r in (*results, *failed)} == {row.meta["task_id"] for row in rows}


def test_a_reader_of_celerys_own_reads_the_result(merged: Stack, store: redis.Redis) -> None:
    """The same fields, the same expiry, the same channel as Celery's own Redis backend."""
    plain = Celery("reader", backend=merged.memory_url, broker="memory://")
    with caller():
        result = merged.skills.echo.delay({"deep": ["é", 1.5, None]})
        assert plain.AsyncResult(result.id).get(timeout=30) == {"deep": ["é", 1.5, None]}
    stored = meta(store, result.id)
    plain.backend.store_result("own", {"deep": 1}, "SUCCESS", request=None)
    assert stored.keys() == meta(store, "own").keys()
    assert merged.app.backend._meta(1, "SUCCESS", None, None).keys() == stored.keys() - {"task_id"}
    assert (stored["status"], stored["task_id"]) == ("SUCCESS", result.id)
    assert 0 < store.ttl(f"celery-task-meta-{result.id}") <= 24 * 3600
    assert abs(store.ttl(f"celery-task-meta-{result.id}") - store.ttl("celery-task-meta-own")) < 60
    plain.close()


@pytest.mark.parametrize(
    ("name", "error", "ended"),
    [
        ("fail", ValueError, ("error", "raised")),
        ("overrun", SoftTimeLimitExceeded, ("timeout", "soft_time_limit")),
        ("hard_limit", TimeLimitExceeded, ("timeout", "hard_time_limit")),
        ("die", WorkerLostError, ("panic", "worker_lost")),
    ],
)
def test_every_other_ending_is_as_ever(
    merged: Stack, name: str, error: type[Exception], ended: tuple[str, str]
) -> None:
    """The caller gets the error, and the one completed row says which."""
    argument = {"die": ["sigkill"], "overrun": []}.get(name, ["x"])
    with caller():
        result = getattr(merged.skills, name).delay(*argument)
        with pytest.raises(error):
            result.get(timeout=40)
    assert ending(merged.pair(result.id)) == ended
    assert len(merged.rows(task_id=result.id)) == 2


def test_what_celery_publishes_first_is_closed_first(merged: Stack) -> None:
    """link, chain, chord, errback, ignore_result and a retry close in ``__call__``, once each."""
    skills = merged.skills
    with caller():
        linked = skills.echo.apply_async((1,), link=skills.echo.s())
        failing = skills.fail.apply_async(("x",), link_error=skills.on_error.s())
        chained = (skills.echo.s(2) | skills.echo.s()).delay()
        joined = chord([skills.echo.s(n) for n in range(3)], skills.echo.s()).delay()
        grouped = group(skills.echo.s(n) for n in range(3)).delay()
        ignored = skills.effect.apply_async(("ignored",), ignore_result=True)
        again = skills.retry.delay("again")
    assert linked.get(timeout=30) == 1
    with pytest.raises(ValueError, match="cannot use"):
        failing.get(timeout=30)
    assert chained.get(timeout=30) == 2
    assert joined.get(timeout=30) == [0, 1, 2]
    assert grouped.get(timeout=30) == [0, 1, 2]
    assert again.get(timeout=30) == "again"
    for result in (linked, failing, chained, joined, ignored):
        merged.pair(result.id)
        assert len(merged.rows(task_id=result.id)) == 2
    assert len(merged.rows(task_id=again.id)) == 6
    for first in (linked, chained.parent):
        _, completed = merged.pair(first.id)
        starts = merged.rows(kind=STARTED)
        (next_,) = (r for r in starts if r.meta["parent_request_id"] == completed.request_id)
        assert order_of(str(next_.position)) > order_of(str(completed.position))
    wait_until(lambda: not list(merged.memory.running()), 30)


def test_a_success_that_is_there_stays(merged: Stack, store: redis.Redis) -> None:
    """As in Celery's own backend; the row of the second run is on record all the same."""
    with caller():
        first = merged.skills.effect.delay("first")
        assert first.get(timeout=30) == "first"
        second = merged.skills.effect.apply_async(("second",), task_id=first.id)
    wait_until(lambda: len(merged.rows(task_id=first.id)) == 4, 30)
    assert meta(store, first.id)["result"] == "first"
    second.forget()


def test_a_large_result_goes_celerys_own_way(merged: Stack, store: redis.Redis) -> None:
    """Sending it must not pass for an outage of the memory; its row comes first then."""
    with caller():
        result = merged.skills.echo.delay("x" * 2 * LARGEST)
        assert len(result.get(timeout=30)) == 2 * LARGEST
    assert ending(merged.pair(result.id)) == ("success", "returned")
    assert len(merged.rows(task_id=result.id)) == 2


def test_a_child_that_dies_before_the_result_is_stored_leaves_no_half(
    merged: Stack, store: redis.Redis
) -> None:
    """Killed after the body, before the one step: no success is seen, and one row says panic."""
    with caller():
        result = merged.skills.dies_when_stored.delay()
        with pytest.raises(WorkerLostError):
            result.get(timeout=40)
    assert ending(merged.pair(result.id)) == ("panic", "worker_lost")
    assert len(merged.rows(task_id=result.id)) == 2
    assert meta(store, result.id)["status"] == "FAILURE"


def test_an_outage_keeps_the_ending(merged: Stack, store: redis.Redis) -> None:
    """The database refuses what is written while a body runs: spooled, replayed, exactly one."""
    with caller():
        result = merged.skills.waits_for.delay("outage-over")
    wait_until(lambda: "waits outage-over" in merged.journal(), 30)
    store.config_set("min-replicas-to-write", 1)
    merged.journal_path.with_suffix(".outage-over").touch()
    spool = merged.directory / "spool"
    wait_until(lambda: list(spool.rglob("*.row")), 30)
    store.config_set("min-replicas-to-write", 0)
    assert ending(merged.pair(result.id)) == ("success", "returned")
    wait_until(lambda: not list(spool.rglob("*.row")), 60)
    assert len(merged.rows(task_id=result.id)) == 2


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"CELERY_RESULT_BACKEND": "merged+redis://127.0.0.1:1/5"}, "spelled alike"),
        ({"AUDIT_MEMORY_URL": "sqlite:///{directory}/audit.db"}, "none that stores results"),
    ],
)
def test_a_worker_whose_backend_does_not_fit_does_not_start(
    merged: Stack, environ: dict[str, str], says: str
) -> None:
    """Another database, or a memory that is no Redis: the worker says so and ends."""
    told = {name: text.format(directory=merged.directory) for name, text in environ.items()}
    worker = Worker(merged, "solo", 1, environ=told)
    assert worker.process.wait(60) != 0
    assert says in worker.text()
