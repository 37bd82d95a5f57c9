"""The demo's application: skills of its own beside the sample ones, on the host of ``tasks``.

Any application is made like this: ``from tasks import app, skill``, then
``celery -A its.module worker``. Each skill here shows an ending or an origin that no sample skill
has; none of them is of any other use.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from audit import InvocationContext
from tasks import app, skill
from tasks.skills.queue_depth import queue_depth

#: A queue of its own: a broker that is shared with another host keeps their messages apart.
QUEUE: Final = "demo"

#: A schedule has no caller to inherit from, so it is one itself.
SCHEDULER: Final = InvocationContext("demo-scheduler@1.0.0", "7b8c1d9e-4c56-4f0a-9a53-0d6f2a1e8b47")

app.conf.update(
    task_default_queue=QUEUE,
    beat_schedule={
        "queue-depth": {
            "task": queue_depth.name,
            "schedule": 2.0,
            "kwargs": {"queues": [QUEUE]},
            "options": {"expires": 10.0, "headers": SCHEDULER.headers()},
        }
    },
)


__all__ = ["QUEUE", "SCHEDULER", "app", "fail", "nested", "overrun", "panic", "slow"]


class PanicException(BaseException):
    """What a panic in Rust becomes in Python, spelled as PyO3 does: it is no ``Exception``."""


@skill("demo.fail", version="1.0.0")
def fail(iban: str) -> None:
    """Ends as ``error``. Its text repeats an argument, which the row then masks."""
    raise ValueError(f"account {iban} is closed")


@skill("demo.panic", version="1.0.0")
def panic(reading: int) -> None:
    """Ends as ``panic``: what leaves the body is no ``Exception``."""
    raise PanicException(f"index out of bounds: {reading}")


@skill("demo.overrun", version="1.0.0", soft_time_limit=1, time_limit=15)
def overrun(seconds: float) -> None:
    """Ends as ``timeout``: the soft time limit strikes long before the body is through."""
    time.sleep(seconds)


@skill("demo.slow", version="1.0.0", soft_time_limit=60, time_limit=70)
def slow(release: str) -> None:
    """Runs until a file exists, so that there is surely somebody who is running."""
    while not Path(release).exists():
        time.sleep(0.05)


@skill("demo.nested", version="1.0.0")
def nested(queue: str) -> str:
    """Calls another skill, which inherits persona, tenant and trace and names this one as parent.

    Returns:
        The task id of the inner call. Its result is not waited for: a worker that waits for a
        worker may wait for itself.
    """
    return str(queue_depth.delay(queues=[queue]).id)
