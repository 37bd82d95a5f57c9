"""A publisher of one variant, as a process: ``python -m bench.publisher SIDE PLACE``.

It takes one JSON object a line, ``{"do": NAME, ...}``, answers each with one, and ends with its
input.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from bench.launched import serve
from bench.place import Place
from bench.sides import Side, make_side

#: Seconds that one result may take.
RESULT_SECONDS: Final = 60.0


class Publisher:
    """Publishes, and keeps the results it has not yet collected."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._waiting: list[Any] = []

    def publish(self, count: int, fail_every: int) -> list[float]:
        """Publish tasks; every so many, if any, is one that fails. Seconds of each ``.delay()``."""
        took = []
        with self._side.caller():
            for number in range(count):
                fails = fail_every and number % fail_every == 0
                task = self._side.fail if fails else self._side.noop
                began = time.perf_counter()
                result = task.delay(number)
                took.append(time.perf_counter() - began)
                self._waiting.append(result)
        return took

    def collect(self) -> dict[str, int]:
        """Take in every result that is still to come: how many ended in which state."""
        states: Counter[str] = Counter()
        for result in self._waiting:
            result.get(timeout=RESULT_SECONDS, propagate=False)
            states[result.state] += 1
        self._waiting.clear()
        return dict(states)

    def roundtrip(self, count: int) -> list[float]:
        """Publish and wait, one task in flight. Seconds of each ``.delay().get()``."""
        took = []
        with self._side.caller():
            for number in range(count):
                began = time.perf_counter()
                answer = self._side.noop.delay(number).get(timeout=RESULT_SECONDS)
                took.append(time.perf_counter() - began)
                assert answer == number
        return took


def main(side_name: str, place: str) -> None:
    side = make_side(side_name, Place.from_json(place))
    side.set_up()
    publisher = Publisher(side)
    orders: dict[str, Callable[..., Any]] = {
        "publish": publisher.publish,
        "collect": publisher.collect,
        "roundtrip": publisher.roundtrip,
    }
    serve(orders)


if __name__ == "__main__":
    main(*sys.argv[1:])
