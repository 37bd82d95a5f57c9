"""The reconciler: closes invocations whose process is gone (decision 10).

Every process that starts invocations holds a lease in the memory and renews it once a period. An
invocation is abandoned when the lease of its process has stayed absent, as seen by one observer,
while the memory answered without a break, for two periods: after an outage, a living process renews
within one, so no outage condemns anyone who lives. Time is the observer's own monotonic clock.

A started row that nobody can read, for it was damaged in the memory, keeps no other open. Nobody
knows whose lease to look for, so it counts as one without a lease; so does a tenant of which nobody
can read what is open.

Two reconcilers at once do no harm: the memory lets one close, and an abandoned ending that comes
second adds nothing. A process that was only cut off and completes later gets
``skill.invoked_late``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Final

from audit import metrics
from audit.errors import MemoryDamagedError, RowError, RowRefusedError
from audit.memory.base import AuditMemory, Stored
from audit.memory.newest import is_sound
from audit.memory.page import Damaged, Open
from audit.metrics import Orphans
from audit.row import AuditRow, Ending, Identity, Reason, skill_invoked_completed, timestamp

logger: Final = logging.getLogger("audit")

#: A lease is renewed so many times while it lasts.
RENEWALS: Final = 3
#: For so many periods a lease must stay absent.
PERIODS: Final = 2
#: So many open invocations, the oldest, are looked at where one of them is damaged.
MOST_BESIDE_DAMAGE: Final = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """What one sweep saw and did.

    Attributes:
        running: invocations that are started and not completed.
        oldest_seconds: age of the oldest of them by its ``ts``, 0 where there is none.
        closed: the rows this sweep wrote.
        suspects: processes whose lease is absent, and not long enough yet.
        orphans: what is still open without a live lease, of each tenant with open invocations.
    """

    running: int
    oldest_seconds: float
    closed: list[AuditRow] = field(default_factory=list)
    suspects: int = 0
    orphans: Mapping[str, Orphans] = field(default_factory=dict)


class Reconciler:
    """One observer of leases.

    Args:
        memory: where the rows are.
        lease_seconds: how long a lease lasts (``AUDIT_LEASE_SECONDS``).
        clock: monotonic seconds.
        now: the wall clock, for ``ts`` and ages only.
    """

    def __init__(
        self,
        memory: AuditMemory,
        *,
        lease_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._memory = memory
        self._period = lease_seconds / RENEWALS
        self._clock = clock
        self._now = now
        self._absent_since: dict[str, float] = {}
        # For the alarm alone. A break in looking does not reset it: whoever looks so seldom that
        # nothing is ever condemned must be heard of.
        self._orphaned_since: dict[str, float] = {}
        self._damaged_since: dict[Damaged, float] = {}
        self._faulty_since: dict[str, float] = {}
        self._last_look: float | None = None
        self._told: dict[str, str] = {}
        self._stuck: set[tuple[str, str | None]] = set()

    @property
    def patience(self) -> float:
        """Seconds a lease must be seen absent before its invocations are closed."""
        return PERIODS * self._period

    def sweep(self) -> Sweep:
        """Look once; close what is abandoned.

        Raises:
            AuditMemoryError: the memory did not answer; what was observed so far counts no more.
        """
        try:
            return self._sweep()
        except BaseException:
            self.forget()
            # Nobody could renew a lease: time counts from the answer.
            self._orphaned_since.clear()
            raise

    def forget(self) -> None:
        """Begin to observe anew: there was a break."""
        self._absent_since.clear()
        self._last_look = None

    # --- inside -------------------------------------------------------------------------------

    def _sweep(self) -> Sweep:
        found = self._read()
        running = found.rows
        self._stuck &= set(map(_place, running))
        condemned = self._observe({_worker(row) for row in running})
        closed = [
            row
            for started in running
            if _worker(started) in condemned and (row := self._close_or_report(started)) is not None
        ]
        ages = [(self._now() - datetime.fromisoformat(row.ts)).total_seconds() for row in running]
        return Sweep(
            running=found.total - len(closed),
            oldest_seconds=max([0.0, *ages]),
            closed=closed,
            suspects=len(self._absent_since) - len(condemned),
            orphans=self._orphans(running, {row.request_id for row in closed}),
        )

    def _read(self) -> Open:
        """What is open of all tenants; one whose keys are damaged keeps no other's open."""
        found, faults = list[Open](), dict[str, str]()
        for tenant_id in self._memory.tenants():
            try:
                found.append(self._read_tenant(tenant_id))
            except MemoryDamagedError as error:
                faults[tenant_id] = str(error)
        for tenant_id, text in faults.items():
            if self._told.get(tenant_id) != text:  # each once, for as long as it lasts
                logger.critical("nothing is closed: %s", text, extra={"severity": "sev-1"})
        now, before = self._clock(), self._faulty_since
        self._told = faults
        self._faulty_since = {tenant_id: before.get(tenant_id, now) for tenant_id in faults}
        damaged = tuple(chain.from_iterable(one.damaged for one in found))
        self._report(damaged, now)
        rows = tuple(chain.from_iterable(one.rows for one in found))
        return Open(rows=rows, total=sum(one.total for one in found), damaged=damaged)

    def _read_tenant(self, tenant_id: str) -> Open:
        """What is open of one; where one of them cannot be read, it and the others."""
        try:
            rows = tuple(self._memory.running(tenant_id))
        except RowError:
            rows = None
        if rows is not None and all(map(is_sound, rows)):
            return Open(rows=rows, total=len(rows))
        return self._memory.open_page(tenant_id, MOST_BESIDE_DAMAGE)

    def _report(self, damaged: Iterable[Damaged], now: float) -> None:
        """Once of each, for as long as it is open."""
        before = self._damaged_since
        self._damaged_since = {place: before.get(place, now) for place in damaged}
        for place in self._damaged_since.keys() - before.keys():
            logger.critical(
                "an open invocation at %s of tenant %s cannot be closed: no row stands there",
                place.position,
                place.tenant_id,
                extra={"severity": "sev-1"},
            )

    def _orphans(self, running: Collection[AuditRow], closed: set[str]) -> dict[str, Orphans]:
        since = [
            (row.tenant_id, self._orphaned_since.get(_worker(row)))
            for row in running
            if row.request_id not in closed
        ]
        since += [(place.tenant_id, moment) for place, moment in self._damaged_since.items()]
        since += self._faulty_since.items()
        now = self._clock()
        found = {row.tenant_id: Orphans(count=0, seconds=0.0) for row in running}
        for tenant_id, moment in since:
            if moment is not None:
                before = found.get(tenant_id, Orphans(count=0, seconds=0.0))
                longest = max(before.seconds, now - moment)
                found[tenant_id] = Orphans(count=before.count + 1, seconds=longest)
        return found

    def _observe(self, workers: set[str]) -> set[str]:
        """The workers seen absent long enough without a break."""
        before = self._clock()
        if self._last_look is not None and before - self._last_look > self._period:
            self.forget()  # nobody looked for a while: a lease may have come and gone
        absent = workers - self._memory.leases(workers)
        # Seen absent at the earliest when the answer was asked for, at the latest now.
        after = self._clock()
        self._absent_since = {w: self._absent_since.get(w, after) for w in absent}
        self._orphaned_since = {w: self._orphaned_since.get(w, after) for w in absent}
        self._last_look = before
        return {w for w, since in self._absent_since.items() if before - since >= self.patience}

    def _close_or_report(self, started: AuditRow) -> AuditRow | None:
        """One row that cannot be read must not keep all others open; it is told of once."""
        try:
            return self._close(started)
        except (RowError, RowRefusedError, MemoryDamagedError, KeyError) as error:
            if _place(started) in self._stuck:
                return None
            self._stuck.add(_place(started))
            logger.critical(
                "an open invocation at %s cannot be closed: %r",
                started.position,
                error,
                extra={"severity": "sev-1"},
            )
            return None

    def _close(self, started: AuditRow) -> AuditRow | None:
        """Close one invocation as abandoned; ``None`` where somebody else was first."""
        identity = identity_of(started)
        ending = Ending(
            reason=Reason.ABANDONED,
            error_message="WorkerAbandoned: the process that ran it is gone without a word",
        )
        row = skill_invoked_completed(
            identity,
            ending,
            self._memory.lived_ms(started, _worker(started)),
            ts=timestamp(self._now()),
            duration="lower_bound",
        )
        if self._memory.emit(row) is not Stored.NEW:
            return None
        metrics.abandoned(row.payload)
        logger.error(
            "invocation %s of %s was abandoned by worker %s and is closed",
            row.request_id,
            identity.skill_id,
            identity.worker,
            extra={"severity": "sev-2"},
        )
        return row


def identity_of(started: AuditRow) -> Identity:
    """The identity that a started row carries."""
    payload, meta = started.payload, started.meta
    return Identity(
        request_id=payload["request_id"],
        skill_id=payload["skill_id"],
        version=payload["version"],
        caller_persona=payload["caller_persona"],
        tenant_id=payload["tenant_id"],
        trace_id=payload["trace_id"],
        task_id=meta.get("task_id"),
        attempt=meta.get("attempt", 0),
        redelivered=meta.get("redelivered", False),
        parent_request_id=meta.get("parent_request_id"),
        worker=meta.get("worker", ""),
        on_behalf_of=meta.get("on_behalf_of"),
        context_key=meta.get("context_key"),
        schedule=meta.get("schedule"),
        due=meta.get("due"),
    )


def _place(row: AuditRow) -> tuple[str, str | None]:
    return row.tenant_id, row.position


def _worker(row: AuditRow) -> str:
    return str(row.meta.get("worker", ""))
