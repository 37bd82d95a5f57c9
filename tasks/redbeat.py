"""Beat with the schedule in Redis, and several beats of which one sends (extra ``redbeat``).

As ``tasks.beat``, over celery-redbeat: its lock lets one beat send, and when that one dies another
takes over within ``redbeat_lock_timeout`` seconds. Name it in the settings, with the place of lock
and schedule, and a loop shorter than the lock::

    beat_scheduler = "tasks.redbeat:RedBeatSkillScheduler"
    redbeat_redis_url = "redis://127.0.0.1:6379/3"
    redbeat_lock_timeout = 30
    beat_max_loop_interval = 5
"""

from __future__ import annotations

from redbeat.schedulers import RedBeatScheduler, RedBeatSchedulerEntry

from tasks.beat import OnceOption, TickingScheduler


class RedBeatSkillEntry(OnceOption, RedBeatSchedulerEntry):
    """An entry that is kept in Redis, its ``once_per_tick`` among its options."""


class RedBeatSkillScheduler(TickingScheduler, RedBeatScheduler):
    """The scheduler of a skill host over celery-redbeat."""

    Entry = RedBeatSkillEntry
