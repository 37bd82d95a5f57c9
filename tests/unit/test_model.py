"""The protocol as one model: gate, child, parent, spool, keeper and memory, under every fault.

Hypothesis plays hosts whose processes die, freeze and come back, and a memory that fails in pairs,
is slow and goes away. At every step an emit may fail stored or not, arrive later, or be struck by a
signal, and the process may die inside it or inside a write of the spool; another may get its turn
there. After every step :class:`tests.model.Laws` must hold, and when all is quiet every started
row has its completed one, within the time that a lease and the reconciler's patience take.

A model that cannot fail proves nothing: each of ``PLANTS`` is a bug put into one part of the
product, and a test each shows that the model finds it.

What is assumed: the lease thread renews within a period whenever it can, and no outage falls wholly
between two looks of everybody who looks.

``AUDIT_MODEL_EXAMPLES=5000`` plays so many fresh games; else they are few and always the same.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from enum import Enum, IntEnum
from itertools import product
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from audit import spool as spool_module
from audit.breaker import Breaker
from audit.errors import AuditEmitFailed, AuditMemoryError, MemoryUnavailableError, RowRefusedError
from audit.invocation import Invocation, State
from audit.keeper import Keeper
from audit.memory.base import Hold, Once, Stored, as_replay
from audit.reconciler import RENEWALS, Reconciler
from audit.recorder import Kept, Recorder
from audit.row import (
    COMPLETED,
    REFUSED,
    STARTED,
    AuditRow,
    Reason,
    Refusal,
    skill_invoked_completed,
    timestamp,
)
from audit.spool import Spool
from audit.testing import FakeClock, InMemory
from tests.model import (
    Blow,
    Child,
    Disk,
    Host,
    Laws,
    Line,
    MortalPath,
    Point,
    Process,
    Run,
    Sent,
    SoftLimit,
    Strike,
    Trouble,
    Violation,
    Worker,
)
from tests.support import HASH, check_every_row, make_ending, make_identity

LEASE = 6.0
PERIOD = LEASE / RENEWALS
TICK = 0.5
#: Two keepers look so often (``Keeper.interval``).
LOOK = 1.0
#: From the last word of a worker to its last row: its lease, the patience, the looks around them.
IN_THE_END = LEASE + 2 * PERIOD + 2 * LOOK


#: So many messages are delivered over and over, each delivery saying that it is the first.
MESSAGES = 3
#: Seconds that no game lasts.
WHOLE_GAME = 1_000_000


class Stage(IntEnum):
    """How far an invocation comes."""

    REFUSED = -1
    RECEIVED = 0
    STARTED = 1
    RUNNING = 2
    CLOSED = 3
    OUT = 4


class Fate(Enum):
    """What becomes of a child after a step."""

    LIVES = "lives"
    DIES = "dies"
    SEEN = "dies, and the main process sees it at once"


Troubles = tuple[Trouble, ...]

NOTHING: Troubles = ()
_TROUBLES = [(t,) for t in Trouble if t is not Trouble.NONE] + [(Trouble.NONE, t) for t in Trouble]
_MAYBE_STORED = [(Trouble.STORED,), (Trouble.DELAYED,)]
_CRASHES = list(product(Point, [Blow.CRASH, Blow.RIVAL]))
_STRIKES = [*_CRASHES, *product(Point, [Blow.SIGNAL])]
_OWN = list(product(Point, [Blow.CRASH, Blow.SIGNAL]))

# One draw each, half of them harmless: a game in which all goes wrong gets nowhere.
picks = st.integers(0, 3)
troubles = st.sampled_from([NOTHING] * len(_TROUBLES) + _TROUBLES)
strikes = st.sampled_from([None] * len(_STRIKES) + _STRIKES)
crashes = st.sampled_from([None] * len(_CRASHES) + _CRASHES)
stages = st.sampled_from([*Stage, Stage.STARTED, Stage.CLOSED])
fates = st.sampled_from(Fate)


class Model(RuleBasedStateMachine):
    """The world. The parts of the product it is made of are attributes, for bugs to be planted."""

    Memory: type[InMemory] = InMemory
    Spool: type[Spool] = Spool
    Recorder: type[Recorder] = Recorder
    Reconciler: type[Reconciler] = Reconciler
    Invocation: type[Invocation] = Invocation

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="model-"))
        self.patches = [
            mock.patch.object(spool_module, "os", Disk()),
            mock.patch("audit.keeper.Reconciler", self.Reconciler),
        ]
        for patch in self.patches:
            patch.start()
        self.clock = FakeClock()
        self.memory = self.Memory(clock=self.clock)
        self.laws = Laws()
        self.late: list[Sent] = []
        self.runs: list[Run] = []
        self.workers: dict[str, Worker] = {}
        self.hosts = [Host(MortalPath(self.folder / name)) for name in ("a", "b")]
        self.names = 0
        self.looker = Process()
        self.reconciler = self._new_reconciler()

    @initialize()
    def everything_is_up(self) -> None:
        for host in self.hosts:
            self._boot(host)

    # --- an invocation ------------------------------------------------------------------------

    @precondition(lambda self: self._hosts(at_work=True))
    @rule(pick=picks, to=stages, meets=troubles, strike=strikes, fate=fates)
    def deliver(
        self, pick: int, to: Stage, meets: Troubles, strike: Strike | None, fate: Fate
    ) -> None:
        """A child takes a message and comes so far; what it meets, it meets at its last stage."""
        run = self._receive(pick)
        if to is Stage.REFUSED:
            self._refuse(run, meets, strike)
        else:
            self._go(run, to, meets, strike)
        self._meet(run, fate)

    @precondition(lambda self: self._alive())
    @rule(pick=picks, to=stages, meets=troubles, strike=strikes, fate=fates)
    def go_on(
        self, pick: int, to: Stage, meets: Troubles, strike: Strike | None, fate: Fate
    ) -> None:
        """One that stopped on its way goes on, or dies where it is."""
        run = _one_of(self._alive(), pick)
        self._go(run, to, meets, strike)
        self._meet(run, fate)

    # --- the main process ---------------------------------------------------------------------

    @precondition(lambda self: self._lost())
    @rule(pick=picks, meets=troubles, strike=crashes)
    def notice(self, pick: int, meets: Troubles, strike: Strike | None) -> None:
        """It sees that a child is gone."""
        self._notice(_one_of(self._lost(), pick), meets, strike)

    @precondition(lambda self: self._alive(at_work=True))
    @rule(pick=picks, meets=troubles, strike=crashes)
    def hard_limit(self, pick: int, meets: Troubles, strike: Strike | None) -> None:
        """It puts a hard limit on record; the child is killed at some time after."""
        run = _one_of(self._alive(at_work=True), pick)
        run.hard = run.hard or not run.closed
        self._settle(run, Reason.HARD_TIME_LIMIT, meets, strike)

    # --- what goes on in the background -------------------------------------------------------

    @precondition(lambda self: self._hosts(at_work=True))
    @rule(pick=picks, meets=troubles, strike=crashes)
    def lease_round(self, pick: int, meets: Troubles, strike: Strike | None) -> None:
        """The lease thread renews and replays."""
        worker = _one_of(self._hosts(at_work=True), pick).worker
        self._renew(worker)
        self._replay(worker, meets, strike)

    @rule(pick=picks, meets=troubles, strike=crashes)
    def look(self, pick: int, meets: Troubles, strike: Strike | None) -> None:
        """A keeper replays and, if it leads, sweeps; or one sweeps who does not ask who leads."""
        host = _one_of([None, *self._hosts(frozen=False)], pick)
        if host is None:
            self._look(meets, strike)
        else:
            self._keep(host, meets, strike)

    # --- hosts --------------------------------------------------------------------------------

    @precondition(lambda self: self._hosts(frozen=False))
    @rule(pick=picks, whole=st.booleans())
    def crash(self, pick: int, whole: bool) -> None:
        """A host goes down with all that runs on it, or only a worker's main process dies."""
        host = _one_of(self._hosts(frozen=False), pick)
        host.worker.main.dead = True
        if whole:
            host.keeping.dead = True
            for run in self.runs:
                run.child.process.dead |= run.worker.host is host

    @precondition(lambda self: self._hosts(at_work=False))
    @rule(pick=picks)
    def come_back(self, pick: int) -> None:
        """A frozen host thaws; on one that is down a new worker boots over the old one's spool."""
        host = _one_of(self._hosts(at_work=False), pick)
        if host.frozen:
            self._thaw(host)
        else:
            self._boot(host)

    @precondition(lambda self: self._hosts(frozen=False))
    @rule(pick=picks)
    def freeze(self, pick: int) -> None:
        _one_of(self._hosts(frozen=False), pick).frozen = True

    # --- the memory and time ------------------------------------------------------------------

    @rule(
        lasts=st.sampled_from([0.0, PERIOD, LEASE + PERIOD]), ends=st.booleans(), seen=st.booleans()
    )
    def outage(self, lasts: float, ends: bool, seen: bool) -> None:
        """The memory goes away, and comes back in its own time; somebody looks before all else."""
        self.memory.down = True
        self._pass(lasts, watched=seen)
        if ends:
            self._outage_ends()
        if seen:
            self._everybody_looks()

    @precondition(lambda self: self.late and not self.memory.down)
    @rule(pick=picks)
    def arrive_late(self, pick: int) -> None:
        """What an emit sent that failed long ago arrives now."""
        self._arrive(_one_of(self.late, pick))

    @rule(seconds=st.sampled_from([TICK, LOOK, PERIOD, LEASE + PERIOD]), watched=st.booleans())
    def time_passes(self, seconds: float, watched: bool) -> None:
        """Living workers renew in time; keepers look, or they do not."""
        self._pass(seconds, watched=watched)

    # --- what must hold -----------------------------------------------------------------------

    @invariant()
    def the_laws_hold(self) -> None:
        self.laws.check(self._rows(), self.runs, self._spools())

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self._come_to_rest()
                self.the_laws_hold()
                self.laws.at_rest(self._rows(), self._spools())
                check_every_row(self.memory)
        finally:
            for patch in self.patches:
                patch.stop()
            shutil.rmtree(self.folder)

    def _come_to_rest(self) -> None:
        """Nothing new begins and nothing fails any more. Who lives goes on to live."""
        self._outage_ends()
        for host in self.hosts:
            if host.frozen:
                self._thaw(host)
        for sent in self.late[1::2]:
            self._arrive(sent)
        for run in list(self.runs):
            if not run.child.process.dead:
                self._go(run, Stage.OUT, NOTHING, None)
        for run in self._lost():
            self._notice(run, NOTHING, None)
        for sent in list(self.late):
            self._arrive(sent)
        self._pass(IN_THE_END, watched=True)

    # --- who there is -------------------------------------------------------------------------

    def _hosts(self, *, at_work: bool | None = None, frozen: bool | None = None) -> list[Host]:
        return [
            host
            for host in self.hosts
            if at_work in (None, host.at_work) and frozen in (None, host.frozen)
        ]

    def _alive(self, *, at_work: bool = False) -> list[Run]:
        """Invocations whose child can go on; also where its main process is gone."""
        return [
            run
            for run in self.runs
            if not (run.over or run.child.process.dead or run.worker.host.frozen)
            and (run.worker.lives or not at_work)
        ]

    def _lost(self) -> list[Run]:
        """Invocations whose child is dead, which their main process has not seen yet."""
        return [
            run
            for run in self.runs
            if run.child.process.dead and run.worker.lives and not (run.noticed or run.over)
        ]

    def _rows(self) -> list[AuditRow]:
        down, self.memory.down = self.memory.down, False
        try:
            return list(self.memory.rows())
        finally:
            self.memory.down = down

    def _spools(self) -> list[Path]:
        return [host.folder for host in self.hosts]

    # --- how they do it -----------------------------------------------------------------------

    def _name(self) -> str:
        self.names += 1
        return f"{self.names:026d}"

    def _now_ns(self) -> int:
        self.names += 1  # no two files of one moment
        return int(self.clock.seconds * 1e9) + self.names

    def _line(self, process: Process) -> Line:
        return Line(self.memory, process, self.late)

    def _spool(self, host: Host) -> Spool:
        return self.Spool(host.folder, self.memory.name, max_rows=4, now_ns=self._now_ns)

    def _process(self, host: Host) -> Process:
        return Process(rival=lambda: self._keep(host, NOTHING, None))

    def _recorder(self, host: Host, process: Process) -> Recorder:
        return self.Recorder(self._line(process), self._spool(host), Breaker(clock=self.clock))

    def _new_reconciler(self) -> Reconciler:
        self.looker = Process()
        line = Watched(self._line(self.looker), self)
        return self.Reconciler(line, lease_seconds=LEASE, clock=self.clock, now=self.clock.now)

    def _new_keeper(self, host: Host) -> Keeper:
        host.keeping = Process()
        line = Watched(self._line(host.keeping), self)
        return Keeper(
            line,
            self._spool(host),
            holder=self._name(),
            lease_seconds=LEASE,
            clock=self.clock,
        )

    def _boot(self, host: Host) -> None:
        main = self._process(host)
        host.worker = Worker(
            id=self._name(),
            host=host,
            main=main,
            line=self._line(main),
            spool=self._spool(host),
            outside=self._recorder(host, main),
            able=self.clock(),
        )
        self.workers[host.worker.id] = host.worker
        if host.keeper is None or host.keeping.dead:
            host.keeper = self._new_keeper(host)
        self._renew(host.worker)

    def _thaw(self, host: Host) -> None:
        host.frozen = False
        if host.worker is not None:
            host.worker.thawed = host.worker.able = self.clock()

    def _outage_ends(self) -> None:
        """Who looked at all has seen it (an assumption of the model)."""
        if self.memory.down:
            for host in self.hosts:
                if host.keeper is not None:
                    self._keep(host, NOTHING, None)
            self._look(NOTHING, None)
        self.memory.down = False
        for worker in self.workers.values():
            worker.able = self.clock()

    def _receive(self, pick: int) -> Run:
        worker = _one_of(self._hosts(at_work=True), pick).worker
        child = next((c for c in worker.children if _idle(c)), None)
        if child is None:
            process = self._process(worker.host)
            child = Child(process, self._recorder(worker.host, process))
            worker.children.append(child)
        identity = make_identity(
            request_id=self._name(), worker=worker.id, task_id=f"message-{self.names % MESSAGES}"
        )
        invocation = self.Invocation(identity, child.recorder, clock=self.clock, now=self.clock.now)
        child.run = Run(identity, invocation, worker, child)
        self.runs.append(child.run)
        return child.run

    def _go(self, run: Run, to: Stage, meets: Troubles, strike: Strike | None) -> None:
        """From where ``run`` stands to ``to``, as far as it comes; the laws hold on the way."""
        if run.invocation.state is State.REFUSED:
            self._report(run)
        steps = [self._start, self._begin, self._close, self._let_out]
        for stage, step in enumerate(steps, 1):
            if stage > to or run.over or run.child.process.dead or run.worker.host.frozen:
                return
            if _stage(run) == stage - 1:
                step(run, *((meets, strike) if stage == to else (NOTHING, None)))
                self.the_laws_hold()

    def _start(self, run: Run, meets: Troubles, strike: Strike | None) -> None:
        """As ``SkillTask._start`` does it."""
        with run.child.process.works(strike, meets):
            try:
                message = run.identity.task_id
                run.invocation.start(HASH, once_token=message, once_seconds=WHOLE_GAME)
            except AuditEmitFailed:
                self._report(run)
            except SoftLimit:
                run.ending = make_ending(Reason.SOFT_TIME_LIMIT)
                if run.invocation.open:
                    run.invocation.close(run.ending)
                    run.closed = True
                else:
                    self._report(run)

    def _refuse(self, run: Run, meets: Troubles, strike: Strike | None) -> None:
        """The child may not start it; it reports so in its next step, if it lives."""
        with run.child.process.works(strike, meets), suppress(SoftLimit):
            run.invocation.refuse(Refusal.BAD_ARGUMENTS, "")

    def _meet(self, run: Run, fate: Fate) -> None:
        run.child.process.dead |= fate is not Fate.LIVES
        if fate is Fate.SEEN and run in self._lost():
            self._notice(run, NOTHING, None)

    def _begin(self, run: Run, meets: Troubles, strike: Strike | None) -> None:
        run.invocation.begin()
        run.effect = True
        run.ending = make_ending(Reason.RAISED if meets or strike else Reason.RETURNED)

    def _close(self, run: Run, meets: Troubles, strike: Strike | None) -> None:
        with run.child.process.works(strike, meets):
            run.invocation.close(run.ending)
            run.closed = True

    def _let_out(self, run: Run, meets: Troubles, strike: Strike | None) -> None:
        """As ``SkillTask._perform`` does it: nothing is let out where the hard limit was first."""
        rows = [r for r in self._rows() if r.request_id == run.identity.request_id]
        ended = [Reason(r.meta["reason"]) for r in rows if r.kind == COMPLETED]
        run.visible = not (run.invocation.late and ended == [Reason.HARD_TIME_LIMIT])
        self._report(run)

    @staticmethod
    def _report(run: Run) -> None:
        run.over = True
        run.child.run = None

    def _notice(self, run: Run, meets: Troubles, strike: Strike | None) -> None:
        run.noticed = True
        self._settle(run, Reason.WORKER_LOST, meets, strike)

    def _settle(self, run: Run, reason: Reason, meets: Troubles, strike: Strike | None) -> None:
        """As ``SkillRequest._close`` does it."""
        row = skill_invoked_completed(
            run.identity,
            make_ending(reason),
            0,
            ts=timestamp(self.clock.now()),
            duration="upper_bound",
        )
        with run.worker.main.works(strike, meets), suppress(AuditMemoryError):
            run.worker.outside.settle(row)

    def _renew(self, worker: Worker) -> None:
        if not self.memory.down:
            self.memory.hold_lease(worker.id, LEASE)
            worker.renewed = self.clock()

    def _replay(self, worker: Worker, meets: Troubles, strike: Strike | None) -> None:
        with worker.main.works(strike, meets), suppress(AuditMemoryError):
            if not worker.spool.empty:
                worker.spool.replay(worker.line)

    def _keep(self, host: Host, meets: Troubles, strike: Strike | None) -> None:
        if host.keeping.dead:
            host.keeper = self._new_keeper(host)
        with host.keeping.works(strike, meets), suppress(AuditMemoryError):
            host.keeper.round()

    def _look(self, meets: Troubles, strike: Strike | None) -> None:
        if self.looker.dead:
            self.reconciler = self._new_reconciler()
        with self.looker.works(strike, meets), suppress(AuditMemoryError):
            self.reconciler.sweep()

    def _arrive(self, sent: Sent) -> None:
        self.late.remove(sent)
        row, once = sent
        try:
            self.memory.emit(row, once)
        except RowRefusedError:
            assert row.kind in (STARTED, REFUSED), row  # barred in the meantime

    def _pass(self, seconds: float, *, watched: bool) -> None:
        for tick in range(int(seconds / TICK)):
            self.clock.pass_by(TICK)
            for host in self._hosts(at_work=True):
                if self.clock() - max(host.worker.renewed, host.worker.able) >= PERIOD:
                    self._renew(host.worker)
            if watched and tick % (LOOK / TICK) == 0:
                self._everybody_looks()

    def _everybody_looks(self) -> None:
        for host in self._hosts(frozen=False):
            self._keep(host, NOTHING, None)
        self._look(NOTHING, None)


class Watched:
    """The line of one who reconciles: nobody is condemned who lives and had time to renew."""

    def __init__(self, line: Line, world: Model) -> None:
        self._line = line
        self._world = world

    def __getattr__(self, name: str) -> object:
        return getattr(self._line, name)

    def emit(self, row: AuditRow, once: Once | None = None, hold: Hold | None = None) -> Stored:
        if row.meta["reason"] == Reason.ABANDONED:
            worker = self._world.workers[row.meta["worker"]]
            if worker.lives and self._world.clock() - worker.thawed >= PERIOD:
                raise Violation(f"CONDEMNED ALIVE: {row}")
        return self._line.emit(row, once, hold)


def _one_of(things: list, pick: int):
    return things[pick % len(things)]


def _stage(run: Run) -> Stage:
    if run.closed:
        return Stage.CLOSED
    return _STAGES.get(run.invocation.state, Stage.RECEIVED)


_STAGES = {State.STARTED: Stage.STARTED, State.RUNNING: Stage.RUNNING}


def _idle(child: Child) -> bool:
    return child.run is None and not child.process.dead


class AtTheGate(Model):
    """The same world, where most messages have bad luck with their started row."""

    @precondition(lambda self: self._hosts(at_work=True))
    @rule(
        pick=picks,
        meets=st.sampled_from([*_MAYBE_STORED, NOTHING, (Trouble.NONE, Trouble.NO_CONNECTION)]),
        strike=st.sampled_from([None, *_OWN]),
        fate=fates,
    )
    def deliver(self, pick: int, meets: Troubles, strike: Strike | None, fate: Fate) -> None:
        super().deliver(pick, Stage.STARTED, meets, strike, fate)


class AtTheEnd(Model):
    """The same world, where most messages have bad luck with their completed row."""

    @precondition(lambda self: self._hosts(at_work=True))
    @rule(
        pick=picks,
        to=st.sampled_from([Stage.CLOSED, Stage.OUT]),
        meets=st.sampled_from([*_MAYBE_STORED, NOTHING]),
        strike=st.sampled_from([None, None, *_STRIKES]),
        fate=fates,
    )
    def deliver(
        self, pick: int, to: Stage, meets: Troubles, strike: Strike | None, fate: Fate
    ) -> None:
        super().deliver(pick, Stage.CLOSED, meets, strike, Fate.LIVES)
        run = self.runs[-1]
        if run in self._alive():
            self._go(run, to, NOTHING, None)
            self._meet(run, fate)


class Outages(Model):
    """The same world, where the memory comes and goes, and bodies take their time."""

    @precondition(lambda self: self._hosts(at_work=True))
    @rule(pick=picks)
    def deliver(self, pick: int) -> None:
        super().deliver(pick, Stage.RUNNING, NOTHING, None, Fate.LIVES)

    @rule(lasts=st.sampled_from([PERIOD, LEASE + PERIOD]))
    def outage(self, lasts: float) -> None:
        super().outage(lasts, ends=True, seen=True)


def play(game: type[Model], *, examples: int, fresh: bool = False, shrink: bool = True) -> None:
    """Play ``game``; without ``fresh``, the same plays each time.

    Raises:
        Violation: a law was broken.
    """
    run_state_machine_as_test(
        game,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            database=None,
            derandomize=not fresh,
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Every outage is sev-1; a thousand of them are noise."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("game", [Model, AtTheGate, AtTheEnd, Outages])
def test_the_protocol_keeps_its_laws(game: type[Model]) -> None:
    """No order of steps, faults and deaths breaks a law."""
    asked = os.environ.get("AUDIT_MODEL_EXAMPLES")
    play(game, examples=int(asked or 60), fresh=asked is not None)


# --- bugs that the model must find ----------------------------------------------------------------


class NoTombstone(InMemory):
    """A started row that arrives after it was barred is accepted."""

    def _start(self, request, row, once, hold):
        request.barred = False
        return super()._start(request, row, once, hold)


class ForgetsTheToken(InMemory):
    """No start is ever found to be a replay."""

    def _seen_before(self, tenant_id, once):
        return False


class IsItsOwnReplay(InMemory):
    """The token is taken before it is known whether the invocation may start."""

    def _start(self, request, row, once, hold):
        if once is not None and self._seen_before(row.tenant_id, once):
            row, once, request.replayed = as_replay(row), None, True
        return super()._start(request, row, None, hold)


class MarksTheStartedRowOnly(InMemory):
    """Whoever closes a replay without knowing it leaves the completed row unmarked."""

    def _begin(self, request, row, once):
        stored = super()._begin(request, row, once)
        request.replayed = False
        return stored


class ParentLeavesNoTombstone(InMemory):
    """A death seen from outside bars nothing; only ``not_dispatched`` does."""

    def _complete(self, request, row):
        if request.started is None and row.meta["reason"] == Reason.WORKER_LOST:
            return Stored.BARRED
        return super()._complete(request, row)


class ClosesTwice(InMemory):
    """Close-once is left out: every completion is kept."""

    def _complete(self, request, row):
        if request.completed is not None and row.to_bytes() != request.completed.to_bytes():
            request.completed = None
        return super()._complete(request, row)


class LateReplaces(InMemory):
    """A completion that comes late takes the place of the first."""

    def _late(self, request, row):
        self._rows.remove(request.completed)
        request.completed = self._append(row)
        return Stored.LATE


class AcceptsWithoutStarted(InMemory):
    """A completed row needs no started one."""

    def _complete(self, request, row):
        if request.started is None:
            self._append(row)
            return Stored.NEW
        return super()._complete(request, row)


class ParentIgnoresTheSpool(Recorder):
    """An ending seen from outside overtakes what the child had spooled."""

    def settle(self, row):
        with mock.patch.object(self._spool, "endings_of", return_value=[]):
            return self.complete(row)


class ForgetsToSpool(Recorder):
    """What the memory does not take is said to be in the spool, and is nowhere."""

    def complete(self, row, result=None):
        with mock.patch.object(self._spool, "keep"):
            return super().complete(row, result)


class CallsItDone(Recorder):
    """A failed emit is taken for done, as if its failure said that it was stored."""

    def complete(self, row, result=None):
        with suppress(MemoryUnavailableError):
            self._emit(row)
        return Kept.MEMORY


class SpoolWithoutRename(Spool):
    """A row is written under the name that is read."""

    def _put(self, row, folder):
        self._prepare(folder)
        spool_module._write(folder / f"{self._now_ns():020d}.row", row.to_bytes())


class ReplayRemovesFirst(Spool):
    """A file is removed before its row is in the memory."""

    def _replay_one(self, path, memory, faults):
        if path.exists():
            row = AuditRow.from_bytes(path.read_bytes())
            path.unlink()
            memory.emit(row)
        return True


class ReplaysNewestFirst(Spool):
    """What was spooled last is replayed first."""

    def _waiting(self):
        return super()._waiting()[::-1]


class OneLook(Reconciler):
    """A lease that is absent once is enough."""

    patience = 0.0


class OutageIsNoBreak(Reconciler):
    """The time of an outage counts as time in which a lease was seen absent."""

    def forget(self):
        pass


class OpenGate(Invocation):
    """The body runs although the started row is not durable."""

    def start(self, args_hash, **once):
        with suppress(AuditEmitFailed):
            super().start(args_hash, **once)
        self.state = State.STARTED


class RowOfItsOwnEachTime(Invocation):
    """An emit that is done again is no repetition: each try makes a row of its own."""

    tries = 0

    def _complete(self, row, result):
        self.tries += 1
        meta = {**row.meta, "attempt": self.tries}
        return super()._complete(replace(row, meta=meta), result)


class NothingBarred(Invocation):
    """A started row in doubt is left to itself."""

    def _bar(self, row):
        return State.NOT_STARTED


class BarsOnlyTheLastTry(Invocation):
    """What an interrupted emit may have stored is forgotten when the next one surely failed."""

    def _never_start(self, error):
        self._interrupt = None
        super()._never_start(error)


class BarIsInterrupted(Invocation):
    """A signal that strikes while a row in doubt is being barred has its way."""

    def _bar(self, row):
        with suppress(SoftLimit):
            return super()._bar(row)
        return State.NOT_STARTED


#: Plays that a bug has to be found in, and games of each.
BEGINNINGS, EACH = 20, 50

#: Bug, the part it is in, the game in which it shows soon, the laws that it may break.
PLANTS = [
    (NoTombstone, "Memory", AtTheGate, "OPEN IN THE END"),
    (ForgetsTheToken, "Memory", Model, "REPLAY"),
    (IsItsOwnReplay, "Memory", AtTheGate, "REPLAY|PAIR DISAGREES"),
    (MarksTheStartedRowOnly, "Memory", AtTheEnd, "PAIR DISAGREES"),
    (ParentLeavesNoTombstone, "Memory", AtTheGate, "OPEN IN THE END"),
    (ClosesTwice, "Memory", Model, "TWICE"),
    (LateReplaces, "Memory", Outages, "REPLACED"),
    (AcceptsWithoutStarted, "Memory", Model, "COMPLETED WITHOUT STARTED"),
    (ParentIgnoresTheSpool, "Recorder", AtTheEnd, "PRECEDENCE|LATE"),
    (ForgetsToSpool, "Recorder", AtTheEnd, "VISIBLE|OPEN IN THE END|PRECEDENCE"),
    (CallsItDone, "Recorder", AtTheEnd, "VISIBLE|OPEN IN THE END|PRECEDENCE"),
    (SpoolWithoutRename, "Spool", AtTheEnd, "TORN|QUARANTINE"),
    (ReplayRemovesFirst, "Spool", AtTheEnd, "VISIBLE|OPEN IN THE END|PRECEDENCE"),
    (ReplaysNewestFirst, "Spool", AtTheEnd, "PRECEDENCE"),
    (OneLook, "Reconciler", Outages, "CONDEMNED"),
    (OutageIsNoBreak, "Reconciler", Outages, "CONDEMNED"),
    (OpenGate, "Invocation", Model, "EFFECT"),
    (RowOfItsOwnEachTime, "Invocation", AtTheEnd, "LATE"),
    (NothingBarred, "Invocation", AtTheGate, "OPEN IN THE END"),
    (BarsOnlyTheLastTry, "Invocation", AtTheGate, "OPEN IN THE END"),
    (BarIsInterrupted, "Invocation", AtTheGate, "OPEN IN THE END"),
]


@pytest.mark.parametrize(
    ("bug", "part", "game", "laws"), PLANTS, ids=lambda v: getattr(v, "__name__", "")
)
def test_the_model_finds(bug: type, part: str, game: type[Model], laws: str) -> None:
    """Each bug breaks a law within so many games, the same ones each time.

    Many short beginnings find it sooner than one long play, which stays near what it tried first.
    """
    planted = type("Planted", (game,), {part: bug})

    def play_all() -> None:
        for beginning in range(BEGINNINGS):
            play(seed(beginning)(planted), examples=EACH, shrink=False)

    with pytest.raises(Violation, match=f"^({laws})"):
        play_all()
