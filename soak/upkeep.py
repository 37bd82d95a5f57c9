"""What each process under test does beside its work: collects garbage, and ends with its launcher.

A body that fails leaves cycles of some 0.1 MB behind, with bare Celery too, and Python lets many of
them come together before it collects. Collected by count and clock, they do not look like growth.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Any, Final

from celery import signals, states

from chaos import leash
from soak import leaks

#: A child collects after so many tasks, and so many that failed: in an outage every one does. Every
#: other process after so many seconds.
TASKS: Final = 100
FAILURES: Final = 10
SECONDS: Final = 3.0

_tasks = _failures = 0


def begin() -> None:
    """Called once by the module that a process under test starts from, before anything forks."""
    signals.task_postrun.connect(_after_task, weak=False)
    threading.Thread(target=_collect, daemon=True).start()
    signals.worker_ready.connect(_say_so, weak=False)
    leaks.open_up()
    leash.follow()


def _say_so(**_: Any) -> None:
    """What Celery tells a log that takes every task as well."""
    os.write(2, b"worker ready.\n")


def _after_task(state: str | None = None, **_: Any) -> None:
    global _tasks, _failures
    _tasks += 1
    _failures += state != states.SUCCESS
    if _tasks >= TASKS or _failures >= FAILURES:
        _tasks = _failures = 0
        gc.collect()


def _collect() -> None:
    while True:
        time.sleep(SECONDS)
        gc.collect()
