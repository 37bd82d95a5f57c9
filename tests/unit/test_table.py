"""`audit.table`: rows as text, on a terminal and elsewhere."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from audit.row import (
    AuditRow,
    Ending,
    Identity,
    Reason,
    skill_invoked_completed,
    skill_invoked_started,
)
from audit.table import ROW_COLUMNS, Table, age, block, clean, fitting, running_columns

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
TS = "2026-11-29T11:58:30.123456Z"
IDENTITY = Identity(
    request_id="01KB8Z5T3MZJ9Y2V4Q6R8S0TAW",
    skill_id="ops.triage_alert",
    version="1.2.0",
    caller_persona="cuo-cpo@0.4.1",
    tenant_id="550e8400-e29b-41d4-a716-446655440000",
    trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
    parent_request_id="01KB8Z5T3MZJ9Y2V4Q6R8S0TAV",
)
STARTED_ROW = skill_invoked_started(IDENTITY, "ab" * 32, ts=TS)
SGR = re.compile(r"\x1b\[[0-9;]*m")


def failed(message: str, reason: Reason = Reason.RAISED) -> AuditRow:
    return skill_invoked_completed(IDENTITY, Ending(reason=reason, error_message=message), 7, ts=TS)


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=width)


def test_elsewhere_a_line_is_whole_and_its_cells_are_parted_by_tabs() -> None:
    """Without a terminal a line has one cell for each title, and none is cut."""
    table = Table(ROW_COLUMNS)
    line = dict(
        zip(table.titles().split("\t"), table.line(failed("x" * 900)).split("\t"), strict=True)
    )
    assert line["TIME"] == "2026-11-29T11:58:30Z"
    assert (line["KIND"], line["OUTCOME"], line["REASON"]) == ("completed", "error", "raised")
    assert (line["MS"], line["ERROR"]) == ("7", "x" * 900)
    assert line["PERSONA"] == "-"


def test_what_runs_is_shown_with_its_age() -> None:
    """The first column of a running invocation says for how long it has been running."""
    table = Table(running_columns(NOW))
    assert table.titles().startswith("AGE\tTIME\tREQUEST\tSKILL\t")
    assert table.line(STARTED_ROW).startswith("1m29s\t2026-11-29T11:58:30Z\t01KB8Z5T3MZJ9Y2V4Q6R8")


@pytest.mark.parametrize("width", [20, 60, 80, 81, 100, 133, 200, 400])
def test_on_a_terminal_a_line_never_folds(width: int) -> None:
    """Titles and lines are at most as wide as the terminal, wide characters counted as two."""
    table = Table(ROW_COLUMNS, terminal(width))
    row = failed("\N{CJK UNIFIED IDEOGRAPH-6F22}" * 500)
    for line in (table.titles(), table.line(row)):
        assert "\n" not in line
        assert terminal(width).render_str(SGR.sub("", line), markup=False).cell_len <= width


def test_eighty_columns_show_what_ran_and_how_it_ended() -> None:
    """The request_id, which `show` takes, is whole on the narrowest usual terminal."""
    line = SGR.sub("", Table(ROW_COLUMNS, terminal(80)).line(failed("boom")))
    assert line.split() == [
        "2026-11-29T11:58:30Z",
        IDENTITY.request_id,
        "completed",
        "error",
        "ops.triag\N{HORIZONTAL ELLIPSIS}",
    ]


def test_a_terminal_that_changes_its_width_is_asked_again() -> None:
    """The width is read at every line, not once."""
    console = terminal(60)
    table = Table(ROW_COLUMNS, console)
    narrow = table.titles()
    console.width = 200
    assert len(table.titles()) > len(narrow)


@pytest.mark.parametrize(
    ("room", "shown"),
    [
        (1, [1]),
        (20, [20]),
        (29, [20]),
        (30, [20, 8]),
        (31, [20, 9]),
        (40, [20, 9, 7]),
        (48, [20, 9, 7]),
    ],
)
def test_a_column_has_its_width_or_is_left_out(room: int, shown: list[int]) -> None:
    """Only the last column shown is cut, and no further than to eight cells."""
    assert list(fitting([20, 9, 7, 24], room)) == shown


@pytest.mark.parametrize("console", [None, terminal(400)])
def test_stored_text_is_no_order_to_a_terminal(console: Console | None) -> None:
    """Control characters, invisible ones and markup of a stored text come to nothing."""
    hostile = "a\x1b]0;b\x07\r\nb\tc\x9b1m\u202ed\u2028 [red]f[/] :smile:"
    line = SGR.sub("", Table(ROW_COLUMNS, console).line(failed(hostile)))
    assert [char for char in line if not char.isprintable() and char != "\t"] == []
    assert "b c" in line
    assert "[red]f[/] :smile:" in line


def test_an_outcome_has_its_colour() -> None:
    """On a terminal a panic stands out, and only the outcome is coloured."""
    line = Table(ROW_COLUMNS, terminal(120)).line(failed("boom", Reason.WORKER_LOST))
    assert "\x1b[1;31mpanic" in line
    assert "\x1b" not in Table(ROW_COLUMNS).line(failed("boom", Reason.WORKER_LOST))


def test_without_colours_a_line_has_no_escape_sequence() -> None:
    """A console without a colour system gives plain text."""
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=120)
    table = Table(ROW_COLUMNS, console)
    assert "\x1b" not in table.titles() + table.line(failed("boom"))


@pytest.mark.parametrize(
    ("bound", "shown"), [("lower_bound", ">=7"), ("upper_bound", "<=7"), (None, "7")]
)
def test_a_duration_says_when_it_is_a_bound(bound: str | None, shown: str) -> None:
    """A duration that is only a bound is shown as one."""
    row = failed("boom")
    bounded = AuditRow(
        kind=row.kind, ts=row.ts, payload=row.payload, meta={**row.meta, "duration": bound}
    )
    assert f"\t{shown}\t" in Table(ROW_COLUMNS).line(bounded)


def test_a_block_has_every_field() -> None:
    """All of the envelope, the payload and meta is there, nulls as a dash."""
    fields = dict(line.split(maxsplit=1) for line in block(STARTED_ROW).splitlines())
    assert fields.keys() == {
        "kind",
        "ts",
        "schema",
        *STARTED_ROW.payload,
        *(f"meta.{name}" for name in STARTED_ROW.meta),
    }
    assert fields["args_hash"] == "ab" * 32
    assert fields["meta.parent_request_id"] == IDENTITY.parent_request_id
    assert fields["meta.task_id"] == "-"
    assert fields["meta.redelivered"] == "false"


def test_a_block_has_one_line_a_field() -> None:
    """Neither a stored key nor a stored value can forge a line."""
    row = AuditRow(
        kind="skill.invoked_started", ts=TS, payload={"a\nkind": "b\nts  c"}, meta={"d\r": None}
    )
    assert len(block(row).splitlines()) == 5


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "0s"),
        (0.9, "0s"),
        (59, "59s"),
        (192, "3m12s"),
        (3600, "1h00m"),
        (86399, "23h59m"),
        (90000, "1d01h"),
    ],
)
def test_an_age_is_told_in_its_two_largest_units(seconds: float, shown: str) -> None:
    """Ages read at a glance; a clock that runs ahead gives none below zero."""
    assert age((NOW - timedelta(seconds=seconds)).isoformat(), NOW) == shown


@pytest.mark.parametrize("ts", ["", "yesterday", "2026-11-29T11:58:30"])
def test_a_moment_that_is_none_has_no_age(ts: str) -> None:
    """A ts that no writer of ours wrote is no reason to stop printing."""
    assert age(ts, NOW) == "-"


def test_clean_text_keeps_what_people_write() -> None:
    """Letters of any script pass; white space becomes a blank, the rest a replacement mark."""
    assert clean("é漢\N{NO-BREAK SPACE}x\n\x00") == "é漢 x \N{REPLACEMENT CHARACTER}"
