"""audit/ledger/leftovers.py: a log that lost its checkpoint is damaged, and is not begun anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.errors import LedgerDamagedError
from audit.ledger.folder import META
from audit.memory.base import Entry
from tests.sealing import OTHER, Rows, begin_meta, contents, files, log_of, seal
from tests.support import TENANT

pytestmark = pytest.mark.usefixtures("no_flush")


def others(memory: Rows) -> None:
    """The memory's rows of TENANT are not those that were sealed."""
    entries = memory.entries
    memory.entries = lambda t, a, n: [  # type: ignore[method-assign]
        Entry(e.position, e.stored + b"!" * (t == TENANT)) for e in entries(t, a, n)
    ]


def fewer(memory: Rows) -> None:
    memory.counts[TENANT] = 3


@pytest.mark.parametrize("rows", [5, 300, 600])
@pytest.mark.parametrize("change", [others, fewer])
@pytest.mark.parametrize("trace", ["tile", "gathered"])
def test_a_log_whose_checkpoint_was_taken_away_is_damaged(
    rows: int, change: Callable[[Rows], None], trace: str, tmp_path: Path
) -> None:
    """In memory and folder, so that it looks new: what is left of it is never overwritten."""
    memory = Rows(**{OTHER: 1})
    memory.counts[TENANT] = rows
    seal(memory, tmp_path)
    log = tmp_path / log_of(TENANT)
    (log / "checkpoint").unlink()
    if trace == "tile":
        (log / "gathered").unlink()
    else:
        shutil.rmtree(log / "tile")
    del memory._sealed[TENANT], memory._sealed_positions[TENANT]
    change(memory)
    before = files(log)
    memory.counts[OTHER] += 1
    did = seal(memory, tmp_path)
    assert list(did.faults) == [log_of(TENANT)]
    assert isinstance(did.faults[log_of(TENANT)], LedgerDamagedError)
    assert (did.rows, files(log), memory.sealed(TENANT)) == (1, before, None)


def test_a_meta_log_whose_checkpoint_was_taken_away_is_damaged(tmp_path: Path) -> None:
    """Nothing is gathered from its beginning again; the tenants' logs go on."""
    memory = Rows(**{OTHER: 1})
    memory.counts[TENANT] = 1
    seal(memory, tmp_path)
    shutil.rmtree(tmp_path / META)
    del memory._sealed[META]
    memory.counts[TENANT] += 1
    did = seal(memory, tmp_path)
    assert (did.rows, list(did.faults)) == (1, [META])
    assert isinstance(did.faults[META], LedgerDamagedError)
    assert not (tmp_path / META).exists()
    assert memory.sealed(META) is None


def begun_of(directory: Path) -> bytes:
    """The first checkpoint of a meta log, of no entries."""
    fresh = Rows(**{OTHER: 1})
    begin_meta(fresh, directory / "fresh")
    note = fresh.sealed(META)
    shutil.rmtree(directory / "fresh")
    assert note is not None
    return note


def test_a_meta_log_that_has_a_log_twice_had_entries(tmp_path: Path) -> None:
    """So its tiles are no leftovers of a first round, although no hint is left, and they stay."""
    memory = Rows()
    for count in (1, 2):
        memory.counts[TENANT] = count
        seal(memory, tmp_path)
    (tmp_path / log_of(TENANT) / "gathered").unlink()
    memory._sealed[META] = begun = begun_of(tmp_path)
    (tmp_path / META / "checkpoint").write_bytes(begun)
    before = files(tmp_path / META)
    assert list(seal(memory, tmp_path).faults) == [META]
    assert files(tmp_path / META) == before


@pytest.mark.parametrize("rows", [5, 300, 600])
def test_leftovers_of_rows_that_the_memory_has_are_gone_on_from(rows: int, tmp_path: Path) -> None:
    """As a crash before the first checkpoint leaves them, whatever came behind them since."""
    memory = Rows()
    memory.counts[TENANT] = rows
    seal(memory, tmp_path)
    shutil.rmtree(tmp_path / META)
    for name in ("checkpoint", "gathered"):
        (tmp_path / log_of(TENANT) / name).unlink()
    memory._sealed.clear()
    memory._sealed_positions.clear()
    memory.counts[TENANT] = 700
    did = seal(memory, tmp_path)
    assert (did.rows, did.faults) == (700, {})
    assert len(contents(memory, tmp_path, TENANT)["rows"]) == 700
