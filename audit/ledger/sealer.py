"""The sealer: each round seals the new rows of every tenant, and gathers the checkpoints.

What is guaranteed: a row is sealed exactly once, in stored order; a crash anywhere leaves what the
next round goes on from; on one machine a lock lets one seal at a time, and of two machines the one
whose swap in the memory came second seals nothing. A damaged log is an alarm (sev-1), is never
repaired, and stops no other log; nor does a tenant whose keys in the memory are not what they
should be. What has a log and no known tenant is an alarm as well. A new signer signs the newest
checkpoint of every log, idle ones too, and a round says whether all of them have it. Without sound
keys nothing at all is sealed.

The verifier never imports anything of this.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ulid import ULID

from audit.errors import (
    LedgerDamagedError,
    LedgerError,
    LedgerRaceError,
    MemoryDamagedError,
    RowError,
)
from audit.ledger.checkpoint import origin_of
from audit.ledger.folder import META, LedgerFolder
from audit.ledger.keys import LedgerKeys
from audit.ledger.log_sealer import MOST, LogSealer
from audit.ledger.meta_sealer import MetaSealer
from audit.ledger.tenant_reads import SealerReads
from audit.ledger.tenant_sealer import COUNTED, Place, TenantSealer
from audit.memory.base import AuditMemory
from audit.row import NIL_TENANT, timestamp
from audit.system_rows import KEY_ROTATED, audit_key_rotated

logger: Final = logging.getLogger("audit")

#: What the fault of the memory's list of tenants goes by.
TENANTS: Final = "tenants"


@dataclass(frozen=True, kw_only=True, slots=True)
class SealRound:
    """What one round did.

    Attributes:
        rows: how many were sealed.
        logs: how many logs have grown by them.
        waiting: rows that are not sealed, of the tenants that were served or have a fault; counted
            up to 1,000 each, and none where they cannot be read.
        faults: what is wrong with which log, by its name; with the list of tenants, by
            :data:`TENANTS`.
        old_keys_may_go: whether there is more than one signer, and the newest checkpoint of every
            log has the signatures of all; then a signer behind the first may be taken out.
    """

    rows: int
    logs: int
    waiting: int
    faults: dict[str, LedgerError]
    old_keys_may_go: bool = False


class Sealer:
    """Seals what a memory holds into a folder.

    Args:
        memory: where the rows are.
        directory: of the ledger (``AUDIT_LEDGER_DIR``).
        origin: what the origins of its logs begin with.
        load_keys: reads the keys, in each round anew, so that a rotation needs no restart.
        worker: what rows about the ledger itself name as their writer.
        most: rows of one checkpoint at most.
        now: the wall clock, for those rows.
    """

    def __init__(
        self,
        memory: AuditMemory,
        directory: Path,
        *,
        origin: str,
        load_keys: Callable[[], LedgerKeys],
        worker: str = "",
        most: int = MOST,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._memory = memory
        self._reads = SealerReads(memory)
        self._folder = LedgerFolder(directory)
        self._origin = origin
        self._load_keys = load_keys
        self._worker = worker
        self._most = most
        self._now = now
        self._served = ""
        self._told: dict[str, str] = {}
        self._begin(None)

    def round(self, go_on: Callable[[], bool] = lambda: True) -> SealRound | None:
        """Seal what is there; ``None`` where another process of this machine does so just now.

        Args:
            go_on: asked after each checkpoint and each tenant; whoever has other duties stops in
                time, and the next round begins with those who were not served.

        Raises:
            LedgerKeyError: the keys are missing or damaged; nothing was sealed.
            LedgerError: the folder of the ledger cannot be used.
            AuditMemoryError: the memory did not answer.
        """
        with self._folder.locked() as mine:
            if not mine:
                return None
            keys = self._load_keys()
            if keys != self._keys:
                self._begin(keys)
                self._folder.drop_unnamed()
            return self._seal(keys, go_on, self._announced(keys))

    # --- a round ------------------------------------------------------------------------------

    def _begin(self, keys: LedgerKeys | None) -> None:
        """With these keys nothing is known yet of any log."""
        self._keys = keys
        self._origins: dict[str, str] = {}
        self._places: dict[str, Place] = {}
        self._after: dict[str, str | None] = {}
        self._meta: MetaSealer | None = None
        self._meta_carried_over = False
        self._told_of_keys = False

    def _seal(
        self, keys: LedgerKeys, go_on: Callable[[], bool], faults: dict[str, LedgerError]
    ) -> SealRound:
        logs = self._register(self._tenants(faults), keys)
        faults |= self._unknown(logs)
        done: dict[str, Place] = {}
        ready = not logs or self._has_meta(logs.values(), keys, faults)
        for log in self._in_turn(list(logs)) if ready else ():
            self._served = log  # before it is: whatever it raises, the next round goes on behind it
            try:
                done[log] = place = self._seal_tenant(log, logs[log], keys, go_on)
                if place.fault is not None:
                    faults[log] = place.fault
            except (LedgerError, MemoryDamagedError) as error:
                faults[log] = self._fault(log, error)
                done[log] = Place(waiting=self._left(log, logs[log]))
            if not go_on():
                break
        self._gather(done, keys, faults)
        self._tell(faults)
        return SealRound(
            rows=sum(place.rows for place in done.values()),
            logs=sum(place.rows > 0 for place in done.values()),
            waiting=sum(place.waiting for place in done.values()),
            faults=faults,
            old_keys_may_go=self._old_keys_may_go(logs, keys, bool(faults)),
        )

    def _old_keys_may_go(self, logs: dict[str, str], keys: LedgerKeys, faulty: bool) -> bool:
        """Whether all signers have signed the newest checkpoint of every log there is.

        What has a place was carried over to these keys. A log that the folder lists and the memory
        does not know was not, so nothing is said while there is one.
        """
        if len(keys.signers) < 2 or faulty:
            return False
        every = logs.keys() | self._folder.tenants().keys()
        if not every <= self._places.keys():
            return False
        if not self._told_of_keys:
            logger.warning(
                "every log has the signature of the newest key: the old key may go; take its"
                " PRIVATE+KEY line out of the ledger's keys and leave its public key there"
            )
        self._told_of_keys = True
        return True

    def _in_turn(self, logs: list[str]) -> list[str]:
        """The logs, beginning behind the one that was served last, so that each has its turn."""
        first = logs.index(self._served) + 1 if self._served in logs else 0
        return logs[first:] + logs[:first]

    def _seal_tenant(
        self, log: str, tenant_id: str, keys: LedgerKeys, go_on: Callable[[], bool]
    ) -> Place:
        origin = self._origins[tenant_id]
        sealer = self._log_sealer(log, tenant_id, origin, keys, positions=True)
        tenant = TenantSealer(self._reads, tenant_id, sealer, most=self._most)
        known = self._places.get(log)
        if known is not None and tenant.is_at(known):
            return known
        self._places.pop(log, None)
        place = tenant.seal(go_on, tidy=known is None)
        self._places[log], self._after[log] = Place(place.note, place.after), place.after
        return place

    def _left(self, log: str, tenant_id: str) -> int:
        """How many rows wait for a log that cannot be sealed, as far as they can be read."""
        try:
            return len(self._reads.entries(tenant_id, self._after.get(log), COUNTED))
        except MemoryDamagedError:
            return 0

    def _gather(
        self, done: dict[str, Place], keys: LedgerKeys, faults: dict[str, LedgerError]
    ) -> None:
        newest = {log: place.note for log, place in done.items() if place.note is not None}
        fresh = {log for log, place in done.items() if place.rows}
        meta = self._meta_sealer(keys)
        try:
            meta.gather(newest, fresh)
            if not self._meta_carried_over:  # gathering did it, unless there was nothing to gather
                meta.carry_over()
                self._meta_carried_over = True
        except (LedgerError, MemoryDamagedError) as error:
            faults[META] = self._fault(META, error)

    def _has_meta(
        self, tenants: Iterable[str], keys: LedgerKeys, faults: dict[str, LedgerError]
    ) -> bool:
        """Whether rows may be sealed: not before the meta log is there, or was and is damaged."""
        try:
            self._meta_sealer(keys).begin(tenants)
        except (LedgerError, MemoryDamagedError) as error:
            faults[META] = fault = self._fault(META, error)
            return isinstance(fault, LedgerDamagedError)
        return True

    def _fault(self, log: str, error: LedgerError | MemoryDamagedError) -> LedgerError:
        """What the memory keeps of a log is of the log: what is wrong with it is damage."""
        if isinstance(error, LedgerError):
            return error
        return LedgerDamagedError(
            f"the log {self._folder.log(log).root} does not fit the memory: {error}; nothing of it"
            " is sealed until that is put right, run `audit verify`"
        )

    def _meta_sealer(self, keys: LedgerKeys) -> MetaSealer:
        if self._meta is None:
            origin = f"{self._origin}/{META}"
            sealer = self._log_sealer(META, META, origin, keys, positions=False)
            self._meta = MetaSealer(self._reads, self._folder, sealer)
        return self._meta

    def _log_sealer(
        self, log: str, role: str, origin: str, keys: LedgerKeys, *, positions: bool
    ) -> LogSealer:
        return LogSealer(
            self._reads,
            self._folder.log(log),
            role=role,
            origin=origin,
            keys=keys,
            positions=positions,
        )

    # --- beside the rows ----------------------------------------------------------------------

    def _tenants(self, faults: dict[str, LedgerError]) -> list[str]:
        """Whom the memory lists. Where its list is none, the folder's lines have to do."""
        try:
            return self._memory.tenants()
        except MemoryDamagedError as error:
            faults[TENANTS] = LedgerDamagedError(
                f"whoever has no log yet is not sealed: {error}; run `audit verify`"
            )
            return []

    def _unknown(self, logs: Collection[str]) -> dict[str, LedgerError]:
        """Logs that are there, of tenants that neither memory nor folder names any more."""
        return {
            name: LedgerDamagedError(
                f"nothing says whose the log {self._folder.log(name).root} is, neither the memory's"
                " list of tenants nor the file tenants: no row of that tenant is sealed until its"
                " line is put back from a backup, run `audit verify`"
            )
            for name in self._folder.logs()
            if name not in logs and self._folder.log(name).exists
        }

    def _register(self, tenants: list[str], keys: LedgerKeys) -> dict[str, str]:
        """The tenant of each log; what is new is written down before anything of it is sealed.

        What the folder lists is served as well: the memory's list may have lost a name. It names a
        tenant before the first row, which may have been refused: of a mere name nothing is kept.
        """
        known = self._folder.tenants()
        for tenant_id in {*tenants, *known.values()} - self._origins.keys():
            self._origins[tenant_id] = origin_of(self._origin, tenant_id, keys.secret)
        named = {self._log_of(tenant_id): tenant_id for tenant_id in tenants}
        logs = {log: t for log, t in named.items() if log in known or self._has_any(log, t)}
        if not logs.items() <= known.items():
            self._folder.put_tenants(known | logs)
        # A line that names another log than its tenant's is none of ours.
        return logs | {log: t for log, t in known.items() if self._log_of(t) == log}

    def _has_any(self, log: str, tenant_id: str) -> bool:
        """Whether there is anything of a tenant but its name; what cannot be read is something."""
        try:
            return (
                self._folder.log(log).exists
                or bool(self._reads.entries(tenant_id, None, 1))
                or self._reads.sealed(tenant_id) is not None
            )
        except MemoryDamagedError:
            return True

    def _log_of(self, tenant_id: str) -> str:
        return self._origins[tenant_id].rpartition("/")[2]

    def _announced(self, keys: LedgerKeys) -> dict[str, LedgerError]:
        """What is wrong where new keys could not be announced; the next round tries again."""
        try:
            self._announce(keys)
        except (MemoryDamagedError, RowError) as error:
            log = origin_of(self._origin, NIL_TENANT, keys.secret).rpartition("/")[2]
            text = f"the rotation of the keys is not on record yet: {error}; run `audit verify`"
            return {log: LedgerDamagedError(text)}
        return {}

    def _announce(self, keys: LedgerKeys) -> None:
        """Write down keys that never signed here before; a new first one is a row of its own."""
        known = self._folder.keys()
        added = [key for key in reversed(keys.verifiers) if key not in known]
        if not added:
            return
        newest = keys.verifiers[0]
        if known and newest in added:
            before = next((key.to_text() for key in keys.verifiers if key in known), None)
            self._emit_rotation(newest.to_text(), before)
        self._folder.put_keys([*known, *added])

    def _emit_rotation(self, new_key: str, old_key: str | None) -> None:
        """Once, although a crash may come between the row and the list of keys."""
        rows = self._memory.rows(tenant_id=NIL_TENANT, kind=KEY_ROTATED)
        if any(row.payload["new_key"] == new_key for row in rows):
            return
        row = audit_key_rotated(
            str(ULID()),
            new_key=new_key,
            old_key=old_key,
            ts=timestamp(self._now()),
            worker=self._worker,
        )
        self._memory.emit(row)

    def _tell(self, faults: dict[str, LedgerError]) -> None:
        """Each fault once, for as long as it lasts."""
        told = {log: str(error) for log, error in faults.items()}
        for log, text in told.items():
            if self._told.get(log) == text:
                continue
            if isinstance(faults[log], LedgerDamagedError):
                logger.critical("the ledger is damaged: %s", text, extra={"severity": "sev-1"})
            elif isinstance(faults[log], LedgerRaceError):
                logger.warning("the ledger waits: %s", text, extra={"severity": "sev-3"})
            else:
                logger.error("a log is not sealed: %s", text, extra={"severity": "sev-1"})
        self._told = told
