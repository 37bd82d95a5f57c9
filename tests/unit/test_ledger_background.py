"""audit/ledger/background.py: work now and then, in a thread, never twice at once."""

from __future__ import annotations

import logging
import threading

import pytest

from audit.ledger.background import Background
from audit.testing import FakeClock
from tests.support import wait_until


def running(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_work_begins_when_it_is_time_and_not_before() -> None:
    """At once, and then not until so many seconds have gone by since the last beginning."""
    clock, done = FakeClock(), []
    background = Background("now and then", lambda: done.append(1), 10, clock)
    for count in (1, 2, 3):
        assert background.poke() is True
        wait_until(lambda: not running("now and then"))
        clock.pass_by(9.9)
        assert background.poke() is False
        assert len(done) == count
        clock.pass_by(0.2)


def test_work_that_is_under_way_is_not_begun_again() -> None:
    """However long it takes; and no process waits for it at its end."""
    clock, go, begun = FakeClock(), threading.Event(), threading.Event()
    daemon: list[bool] = []

    def work() -> None:
        daemon.append(threading.current_thread().daemon)
        begun.set()
        assert go.wait(20)

    background = Background("long work", work, 10, clock)
    assert background.poke() is True
    assert begun.wait(20)
    clock.pass_by(100)
    assert background.poke() is False
    go.set()
    wait_until(background.poke)
    wait_until(lambda: not running("long work"))
    assert daemon == [True, True]


def test_work_that_fails_is_told_and_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever it raises is in the log, and nothing else ends."""
    clock = FakeClock()
    background = Background("odd work", lambda: 1 / 0, 10, clock)
    for count in (1, 2):
        assert background.poke() is True
        wait_until(lambda: not running("odd work"))
        assert [record.levelno for record in caplog.records] == [logging.ERROR] * count
        clock.pass_by(11)
