"""What a verification says: findings, what was checked of each log, and the verdict.

What is guaranteed: the kinds are closed, one word each; a finding says where as exactly as it is
known; where nothing was checked, the verdict is :attr:`Verdict.EMPTY`, and where nothing was of one
log that has sealed rows, :attr:`Verdict.PARTIAL`: neither is a pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from audit.ledger.invocations import Opened


class Kind(StrEnum):
    """What is wrong."""

    #: A row has other bytes than were sealed at its index; any field, envelope or payload.
    EDITED = "edited"
    #: A row that was sealed is not there any more.
    DELETED = "deleted"
    #: A row stands among the sealed ones that was never sealed.
    INSERTED = "inserted"
    #: A row that was sealed stands at another place.
    REORDERED = "reordered"
    #: The rows end before the size that was sealed.
    CUT = "cut"
    #: A checkpoint is older than one that is known.
    ROLLBACK = "rollback"
    #: Two signed checkpoints that no one log can both have.
    FORK = "fork"
    #: No known key has signed a checkpoint, or the signature of a known one does not hold.
    UNTRUSTED = "untrusted"
    #: A checkpoint, a tile, an entry bundle, the meta log, or whose log it is, is not there.
    MISSING = "missing"
    #: A checkpoint, a tile, an entry bundle or a row does not keep its format.
    MALFORMED = "malformed"
    #: A file beside the rows says something else than they do: hashes, positions, whose log it is.
    ALTERED = "altered"
    #: The rows do not have the signed root, and nothing that is right tells which of them.
    DIVERGENT = "divergent"
    #: An invocation started and has no completed row for longer than the limit.
    OVERDUE = "overdue"
    #: An invocation has a second started or completed row.
    DUPLICATE = "duplicate"
    #: Rows wait to be sealed for longer than the limit.
    UNSEALED = "unsealed"
    #: The memory's list of tenants lacks one that has a log.
    UNLISTED = "unlisted"


class Source(StrEnum):
    """Where it is wrong."""

    MEMORY = "memory"
    LEDGER = "ledger"
    #: The meta log, which holds the checkpoints of all logs.
    META = "meta"
    #: A checkpoint that whoever verifies has brought along.
    GIVEN = "given"


class Verdict(StrEnum):
    """What a verification comes to."""

    RIGHT = "right"
    WRONG = "wrong"
    #: Nothing was found, but of some log with sealed rows nothing was checked.
    PARTIAL = "partial"
    EMPTY = "empty"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: what.
        source: where.
        log: of which log, its pseudonym; ``""`` where a tenant has none.
        tenant: whose log, where that is known.
        index: of the first row concerned, from 0; of a checkpoint the size of its tree.
        count: how many rows, side by side from there.
        position: of the first row, where the memory has it, if that is known.
        request_id: of the first row, if that is known.
        text: for people.
    """

    kind: Kind
    source: Source
    log: str
    tenant: str | None = None
    index: int | None = None
    count: int = 1
    position: str | None = None
    request_id: str | None = None
    text: str = ""

    def as_dict(self) -> dict[str, Any]:
        """A JSON object, what is not known left out."""
        known = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class LogReport:
    """What was checked of one log.

    Attributes:
        log: its pseudonym; ``""`` where a tenant has rows and no log.
        tenant: whose, where that is known.
        sealed: the size of the tree that its rows were held against.
        checked: how many rows were hashed again and found to be the sealed ones.
        unsealed: rows of the memory behind the sealed ones, which nothing speaks for yet; ``None``
            where that is not known: the memory cannot be read, or nothing says whose log it is.
        cosigned: how many of the rows a witness has seen, from the first on.
        pruned: rows whose bytes were removed as an ``audit.pruned`` row says; hashes remain.
        trimmed: rows that the memory may have given up; whether the bundles hold them is checked
            where there are any.
        findings: what is wrong.
        opened: invocations that are open, by sealed rows; not judged yet.
        newest: the time of the newest sealed row, in seconds.
    """

    log: str
    tenant: str | None
    sealed: int = 0
    checked: int = 0
    unsealed: int | None = 0
    cosigned: int = 0
    pruned: int = 0
    trimmed: int = 0
    findings: tuple[Finding, ...] = ()
    opened: tuple[Opened, ...] = ()
    newest: float = 0.0

    @property
    def is_unchecked(self) -> bool:
        """Whether rows were sealed, and not one of them was checked."""
        return self.sealed > 0 and not self.checked

    @property
    def verdict(self) -> Verdict:
        if self.findings:
            return Verdict.WRONG
        return Verdict.RIGHT if self.checked else Verdict.EMPTY

    def as_dict(self) -> dict[str, Any]:
        """A JSON object without the findings, which are objects of their own."""
        names = [name for name in self.__slots__ if name not in ("findings", "opened", "newest")]
        return {name: getattr(self, name) for name in names} | {"verdict": self.verdict}


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked of all logs."""

    logs: tuple[LogReport, ...]

    def findings(self) -> Iterator[Finding]:
        for log in self.logs:
            yield from log.findings

    @property
    def verdict(self) -> Verdict:
        """Right only where nothing is wrong, and of each log that has sealed rows, some were
        checked; of one tenant at least."""
        if any(log.findings for log in self.logs):
            return Verdict.WRONG
        if not any(log.checked for log in self.logs if log.log != META):
            return Verdict.EMPTY
        return Verdict.PARTIAL if any(log.is_unchecked for log in self.logs) else Verdict.RIGHT


#: The name of the meta log, in the files as in the memory.
META = "meta"
