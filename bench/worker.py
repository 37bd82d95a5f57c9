"""A worker of one variant, as a process: ``python -m bench.worker NAME SIDE PLACE``.

Each of its processes answers the signal :data:`COLLECT` with one line, once it has collected its
garbage.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from typing import Any, Final

from celery import signals

from bench.place import LIVE, Place
from bench.sides import make_side

#: Seconds between the polite and the other end of a worker whose launcher is gone.
PATIENCE: Final = 10.0

#: Has a process of the worker collect its garbage and say so.
COLLECT: Final = signal.SIGUSR2

#: Celery's defaults, but for the talk among workers that do not know of each other.
ARGUMENTS: Final = (
    "worker",
    "--pool=prefork",
    "--concurrency=2",
    f"--queues={LIVE}",
    "--loglevel=WARNING",
    "--without-gossip",
    "--without-mingle",
    "--without-heartbeat",
)


def main(name: str, side_name: str, place: str) -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # Standard output is for answers; what Celery prints belongs into the log.
    side = make_side(side_name, Place.from_json(place))

    def collect(*_: Any) -> None:
        gc.collect()
        os.write(answers, b'"collected"\n')

    def on_init(**_: Any) -> None:
        signal.signal(COLLECT, collect)
        side.set_up()

    signal.signal(COLLECT, collect)

    signals.worker_process_init.connect(on_init, weak=False)
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    side.app.worker_main([*ARGUMENTS, f"--hostname={name}@bench"])


def _end_with_launcher() -> None:
    """Standard input is a pipe that the launcher never writes to: its end is the launcher's."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
