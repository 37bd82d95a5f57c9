"""The bench beside others: whom it chooses, what a failure costs, what its tables say."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import crew, shape, worker
from bench.__main__ import main
from bench.crew import Variant
from bench.peers import environment, race
from bench.peers.environment import lock, pinned, python_for
from bench.peers.figures import report
from bench.peers.peer import PEERS, Peer, records
from bench.peers.race import Absent, Entry, chosen, measure
from bench.place import Place
from bench.processes import BenchError
from bench.sides import Side
from bench.team import Batch, Cpu

TRACK, CAMERA = PEERS[:2]
INSTALLED = [peer for peer in PEERS if peer.package is not None]


def batch(seconds: float, count: int = 100) -> Batch:
    cpu = Cpu(main=0.1, children=0.2, server=0.1, elsewhere=0.5 * seconds)
    return Batch(count=count, seconds=seconds, publish=[0.001], cpu=cpu)


def cells(printed: str, label: str) -> list[str]:
    (line,) = [line for line in printed.splitlines() if line.startswith(f"| {label} ")]
    return [cell.strip() for cell in line.strip("|").split("|")]


# Whom.


def test_bare_celery_always_takes_part() -> None:
    """Whoever is named, the figure that all are compared with is there, and first."""
    assert chosen(["camera"]) == [Variant.BARE, CAMERA]
    assert chosen(["camera", "audited", "bare"]) == [Variant.BARE, Variant.AUDITED, CAMERA]


def test_without_names_all_take_part() -> None:
    """Every variant of ours is among them without being entered anywhere else."""
    assert chosen([]) == [*Variant, *PEERS]
    assert len({*race.NAMES}) == len(Variant) + len(PEERS)


def test_an_unknown_peer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is started for a name that is nobody's."""
    with pytest.raises(SystemExit) as ended:
        main(["--only", "peers", "--peers", "camera,nobody"])
    assert ended.value.code == 2
    assert "knows no nobody" in capsys.readouterr().err


# What a failure costs.


class FakeTeam:
    def __init__(self, failures: Sequence[str]) -> None:
        self.failures, self.ended = list(failures), False

    def batch(self, count: int) -> Batch:
        if self.failures and (failure := self.failures.pop(0)):
            raise BenchError(failure)
        return batch(1.0, count)

    def signal_end(self) -> None:
        self.ended = True


@pytest.fixture
def hired(monkeypatch: pytest.MonkeyPatch) -> dict[Any, FakeTeam]:
    """Teams that do nothing; a test may put others in."""
    teams: dict[Any, FakeTeam] = {}
    monkeypatch.setattr(race, "Hiring", nullcontext)
    monkeypatch.setattr(race, "_hired", lambda one, hiring: teams.setdefault(one, FakeTeam([])))
    return teams


def test_a_peer_that_fails_is_left_out_with_its_reason(
    hired: dict[Any, FakeTeam], capsys: pytest.CaptureFixture[str]
) -> None:
    """In the middle, too: no half of its rounds is a figure, and the others go on."""
    hired[TRACK] = FakeTeam(["", "", "it ended with status 1:\n/a/path of the log"])
    bare, track, camera = measure(3, 10, [Variant.BARE, TRACK, CAMERA])
    assert (track.reason, track.batches) == ("it ended with status 1", [])
    assert hired[TRACK].ended
    assert len(bare.batches) == len(camera.batches) == 3
    assert "/a/path of the log" in capsys.readouterr().err
    printed = report([bare, track, camera])
    assert cells(printed, TRACK.label)[3:] == ["(it ended with status 1)", "", "", ""]
    assert "/a/path" not in printed


def test_a_variant_of_ours_that_fails_is_an_error(hired: dict[Any, FakeTeam]) -> None:
    """A lost row is no reason to leave anything out."""
    hired[Variant.AUDITED] = FakeTeam(["", "1 rows instead of 20"])
    with pytest.raises(BenchError, match="1 rows instead of 20"):
        measure(1, 10, [Variant.BARE, Variant.AUDITED])


def test_what_a_machine_cannot_have_is_left_out(
    hired: dict[Any, FakeTeam], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory in PostgreSQL where there is none is a reason, and no error."""

    def absent(one: Any, hiring: Any) -> FakeTeam:
        if one is Variant.AUDITED_POSTGRES:
            raise Absent("this machine has no PostgreSQL")
        return FakeTeam([])

    monkeypatch.setattr(race, "_hired", absent)
    _, entry = measure(1, 10, [Variant.BARE, Variant.AUDITED_POSTGRES])
    assert entry.reason == "this machine has no PostgreSQL"


# Environments.


@pytest.mark.parametrize("peer", INSTALLED, ids=lambda peer: peer.name)
def test_what_is_installed_is_pinned_by_hash(peer: Peer) -> None:
    """The peer and all that it needs have a version and a hash, and no address."""
    text = lock(peer.name).read_text(encoding="utf-8")
    assert peer.package is not None
    assert re.fullmatch(r"\d+(\.\d+)+", pinned(text, peer.package))
    for requirement in re.split(r"\n(?=\S)", re.sub(r"^ +#.*\n", "", text, flags=re.M)):
        assert re.match(r"[a-z0-9_.\[\],-]+==\S+", requirement), requirement
        assert "--hash=sha256:" in requirement, requirement
    assert "://" not in text


def test_a_lock_without_the_peer_is_an_error() -> None:
    """No version is made up, and a longer name is another package."""
    with pytest.raises(BenchError, match="no version of dbos"):
        pinned("dbos-extra==1.0 \\\nnodbos==2.0\n", "dbos")


def test_peers_of_celery_measure_the_celery_of_the_project() -> None:
    """What stands beside django-celery-results is what all others run on."""
    theirs = lock("django_results").read_text(encoding="utf-8")
    ours = (Path(__file__).parents[2] / "requirements/dev.lock").read_text(encoding="utf-8")
    for package in ("celery", "kombu", "billiard", "redis", "hiredis"):
        assert pinned(theirs, package) == pinned(ours, package)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and nothing is really installed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(environment.venv, "create", lambda folder, **_: folder.mkdir(parents=True))
    return tmp_path


def test_an_environment_is_made_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the user's cache, and kept there; one that was not finished is made anew."""
    ran: list[list[str]] = []
    monkeypatch.setattr(environment.subprocess, "run", lambda command, **_: ran.append(command))
    python = python_for("dbos_queue")
    assert python_for("dbos_queue") == python
    assert Path(python).is_relative_to(cache)
    assert len(ran) == 1
    assert {"--require-hashes", str(lock("dbos_queue"))} <= {*ran[0]}
    (Path(python).parents[1] / environment.STAMP).unlink()
    python_for("dbos_queue")
    assert len(ran) == 2


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (subprocess.CalledProcessError(7, ["/a/path"]), "not installed: pip ended with status 7"),
        (subprocess.TimeoutExpired("/a/path", 600), "not installed within 600 s"),
        (FileNotFoundError("/a/path"), "not installed: FileNotFoundError"),
    ],
    ids=["refused", "too slow", "no pip"],
)
def test_what_cannot_be_installed_says_why(
    cache: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    """The reason goes into a document, so it names no path and no address."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(environment.subprocess, "run", fail)
    with pytest.raises(BenchError) as caught:
        python_for("dbos_queue")
    assert str(caught.value) == told
    with pytest.raises(BenchError):
        python_for("dbos_queue")


# Shapes.


def test_a_shape_is_so_many_workers_with_so_many_children(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each worker has a name of its own and the same place; one publisher feeds them all."""
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(crew, "Program", lambda *arguments, log: started.append(arguments))
    place = Place(broker="redis://b/0", results="redis://b/1", memory="redis://b/2", children=4)
    crew.Crew(
        Variant.BARE, place, "bare-7", tmp_path / "log", workers=2, sql=crew.Databases(tmp_path)
    )
    assert started == [
        ("bench.worker", "bare-7-0", "sides.bare", place.to_json()),
        ("bench.worker", "bare-7-1", "sides.bare", place.to_json()),
        ("bench.publisher", "sides.bare", place.to_json()),
    ]


@pytest.mark.parametrize("children", [1, 4])
def test_a_worker_has_the_children_of_its_place(
    children: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And after them what its side asks for, which so has the last word."""
    asked: list[list[str]] = []
    app = SimpleNamespace(worker_main=asked.append)
    side = Side(app=app, noop=None, fail=None, options=("--task-events",))
    monkeypatch.setattr(worker, "make_side", lambda *_: side)
    monkeypatch.setattr(worker, "end_with_launcher", lambda: None)
    monkeypatch.setattr(worker.os, "dup2", lambda *_: None)
    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr(worker.signals.worker_process_init, "connect", lambda *_, **__: None)
    place = Place(broker="", results="", memory="", children=children)
    worker.main("w", "sides.bare", place.to_json())
    (arguments,) = asked
    assert arguments[-3:] == [f"--concurrency={children}", "--hostname=w@bench", "--task-events"]


# Tables.


def test_the_table_of_peers() -> None:
    """Ratios pair the rounds; each row says what is on record of start and end."""
    bare = Entry(contestant=Variant.BARE, batches=[batch(s) for s in (1, 2, 1, 2, 1, 2)])
    half = Entry(contestant=TRACK, batches=[batch(s) for s in (2, 4, 2, 4, 2, 4)])
    missing = Entry(contestant=PEERS[4], reason="not installed within 600 s")
    printed = report([bare, half, missing])
    rates = [str(cell) for cell in cells(printed, Variant.BARE.label)[3:]]
    assert rates == ["75", "1", "", "4,000"]
    assert cells(printed, TRACK.label)[1:] == [
        "no: the end overwrites the start", "prefork, 2 children", "38", "0.50", "0.50 to 0.50",
        "4,000",
    ]  # fmt: skip
    assert "(not installed within 600 s)" in printed
    assert "6 rounds. Other processes kept 0.50 cores busy during half" in printed


@pytest.mark.parametrize("variant", Variant)
def test_what_is_audited_has_start_and_end_on_record(variant: Variant) -> None:
    """Of ours it is the audit that the word yes is for."""
    assert (records(variant) == "yes") == variant.audited


def test_the_table_of_shapes() -> None:
    """Both grow by the same factor from one child to two: the same shape."""
    shapes = {
        shape.ALONE: {Variant.BARE: [batch(1)], Variant.AUDITED: [batch(1.25)]},
        shape.Shape(1, 2): {Variant.BARE: [batch(0.5)], Variant.AUDITED: [batch(0.625)]},
        shape.Shape(4, 1): {Variant.BARE: [batch(0.5)], Variant.AUDITED: [batch(1.25)]},
    }
    printed = shape.report(shapes)
    assert cells(printed, "1 worker, 1 child")[1:4] == ["100", "80", "0.80"]
    assert cells(printed, "1 worker, 2 children")[1:] == [
        "200", "160", "0.80", "0.80 to 0.80", "2.00", "2.00",
    ]  # fmt: skip
    assert cells(printed, "4 workers, 1 child")[5:] == ["2.00", "1.00"]
