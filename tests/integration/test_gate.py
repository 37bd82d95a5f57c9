"""The start gate (decision 13): no durable started row, no body; 503; in bounded time.

Broker and results are on one server, the memory on another, so that results still arrive while the
memory is in one bad state after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import chain

from audit import AuditEmitFailed
from audit.embedded import EmbeddedServer
from tests.integration.stack import Stack, Worker, caller, running_stack

#: Seconds the gate may take in these tests.
TIMEOUT = 1.0


class Gated:
    """A worker whose memory is a server of its own."""

    def __init__(self, stack: Stack, worker: Worker, memory_server: EmbeddedServer) -> None:
        self.stack = stack
        self.worker = worker
        self.server = memory_server
        self.refusals: list[str] = []

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.server.url)

    def sev_1(self) -> int:
        """How many started rows the worker reported as not emitted."""
        return sum(
            "CRITICAL" in line and "not emitted at start, skill test.effect" in line
            for line in self.worker.text().splitlines()
        )

    def refused(self) -> float:
        """Call a skill with an effect; it must be refused. Gives the seconds it took."""
        mark, sev_1 = f"effect-{len(self.refusals)}", self.sev_1()
        began = time.monotonic()
        with caller():
            result = self.stack.skills.effect.delay(mark)
            with pytest.raises(AuditEmitFailed) as caught:
                result.get(timeout=30)
        took = time.monotonic() - began
        assert type(caught.value) is AuditEmitFailed
        assert (caught.value.stage, caught.value.http_status) == ("start", 503)
        assert mark not in self.stack.journal()
        assert self.sev_1() == sev_1 + 1
        self.refusals.append(result.id)
        return took

    def runs_again(self) -> None:
        """The same worker runs skills as soon as the memory is well."""
        with caller():
            deadline = time.monotonic() + 20
            while True:
                try:
                    assert self.stack.skills.echo.delay(1).get(timeout=20) == 1
                    return
                except AuditEmitFailed:
                    assert time.monotonic() < deadline


@pytest.fixture(scope="module")
def gated(tmp_path_factory: Any) -> Iterator[Gated]:
    directory = tmp_path_factory.mktemp("gate")
    with (
        EmbeddedServer(directory=directory / "memory") as memory_server,
        running_stack(directory, memory_url=memory_server.url) as stack,
    ):
        worker = stack.worker("prefork", 1, environ={"AUDIT_EMIT_TIMEOUT": str(TIMEOUT)})
        yield Gated(stack, worker, memory_server)


@contextmanager
def refusing(gated: Gated) -> Iterator[None]:
    gated.server.stop()
    try:
        yield
    finally:
        gated.server.start()


@contextmanager
def hanging(gated: Gated) -> Iterator[None]:
    gated.server.pause()
    try:
        yield
    finally:
        gated.server.resume()


@contextmanager
def read_only(gated: Gated) -> Iterator[None]:
    with gated.client() as client:
        client.replicaof("127.0.0.1", "1")
        try:
            yield
        finally:
            client.replicaof("NO", "ONE")


@contextmanager
def too_few_replicas(gated: Gated) -> Iterator[None]:
    with gated.client() as client:
        client.config_set("min-replicas-to-write", "1")
        try:
            yield
        finally:
            client.config_set("min-replicas-to-write", "0")


@contextmanager
def out_of_memory(gated: Gated) -> Iterator[None]:
    with gated.client() as client:
        client.config_set("maxmemory", "1mb")
        try:
            yield
        finally:
            client.config_set("maxmemory", "0")


@contextmanager
def evicting(gated: Gated) -> Iterator[None]:
    """Another policy, seen by every connection made from now on."""
    with gated.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.client_kill_filter(_type="normal", skipme=True)
        try:
            yield
        finally:
            client.config_set("maxmemory-policy", "noeviction")


@contextmanager
def locked(gated: Gated) -> Iterator[None]:
    """The password was changed behind the worker's back."""
    with gated.client() as client:
        client.config_set("requirepass", "changed")
        client.client_kill_filter(_type="normal", skipme=True)
        try:
            yield
        finally:
            client.config_set("requirepass", "")


@pytest.mark.parametrize(
    "state",
    [refusing, hanging, read_only, too_few_replicas, out_of_memory, evicting, locked],
    ids=lambda s: s.__name__,
)
def test_the_body_does_not_run_and_the_caller_gets_503(
    gated: Gated, state: Callable[[Gated], Any]
) -> None:
    """Whatever the memory suffers from: refused in bounded time, reported once each as sev-1, and
    well again afterwards, without a row of what was refused (a server that hung may have it yet).
    """
    gated.runs_again()
    before = len(gated.refusals)
    with state(gated):
        # Wide, for a busy machine; without the deadline the hanging server holds it for ever.
        assert gated.refused() < TIMEOUT + 5
        gated.refused()
    gated.runs_again()
    if state is not hanging:
        for task_id in gated.refusals[before:]:
            assert gated.stack.rows(task_id=task_id) == []


def test_what_was_refused_left_no_completed_row(gated: Gated) -> None:
    """No completed row is written for what never started, and none is left open but by a hang."""
    with refusing(gated):
        gated.refused()
    gated.runs_again()
    rows = gated.stack.rows(skill_id="test.effect", kind="skill.invoked_completed")
    assert [row for row in rows if row.meta["reason"] != "not_dispatched"] == []


def test_nothing_follows_a_refused_skill(gated: Gated) -> None:
    """No next link of a chain, no retry by autoretry, no link runs after a refusal."""
    gated.runs_again()
    before = len(gated.stack.rows())
    with refusing(gated), caller():
        effect = gated.stack.skills.effect
        links = chain(effect.si("chain-1"), effect.si("chain-2")).apply_async()
        linked = effect.apply_async(("linked",), link=effect.si("link"))
        retried = gated.stack.skills.autoretry_everything.delay()
        for result in (links.parent, linked, retried):
            with pytest.raises(AuditEmitFailed):
                result.get(timeout=30)
    gated.runs_again()
    assert len(gated.stack.rows()) == before + 2
    assert not {"chain-1", "chain-2", "linked", "link"} & set(gated.stack.journal())
    # Once, not once an attempt: autoretry wraps the body, and the gate is before it.
    assert gated.worker.text().count("skill test.autoretry-everything not dispatched") == 1


def test_a_memory_that_was_never_there(tmp_path: Path) -> None:
    """A worker starts without its memory, says so as sev-1, and refuses until it appears."""
    absent = EmbeddedServer(directory=tmp_path / "memory")
    absent.start()
    url = absent.url
    absent.stop()
    try:
        with running_stack(tmp_path, memory_url=url) as stack:
            worker = stack.worker("prefork", 1, environ={"AUDIT_EMIT_TIMEOUT": "0.5"})
            gated = Gated(stack, worker, absent)
            gated.refused()
            assert "the audit memory is out of reach" in worker.text()
            absent.start()
            gated.runs_again()
    finally:
        absent.stop()
