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

from celery import signals

from chaos import leash
from soak import leaks

#: A child collects after so many bodies, every other process after so many seconds.
BODIES: Final = 100
SECONDS: Final = 3.0

_bodies = 0


def begin() -> None:
    """Called once by the module that a process under test starts from, before anything forks."""
    signals.task_postrun.connect(_after_body, weak=False)
    threading.Thread(target=_collect, daemon=True).start()
    signals.worker_ready.connect(_say_so, weak=False)
    leaks.open_up()
    leash.follow()


def _say_so(**_: Any) -> None:
    """What Celery tells a log that takes every task as well."""
    os.write(2, b"worker ready.\n")


def _after_body(**_: Any) -> None:
    global _bodies
    _bodies += 1
    if _bodies % BODIES == 0:
        gc.collect()


def _collect() -> None:
    while True:
        time.sleep(SECONDS)
        gc.collect()
