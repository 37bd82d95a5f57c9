"""Hot retention: sealed rows leave the memory after a while, and are read from the bundles.

What is guaranteed: a row leaves the memory only where its very bytes stand in a bundle, at its
position, under the newest checkpoint; rows of open invocations and what follows them stay. Whoever
reads rows through :mod:`audit.ledger.archive` notices nothing. How old a row is counts from the
newest sealed ones of its tenant, so that a verifier can tell what was trimmed without a clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from audit.errors import AuditError, AuditMemoryError, LedgerDamagedError
from audit.ledger.archive import Archive
from audit.ledger.background import Background
from audit.ledger.folder import LedgerFolder
from audit.memory.base import AuditMemory, Entry, order_of
from audit.row import AuditRow

logger: Final = logging.getLogger("audit")

#: Seconds between two times that the memory is looked through.
EVERY: Final = 30.0
#: Rows looked at in one go; the memory serves nobody else meanwhile.
PAGE: Final = 500


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
        self._told = ""

    def poke(self) -> bool:
        """Begin, if it is time and nothing is under way; never waits, never raises."""
        return self._background.poke()

    def trim(self) -> int:
        """Trim every tenant's rows; how many went.

        Raises:
            LedgerDamagedError: memory and bundle have different bytes at one position.
            LedgerError: the ledger cannot be read.
            AuditMemoryError: the memory did not answer.
        """
        return sum(self._trim(tenant_id) for tenant_id in self._memory.tenants())

    def _trim(self, tenant_id: str) -> int:
        if not (newest := self._archive.newest(tenant_id)):
            return 0
        before = min(self._now(), max(map(_moment, newest))) - self._keep
        trimmed, sealed = 0, _Sealed(self._archive, tenant_id)
        while page := self._memory.entries(tenant_id, None, PAGE):
            may_go = list(sealed.of(page, before))
            if not may_go:
                break
            major, minor = order_of(may_go[-1].position)
            went = self._memory.trim(tenant_id, f"{major}-{minor + 1}")
            trimmed += went
            if went < len(may_go) or len(may_go) < len(page):
                break
        return trimmed

    def _watch(self) -> None:
        try:
            self.trim()
            self._told = ""
        except AuditMemoryError as error:
            self._tell("hot rows stay for now: %s", error, logging.ERROR, "sev-3")
        except LedgerDamagedError as error:
            self._tell("the ledger may be damaged: %s", error, logging.CRITICAL, "sev-1")
        except AuditError as error:
            self._tell("hot rows stay: %s", error, logging.ERROR, "sev-2")

    def _tell(self, text: str, error: AuditError, level: int, severity: str) -> None:
        """Each fault once, for as long as it lasts."""
        if str(error) != self._told:
            logger.log(level, text, error, extra={"severity": severity})
        self._told = str(error)


class _Sealed:
    """What the bundles hold of a tenant, from where the memory begins."""

    def __init__(self, archive: Archive, tenant_id: str) -> None:
        self._archive = archive
        self._tenant_id = tenant_id
        self._rows: Iterator[tuple[str, bytes]] | None = None

    def of(self, page: list[Entry], before: datetime) -> Iterator[Entry]:
        """The first entries of a page that are sealed, and older than that."""
        for entry in page:
            if self._at(entry) != entry.stored:
                return
            if _moment(entry.stored) >= before:
                return
            yield entry

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


def _moment(stored: bytes) -> datetime:
    return datetime.fromisoformat(AuditRow.from_bytes(stored).ts)
