"""The keeper: the one background process behind the hosts. It replays, reconciles, and measures.

Several keepers may run; one leads, by a lease of its own in the memory, and the others wait to take
over. Should two ever lead at once, nothing breaks: replaying and closing are idempotent in the
memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from audit import metrics
from audit.errors import AuditError, AuditMemoryError, SpoolError
from audit.memory.base import AuditMemory
from audit.reconciler import PERIODS, RENEWALS, Reconciler, Sweep
from audit.spool import Spool

logger: Final = logging.getLogger("audit")

#: The role for which keepers compete.
ROLE: Final = "keeper"


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What one round of a keeper did.

    Attributes:
        leads: whether this keeper leads.
        replayed: spooled rows that reached the memory.
        sweep: what the reconciler saw; ``None`` where this keeper does not lead.
    """

    leads: bool
    replayed: int
    sweep: Sweep | None


class Keeper:
    """One keeper.

    Args:
        memory: where the rows are.
        spool: this host's spool.
        holder: the id of this keeper.
        lease_seconds: how long leases last (``AUDIT_LEASE_SECONDS``).
        clock: monotonic seconds.
    """

    def __init__(
        self,
        memory: AuditMemory,
        spool: Spool,
        *,
        holder: str,
        lease_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory = memory
        self._spool = spool
        self._holder = holder
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._reconciler = Reconciler(memory, lease_seconds=lease_seconds, clock=clock)

    @property
    def interval(self) -> float:
        """Seconds between two rounds: often enough that no lease comes and goes unseen."""
        return min(1.0, self._lease_seconds / RENEWALS / PERIODS)

    def keep(self, stop: threading.Event, tell: Callable[[Round], None]) -> None:
        """Go on, round after round, until ``stop`` is set; an outage ends nothing."""
        failing = False
        while not stop.is_set():
            try:
                tell(self.round())
                failing = False
            except AuditMemoryError as error:
                if not failing:
                    logger.error("the keeper waits for the memory: %s", error)
                failing = True
            except AuditError:  # whatever it is, who is abandoned next must still be closed
                logger.exception("the keeper goes on after an error", extra={"severity": "sev-1"})
            stop.wait(self.interval)
        self.give_back()

    def round(self) -> Round:
        """Replay what waits on this host, and sweep if this keeper leads.

        Raises:
            AuditMemoryError: the memory did not answer; the reconciler observes anew.
        """
        try:
            replayed = self._replay()
            leads = self._memory.lead(ROLE, self._holder, self._lease_seconds)
            sweep = self._reconciler.sweep() if leads else None
        except AuditMemoryError:
            self._reconciler.forget()
            raise
        if not leads:
            self._reconciler.forget()
        self._measure(sweep)
        return Round(leads=leads, replayed=replayed, sweep=sweep)

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

    def _measure(self, sweep: Sweep | None) -> None:
        metrics.spooled(self._spool.usage().rows)
        if sweep is not None:
            metrics.swept(
                running=sweep.running,
                oldest_seconds=sweep.oldest_seconds,
                closed=len(sweep.closed),
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
