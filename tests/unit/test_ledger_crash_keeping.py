"""audit/ledger: wherever a prune, a rotation or a trim is cut off, the next run finishes it.

``LEDGER_CRASH_STEP`` in the environment says how many operations lie between two crashes (5);
with 1 each is one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from audit.ledger.claims import Trust
from audit.ledger.finding import Report, Verdict
from audit.ledger.folder import LedgerFolder
from audit.ledger.keys import LedgerKeys
from audit.ledger.pruning import Pruner
from audit.ledger.retention import HotRetention
from audit.ledger.sources import Sources
from audit.ledger.subject import Limits
from audit.ledger.verifier import verify
from audit.row import AuditRow
from audit.testing import InMemory
from tests.sealing import KEYS, OTHER, PREFIX, copy, log_of, raw, seal
from tests.support import TENANT, completed, make_identity, started
from tests.unit.test_ledger_crash import OPERATIONS, Death, Killed, Mortal

pytestmark = pytest.mark.usefixtures("no_flush")

OLD: Final = "2026-01-01T00:00:00.000000Z"
NEW: Final = "2026-03-01T00:00:00.000000Z"
STEP: Final = int(os.environ.get("LEDGER_CRASH_STEP", "5"))
BEFORE: Final = datetime(2026, 2, 1, tzinfo=UTC)
ROTATED: Final = KEYS.rotated()
#: What a crash between two writes is told as.
OF_A_CRASH: Final = ("since a crash", "broken off", "checkpoint is not there")


def write(memory: Any, pairs: int, ts: str, tenant_id: str = TENANT) -> None:
    for _ in range(pairs):
        identity = make_identity(tenant_id=tenant_id)
        memory.emit(started(identity, ts=ts))
        memory.emit(completed(identity, ts=ts))


def sealed(base: Path, pairs: int) -> InMemory:
    """Two tenants, one with so many invocations that are old; sealed in two rounds."""
    memory = InMemory()
    write(memory, 3, OLD, OTHER)
    write(memory, pairs, OLD)
    seal(memory, base)
    write(memory, 2, NEW)
    write(memory, 2, NEW, OTHER)
    seal(memory, base)
    return memory


def copied(memory: InMemory) -> InMemory:
    """The same rows at the same positions, sealed alike."""
    other = InMemory()
    for row in memory._rows:
        other.emit(AuditRow(kind=row.kind, ts=row.ts, payload=row.payload, meta=row.meta))
    other._sealed |= memory._sealed
    other._sealed_positions |= memory._sealed_positions
    return other


def prune(memory: Any, root: Path) -> None:
    pruner = Pruner(
        memory, LedgerFolder(root), origin=PREFIX, keys=KEYS,
        seal=lambda: seal(memory, root), pause=lambda seconds: None,
    )  # fmt: skip
    for tenant_id in (TENANT, OTHER):
        pruner.prune(pruner.plan(tenant_id, BEFORE))


def trim(memory: Any, root: Path) -> None:
    now = datetime(2026, 3, 2, tzinfo=UTC)
    hot = HotRetention(memory, LedgerFolder(root), seconds=3600, now=lambda: now)
    assert hot.trim().faults == {}


def trim_and_prune(memory: Any, root: Path) -> None:
    trim(memory, root)
    prune(memory, root)


def rotate(memory: Any, root: Path) -> None:
    assert seal(memory, root, load_keys=lambda: ROTATED).faults == {}


def checked(memory: InMemory | None, root: Path) -> Report:
    limits = Limits(open_for=1e12, unsealed_for=1e12)
    trust = Trust(ROTATED.verifiers, PREFIX)
    return verify(
        Sources(
            trust=trust, memory=memory, ledger=root, secret=KEYS.secret, limits=limits,
            pause=lambda seconds: None,
        )
    )  # fmt: skip


def die(death: Death, act: Callable[[Any, Path], None], memory: InMemory, root: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        for name in OPERATIONS:
            patched.setattr(os, name, death.wrap(getattr(os, name)))
        try:
            act(Mortal(memory, death), root)
        except Killed:
            assert death.struck


@pytest.mark.parametrize(
    ("act", "keys", "pairs", "least"),
    [
        (prune, KEYS, 130, 50),
        (trim, KEYS, 20, 4),
        (trim_and_prune, KEYS, 130, 50),
        (rotate, ROTATED, 4, 50),
    ],
)
def test_a_crash_anywhere_is_finished_by_the_next_run(
    act: Callable[[Any, Path], None],
    keys: LedgerKeys,
    pairs: int,
    least: int,
    tmp_path: Path,
) -> None:
    """At any operation on the disk and every call of the memory: until the next run verify names
    a crash at most; then the ledger is right, beside the memory and by itself, what had to go is
    gone, and sealing goes on."""
    memory = sealed(tmp_path / "base", pairs)
    whole, undisturbed = copied(memory), tmp_path / "undisturbed"
    copy(tmp_path / "base", undisturbed)
    act(whole, undisturbed)
    at = 0
    while True:
        mine, root, death = copied(memory), tmp_path / "at", Death(at)
        copy(tmp_path / "base", root)
        die(death, act, mine, root)
        if not death.struck:
            break
        found = list(checked(mine, root).findings())
        assert all(any(text in f.text for text in OF_A_CRASH) for f in found), found
        act(mine, root)
        assert bundles(root) == bundles(undisturbed)
        assert len(raw(mine)) <= len(raw(whole))
        write(mine, 1, NEW)
        assert seal(mine, root, load_keys=lambda: keys).faults == {}
        assert checked(mine if at % 2 else None, root).verdict is Verdict.RIGHT
        shutil.rmtree(root)
        at += 1 if act is trim else STEP
    assert at >= least


def bundles(root: Path) -> list[bool]:
    """Whether the full bundles of both tenants are there."""
    return [
        (root / log_of(tenant_id) / "tile" / "entries" / "000").exists()
        for tenant_id in (TENANT, OTHER)
    ]
