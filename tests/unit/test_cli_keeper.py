"""`audit.cli_keeper`: what `keep` and `reconcile` tell, and how they end."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from audit import cli_keeper
from audit.cli import audit
from audit.cli_keeper import signals_to_end
from audit.keeper import ROLE, Keeper
from audit.reconciler import Sweep
from audit.row import COMPLETED
from audit.spool import Spool
from audit.testing import FakeClock, InMemory
from tests.support import completed, make_identity, started

ULID = r"[0-7][0-9A-HJKMNP-TV-Z]{25}"
MOMENT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> InMemory:
    memory = InMemory()
    monkeypatch.setattr("audit.terminal.open_memory", lambda url, *, timeout: memory)
    monkeypatch.setenv("AUDIT_SPOOL_DIR", str(tmp_path))
    monkeypatch.setenv("AUDIT_LEASE_SECONDS", "0.06")
    # A clock that goes by looks, however busy the machine is.
    ticking = functools.partial(Keeper, clock=FakeClock(step=0.002))
    monkeypatch.setattr(cli_keeper, "Keeper", ticking)
    return memory


class After(threading.Event):
    """Set once so many rounds were waited for; does something in each of the pauses."""

    def __init__(self, rounds: int, do: Callable[[], None]) -> None:
        super().__init__()
        self._left = rounds
        self._do = do

    def wait(self, timeout: float | None = None) -> bool:
        self._left -= 1
        self._do()
        if self._left <= 0:
            self.set()
        return super().wait(timeout)


def end_after(
    monkeypatch: pytest.MonkeyPatch, rounds: int, do: Callable[[], None] = lambda: None
) -> None:
    @contextmanager
    def stop() -> Iterator[threading.Event]:
        yield After(rounds, do)

    monkeypatch.setattr(cli_keeper, "signals_to_end", stop)


def run(*args: str) -> Result:
    obj: Any = SimpleNamespace(app=SimpleNamespace(conf={}), no_color=False)
    return CliRunner().invoke(audit, args, obj=obj)


def spool(memory: InMemory, tmp_path: Path, count: int) -> None:
    for _ in range(count):
        identity = make_identity()
        memory.emit(started(identity))
        Spool(tmp_path, memory.name).keep(completed(identity))


# --- keep -----------------------------------------------------------------------------------------


def test_keep_tells_that_it_leads_what_it_replays_and_what_it_closes(
    memory: InMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line each, with the moment; rounds that changed nothing have none."""
    spool(memory, tmp_path, 3)
    gone = [make_identity(worker="gone") for _ in range(2)]
    for identity in gone:
        memory.emit(started(identity))
    end_after(monkeypatch, 12)
    result = run("keep")
    assert result.exit_code == 0, result.output
    leads, replayed, closed = result.stdout.splitlines()
    assert re.fullmatch(f"{MOMENT} keeper {ULID} leads", leads)
    assert re.fullmatch(f"{MOMENT} spooled rows that reached the memory: 3", replayed)
    ids = " ".join(identity.request_id for identity in gone)
    assert re.fullmatch(f"{MOMENT} abandoned invocations closed: {ids}", closed)
    assert not memory.is_led(ROLE)


def test_keep_tells_in_json(
    memory: InMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One object a line, each with its moment and event."""
    spool(memory, tmp_path, 1)
    gone = make_identity(worker="gone")
    memory.emit(started(gone))
    end_after(monkeypatch, 12)
    result = run("keep", "--json")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["event"] for event in events] == ["leads", "replayed", "closed"]
    assert all(re.fullmatch(MOMENT, event["ts"]) for event in events)
    assert re.fullmatch(ULID, events[0]["keeper"])
    assert events[1]["rows"] == 1
    assert events[2]["request_ids"] == [gone.request_id]


def test_keep_tells_that_another_leads_and_when_it_takes_over(
    memory: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once each."""
    memory.lead(ROLE, "another", 3600)
    end_after(monkeypatch, 4, lambda: memory.give_up(ROLE, "another"))
    lines = [line.partition(" ")[2] for line in run("keep").stdout.splitlines()]
    assert lines[0] == "another keeper leads"
    assert re.fullmatch(f"keeper {ULID} leads", lines[1])
    assert len(lines) == 2


def test_keep_waits_for_a_memory_that_is_out_of_reach(
    memory: InMemory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends well when it is told to, and the log has the outage."""
    memory.down = True
    end_after(monkeypatch, 3)
    result = run("keep")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "the keeper waits for the memory" in caplog.text


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_sets_the_event_and_handlers_are_put_back(signum: signal.Signals) -> None:
    """Both of them end a keeper between two rounds, and nothing of it is left afterwards."""
    before = signal.getsignal(signum)
    with signals_to_end() as stop:
        os.kill(os.getpid(), signum)
        assert stop.wait(30)
    assert signal.getsignal(signum) is before


# --- reconcile ------------------------------------------------------------------------------------


def test_reconcile_prints_the_rows_it_wrote(memory: InMemory) -> None:
    """With --json the very bytes that are stored."""
    memory.hold_lease("alive", 60)
    gone = make_identity(worker="gone")
    for identity in (gone, make_identity(worker="alive")):
        memory.emit(started(identity))
    result = run("reconcile", "--json")
    (row,) = memory.rows(kind=COMPLETED)
    assert (result.exit_code, result.stdout_bytes) == (0, row.to_bytes() + b"\n")
    assert row.request_id == gone.request_id


def test_reconcile_prints_a_table(memory: InMemory) -> None:
    """As `list` does."""
    gone = make_identity(worker="gone")
    memory.emit(started(gone))
    result = run("reconcile")
    titles, line = (text.split("\t") for text in result.stdout.splitlines())
    assert line[titles.index("REQUEST")] == gone.request_id
    assert result.exit_code == 0


def test_reconcile_with_nothing_to_close_is_fine(memory: InMemory) -> None:
    """Nothing is printed, and that is no bad news."""
    result = run("reconcile", "--json")
    assert (result.exit_code, result.output) == (0, "")


def test_reconcile_says_whom_it_could_not_judge(
    memory: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose lease ran out at the end: on standard error, exit 0."""
    sweep = Sweep(running=1, oldest_seconds=3.0, suspects=1)
    monkeypatch.setattr(Keeper, "reconcile", lambda keeper: sweep)
    result = run("reconcile", "--json")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "silent, but not for long enough: 1; run it again" in result.stderr


def test_reconcile_with_the_memory_out_of_reach_is_bad_news(memory: InMemory) -> None:
    """Exit 1 and a text, no traceback."""
    memory.down = True
    result = run("reconcile")
    assert (result.exit_code, result.stdout, result.stderr) == (
        1,
        "",
        "Error: the memory is down\n",
    )


@pytest.mark.parametrize("name", ["keep", "reconcile"])
def test_the_examples_in_the_help_run(
    memory: InMemory, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each does what it says without complaint."""
    end_after(monkeypatch, 1)
    examples = re.findall(r"^ +celery -A tasks audit (.+)$", run(name, "--help").stdout, re.M)
    assert examples
    for example in examples:
        result = run(*example.split())
        assert (result.exit_code, result.stderr) == (0, "")
