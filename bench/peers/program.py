"""A peer's process: ``python -m bench.peers.program prepare|work|publish MODULE PLACE``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from bench.launched import end_with_launcher, serve
from bench.place import Place


def main(what: str, module: str, place: str) -> None:
    peer, where = import_module(f"bench.peers.{module}"), Place.from_json(place)
    if what == "prepare":
        peer.prepare(where)
        print("true", flush=True)
    elif what == "work":
        end_with_launcher()
        peer.work(where)
    else:
        publish = peer.publisher(where)
        serve({"publish": lambda count, fail_every: timed(publish, count)})


def timed(publish: Callable[[int], Any], count: int) -> list[float]:
    """Publish so many tasks; the seconds that each took."""
    took = []
    for number in range(count):
        began = time.perf_counter()
        publish(number)
        took.append(time.perf_counter() - began)
    return took


if __name__ == "__main__":
    main(*sys.argv[1:])
