"""`audit.copying`: what is copied, what is refused, and that no row is lost, without any server."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from audit.copying.copy import Copied, Copy
from audit.errors import CopyError, MemoryUnavailableError
from audit.ledger.claims import Trust
from audit.ledger.folder import LedgerFolder
from audit.ledger.merkle import leaf_hash
from audit.ledger.tiles import tile_of
from audit.memory.base import AuditMemory, Entry, Hold, Once, Stored
from audit.row import AuditRow
from audit.testing import Fault, InMemory
from tests.ledger_writer import just_now, rows_of
from tests.sealing import KEYS, NEIGHBOUR, PREFIX, check, log_of, raw, seal, two_tenants
from tests.support import TENANT, completed, make_identity, refused, started

TRUST = Trust(KEYS.verifiers, PREFIX)


def copied(source: AuditMemory, target: AuditMemory, **more: object) -> dict[str, Copied]:
    """What a run says of each tenant."""
    options: dict[str, object] = {"trust": TRUST, "pause": lambda seconds: None, **more}
    work = Copy(source=source, target=target, **options)  # type: ignore[arg-type]
    return {of.tenant_id: of for of in work.run()}


def fill(memory: InMemory, count: int, tenant_id: str = TENANT, seed: int = 1) -> None:
    for row in just_now(rows_of(tenant_id, count, Random(seed))):
        memory.emit(row)


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


def test_one_memory_is_not_copied_into_itself() -> None:
    """Whatever its two URLs are: nothing is written."""
    source = InMemory()
    fill(source, 2)
    with pytest.raises(CopyError, match="are one memory"):
        copied(source, source)
    assert len(raw(source)) == 2


def test_a_source_without_rows_is_an_error() -> None:
    """It is likelier a wrong URL than a wish."""
    with pytest.raises(CopyError, match="nothing to copy"):
        copied(InMemory(), InMemory())


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


# --- the ledger -----------------------------------------------------------------------------------


def test_sealed_rows_are_held_against_the_ledger(tmp_path: Path) -> None:
    """As many as are sealed, no more; without a ledger nothing is said of them."""
    source = two_tenants(tmp_path)
    fill(source, 2, seed=4)
    did = copied(source, InMemory(), ledger=tmp_path)
    assert {tenant: (of.rows, of.sealed) for tenant, of in did.items()} == {
        TENANT: (12, 10),
        NEIGHBOUR: (4, 4),
    }
    assert {of.sealed for of in copied(source, InMemory()).values()} == {None}


def test_a_changed_row_is_named_and_not_copied(tmp_path: Path) -> None:
    """One byte of a sealed row: rows before it are there, it and what follows are not."""
    source, target = two_tenants(tmp_path), InMemory()
    index = next(n for n, row in enumerate(source._rows) if row.tenant_id == TENANT) + 3
    row = source._rows[index]
    altered = row.to_bytes().replace(b'"attempt":0', b'"attempt":1')
    source._rows[index] = AuditRow.from_bytes(altered, row.position)
    did = copied(source, target, ledger=tmp_path)
    assert f"the row at {row.position} is not what was sealed as row 3" in str(did[TENANT].fault)
    assert altered not in raw(target)
    assert did[NEIGHBOUR].fault is None


def test_a_missing_sealed_row_is_told(tmp_path: Path) -> None:
    """The last one went: what is there is right, and still the copy is not."""
    source = two_tenants(tmp_path)
    del source._rows[-1]
    did = copied(source, InMemory(), ledger=tmp_path)
    assert "row 9 is missing" in str(did[TENANT].fault)


def test_leaves_alone_prove_nothing(tmp_path: Path) -> None:
    """Whoever changed the row and its leaf alike is found out by the root that was signed."""
    source = two_tenants(tmp_path)
    index = next(n for n, row in enumerate(source._rows) if row.tenant_id == TENANT) + 3
    row = source._rows[index]
    altered = row.to_bytes().replace(b'"attempt":0', b'"attempt":1')
    source._rows[index] = AuditRow.from_bytes(altered, row.position)
    for path in (tmp_path / log_of(TENANT) / "tile" / "0").rglob("*"):
        if path.is_file():
            hashes = path.read_bytes().replace(leaf_hash(row.to_bytes()), leaf_hash(altered))
            path.write_bytes(hashes)
    did = copied(source, InMemory(), ledger=tmp_path)
    assert "root that was signed" in str(did[TENANT].fault)


def test_nobody_else_may_have_signed(tmp_path: Path) -> None:
    """A checkpoint of an unknown key proves nothing, and nothing is copied under it."""
    source, target = two_tenants(tmp_path), InMemory()
    did = copied(source, target, ledger=tmp_path, trust=Trust((), PREFIX))
    assert all("proves nothing" in str(of.fault) for of in did.values())
    assert raw(target) == []


def test_trimmed_rows_are_read_from_the_ledger(tmp_path: Path) -> None:
    """The target has all of them again, those too whose completion alone was still hot."""
    source, target = two_tenants(tmp_path), InMemory()
    before = raw(source)
    source.trim(TENANT, str(list(source.rows(TENANT))[7].position))
    assert len(raw(source)) < len(before)
    assert copied(source, target, ledger=tmp_path)[TENANT].fault is None
    assert raw(target) == before


def test_a_trim_beside_the_copy_leaves_no_gap(tmp_path: Path) -> None:
    """Rows that go between two pages are read from the ledger."""
    source, target = InMemory(), InMemory()
    fill(source, 1_400)
    seal(source, tmp_path)
    before = raw(source)

    def told(tenant_id: str, rows: int, position: str) -> None:
        source.trim(TENANT, str(source.last_position(TENANT)))

    assert copied(source, target, ledger=tmp_path, told=told)[TENANT].fault is None
    assert len(raw(source)) < 500
    assert raw(target) == before


def test_trimmed_rows_without_a_ledger_are_an_error(tmp_path: Path) -> None:
    """It says what is missing; nothing is written."""
    source, target = two_tenants(tmp_path), InMemory()
    source.trim(TENANT, str(list(source.rows(TENANT))[7].position))
    fault = copied(source, target)[TENANT].fault
    assert "--ledger" in str(fault)
    assert raw(target) == []


def test_what_was_pruned_cannot_be_copied(tmp_path: Path) -> None:
    """A tenant with a gap is refused, by a text that says why; nothing is written."""
    source, target = InMemory(), InMemory()
    fill(source, 300)
    seal(source, tmp_path)
    source.trim(TENANT, str(source.last_position(TENANT)))
    bundle = tmp_path / log_of(TENANT) / tile_of(None, 0, 300).to_path()
    bundle.unlink()
    fault = copied(source, target, ledger=tmp_path)[TENANT].fault
    assert fault is not None
    assert raw(target) == []


# --- the ledger along -----------------------------------------------------------------------------


def test_a_ledger_goes_along_and_is_sealed_further(tmp_path: Path) -> None:
    """The target is verified with its folder, and a sealer goes on with the same trees."""
    old, new = tmp_path / "old", tmp_path / "new"
    source, target = two_tenants(old), InMemory()
    fill(target, 7, "550e8400-e29b-41d4-a716-44665544ffff", 9)  # positions are other ones
    fill(source, 2, seed=4)
    assert all(of.fault is None for of in copied(source, target, ledger=old, folder=new).values())
    assert target.sealed_position(TENANT) != source.sealed_position(TENANT)
    did = seal(target, new)
    assert (did.faults, did.rows) == ({}, 2 + 7)
    fill(target, 6, seed=5)
    assert seal(target, new).faults == {}
    assert list(check(target, new).findings()) == []
    assert list(check(source, old).findings()) == []


def test_a_ledger_is_not_given_to_a_target_at_fault(tmp_path: Path) -> None:
    """Where one tenant is not copied, the target has no checkpoint; once it is, it has."""
    old, new = tmp_path / "old", tmp_path / "new"
    source, target = two_tenants(old), InMemory()
    alien = refused(make_identity())
    target.emit(alien)
    copied(source, target, ledger=old, folder=new)
    assert (target.sealed(NEIGHBOUR), target.sealed("meta")) == (None, None)
    fresh = InMemory()
    copied(source, fresh, ledger=old, folder=new)
    assert fresh.sealed("meta") == source.sealed("meta")
    assert list(check(fresh, new).findings()) == []
    copied(source, fresh, ledger=old, folder=new)  # again is safe


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """It is left as it is; so is the ledger itself, given as the new folder."""
    old, new = tmp_path / "old", tmp_path / "new"
    source, target = two_tenants(old), InMemory()
    two_tenants(new)
    for folder in (new, old):
        with pytest.raises(CopyError, match="another"):
            copied(source, target, ledger=old, folder=folder)
    assert raw(target) == []


def test_a_target_that_seals_on_its_own_keeps_its_checkpoints(tmp_path: Path) -> None:
    """Its trees are not replaced by others."""
    old, new = tmp_path / "old", tmp_path / "new"
    source, target = two_tenants(old), InMemory()
    copied(source, target)
    seal(target, tmp_path / "own")
    own = target.sealed(TENANT)
    with pytest.raises(CopyError, match="checkpoint of its own"):
        copied(source, target, ledger=old, folder=new)
    assert target.sealed(TENANT) == own


def test_a_ledger_in_use_does_not_go_along(tmp_path: Path) -> None:
    """While somebody seals the source, nothing is begun."""
    old, new = tmp_path / "old", tmp_path / "new"
    source, target = two_tenants(old), InMemory()
    with LedgerFolder(old).locked(), pytest.raises(CopyError, match="stop the keeper"):
        copied(source, target, ledger=old, folder=new)
    assert raw(target) == []
