"""`audit.ledger.waiting` and `unlisted`: rows that nobody seals, tenants that nobody lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from audit.ledger.claims import Trust
from audit.ledger.finding import Finding, Kind, Source, Verdict
from audit.ledger.note_key import SignerKey
from audit.ledger.sources import Sources
from audit.ledger.subject import Limits
from audit.ledger.verifier import verify
from audit.row import AuditRow, timestamp
from tests.ledger_writer import (
    PREFIX,
    SECRET,
    TENANTS,
    PlainEntry,
    PlainLedger,
    PlainMemory,
    fill,
    rows_of,
)

SIGNER = SignerKey.generate(PREFIX, random=lambda count: b"k" * count)
TRUST = Trust((SIGNER.verifier,), PREFIX)
TENANT, OTHER = TENANTS[:2]
NOW = datetime(2026, 11, 30, tzinfo=UTC)
COUNT = 600


@pytest.fixture
def ledger(tmp_path: Path) -> PlainLedger:
    """A tenant whose rows are all sealed, so far."""
    memory = PlainMemory()
    ledger = PlainLedger(tmp_path / "ledger", memory, SIGNER)
    fill(memory, TENANT, rows_of(TENANT, COUNT, Random(3)))
    ledger.round({TENANT: COUNT})
    ledger.finish()
    return ledger


def rows_at(tenant: str, *ages: float) -> list[AuditRow]:
    """Rows that were written so many seconds before now."""
    times = [timestamp(NOW - timedelta(seconds=age)) for age in ages]
    rows = rows_of(tenant, len(ages), Random(7))
    return [replace(row, ts=ts) for row, ts in zip(rows, times, strict=True)]


def wait(ledger: PlainLedger, *ages: float, tenant: str = TENANT) -> None:
    """Rows so old come behind the sealed ones, and nobody seals them."""
    rows = enumerate(rows_at(tenant, *ages), COUNT + 1)
    entries = [PlainEntry(f"{number}-0", row.to_bytes()) for number, row in rows]
    ledger.memory.rows.setdefault(tenant, []).extend(entries)


def found(
    plain: PlainLedger, /, now: Callable[[], float] = NOW.timestamp, **more: Any
) -> list[Finding]:
    limits = Limits(now=now, unsealed_for=60.0, open_for=1e9)
    sources: dict[str, Any] = {"ledger": plain.root, "memory": plain.memory, **more}
    report = verify(Sources(trust=TRUST, secret=SECRET, limits=limits, **sources))
    assert (report.verdict is Verdict.WRONG) == bool(list(report.findings()))
    return list(report.findings())


# --- rows that wait -------------------------------------------------------------------------------


@pytest.mark.parametrize("alone", [False, True])
def test_rows_that_wait_for_too_long_are_one_finding(ledger: PlainLedger, alone: bool) -> None:
    """How many, and the first: by the memory beside the files, or alone."""
    wait(ledger, 300, 61, 59, 1)
    (finding,) = found(ledger, **({"ledger": None} if alone else {}))
    told = (finding.kind, finding.source, finding.count, finding.position, finding.tenant)
    assert told == (Kind.UNSEALED, Source.MEMORY, 2, "601-0", TENANT)
    assert finding.request_id == rows_at(TENANT, 300, 61, 59, 1)[0].request_id
    assert "2026-11-29T23:55:00" in finding.text


@pytest.mark.parametrize("age", [60, 5, 0, -5, -90])
def test_rows_that_have_just_come_are_none(ledger: PlainLedger, age: float) -> None:
    """Up to the limit, nor where the writer's clock goes a few seconds wrong, or far ahead."""
    wait(ledger, age)
    assert found(ledger) == []
    assert found(ledger, ledger=None) == []


def test_a_keeper_that_never_ran_is_found(ledger: PlainLedger, tmp_path: Path) -> None:
    """A tenant without any log, in this ledger or in one that is empty."""
    wait(ledger, 300, 61, 5, tenant=OTHER)
    for folder in (ledger.root, tmp_path):
        memory = PlainMemory({OTHER: ledger.memory.rows[OTHER]})
        both = ledger.memory if folder is ledger.root else memory
        (finding,) = found(ledger, ledger=folder, memory=both)
        assert (finding.kind, finding.tenant, finding.count) == (Kind.UNSEALED, OTHER, 2)


def test_a_folder_that_is_all_there_is_of_a_log_hides_no_waiting_rows(ledger: PlainLedger) -> None:
    """An empty folder of the tenant's log: its first seal never came."""
    wait(ledger, 300, tenant=OTHER)
    (ledger.root / ledger.log(OTHER)).mkdir()
    assert [f.kind for f in found(ledger)] == [Kind.UNSEALED]


def test_a_row_that_came_late_has_just_begun_to_wait(ledger: PlainLedger) -> None:
    """Out of a spool: its time is an hour old, but the memory stored it two seconds ago."""
    (row,) = rows_at(TENANT, 3600)
    now = NOW.timestamp()
    for age, late in ((2, False), (-30, False), (59, False), (61, True), (-7200, True)):
        position = f"{int((now - age) * 1000)}-0"
        ledger.memory.rows[TENANT][COUNT:] = [PlainEntry(position, row.to_bytes())]
        for sides in ({}, {"ledger": None}):
            assert [f.kind for f in found(ledger, **sides)] == [Kind.UNSEALED] * late, age


@pytest.mark.parametrize("alone", [False, True])
def test_what_is_written_during_a_long_verification_is_none(
    ledger: PlainLedger, alone: bool
) -> None:
    """The rows are read an hour after the checkpoint: meanwhile they came, and were sealed."""
    wait(ledger, -1, -2)
    entries, clock = ledger.memory.entries, [NOW.timestamp()]

    def slowly(*wanted: Any) -> list[PlainEntry]:
        clock[0] = NOW.timestamp() + 3600
        return entries(*wanted)

    ledger.memory.entries = slowly  # type: ignore[method-assign]
    assert found(ledger, lambda: clock[0], **({"ledger": None} if alone else {})) == []


@pytest.mark.parametrize("lost", [0, 1, 40])
def test_edited_and_deleted_rows_do_not_wait(ledger: PlainLedger, lost: int) -> None:
    """Of the sealed ones at the end, some were edited or removed; only what is behind waits."""
    rows = ledger.memory.rows[TENANT]
    last = COUNT - 1
    rows[last] = PlainEntry(rows[last].position, rows[last].stored.replace(b'":0', b'":3'))
    del rows[last - lost : last]
    assert Kind.UNSEALED not in {f.kind for f in found(ledger)}
    wait(ledger, 300, 200)
    (finding,) = [f for f in found(ledger) if f.kind is Kind.UNSEALED]
    assert (finding.count, bool(finding.request_id)) == (2, True)
    assert {f.kind for f in found(ledger)} >= {Kind.EDITED, Kind.UNSEALED}


def test_where_nothing_fits_it_is_not_said_what_waits(
    ledger: PlainLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory alone, whose rows do not have the signed root, or rows that are all others than
    those of the files: any of them may be a sealed one."""
    ledger.memory.rows[TENANT].insert(3, PlainEntry("3-1", rows_at(TENANT, 90)[0].to_bytes()))
    assert [f.kind for f in found(ledger, ledger=None)] == [Kind.DIVERGENT]
    assert [f.kind for f in found(ledger)] == [Kind.INSERTED]
    monkeypatch.setattr("audit.ledger.alignment.WINDOW", 64)
    ledger.memory.rows[TENANT].clear()
    fill(ledger.memory, TENANT, rows_of(TENANT, 2 * COUNT, Random(99)))
    assert [f.kind for f in found(ledger)] == [Kind.DIVERGENT]


# --- tenants that are not listed ------------------------------------------------------------------


def test_a_tenant_that_was_taken_out_of_the_list_is_found(
    ledger: PlainLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder knows it, or, by the memory alone, the checkpoint of the tenant asked for."""
    monkeypatch.setattr(ledger.memory, "tenants", list)
    (finding,) = found(ledger)
    told = (finding.kind, finding.source, finding.log, finding.tenant)
    assert told == (Kind.UNLISTED, Source.MEMORY, ledger.log(TENANT), TENANT)
    assert [f.kind for f in found(ledger, ledger=None, tenant=TENANT)] == [Kind.UNLISTED]
    wait(ledger, 300)
    assert {f.kind for f in found(ledger)} == {Kind.UNLISTED, Kind.UNSEALED}


def test_files_alone_list_nobody(ledger: PlainLedger) -> None:
    """Without a memory there is no list, and nothing waits."""
    wait(ledger, 300)
    assert found(ledger, memory=None) == []
