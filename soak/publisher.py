"""The publisher, as a process: ``python -m soak.publisher HOST COUNT SECONDS SEED``.

Each kind of skill comes once before the mix begins. It publishes no faster than its pace, and no
further ahead of the worker than :data:`AHEAD`. The task ids stand in the file ``published``. When
all is published it says so and stays, for what it holds then is looked at as well.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, Final, TextIO

import redis

from chaos.load import Publisher
from chaos.place import DIRECTORY
from chaos.skills import QUEUE
from soak.load import MIX, TENANTS

BEGINS: Final = b"publishing"
DONE: Final = b"all is published"
IDS: Final = "published"
#: How many messages may wait, and how many calls pass between two looks at that.
AHEAD: Final = 500
CALLS: Final = 50
LOOK_SECONDS: Final = 0.05
#: On a slow machine the load may take so many times as long; then no more is published.
LONGEST: Final = 3.0


def main(host: str, count: str, seconds: str, seed: str) -> None:
    skills = import_module(host).skills
    broker: Any = redis.Redis.from_url(os.environ["CELERY_BROKER_URL"], socket_timeout=30)
    random = Random(f"{seed} load")  # noqa: S311 - nothing secret about it
    _say(BEGINS)
    with (Path(os.environ[DIRECTORY]) / IDS).open("w", encoding="utf-8") as ids:
        tell = _noting(ids, broker)
        for part in MIX:
            Publisher(skills, random, 1, 0, [part], TENANTS, tell).run(threading.Event())
        left = max(0, int(count) - len(MIX))
        with _at_most(float(seconds) * LONGEST + 60) as stop:
            Publisher(skills, random, left, float(seconds), MIX, TENANTS, tell).run(stop)
    _say(DONE)
    threading.Event().wait()


@contextmanager
def _at_most(seconds: float) -> Iterator[threading.Event]:
    """What is set when the time is over."""
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    try:
        yield stop
    finally:
        timer.cancel()


def _noting(ids: TextIO, broker: Any) -> Callable[[str], None]:
    """Writes ids down, and takes its time while too many messages wait."""
    calls = 0

    def note(task_id: str) -> None:
        nonlocal calls
        calls += 1
        ids.write(f"{task_id}\n")
        while calls % CALLS == 0 and broker.llen(QUEUE) > AHEAD:
            time.sleep(LOOK_SECONDS)

    return note


def _say(words: bytes) -> None:
    sys.stdout.buffer.write(words + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
