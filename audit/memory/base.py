"""The contract of an audit memory: an append-only store of rows, with "close once" inside.

Every memory guarantees:

* :meth:`AuditMemory.emit` returns when the row is durable to the degree the URL asks for, or
  raises within its deadline;
* the same row again is no error and no second row, so an emit whose reply was lost is simply
  done again;
* per request_id at most one started and at most one completed row, decided in one atomic step
  whoever writes them; a rival completion is kept as ``skill.invoked_late`` (decision 4);
* a completed row without its started row is refused (decision 5). But an ending that is reported
  from outside (:data:`SETTLING`) closes what is open, adds nothing to what is closed, and where
  no started row is, leaves a tombstone that refuses it for good should it still arrive;
* a started row that names its message (:class:`Once`) is marked where that message was started
  before, in the same step, and so is whatever completes that invocation: a pair agrees;
* a started row that takes its tick (:class:`Hold`) is refused where another message has it, in the
  same step, and leaves nothing behind;
* writers of different invocations never wait for each other in the client: no lock, no
  read-modify-write, one round trip;
* the stored bytes ARE the row;
* what somebody else has put in the place of what is kept of a tenant is an error that names the
  tenant (:class:`audit.errors.MemoryDamagedError`), and what concerns another tenant goes on;
* what :meth:`AuditMemory.trim` removed is gone from every answer, and everything above holds for
  its invocation all the same: the same row again is still no second row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from audit.memory.entry import Entry, order_of
from audit.memory.filter import RowFilter
from audit.memory.page import Paging
from audit.memory.result import TaskResult
from audit.row import STARTED, AuditRow, Reason

__all__ = [
    "DEATHS",
    "SETTLING",
    "AuditMemory",
    "Entry",
    "Once",
    "RowFilter",
    "RowRefusal",
    "Stored",
    "as_replay",
    "message_of",
    "order_of",
]

#: Endings that somebody else than the running body reports. Several may see the same one, so a
#: second report is no rival.
SETTLING: Final = frozenset(
    {
        Reason.NOT_DISPATCHED,
        Reason.WORKER_LOST,
        Reason.HARD_TIME_LIMIT,
        Reason.REVOKED,
        Reason.TERMINATED,
        Reason.SHUTDOWN,
        Reason.ABANDONED,
    }
)

#: Endings that count as a death of the worker that ran the message.
DEATHS: Final = frozenset({Reason.WORKER_LOST, Reason.ABANDONED})


class Stored(StrEnum):
    """What became of an emitted row.

    ``SETTLED``: the invocation was closed or refused already, the report adds nothing.
    ``BARRED``: it had never started, and never will.
    ``REPLAYED``: :func:`as_replay` of it is stored, since just now or since an earlier try.
    """

    NEW = "new"
    REPEATED = "repeated"
    LATE = "late"
    SETTLED = "settled"
    BARRED = "barred"
    REPLAYED = "replayed"


class RowRefusal(StrEnum):
    """Why a memory refuses a row (:class:`audit.errors.RowRefusedError`)."""

    NO_STARTED_ROW = "no started row"
    SECOND_STARTED_ROW = "a different started row is there"
    TOMBSTONE = "closed as not dispatched before it arrived"
    WAS_REFUSED = "the invocation was refused"
    TICK_TAKEN = "another message of its tick has started"
    NO_INVOCATION = "neither a row of an invocation, nor one of the trail itself"


def message_of(row: AuditRow) -> str:
    """The message that an invocation ran: a redelivery is the same message, a retry another."""
    return f"{row.meta.get('task_id')}/{row.meta.get('attempt')}"


def as_replay(row: AuditRow) -> AuditRow:
    """``row`` as it is stored where its message was started before: ``meta.redelivered`` true.

    A row that says true already, or nothing at all, stays as it is.
    """
    if row.meta.get("redelivered") is not False:
        return row
    meta = {**row.meta, "redelivered": True}
    return AuditRow(kind=row.kind, ts=row.ts, payload=row.payload, meta=meta, schema=row.schema)


@dataclass(frozen=True, kw_only=True, slots=True)
class Once:
    """How a started row finds out that its message was started before.

    Attributes:
        token: names the message within its tenant, in printable ASCII. It stands in the store as
            it is, so where it is a secret, give its hash.
        seconds: how long a start under this token is remembered, by the store's clock.

    Raises:
        ValueError: token or seconds are none; the text does not repeat the token.
    """

    token: str
    seconds: int

    def __post_init__(self) -> None:
        if not (self.token and self.token.isascii() and self.token.isprintable()):
            raise ValueError("a token is printable ASCII text, and not empty")
        if self.seconds < 1:
            raise ValueError(f"a token is remembered for a second at least, got {self.seconds}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Hold:
    """How a started row takes its tick, so that no other message starts under it.

    Attributes:
        token: names the tick within its tenant, in printable ASCII.
        holder: names the message in all its deliveries and attempts.
        seconds: how long the tick stays taken, counted from its holder's last start by the store's
            clock.

    Raises:
        ValueError: a part is none; the text does not repeat it.
    """

    token: str
    holder: str
    seconds: int

    def __post_init__(self) -> None:
        if not all(text and text.isascii() and text.isprintable() for text in self._texts()):
            raise ValueError("token and holder of a tick are printable ASCII text, and not empty")
        if self.seconds < 1:
            raise ValueError(f"a tick is taken for a second at least, got {self.seconds}")

    def _texts(self) -> tuple[str, str]:
        return self.token, self.holder


def insist_on_started(row: AuditRow) -> None:
    """Raise ValueError unless ``row`` is a started row."""
    if row.kind != STARTED:
        raise ValueError("only a started row may ask whether it is a replay, or take a tick")


class AuditMemory(Paging):
    """An append-only store of rows, and of the leases of those who write them."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Which memory this is, without any secret; the same in every process that uses it."""

    @property
    def durability(self) -> str:
        """What the URL insists on: ``always``, ``everysec``, or ``server``, which is nothing."""
        return "server"

    @abstractmethod
    def check(self) -> None:
        """Reach the store and judge it.

        Raises:
            MemoryUnavailableError: it does not answer within the deadline.
            MemoryUnsuitableError: it answers, but could lose or evict rows.
        """

    @abstractmethod
    def emit(self, row: AuditRow, once: Once | None = None, hold: Hold | None = None) -> Stored:
        """Make ``row`` durable, as a replay (:func:`as_replay`) where its token was seen before.

        That is where another invocation started under the token and is still remembered.

        Idempotent either way: the same emit done again after a lost reply is no error and no
        second row, and does not count as a replay of itself, whichever of the two was stored. Only
        an invocation that starts leaves its token behind; one that is refused or barred does not.

        A row of the trail itself (:data:`audit.system_rows.SYSTEM_KINDS`) is stored as a refused
        one is: once under its request_id, alone.

        Args:
            row: what to store.
            once: for started rows only.
            hold: for started rows only: the row is refused where its tick is taken by another
                holder, and takes it in the same step otherwise.

        Raises:
            ValueError: ``once`` or ``hold`` came with another row than a started one.
            MemoryUnavailableError: the store did not take it within the deadline. Whether the row
                landed all the same is unknown; emitting it again is safe.
            MemoryUnsuitableError: the store could lose or evict rows.
            RowRefusedError: the row would break the once-ness or order of its invocation.
        """

    @property
    def results_at(self) -> str | None:
        """The database whose results of tasks it can store, as host:port/number, else ``None``.

        Behind sentinels as host:port,.../service/number.
        """
        return None

    def emit_with_result(self, row: AuditRow, result: TaskResult) -> Stored:
        """Emit a completed row, and store its task's result in the same atomic step.

        Answers and raises as :meth:`emit`. The result is stored where the row is (``NEW``,
        ``REPEATED``), and left alone where it is anything else.

        Raises:
            NotImplementedError: this memory stores no results (:attr:`results_at` is ``None``).
        """
        raise NotImplementedError("this memory stores no results")

    def prove_results(self, key: str, value: str) -> None:
        """Store ``value`` under ``key`` for a minute, give it back and announce it.

        All that :meth:`emit_with_result` needs the rights for.

        Raises:
            NotImplementedError: this memory stores no results.
            AuditMemoryError: the server did not do all of that; the text says what.
        """
        raise NotImplementedError("this memory stores no results")

    @abstractmethod
    def running(self, tenant_id: str | None = None) -> Iterator[AuditRow]:
        """Started rows without a completed one, oldest first per tenant.

        Takes time proportional to their number, not to the history.
        """

    @abstractmethod
    def select(self, wanted: RowFilter) -> Iterator[AuditRow]:
        """Rows that pass ``wanted`` in stored order, read in pages: memory use stays flat."""

    @abstractmethod
    def follow(self, wanted: RowFilter, *, poll: float = 0.2) -> Iterator[AuditRow | None]:
        """Rows that pass ``wanted`` as they arrive from now on, without end.

        Yields ``None`` whenever ``poll`` seconds went by without a row, so that a caller can stop.
        """

    @abstractmethod
    def hold_lease(self, worker: str, seconds: float) -> None:
        """Take or renew the lease of ``worker``; it runs out after ``seconds`` (the store's clock).

        Raises:
            MemoryUnavailableError: the store did not answer within the deadline.
        """

    @abstractmethod
    def drop_lease(self, worker: str) -> None:
        """Give the lease of ``worker`` back."""

    @abstractmethod
    def leases(self, workers: Collection[str]) -> set[str]:
        """Those of ``workers`` whose lease is held now."""

    @abstractmethod
    def lived_ms(self, started: AuditRow, worker: str) -> int:
        """Milliseconds from a stored started row to the last sign of life of ``worker``."""

    @abstractmethod
    def deaths(self, tenant_id: str, message: str) -> int:
        """How often a worker died over ``message`` (see :func:`message_of`)."""

    @abstractmethod
    def lead(self, role: str, holder: str, seconds: float) -> bool:
        """Whether ``holder`` leads in ``role`` now; leading is taken or renewed for ``seconds``."""

    @abstractmethod
    def give_up(self, role: str, holder: str) -> None:
        """``holder`` leads no longer."""

    @abstractmethod
    def is_led(self, role: str) -> bool:
        """Whether anybody leads in ``role`` now."""

    @abstractmethod
    def store_time(self) -> datetime:
        """What the store's clock says now, in UTC."""

    # --- for the ledger -----------------------------------------------------------------------

    @abstractmethod
    def tenants(self) -> list[str]:
        """Every tenant that ever had a row, the nil tenant too, in the order of their text."""

    @abstractmethod
    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        """At most ``limit`` entries of a tenant, in stored order, the next ones after a position.

        Nothing is parsed. A row that is stored later comes later in this order, always, so whoever
        goes on from the last position that it got misses nothing and gets nothing twice.

        Args:
            tenant_id: whose.
            after: exclusive; ``None`` from the first that is there. It need not be there any more.
            limit: 1 or more. All of them come in one reply, within the deadline.

        Raises:
            ValueError: ``limit`` is less than 1, or ``after`` is no position.
            MemoryDamagedError: what is kept as the tenant's rows is none.
            MemoryUnavailableError: the store did not answer within the deadline.
        """

    @abstractmethod
    def last_position(self, tenant_id: str) -> str | None:
        """Where the newest row of a tenant was stored, trimmed or not; ``None``: none ever was.

        Of rows that :meth:`entries` does not show yet, it does not know.
        """

    def newest_position(self, tenant_id: str) -> str | None:
        """As :meth:`last_position`, and of every row that was acknowledged, shown or not."""
        return self.last_position(tenant_id)

    @abstractmethod
    def sealed(self, tenant_id: str) -> bytes | None:
        """The newest sealed checkpoint of a tenant (or of another log that has a name).

        Raises:
            MemoryDamagedError: what is kept as that is no text at all.
            MemoryUnavailableError: the store did not answer within the deadline.
        """

    @abstractmethod
    def sealed_position(self, tenant_id: str) -> str | None:
        """Where the last row stands that the newest checkpoint covers; ``None``: not known.

        Kept in the very step that swaps the checkpoint. Whoever wants both of one moment asks for
        the checkpoint again afterwards. Given as it stands there, which may be no position.

        Raises:
            MemoryDamagedError: what is kept as that is no text at all.
            MemoryUnavailableError: the store did not answer within the deadline.
        """

    @abstractmethod
    def swap_sealed(
        self, tenant_id: str, old: bytes | None, new: bytes, position: str | None = None
    ) -> bool:
        """Put ``new`` in the place of ``old``, in one step; whether ``old`` was what stood there.

        Not repeated by itself: after an error that says ``maybe_stored`` ask :meth:`sealed`.

        Args:
            tenant_id: whose, as in :meth:`sealed`.
            old: what must stand there; ``None`` for nothing.
            new: not empty.
            position: of the last row that ``new`` covers, not empty; ``None`` leaves the one that
                is there: ``new`` is of the same rows, or of a log whose entries have no positions.

        Raises:
            ValueError: ``new`` or ``position`` is empty.
            MemoryUnavailableError: the store did not take it within the deadline.
            MemoryUnsuitableError: the store could lose or evict it.
        """

    @abstractmethod
    def trim(self, tenant_id: str, before: str) -> int:
        """Remove the rows of a tenant before a position; how many went.

        It stops before the started row of the oldest open invocation, so that none of those loses
        it. What is known of the closed ones stays: none starts or closes again. Emits go on
        meanwhile. That the rows are sealed and kept elsewhere is the caller's to know.

        Args:
            tenant_id: whose.
            before: exclusive.

        Raises:
            MemoryUnavailableError: the store did not answer within the deadline; rows may have
                gone. Trimming again is safe.
        """

    @abstractmethod
    def trimmed(self, tenant_id: str) -> str | None:
        """The position before which :meth:`trim` has removed rows; ``None``: it removed none.

        Kept in the very step that removes them. So a row that is missing at that position or
        behind it was not trimmed; whatever else took it.

        Raises:
            MemoryDamagedError: what is kept as that is no position.
            MemoryUnavailableError: the store did not answer within the deadline.
        """

    @abstractmethod
    def close(self) -> None:
        """Give the connections back. The memory opens new ones if it is used again."""

    def rows(
        self,
        tenant_id: UUID | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        kind: str | None = None,
        skill_id: str | None = None,
        outcome: str | None = None,
        caller_persona: str | None = None,
        trace_id: str | None = None,
        request_id: str | None = None,
        task_id: str | None = None,
    ) -> Iterator[AuditRow]:
        """Rows that pass every given part (see :class:`RowFilter`), oldest first.

        Raises:
            ValueError: ``since`` or ``until`` says no time zone.
        """
        return self.select(
            RowFilter(
                tenant_id=None if tenant_id is None else str(tenant_id).lower(),
                since=since,
                until=until,
                kind=kind,
                skill_id=skill_id,
                outcome=outcome,
                caller_persona=caller_persona,
                trace_id=trace_id,
                request_id=request_id,
                task_id=task_id,
            )
        )
