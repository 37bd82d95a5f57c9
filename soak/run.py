"""One soak from the first process to the verdict: the control first, then the audited host."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import redis

from audit.embedded import EmbeddedServer
from audit.ledger.keys import LedgerKeys, write_new
from chaos.crew import ChaosError, Crew, Member, Team, worker
from chaos.evidence import memory_of, spool_of
from chaos.faults import Fault, Kind, schedule
from chaos.injector import Injector
from chaos.place import Place
from chaos.quiet import Quiet
from chaos.skills import QUEUE, make_app
from soak import judge
from soak.account import Accountant, Tally
from soak.judge import Check
from soak.leaks import VARIABLE
from soak.publisher import BEGINS, DONE
from soak.sample import Role, Sample, Sampler, spool_files

ORIGIN: Final = "soak.skill-host.invalid"
CHILDREN: Final = 4
LEASE: Final = 5.0
#: The faults that leave main process and keeper alive, for their memory is what is looked at.
KINDS: Final = (Kind.CHILD_KILLED, Kind.REVOKED, Kind.MEMORY_PAUSED, Kind.MEMORY_KILLED)
#: Two outages that last: at which share of the time the memory goes, and for which share. The first
#: lies in the warm-up, so that what only an outage makes grow has its size from then on.
OUTAGES: Final = ((Kind.MEMORY_PAUSED, 0.1), (Kind.MEMORY_KILLED, 0.6))
OUTAGE: Final = 0.03
LONGEST_OUTAGE: Final = 15.0
#: Samples of the quiet at the end.
QUIET_SAMPLES: Final = 3
#: Seconds that the rest of the load, and sealing the last rows, may take.
DRAIN_SECONDS: Final = 600.0
SEAL_SECONDS: Final = 120.0
LOOK_SECONDS: Final = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a soak is made of.

    Attributes:
        invocations: calls of the audited host.
        control: calls of bare Celery, 0 for none.
        seconds: what the calls of the audited host are spread over, at least.
        faults: how many, beside the two long outages.
        life: bodies after which a child is replaced.
        every: seconds between two samples.
        seed: the same seed, the same load and faults.
        leaks: on purpose, which are to be found.
    """

    invocations: int
    control: int
    seconds: float
    faults: int
    life: int
    every: float
    seed: int
    leaks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Everything that is known after a soak."""

    audited: Sequence[Sample]
    bare: Sequence[Sample]
    tally: Tally
    checks: Sequence[Check]
    faults: Counter[Kind]
    recycled: int
    left_open: Sequence[str]
    surprises: Sequence[str]
    verified: str
    seconds: float

    @property
    def clean(self) -> bool:
        return (
            all(check.flat for check in self.checks)
            and not (self.tally.findings or self.left_open or self.surprises)
            and not self.verified
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Audited:
    """What the audited host's part came to."""

    samples: Sequence[Sample]
    tally: Tally
    faults: Counter[Kind]
    left_open: Sequence[str]
    surprises: Sequence[str]
    verified: str
    spool: int = field(default=0)


def run(plan: Plan, directory: Path, say: Callable[[str], None]) -> Outcome:
    """Run and judge; every process has ended when this returns."""
    began = time.monotonic()
    bare = _run_bare(plan, _folder(directory, "bare"), say) if plan.control else []
    audited = _run_audited(plan, _folder(directory, "audited"), say)
    return Outcome(
        audited=audited.samples,
        bare=bare,
        tally=audited.tally,
        checks=list(_checks(plan, audited, bare)),
        faults=audited.faults,
        recycled=_recycled(audited.samples),
        left_open=audited.left_open,
        surprises=audited.surprises,
        verified=audited.verified,
        seconds=time.monotonic() - began,
    )


def _checks(plan: Plan, audited: _Audited, bare: Sequence[Sample]) -> Iterator[Check]:
    if plan.invocations >= judge.JUDGED_FROM and bare:
        yield from judge.memory(audited.samples, bare, plan.life)
    yield from judge.levels(audited.samples)
    yield Check(what="files in the spool at the end", measured=audited.spool, limit=0)


def _recycled(samples: Sequence[Sample]) -> int:
    """How many children there were beyond the first ones, as far as samples met them."""
    pids = {held.pid for sample in samples for held in sample.held if held.role is Role.CHILD}
    return max(0, len(pids) - CHILDREN)


# --- bare Celery ----------------------------------------------------------------------------------


def _run_bare(plan: Plan, directory: Path, say: Callable[[str], None]) -> Sequence[Sample]:
    pace = plan.seconds * plan.control / plan.invocations
    with EmbeddedServer() as server:
        calm = server.url.removesuffix("/0")
        place = Place(directory=directory, calm=calm, memory=server.url_for(2), lease=LEASE)
        host = worker(place, 0, "soak.bare", _options(plan))
        publisher = _publisher(place, "soak.bare", plan.control, pace, plan.seed)
        with Team([host]) as team:
            team.wait_ready()
            say(f"bare Celery is up: {plan.control:,} invocations as the control")
            with (
                Team([publisher]),
                Sampler(place, plan.every, _processes(host, publisher)) as looking,
            ):
                _wait_until_published(publisher, team)
                _wait_until_drained(place, team)
    return looking.samples


def _wait_until_published(publisher: Member, team: Team) -> None:
    while not _done(publisher):
        _check(publisher, *team.members)
        time.sleep(LOOK_SECONDS)


def _wait_until_drained(place: Place, team: Team) -> None:
    broker: Any = redis.Redis.from_url(place.broker, socket_timeout=10)
    deadline = time.monotonic() + DRAIN_SECONDS
    with broker:
        while broker.llen(QUEUE) or broker.hlen("unacked"):
            _check(*team.members)
            if time.monotonic() > deadline:
                raise ChaosError(f"bare Celery is not done in {DRAIN_SECONDS:g} s")
            time.sleep(LOOK_SECONDS)


def _check(*members: Member) -> None:
    for member in members:
        if not member.running:
            raise ChaosError(f"{member.name} ended by itself, see {member.log}")


# --- the audited host -----------------------------------------------------------------------------


def _run_audited(plan: Plan, directory: Path, say: Callable[[str], None]) -> _Audited:
    with _servers(plan, directory) as (place, server), _control(place) as app:
        crew = Crew(place, 1, "soak.app", _options(plan))
        publisher = _publisher(place, "soak.app", plan.invocations, plan.seconds, plan.seed)
        with crew:
            crew.wait_ready()
            say(f"worker and keeper are up: {plan.invocations:,} invocations")
            app.control.inspect(timeout=1).ping()  # its connections are there from now on
            injector = Injector(place, crew, server, app.control)
            host, keeper = crew.workers[0], crew.keeper
            with (
                Team([publisher]),
                Sampler(place, plan.every, _processes(host, publisher, keeper)) as looking,
            ):
                _disturb(plan, injector, publisher)
                say(f"all is published, {injector.done.total()} faults; until quiet...")
                left = _wait_until_quiet(place, app, looking)
            spool = spool_files(place)
            say("quiet; the account and the ledger...")
            tally = Accountant(place).judge()
            verified = _verify(place)
    return _Audited(
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


def _disturb(plan: Plan, injector: Injector, publisher: Member) -> None:
    def publishing() -> bool:
        _check(publisher)
        return not _done(publisher)

    injector.run(_faults(plan), threading.Event(), publishing)


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


# --- both -----------------------------------------------------------------------------------------


def _options(plan: Plan) -> list[str]:
    return ["-l", "WARNING", "-c", str(CHILDREN), f"--max-tasks-per-child={plan.life}"]


def _publisher(place: Place, host: str, count: int, seconds: float, seed: int) -> Member:
    arguments = ["soak.publisher", host, str(count), str(seconds), str(seed)]
    return Member(place, "publisher", arguments, BEGINS)


def _done(publisher: Member) -> bool:
    return DONE in publisher.log.read_bytes()


def _processes(
    host: Member, publisher: Member, keeper: Member | None = None
) -> Callable[[], Mapping[int, Role]]:
    """The processes to look at, with their roles."""

    def find() -> Mapping[int, Role]:
        found = {host.process.pid: Role.MAIN, publisher.process.pid: Role.PUBLISHER}
        if keeper is not None:
            found[keeper.process.pid] = Role.KEEPER
        return found | dict.fromkeys(host.children(), Role.CHILD)

    return find


def _folder(directory: Path, name: str) -> Path:
    folder = directory / name
    folder.mkdir(mode=0o700)
    return folder


def rate(samples: Sequence[Sample]) -> float:
    """Bodies a second over all samples."""
    return samples[-1].done / samples[-1].seconds if samples else math.nan
