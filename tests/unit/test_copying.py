"""`audit.copying`: what is copied, what is refused, and that no row is lost, without any server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from audit.copying.copy import Copied
from audit.errors import CopyError, MemoryUnavailableError, MemoryUnsuitableError
from audit.memory.base import Entry, Hold, Once, Stored
from audit.row import AuditRow
from audit.testing import Fault, InMemory
from tests.copying import copied, fill
from tests.sealing import NEIGHBOUR, raw, two_tenants
from tests.support import TENANT, completed, make_identity, refused, started

# --- rows -----------------------------------------------------------------------------------------


def test_a_copy_has_the_same_rows_in_the_same_order() -> None:
    """More than a page of them, of two tenants; a second run adds nothing."""
    source, target = InMemory(), InMemory()
    fill(source, 1_203)
    fill(source, 4, NEIGHBOUR, 2)
    did = copied(source, target)
    assert {tenant: (of.rows, of.new, of.fault) for tenant, of in did.items()} == {
        TENANT: (1_203, 1_203, None),
        NEIGHBOUR: (4, 4, None),
    }
    for tenant in (TENANT, NEIGHBOUR):
        assert raw(target, tenant) == raw(source, tenant)
    assert {of.new for of in copied(source, target).values()} == {0}


def test_a_copy_goes_on_with_what_has_come_since() -> None:
    """What came while it ran is left to the next run: each ends where the source ended then."""
    source, target = InMemory(), InMemory()
    fill(source, 700)
    later: list[AuditRow] = [refused(make_identity()) for _ in range(3)]

    def told(tenant_id: str, rows: int, position: str) -> None:
        while later:
            source.emit(later.pop())

    assert copied(source, target, told=told)[TENANT].new == 700
    assert raw(target) == raw(source)[:700]
    assert copied(source, target)[TENANT].new == 3
    assert raw(target) == raw(source)


def test_a_late_row_stays_late() -> None:
    """Two rivals of one completion come out as the late rows that they were, an end as an end."""
    source, target = InMemory(), InMemory()
    one = make_identity()
    source.emit(started(one))
    for duration in (1, 2, 3):
        source.emit(completed(one, duration_ms=duration))
    copied(source, target)
    assert raw(target) == raw(source)
    assert [row.kind.rpartition("_")[2] for row in target.rows()] == [
        "started",
        "completed",
        "late",
        "late",
    ]


def test_whoever_was_told_a_reply_too_late_copies_again() -> None:
    """A row that was stored although the emit failed is no second row in the next run."""
    source, target = InMemory(), InMemory()
    fill(source, 10)
    target.faults.extend([None, None, None, Fault.STORED])
    assert isinstance(copied(source, target)[TENANT].fault, MemoryUnavailableError)
    assert len(raw(target)) == 4
    assert copied(source, target)[TENANT].fault is None
    assert raw(target) == raw(source)


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 3, 9, 10])
def test_a_target_with_other_rows_is_left_as_it_is(at: int) -> None:
    """At the beginning, in the middle, at the end and behind it; the error says where."""
    source, target = InMemory(), InMemory()
    fill(source, 10)
    for stored in raw(source)[:at]:
        target.emit(AuditRow.from_bytes(stored))
    target.emit(refused(make_identity()))
    fill(source, 2 if at < 10 else 0, seed=2)
    before = raw(target)
    fault = copied(source, target)[TENANT].fault
    assert isinstance(fault, CopyError)
    assert f"at {target.entries(TENANT, None, 99)[at].position}" in str(fault)
    assert raw(target) == before


def test_a_tenant_at_fault_keeps_no_other_from_being_copied() -> None:
    """The error is that tenant's; the rows of the next are there."""
    source, target = InMemory(), InMemory()
    fill(source, 5)
    fill(source, 5, NEIGHBOUR, 2)
    target.emit(refused(make_identity()))
    did = copied(source, target)
    assert (did[TENANT].fault is None, did[NEIGHBOUR].fault) == (False, None)
    assert raw(target, NEIGHBOUR) == raw(source, NEIGHBOUR)


def test_a_source_that_does_not_answer_is_no_tenants_fault() -> None:
    """Its clock may answer still, as that of a server does which is loading its rows."""

    class Loading(InMemory):
        def entries(self, *args: object, **more: object) -> list[Entry]:
            raise MemoryUnavailableError("loading the dataset")

        last_position = entries  # type: ignore[assignment]

    source = Loading()
    fill(source, 5)
    assert source.store_time()
    with pytest.raises(MemoryUnavailableError, match="loading"):
        copied(source, InMemory())


def test_a_source_that_can_only_be_read_is_asked_for_nothing_else() -> None:
    """A standby takes no writes, and what is wrong with one tenant is told all the same."""

    class Standby(InMemory):
        def check(self) -> None:
            raise MemoryUnsuitableError("it takes no writes")

    source, target = Standby(), InMemory()
    fill(source, 5)
    fill(source, 5, NEIGHBOUR, 2)
    target.emit(refused(make_identity()))
    did = copied(source, target)
    assert isinstance(did[TENANT].fault, CopyError)
    assert did[NEIGHBOUR].fault is None
    assert raw(target, NEIGHBOUR) == raw(source, NEIGHBOUR)


def test_one_memory_is_not_copied_into_itself() -> None:
    """Whatever its two URLs are: nothing is written."""
    source = InMemory()
    fill(source, 2)
    with pytest.raises(CopyError, match="are one memory"):
        copied(source, source)
    assert len(raw(source)) == 2


class Asked(InMemory):
    """Copies on from another memory while somebody finds out whether this one is that."""

    def __init__(self, other: InMemory) -> None:
        super().__init__()
        self.other = other
        self.did: dict[str, Copied] = {}

    def is_led(self, role: str) -> bool:
        other, self.other = self.other, InMemory()
        if other.tenants():
            self.did = copied(other, InMemory())
        return super().is_led(role)


def test_a_copy_that_begins_disturbs_no_other() -> None:
    """While one into a memory begins, one out of it is not told that it goes into itself."""
    middle = InMemory()
    source = Asked(middle)
    fill(source, 2)
    for row in source.rows():
        middle.emit(row)
    assert copied(source, middle)[TENANT].fault is None
    assert source.did[TENANT].fault is None


def test_a_source_without_rows_is_an_error() -> None:
    """It is likelier a wrong URL than a wish."""
    with pytest.raises(CopyError, match="nothing to copy"):
        copied(InMemory(), InMemory())


class Forged(InMemory):
    """A source in which the third row of a tenant is one of its neighbour's, as its bytes say."""

    forged = refused(make_identity(tenant_id=NEIGHBOUR)).to_bytes()

    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        return [
            replace(entry, stored=self.forged)
            if tenant_id == TENANT and entry.position == "3-0"
            else entry
            for entry in super().entries(tenant_id, after, limit)
        ]


@pytest.mark.parametrize(
    "forged", [Forged.forged, Forged.forged.replace(b'"tenant_id"', b'"no_tenant"')]
)
def test_a_row_that_names_another_tenant_is_emitted_for_neither(forged: bytes) -> None:
    """Somebody put it there past the memory: the error says where, and its page is not stored."""
    source, target = Forged(), InMemory()
    fill(source, 5)
    fill(source, 5, NEIGHBOUR, 2)
    source.forged = forged
    did = copied(source, target)
    assert f"entry at 3-0 is a row of another tenant than {TENANT}" in str(did[TENANT].fault)
    assert raw(target) == []
    assert did[NEIGHBOUR].fault is None
    assert raw(target, NEIGHBOUR) == raw(source, NEIGHBOUR)


class Forgetful(InMemory):
    """A target that says it has stored a row, and has stored another."""

    def emit(self, row: AuditRow, once: Once | None = None, hold: Hold | None = None) -> Stored:
        altered = row.to_bytes().replace(b'"attempt":0', b'"attempt":7')
        return super().emit(AuditRow.from_bytes(altered))


def test_what_was_stored_is_read_back() -> None:
    """A target that has other bytes than it was given is found out."""
    source = InMemory()
    fill(source, 3)
    fault = copied(source, Forgetful())[TENANT].fault
    assert isinstance(fault, CopyError)
    assert "another row" in str(fault)


class Raced(InMemory):
    """A target in which another copy stores these rows, just after this one has looked."""

    def __init__(self, rows: list[AuditRow]) -> None:
        super().__init__()
        self._coming = rows

    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        found = super().entries(tenant_id, after, limit)
        while self._coming:
            self.emit(self._coming.pop(0))
        return found


def test_rows_of_another_copy_are_not_counted_as_new() -> None:
    """Late ones neither, which a memory calls late each time that they come."""
    source, one = InMemory(), make_identity()
    rows = [started(one), *(completed(one, duration_ms=duration) for duration in (1, 2, 3))]
    for row in rows:
        source.emit(row)
    did = copied(source, Raced(rows))[TENANT]
    assert (did.fault, did.rows, did.new) == (None, 4, 0)
    assert copied(source, InMemory())[TENANT].new == 4


class Slow(InMemory):
    """A target that shows what it has stored only after some looks, as PostgreSQL may."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = self._left = looks

    def emit(self, row: AuditRow, once: Once | None = None, hold: Hold | None = None) -> Stored:
        self._left = self._looks
        return super().emit(row)

    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        self._left -= 1
        return [] if self._left > 0 else super().entries(tenant_id, after, limit)


def test_a_target_may_show_its_rows_later() -> None:
    """They are waited for, and not taken for lost; for ever they are not."""
    source = InMemory()
    fill(source, 3)
    assert copied(source, Slow(5))[TENANT].fault is None
    assert "does not show it" in str(copied(source, Slow(1_000))[TENANT].fault)


def test_what_is_there_and_does_not_show_yet_is_stored_once() -> None:
    """Rows of a run that was killed: they are emitted again, and are no second rows."""
    source, target = InMemory(), Slow(3)
    fill(source, 8)
    for stored in raw(source)[:4]:
        target.emit(AuditRow.from_bytes(stored))
    did = copied(source, target)[TENANT]
    assert (did.rows, did.new, did.fault) == (8, 4, None)
    assert [row.to_bytes() for row in target.rows()] == raw(source)


def test_a_trimmed_target_is_left_as_it_is(tmp_path: Path) -> None:
    """What it had cannot be compared any more, so nothing is added to it."""
    source, target = two_tenants(tmp_path), InMemory()
    copied(source, target)
    fill(source, 2, seed=4)
    target.trim(TENANT, str(list(target.rows(TENANT))[3].position))
    before = raw(target)
    assert "trimmed from the target" in str(copied(source, target)[TENANT].fault)
    assert raw(target) == before


def test_an_entry_that_is_no_row_ends_the_copy_of_its_tenant() -> None:
    """The error says where it stands, without what is in it; nothing of its page is stored."""
    source, target = InMemory(), InMemory()
    fill(source, 5)
    entries = source.entries

    def forged(tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        found = entries(tenant_id, after, limit)
        return [Entry(e.position, b"s3cr3t") if e.position == "3-0" else e for e in found]

    source.entries = forged  # type: ignore[method-assign]
    fault = str(copied(source, target)[TENANT].fault)
    assert "3-0 is no row" in fault
    assert "s3cr3t" not in fault
    assert raw(target) == []
