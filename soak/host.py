"""The audited half: a worker, a keeper that seals, faults and outages, and the account after it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from audit.embedded import EmbeddedServer
from audit.ledger.keys import LedgerKeys, write_new
from chaos.crew import Crew, Member, Team
from chaos.evidence import memory_of, spool_of
from chaos.faults import Fault, Kind, schedule
from chaos.injector import Injector
from chaos.place import Place
from chaos.quiet import Quiet
from chaos.skills import make_app
from soak.account import Accountant, Tally
from soak.leaks import VARIABLE
from soak.sample import Sample, Sampler, spool_files
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

ORIGIN: Final = "soak.skill-host.invalid"
#: The faults that leave main process and keeper alive, for their memory is what is looked at.
KINDS: Final = (Kind.CHILD_KILLED, Kind.REVOKED, Kind.MEMORY_PAUSED, Kind.MEMORY_KILLED)
#: Two outages that last: at which share of the time the memory goes, and for which share. The first
#: lies in the warm-up, so that what only an outage makes grow has its size from then on.
OUTAGES: Final = ((Kind.MEMORY_PAUSED, 0.1), (Kind.MEMORY_KILLED, 0.6))
OUTAGE: Final = 0.03
LONGEST_OUTAGE: Final = 15.0
#: Samples of the quiet at the end.
QUIET_SAMPLES: Final = 3
#: Seconds that sealing the last rows may take.
SEAL_SECONDS: Final = 120.0
#: Seconds in which the last file of the spool is to go.
SWEEP_SECONDS: Final = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Audited:
    """What the audited host's part came to.

    Attributes:
        samples: of all its processes.
        tally: of all its invocations.
        faults: how many of each kind.
        left_open: what was not done when nothing of it got done any more.
        surprises: what nobody did and happened all the same.
        spool: files in the spool at the end.
        verified: what ``audit verify`` found wrong, in words; empty if nothing.
    """

    samples: Sequence[Sample]
    tally: Tally
    faults: Counter[Kind]
    left_open: Sequence[str]
    surprises: Sequence[str]
    spool: int
    verified: str


def run_audited(plan: Plan, directory: Path, say: Callable[[str], None]) -> Audited:
    with _servers(plan, directory) as (place, server), _control(place) as app:
        crew = Crew(place, 1, "soak.app", options(plan))
        caller = publisher(place, "soak.app", plan.invocations, plan.seconds, plan.seed)
        with crew:
            crew.wait_ready()
            say(f"worker and keeper are up: {plan.invocations:,} invocations")
            app.control.inspect(timeout=1).ping()  # its connections are there from now on
            looking = Sampler(place, plan.every, processes(crew.workers[0], caller, crew.keeper))
            due = _keeping_step(plan, looking, caller)
            injector = Injector(place, crew, server, app.control, due)
            with Team([caller]), looking:
                _disturb(plan, injector, caller)
                say(f"all is published, {injector.done.total()} faults; until quiet...")
                left = _wait_until_quiet(place, app, looking)
            spool = _left_in_spool(place)
            say("quiet; the account and the ledger...")
            tally = Accountant(place).judge()
            verified = _verify(place)
    return Audited(
        samples=looking.samples,
        tally=tally,
        faults=injector.done,
        left_open=left,
        surprises=injector.surprises,
        verified=verified,
        spool=spool,
    )


@contextmanager
def _servers(plan: Plan, directory: Path) -> Iterator[tuple[Place, EmbeddedServer]]:
    kept = directory / "memory"
    with EmbeddedServer() as calm, EmbeddedServer(directory=kept, fsync="always") as disturbed:
        place = Place(
            directory=directory,
            calm=calm.url.removesuffix("/0"),
            memory=disturbed.url_for(0),
            lease=LEASE,
            more={**_ledger(directory), VARIABLE: " ".join(plan.leaks)},
        )
        yield place, disturbed


def _ledger(directory: Path) -> Mapping[str, str]:
    """New keys, and the settings of who seals or verifies."""
    keys = directory / "ledger.keys"
    write_new(LedgerKeys.generate(ORIGIN), keys)
    return {
        "AUDIT_LEDGER_DIR": str(directory / "ledger"),
        "AUDIT_LEDGER_KEYS": str(keys),
        "AUDIT_LEDGER_ORIGIN": ORIGIN,
    }


@contextmanager
def _control(place: Place) -> Iterator[Any]:
    """An app that revokes and inspects, and runs nothing."""
    app = make_app(broker_url=place.broker, result_backend=place.results, audit_instrument=False)
    try:
        yield app
    finally:
        app.close()


def _disturb(plan: Plan, injector: Injector, caller: Member) -> None:
    def publishing() -> bool:
        check(caller)
        return not done(caller)

    injector.run(_faults(plan), threading.Event(), publishing)


def _keeping_step(plan: Plan, looking: Sampler, caller: Member) -> Callable[[Fault], bool]:
    """Faults are spread over the load: where that takes longer than planned, so do they."""

    def due(fault: Fault) -> bool:
        return looking.done / plan.invocations >= fault.at / plan.seconds or done(caller)

    return due


def _faults(plan: Plan) -> list[Fault]:
    random = Random(f"{plan.seed} faults")  # noqa: S311 - nothing secret about it
    span = min(LONGEST_OUTAGE, plan.seconds * OUTAGE)
    long = [
        Fault(kind=kind, at=share * plan.seconds, target=0, span=span) for kind, share in OUTAGES
    ]
    return [*long, *schedule(random, plan.faults, plan.seconds, KINDS)]


def _wait_until_quiet(place: Place, app: Any, looking: Sampler) -> list[str]:
    with memory_of(place) as memory:
        left = Quiet(place, memory, spool_of(place, memory), app.control).wait(1)
    enough = len(looking.samples) + QUIET_SAMPLES
    while len(looking.samples) < enough and looking.running:
        time.sleep(LOOK_SECONDS)
    return left


def _left_in_spool(place: Place) -> int:
    """Files in the spool, once what killed processes left half written had time to be swept."""
    deadline = time.monotonic() + SWEEP_SECONDS
    while (files := spool_files(place)) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    return files


def _verify(place: Place) -> str:
    """Have everything sealed, then verified by the command; what is wrong with it, in words."""
    deadline = time.monotonic() + SEAL_SECONDS
    with memory_of(place) as memory:
        while waiting := sum(
            memory.sealed_position(tenant) != memory.last_position(tenant)
            for tenant in memory.tenants()
        ):
            if time.monotonic() > deadline:
                return f"{waiting} tenants have rows that are not sealed in {SEAL_SECONDS:g} s"
            time.sleep(LOOK_SECONDS)
    verify = Member(place, "verify", ["celery", "-A", "soak.app", "audit", "verify"], b"")
    verify.start()
    try:
        status = verify.process.wait(DRAIN_SECONDS)
    finally:
        verify.kill()
    return "" if status == 0 else f"audit verify: status {status}, see {verify.log}"
