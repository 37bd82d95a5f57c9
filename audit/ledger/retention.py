"""Hot retention: sealed rows leave the memory after a while, and are read from the bundles.

What is guaranteed: a row leaves the memory only where its very bytes stand in a bundle, at its
position, under the newest checkpoint; rows of open invocations and what follows them stay. Whoever
reads rows through :mod:`audit.ledger.archive` notices nothing. How old a row is counts from the
newest sealed ones of its tenant, and not from a clock alone. A fault of one tenant keeps no other
from being trimmed, and a sealed entry that is no row keeps nothing (:mod:`audit.ledger.moments`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from audit.errors import AuditError, AuditMemoryError, LedgerDamagedError, MemoryDamagedError
from audit.ledger.archive import Archive
from audit.ledger.background import Background
from audit.ledger.folder import LedgerFolder
from audit.ledger.moments import judged, may_go, moment_of
from audit.memory.base import AuditMemory, Entry, order_of

logger: Final = logging.getLogger("audit")

#: Seconds between two times that the memory is looked through.
EVERY: Final = 30.0
#: Rows looked at in one go; the memory serves nobody else meanwhile.
PAGE: Final = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Trimmed:
    """What one look through the memory did.

    Attributes:
        rows: how many went.
        faults: why not all went that should have, by tenant.
    """

    rows: int
    faults: dict[str, AuditError]


class HotRetention:
    """Trims a memory.

    Args:
        memory: to be trimmed.
        folder: the ledger's.
        seconds: rows older than that, than the newest sealed ones too, go
            (``audit_hot_retention``).
        every: seconds between two times (:meth:`poke`).
        now: the wall clock, which the rows' ``ts`` is held against.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        memory: AuditMemory,
        folder: LedgerFolder,
        *,
        seconds: float,
        every: float = EVERY,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory = memory
        self._archive = Archive(folder)
        self._keep = timedelta(seconds=seconds)
        self._now = now
        self._background = Background("hot retention", self._watch, every, clock)
        self._told: frozenset[str] = frozenset()

    def poke(self) -> bool:
        """Begin, if it is time and nothing is under way; never waits, never raises."""
        return self._background.poke()

    def trim(self) -> Trimmed:
        """Trim every tenant's rows, each by itself.

        Raises:
            AuditMemoryError: the memory did not answer.
        """
        rows, faults = 0, {}
        for tenant_id in self._memory.tenants():
            try:
                rows += self._trim(tenant_id)
            except AuditError as error:
                self._memory.check()  # where nothing answers, no tenant is at fault
                faults[tenant_id] = error
        return Trimmed(rows=rows, faults=faults)

    def _trim(self, tenant_id: str) -> int:
        before = self._before(tenant_id)
        if before is None:
            return 0
        self._memory.trimmed(tenant_id)  # raises where the mark is none: trimming would hide that
        sealed, after = _Sealed(self._archive, tenant_id), None
        trimmed = undecided = 0
        while page := self._memory.entries(tenant_id, after, PAGE):
            found = list(judged(sealed.of(page), before))
            if old := may_go(found):
                went = self._memory.trim(tenant_id, _behind(page[old - 1].position))
                trimmed += went
                if went < undecided + old:
                    break
                undecided = 0
            if len(found) < len(page):
                break
            undecided += len(found) - old
            after = page[-1].position
        return trimmed

    def _before(self, tenant_id: str) -> datetime | None:
        """What is older goes; ``None``: nothing sealed says how old it is."""
        for bundle in self._archive.from_the_end(tenant_id):
            if moments := [moment for stored in bundle if (moment := moment_of(stored))]:
                try:
                    return min(self._now(), max(moments)) - self._keep
                except OverflowError:
                    return None  # before the year 1
        return None

    def _watch(self) -> None:
        faults: list[AuditError]
        try:
            faults = list(self.trim().faults.values())
        except AuditError as error:
            faults = [error]
        for fault in faults:
            if str(fault) not in self._told:  # each once, for as long as it lasts
                _tell(fault)
        self._told = frozenset(map(str, faults))


class _Sealed:
    """What the bundles hold of a tenant, from where the memory begins."""

    def __init__(self, archive: Archive, tenant_id: str) -> None:
        self._archive = archive
        self._tenant_id = tenant_id
        self._rows: Iterator[tuple[str, bytes]] | None = None

    def of(self, page: list[Entry]) -> Iterator[bytes]:
        """The first entries of a page, as far as they are sealed."""
        for entry in page:
            if self._at(entry) != entry.stored:
                return
            yield entry.stored

    def _at(self, entry: Entry) -> bytes | None:
        """What is sealed at the position of an entry; ``None``: nothing is, or not any more."""
        place = order_of(entry.position)
        if self._rows is None:
            self._rows = self._archive.stored(self._tenant_id, place)
        for position, stored in self._rows:
            if order_of(position) < place:
                continue  # trimmed meanwhile by somebody else
            if order_of(position) > place:
                return None
            if stored != entry.stored:
                raise LedgerDamagedError(
                    f"the memory's row at {position} of tenant {self._tenant_id} is not what was"
                    " sealed; nothing of it is trimmed, run `audit verify`"
                )
            return stored
        return None


def _behind(position: str) -> str:
    major, minor = order_of(position)
    return f"{major}-{minor + 1}"


def _tell(error: AuditError) -> None:
    text, level, severity = "hot rows stay: %s", logging.ERROR, "sev-2"
    if isinstance(error, LedgerDamagedError | MemoryDamagedError):
        text, level, severity = "the ledger may be damaged: %s", logging.CRITICAL, "sev-1"
    elif isinstance(error, AuditMemoryError):
        text, severity = "hot rows stay for now: %s", "sev-3"
    logger.log(level, text, error, extra={"severity": severity})
