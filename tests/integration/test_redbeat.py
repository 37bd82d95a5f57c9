"""Beats over celery-redbeat: one sends, and when it is killed another takes over."""

from __future__ import annotations

from pathlib import Path

from audit.row import COMPLETED
from tests.integration.beats import Beat, ask_duplicates, beats, ticks
from tests.integration.stack import Stack, running_stack
from tests.support import wait_until

HOLDS = "beat: Acquired lock"


def redbeat(stack: Stack, name: str) -> Beat:
    return Beat(
        stack,
        name,
        "slower",
        "plain",
        beat_scheduler="tasks.redbeat:RedBeatSkillScheduler",
        redbeat_redis_url=stack.server.url_for(3),
        redbeat_redis_options={},
        redbeat_lock_timeout=2,
        beat_max_loop_interval=1,
    )


def test_when_the_holder_is_killed_the_other_goes_on(tmp_path: Path) -> None:
    """Every tick runs once at most, before and after; which one was due is known to both."""
    with running_stack(tmp_path) as stack:
        stack.worker("solo", 1)
        with beats(redbeat(stack, "one"), redbeat(stack, "other")) as pair:

            def holders() -> list[Beat]:
                return [beat for beat in pair if HOLDS in beat.text()]

            wait_until(holders, 30)
            wait_until(lambda: len(ticks(stack, "slower", COMPLETED)) >= 3, 30)
            (holder,) = holders()
            holder.kill()
            before = len(ticks(stack, "slower"))
            wait_until(lambda: len(holders()) == 2, 30)
            wait_until(lambda: len(ticks(stack, "slower", COMPLETED)) >= before + 3, 30)
        dues = [row.meta["due"] for row in ticks(stack, "slower")]
        assert dues == sorted(set(dues))
        assert ask_duplicates(stack) == (0, [])
        assert ask_duplicates(stack, "--json") == (0, [])


def test_an_entry_that_could_not_be_audited_stops_it_too(tmp_path: Path) -> None:
    """As with the default scheduler, before anything is written to the schedule."""
    with running_stack(tmp_path) as stack:
        conf = {
            "beat_scheduler": "tasks.redbeat:RedBeatSkillScheduler",
            "redbeat_redis_url": stack.server.url_for(3),
        }
        with beats(Beat(stack, "refused", "nobody", **conf)) as (beat,):
            assert beat.process.wait(30) != 0
            assert "beat entry 'nobody'" in beat.text()
