"""audit/ledger/pruning.py, moments.py: entries that somebody wrote past the emit keep nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from audit.ledger.archive import Archive
from audit.ledger.claims import Trust
from audit.ledger.folder import LedgerFolder
from audit.ledger.moments import judged, may_go, moment_of
from audit.ledger.pruning import Prune, Pruner
from audit.ledger.sources import Sources
from audit.ledger.tiles import Tile
from audit.ledger.verifier import verify
from audit.memory import AuditMemory
from audit.system_rows import PRUNED
from tests.sealing import KEYS, PREFIX, log_of, make, raw, raw_memory, seal
from tests.support import TENANT, completed, make_identity, started

OLD: Final = "2026-01-01T00:00:00.000000Z"
NEW: Final = "2026-03-01T00:00:00.000000Z"
BEFORE: Final = datetime(2026, 2, 1, tzinfo=UTC)


class Log:
    """A tenant's rows on a server, and what puts others between them."""

    def __init__(self, memory: AuditMemory, put: Any, root: Path) -> None:
        self.memory, self.put, self.root = memory, put, root
        self.folder = LedgerFolder(root)

    def write(self, pairs: int, ts: str) -> None:
        for _ in range(pairs):
            identity = make_identity()
            self.memory.emit(started(identity, ts=ts))
            self.memory.emit(completed(identity, ts=ts))

    def strange(self, count: int, text: str = "no row") -> None:
        for number in range(count):
            self.put(f"{text} {number}".encode())

    def prune(self) -> Prune:
        """What was planned and done, after all of it was sealed."""
        assert not seal(self.memory, self.root).faults
        sealing = make(self.memory, self.root)
        pruner = Pruner(
            self.memory, self.folder, origin=PREFIX, keys=KEYS, seal=sealing.round,
            pause=lambda seconds: None,
        )  # fmt: skip
        plan = pruner.plan(TENANT, BEFORE)
        assert pruner.prune(plan) == plan.left
        return plan

    def bundles(self, count: int) -> list[bool]:
        root = self.folder.log(log_of(TENANT)).root
        return [(root / Tile(None, at).to_path()).exists() for at in range(count)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with raw_memory() as (memory, put):
        yield Log(memory, put, tmp_path)


def test_strange_entries_go_with_the_rows_behind_them(log: Log) -> None:
    """Between old rows; the announcing row is written and found, and every row is accounted for."""
    log.write(100, OLD)
    log.strange(56)
    log.write(128, OLD)
    log.write(10, NEW)
    log.strange(3, "none either")
    assert log.prune().left == 512
    assert log.bundles(2) == [False, False]
    assert len(raw(log.memory)) == 24
    assert log.prune().left == 0
    told = [json.loads(row) for row in raw(log.memory)[23:]]
    assert [(row["kind"], row["payload"]["rows"]) for row in told] == [(PRUNED, 512)]
    report = verify(Sources(trust=Trust(KEYS.verifiers, PREFIX), ledger=log.root))
    kinds = {finding.kind for of_log in report.logs for finding in of_log.findings}
    assert kinds <= {"malformed"}


@pytest.mark.parametrize(("behind", "left"), [(OLD, 256), (NEW, 0), (None, 0)])
def test_a_bundle_that_ends_strangely_hangs_on_what_follows(
    log: Log, behind: str | None, left: int
) -> None:
    """It goes where the next row, of the next bundle, would go; else it stays, as without one."""
    log.write(100, OLD)
    log.strange(60)
    if behind is not None:
        log.write(1, behind)
    plan = log.prune()
    assert plan.left == left
    assert log.bundles(1) == [not left]


def test_whole_bundles_of_strange_entries_block_nothing(log: Log) -> None:
    """Several bundles without any row go with the row behind them."""
    log.strange(600)
    log.write(200, OLD)
    log.write(1, NEW)
    assert log.prune().left == 768


def test_forged_announcements_stop_nothing(log: Log) -> None:
    """Rows of the kind ``audit.pruned`` that lack everything, and bytes that only begin so."""
    log.write(128, OLD)
    log.write(1, NEW)
    for payload in ({}, {"rows": 256}, {"rows": [], "root": {}, "note": 1}):
        document = {"kind": PRUNED, "meta": {}, "payload": payload, "schema": 1, "ts": NEW}
        log.put(json.dumps(document, separators=(",", ":")).encode())
    log.put(b'{"kind":"audit.pruned" and no more')
    assert log.prune().left == 256
    log.put(b'{"kind":"audit.pruned" and not sealed')
    assert log.prune().gone == 256
    found = Archive(log.folder, KEYS.verifiers).stored(TENANT)
    assert sum(b'"rows":256' in stored and b"note" in stored for _, stored in found) == 1


def test_a_crash_finds_its_announcement_among_strange_entries(log: Log) -> None:
    """What was announced before a crash is announced once, whatever stands beside it."""
    log.write(128, OLD)
    log.write(1, NEW)
    log.strange(3)
    seal(log.memory, log.root)
    pruner = Pruner(log.memory, log.folder, origin=PREFIX, keys=KEYS, seal=lambda: None)
    first = pruner._announce(pruner.plan(TENANT, BEFORE))
    log.strange(3, "more")
    assert pruner._announce(pruner.plan(TENANT, BEFORE)) == first
    assert log.prune().left == 256
    assert sum(b"audit.pruned" in stored for stored in raw(log.memory)) == 1


def row(**changes: Any) -> bytes:
    document = {"kind": "a.b", "meta": {}, "payload": {}, "schema": 1, "ts": OLD}
    return json.dumps({**document, **changes}).encode()


@pytest.mark.parametrize(
    "stored",
    [
        b"", b"\xff", b"[]", b"1", b"[" * 100_000, row(kind=1), row(kind="x"), row(payload=[]),
        row(meta=None), row(ts=None), row(ts=1), row(ts="soon"), row(ts="2026-01-01T00:00:00"),
    ],
)  # fmt: skip
def test_what_says_no_moment(stored: bytes) -> None:
    """Bytes that are no row, and rows whose time is none, or has no zone."""
    assert moment_of(stored) is None
    assert list(judged([stored, row(), row(ts=NEW), row()], BEFORE)) == [None, True]


def test_rows_of_open_invocations_may_not_go() -> None:
    """By their request_id; a row without one, or with one that is no text, is of none."""
    rows = [row(payload={"request_id": value}) for value in ("B", None, [], {})]
    assert list(judged([row(), *rows], BEFORE, {"A"})) == [True] * 5
    assert list(judged([row(), *rows], BEFORE, {"B"})) == [True]


@pytest.mark.parametrize(
    ("found", "count"),
    [([], 0), ([None], 0), ([True], 1), ([None, True], 2), ([True, None], 1), ([None] * 9, 0)],
)
def test_up_to_the_last_one_that_says_so(found: list[bool | None], count: int) -> None:
    """Entries that say nothing go only where one behind them goes."""
    assert may_go(found) == count
