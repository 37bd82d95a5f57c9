"""Carries out a schedule of faults, and keeps account of what it did to whom and when."""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from audit.embedded import EmbeddedServer
from audit.reconciler import PERIODS, RENEWALS
from chaos import journal
from chaos.crew import Crew, Member
from chaos.faults import Fault, Kind
from chaos.journal import Effect
from chaos.place import Place
from chaos.skills import SLOW

#: Seconds until a fault is tried again that finds nobody it could happen to.
AGAIN_SECONDS: Final = 0.25
#: Seconds after which that is given up.
GIVE_UP_SECONDS: Final = 60.0
#: Seconds that a cold shutdown may take.
COLD_SECONDS: Final = 20.0
#: Seconds between two looks at whether everyone is alive.
LOOK_SECONDS: Final = 0.1
#: A skill that began so long ago is not worth a revoke.
STALE_SECONDS: Final = 1.0

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Blow:
    """Something that was done to processes, or undone.

    Attributes:
        at: when, seconds of the wall clock.
        what: in words.
        pids: the processes hit.
        task_id: the message revoked.
    """

    at: float
    what: str
    pids: frozenset[int] = frozenset()
    task_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """From when to when something was out of service, seconds of the wall clock."""

    began: float
    ended: float


class Injector:
    """Does to a host what the schedule says. Everything happens in the thread of :meth:`run`.

    Args:
        place: where.
        crew: to whom.
        memory: its server.
        control: the app's, to revoke.
        due: whether a fault whose time has come may happen, or waits.

    Attributes:
        blows: what was done to processes.
        outages: when the memory was away.
        without_keeper: when no keeper ran.
        done: how many faults of each kind.
        surprises: what nobody did and happened all the same.
        hung: cold shutdowns that did not end. Celery stops the pool inside its signal handler and
            may wait there for ever; every row was written by then, so this is counted only.
    """

    def __init__(
        self,
        place: Place,
        crew: Crew,
        memory: EmbeddedServer,
        control: Any,
        due: Callable[[Fault], bool] = lambda fault: True,
    ) -> None:
        self.blows: list[Blow] = []
        self.outages: list[Span] = []
        self.without_keeper: list[Span] = []
        self.done: Counter[Kind] = Counter()
        self.surprises: list[str] = []
        self.hung: list[str] = []
        self._place = place
        self._crew = crew
        self._memory = memory
        self._control = control
        self._due = due
        self._memory_disturbed = False
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._faults: dict[Kind, Callable[[Fault], bool]] = {
            Kind.CHILD_KILLED: self._kill_child,
            Kind.WORKER_KILLED: self._kill_worker,
            Kind.WORKER_FROZEN: self._freeze,
            Kind.COLD_SHUTDOWN: self._shut_down,
            Kind.REVOKED: self._revoke,
            Kind.MEMORY_PAUSED: self._pause_memory,
            Kind.MEMORY_KILLED: self._kill_memory,
            Kind.KEEPER_KILLED: self._kill_keeper,
        }

    def run(self, faults: Sequence[Fault], stop: threading.Event, busy: Callable[[], bool]) -> None:
        """Carry out ``faults`` and undo what is to be undone.

        On return every server and process is up, or about to be.

        Args:
            faults: in any order.
            stop: set to end early.
            busy: whether to go on looking after the processes when all that is done.
        """
        began = time.monotonic()
        for fault in faults:
            self._at(began + fault.at, functools.partial(self._inject, fault, stop))
        self._later(LOOK_SECONDS, lambda: self._look(stop, busy))
        while self._agenda:
            moment, _, action = self._agenda[0]
            if (left := moment - time.monotonic()) > 0:
                time.sleep(min(left, LOOK_SECONDS))
                continue
            heapq.heappop(self._agenda)
            action()

    # --- the agenda ---------------------------------------------------------------------------

    def _at(self, moment: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (moment, next(self._numbers), action))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._at(time.monotonic() + seconds, action)

    def _inject(self, fault: Fault, stop: threading.Event, since: float | None = None) -> None:
        if stop.is_set():
            return
        if since is None and self._due(fault):
            since = time.monotonic()
        if since is not None and self._faults[fault.kind](fault):
            self.done[fault.kind] += 1
        elif since is not None and time.monotonic() - since > GIVE_UP_SECONDS:
            self.surprises.append(f"nobody to do this to: {fault.kind}")
        else:
            self._later(AGAIN_SECONDS, lambda: self._inject(fault, stop, since))

    def _look(self, stop: threading.Event, busy: Callable[[], bool]) -> None:
        """Start again who ended unasked: a worker must not, and an account is kept of it."""
        for member in self._crew.members:
            if not member.running and not member.leaving:
                status = member.process.returncode
                self.surprises.append(f"{member.name} ended by itself, status {status}")
                self._blow(f"{member.name} ended by itself", member.kill())
                member.start()
        if (self._agenda or busy()) and not stop.is_set():
            self._later(LOOK_SECONDS, lambda: self._look(stop, busy))

    def _blow(self, what: str, pids: Sequence[int] = (), task_id: str | None = None) -> None:
        blow = Blow(at=time.time(), what=what, pids=frozenset(pids), task_id=task_id)
        self.blows.append(blow)

    def _worker(self, fault: Fault) -> Member | None:
        return _pick([worker for worker in self._crew.workers if worker.ready], fault)

    # --- workers ------------------------------------------------------------------------------

    def _kill_child(self, fault: Fault) -> bool:
        """Half of the time one that runs a body by all appearances, else whichever."""
        children = [
            pid for worker in self._crew.workers if worker.ready for pid in worker.children()
        ]
        busy = [effect.pid for effect in self._running() if effect.pid in children]
        pid = _pick(busy if busy and fault.span > 0.5 else children, fault)
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._blow(fault.kind, [pid])
        return True

    def _kill_worker(self, fault: Fault) -> bool:
        worker = self._worker(fault)
        if worker is None:
            return False
        worker.leaving = True
        self._blow(fault.kind, worker.kill())
        self._later(fault.span, worker.start)
        return True

    def _freeze(self, fault: Fault) -> bool:
        worker = self._worker(fault)
        if worker is None:
            return False
        family = worker.signal(signal.SIGSTOP)
        worker.frozen = True
        self._blow(fault.kind, family)
        condemned = self._place.lease * (1 + PERIODS / RENEWALS)
        self._later(condemned + fault.span, lambda: self._thaw(worker, family))
        return True

    def _thaw(self, worker: Member, family: Sequence[int]) -> None:
        self._blow("thawed", family)
        worker.signal(signal.SIGCONT)
        worker.frozen = False

    def _shut_down(self, fault: Fault) -> bool:
        worker = self._worker(fault)
        if worker is None:
            return False
        self._blow(fault.kind, worker.family())
        worker.leaving = True
        worker.process.send_signal(signal.SIGQUIT)
        deadline = time.monotonic() + COLD_SECONDS
        self._later(LOOK_SECONDS, lambda: self._left(worker, fault, deadline))
        return True

    def _left(self, worker: Member, fault: Fault, deadline: float) -> None:
        if worker.running and time.monotonic() < deadline:
            self._later(LOOK_SECONDS, lambda: self._left(worker, fault, deadline))
            return
        if worker.running:
            self.hung.append(f"{worker.name} hung in a cold shutdown, see {worker.log}")
        self._blow("gone after a cold shutdown", worker.kill())
        self._later(fault.span, worker.start)

    def _revoke(self, fault: Fault) -> bool:
        effect = _pick(self._running(), fault)
        if effect is None:
            return False
        name = "SIGKILL" if fault.span > 0.5 else "SIGTERM"
        self._blow(fault.kind, task_id=effect.task_id)
        self._control.revoke(effect.task_id, terminate=True, signal=name)
        return True

    def _running(self) -> list[Effect]:
        """Effects of bodies that may well run still."""
        return [
            effect
            for effect in journal.recent(self._place.journal)
            if effect.skill in SLOW and time.time() - effect.at < STALE_SECONDS
        ]

    # --- memory and keeper --------------------------------------------------------------------

    def _pause_memory(self, fault: Fault) -> bool:
        if self._memory_disturbed:
            return False
        self._memory_disturbed, began = True, time.time()
        self._memory.pause()
        self._later(fault.span, lambda: self._memory_back(began, self._memory.resume))
        return True

    def _kill_memory(self, fault: Fault) -> bool:
        if self._memory_disturbed:
            return False
        self._memory_disturbed, began = True, time.time()
        self._memory.kill()
        self._later(fault.span, lambda: self._memory_back(began, self._memory.start))
        return True

    def _memory_back(self, began: float, bring: Callable[[], object]) -> None:
        bring()
        self.outages.append(Span(began=began, ended=time.time()))
        self._memory_disturbed = False

    def _kill_keeper(self, fault: Fault) -> bool:
        if not self._crew.keeper.ready:
            return False
        began = time.time()
        self._crew.keeper.leaving = True
        self._crew.keeper.kill()
        self._later(fault.span, lambda: self._keeper_back(began))
        return True

    def _keeper_back(self, began: float) -> None:
        self._crew.keeper.start()
        self.without_keeper.append(Span(began=began, ended=time.time()))


def _pick(among: Sequence[T], fault: Fault) -> T | None:
    return among[int(fault.target * len(among))] if among else None
