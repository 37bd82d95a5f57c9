"""Assertions on the two rows of an invocation; each that fails says what is on record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from audit.row import COMPLETED, REFUSED, STARTED, AuditRow, Outcome, Reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """One invocation: its started row, and the completed one, unless it is still open.

    Attributes:
        record: all that was on record when the pair was read, for the text of a failure.
    """

    started: AuditRow
    completed: AuditRow | None
    record: str

    @property
    def is_open(self) -> bool:
        return self.completed is None

    @property
    def reason(self) -> str:
        """The finer word of the ending, ``"open"`` while there is none."""
        return "open" if self.completed is None else str(self.completed.meta["reason"])

    def succeeded(self) -> Pair:
        """The outcome is success."""
        return self._ended(Outcome.SUCCESS)

    def failed(self, text: str = "") -> Pair:
        """The outcome is error, and ``text`` is in its masked message, e.g. the error's type."""
        self._ended(Outcome.ERROR)
        message = str(self._closed().payload["error_message"])
        if text not in message:
            raise AssertionError(f"{text!r} is not in {message!r}\n{self.record}")
        return self

    def ended(self, reason: Reason | str) -> Pair:
        """The invocation ended for exactly this reason."""
        if self.reason != reason:
            raise AssertionError(f"expected {reason}, but it is {self.reason}\n{self.record}")
        return self

    def called_by(self, parent: Pair) -> Pair:
        """The invocation of ``parent`` published this one."""
        if self.started.meta["parent_request_id"] != parent.started.request_id:
            raise AssertionError(f"{_name(parent.started)} is not its parent\n{self.record}")
        return self

    def _closed(self) -> AuditRow:
        if self.completed is None:
            raise AssertionError(f"{_name(self.started)} is open\n{self.record}")
        return self.completed

    def _ended(self, outcome: Outcome) -> Pair:
        if (found := self._closed().payload["outcome"]) != outcome:
            name = _name(self.started)
            raise AssertionError(f"{name}: expected {outcome}, but it is {found}\n{self.record}")
        return self


def pairs_of(rows: Iterable[AuditRow], skill_id: str | None = None) -> list[Pair]:
    """The invocations in ``rows``, oldest first, of one skill or of all."""
    rows = list(rows)
    record = on_record(rows)
    endings = {(r.tenant_id, r.request_id): r for r in rows if r.kind == COMPLETED}
    return [
        Pair(started=r, completed=endings.get((r.tenant_id, r.request_id)), record=record)
        for r in rows
        if r.kind == STARTED and skill_id in (None, r.payload["skill_id"])
    ]


def on_record(rows: Iterable[AuditRow]) -> str:
    """The rows in words, a line each."""
    lines = [f"  {_words(row)}" for row in rows]
    return "\n".join(["on record:", *lines]) if lines else "on record: nothing"


def _words(row: AuditRow) -> str:
    ending = row.payload.get("outcome"), row.meta.get("reason"), row.payload.get("error_message")
    words = [str(word) for word in ending if word]
    kind = row.kind.rpartition("_")[2] if row.kind in (STARTED, COMPLETED, REFUSED) else row.kind
    return " ".join([_name(row), kind, *words])


def _name(row: AuditRow) -> str:
    return f"{row.payload.get('skill_id') or '-'} {row.request_id}"
