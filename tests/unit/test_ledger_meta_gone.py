"""audit/ledger: a meta log that was taken away is found, and no other is begun in its place."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from audit.errors import CheckpointError, LedgerDamagedError
from audit.ledger.checkpoint import Checkpoint
from audit.ledger.claims import Trust
from audit.ledger.finding import Kind, Source, Verdict
from audit.ledger.folder import META, LedgerFolder
from audit.ledger.note import Note
from audit.ledger.sealer import SealRound
from audit.ledger.sources import Sources
from audit.ledger.verifier import verify
from audit.testing import InMemory
from tests.sealing import (
    KEYS,
    NEIGHBOUR,
    PREFIX,
    Rows,
    begin_meta,
    check,
    contents,
    emit,
    files,
    kinds,
    log_of,
    make,
    meta_of,
    seal,
    two_tenants,
)
from tests.support import TENANT
from tests.unit.test_ledger_crash import Death, seal_and_die

pytestmark = pytest.mark.usefixtures("no_flush")


@pytest.fixture
def memory(tmp_path: Path) -> InMemory:
    return two_tenants(tmp_path / "a")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "a"


GONE = [(Kind.MISSING, Source.META, META)]


def never_sealed(memory: InMemory) -> None:
    """The memory as if no round had been."""
    memory._sealed.clear()
    memory._sealed_positions.clear()


def take_away(memory: InMemory, root: Path) -> None:
    """The meta log, and every hint of it."""
    shutil.rmtree(root / META)
    del memory._sealed[META]
    for hint in root.glob("*/gathered"):
        hint.unlink()


def take_back(memory: InMemory, root: Path) -> None:
    """The log of TENANT, to its first checkpoint, which the meta log has gathered."""
    (older,) = (entry for entry in meta_of(memory, root) if size_of(entry, log_of(TENANT)) == 6)
    memory._sealed[TENANT] = older
    (root / log_of(TENANT) / "checkpoint").write_bytes(older)
    kept = [row for row in memory._rows if row.tenant_id == TENANT][:6]
    memory._rows = [row for row in memory._rows if row.tenant_id != TENANT or row in kept]
    memory._last[TENANT] = memory._sealed_positions[TENANT] = str(kept[-1].position)


def size_of(note: bytes, log: str) -> int | None:
    checkpoint = Checkpoint.parse(Note.parse(note).text)
    return checkpoint.size if checkpoint.origin.endswith(f"/{log}") else None


# --- what is found --------------------------------------------------------------------------------


@pytest.mark.parametrize("left", ["nothing", "empty folder"])
def test_a_log_that_was_taken_back_without_a_meta_log_is_found(
    left: str, memory: InMemory, root: Path
) -> None:
    """Its older checkpoint is signed and fits its rows; that there is no meta log tells."""
    take_back(memory, root)
    take_away(memory, root)
    if left == "empty folder":
        (root / META).mkdir()
    for one, secret in ((memory, KEYS.secret), (memory, None), (None, None)):
        report = check(one, root, secret=secret)
        assert (kinds(report), report.verdict) == (GONE, Verdict.WRONG)
        assert [log.checked for log in report.logs if log.tenant == TENANT] == [6]


def test_one_tenant_alone_needs_the_meta_log_too(memory: InMemory, root: Path) -> None:
    """It is what the tenant's checkpoints are held against."""
    take_away(memory, root)
    assert kinds(check(memory, root, tenant=TENANT)) == GONE


@pytest.mark.parametrize("files_only", [True, False])
def test_a_kept_checkpoint_of_a_meta_log_that_is_gone_is_a_finding(
    files_only: bool, memory: InMemory, root: Path
) -> None:
    """It is never passed over: the log that it is of is missing."""
    kept = (root / META / "checkpoint").read_bytes()
    assert check(memory, root, given=(kept,)).verdict is Verdict.RIGHT
    take_away(memory, root)
    found = kinds(check(None if files_only else memory, root, given=(kept,)))
    assert (Kind.MISSING, Source.META, META) in found
    assert ((Kind.ROLLBACK, Source.MEMORY, META) in found) is not files_only


def test_a_given_checkpoint_that_nothing_is_held_against_is_an_error(
    memory: InMemory, root: Path
) -> None:
    """Of the meta log, of a log whose rows the memory does not have, of one that was trimmed."""
    meta = (root / META / "checkpoint").read_bytes()
    own = (root / log_of(TENANT) / "checkpoint").read_bytes()
    other = (root / log_of(NEIGHBOUR) / "checkpoint").read_bytes()
    assert check(memory, None, given=(own, other)).verdict is Verdict.RIGHT
    with pytest.raises(CheckpointError, match="files"):
        check(memory, None, given=(meta,))
    memory.trim(TENANT, "7-0")
    with pytest.raises(CheckpointError):
        check(memory, None, given=(own,))
    assert check(memory, root, given=(own,)).verdict is Verdict.RIGHT
    del memory._last[NEIGHBOUR], memory._sealed[NEIGHBOUR]
    with pytest.raises(CheckpointError):
        check(memory, None, given=(other,))


def test_a_ledger_without_sealed_rows_needs_no_meta_log(memory: InMemory, tmp_path: Path) -> None:
    """Before it was begun, and after that, while it covers nothing."""
    (tmp_path / "b").mkdir()
    never_sealed(memory)
    assert check(memory, tmp_path / "b").verdict is Verdict.EMPTY
    begin_meta(memory, tmp_path / "b")
    memory.entries = lambda *args: []  # type: ignore[method-assign]
    assert (tmp_path / "b" / META / "checkpoint").read_bytes() == memory.sealed(META)
    (tmp_path / "b" / "tenants").unlink()
    assert check(memory, tmp_path / "b").verdict is Verdict.EMPTY
    (tmp_path / "b" / META / "checkpoint").unlink()
    assert (Kind.MISSING, Source.META, META) in kinds(check(memory, tmp_path / "b"))


@pytest.mark.parametrize("secret", [KEYS.secret, None])
def test_a_first_seal_while_it_is_looked_at_is_no_finding(
    secret: bytes | None, memory: InMemory, tmp_path: Path
) -> None:
    """The verifier has seen no meta log, then everything is sealed, then it reads the logs."""
    never_sealed(memory)
    (tmp_path / "b").mkdir()
    tenants, rounds = memory.tenants, list[SealRound]()

    def meanwhile() -> list[str]:
        if not rounds:
            rounds.append(SealRound(rows=0, logs=0, waiting=0, faults={}))
            rounds.append(seal(memory, tmp_path / "b"))
        return tenants()

    memory.tenants = meanwhile  # type: ignore[method-assign]
    report = check(memory, tmp_path / "b", secret=secret)
    assert rounds[1].rows == 14
    assert (kinds(report), report.verdict) == ([], Verdict.RIGHT)
    assert META in [log.log for log in report.logs]


def test_a_tenant_that_is_new_meanwhile_is_no_finding(memory: InMemory, tmp_path: Path) -> None:
    """The verifier has begun, then its log is sealed; that of a swap to come, the line tells."""
    never_sealed(memory)
    (tmp_path / "b").mkdir()
    asked: list[str] = []

    def sealed(role: str) -> bytes | None:
        asked.append(role)
        if role == META and len(asked) == 1:
            seal(memory, tmp_path / "b")
            return None
        return memory.sealed(role) if role == META or asked.count(role) > 1 else None

    seen = SimpleNamespace(
        tenants=memory.tenants, entries=memory.entries, sealed=sealed, trimmed=memory.trimmed,
        leases=memory.leases, sealed_position=memory.sealed_position,
    )  # fmt: skip
    sources: Any = {"memory": seen, "ledger": tmp_path / "b"}
    report = verify(Sources(trust=Trust(KEYS.verifiers, PREFIX), **sources))
    assert (kinds(report), report.verdict) == ([], Verdict.RIGHT)


# --- what the sealer refuses ----------------------------------------------------------------------


def in_memory(memory: InMemory, root: Path) -> None:
    for name in [log_of(TENANT), log_of(NEIGHBOUR)]:
        shutil.rmtree(root / name)
    del memory._sealed[NEIGHBOUR]


def in_folder(memory: InMemory, root: Path) -> None:
    never_sealed(memory)
    shutil.rmtree(root / log_of(NEIGHBOUR))
    shutil.rmtree(root / log_of(TENANT) / "tile")


def as_hint(memory: InMemory, root: Path) -> None:
    never_sealed(memory)
    for name in (log_of(TENANT), log_of(NEIGHBOUR)):
        shutil.rmtree(root / name)
    LedgerFolder(root).log(log_of(TENANT)).root.mkdir()
    LedgerFolder(root).log(log_of(TENANT)).put_gathered(1)


def as_tiles(memory: InMemory, root: Path) -> None:
    never_sealed(memory)
    for name in (log_of(TENANT), log_of(NEIGHBOUR)):
        shutil.rmtree(root / name)
    (root / META / "tile" / "entries" / "000.p").mkdir(parents=True)
    (root / META / "tile" / "entries" / "000.p" / "1").write_bytes(b"\0\1x")


def listed_alone(memory: InMemory, root: Path) -> None:
    """A tenant that the memory lists no more; its checkpoint is there."""
    in_memory(memory, root)
    del memory._last[TENANT]


@pytest.mark.parametrize("trace", [in_memory, in_folder, as_hint, as_tiles, listed_alone])
def test_no_meta_log_is_begun_where_anything_was_sealed(
    trace: Callable[[InMemory, Path], None],
    memory: InMemory,
    root: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One trace of it is enough. It is told once, as damage, and nothing is written."""
    take_away(memory, root)
    trace(memory, root)
    before = files(root / META)
    sealer = make(memory, root)
    for _ in range(2):
        did = sealer.round()
        assert did is not None
        assert isinstance(did.faults[META], LedgerDamagedError)
    assert (memory.sealed(META), files(root / META)) == (None, before)
    alarms = [record for record in caplog.records if f"/{META} " in record.getMessage()]
    assert [alarm.__dict__["severity"] for alarm in alarms] == ["sev-1"]
    assert "audit verify" in alarms[0].getMessage()


def test_a_meta_log_that_goes_while_a_keeper_runs_is_not_begun_anew(
    memory: InMemory, root: Path
) -> None:
    """Tenants' rows are sealed on, and nothing is gathered."""
    sealer = make(memory, root)
    sealer.round()
    take_away(memory, root)
    emit(memory, TENANT, 2, 4)
    did = sealer.round()
    assert did is not None
    assert (did.rows, list(did.faults)) == (2, [META])
    assert isinstance(did.faults[META], LedgerDamagedError)
    assert (memory.sealed(META), (root / META).exists()) == (None, False)


def test_nothing_is_sealed_while_a_meta_log_cannot_be_begun(
    memory: InMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: else its absence would look like damage for ever."""
    never_sealed(memory)

    def full(root: Any, note: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("audit.ledger.log.replace_file", full)
        did = seal(memory, tmp_path / "b")
    assert (did.rows, list(did.faults)) == (0, [META])
    assert not isinstance(did.faults[META], LedgerDamagedError)
    assert list(memory._sealed) == [META]
    did = seal(memory, tmp_path / "b")
    assert (did.rows, did.faults) == (14, {})


def test_a_crash_in_the_first_round_is_gone_on_from(tmp_path: Path) -> None:
    """Anywhere: no tenant has a checkpoint before the meta log has one in memory and folder, and
    the next round gathers all."""
    at = 0
    while True:
        memory, root, death = Rows(**{NEIGHBOUR: 2}), tmp_path / str(at), Death(at)
        memory.counts[TENANT] = 3
        seal_and_die(memory, root, death)
        if not death.struck:
            break
        sealed = [tenant for tenant in (TENANT, NEIGHBOUR) if memory.sealed(tenant)]
        if sealed or list(root.glob("*/tile")):
            assert (root / META / "checkpoint").read_bytes()
            assert memory.sealed(META) is not None
        assert seal(memory, root).faults == {}
        assert len(meta_of(memory, root)) == 2
        assert len(contents(memory, root, TENANT)["rows"]) == 3
        shutil.rmtree(root)
        at += 1
    assert at > 50
