"""Real beats: ticks in rows, ticks that ran twice, and ticks that run once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from audit.row import COMPLETED, REFUSED, STARTED, AuditRow
from audit.schedule import Tick
from tests.integration.beat_app import TENANT
from tests.integration.beats import Beat, ask_duplicates, beats, ticks
from tests.integration.stack import Stack, caller, running_stack
from tests.support import wait_until


@pytest.fixture(scope="module")
def stack(tmp_path_factory: Any) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("beat")) as made:
        made.worker("prefork", 2)
        yield made


def of_tick(row: AuditRow) -> tuple[Any, Any]:
    return row.meta["schedule"], row.meta["due"]


def test_both_rows_name_the_schedule_and_its_due_time(stack: Stack) -> None:
    """The full second of a crontab, the computed time of an interval; never the time of sending."""
    with beats(Beat(stack, "one", "every second", "interval", "plain")):
        wait_until(lambda: len(ticks(stack, "every second", COMPLETED)) >= 2, 30)
        wait_until(lambda: len(ticks(stack, "interval", COMPLETED)) >= 2, 30)
    started = ticks(stack, "every second") + ticks(stack, "interval")
    by_id = {row.request_id: of_tick(row) for row in started}
    completed = ticks(stack, "every second", COMPLETED) + ticks(stack, "interval", COMPLETED)
    assert all(of_tick(row) == by_id[row.request_id] for row in completed)
    assert len({*by_id.values()}) == len(by_id)
    assert all(row.meta["due"].endswith(".000000Z") for row in ticks(stack, "every second"))
    assert all(row.meta["due"] < row.ts for row in started)
    one, two, *_ = (datetime.fromisoformat(row.meta["due"]) for row in ticks(stack, "interval"))
    assert two - one >= timedelta(seconds=0.5)


def test_two_beats_run_every_tick_twice_and_that_is_found(stack: Stack) -> None:
    """They agree on a crontab's due times; every tick that ran twice is listed, and no other."""
    begin = datetime.now(UTC).isoformat()
    with beats(Beat(stack, "left", "every second"), Beat(stack, "right", "every second")):

        def twice() -> list[Any]:
            count = Counter(of_tick(row) for row in stack.rows(tenant_id=TENANT, kind=STARTED))
            return [tick for tick, runs in count.items() if runs == 2]

        wait_until(lambda: len(twice()) >= 2, 30)
    status, lines = ask_duplicates(stack, "--tenant", TENANT, "--since", begin)
    assert status == 1
    titles, *found = (line.split("\t") for line in lines)
    assert titles[:3] == ["DUE", "SCHEDULE", "TASK"]
    assert Counter(due for due, *_ in found) == dict.fromkeys([due for _, due in twice()], 2)
    assert len({line[2] for line in found}) == len(found)


def test_once_per_tick_refuses_the_second_message(stack: Stack) -> None:
    """Of two beats one has its way at each tick; the other's message is on record, refused."""
    with beats(Beat(stack, "lefty", "once"), Beat(stack, "righty", "once")):
        wait_until(lambda: len(ticks(stack, "once", REFUSED)) >= 3, 30)
        wait_until(lambda: len(ticks(stack, "once", COMPLETED)) >= 3, 30)
    wait_until(lambda: not list(stack.memory.running(TENANT)), 20)
    started, refused = ticks(stack, "once"), ticks(stack, "once", REFUSED)
    assert len({of_tick(row) for row in started}) == len(started)
    assert {of_tick(row) for row in refused} <= {of_tick(row) for row in started}
    assert {row.payload["reason"] for row in refused} == {"tick_taken"}
    assert {row.payload["caller_persona"] for row in refused} == {"scheduler@1"}
    assert stack.journal().count("once") == len(started)


@pytest.mark.parametrize(("task", "runs"), [("retry", 3), ("poison", 3)])
def test_retries_and_redeliveries_of_the_first_run(stack: Stack, task: str, runs: int) -> None:
    """They have its task id: a tick that is taken is theirs, and they are no duplicates."""
    begin = datetime.now(UTC).isoformat()
    tick = Tick.at(task, datetime.now(UTC), once=True)
    with caller(TENANT):
        first = getattr(stack.skills, task).apply_async(
            (f"of a tick {task}",), headers=tick.headers()
        )
        wait_until(lambda: len(ticks(stack, task, COMPLETED)) == runs, 30)
        second = getattr(stack.skills, task).apply_async(("not run",), headers=tick.headers())
        wait_until(lambda: stack.rows(task_id=second.id, kind=REFUSED), 20)
    assert {row.meta["task_id"] for row in ticks(stack, task)} == {first.id}
    assert len(ticks(stack, task)) == runs
    assert not any("not run" in line for line in stack.journal())
    assert ask_duplicates(stack, "--since", begin) == (0, [])


def test_the_refused_message_has_an_error_of_the_callers(stack: Stack) -> None:
    """Whoever waits for it learns why; the error is none of the host's."""
    tick = Tick.at("waited for", datetime.now(UTC), once=True)
    with caller(TENANT):
        assert stack.skills.echo.apply_async((1,), headers=tick.headers()).get(timeout=20) == 1
        again = stack.skills.echo.apply_async((2,), headers=tick.headers())
        with pytest.raises(Exception, match="another message of this tick") as caught:
            again.get(timeout=20)
    assert type(caught.value).__name__ == "TickTakenError"


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("nobody", "no caller persona and tenant"),
        ("once in a while", "once_per_tick needs a crontab"),
    ],
)
def test_beat_does_not_start_with_an_entry_it_could_not_audit(
    stack: Stack, entry: str, what: str
) -> None:
    """It says which entry and why, ends, and has sent nothing, of its other entries neither."""
    before = len(stack.rows())
    with beats(Beat(stack, "refused", entry, "interval")) as (beat,):
        assert beat.process.wait(30) != 0
        assert f"beat entry {entry!r}" in beat.text()
        assert what in beat.text()
    assert len(stack.rows()) == before


def test_a_beat_that_was_killed_sends_no_tick_again(stack: Stack) -> None:
    """It goes on from the last tick that it sent, and not from when it last wrote its file."""
    begin = datetime.now(UTC).isoformat()
    with beats(Beat(stack, "killed", "every second")) as (first,):
        sent = len(ticks(stack, "every second"))
        wait_until(lambda: len(ticks(stack, "every second")) >= sent + 3, 30)
        wait_until(lambda: 0.5 < time.time() % 1 < 0.8)  # not in between sending and writing
        first.kill()
    sent = len(ticks(stack, "every second"))
    with beats(Beat(stack, "killed", "every second")):
        wait_until(lambda: len(ticks(stack, "every second")) >= sent + 3, 30)
    assert ask_duplicates(stack, "--tenant", TENANT, "--since", begin) == (0, [])
