"""The keeper: the one background process behind the hosts. It replays, reconciles, seals, measures.

Several keepers may run; one leads, by a lease of its own in the memory, and the others wait to take
over. Should two ever lead at once, nothing breaks: replaying and closing are idempotent in the
memory, and of two who seal one comes second, which the memory decides.

What is guaranteed: replaying, reconciling, sealing and the other duties do not stop each other.
Whatever one of them raises, be it a row that nobody can read or a mistake of ours, is an alarm
(sev-1, once for as long as it lasts), and the round goes on with the next. An outage of the memory
alone is no alarm of any of them; what the memory keeps of one tenant and cannot be read is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from audit import metrics
from audit.errors import (
    AuditError,
    AuditMemoryError,
    LedgerError,
    MemoryDamagedError,
    RowRefusedError,
    SpoolError,
)
from audit.ledger.sealer import Sealer, SealRound
from audit.memory.base import AuditMemory
from audit.reconciler import PERIODS, RENEWALS, Reconciler, Sweep
from audit.spool import Spool
from audit.tail import Tail

logger: Final = logging.getLogger("audit")

_Done = TypeVar("_Done")

#: The role for which keepers compete.
ROLE: Final = "keeper"


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What one round of a keeper did.

    Attributes:
        leads: whether this keeper leads.
        replayed: spooled rows that reached the memory.
        sweep: what the reconciler saw; ``None`` where this keeper does not lead.
        sealed: what the sealer did; ``None`` where it did nothing.
    """

    leads: bool
    replayed: int
    sweep: Sweep | None
    sealed: SealRound | None = None


class Keeper:
    """One keeper.

    Args:
        memory: where the rows are.
        spool: this host's spool.
        holder: the id of this keeper.
        lease_seconds: how long leases last (``AUDIT_LEASE_SECONDS``).
        sealer: seals the rows into the ledger, where there is one.
        seal_seconds: how long to wait between two rounds of it.
        duties: what else the leader begins in each round; none of it waits.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        memory: AuditMemory,
        spool: Spool,
        *,
        holder: str,
        lease_seconds: float,
        sealer: Sealer | None = None,
        seal_seconds: float = 1.0,
        duties: Sequence[Callable[[], object]] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory = memory
        self._spool = spool
        self._holder = holder
        self._lease_seconds = lease_seconds
        self._sealer = sealer
        self._seal_seconds = seal_seconds
        self._duties = duties
        self._seal_next = clock()
        self._seal_fault = ""
        self._alarms: dict[str, str] = {}
        self._outage: AuditMemoryError | None = None
        self._clock = clock
        self._reconciler = Reconciler(memory, lease_seconds=lease_seconds, clock=clock)
        self._tail = Tail(memory, seconds=self.interval / 4, clock=clock)
        self._looked: float | None = None
        self._led_until: float | None = None

    @property
    def interval(self) -> float:
        """Seconds between two rounds: often enough that no lease comes and goes unseen."""
        return min(1.0, self._lease_seconds / RENEWALS / PERIODS)

    def keep(self, stop: threading.Event, tell: Callable[[Round], None]) -> None:
        """Go on, round after round, until ``stop`` is set; an outage ends nothing."""
        failing = False
        self._looked = self._clock()
        while not stop.is_set():
            try:
                did = self.round()
            except MemoryDamagedError as error:
                self._alarm("a round", error)
            except AuditMemoryError as error:
                if not failing:
                    logger.error("the keeper waits for the memory: %s", error)
                failing = True
            except Exception as error:  # whoever is abandoned next must still be closed
                self._alarm("a round", error)
            else:
                tell(did)
                failing = False
            self._looked = self._clock()
            stop.wait(self.interval)
        self.give_back()

    @property
    def late_seconds(self) -> float | None:
        """Since when no round has ended, or the keeper begun; ``None`` before it begins."""
        return None if self._looked is None else self._clock() - self._looked

    def round(self) -> Round:
        """Replay what waits on this host; sweep and seal if this keeper leads.

        Raises:
            AuditMemoryError: the memory did not answer; the reconciler observes anew.
        """
        self._outage = None
        replayed = self._guarded("replaying", self._replay) or 0
        try:
            leads = self._lead()
        except AuditMemoryError:
            self._reconciler.forget()
            raise
        sweep = self._guarded("reconciling", self._reconciler.sweep) if leads else None
        if not leads or self._outage is not None:
            self._reconciler.forget()
        self._guarded("measuring", lambda: self._measure(sweep))
        self._guarded("counting", self._tail.look)
        sealed = self._guarded("sealing", self._seal) if leads else None
        for number, duty in enumerate(self._duties if leads else ()):
            self._guarded(f"duty {number}", duty)
        if self._outage is not None:
            raise self._outage
        return Round(leads=leads, replayed=replayed, sweep=sweep, sealed=sealed)

    def _lead(self) -> bool:
        """Whether this keeper leads; where nobody tells, it does for as long as its lease lasts."""
        began = self._clock()
        try:
            leads = self._memory.lead(ROLE, self._holder, self._lease_seconds)
        except AuditMemoryError:
            if self._led_until is not None and self._clock() >= self._led_until:
                self._led_until = None
                metrics.leads(False)  # another may lead by now: what this one knew is an old story
            raise
        self._led_until = began + self._lease_seconds if leads else None
        metrics.leads(leads)
        return leads

    def _guarded(self, name: str, work: Callable[[], _Done]) -> _Done | None:
        """What that work gives; ``None`` where it raised, which stops nothing else."""
        try:
            done = work()
        except Exception as error:
            alarming = RowRefusedError, MemoryDamagedError
            if isinstance(error, AuditMemoryError) and not isinstance(error, alarming):
                self._outage = error
            else:
                self._alarm(name, error)
            return None
        self._alarms.pop(name, None)
        return done

    def _alarm(self, name: str, error: Exception) -> None:
        # The text of an error that is not ours may hold what is secret.
        text = f": {error}" if isinstance(error, AuditError) else ""
        told = f"{type(error).__name__}{text}"
        if self._alarms.get(name) != told:
            extra = {"severity": "sev-1"}
            logger.critical("the keeper goes on, but %s fails: %s", name, told, extra=extra)
        self._alarms[name] = told

    def _replay(self) -> int:
        """Rows of this host's spool that reached the memory; a bad disk stops nothing else."""
        try:
            # Leading must be renewed in time, however much waits.
            began = self._clock()
            return self._spool.replay(
                self._memory, go_on=lambda: self._clock() - began < self.interval
            ).emitted
        except SpoolError as error:
            logger.error("what waits in this host's spool waits on: %s", error)
            return 0

    def _seal(self) -> SealRound | None:
        """Seal what there is time for; whatever is wrong with the ledger stops nothing else."""
        began = self._clock()
        if self._sealer is None or began < self._seal_next:
            return None
        self._seal_next = began + self._seal_seconds
        try:
            # Who is abandoned must be seen in time, however much waits.
            sealed = self._sealer.round(lambda: self._clock() - began < self.interval)
        except MemoryDamagedError:
            raise
        except AuditMemoryError as error:
            logger.error("the ledger waits for the memory: %s", error)
            return None
        except LedgerError as error:
            if str(error) != self._seal_fault:
                logger.critical("nothing is sealed: %s", error, extra={"severity": "sev-1"})
            self._seal_fault = str(error)
            metrics.seal_failed()
            return None
        except Exception:
            metrics.seal_failed()  # who watches the gauge must not take it for sound
            raise
        self._seal_fault = ""
        if sealed is not None:
            metrics.sealed(rows=sealed.rows, waiting=sealed.waiting, faults=len(sealed.faults))
        return sealed

    def _measure(self, sweep: Sweep | None) -> None:
        waiting = self._spool.usage()
        metrics.spooled(waiting.rows, waiting.bytes)
        if sweep is not None:
            metrics.swept(
                running=sweep.running,
                oldest_seconds=sweep.oldest_seconds,
                orphans=sweep.orphans,
            )

    def reconcile(self, pause: Callable[[float], None] = time.sleep) -> Sweep:
        """Replay what waits on this host, observe for as long as it takes to judge, and close.

        Raises:
            AuditMemoryError: the memory did not answer.
        """
        self._replay()
        began = self._clock()
        closed = []
        while True:
            sweep = self._reconciler.sweep()
            closed += sweep.closed
            if self._clock() - began > self._reconciler.patience + self.interval:
                return Sweep(
                    running=sweep.running,
                    oldest_seconds=sweep.oldest_seconds,
                    closed=closed,
                    suspects=sweep.suspects,
                )
            pause(self.interval)

    def give_back(self) -> None:
        """Let another keeper lead at once."""
        try:
            self._memory.give_up(ROLE, self._holder)
        except AuditMemoryError as error:
            logger.warning("the keeper's lease runs out by itself: %s", error)
