"""Whatever somebody had sealed, there is a pack of it, and both programs say what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.ledger import verify_pack
from audit.ledger.pack import Exported, export
from tests.evidence import LEDGER_KEY, NAME, asked, rows, seal, unpacked

ROWS = rows(11)
KEY = verify_pack.Key(NAME, LEDGER_KEY.verifier.public_key)
#: Within minutes 3 to 7, and no audit row all the same.
TIMED = b'{"ts":"2026-11-29T12:06:30.000000Z"}'
#: A time that no other can be held against.
ZONELESS = b'{"kind":"","payload":{"request_id":"","tenant_id":""},"ts":"2026-11-29"}'


def exported(tmp_path: Path, sealed: list[bytes], *minutes: int) -> Exported:
    """What is exported of a log; what is wrong with it is what the auditor is told as well."""
    told = export(seal(tmp_path, sealed), asked(*minutes), tmp_path / "pack")
    report = verify_pack.verify(tmp_path / "pack", [KEY])
    assert tuple(text for _, text in report.findings) == told.findings
    assert {step for step, _ in report.findings} <= {"content", "pairs"}
    return told


@pytest.mark.parametrize(
    "entry", [b"\n", b"two\nlines", b"", b"base64:", b"base64:AAAA", b"\n" * 65_535]
)
def test_an_entry_that_is_no_line_withholds_no_row(tmp_path: Path, entry: bytes) -> None:
    """A line feed in it, nothing in it, or what an entry with line feeds is written as."""
    told = exported(tmp_path, [*ROWS[:4], entry, *ROWS[4:]], 3, 7)
    assert (told.first, told.last) == (2, 8)
    assert told.findings == ("row 4 is no audit row",)
    lines = unpacked(tmp_path / "pack")["rows.jsonl"].split(b"\n")
    assert [lines[at] for at in (0, 1, 3, 4, 5, 6)] == [*ROWS[2:4], *ROWS[4:8]]


def test_an_entry_written_as_a_line_is_held_against_the_root(tmp_path: Path) -> None:
    """Another one in its place is found as any other row is."""
    for name, sealed in (("a", b"two\nlines"), ("b", b"2\nlines")):
        export(seal(tmp_path / name, [*ROWS, sealed]), asked(), tmp_path / f"{name}.zip")
    good = unpacked(tmp_path / "a.zip")["rows.jsonl"].splitlines()
    other = unpacked(tmp_path / "b.zip")["rows.jsonl"].splitlines()
    assert good[:-1] == other[:-1]
    assert good[-1] != other[-1]
    assert verify_pack.row_of(good[-1]) == b"two\nlines"


@pytest.mark.parametrize("count", [19, 20, 21, 300])
def test_many_wrong_entries_withhold_no_row(tmp_path: Path, count: int) -> None:
    """All is read; the first are named, the others counted."""
    told = exported(tmp_path, [*ROWS[:5], *[b"garbage"] * count, *ROWS[5:]])
    assert told.rows == count + 11
    assert told.findings[0] == "row 5 is no audit row"
    assert len(told.findings) == min(count, 21)
    if count > 20:
        assert told.findings[-1] == f"further findings of this kind: {count - 20}"


@pytest.mark.parametrize("minutes", [(), (3, 7)])
@pytest.mark.parametrize("entry", [b"garbage", TIMED])
@pytest.mark.parametrize("at", [0, 3, 7, 11])
def test_wrong_entries_at_the_ends_withhold_no_row(
    tmp_path: Path, at: int, entry: bytes, minutes: tuple[int, ...]
) -> None:
    """Two of them at either end of the log, or of what is asked for; in time or without one."""
    told = exported(tmp_path, [*ROWS[:at], entry, entry, *ROWS[at:]], *minutes)
    assert told.findings or minutes
    assert all(text.endswith("is no audit row") for text in told.findings)


def test_a_time_without_a_zone_withholds_no_row(tmp_path: Path) -> None:
    """It lies outside of all that is asked for, so nobody may end a pack there unnoticed."""
    told = exported(tmp_path, [*ROWS[:4], ZONELESS, *ROWS[4:]], 3, 7)
    assert (told.first, told.last, told.asked) == (2, 8, 4)
    assert told.findings == ("row 4 is no audit row",)
