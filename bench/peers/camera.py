"""Celery whose workers send events, and a camera that keeps start and end of each task.

The camera, ``python -m bench.peers.camera PLACE``, takes a picture every second, Celery's default,
and adds what has ended to a stream: the least that one can do with it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import redis
from celery.events.snapshot import Polaroid
from celery.states import READY_STATES

from bench.launched import end_with_launcher
from bench.place import SEEN, Place
from bench.sides import Side, bare


def make(place: Place) -> Side:
    return replace(bare.make(place), options=("--task-events",))


class Camera(Polaroid):  # type: ignore[misc]
    """Stores what ended since the last picture."""

    clear_after = True
    stream: Any

    def on_shutter(self, state: Any) -> None:
        pipeline = self.stream.pipeline(transaction=False)
        for uuid, task in state.tasks.items():
            if task.state in READY_STATES:
                row = {"id": uuid, "started": task.started or "", "ended": task.timestamp}
                pipeline.xadd(SEEN, row)
        pipeline.execute()


def main(place: Place) -> None:
    end_with_launcher()
    app = bare.make(place).app
    Camera.stream = redis.Redis.from_url(place.memory)
    state = app.events.State()
    with Camera(state, app=app), app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": state.event})
        print("true", flush=True)
        receiver.capture(limit=None)


if __name__ == "__main__":
    main(Place.from_json(sys.argv[1]))
