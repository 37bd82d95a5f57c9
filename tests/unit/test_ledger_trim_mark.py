"""`audit.ledger.memory_check`: what a memory's mark of its own trims excuses, and what it does not.

Whoever can write to the memory can write the mark, too.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from audit.errors import CheckpointError
from audit.ledger.claims import Trust
from audit.ledger.finding import META, Kind, LogReport, Report, Verdict
from audit.ledger.note_key import SignerKey
from audit.ledger.sources import Sources
from audit.ledger.verifier import verify
from tests.ledger_writer import (
    PREFIX,
    TENANTS,
    PlainEntry,
    PlainLedger,
    PlainMemory,
    fill,
    just_now,
    rows_of,
)

SIGNER = SignerKey.generate(PREFIX, random=lambda count: b"k" * count)
TENANT, OTHER = TENANTS[:2]
COUNT = 60


@pytest.fixture
def ledger(tmp_path: Path) -> PlainLedger:
    """Two tenants whose rows are all sealed."""
    memory = PlainMemory()
    ledger = PlainLedger(tmp_path, memory, SIGNER)
    for tenant in (TENANT, OTHER):
        fill(memory, tenant, rows_of(tenant, COUNT, Random(3)))
    ledger.round({TENANT: COUNT, OTHER: COUNT})
    ledger.finish()
    return ledger


def memory_alone(ledger: PlainLedger) -> Report:
    trust = Trust((SIGNER.verifier,), PREFIX)
    return verify(Sources(trust=trust, memory=ledger.memory, pause=lambda seconds: None))


def of_tenant(report: Report) -> LogReport:
    (log,) = [log for log in report.logs if log.tenant == TENANT]
    return log


def edit(ledger: PlainLedger, at: int) -> None:
    rows = ledger.memory.rows[TENANT]
    changed = rows[at].stored.replace(b'"attempt":0', b'"attempt":3')
    rows[at] = PlainEntry(rows[at].position, changed)


@pytest.mark.parametrize("mark", ["1-0", "0-1", "61-0", "junk"])
def test_a_mark_excuses_no_changed_row_where_none_is_missing(
    ledger: PlainLedger, mark: str
) -> None:
    """As many rows are there as were sealed, so the mark explains nothing, whatever it says."""
    edit(ledger, 7)
    ledger.memory.marks[TENANT] = mark
    report = memory_alone(ledger)
    assert [(f.kind, f.index) for f in of_tenant(report).findings] == [(Kind.DIVERGENT, 0)]
    assert report.verdict is Verdict.WRONG


@pytest.mark.parametrize("mark", ["1-1", "61-0", "junk"])
def test_a_mark_excuses_no_row_behind_the_first_that_is_there(
    ledger: PlainLedger, mark: str
) -> None:
    """Fewer rows than were sealed, but the first stands before the mark: others were removed."""
    del ledger.memory.rows[TENANT][50:]
    ledger.memory.marks[TENANT] = mark
    assert [f.kind for f in of_tenant(memory_alone(ledger)).findings] == [Kind.CUT]


def test_rows_that_wait_do_not_make_up_for_rows_that_are_missing(ledger: PlainLedger) -> None:
    """The first row was deleted and the mark set behind it, while three rows are not sealed."""
    fill(ledger.memory, TENANT, just_now(rows_of(TENANT, 3, Random(4))))
    ledger.memory.trim(TENANT, 1)
    assert [f.kind for f in of_tenant(memory_alone(ledger)).findings] == [Kind.DIVERGENT]


@pytest.mark.parametrize("trimmed", [1, 40, COUNT])
def test_what_was_trimmed_leaves_a_log_unchecked_which_is_no_pass(
    ledger: PlainLedger, trimmed: int
) -> None:
    """Another tenant's rows are all right, and still the whole is not; nor without the other."""
    ledger.memory.trim(TENANT, trimmed)
    report = memory_alone(ledger)
    log = of_tenant(report)
    assert (log.findings, log.sealed, log.checked, log.trimmed) == ((), COUNT, 0, trimmed)
    assert (log.verdict, report.verdict) == (Verdict.EMPTY, Verdict.PARTIAL)
    ledger.memory.trim(OTHER, trimmed)
    assert memory_alone(ledger).verdict is Verdict.EMPTY


def test_what_is_there_is_looked_at_although_the_memory_was_trimmed(ledger: PlainLedger) -> None:
    """Bytes that are no row, and a second row of its kind, with their positions: which index they
    have is not known."""
    ledger.memory.trim(TENANT, 40)
    rows = ledger.memory.rows[TENANT]
    rows[3] = PlainEntry("44-0", b"junk")
    rows.insert(9, PlainEntry("49-1", rows[8].stored.replace(b'"attempt":0', b'"attempt":3')))
    report = memory_alone(ledger)
    found = [(f.kind, f.index, f.position) for f in of_tenant(report).findings]
    assert found == [(Kind.MALFORMED, None, "44-0"), (Kind.DUPLICATE, None, "49-1")]
    assert report.verdict is Verdict.WRONG


def test_a_log_of_which_nothing_was_checked_is_no_pass_whatever_the_source() -> None:
    """Sealed rows and none of them checked, beside a log that is right, the meta log included."""
    right = LogReport(log="a", tenant=None, sealed=3, checked=3)
    assert Report((right,)).verdict is Verdict.RIGHT
    assert Report((right, LogReport(log="b", tenant=None))).verdict is Verdict.RIGHT
    for name in ("b", META):
        left = LogReport(log=name, tenant=None, sealed=3)
        assert Report((right, left)).verdict is Verdict.PARTIAL


def test_a_kept_checkpoint_of_a_log_whose_tenant_is_unknown_is_no_pass(
    ledger: PlainLedger,
) -> None:
    """The memory alone has no rows for it, while another tenant's are right."""
    given = ledger.note(TENANT)
    del ledger.memory.rows[TENANT], ledger.memory.newest[TENANT]
    trust = Trust((SIGNER.verifier,), PREFIX)
    assert verify(Sources(trust=trust, memory=ledger.memory)).verdict is Verdict.RIGHT
    with pytest.raises(CheckpointError):
        verify(Sources(trust=trust, memory=ledger.memory, given=(given,)))
