"""`audit.copying`: rows held against the ledger, and the ledger taken along."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from audit.errors import CopyError, MemoryUnavailableError
from audit.ledger.claims import Trust
from audit.ledger.folder import META, LedgerFolder
from audit.ledger.merkle import leaf_hash
from audit.ledger.pruning import Pruner
from audit.row import AuditRow
from audit.testing import InMemory
from tests.copying import copied, fill
from tests.sealing import KEYS, NEIGHBOUR, PREFIX, check, log_of, make, raw, seal, two_tenants
from tests.support import TENANT, make_identity, refused

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
    fill(source, 600)
    seal(source, tmp_path)
    pruner = Pruner(
        source, LedgerFolder(tmp_path), origin=PREFIX, keys=KEYS, seal=make(source, tmp_path).round
    )
    pruner.prune(pruner.plan(TENANT, datetime.now(UTC)))
    assert "pruned" in str(copied(source, target, ledger=tmp_path)[TENANT].fault)
    assert raw(target) == []


def test_a_ledger_without_its_logs_is_the_wrong_one(tmp_path: Path) -> None:
    """The source is sealed and the given folder has nothing of it: that is no pass."""
    source = two_tenants(tmp_path / "old")
    (tmp_path / "wrong").mkdir()
    did = copied(source, InMemory(), ledger=tmp_path / "wrong")
    assert all("the ledger knows of none" in str(of.fault) for of in did.values())


def test_trimmed_rows_that_were_never_sealed_there_are_no_end(tmp_path: Path) -> None:
    """A folder without that tenant, and a memory that has lost its checkpoint: an error."""
    source, target = two_tenants(tmp_path / "old"), InMemory()
    source.trim(TENANT, str(source.last_position(TENANT)))
    source._sealed.clear()
    (tmp_path / "wrong").mkdir()
    did = copied(source, target, ledger=tmp_path / "wrong")
    assert "does not have either" in str(did[TENANT].fault)
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


class Stopped(InMemory):
    """A target in which the last of so many swaps finds the copy dead."""

    def __init__(self, swaps: int) -> None:
        super().__init__()
        self.swapped: list[str] = []
        self._swaps = swaps

    def swap_sealed(
        self, tenant_id: str, old: bytes | None, new: bytes, position: str | None = None
    ) -> bool:
        self.swapped.append(tenant_id)
        if len(self.swapped) == self._swaps:
            raise MemoryUnavailableError("killed")
        return super().swap_sealed(tenant_id, old, new, position)


@pytest.mark.parametrize("swaps", [1, 2, 3])
def test_a_ledger_that_was_stopped_on_its_way_goes_along_again(swaps: int, tmp_path: Path) -> None:
    """Until the end a keeper of the target seals nothing; afterwards all is right.

    The source may have been sealed further in between.
    """
    old, new = tmp_path / "old", tmp_path / "new"
    source, target = two_tenants(old), Stopped(swaps)
    with pytest.raises(MemoryUnavailableError):
        copied(source, target, ledger=old, folder=new)
    early = seal(target, new)
    assert early.faults.keys() >= {META}
    assert early.rows == 0
    fill(source, 5, seed=4)
    seal(source, old)
    copied(source, target, ledger=old, folder=new)
    assert target.swapped[-1] == META
    fill(target, 4, seed=5)
    assert seal(target, new).faults == {}
    assert list(check(target, new).findings()) == []


def test_a_ledger_is_mirrored_again_and_again(tmp_path: Path) -> None:
    """The source seals on, over the end of a bundle, and each copy takes that along."""
    old, new = tmp_path / "old", tmp_path / "new"
    source, target = two_tenants(old), InMemory()
    for seed in range(4, 7):
        copied(source, target, ledger=old, folder=new)
        assert list(check(target, new).findings()) == []
        fill(source, 150, seed=seed)
        seal(source, old)
    copied(source, target, ledger=old, folder=new)
    assert list(check(target, new).findings()) == []
    assert target.sealed(META) == source.sealed(META)


def test_a_ledger_of_another_moment_does_not_go_along(tmp_path: Path) -> None:
    """Its file has an older checkpoint than the memory: the target gets none."""
    old, new = tmp_path / "old", tmp_path / "new"
    source, target = two_tenants(old), InMemory()
    file = old / log_of(TENANT) / "checkpoint"
    before = file.read_bytes()
    fill(source, 2, seed=4)
    seal(source, old)
    file.write_bytes(before)
    with pytest.raises(CopyError, match="two checkpoints"):
        copied(source, target, ledger=old, folder=new)
    assert target.sealed(NEIGHBOUR) is None


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
