"""The app that a test's beat runs; ``BEAT_ENTRIES`` says with which entries, in JSON."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.schedules import crontab

from audit import InvocationContext
from tests.integration.worker_app import app

TENANT = "88888888-8888-4888-8888-888888888888"
HEADERS = {"headers": InvocationContext("scheduler@1", TENANT).headers()}


class EverySecond(crontab):  # type: ignore[misc]
    """A crontab that is due at each full second, where Celery's own are at full minutes."""

    def remaining_estimate(self, last_run_at: datetime, ffwd: Any = None) -> timedelta:
        last = self.maybe_make_aware(last_run_at).astimezone(UTC)
        due = last.replace(microsecond=0) + timedelta(seconds=1)
        return due - self.maybe_make_aware(self.now()).astimezone(UTC)


ENTRIES: dict[str, dict[str, Any]] = {
    "every second": {
        "task": "test.echo", "schedule": EverySecond(), "args": [1], "options": HEADERS
    },
    "once": {
        "task": "test.effect", "schedule": EverySecond(), "args": ["once"], "options": HEADERS,
        "once_per_tick": True,
    },
    "interval": {"task": "test.echo", "schedule": 0.5, "args": [1], "options": HEADERS},
    "slower": {"task": "test.echo", "schedule": 1.0, "args": [1], "options": HEADERS},
    "plain": {"task": "test.plain", "schedule": 0.5, "args": [1]},
    "nobody": {"task": "test.effect", "schedule": 0.5, "args": ["nobody"]},
    "once in a while": {
        "task": "test.effect", "schedule": 0.5, "args": ["never"], "options": HEADERS,
        "once_per_tick": True,
    },
}  # fmt: skip

app.conf.beat_schedule = {
    name: ENTRIES[name] for name in json.loads(os.environ.get("BEAT_ENTRIES", "[]"))
}
