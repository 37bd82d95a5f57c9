"""Bounded reading: a page of the newest rows, and a page of what is running.

Every memory guarantees:

* a page looks at no more entries than it was told to, however long the history is and however
  rarely the filter lets a row pass; it says how far it looked, and where to go on;
* all tenants' entries have one total order, by position and then by tenant; pages read from one
  cursor to the next look at each entry once, except that a row stored meanwhile by a server whose
  clock went back can be missed;
* an entry that is no row is counted and named, and ends nobody.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from audit.memory.filter import RowFilter
from audit.row import AuditRow

#: Entries that a page looks at, unless told otherwise.
LOOK: Final = 5_000


@dataclass(frozen=True, slots=True)
class Damaged:
    """An entry that is no row.

    Attributes:
        tenant_id: in whose rows it stands.
        position: where.
    """

    tenant_id: str
    position: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """What one bounded look at the newest entries found.

    Attributes:
        rows: those that pass the filter, newest first.
        damaged: entries looked at that are no row, newest first, whatever the filter.
        looked: how many entries were looked at.
        reached: the store's time of the oldest of them; ``None`` where there was none.
        next: the cursor of the next page, "position/tenant"; ``None``: no older entry can pass.
        trimmed: whether the memory no longer has older rows that the filter may have let pass; only
            said where ``next`` is ``None``.
    """

    rows: tuple[AuditRow, ...]
    damaged: tuple[Damaged, ...] = ()
    looked: int = 0
    reached: datetime | None = None
    next: str | None = None
    trimmed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Open:
    """The invocations that have been open for longest.

    Attributes:
        rows: their started rows, oldest first. One that is no row is left out.
        total: how many are open in all.
        damaged: what stands in the place of the started rows that were left out.
    """

    rows: tuple[AuditRow, ...]
    total: int
    damaged: tuple[Damaged, ...] = ()


class Paging(ABC):
    """The part of a memory that pages are read from."""

    @abstractmethod
    def page(
        self,
        wanted: RowFilter,
        *,
        most: int = 100,
        look: int = LOOK,
        cursor: str | None = None,
        without: Collection[str] = (),
    ) -> Page:
        """The newest rows that pass ``wanted``, from ``cursor`` back.

        Ends after ``most`` rows, after ``look`` entries, or where the entries do. With ``since`` it
        ends where no entry can be of that time any more, but for clocks that differ by more than an
        hour. With ``request_id`` it goes straight to the rows of that invocation.

        Args:
            wanted: which rows.
            most: rows, 1 or more.
            look: entries to fetch, 1 or more. One of each tenant is fetched even beyond that. Of
                several tenants, some that are fetched may come too late in the order to be looked
                at, so that :attr:`Page.looked` stays below.
            cursor: :attr:`Page.next` of the page before; ``None`` for the newest. It is the same
                for every filter.
            without: tenants of which nothing is read.

        Raises:
            ValueError: most or look are less than 1, or that is no cursor.
            MemoryDamagedError: what is kept of a tenant that is read is not the audit's.
            MemoryUnavailableError: the store did not answer within the deadline.
        """

    @abstractmethod
    def cursor_at(self, moment: datetime) -> str:
        """The cursor of the page that begins with the newest entry stored by ``moment``.

        By the store's clock, which may differ from that of whoever wrote a row.

        Args:
            moment: aware.
        """

    @abstractmethod
    def open_page(self, tenant_id: str | None, most: int, *, without: Collection[str] = ()) -> Open:
        """The ``most`` invocations that are open longest, to the millisecond, of one tenant or all.

        Of the tenants in ``without`` nothing is read.

        Raises:
            ValueError: ``most`` is less than 1.
            MemoryDamagedError: as by :meth:`page`.
            MemoryUnavailableError: the store did not answer within the deadline.
        """

    @abstractmethod
    def stored_at(self, row: AuditRow) -> datetime:
        """When a row was stored, by the store's clock, in UTC.

        Raises:
            ValueError: this row comes from no memory.
        """
