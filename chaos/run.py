"""One run from the first process to the verdict."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from audit.embedded import EmbeddedServer
from audit.memory import AuditMemory
from chaos import journal
from chaos.closing import Closings
from chaos.crew import Crew
from chaos.evidence import memory_of, reported_lost, results_of, set_aside, spool_of
from chaos.faults import schedule
from chaos.injector import Injector
from chaos.load import Publisher
from chaos.place import Place
from chaos.quiet import Quiet
from chaos.report import Outcome, write_events
from chaos.skills import declare, make_app
from chaos.verdict import Account, Finding, judge

WORKERS: Final = 3
#: What a caller is told whose skill did not run.
UNAVAILABLE: Final = "AuditEmitFailed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a run is made of.

    Attributes:
        invocations: skills to publish.
        faults: how many faults.
        seed: the same seed, the same load and schedule.
        seconds: how long the disturbance lasts.
        lease: seconds a lease lasts.
        workers: how many, each with its children.
    """

    invocations: int
    faults: int
    seed: int
    seconds: float
    lease: float
    workers: int = WORKERS


def run(plan: Plan, directory: Path, say: Callable[[str], None]) -> Outcome:
    """Run and judge; every process has ended when this returns."""
    began = time.monotonic()
    with _servers(plan, directory) as (place, server), _publishing_app(place) as app:
        publisher = Publisher(
            declare(app), _random(plan.seed, "load"), plan.invocations, plan.seconds
        )
        with Crew(place, plan.workers) as crew:
            crew.wait_ready()
            say(f"{plan.workers} workers and a keeper are up, logs in {directory}")
            injector = Injector(place, crew, server, app.control)
            _disturb(plan, injector, publisher)
            crew.wait_ready()
            say(f"{publisher.published} published, {injector.done.total()} faults; until quiet...")
            left = _wait_until_quiet(place, app, plan.workers)
        account, refused, findings = _judge(place)
    write_events(directory / "events.txt", injector.blows, injector.outages)
    pauses = [*injector.outages, *injector.without_keeper]
    closings, wrong = Closings(account, injector.blows, pauses).judge(plan.lease)
    return Outcome(
        seed=plan.seed,
        lease=plan.lease,
        published=publisher.published,
        account=account,
        faults=injector.done,
        findings=[*findings, *wrong],
        closings=closings,
        surprises=injector.surprises,
        hung=injector.hung,
        left=left,
        seconds=time.monotonic() - began,
        outage_seconds=sum(span.ended - span.began for span in injector.outages),
        refused=refused,
    )


def _wait_until_quiet(place: Place, app: Any, workers: int) -> list[str]:
    with memory_of(place) as memory:
        return Quiet(place, memory, spool_of(place, memory), app.control).wait(workers)


def _judge(place: Place) -> tuple[Account, int, list[Finding]]:
    with memory_of(place) as memory:
        account, refused = _account(place, memory)
        lost = [*set_aside(place, memory), *reported_lost(place.directory)]
    return account, refused, [*judge(account), *lost]


@contextmanager
def _servers(plan: Plan, directory: Path) -> Iterator[tuple[Place, EmbeddedServer]]:
    kept = directory / "memory"
    with EmbeddedServer() as calm, EmbeddedServer(directory=kept, fsync="always") as disturbed:
        place = Place(
            directory=directory,
            calm=calm.url.removesuffix("/0"),
            memory=disturbed.url_for(0),
            lease=plan.lease,
        )
        yield place, disturbed


@contextmanager
def _publishing_app(place: Place) -> Iterator[Any]:
    app = make_app(broker_url=place.broker, result_backend=place.results, audit_instrument=False)
    try:
        yield app
    finally:
        app.close()


def _random(seed: int, purpose: str) -> Random:
    """Randomness for one purpose: what one part draws does not move the others."""
    return Random(f"{seed} {purpose}")  # noqa: S311 - nothing secret about it


def _disturb(plan: Plan, injector: Injector, publisher: Publisher) -> None:
    """Publish in a thread of its own, and inject in this one; both have ended on return."""
    stop = threading.Event()
    faults = schedule(_random(plan.seed, "faults"), plan.faults, plan.seconds)
    publishing = threading.Thread(target=publisher.run, args=(stop,))
    publishing.start()
    try:
        injector.run(faults, stop, publishing.is_alive)
        publishing.join()
    finally:
        stop.set()
        publishing.join()


def _account(place: Place, memory: AuditMemory) -> tuple[Account, int]:
    """Everything that is known, and how many callers were told that the memory is away."""
    rows = list(memory.rows())
    results = results_of(place)
    states = {task_id: str(result["status"]) for task_id, result in results.items()}
    refused = sum(
        isinstance(result["result"], dict) and result["result"].get("exc_type") == UNAVAILABLE
        for result in results.values()
    )
    return Account(rows, journal.read(place.journal), states), refused
