"""The skills of a run and the settings of their host, for those who run and who call them.

Importing this makes no host: ``chaos.app`` is the one that workers find.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from chaos import journal
from chaos.place import DIRECTORY
from tasks import SkillHost
from tasks.caller import REQUEST_ID_HEADER

QUEUE: Final = "chaos"
#: Skills whose bodies run long enough to be revoked in the middle.
SLOW: Final = frozenset({"chaos.slow", "chaos.slow-late", "chaos.soft", "chaos.hard"})

SETTINGS: Final[dict[str, Any]] = {
    "accept_content": ["json"],
    "broker_connection_retry_on_startup": True,
    # What a dead worker held comes back within seconds, not hours.
    "broker_transport_options": {
        "visibility_timeout": 10,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
    "task_default_queue": QUEUE,
    "worker_max_tasks_per_child": 200,
    "worker_prefetch_multiplier": 1,
}


def begin(task: Any) -> None:
    """The effect: written before a body does anything else."""
    request = task.request
    path = Path(os.environ[DIRECTORY]) / "journal"
    journal.write(path, str(request.get(REQUEST_ID_HEADER)), str(request.id), task.name)


def make_app(**settings: Any) -> SkillHost:
    """A host without skills; its addresses come from the environment, or from here."""
    app = SkillHost("chaos", set_as_current=True)
    app.conf.update({**SETTINGS, **settings})
    return app


def declare(app: SkillHost) -> SimpleNamespace:
    """Declare the skills in ``app``; they come back by name."""

    @app.skill("chaos.instant", version="1.0.0", bind=True, retry_when_refused=True)
    def instant(self: Any, x: int) -> int:
        begin(self)
        return x

    @app.skill("chaos.short", version="1.0.0", bind=True, retry_when_refused=True)
    def short(self: Any, seconds: float) -> float:
        begin(self)
        time.sleep(seconds)
        return seconds

    @app.skill("chaos.late", version="1.0.0", bind=True, acks_late=True, retry_when_refused=True)
    def late(self: Any, seconds: float) -> float:
        begin(self)
        time.sleep(seconds)
        return seconds

    @app.skill("chaos.slow", version="1.0.0", bind=True)
    def slow(self: Any, seconds: float) -> float:
        begin(self)
        time.sleep(seconds)
        return seconds

    @app.skill(
        "chaos.slow-late",
        version="1.0.0",
        bind=True,
        acks_late=True,
        reject_on_worker_lost=True,
    )
    def slow_late(self: Any, seconds: float) -> float:
        begin(self)
        time.sleep(seconds)
        return seconds

    @app.skill("chaos.fail", version="1.0.0", bind=True)
    def fail(self: Any, text: str) -> None:
        begin(self)
        raise ValueError(f"cannot use {text}")

    @app.skill("chaos.retry", version="1.0.0", bind=True, max_retries=1)
    def retry(self: Any, x: int) -> int:
        begin(self)
        if self.request.retries == 0:
            raise self.retry(countdown=0, exc=ValueError("once more"))
        return x

    @app.skill("chaos.nested", version="1.0.0", bind=True)
    def nested(self: Any, x: int) -> str:
        begin(self)
        return str(instant.delay(x).id)

    @app.skill("chaos.large", version="1.0.0", bind=True)
    def large(self: Any, items: int) -> list[str]:
        begin(self)
        return [f"finding {number}" for number in range(items)]

    @app.skill("chaos.soft", version="1.0.0", bind=True, soft_time_limit=1)
    def soft(self: Any, seconds: float) -> float:
        begin(self)
        time.sleep(seconds)
        return seconds

    @app.skill("chaos.hard", version="1.0.0", bind=True, time_limit=1)
    def hard(self: Any, seconds: float) -> float:
        begin(self)
        time.sleep(seconds)
        return seconds

    return SimpleNamespace(**{name: task for name, task in locals().items() if name != "app"})
