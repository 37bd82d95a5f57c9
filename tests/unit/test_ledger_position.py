"""Where sealing goes on: by the memory's position of the last sealed row, and never by a file's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from audit.errors import LedgerDamagedError, LedgerError, LedgerRaceError
from audit.ledger.claims import Trust
from audit.ledger.finding import Finding, Kind, Source, Verdict
from audit.ledger.sealer import SealRound
from audit.ledger.sources import Sources
from audit.ledger.subject import Limits
from audit.ledger.verifier import verify
from audit.memory.base import Entry
from audit.testing import InMemory
from tests.sealing import KEYS, PREFIX, Rows, contents, files, log_of, make, row_of, seal
from tests.support import TENANT, make_identity, refused

pytestmark = pytest.mark.usefixtures("no_flush")

OF_LOG = log_of(TENANT)


def sidecar(directory: Path) -> Path:
    """The file of positions of the last bundle."""
    folder = directory / OF_LOG / "positions"
    return max(folder.rglob("000.p/*"), key=lambda path: int(path.name))


def write_last(directory: Path, *lines: str) -> None:
    path = sidecar(directory)
    path.write_text("".join(f"{x}\n" for x in [*path.read_text().split()[: -len(lines)], *lines]))


def fault_of(did: SealRound | None) -> LedgerError:
    """The fault of the log, of which nothing was sealed."""
    assert did is not None
    assert (did.rows, list(did.faults)) == (0, [OF_LOG])
    return did.faults[OF_LOG]


def nine_sealed(directory: Path) -> Rows:
    """Nine rows in two rounds, and three that wait."""
    memory = Rows()
    for memory.counts[TENANT] in (5, 9):
        seal(memory, directory)
    memory.counts[TENANT] = 12
    return memory


def three_trimmed(directory: Path) -> InMemory:
    """Three sealed rows that the memory has trimmed, and two that wait."""
    memory = InMemory()
    for _ in range(3):
        memory.emit(refused(make_identity()))
    seal(memory, directory)
    memory.trim(TENANT, "4-0")
    for _ in range(2):
        memory.emit(refused(make_identity()))
    return memory


# --- the file of positions ------------------------------------------------------------------------


@pytest.mark.parametrize("make_memory", [nine_sealed, three_trimmed])
@pytest.mark.parametrize(
    "lines",
    [
        ("9-0", "0-1"), ("8-0", "0-1"), ("0-1",), ("1-0",), ("7-0", "8-0"), ("1-0", "2-0"),
        ("4-0",), ("3-0", "4-0"), ("5-0",), ("10-0",), ("9-0", "11-0"), ("12-0",), ("13-0",),
        ("99-0", "9-0"), ("99-0", "3-0"), ("9-0", "9-0"), ("3-0", "3-0"), ("x", "9-0"), ("x",),
        ("x", "3-0"), ("",),
    ],
)  # fmt: skip
def test_whoever_moves_the_last_lines_has_nothing_sealed_twice_and_no_row_skipped(
    make_memory: Callable[[Path], Any],
    lines: tuple[str, ...],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Back, on, to nothing, out of order, of rows that are there and of trimmed ones: nothing is
    sealed, with an alarm; once the lines are put right, each row is sealed once."""
    memory = make_memory(tmp_path)
    held, note = memory.sealed_position(TENANT), memory.sealed(TENANT)
    rows = contents(memory, tmp_path, TENANT)["rows"]
    waiting = [entry.stored for entry in memory.entries(TENANT, held, 10)]
    right = sidecar(tmp_path).read_bytes()
    write_last(tmp_path, *lines)
    before = files(tmp_path)
    assert isinstance(fault_of(seal(memory, tmp_path)), LedgerDamagedError)
    assert files(tmp_path) == before
    assert (memory.sealed(TENANT), memory.sealed_position(TENANT)) == (note, held)
    (alarm,) = (record for record in caplog.records if "severity" in record.__dict__)
    assert (alarm.levelname, alarm.__dict__["severity"]) == ("CRITICAL", "sev-1")
    sidecar(tmp_path).write_bytes(right)
    assert seal(memory, tmp_path).faults == {}
    assert contents(memory, tmp_path, TENANT)["rows"] == [*rows, *waiting]


def test_sealing_goes_on_where_the_file_was_written_and_the_swap_never_came(tmp_path: Path) -> None:
    """A crash in between leaves wider files of positions, which say nothing."""
    memory = nine_sealed(tmp_path)

    def die(*args: Any) -> bool:
        raise KeyboardInterrupt

    swap, memory.swap_sealed = memory.swap_sealed, die  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        seal(memory, tmp_path)
    memory.swap_sealed = swap  # type: ignore[method-assign]
    assert sidecar(tmp_path).name == "12"
    assert memory.sealed_position(TENANT) == "9-0"
    memory.counts[TENANT] = 14
    assert seal(memory, tmp_path) == SealRound(rows=5, logs=1, waiting=0, faults={})
    assert memory.sealed_position(TENANT) == "14-0"


# --- the memory -----------------------------------------------------------------------------------


def lose_position(memory: Rows, directory: Path) -> None:
    del memory._sealed_positions[TENANT]


def lose_checkpoint(memory: Rows, directory: Path) -> None:
    """And every trace of it in the folder, so that the log looks new."""
    del memory._sealed[TENANT]
    shutil.rmtree(directory / OF_LOG)


def move(position: str, *lines: str) -> Callable[[Rows, Path], None]:
    def moved(memory: Rows, directory: Path) -> None:
        memory._sealed_positions[TENANT] = position
        if lines:
            write_last(directory, *lines)

    return moved


def vanish(mark: str | None) -> Callable[[Rows, Path], None]:
    def vanished(memory: Rows, directory: Path) -> None:
        entries = memory.entries

        def without(tenant_id: str, after: str | None, limit: int) -> list[Entry]:
            found = entries(tenant_id, after, limit + 9)
            return [entry for entry in found if int(entry.position.split("-")[0]) > 9][:limit]

        memory.entries = without  # type: ignore[method-assign]
        if mark is not None:
            memory._trimmed[TENANT] = mark

    return vanished


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lose_position, "lost the position"),
        (lose_checkpoint, "no checkpoint, but the memory has the position"),
        (move("0-1"), "another one"),
        (move("10-0"), "another one"),
        (move("x"), "another one"),
        (move("x", "x"), "is none"),
        (move("0-0", "0-0"), "out of order"),
        (move("8-0", "7-0", "8-0"), "is another"),
        (move("10-0", "10-0"), "is another"),
        (move("9-1", "9-1"), "vanished"),
        (move("13-0", "13-0"), "rolled back"),
        (vanish(None), "vanished"),
        (vanish("9-0"), "vanished"),
        (vanish("x"), "is none"),
    ],
)
def test_a_memory_that_does_not_fit_is_damage(
    change: Callable[[Rows, Path], None], fault: str, tmp_path: Path
) -> None:
    """Restored, tampered with, or without the last row that it never trimmed: nothing is sealed."""
    memory = nine_sealed(tmp_path)
    change(memory, tmp_path)
    before = files(tmp_path / OF_LOG)
    error = fault_of(seal(memory, tmp_path))
    assert isinstance(error, LedgerDamagedError)
    assert fault in str(error)
    assert files(tmp_path / OF_LOG) == before


def test_a_last_row_that_was_trimmed_is_not_missed(tmp_path: Path) -> None:
    """The memory's mark is beyond it, so that it was sealed and trimmed."""
    memory = nine_sealed(tmp_path)
    vanish("9-1")(memory, tmp_path)
    assert seal(memory, tmp_path) == SealRound(rows=3, logs=1, waiting=0, faults={})
    assert contents(memory, tmp_path, TENANT)["rows"] == [row_of(TENANT, n) for n in range(1, 13)]


def test_a_new_key_leaves_the_position_as_it_is(tmp_path: Path) -> None:
    """It signs the checkpoint of the same rows anew."""
    memory = nine_sealed(tmp_path)
    memory.emit = lambda row, once=None: None  # type: ignore[method-assign, assignment, misc]
    memory.counts[TENANT], note = 9, memory.sealed(TENANT)
    seal(memory, tmp_path, load_keys=KEYS.rotated)
    assert memory.sealed(TENANT) != note
    assert memory.sealed_position(TENANT) == "9-0"


def test_another_who_seals_meanwhile_is_a_race_and_no_damage(tmp_path: Path) -> None:
    """The position is then of a checkpoint that is newer than the one that was read."""
    memory = nine_sealed(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    other, position = make(memory, tmp_path / "b"), memory.sealed_position

    def late(tenant_id: str) -> str | None:
        memory.sealed_position = position  # type: ignore[method-assign]
        other.round()
        return position(tenant_id)

    memory.sealed_position = late  # type: ignore[method-assign]
    did = make(memory, tmp_path / "a").round()
    assert did is not None
    assert (did.rows, type(did.faults[OF_LOG])) == (0, LedgerRaceError)


# --- what `audit verify` says ---------------------------------------------------------------------


def found(memory: InMemory, directory: Path) -> list[Finding]:
    sources = Sources(
        trust=Trust(tuple(KEYS.verifiers), PREFIX), ledger=directory, memory=memory,
        secret=KEYS.secret, pause=lambda seconds: None, limits=Limits(open_for=1e9),
    )  # fmt: skip
    report = verify(sources)
    assert (report.verdict is Verdict.RIGHT) == (not list(report.findings()))
    return list(report.findings())


def test_verify_finds_a_last_line_that_is_not_the_memorys(tmp_path: Path) -> None:
    """Of a trimmed row too, which nothing else tells the place of; and once, where both do."""
    memory = three_trimmed(tmp_path)
    assert found(memory, tmp_path) == []
    write_last(tmp_path, "2-5")
    (one,) = found(memory, tmp_path)
    assert (one.kind, one.source, one.index) == (Kind.ALTERED, Source.LEDGER, 2)
    assert (one.tenant, one.position) == (TENANT, "3-0")
    write_last(tmp_path, "3-0")
    seal(memory, tmp_path)
    write_last(tmp_path, "5-1")
    (one,) = found(memory, tmp_path)
    assert (one.kind, one.source, one.index) == (Kind.ALTERED, Source.LEDGER, 4)


def test_verify_finds_a_position_of_the_memory_that_is_gone_or_another(tmp_path: Path) -> None:
    """Beside its checkpoint, which is right."""
    memory = three_trimmed(tmp_path)
    memory._sealed_positions[TENANT] = "4-0"
    (one,) = found(memory, tmp_path)
    assert (one.kind, one.index) == (Kind.ALTERED, 2)
    del memory._sealed_positions[TENANT]
    (one,) = found(memory, tmp_path)
    assert (one.kind, one.source, one.index) == (Kind.ALTERED, Source.MEMORY, 2)


def test_a_keeper_that_seals_between_two_looks_is_no_finding(tmp_path: Path) -> None:
    """However often a position is of a newer checkpoint than the one that was read before it, and
    whose file is not written yet."""
    memory, path = InMemory(), tmp_path / OF_LOG / "checkpoint"
    memory.emit(refused(make_identity()))
    sealer, times, written = make(memory, tmp_path), iter(range(12)), list[bytes]()
    sealer.round()
    sealed, position = memory.sealed, memory.sealed_position

    def write_file(tenant_id: str) -> bytes | None:
        if written:
            path.write_bytes(written.pop())
        return sealed(tenant_id)

    def seal_first(tenant_id: str) -> str | None:
        if tenant_id == TENANT and next(times, None) is not None:
            memory.sealed_position = position  # type: ignore[method-assign]
            before = path.read_bytes()
            memory.emit(refused(make_identity()))
            sealer.round()
            written.append(path.read_bytes())
            path.write_bytes(before)
            memory.sealed_position = seal_first  # type: ignore[method-assign]
        return position(tenant_id)

    memory.sealed, memory.sealed_position = write_file, seal_first  # type: ignore[method-assign]
    assert found(memory, tmp_path) == []
    assert next(times, None) is None
