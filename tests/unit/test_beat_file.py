"""tasks/beat.py: when what was sent is in the schedule's file, whatever its size and the disk."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import schedule

from tasks.beat import WRITING, SkillScheduler

NAMES = [f"entry {number}" for number in range(4)]


@pytest.fixture
def app() -> Celery:
    """Four entries are due at once and then not for long; sending them does nothing."""
    app = Celery("beat", broker="memory://", set_as_current=False)
    app.task(name="test.plain", shared=False)(nothing)
    app.tasks["test.plain"].apply_async = lambda *_, **__: None
    app.conf.result_expires = None  # else beat has an entry of its own
    app.conf.beat_schedule = {
        name: {"task": "test.plain", "schedule": schedule(3600)} for name in NAMES
    }
    return app


def nothing() -> None:
    """A plain task."""


class Beat(SkillScheduler):
    """Its writing takes so long, by a clock of its own."""

    seconds = 0.0
    now = 0.0
    wrote = 0

    def clock(self) -> float:
        return self.now

    def sync(self) -> None:
        self.now += self.seconds
        self.wrote += 1
        super().sync()

    def send_all(self) -> float:
        """Tick until nothing is due; how long it wants to sleep then."""
        for entry in self.schedule.values():
            entry.last_run_at = entry.last_run_at.replace(year=2020)
        self._heap = None
        while not (seconds := self.tick()):
            pass
        return seconds

    def runs(self, folder: Path) -> list[int]:
        """How often each entry ran, as the file has it."""
        self.close()
        kept = SkillScheduler(self.app, schedule_filename=str(folder / "schedule"))
        return [kept.schedule[name].total_run_count for name in NAMES]


def beat(app: Any, folder: Path, seconds: float) -> Beat:
    made = Beat(app, schedule_filename=str(folder / "schedule"))
    made.seconds, made.wrote = seconds, 0
    return made


def test_a_small_file_is_written_after_each_tick(app: Celery, tmp_path: Path) -> None:
    """What was sent is there at once."""
    made = beat(app, tmp_path, 0)
    made.send_all()
    assert made.wrote == len(NAMES)


def test_a_large_file_takes_a_part_of_the_time(app: Celery, tmp_path: Path) -> None:
    """Ticks go on meanwhile; beat wakes up for the ones that are not in the file yet."""
    made = beat(app, tmp_path, 2)
    assert made.send_all() == pytest.approx(2 * (WRITING - 1))
    assert made.wrote == 1
    made.now += 2 * (WRITING - 1)
    for _ in range(2):
        assert made.tick() == made.max_interval
        assert made.wrote == 2
    assert made.runs(tmp_path) == [1] * len(NAMES)


def test_a_disk_that_fails_ends_no_beat(
    app: Celery, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ticks are sent, the log says so, and the file is written once it can be."""
    made = beat(app, tmp_path, 0)
    kept, made._store.dict = made._store.dict, Full(made._store.dict)
    with caplog.at_level(logging.ERROR, "audit"):
        made.send_all()
    assert "cannot be written" in caplog.text
    made._store.dict = kept
    made.send_all()
    assert made.runs(tmp_path) == [2] * len(NAMES)


class Full(dict[bytes, bytes]):
    """Takes nothing."""

    def __setitem__(self, *_: object) -> None:
        raise OSError(28, "No space left on device")

    def sync(self) -> None:
        """Nothing to write."""
