"""audit/ledger/pruning.py: old bodies go, every hash stays, and nothing goes that may not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from ulid import ULID

from audit.errors import LedgerDamagedError, LedgerError, NoteSignatureError
from audit.ledger import pruning
from audit.ledger.archive import Archive, read_through
from audit.ledger.checkpoint import Checkpoint, open_checkpoint, origin_of
from audit.ledger.folder import LedgerFolder
from audit.ledger.keys import LedgerKeys
from audit.ledger.log import LogFolder
from audit.ledger.merkle import (
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    verify_consistency,
    verify_inclusion,
)
from audit.ledger.pruned import pruned_rows, sign_pruned
from audit.ledger.pruning import Prune, Pruner
from audit.ledger.sealed_log import SealedLog
from audit.ledger.tiles import Tile
from audit.memory.base import RowFilter
from audit.row import COMPLETED, AuditRow
from audit.system_rows import PRUNED, audit_pruned
from audit.testing import InMemory
from tests.naive_merkle import NaiveTree
from tests.sealing import KEYS, PREFIX, log_of, make, seal
from tests.support import TENANT, completed, make_identity, refused, started, validate_row

OLD: Final = "2026-01-01T00:00:00.000000Z"
NEW: Final = "2026-03-01T00:00:00.000000Z"
BEFORE: Final = datetime(2026, 2, 1, tzinfo=UTC)
ORIGIN: Final = origin_of(PREFIX, TENANT, KEYS.secret)


class Ledger:
    """A memory with one tenant, sealed into a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.memory = InMemory()
        self.folder = LedgerFolder(root)

    def write(self, pairs: int, ts: str) -> None:
        for _ in range(pairs):
            identity = make_identity()
            self.memory.emit(started(identity, ts=ts))
            self.memory.emit(completed(identity, ts=ts))

    def seal(self) -> None:
        assert not seal(self.memory, self.root).faults

    @property
    def log(self) -> LogFolder:
        return self.folder.log(log_of(TENANT))

    @property
    def checkpoint(self) -> Checkpoint:
        note = self.log.checkpoint() or b""
        return open_checkpoint(note, ORIGIN, KEYS.verifiers_of(ORIGIN)).checkpoint

    def pruner(self, **options: Any) -> Pruner:
        options.setdefault("seal", lambda: make(self.memory, self.root).round())
        return Pruner(self.memory, self.folder, origin=PREFIX, keys=KEYS, **options)

    def prune(self, before: datetime = BEFORE, **options: Any) -> Prune:
        pruner = self.pruner(**options)
        plan = pruner.plan(TENANT, before)
        assert pruner.prune(plan) == plan.left
        return plan

    def bundles(self) -> list[bool]:
        """Of each full bundle, whether it is there."""
        count = self.checkpoint.size // 256
        return [(self.log.root / Tile(None, at).to_path()).exists() for at in range(count)]

    def told(self) -> list[tuple[int, int]]:
        rows = list(read_through(self.memory, Archive(self.folder), RowFilter(kind=PRUNED)))
        for row in rows:
            validate_row(row)
        return [(row.payload["first_index"], row.payload["rows"]) for row in rows]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """1,100 old rows and 300 new ones, all sealed: five bundles, four of them of old rows only."""
    ledger = Ledger(tmp_path)
    ledger.write(550, OLD)
    ledger.write(150, NEW)
    ledger.seal()
    return ledger


def test_old_bundles_go_and_a_sealed_row_says_so(ledger: Ledger) -> None:
    """Those with old rows only; tiles, positions and newer rows stay; nothing of them is left."""
    rows = list(ledger.log.tiles.rows(1400))
    tiles = {path: path.read_bytes() for path in ledger.log.root.glob("tile/0/???")}
    old_root = NaiveTree(rows).mth(0, 1024).hex()
    plan = ledger.prune()
    assert (plan.rows, plan.gone, plan.root) == (1024, 0, old_root)
    assert ledger.bundles() == [False] * 4 + [True]
    for path, content in tiles.items():
        assert path.read_bytes() == content
    assert ledger.told() == [(0, 1024)]
    assert list(ledger.log.tiles.rows(1400, 1024)) == rows[1024:]
    found = [row.to_bytes() for row in read_through(ledger.memory, Archive(ledger.folder), ALL)]
    assert found[:-1] == rows[1024:]
    told = json.loads(found[-1])
    assert told["kind"] == PRUNED
    assert told["payload"]["root"] == old_root
    assert ledger.checkpoint.size == 1401
    everything = b"".join(p.read_bytes() for p in ledger.root.rglob("*") if p.is_file())
    request_ids = {json.loads(row)["payload"]["request_id"].encode() for row in rows[:1024]}
    assert not any(request_id in everything for request_id in request_ids)


ALL: Final = RowFilter(tenant_id=TENANT)


def test_all_proofs_hold_as_before(ledger: Ledger) -> None:
    """Old proofs against old heads, and proofs made afterwards, for rows whose bytes are gone."""
    rows = list(ledger.log.tiles.rows(1400))
    old = ledger.checkpoint
    node = ledger.log.tiles.node_reader(1400)
    indexes = [0, 1, 255, 256, 700, 1023, 1024, 1399]
    paths = {index: inclusion_proof(index, 1400, node) for index in indexes}
    sizes = [1, 255, 256, 1000, 1024, 1025, 1399]
    grown = {size: consistency_proof(size, 1400, node) for size in sizes}
    ledger.prune()
    new, tree = ledger.checkpoint, NaiveTree(rows)
    node = ledger.log.tiles.node_reader(new.size)
    for index in indexes:
        leaf = leaf_hash(rows[index])
        assert inclusion_proof(index, 1400, node) == paths[index]
        verify_inclusion(leaf, index, 1400, paths[index], old.root)
        path = inclusion_proof(index, new.size, node)
        verify_inclusion(leaf, index, new.size, path, new.root)
    for size in sizes:
        top = tree.mth(0, size)
        assert consistency_proof(size, 1400, node) == grown[size]
        verify_consistency(size, top, 1400, old.root, grown[size])
        proof = consistency_proof(size, new.size, node)
        verify_consistency(size, top, new.size, new.root, proof)


def test_again_is_nothing(ledger: Ledger) -> None:
    """The same command a second time removes nothing, says nothing, and changes no file."""
    ledger.prune()
    files = {path: path.read_bytes() for path in ledger.root.rglob("*") if path.is_file()}
    plan = ledger.prune()
    assert (plan.rows, plan.gone, plan.left) == (1024, 1024, 0)
    assert files == {path: path.read_bytes() for path in ledger.root.rglob("*") if path.is_file()}
    assert ledger.told() == [(0, 1024)]


def test_a_plan_changes_nothing(ledger: Ledger) -> None:
    """What would go is told, and every file and row is as it was."""
    files = {path: path.read_bytes() for path in ledger.root.rglob("*") if path.is_file()}
    assert ledger.pruner().plan(TENANT, BEFORE).left == 1024
    assert files == {path: path.read_bytes() for path in ledger.root.rglob("*") if path.is_file()}
    assert len(list(ledger.memory.rows())) == 1400


def test_sealing_goes_on_after_everything_went(tmp_path: Path) -> None:
    """A log whose last bundle is pruned grows on, and a later prune covers the earlier ones."""
    ledger = Ledger(tmp_path)
    ledger.write(256, OLD)
    ledger.seal()
    ledger.prune()
    assert ledger.bundles() == [False, False]
    ledger.write(384, OLD)
    ledger.seal()
    ledger.prune(datetime(2026, 2, 2, tzinfo=UTC))
    assert ledger.bundles()[:2] == [False, False]
    ledger.write(10, NEW)
    ledger.seal()
    later = datetime(2100, 1, 1, tzinfo=UTC)
    plan = ledger.prune(later)
    assert (plan.rows, plan.gone) == (1280, 512)
    assert ledger.bundles() == [False] * 5
    assert ledger.told()[-1] == (0, 1280)


def test_the_last_row_that_says_so_is_always_there(tmp_path: Path) -> None:
    """Rows of earlier prunes go with the others; the newest covers all, and is never in its own."""
    ledger = Ledger(tmp_path)
    for _ in range(4):
        ledger.write(200, OLD)
        ledger.seal()
        ledger.prune(datetime(2100, 1, 1, tzinfo=UTC))
        gone = ledger.bundles().count(False)
        assert max(rows for _, rows in ledger.told()) == gone * 256
    assert len(ledger.told()) < 4


def test_rows_of_an_open_invocation_stay(tmp_path: Path) -> None:
    """A bundle with its started row stays, and all behind it; once it is closed they go."""
    ledger = Ledger(tmp_path)
    ledger.write(200, OLD)
    identity = make_identity()
    ledger.memory.emit(started(identity, ts=OLD))
    ledger.write(500, OLD)
    ledger.seal()
    assert ledger.prune().rows == 256
    assert {row.request_id for row in ledger.memory.running()} == {identity.request_id}
    ledger.memory.emit(completed(identity, ts=OLD))
    ledger.seal()
    assert ledger.prune().left == 1280 - 256
    again = ledger.memory.emit(completed(identity, ts=OLD))
    assert again == "repeated"


def test_what_is_not_sealed_or_not_full_stays(tmp_path: Path) -> None:
    """However old: rows that no checkpoint covers, and the rows of a partial bundle."""
    ledger = Ledger(tmp_path)
    assert ledger.pruner().plan(TENANT, BEFORE).rows == 0
    ledger.write(127, OLD)
    ledger.seal()
    ledger.write(300, OLD)
    assert ledger.prune().rows == 0
    assert ledger.told() == []
    assert len(list(ledger.memory.rows())) == 854


def test_one_new_row_keeps_its_bundle(tmp_path: Path) -> None:
    """A single row that is as old as the limit, or younger, keeps its 255 neighbours."""
    for ts, rows in [("2026-01-31T23:59:59.999999Z", 512), ("2026-02-01T00:00:00.000000Z", 256)]:
        ledger = Ledger(tmp_path / ts)
        ledger.write(250, OLD)
        ledger.memory.emit(refused(make_identity(), ts=ts))
        ledger.write(100, OLD)
        ledger.seal()
        assert ledger.prune().rows == rows


class Crash(BaseException):
    """As a kill would end it."""


def _steps(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, at: int) -> Callable[[], int]:
    """Crash before, or behind, the step of that number; how many there were."""
    done = 0

    def crashing(target: Any, name: str) -> None:
        real = getattr(target, name)

        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal done
            for half in (0, 1):
                result = real(*args, **kwargs) if half else None
                done += 1
                if done == at:
                    raise Crash
            return result

        monkeypatch.setattr(target, name, step)

    crashing(ledger.memory, "emit")
    crashing(ledger.memory, "trim")
    crashing(ledger.memory, "swap_sealed")
    crashing(LogFolder, "drop_bundle")
    crashing(LogFolder, "put_checkpoint")
    return lambda: done


def test_a_crash_anywhere_is_finished_by_the_next_run(tmp_path: Path) -> None:
    """Killed before and behind every step: no row goes unsaid, and the next run completes it."""
    at, steps = 0, 1
    while at < steps:
        at += 1
        ledger = Ledger(tmp_path / str(at))
        ledger.write(300, OLD)
        ledger.write(50, NEW)
        ledger.seal()
        with pytest.MonkeyPatch.context() as patched:
            count = _steps(ledger, patched, at)
            try:
                ledger.prune()
            except Crash:
                steps = at + 1
            else:
                assert count() < at
                steps = at
        _nothing_went_unsaid(ledger)
        ledger.prune()
        assert ledger.bundles() == [False, False]
        assert ledger.told() == [(0, 512)]
        assert min(_places(ledger)) == 512
    assert steps > 10


def _nothing_went_unsaid(ledger: Ledger) -> None:
    """Whatever is missing is covered by a row that is sealed."""
    sealed = [AuditRow.from_bytes(row) for row in _sealed_rows(ledger)]
    covered = max((row.payload["rows"] for row in sealed if row.kind == PRUNED), default=0)
    assert ledger.bundles()[covered // 256 :] == [True] * (2 - covered // 256)
    assert min(_places(ledger), default=0) <= covered


def _sealed_rows(ledger: Ledger) -> Iterator[bytes]:
    return iter(ledger.log.tiles.rows(ledger.checkpoint.size, 512))


def _places(ledger: Ledger) -> list[int]:
    """The places in the log of the rows that the memory still has."""
    return [int(str(row.position).partition("-")[0]) - 1 for row in ledger.memory.rows(TENANT)]


def test_nothing_goes_while_the_row_is_not_sealed(ledger: Ledger) -> None:
    """Sealing that does not come leaves everything there, after a while, with what to do."""
    waited: list[float] = []
    with pytest.raises(LedgerError, match="nothing was removed"):
        ledger.prune(seal=lambda: None, pause=waited.append)
    assert sum(waited) == pytest.approx(pruning.PATIENCE, rel=0.05)
    assert ledger.bundles() == [True] * 5
    assert len(list(ledger.memory.rows(TENANT, kind=COMPLETED))) == 700
    ledger.prune()
    assert ledger.told() == [(0, 1024)]


@pytest.mark.parametrize("place", [0, 300, 1023])
def test_a_changed_row_is_evidence_and_stays(ledger: Ledger, place: int) -> None:
    """A bundle whose rows are not what was sealed stops the whole prune."""
    path = ledger.log.root / Tile(None, place // 256).to_path()
    row = list(ledger.log.tiles.rows(1400))[place]
    path.write_bytes(path.read_bytes().replace(row, row.replace(b"triage", b"triaGe")))
    _refused(ledger, "evidence")


def test_rows_and_hashes_changed_together_are_evidence(ledger: Ledger) -> None:
    """A bundle with the leaf hashes that fit it, but not the tree."""
    row = list(ledger.log.tiles.rows(1400))[300]
    changed = row.replace(b"triage", b"triaGe")
    for tile, old, new in [
        (Tile(None, 1), row, changed),
        (Tile(0, 1), leaf_hash(row), leaf_hash(changed)),
    ]:
        path = ledger.log.root / tile.to_path()
        path.write_bytes(path.read_bytes().replace(old, new))
    _refused(ledger, "evidence")


def test_tiles_that_were_never_signed_are_evidence(ledger: Ledger) -> None:
    """Another tree under the checkpoint, whole in itself."""
    path = ledger.log.root / Tile(1, 0, 5).to_path()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    _refused(ledger, "root that was signed")


def test_a_bundle_that_nobody_pruned_is_evidence(ledger: Ledger) -> None:
    """A missing file is no sign that it was pruned, unless a row says so."""
    (ledger.log.root / Tile(None, 1).to_path()).unlink()
    _refused(ledger, "no signed row says that it was pruned")


@pytest.mark.parametrize("signed_by", ["a stranger", "another log", "the log's checkpoint"])
def test_a_row_without_a_sound_note_excuses_no_missing_bundle(
    ledger: Ledger, signed_by: str
) -> None:
    """Anybody who writes to the memory writes rows: prune and export go by the signature."""
    top = NaiveTree(list(ledger.log.tiles.rows(1400))).mth(0, 256)
    stranger = LedgerKeys.generate("host.example", random=lambda size: b"z" * size)
    note = {
        "a stranger": lambda: sign_pruned(ORIGIN, 256, top, stranger),
        "another log": lambda: sign_pruned(f"{PREFIX}/other", 256, top, KEYS),
        "the log's checkpoint": lambda: (ledger.log.checkpoint() or b"").decode(),
    }[signed_by]()
    ledger.memory.emit(_pruned_row(top, note))
    ledger.seal()
    (ledger.log.root / Tile(None, 0).to_path()).unlink()
    with pytest.raises(LedgerDamagedError, match="no signed row"):
        ledger.prune()
    with pytest.raises(LedgerDamagedError, match="no signed row"):
        SealedLog(ledger.root, ORIGIN, KEYS.verifiers).held_from()
    ledger.memory.emit(_pruned_row(top, sign_pruned(ORIGIN, 256, top, KEYS)))
    ledger.seal()
    assert ledger.prune().gone == 256
    assert SealedLog(ledger.root, ORIGIN, KEYS.verifiers).held_from() == 1024


def _pruned_row(top: bytes, note: str) -> AuditRow:
    return audit_pruned(
        str(ULID()), TENANT, before=NEW, first_index=0, rows=256, root=top.hex(), note=note, ts=NEW
    )


def test_a_signed_row_counts_only_for_the_tree_there_is(ledger: Ledger) -> None:
    """With a root that the level tiles do not give it excuses nothing, whoever has signed it."""
    tiles = ledger.log.tiles
    ledger.memory.emit(_pruned_row(b"x" * 32, sign_pruned(ORIGIN, 256, b"x" * 32, KEYS)))
    ledger.seal()
    assert pruned_rows(tiles, 1401, ORIGIN, KEYS.verifiers) == 0


def _refused(ledger: Ledger, text: str) -> None:
    there = ledger.bundles()
    with pytest.raises(LedgerDamagedError, match=text):
        ledger.prune()
    assert ledger.bundles() == there
    assert ledger.told() == []
    assert len(list(ledger.memory.rows(TENANT))) == 1400


def test_a_forged_checkpoint_prunes_nothing(ledger: Ledger) -> None:
    """What the memory says is sealed counts only with a signature."""
    stranger = LedgerKeys.generate("host.example", random=lambda size: b"z" * size)
    forged = ledger.checkpoint.sign(*stranger.signers_of(ORIGIN)).to_bytes()
    assert ledger.memory.swap_sealed(TENANT, ledger.memory.sealed(TENANT), forged)
    with pytest.raises(NoteSignatureError):
        ledger.prune()
    assert ledger.bundles() == [True] * 5


def test_a_forged_row_does_not_widen_what_goes(ledger: Ledger) -> None:
    """That rows are said to be pruned removes none: what goes is what was asked for, once more."""
    rows = ledger.pruner().plan(TENANT, BEFORE).rows
    for count in (rows, rows + 256):  # both with a root that is none of this log
        forged = Prune(tenant_id=TENANT, before=BEFORE, rows=count, root="0" * 64)
        ledger.pruner()._announce(forged)
    assert ledger.prune().rows == 1024
    assert ledger.bundles() == [False] * 4 + [True]
    assert ledger.told() == [(0, 1024), (0, 1280), (0, 1024)]
