"""The control: bare Celery under the same load, with recycling and without faults."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import redis

from audit.embedded import EmbeddedServer
from chaos.crew import ChaosError, Member, Team, worker
from chaos.place import Place
from chaos.skills import QUEUE
from soak.sample import Sample, Sampler
from soak.stage import (
    DRAIN_SECONDS,
    LEASE,
    LOOK_SECONDS,
    Plan,
    check,
    done,
    options,
    processes,
    publisher,
)


def run_bare(plan: Plan, directory: Path, say: Callable[[str], None]) -> Sequence[Sample]:
    pace = plan.seconds * plan.control / plan.invocations
    with EmbeddedServer() as server:
        calm = server.url.removesuffix("/0")
        place = Place(directory=directory, calm=calm, memory=server.url_for(2), lease=LEASE)
        host = worker(place, 0, "soak.bare", options(plan))
        caller = publisher(place, "soak.bare", plan.control, pace, plan.seed)
        with Team([host]) as team:
            team.wait_ready()
            say(f"bare Celery is up: {plan.control:,} invocations as the control")
            with (
                Team([caller]),
                Sampler(place, plan.every, processes(host, caller)) as looking,
            ):
                _wait_until_published(caller, team)
                _wait_until_drained(place, team)
    return looking.samples


def _wait_until_published(caller: Member, team: Team) -> None:
    while not done(caller):
        check(caller, *team.members)
        time.sleep(LOOK_SECONDS)


def _wait_until_drained(place: Place, team: Team) -> None:
    broker: Any = redis.Redis.from_url(place.broker, socket_timeout=10)
    deadline = time.monotonic() + DRAIN_SECONDS
    with broker:
        while broker.llen(QUEUE) or broker.hlen("unacked"):
            check(*team.members)
            if time.monotonic() > deadline:
                raise ChaosError(f"bare Celery is not done in {DRAIN_SECONDS:g} s")
            time.sleep(LOOK_SECONDS)
