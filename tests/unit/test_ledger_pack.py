"""audit/ledger/pack.py and sealed_log.py: what is exported, and when there is no pack."""

from __future__ import annotations

import json
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from audit.errors import (
    CheckpointError,
    EvidenceError,
    LedgerDamagedError,
    NoteSignatureError,
    ProofError,
    TileError,
)
from audit.ledger import verify_pack
from audit.ledger.note_key import SignerKey
from audit.ledger.pack import export
from audit.ledger.sealed_log import SealedLog
from tests.evidence import LEDGER_KEY, NAME, ORIGIN, asked, rows, seal, unpacked
from tests.naive_merkle import NaiveTree

ROWS = rows(11)
KEY = verify_pack.Key(NAME, LEDGER_KEY.verifier.public_key)


def test_a_pack_of_a_time_holds_its_rows_and_one_more_at_each_end(tmp_path: Path) -> None:
    """The rows' very bytes, and a manifest and a policy that say which."""
    exported = export(seal(tmp_path, ROWS), asked(3, 6), tmp_path / "pack")
    assert (exported.first, exported.last, exported.size, exported.asked) == (2, 6, 11, 3)
    files = unpacked(tmp_path / "pack")
    assert set(files) == set(verify_pack.FILES)
    assert files["rows.jsonl"] == b"".join(row + b"\n" for row in ROWS[2:7])
    manifest, policy = json.loads(files["manifest.json"]), json.loads(files["policy.json"])
    assert manifest["root"] == NaiveTree(ROWS).mth(0, 11).hex()
    assert [manifest[name] for name in ("first_index", "last_index", "rows")] == [2, 6, 5]
    assert policy == {
        "tenant": ORIGIN.rpartition("/")[2],
        "since": "2026-11-29T12:03:00.000000Z",
        "until": "2026-11-29T12:06:00.000000Z",
        "exported_at": "2026-11-30T00:00:00.000000Z",
        "version": "skill-host 0.1.0",
    }
    assert files["verify_pack.py"] == Path(verify_pack.__file__).read_bytes()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 16, 21])
def test_a_pack_of_any_range_verifies(tmp_path: Path, size: int) -> None:
    """Every time span over logs of odd and even sizes leads to a pack that passes."""
    log = seal(tmp_path, rows(size))
    for since in range(size):
        for until in range(since + 1, size + 1):
            pack = tmp_path / f"{since}-{until}"
            exported = export(log, asked(since, until), pack)
            assert exported.asked == until - since
            report = verify_pack.verify(pack, [KEY])
            assert report.passed, report.findings


def test_a_pack_without_times_is_the_whole_log(tmp_path: Path) -> None:
    """From index 0 to the last row of the checkpoint, over several bundles."""
    exported = export(seal(tmp_path, rows(600)), asked(), tmp_path / "pack")
    assert (exported.first, exported.last, exported.asked) == (0, 599, 600)
    assert unpacked(tmp_path / "pack")["range-proof.txt"] == b""


def test_rows_out_of_their_time_stay_in_the_range(tmp_path: Path) -> None:
    """A row between the others whose own time lies elsewhere is in the pack, and noted."""
    mixed = [*ROWS[:4], ROWS[9], *ROWS[4:9]]
    export(seal(tmp_path, mixed), asked(2, 6), tmp_path / "pack")
    report = verify_pack.verify(tmp_path / "pack", [KEY])
    assert report.passed
    assert "rows between them with other times: 1" in report.notes


def test_an_empty_range_makes_no_pack(tmp_path: Path) -> None:
    """No row asked for, or nothing sealed at all: an error that says so, and no file."""
    log = seal(tmp_path / "ledger", ROWS)
    with pytest.raises(EvidenceError, match="empty pack proves nothing"):
        export(log, asked(50, 60), tmp_path / "pack")
    with pytest.raises(EvidenceError, match="empty pack proves nothing"):
        export(seal(tmp_path / "none", []), asked(), tmp_path / "pack")
    with pytest.raises(EvidenceError, match="nothing of this tenant is sealed"):
        SealedLog(tmp_path / "ledger", f"{NAME}/{'0' * 32}", [LEDGER_KEY.verifier])
    assert {path.name for path in tmp_path.iterdir()} == {"ledger", "none"}


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    """What is there stays as it is, and nothing half written is left beside it."""
    log = seal(tmp_path / "ledger", ROWS)
    (tmp_path / "pack").write_bytes(b"precious")
    with pytest.raises(EvidenceError, match="left alone"):
        export(log, asked(), tmp_path / "pack")
    assert (tmp_path / "pack").read_bytes() == b"precious"
    assert {path.name for path in tmp_path.iterdir()} == {"ledger", "pack"}


def test_a_pack_that_cannot_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    """A folder that is not there."""
    with pytest.raises(EvidenceError, match="cannot be written"):
        export(seal(tmp_path, ROWS), asked(), tmp_path / "nowhere" / "pack")


def test_no_pack_is_made_of_a_damaged_ledger(tmp_path: Path) -> None:
    """A bundle with an edited row, or without it, gives an error and no file."""
    log = seal(tmp_path / "ledger", ROWS)
    bundle = next((tmp_path / "ledger").glob("*/tile/entries/000.p/11"))
    good = bundle.read_bytes()
    bundle.write_bytes(good.replace(b"alerts.triage", b"alerts.triagE", 1))
    with pytest.raises(LedgerDamagedError, match="would not verify"):
        export(log, asked(), tmp_path / "pack")
    bundle.unlink()
    with pytest.raises(TileError):
        export(log, asked(), tmp_path / "pack")
    assert {path.name for path in tmp_path.iterdir()} == {"ledger"}


def test_only_a_checkpoint_of_a_known_key_is_believed(tmp_path: Path) -> None:
    """Another key's checkpoint, or another log's, is refused before a row is read."""
    seal(tmp_path, ROWS)
    with pytest.raises(NoteSignatureError):
        SealedLog(tmp_path, ORIGIN, [SignerKey.generate(NAME).verifier])
    other = f"{NAME}/{'1' * 32}"
    (tmp_path / ("1" * 32)).symlink_to(ORIGIN.rpartition("/")[2])
    with pytest.raises((CheckpointError, NoteSignatureError)):
        SealedLog(tmp_path, other, [LEDGER_KEY.verifier])


def test_a_row_is_found_by_its_position_and_proven(tmp_path: Path) -> None:
    """Each row of several bundles, at its first and its last place; others are not there."""
    log = seal(tmp_path, rows(600))
    for index in (0, 1, 255, 256, 257, 511, 512, 599):
        assert log.index_of(f"{1000 + index}-0") == index
        assert log.prove(index).index == index
    for position in ("999-0", "1000-1", "1255-7", "1600-0", "7-0"):
        assert log.index_of(position) is None


def test_no_proof_is_given_of_a_damaged_ledger(tmp_path: Path) -> None:
    """A hash in a tile that is another one leads to no proof that would fail elsewhere."""
    log = seal(tmp_path, ROWS)
    tile = next(tmp_path.glob("*/tile/0/000.p/11"))
    tile.write_bytes(bytes(32) + tile.read_bytes()[32:])
    with pytest.raises(ProofError):
        log.prove(1)


def test_a_damaged_sidecar_is_an_error(tmp_path: Path) -> None:
    """Missing, too short, or no positions at all; and what is no position is refused."""
    log = seal(tmp_path, ROWS)
    path = next(tmp_path.glob("*/positions/000.p/11"))
    for content in ("1000-0\n", "x\n" * 11):
        path.write_text(content)
        with pytest.raises(LedgerDamagedError):
            log.index_of("1003-0")
    path.unlink()
    with pytest.raises(LedgerDamagedError, match="as they should be"):
        log.index_of("1003-0")
    with pytest.raises(LedgerDamagedError):
        log.index_of("²-0")


def test_memory_stays_flat(tmp_path: Path) -> None:
    """Ten times the rows take no more memory to export and to verify, but a little."""
    peaks = []
    for size in (2_000, 20_000):
        log = seal(tmp_path / str(size), rows(size))
        tracemalloc.start()
        export(log, asked(), tmp_path / f"{size}.zip")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 1_000_000


def test_the_zip_is_plain(tmp_path: Path) -> None:
    """Regular files that only owner and group may read, and no other entry."""
    export(seal(tmp_path, ROWS), asked(), tmp_path / "pack")
    with zipfile.ZipFile(tmp_path / "pack") as archive:
        assert {info.external_attr >> 16 for info in archive.infolist()} == {0o100640}


def test_rows_that_were_sealed_wrong_are_exported_all_the_same(tmp_path: Path) -> None:
    """Garbage that somebody put into the memory withholds no evidence; it is named instead."""
    sealed = [*ROWS[:5], b"garbage", ROWS[1], *ROWS[5:]]
    exported = export(seal(tmp_path, sealed), asked(3, 7), tmp_path / "pack")
    assert (exported.first, exported.last, exported.asked) == (2, 9, 4)
    assert exported.findings == ("row 5 is no audit row",)
    whole = export(seal(tmp_path, sealed), asked(), tmp_path / "whole")
    assert whole.findings == (
        "row 5 is no audit row",
        "row 6 is a completed row without a started one before it",
    )
    report = verify_pack.verify(tmp_path / "whole", [KEY])
    assert [text for _, text in report.findings] == list(whole.findings)
    assert {step for step, _ in report.findings} == {
        verify_pack.Step.CONTENT,
        verify_pack.Step.PAIRS,
    }
