"""audit/ledger/verifier.py: what each source tells alone, retention, witnesses, a sealer at work.

What tampering is found and where is the matter of ``test_ledger_tamper.py``.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from audit.errors import CheckpointError
from audit.ledger.checkpoint import Checkpoint, origin_of
from audit.ledger.claims import Trust
from audit.ledger.finding import Kind, LogReport, Source, Verdict
from audit.ledger.invocations import Invocations, glance, request_id_of
from audit.ledger.keys import LedgerKeys
from audit.ledger.log_check import check_log
from audit.ledger.note import Note, Signature
from audit.ledger.note_key import SignerKey
from audit.ledger.pruned_claim import Pruned, pruned_of
from audit.ledger.sealer import Sealer
from audit.ledger.sources import Sources
from audit.ledger.spill import Spill
from audit.ledger.subject import Limits
from audit.ledger.tiles import WIDTH, encode_entries, tile_of
from audit.ledger.verifier import verify
from audit.row import AuditRow, skill_invoked_completed, skill_invoked_started, timestamp
from audit.system_rows import PRUNED
from audit.testing import InMemory
from tests.ledger_writer import (
    META,
    PREFIX,
    SECRET,
    TENANTS,
    WITNESS,
    PlainEntry,
    PlainLedger,
    PlainMemory,
    cosigned,
    fill,
    just_now,
    rows_of,
    tree_root,
    write_tree,
)
from tests.support import HASH, make_ending, make_identity
from tests.witness import FakeWitness

SIGNER = SignerKey.generate(PREFIX, random=lambda count: b"k" * count)
STRANGER = SignerKey.generate(PREFIX, random=lambda count: b"x" * count)
TENANT = TENANTS[0]
COUNT = 1_000
TRUST = Trust((SIGNER.verifier,), PREFIX)


@pytest.fixture
def ledger(tmp_path: Path) -> PlainLedger:
    """One tenant with 1,000 rows, sealed in two rounds."""
    memory = PlainMemory()
    ledger = PlainLedger(tmp_path / "ledger", memory, SIGNER)
    fill(memory, TENANT, rows_of(TENANT, COUNT, Random(3)))
    ledger.round({TENANT: 400})
    ledger.round({TENANT: COUNT})
    ledger.finish()
    return ledger


def check(
    ledger: PlainLedger, *, memory: bool = True, files: bool = True, **more: Any
) -> LogReport:
    """What is said of the tenant's log."""
    sources: dict[str, Any] = {"trust": TRUST, "pause": lambda seconds: None, **more}
    report = verify(
        Sources(
            ledger=ledger.root if files else None,
            memory=ledger.memory if memory else None,
            **sources,
        )
    )
    (found,) = [log for log in report.logs if log.log == ledger.log(TENANT)]
    return found


def kinds(log: LogReport) -> list[tuple[Kind, Source, int | None, int]]:
    return [(f.kind, f.source, f.index, f.count) for f in log.findings]


def change(ledger: PlainLedger, index: int) -> list[bytes]:
    rows = list(ledger.entries[TENANT])
    rows[index] = rows[index].replace(b'"attempt":0', b'"attempt":3')
    return rows


def folder(ledger: PlainLedger) -> Path:
    return ledger.root / ledger.log(TENANT)


# --- one side alone -------------------------------------------------------------------------------


def test_files_alone_tell_how_far_a_known_checkpoint_still_fits(ledger: PlainLedger) -> None:
    """Rows, tiles and all were made anew: between the last checkpoint that fits and the next."""
    shutil.rmtree(folder(ledger) / "tile")
    write_tree(folder(ledger), change(ledger, 700), 0)
    assert kinds(check(ledger, memory=False)) == [(Kind.DIVERGENT, Source.LEDGER, 400, COUNT - 400)]
    given = (ledger.note(TENANT, 650),)
    assert kinds(check(ledger, memory=False, given=given)) == [
        (Kind.DIVERGENT, Source.LEDGER, 650, COUNT - 650)
    ]


def test_files_alone_tell_the_tile_whose_rows_were_changed_with_it(ledger: PlainLedger) -> None:
    """The tile above still has the old hash, so it is one of 256 rows."""
    write_tree(ledger.root / "other", change(ledger, 300), 0)
    for level in (None, 0):
        name = tile_of(level, 1, COUNT).to_path()
        shutil.copy(ledger.root / "other" / name, folder(ledger) / name)
    shutil.rmtree(ledger.root / "other")
    assert kinds(check(ledger, memory=False)) == [(Kind.DIVERGENT, Source.LEDGER, 256, 256)]


def test_the_memory_alone_tells_that_rows_were_changed(ledger: PlainLedger) -> None:
    """And how far they still fit a checkpoint that somebody kept."""
    rows = ledger.memory.rows[TENANT]
    rows[700] = PlainEntry(rows[700].position, change(ledger, 700)[700])
    given = (ledger.note(TENANT, 650),)
    found = check(ledger, files=False, given=given)
    assert kinds(found) == [(Kind.DIVERGENT, Source.MEMORY, 650, COUNT - 650)]
    del rows[700:]
    assert kinds(check(ledger, files=False)) == [(Kind.CUT, Source.MEMORY, 700, 300)]


def test_rows_decide_where_the_tile_above_is_lost(ledger: PlainLedger) -> None:
    """A tile was altered, the one above is gone: the signed root says that the rows are right."""
    tile = folder(ledger) / tile_of(0, 1, COUNT).to_path()
    tile.write_bytes(tile.read_bytes()[:-1] + b"\x00")
    (folder(ledger) / tile_of(1, 0, COUNT).to_path()).unlink()
    assert kinds(check(ledger, memory=False)) == [
        (Kind.MISSING, Source.LEDGER, 0, 768),
        (Kind.ALTERED, Source.LEDGER, 511, 1),
    ]


def test_a_log_without_its_folder_is_missing(ledger: PlainLedger) -> None:
    """The meta log remembers it, where the operator's list and the memory do not."""
    (ledger.root / "tenants").unlink()
    shutil.rmtree(folder(ledger))
    found = check(ledger, memory=False)
    assert kinds(found) == [
        (Kind.MISSING, Source.LEDGER, None, 1), (Kind.MISSING, Source.LEDGER, 0, COUNT),
    ]  # fmt: skip


def test_a_memory_without_its_checkpoint_was_rolled_back(ledger: PlainLedger) -> None:
    """The files know better."""
    del ledger.memory.newest[TENANT]
    assert kinds(check(ledger)) == [(Kind.ROLLBACK, Source.MEMORY, 0, 1)]


@pytest.mark.parametrize("distance", [1, 2, 3, 7, 63, 64, 65, 300])
def test_two_rows_that_changed_places_are_two_findings(ledger: PlainLedger, distance: int) -> None:
    """However near or far; what stands between them is none."""
    rows = ledger.memory.rows[TENANT]
    rows[100], rows[100 + distance] = rows[100 + distance], rows[100]
    assert kinds(check(ledger)) == [
        (Kind.REORDERED, Source.MEMORY, 100, 1), (Kind.REORDERED, Source.MEMORY, 100 + distance, 1),
    ]  # fmt: skip


def test_rows_of_many_kinds_of_tampering_are_told_apart(ledger: PlainLedger) -> None:
    """Side by side in one memory: each is what it is."""
    rows = ledger.memory.rows[TENANT]
    rows[900] = PlainEntry(rows[900].position, change(ledger, 900)[900])
    rows.insert(700, PlainEntry("7-7", rows_of(TENANT, 2, Random(9))[0].to_bytes()))
    rows.insert(500, rows.pop(300))
    del rows[200:210]
    rows[10] = PlainEntry(rows[10].position, change(ledger, 10)[10])
    assert sorted(kinds(check(ledger)), key=lambda found: found[2] or 0) == [
        (Kind.EDITED, Source.MEMORY, 10, 1), (Kind.DELETED, Source.MEMORY, 200, 10),
        (Kind.REORDERED, Source.MEMORY, 300, 1), (Kind.INSERTED, Source.MEMORY, 690, 1),
        (Kind.EDITED, Source.MEMORY, 900, 1),
    ]  # fmt: skip


def test_two_signed_roots_that_are_both_not_that_of_the_rows(ledger: PlainLedger) -> None:
    """A fork, whatever the rows are."""
    ledger.memory.newest[TENANT] = ledger.sign(TENANT, COUNT, b"a" * 32)
    (folder(ledger) / "checkpoint").write_bytes(ledger.sign(TENANT, COUNT, b"b" * 32))
    shutil.rmtree(ledger.root / META)
    assert kinds(check(ledger)) == [
        (Kind.FORK, Source.MEMORY, COUNT, 1), (Kind.DIVERGENT, Source.LEDGER, 0, COUNT),
    ]  # fmt: skip


def test_no_rows_are_no_pass(tmp_path: Path) -> None:
    """Neither nothing at all, nor rows that are not sealed yet."""
    memory = PlainMemory()
    sources = Sources(trust=TRUST, memory=memory, ledger=tmp_path)
    assert verify(sources).verdict is Verdict.EMPTY
    fill(memory, TENANT, just_now(rows_of(TENANT, 10, Random(1))))
    report = verify(sources)
    assert report.verdict is Verdict.EMPTY
    assert [(log.tenant, log.unsealed) for log in report.logs] == [(TENANT, 10)]


@pytest.mark.parametrize("left", ["tiles", "line", "both"])
def test_a_log_that_has_lost_its_checkpoints_is_missing(tmp_path: Path, left: str) -> None:
    """In the memory, in the files and in the meta log: tiles or its line in ``tenants`` tell."""
    ledger = sealed(tmp_path / "a", rows_of(TENANT, 6, Random(4)))
    shutil.rmtree(ledger.root / META)
    (folder(ledger) / "checkpoint").unlink()
    ledger.memory.newest.clear()
    if left == "tiles":
        (ledger.root / "tenants").unlink()
    if left == "line":
        shutil.rmtree(folder(ledger))
    found = check(ledger, secret=SECRET)
    assert kinds(found) == [(Kind.MISSING, Source.LEDGER, None, 1)]
    assert (found.verdict, found.unsealed) == (Verdict.WRONG, 6)
    assert check(ledger, secret=SECRET, memory=False).verdict is Verdict.WRONG


def test_an_empty_folder_is_no_log(tmp_path: Path) -> None:
    """Neither tiles nor a line: nothing of that tenant was ever sealed."""
    memory = PlainMemory()
    ledger = PlainLedger(tmp_path, memory, SIGNER)
    fill(memory, TENANT, just_now(rows_of(TENANT, 6, Random(4))))
    folder(ledger).mkdir(parents=True)
    found = check(ledger, secret=SECRET)
    assert (found.verdict, found.unsealed, found.findings) == (Verdict.EMPTY, 6, ())


def test_tiles_without_any_checkpoint_are_a_finding(ledger: PlainLedger) -> None:
    """Where no memory is asked."""
    shutil.rmtree(ledger.root / META)
    (folder(ledger) / "checkpoint").unlink()
    assert kinds(check(ledger, memory=False)) == [(Kind.MISSING, Source.LEDGER, None, 1)]


def test_a_given_checkpoint_is_never_passed_over(ledger: PlainLedger) -> None:
    """One that cannot be read, or is of another log than is asked for, is an error."""
    other = ledger.sign(TENANTS[1], 3, b"r" * 32)
    with pytest.raises(CheckpointError):
        check(ledger, given=(b"junk",))
    with pytest.raises(CheckpointError):
        check(ledger, given=(other,), tenant=TENANT)
    sources = Sources(trust=TRUST, ledger=ledger.root, given=(other,))
    found = [(f.kind, f.log) for f in verify(sources).findings()]
    assert found == [(Kind.MISSING, ledger.log(TENANTS[1]))] * 2


def test_a_checkpoint_of_another_log_is_not_trusted(ledger: PlainLedger) -> None:
    """Although the right key has signed it, for that other log."""
    note = ledger.sign(TENANTS[1], COUNT, b"r" * 32)
    (folder(ledger) / "checkpoint").write_bytes(note)
    assert kinds(check(ledger)) == [(Kind.UNTRUSTED, Source.LEDGER, COUNT, 1)]


def test_an_edited_meta_log_is_found_and_not_believed(ledger: PlainLedger) -> None:
    """An entry that is not the sealed one says nothing about a log."""
    forged = [ledger.sign(TENANT, 400, b"r" * 32), ledger.entries[META][1]]
    bundle = tile_of(None, 0, 2).to_path()
    (ledger.root / META / bundle).write_bytes(encode_entries(forged))
    report = verify(Sources(trust=TRUST, ledger=ledger.root, memory=ledger.memory))
    assert [(f.kind, f.log, f.index) for f in report.findings()] == [(Kind.EDITED, META, 0)]


# --- invocations ----------------------------------------------------------------------------------


def started(at: float, **changes: Any) -> tuple[AuditRow, AuditRow]:
    ts = timestamp(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=at))
    identity = make_identity(tenant_id=TENANT, **changes)
    return (
        skill_invoked_started(identity, HASH, ts=ts),
        skill_invoked_completed(identity, make_ending(), 1, ts=ts),
    )


def sealed(root: Path, rows: list[AuditRow], behind: list[AuditRow] | None = None) -> PlainLedger:
    memory = PlainMemory()
    ledger = PlainLedger(root, memory, SIGNER)
    fill(memory, TENANT, [*rows, *(behind or [])])
    ledger.round({TENANT: len(rows)})
    ledger.finish()
    return ledger


def at(seconds: float) -> Limits:
    """The clock, so many seconds after the first row."""
    return Limits(now=lambda: datetime(2026, 1, 1, tzinfo=UTC).timestamp() + seconds)


def test_an_open_invocation_of_a_memory_is_judged_by_the_clock(tmp_path: Path) -> None:
    """Beyond the limit it is overdue, at it not; however quiet its log is."""
    first, end = started(0)
    ledger = sealed(tmp_path / "a", [first])
    for sides in ({}, {"files": False}):
        assert check(ledger, limits=at(45), **sides).verdict is Verdict.RIGHT
        (finding,) = check(ledger, limits=at(45.001), **sides).findings
        found = finding.kind, finding.index, finding.request_id
        assert found == (Kind.OVERDUE, 0, first.request_id)
    ended = sealed(tmp_path / "c", [first, end, *started(99)])
    assert check(ended, limits=at(999)).verdict is Verdict.RIGHT


def test_what_a_living_worker_runs_is_not_overdue(tmp_path: Path) -> None:
    """Its lease is held in the memory; without it, or without the memory, nobody vouches."""
    ledger = sealed(tmp_path / "a", [started(0)[0], *started(99)])
    ledger.memory.workers = {"worker-1"}
    for sides in ({}, {"files": False}):
        assert check(ledger, limits=at(99), **sides).verdict is Verdict.RIGHT
    assert kinds(check(ledger, memory=False)) == [(Kind.OVERDUE, Source.LEDGER, 0, 1)]
    ledger.memory.workers = {"worker-2"}
    assert kinds(check(ledger, limits=at(99))) == [(Kind.OVERDUE, Source.LEDGER, 0, 1)]


def test_files_alone_measure_by_the_newest_row_of_any_log(tmp_path: Path) -> None:
    """A quiet log hides nothing, since another one has gone on."""
    memory = PlainMemory()
    ledger = PlainLedger(tmp_path / "a", memory, SIGNER)
    fill(memory, TENANT, [started(0)[0]])
    fill(memory, TENANTS[1], rows_of(TENANTS[1], 2, Random(1)))
    ledger.round({TENANT: 1})
    ledger.finish()
    assert check(ledger, memory=False).verdict is Verdict.RIGHT
    ledger.round({TENANT: 1, TENANTS[1]: 2})
    ledger.finish()
    assert kinds(check(ledger, memory=False)) == [(Kind.OVERDUE, Source.LEDGER, 0, 1)]


def test_a_row_that_waits_to_be_sealed_closes_an_invocation(tmp_path: Path) -> None:
    """It ran long, and ended within the last second."""
    first, end = started(0)
    ledger = sealed(tmp_path / "a", [first, *started(99)], just_now([end]))
    assert check(ledger).verdict is Verdict.RIGHT
    assert check(ledger, files=False).verdict is Verdict.RIGHT
    assert kinds(check(ledger, memory=False)) == [(Kind.OVERDUE, Source.LEDGER, 0, 1)]


@pytest.mark.parametrize("which", [0, 1])
def test_a_second_row_of_its_kind_is_named(tmp_path: Path, which: int) -> None:
    """The later of both, from the files and from the memory."""
    pair = started(0)
    other = started(1, request_id=pair[0].request_id, attempt=1)
    rows = [*pair, *started(0.5), other[which], *([other[1]] if which == 0 else [])]
    ledger = sealed(tmp_path / "a", rows)
    for sides in ({}, {"files": False}, {"memory": False}):
        found = [f for f in check(ledger, **sides).findings if f.kind is Kind.DUPLICATE]
        assert [f.index for f in found] == ([4, 5] if which == 0 else [4])
        assert {f.request_id for f in found} == {pair[0].request_id}


def test_sealed_bytes_that_are_no_row_are_malformed(tmp_path: Path) -> None:
    """Hash and signature hold, and still it is none; neither is what has no bytes."""
    entries = [b"junk", b"{}", b""]
    rows = [PlainEntry(f"{n}-0", entry) for n, entry in enumerate(entries, start=1)]
    ledger = PlainLedger(tmp_path / "a", PlainMemory({TENANT: rows}), SIGNER)
    ledger.round({TENANT: 3})
    ledger.finish()
    for sides in ({}, {"files": False}, {"memory": False}):
        assert [k[:1] + k[2:3] for k in kinds(check(ledger, **sides))] == [
            (Kind.MALFORMED, 0), (Kind.MALFORMED, 1), (Kind.MALFORMED, 2),
        ]  # fmt: skip


@pytest.mark.parametrize("end", [0, 5, 300])
def test_what_is_no_row_is_found_where_it_stands(ledger: PlainLedger, end: int) -> None:
    """Among the sealed rows it was inserted; behind them, far or near, it will never be sealed."""
    fill(ledger.memory, TENANT, just_now(rows_of(TENANT, end, Random(8))))
    rows = ledger.memory.rows[TENANT]
    row = rows[0].stored
    rows += [PlainEntry("9001-0", row, foreign=True), PlainEntry("9002-0", b"x" * 70_000)]
    for sides in ({}, {"files": False}):
        found = [(f.kind, f.source, f.position) for f in check(ledger, **sides).findings]
        assert found == [
            (Kind.MALFORMED, Source.MEMORY, "9001-0"), (Kind.MALFORMED, Source.MEMORY, "9002-0"),
        ]  # fmt: skip
    del rows[-2:]
    rows.insert(700, PlainEntry("700-1", b"row\0x\0y\0z", foreign=True))
    (finding,) = check(ledger).findings
    assert (finding.kind, finding.index, finding.position) == (Kind.INSERTED, 700, "700-1")


def test_what_is_no_row_is_found_behind_an_edited_last_row(ledger: PlainLedger) -> None:
    """It was read already, to see where the rows go on."""
    rows = ledger.memory.rows[TENANT]
    rows[-1] = PlainEntry(rows[-1].position, change(ledger, COUNT - 1)[-1])
    rows.append(PlainEntry("9001-0", b"row\0x", foreign=True))
    found = [(f.kind, f.position) for f in check(ledger).findings]
    assert found == [(Kind.EDITED, f"{COUNT}-0"), (Kind.MALFORMED, "9001-0")]


def test_what_is_no_row_is_found_where_nothing_is_sealed(tmp_path: Path) -> None:
    """A tenant without any log."""
    memory = PlainMemory({TENANT: [PlainEntry("1-0", b"\0", foreign=True)]})
    report = verify(Sources(trust=TRUST, memory=memory, ledger=tmp_path))
    assert [(f.kind, f.position) for f in report.findings()] == [(Kind.MALFORMED, "1-0")]


def test_rows_are_understood_however_their_json_is_spelled() -> None:
    """The quick look at canonical bytes, and the slow one at any others, say the same."""
    first, end = started(0)
    spaced = first.to_bytes().replace(b'","', b'", "').replace(b'":', b'": ')
    assert glance(spaced) == glance(first.to_bytes())
    assert request_id_of(spaced) == request_id_of(first.to_bytes()) == first.request_id
    invocations = Invocations()
    for index, row in enumerate((spaced, end.to_bytes(), spaced, started(5)[0].to_bytes())):
        assert invocations.add(index, row)
    assert [(one.index, one.worker) for one in invocations.opened()] == [
        (2, "worker-1"), (3, "worker-1"),
    ]  # fmt: skip
    assert invocations.repeated() == [0, 2]


@pytest.mark.parametrize("run", [1, 3, 100])
def test_records_come_out_sorted_however_many_there_are(run: int) -> None:
    """Whether they went through a file or not."""
    records = [Random(n).randbytes(8) for n in range(50)]
    spill = Spill(8, run=run)
    for record in records:
        spill.add(record)
    assert list(spill) == sorted(records)
    assert list(spill) == sorted(records)
    spill.close()


# --- retention ------------------------------------------------------------------------------------


def pruned_row(
    rows: int,
    signer: SignerKey = SIGNER,
    signed: list[bytes] | None = None,
    told: dict[str, Any] | None = None,
) -> AuditRow:
    """A row that says so of the first rows, with a note as the ledger signs it."""
    gone = [row.to_bytes() for row in rows_of(TENANT, 600, Random(3))][:rows]
    origin = f"{origin_of(PREFIX, TENANT, SECRET)}/pruned"
    top = tree_root(gone if signed is None else signed)
    note = Checkpoint(origin, rows, top).sign(signer.renamed(origin)).to_bytes().decode()
    payload = {
        "before": "2026-11-29T21:00:00.000000Z", "first_index": 0, "rows": rows, "root": top.hex(),
        "note": note, "tenant_id": TENANT, "request_id": "01KB8Z5T3MZJ9Y2V4Q6R8S0TAW",
    } | (told or {})  # fmt: skip
    meta = started(0)[0].meta
    return AuditRow(kind=PRUNED, ts="2026-11-29T22:00:00.000000Z", payload=payload, meta=meta)


def pruned_ledger(root: Path, told: AuditRow) -> PlainLedger:
    """A ledger of 600 rows whose last says that some were pruned; they are still there."""
    return sealed(root, [*rows_of(TENANT, 600, Random(3)), told])


def prune(ledger: PlainLedger, rows: int) -> None:
    """Remove whole bundles, and the bytes of the first entries of the next one."""
    for index in range(rows // WIDTH):
        (folder(ledger) / tile_of(None, index, 601).to_path()).unlink()
    index = rows // WIDTH
    entries = ledger.entries[TENANT][index * WIDTH : (index + 1) * WIDTH]
    kept = [b"" if index * WIDTH + at < rows else row for at, row in enumerate(entries)]
    content = encode_entries(kept)
    (folder(ledger) / tile_of(None, index, 601).to_path()).write_bytes(content)
    ledger.memory.trim(TENANT, rows)


def test_pruned_rows_are_no_finding_where_a_row_says_so(tmp_path: Path) -> None:
    """Their hashes still lead to the root; the report tells how many there are."""
    ledger = pruned_ledger(tmp_path / "a", pruned_row(300))
    prune(ledger, 300)
    for sides in ({}, {"memory": False}):
        found = check(ledger, **sides)
        assert (found.findings, found.verdict) == ((), Verdict.RIGHT)
        assert (found.sealed, found.checked, found.pruned) == (601, 301, 300)


def test_rows_that_are_gone_without_a_word_are_findings(tmp_path: Path) -> None:
    """Beyond what the row says."""
    ledger = pruned_ledger(tmp_path / "a", pruned_row(256))
    prune(ledger, 300)
    assert kinds(check(ledger, memory=False)) == [(Kind.DELETED, Source.LEDGER, 256, 44)]


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(lambda: pruned_row(256, STRANGER), id="another key"),
        pytest.param(lambda: pruned_row(256, told={"note": "no note"}), id="no note"),
        pytest.param(lambda: pruned_row(256, told={"rows": 300}), id="more rows than signed"),
        pytest.param(lambda: pruned_row(256, told={"first_index": 1}), id="another first"),
        pytest.param(lambda: pruned_row(256, told={"root": "0" * 64}), id="another root"),
        pytest.param(lambda: pruned_row(256, signed=[b"row"] * 256), id="of other rows"),
    ],
)
def test_a_row_that_no_key_of_the_ledger_has_signed_excuses_nothing(
    tmp_path: Path, told: Callable[[], AuditRow]
) -> None:
    """Who can write to the memory can write the row, but not its note."""
    ledger = pruned_ledger(tmp_path / "a", told())
    prune(ledger, 256)
    assert kinds(check(ledger, memory=False))[0] == (Kind.MISSING, Source.LEDGER, 0, 256)


def test_a_row_excuses_only_what_is_before_it(tmp_path: Path) -> None:
    """One that stands among the rows that it calls pruned is no word for them."""
    rows = rows_of(TENANT, 600, Random(3))
    raw = [row.to_bytes() for row in rows]
    trust = Trust((SIGNER.verifier,), PREFIX)
    log = origin_of(PREFIX, TENANT, SECRET).rpartition("/")[2]
    told = pruned_row(256).to_bytes()
    assert pruned_of(256, told, log, trust) == Pruned(256, tree_root(raw[:256]))
    assert pruned_of(255, told, log, trust) is None
    assert pruned_of(256, told, "other", trust) is None
    assert pruned_of(256, told, "other", Trust(trust.keys)) is None


def test_a_memory_may_begin_where_it_says_that_it_was_trimmed(ledger: PlainLedger) -> None:
    """Rows at the beginning only, and not one more than it says."""
    rows = ledger.memory.rows[TENANT]
    del rows[:500]
    assert kinds(check(ledger)) == [(Kind.DELETED, Source.MEMORY, 0, 500)]
    ledger.memory.marks[TENANT] = "500-1"
    found = check(ledger)
    assert (found.findings, found.trimmed, found.verdict) == ((), 500, Verdict.RIGHT)
    ledger.memory.marks[TENANT] = "500-0"
    assert kinds(check(ledger)) == [(Kind.DELETED, Source.MEMORY, 0, 500)]
    ledger.memory.marks[TENANT] = "500-1"
    del rows[3]
    assert kinds(check(ledger)) == [(Kind.DELETED, Source.MEMORY, 503, 1)]


def test_a_trimmed_memory_alone_has_nothing_to_check(ledger: PlainLedger) -> None:
    """Without the bundles there is no root, so there is no finding and no pass either."""
    ledger.memory.trim(TENANT, 500)
    found = check(ledger, files=False)
    assert (found.findings, found.trimmed, found.checked) == ((), 500, 0)
    assert found.verdict is Verdict.EMPTY
    ledger.memory.marks.clear()
    assert kinds(check(ledger, files=False)) == [(Kind.CUT, Source.MEMORY, 500, 500)]


@pytest.mark.parametrize("left", [0, 1, 3])
def test_a_quiet_memory_may_have_been_trimmed_to_the_end(ledger: PlainLedger, left: int) -> None:
    """All that was sealed is gone; rows behind it are unsealed ones, and no more."""
    fill(ledger.memory, TENANT, just_now(rows_of(TENANT, left, Random(5)) if left else []))
    ledger.memory.trim(TENANT, COUNT)
    found = check(ledger)
    assert (found.findings, found.trimmed, found.unsealed) == ((), COUNT, left)
    ledger.memory.marks.clear()
    assert kinds(check(ledger)) == [(Kind.CUT, Source.MEMORY, 0, COUNT)]


def test_more_may_be_trimmed_than_can_be_aligned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the memory begins is looked up; edited rows behind that are found all the same."""
    monkeypatch.setattr("audit.ledger.alignment.WINDOW", 256)
    monkeypatch.setattr("audit.ledger.alignment.MOST", 256)
    ledger = sealed(tmp_path / "a", rows_of(TENANT, 3_000, Random(3)))
    ledger.memory.trim(TENANT, 1_700)
    found = check(ledger)
    assert (found.findings, found.trimmed, found.checked) == ((), 1_700, 3_000)
    rows = ledger.memory.rows[TENANT]
    rows[900] = PlainEntry(rows[900].position, change(ledger, 2_600)[2_600])
    assert kinds(check(ledger)) == [(Kind.EDITED, Source.MEMORY, 2_600, 1)]
    rows[0] = PlainEntry(rows[0].position, change(ledger, 1_700)[1_700])
    assert kinds(check(ledger)) == [
        (Kind.EDITED, Source.MEMORY, 1_700, 1), (Kind.EDITED, Source.MEMORY, 2_600, 1),
    ]  # fmt: skip


def test_what_is_trimmed_while_it_is_read_is_no_finding(ledger: PlainLedger) -> None:
    """The verifier has read a page, then the keeper trims beyond it."""
    memory, entries = ledger.memory, ledger.memory.entries

    def meanwhile(tenant_id: str, after: str | None, limit: int) -> list[PlainEntry]:
        if after == "100-0" and memory.rows[TENANT][0].position == "1-0":
            memory.trim(TENANT, 700)
            return memory.rows[TENANT][:limit]
        return entries(tenant_id, after, min(limit, 100))

    memory.entries = meanwhile  # type: ignore[method-assign]
    found = check(ledger)
    assert (found.findings, found.trimmed) == ((), 600)


def once_at(memory: PlainMemory, position: str, act: Callable[[], None]) -> None:
    """Do something when a reader has come to a position for the first time."""
    entries, times = memory.entries, list[int]()

    def meanwhile(tenant_id: str, after: str | None, limit: int) -> list[PlainEntry]:
        if after == position:
            times.append(1)
            if len(times) == 1:
                act()
        return entries(tenant_id, after, min(limit, 100))

    memory.entries = meanwhile  # type: ignore[method-assign]


def test_what_is_pruned_while_it_is_read_is_no_finding(tmp_path: Path) -> None:
    """The row that says so is sealed after the verifier has read the checkpoint."""
    ledger = sealed(tmp_path / "a", rows_of(TENANT, 600, Random(3)))

    def pruning() -> None:
        fill(ledger.memory, TENANT, [pruned_row(512)])
        ledger.round({TENANT: 601})
        prune(ledger, 512)

    once_at(ledger.memory, "100-0", pruning)
    found = check(ledger)
    assert (found.findings, found.sealed, found.pruned) == ((), 601, 512)


@pytest.mark.parametrize(("still", "tries"), [(True, 1), (False, 3)])
def test_a_finding_that_stays_is_told_at_last(
    ledger: PlainLedger, still: bool, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once where nothing has changed; where a keeper goes on and on, after three looks."""
    rows = ledger.memory.rows[TENANT]
    rows[700] = PlainEntry(rows[700].position, change(ledger, 700)[700])
    marks = iter(["1-0", "1-1", "1-2", "1-3", "1-4", "1-5", "1-6", "1-7"] * 9)
    if not still:
        monkeypatch.setattr(ledger.memory, "trimmed", lambda tenant: next(marks))
    looks: list[str] = []
    monkeypatch.setattr(
        "audit.ledger.verifier.check_log",
        lambda *given: looks.append(given[1]) or check_log(*given),
    )
    assert (Kind.EDITED, Source.MEMORY, 700, 1) in kinds(check(ledger))
    assert looks.count(ledger.log(TENANT)) == tries


def test_what_is_checked_again_is_held_against_all_older_checkpoints(ledger: PlainLedger) -> None:
    """Those that the meta log has gathered; rows made anew fit up to the last that is right."""
    shutil.rmtree(folder(ledger) / "tile")
    write_tree(folder(ledger), change(ledger, 700), 0)
    del ledger.memory.rows[TENANT][:]
    marks = iter(["1-0", "1-1"])
    ledger.memory.trimmed = lambda tenant: next(marks, None)  # type: ignore[method-assign]
    assert (Kind.DIVERGENT, Source.LEDGER, 400, COUNT - 400) in kinds(check(ledger))


def test_forged_positions_excuse_nothing(tmp_path: Path) -> None:
    """They say that the memory begins at 1,024: it does not, and its rows are all compared."""
    ledger = sealed(tmp_path / "a", rows_of(TENANT, 3_000, Random(3)))
    for index in range(4):
        name = tile_of(None, index, 3_000).to_path().replace("tile/entries", "positions")
        (folder(ledger) / name).write_text("0-1\n" * WIDTH)
    rows = ledger.memory.rows[TENANT]
    rows[10] = PlainEntry(rows[10].position, change(ledger, 10)[10])
    assert (Kind.EDITED, Source.MEMORY, 10, 1) in kinds(check(ledger))


@pytest.mark.parametrize("memory", [True, False])
def test_positions_that_are_not_as_the_sealer_left_them_are_findings(
    ledger: PlainLedger, memory: bool
) -> None:
    """A file that is gone, is none, has too few lines or one twice, or goes back."""
    path = folder(ledger) / "positions" / "001"
    lines = path.read_text().splitlines()
    broken = {
        "gone": None, "none": ["nothing"] * 256, "few": lines[:-1], "many": [*lines, "600-0"],
        "twice": [*lines[:9], lines[8], *lines[10:]], "back": ["256-0", *lines[1:]],
    }  # fmt: skip
    for content in broken.values():
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_text("\n".join(content) + "\n")
        kind = Kind.MISSING if content is None else Kind.MALFORMED
        found = kinds(check(ledger, memory=memory))
        assert (kind, Source.LEDGER, 256, 256) in found
        assert {one[0] for one in found} <= {kind, Kind.ALTERED}
    path.write_text("\n".join(lines) + "\n")
    assert check(ledger, memory=memory).findings == ()


@pytest.mark.parametrize("edited", [None, 250, 257])
def test_positions_that_the_memory_does_not_have_are_altered(
    ledger: PlainLedger, edited: int | None
) -> None:
    """For the rows that are still there; an edited row near them hides nothing."""
    path = folder(ledger) / "positions" / "001"
    lines = path.read_text().splitlines()
    lines[43:45] = ["300-5", "300-6"]
    path.write_text("\n".join(lines) + "\n")
    if edited is not None:
        rows = ledger.memory.rows[TENANT]
        rows[edited] = PlainEntry(rows[edited].position, change(ledger, edited)[edited])
    assert (Kind.ALTERED, Source.LEDGER, 299, 2) in kinds(check(ledger))
    ledger.memory.rows[TENANT][:] = ledger.memory.rows[TENANT][301:]
    ledger.memory.marks[TENANT] = "301-1"
    assert check(ledger).findings == ()


def test_a_copy_of_what_the_standard_names_needs_no_positions(ledger: PlainLedger) -> None:
    """An outsider has fetched tiles and bundles only; beside a memory they have to be there."""
    shutil.rmtree(folder(ledger) / "positions")
    assert check(ledger, memory=False).verdict is Verdict.RIGHT
    assert (Kind.MISSING, Source.LEDGER, 0, 256) in kinds(check(ledger))


def test_forged_positions_hide_nothing(ledger: PlainLedger) -> None:
    """They say that the memory has only new rows; the rows say otherwise."""
    rows = ledger.memory.rows[TENANT]
    rows[10] = PlainEntry(rows[10].position, change(ledger, 10)[10])
    rows[:] = [PlainEntry(f"9{at:06}-0", row.stored) for at, row in enumerate(rows)]
    assert check(ledger).verdict is Verdict.WRONG


# --- witnesses and sealers ------------------------------------------------------------------------


WITNESSED = Trust((SIGNER.verifier, WITNESS), PREFIX)


def cosigned_file(ledger: PlainLedger) -> Path:
    return ledger.root / META / "checkpoint.cosigned"


def meta_report(ledger: PlainLedger, **more: Any) -> LogReport:
    sources = Sources(trust=WITNESSED, ledger=ledger.root, memory=ledger.memory, **more)
    return next(log for log in verify(sources).logs if log.log == META)


def test_what_a_witness_has_seen_is_told_apart(ledger: PlainLedger) -> None:
    """Whoever cosigned the meta log has seen every checkpoint in it; only with a known key."""
    path = ledger.root / META / "checkpoint"
    path.write_bytes(cosigned(path.read_bytes()))
    assert check(ledger).cosigned == 0
    assert check(ledger, trust=WITNESSED).cosigned == COUNT


def test_a_smaller_meta_log_that_was_cosigned_speaks_for_what_is_in_it(ledger: PlainLedger) -> None:
    """Sealing has gone on since: the newest checkpoint of each log among the entries seen."""
    cosigned_file(ledger).write_bytes(cosigned(ledger.note(META, 1)))
    assert (meta_report(ledger).sealed, meta_report(ledger).cosigned) == (2, 1)
    found = check(ledger, trust=WITNESSED)
    assert (found.findings, found.sealed, found.cosigned) == ((), COUNT, 400)
    assert check(ledger).cosigned == 0
    cosigned_file(ledger).write_bytes(cosigned(ledger.note(META, 2)))
    assert check(ledger, trust=WITNESSED, memory=False).cosigned == COUNT


@pytest.mark.parametrize("forgery", ["another key", "another size", "another signature", "junk"])
def test_a_forged_cosigned_checkpoint_counts_for_nothing(ledger: PlainLedger, forgery: str) -> None:
    """It is a finding of the meta log, whose entries are believed as without it."""
    right = cosigned(ledger.note(META, 1))
    origin = f"{PREFIX}/{META}"
    other = SignerKey.generate(origin, random=lambda count: b"x" * count)
    unsigned = Checkpoint(origin, 1, tree_root(ledger.entries[META][:1]))
    forged = {
        "another key": cosigned(unsigned.sign(other).to_bytes()),
        "another size": right.replace(b"\n1\n", b"\n2\n", 1),
        "another signature": right[:-6] + b"AAAA=\n"[-6:],
        "junk": b"junk",
    }
    cosigned_file(ledger).write_bytes(forged[forgery])
    meta = meta_report(ledger)
    assert {f.kind for f in meta.findings} <= {Kind.UNTRUSTED, Kind.MALFORMED}
    assert (len(meta.findings), meta.cosigned) == (1, 0)
    found = check(ledger, trust=WITNESSED)
    assert (found.findings, found.cosigned) == ((), 0)
    (ledger.root / "tenants").unlink()
    shutil.rmtree(folder(ledger))
    assert Kind.MISSING in {finding.kind for finding in check(ledger, memory=False).findings}


@pytest.mark.parametrize(("size", "kind"), [(1, Kind.FORK), (2, Kind.FORK), (3, Kind.ROLLBACK)])
def test_a_cosigned_checkpoint_of_another_history_is_a_finding(
    ledger: PlainLedger, size: int, kind: Kind
) -> None:
    """The ledger's own key has signed it, and the witness: two histories, or a meta log that was
    rolled back behind what the witness has seen. What it says it has seen is not this log."""
    cosigned_file(ledger).write_bytes(cosigned(ledger.sign(META, size, b"f" * 32)))
    meta = meta_report(ledger)
    assert kind in {finding.kind for finding in meta.findings}
    assert (meta.cosigned, check(ledger, trust=WITNESSED).cosigned) == (0, 0)


def test_a_cosignature_speaks_for_no_rows_that_are_not_those_it_was_given_for(
    ledger: PlainLedger,
) -> None:
    """The log has another root now than the checkpoint that the witness has seen."""
    cosigned_file(ledger).write_bytes(cosigned(ledger.note(META, 1)))
    ledger.entries.pop(TENANT)
    shutil.rmtree(folder(ledger))
    rows = [row.stored for row in ledger.memory.rows[TENANT]]
    ledger.append(TENANT, [*rows[:100], *rows[101:], rows[0]])
    found = check(ledger, trust=WITNESSED, memory=False)
    assert Kind.FORK in {finding.kind for finding in found.findings}
    assert found.cosigned == 0


def test_an_older_cosigned_checkpoint_covers_what_it_gathered(tmp_path: Path) -> None:
    """Beside the newest checkpoint stands the newest cosigned one; another tree there is a fork."""
    fake = FakeWitness("witness.example")
    trust = Trust((SIGNER.verifier, fake.key), PREFIX)
    memory = PlainMemory()
    plain = PlainLedger(tmp_path / "a", memory, SIGNER)
    fill(memory, TENANT, rows_of(TENANT, 600, Random(5)))
    plain.round({TENANT: 400})
    plain.finish()
    older = Note.parse((plain.root / META / "checkpoint").read_bytes())
    plain.round({TENANT: 600})
    plain.finish()
    path = plain.root / META / "checkpoint.cosigned"
    path.write_bytes(older.adding(Signature.parse(fake.line(older.text)[:-1])).to_bytes())
    assert check(plain).cosigned == 0
    report = check(plain, trust=trust)
    assert (report.sealed, report.cosigned, report.findings) == (600, 400, ())
    tree = replace(Checkpoint.parse(older.text), root=bytes(32))
    forked = tree.sign(SIGNER.renamed(tree.origin))
    path.write_bytes(forked.adding(Signature.parse(fake.line(forked.text)[:-1])).to_bytes())
    report = verify(Sources(trust=trust, ledger=plain.root, memory=plain.memory))
    assert Kind.FORK in {finding.kind for log in report.logs for finding in log.findings}
    assert {log.cosigned for log in report.logs} == {0}


def test_a_sealer_between_two_writes_is_waited_for(ledger: PlainLedger) -> None:
    """The memory's checkpoint is swapped first, the file follows within moments."""
    path = folder(ledger) / "checkpoint"
    newest = path.read_bytes()
    path.write_bytes(ledger.note(TENANT, 400))
    assert kinds(check(ledger)) == [(Kind.ROLLBACK, Source.LEDGER, 400, 1)]
    assert check(ledger, pause=lambda seconds: path.write_bytes(newest)).findings == ()


def test_what_the_sealer_has_sealed_is_right(tmp_path: Path) -> None:
    """The product's own sealer and the verifier, which share no code but the formats, agree."""
    memory, keys = InMemory(), LedgerKeys.generate(PREFIX)
    for tenant in TENANTS:
        for row in rows_of(tenant, 300, Random(int(tenant[-1]))):
            memory.emit(row)
    sealer = Sealer(memory, tmp_path, origin=PREFIX, load_keys=lambda: keys)
    sealer.round()
    for row in rows_of(TENANT, 200, Random(99)):
        memory.emit(row)
    sealer.round()
    memory.emit(just_now(rows_of(TENANT, 2, Random(98)))[0])
    trust = Trust(keys.verifiers, PREFIX)
    for sides in ({"ledger": tmp_path}, {"memory": memory}, {"ledger": tmp_path, "memory": memory}):
        report = verify(Sources(trust=trust, secret=keys.secret, **sides))  # type: ignore[arg-type]
        assert list(report.findings()) == []
        checked = {log.tenant: log.checked for log in report.logs if log.tenant}
        assert checked == {TENANTS[0]: 500, TENANTS[1]: 300, TENANTS[2]: 300}


def test_a_sealer_at_work_is_no_finding(tmp_path: Path) -> None:
    """Verified again and again while rows come and are sealed: right each time, and at the end."""
    memory, keys = InMemory(), LedgerKeys.generate(PREFIX)
    rows = rows_of(TENANT, 1_500, Random(7))
    done = threading.Event()

    def seal() -> None:
        sealer = Sealer(memory, tmp_path, origin=PREFIX, load_keys=lambda: keys)
        for first in range(0, len(rows), 50):
            for row in rows[first : first + 50]:
                memory.emit(row)
            sealer.round()
        done.set()

    trust = Trust(keys.verifiers, PREFIX)
    sources = Sources(trust=trust, memory=memory, ledger=tmp_path, secret=keys.secret, limits=at(0))
    sealing = threading.Thread(target=seal)
    sealing.start()
    while not done.is_set():
        assert list(verify(sources).findings()) == []
    sealing.join()
    assert [log.checked for log in verify(sources).logs if log.tenant] == [1_500]
