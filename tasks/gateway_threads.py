"""Blocking calls beside the event loop: in so many threads, and no more in line than fit.

Publishing and asking the result backend block, and a broker that hangs blocks them for long. What
is guaranteed: the event loop never waits for one of them; a call that finds the line full is
refused at once; one that was given up before a thread took it never runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class BusyError(Exception):
    """The line is full, or no thread took the call in time: it did not run, and never will."""


class UnansweredError(Exception):
    """The call runs and did not come back in time; what came of it is unknown."""


class Threads:
    """A pool.

    Args:
        size: how many calls run at a time.
        line: how many may wait besides.
        seconds: how long a call may take, waiting included.
    """

    def __init__(self, size: int, line: int, seconds: float) -> None:
        self._executor = ThreadPoolExecutor(size, "gateway")
        self._places = threading.BoundedSemaphore(size + line)
        self._seconds = seconds

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What ``function`` returns; it runs in a copy of the caller's context.

        Raises:
            BusyError, UnansweredError: see there.
        """
        if not self._places.acquire(blocking=False):
            raise BusyError
        call = partial(copy_context().run, function, *args, **kwargs)
        try:
            future: Future[T] = self._executor.submit(call)
        except RuntimeError:  # it is being closed
            self._places.release()
            raise BusyError from None
        future.add_done_callback(self._left)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._seconds)
        except TimeoutError:
            if future.done() and not future.cancelled():
                raise  # the call's own
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the request itself is given up
                raise
            raise BusyError from None
        raise BusyError if future.cancelled() else UnansweredError

    def _left(self, _: Future[Any]) -> None:
        """Called when a call has ended, or was given up before it ran."""
        self._places.release()

    def close(self) -> None:
        """Take no more calls; those in line are given up."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class Waits:
    """So many requests may wait for a result at a time."""

    def __init__(self, most: int) -> None:
        self._free = most

    def __enter__(self) -> None:
        if self._free < 1:
            raise BusyError
        self._free -= 1

    def __exit__(self, *raised: object) -> None:
        self._free += 1
