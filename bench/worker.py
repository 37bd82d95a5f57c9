"""A worker of one variant, as a process: ``python -m bench.worker NAME SIDE PLACE``.

Each of its processes answers the signal :data:`COLLECT` with one line, once it has collected its
garbage.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import Any, Final

from celery import signals

from bench.launched import end_with_launcher
from bench.place import LIVE, Place
from bench.sides import make_side

#: Has a process of the worker collect its garbage and say so.
COLLECT: Final = signal.SIGUSR2

#: Celery's defaults, but for the talk among workers that do not know of each other.
ARGUMENTS: Final = (
    "worker",
    "--pool=prefork",
    f"--queues={LIVE}",
    "--loglevel=WARNING",
    "--without-gossip",
    "--without-mingle",
    "--without-heartbeat",
)


def main(name: str, side_name: str, place: str) -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # Standard output is for answers; what Celery prints belongs into the log.
    where = Place.from_json(place)
    side = make_side(side_name, where)

    def collect(*_: Any) -> None:
        gc.collect()
        os.write(answers, b'"collected"\n')

    def on_init(**_: Any) -> None:
        signal.signal(COLLECT, collect)
        side.set_up()

    signal.signal(COLLECT, collect)

    signals.worker_process_init.connect(on_init, weak=False)
    end_with_launcher()
    own = (f"--concurrency={where.children}", f"--hostname={name}@bench", *side.options)
    side.app.worker_main([*ARGUMENTS, *own])


if __name__ == "__main__":
    main(*sys.argv[1:])
