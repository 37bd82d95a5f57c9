"""The bench's arithmetic and tables, and that bare Celery is measured bare."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.__main__ import main
from bench.crew import Variant, turns
from bench.emit import Emits
from bench.emit import report as emit_report
from bench.ledger import Ledger, Sealing, Verifying
from bench.ledger import report as ledger_report
from bench.memory import Sample
from bench.memory import report as memory_report
from bench.place import Place
from bench.privacy import SIZES, Added
from bench.privacy import report as privacy_report
from bench.privacy_steps import make_alert, quiet_logs
from bench.processes import BenchError, clean_environment, within
from bench.report import micros, table
from bench.stats import lowest, median_interval, paired_ratios, percentile, slope

ROOT = Path(__file__).parents[2]

VALUES = st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=200)


@pytest.mark.parametrize(
    ("percent", "expected"), [(1, 1), (50, 50), (95, 95), (99, 99), (99.5, 100), (100, 100)]
)
def test_a_percentile_is_the_value_of_the_nearest_rank(percent: float, expected: int) -> None:
    """Of 1 to 100, in any order, the 95th percentile is 95."""
    assert percentile(list(range(100, 0, -1)), percent) == expected


@given(VALUES, st.floats(min_value=0.1, max_value=100))
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(
    values: list[float], percent: float
) -> None:
    """It is one of the values, and at least that share of all is no larger."""
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100 - 1e-9


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], 0), ([1.0], 101)])
def test_a_percentile_of_nothing_or_beyond_all_is_refused(
    values: list[float], percent: float
) -> None:
    """No figure is made up where there is none."""
    with pytest.raises(ValueError, match="at least one value"):
        percentile(values, percent)


def test_ratios_pair_the_rounds() -> None:
    """A round that was slow for both has the ratio of a round that was fast for both."""
    assert paired_ratios([50, 100], [100, 200]) == [0.5, 0.5]


def test_ratios_need_equally_many_rounds() -> None:
    """A round without its base is an error, not a figure left out."""
    with pytest.raises(ValueError, match="longer"):
        paired_ratios([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("count", "low", "high", "confidence"),
    [(6, 1, 6, 0.969), (10, 2, 9, 0.979), (20, 6, 15, 0.959), (30, 10, 21, 0.957)],
)
def test_the_interval_of_a_median(count: int, low: int, high: int, confidence: float) -> None:
    """Its ends are the order statistics that the tables of the sign test name."""
    found = median_interval(list(range(count, 0, -1)))
    assert found is not None
    assert (found.low, found.high) == (low, high)
    assert found.confidence == pytest.approx(confidence, abs=0.001)


@pytest.mark.parametrize("count", range(6))
def test_too_few_values_give_no_interval(count: int) -> None:
    """Up to five values never give 95 %."""
    assert median_interval([1.0] * count) is None


def test_the_lowest_keep_their_order() -> None:
    """The quietest rounds, as they came; all of them where there are no more."""
    assert lowest([0.9, 0.1, 0.5, 0.0], 2) == [1, 3]
    assert lowest([0.9, 0.1], 5) == [0, 1]


def test_slope_is_growth_per_unit() -> None:
    """Least squares, and no growth where there is but one point."""
    assert slope([0, 1, 2, 3], [5, 7, 9, 11]) == pytest.approx(2)
    assert slope([1], [5]) == 0


def test_a_table_is_markdown_and_aligned() -> None:
    """Words stand left and figures right, every line equally long."""
    assert table(("what", "us"), [["emit", "1,200"], ["append", "90"]]).splitlines() == [
        "| what   |    us |",
        "| ------ | ----: |",
        "| emit   | 1,200 |",
        "| append |    90 |",
    ]


def test_a_table_without_rows_is_its_head() -> None:
    """The head alone is a table, too."""
    assert table(("what", "us"), []).splitlines() == ["| what | us |", "| ---- | -: |"]


def test_microseconds_are_whole() -> None:
    """Seconds are told in microseconds, thousands set apart."""
    assert micros(0.0012345) == "1,234"


@pytest.mark.parametrize(("seconds", "word"), [(0.004, "within the budget"), (0.06, "OVER")])
def test_emits_are_held_against_their_budget(seconds: float, word: str) -> None:
    """The p95 of the memory stands against 50 ms; the floor's does not."""
    floor = Emits(way="floor", fsync="always", writers=1, took=[9.0], seconds=9.0)
    emits = Emits(way="memory", fsync="always", writers=8, took=[seconds] * 20, seconds=1.0)
    last = emit_report([floor, emits]).splitlines()[-1]
    assert "50.00 ms" in last
    assert word in last


@pytest.mark.parametrize(("added", "word"), [(24e-6, "under the aim"), (26e-6, "OVER the aim")])
def test_what_privacy_adds_is_held_against_its_aim(added: float, word: str) -> None:
    """Added, not taken in all; as often as a success goes the way; with small arguments only."""

    def step(kib: int, times: int, with_it: float) -> Added:
        return Added(what="x", kib=kib, times=times, without=[1.0] * 3, with_it=[1 + with_it] * 3)

    steps = [step(1, 1, added), step(1, 3, added), step(1, 0, 1.0), step(64, 1, 1.0)]
    last = privacy_report(steps).splitlines()[-1]
    assert f"add {4e6 * added:.1f} us in all" in last
    assert last.endswith(f"{word}.")


def test_a_step_is_told_by_the_differences_of_its_turns() -> None:
    """A turn that was slow both ways adds what a fast one adds; the quartiles stand beside."""
    added = Added(what="x", kib=1, times=1, without=[1.0, 5.0, 2.0], with_it=[1.5, 5.5, 2.75])
    assert added.added == [0.5, 0.5, 0.75]
    cells = [cell.strip() for cell in privacy_report([added]).splitlines()[2].split("|")]
    assert cells[4:7] == ["2,750,000.0", "500,000.0", "500,000.0 to 750,000.0"]


@pytest.mark.parametrize(
    ("seconds", "growth", "verified", "delay", "beside", "words"),
    [
        (4.9, 0, 1.9, 2.9, 1.14, ("reached", ": flat", "reached", "within", "within")),
        (5.1, 9 * 2**20, 2.1, 3.1, 1.16, ("MISSED", "NOT flat", "MISSED", "OVER", "OVER")),
    ],
)
def test_the_ledger_is_held_against_its_aims(
    seconds: float,
    growth: int,
    verified: float,
    delay: float,
    beside: float,
    words: tuple[str, ...],
) -> None:
    """Rates, growth after the warm-up, the longest delay, and what emits notice beside it."""
    sealing = Sealing(rows=100_000, seconds=seconds, held=[1, 9, 50, 50 + growth])
    told = ledger_report(
        Ledger(
            sealing=sealing,
            verifying=[
                Verifying(what=what, rows=100_000, seconds=took)
                for what, took in (("files and memory", verified), ("files alone", 1.0))
            ],
            delays=[0.1, delay],
            without=[1.0, 2.0, 4.0],
            beside=[beside, 2 * beside, 4 * beside],
        )
    ).split("\n\n")
    assert words[0] in told[1]
    assert words[1] in told[1]
    assert words[2] in told[3]
    assert words[3] in told[5]
    assert words[4] in told[7]


@pytest.mark.parametrize("kib", SIZES)
def test_arguments_have_the_size_they_are_said_to_have(kib: int) -> None:
    """As JSON, within a twentieth."""
    assert len(json.dumps(make_alert(kib))) == pytest.approx(kib * 1024, rel=0.05)


def test_logs_are_as_before_after_they_were_quiet() -> None:
    """Level, handlers and record factory of the process, whatever happened inside."""

    def logs() -> tuple[object, ...]:
        root = logging.getLogger()
        return root.level, list(root.handlers), logging.getLogRecordFactory()

    before = logs()
    with suppress(BenchError), quiet_logs():
        logging.setLogRecordFactory(lambda *a, **k: logging.LogRecord(*a, **k))
        assert logs() != before
        raise BenchError("x")
    assert logs() == before


@pytest.mark.parametrize(
    ("growth", "word"), [(900_000, "flat (under 1 MiB)"), (2_000_000, "NOT flat"), (-5, "flat")]
)
def test_growth_is_judged_after_warm_up(growth: int, word: str) -> None:
    """What comes before the fifth sample does not count; what comes after it does."""
    held = [10**6, 3 * 10**6, 5 * 10**6, 7 * 10**6] + [10**7] * 15 + [10**7 + growth]
    samples = [
        Sample(invocations=1000 * number, uss=uss, rss=uss, descriptors=9, connections=5)
        for number, uss in enumerate(held, start=1)
    ]
    table_of, verdict = memory_report({Variant.AUDITED: samples}).split("\n\n")
    assert [line.split("|")[2].strip() for line in table_of.splitlines()[2:]] == ["5,000", "20,000"]
    assert word in verdict


def test_each_round_begins_with_another_variant() -> None:
    """In as many rounds as there are variants, each has been in every place."""
    rounds = [turns(3, number) for number in range(3)]
    assert rounds == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]


def test_a_place_arrives_as_it_was_sent() -> None:
    """What the bench hands to its processes comes out the same."""
    place = Place(broker="redis://b/0", results="redis://r/1", memory="redis://m/2", queue="live")
    assert Place.from_json(place.to_json()) == place


def test_the_users_own_settings_stay_out() -> None:
    """Nobody's AUDIT_*, CELERY_* or OTEL_* variables reach the processes under test."""
    environ = {"PATH": "/bin", "AUDIT_MEMORY_URL": "x", "CELERY_BROKER_URL": "x", "OTEL_X": "x"}
    assert clean_environment(environ) == {"PATH": "/bin"}


def test_a_step_that_takes_too_long_is_an_error() -> None:
    """The wait ends, with the name of what was waited for."""
    with (
        pytest.raises(BenchError, match=r"a long sleep took more than 0\.01 s"),
        within(0.01, "a long sleep"),
    ):
        time.sleep(20)


@pytest.mark.parametrize(
    ("side", "unknown"),
    [
        ("sides.bare", ("audit", "tasks", "opentelemetry")),
        ("sides.traced", ("audit", "tasks")),
        # redis-py, which the camera speaks to its stream with, looks for OpenTelemetry itself.
        ("peers.sqlalchemy_results, bench.peers.camera", ("audit", "tasks")),
    ],
)
def test_what_is_measured_bare_is_bare(side: str, unknown: tuple[str, ...]) -> None:
    """The processes of bare Celery never import the audit nor OpenTelemetry; a peer's no audit."""
    code = (
        f"import sys; import bench.worker, bench.publisher, bench.{side};"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "celery" in loaded
    assert set(unknown) & set(loaded) == set()


@pytest.mark.parametrize(
    "arguments", [["--rounds", "0"], ["--tasks", "10001"], ["--tasks", "x"], ["--only", "luck"]]
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage ends with status 2 before anything is started."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err
