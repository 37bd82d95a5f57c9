"""audit/ledger/tenant_sealer.py: no row is sealed twice behind a forged mark of a trim.

Whoever can write to memory and folder can forge the mark and the positions, and not the leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from audit.errors import LedgerDamagedError
from audit.ledger.sealer import SealRound
from audit.memory.base import Entry, order_of
from audit.testing import InMemory
from tests.sealing import Rows, contents, files, log_of, raw, row_of, seal
from tests.support import TENANT, make_identity, refused

pytestmark = pytest.mark.usefixtures("no_flush")

LOG = log_of(TENANT)


class Forged(Rows):
    """Rows whose memory can be made to hold some of them only."""

    kept: Callable[[int], bool] = staticmethod(lambda number: True)

    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        start = order_of(after) if after else (0, 0)
        found = [e for e in super().entries(tenant_id, None, 10**6) if order_of(e.position) > start]
        return [e for e in found if self.kept(order_of(e.position)[0])][:limit]


def forge(memory: Forged, root: Path, last: str, mark: str) -> None:
    """The position of the last row in memory and folder, the lines before it, and the mark."""
    size = int((root / LOG / "checkpoint").read_text().splitlines()[1])
    path = max((root / LOG / "positions").rglob("*.p/*"), key=lambda p: (p.parent, int(p.name)))
    width, (major, minor) = int(path.name), order_of(last)
    lines = [f"{major}-{minor - width + 1 + at}" for at in range(width)]
    path.write_text("".join(f"{line}\n" for line in lines))
    assert size % 256 == width
    memory._sealed_positions[TENANT] = last
    memory._trimmed[TENANT] = mark


@pytest.fixture
def memory(tmp_path: Path) -> Forged:
    """600 sealed rows."""
    memory = Forged()
    memory.counts[TENANT] = 600
    seal(memory, tmp_path)
    return memory


@pytest.mark.parametrize("waiting", [0, 3])
@pytest.mark.parametrize(
    ("last", "mark", "kept", "fault"),
    [
        ("599-400", "599-401", lambda n: True, "still has"),  # as if the last row were elsewhere
        ("599-400", "599-401", lambda n: n >= 600, "sealed already"),
        ("0-400", "0-401", lambda n: True, "sealed already"),  # the whole log
        ("0-400", "0-401", lambda n: n == 7 or n > 600, "sealed already"),  # any row
        ("0-400", "0-401", lambda n: n == 300 or n > 600, "sealed already"),
        ("255-400", "255-401", lambda n: n >= 256, "sealed already"),
        ("599-400", "700-0", lambda n: n >= 600, "still has"),
    ],
)
def test_a_forged_mark_has_nothing_sealed_twice(
    last: str, mark: str, kept: Callable[[int], bool], fault: str, waiting: int,
    memory: Forged, tmp_path: Path, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Whichever sealed row comes next, wherever in the log it is: an alarm, and nothing is sealed,
    of the rows that wait behind it neither."""
    forge(memory, tmp_path, last, mark)
    memory.counts[TENANT] += waiting
    memory.kept = kept  # type: ignore[method-assign]
    before, note = files(tmp_path / LOG), memory.sealed(TENANT)
    did = seal(memory, tmp_path)
    assert (did.rows, list(did.faults)) == (0, [LOG])
    assert isinstance(did.faults[LOG], LedgerDamagedError)
    assert fault in str(did.faults[LOG])
    assert (files(tmp_path / LOG), memory.sealed(TENANT)) == (before, note)
    (alarm,) = (record for record in caplog.records if "severity" in record.__dict__)
    assert alarm.__dict__["severity"] == "sev-1"


def test_a_new_row_in_front_hides_no_sealed_one(memory: Forged, tmp_path: Path) -> None:
    """All rows that the next checkpoint would cover are looked at."""
    forge(memory, tmp_path, "0-400", "0-401")
    row = memory.entries
    new = Entry("0-500", b"a new row")

    def with_new(tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        front = [new] if after is None or order_of(after) < (0, 500) else []
        return [*front, *row(tenant_id, after, limit)][:limit]

    memory.entries = with_new  # type: ignore[method-assign]
    did = seal(memory, tmp_path)
    assert (did.rows, type(did.faults[LOG])) == (0, LedgerDamagedError)


def test_a_tile_that_is_gone_is_damage_where_the_mark_is_to_be_believed(
    memory: Forged, tmp_path: Path
) -> None:
    """What cannot be compared is not sealed on."""
    memory.kept = lambda n: n > 600  # type: ignore[method-assign]
    memory._trimmed[TENANT] = "600-1"
    memory.counts[TENANT] = 603
    tile = tmp_path / LOG / "tile" / "0" / "000"
    held = tile.read_bytes()
    tile.unlink()
    assert isinstance(seal(memory, tmp_path).faults[LOG], LedgerDamagedError)
    tile.write_bytes(held)
    assert seal(memory, tmp_path) == SealRound(rows=3, logs=1, waiting=0, faults={})
    sealed = contents(memory, tmp_path, TENANT)["rows"]
    assert sealed == [row_of(TENANT, n) for n in range(1, 604)]


@pytest.mark.parametrize("trimmed", [1, 3, 5, 6])
def test_a_memory_that_was_trimmed_is_sealed_on(trimmed: int, tmp_path: Path) -> None:
    """In part or as a whole, with rows that wait and without, time and again."""
    memory = InMemory()
    for _ in range(6):
        memory.emit(refused(make_identity()))
    seal(memory, tmp_path)
    rows = raw(memory)
    memory.trim(TENANT, f"{trimmed}-1")
    for _ in range(3):
        assert seal(memory, tmp_path).faults == {}
        memory.emit(refused(make_identity()))
        rows += raw(memory)[-1:]
        assert seal(memory, tmp_path).faults == {}
        assert contents(memory, tmp_path, TENANT)["rows"] == rows
        memory.trim(TENANT, "99-0")
