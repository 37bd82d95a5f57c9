"""The bench of an emit beside a bare call: what its writers do, and what its report says."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from audit.memory import open_memory
from bench import stores
from bench.store_writer import answers, bare_sqlite, make_bare

MS = 0.001


def pair(emit: list[list[float]], bare: list[list[float]]) -> stores.Pair:
    return stores.Pair(store="sqlite", writers=8, took={"memory": emit, "bare": bare})


def test_a_round_is_compared_with_itself() -> None:
    """One slow round, slow for both ways, does not move the ratio."""
    found = pair([[2 * MS], [200 * MS], [2 * MS]], [[MS], [100 * MS], [MS]])
    assert stores.ratio(found, 50) == pytest.approx(2)


@pytest.mark.parametrize(("took", "word"), [(1.2, "within"), (1.4, "OVER")])
def test_the_report_says_where_the_aims_are_missed(took: float, word: str) -> None:
    """Every percentile is shown, and each aim judged."""
    crowd = stores.Crowd(writers=8, pace=50, took=[took * 5 * MS] * 100)
    measured = stores.Stores(pairs=[pair([[took * MS]], [[MS]])], crowds=[crowd])
    printed = stores.report(measured)
    assert f"at most 1.3 of a bare call: sqlite {word}." in printed
    cells = [" ".join(line.split()) for line in printed.splitlines()]
    assert any(cell.startswith("| sqlite, 8 writers, memory.emit | 1,") for cell in cells)
    assert f"it is {took * 5:.2f} ms: {'within' if took * 5 <= 6 else 'OVER'}." in printed


def test_a_writer_does_what_it_is_told_in_both_ways(tmp_path: Path) -> None:
    """As many calls as ordered, each timed, and the rows are there."""
    url = f"sqlite:///{tmp_path}/audit.db"
    make_bare("sqlite", url)
    memory = open_memory(url)
    orders = [json.dumps({"way": way, "count": 4, "pace": pace})
              for way, pace in (("bare", 0), ("memory", 1000))]  # fmt: skip
    said = answers(
        {"memory": memory.emit, "bare": bare_sqlite(url)},
        iter([orders[0], "go", orders[1], "go"]),
    )
    assert next(said) == "warm"
    before = len(list(memory.rows()))
    for _ in orders:
        assert next(said) == "ready"
        assert len(next(said)) == 4
    assert len(list(memory.rows())) - before == 4
    with sqlite3.connect(f"{tmp_path}/audit.db-bare") as connection:
        [(rows,)] = connection.execute("SELECT count(*) FROM bare").fetchall()
        [(equal,)] = connection.execute(
            "SELECT count(*) FROM bare WHERE hex(row) LIKE '7B%'"
        ).fetchall()
    assert rows == before + 4
    assert rows == equal
    memory.close()
