"""Runs the coroutine of an ``async def`` skill to its end, whatever pool the worker has.

Where the thread already runs an event loop (an eager or direct call out of async code), and under
gevent (whose greenlets share one thread, and asyncio has one running loop per thread), the
coroutine gets a native thread of its own. Context variables and Celery's current request go along.

gevent binds a socket to the thread that opened it, so whatever holds connections is there once for
each thread that a coroutine was lent (:class:`PerThread`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import wraps
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from celery._state import _task_stack, get_current_task

T = TypeVar("T")


class PerThread(Generic[T]):
    """One ``T`` for the process, and under gevent one more for each thread it lends."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._own: T | None = None
        self._lent: WeakKeyDictionary[Any, T] = WeakKeyDictionary()

    def get(self) -> T:
        """The one of this thread, made at the first call."""
        if in_lent_thread():
            hub = sys.modules["gevent"].get_hub()
            if hub not in self._lent:
                self._lent[hub] = self._make()
            return self._lent[hub]
        if self._own is None:
            self._own = self._make()
        return self._own


def in_lent_thread() -> bool:
    """Whether gevent is at work, and this is not its main thread."""
    return _gevent_is_patched() and not sys.modules["gevent"].get_hub().main_hub


def synchronous(function: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function for an ``async def`` one, so that Celery's own wrappers see its errors.

    ``autoretry_for`` wraps a body in a function that knows nothing of coroutines.
    """

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return run_to_its_end(get_current_task(), function(*args, **kwargs))

    return run


def run_to_its_end(task: Any, body: Coroutine[Any, Any, Any]) -> Any:
    """What ``body`` returns or raises."""
    in_native_thread = _native_thread_runner()
    if in_native_thread is None:
        return asyncio.run(body)
    context = copy_context()
    if task is None:  # the bare body, called outside any task
        return in_native_thread(lambda: context.run(asyncio.run, body))
    request = task.request_stack.top

    def run() -> Any:
        _task_stack.push(task)
        task.request_stack.push(request)
        try:
            return context.run(asyncio.run, body)
        finally:
            task.request_stack.pop()
            _task_stack.pop()

    return in_native_thread(run)


def _native_thread_runner() -> Callable[[Callable[[], Any]], Any] | None:
    """What runs a function in another native thread; ``None`` where this one will do."""
    if _gevent_is_patched():
        return _in_gevent_threadpool
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return None
    return _in_thread


def _gevent_is_patched() -> bool:
    """gevent patches before anything else runs, so it is loaded already or not in use."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def _in_gevent_threadpool(run: Callable[[], Any]) -> Any:
    outcome: list[tuple[Any, BaseException | None]] = []

    def kept() -> None:
        # gevent prints what a pool thread raises; the error belongs to the caller alone.
        try:
            outcome.append((run(), None))
        except BaseException as error:
            outcome.append((None, error))

    sys.modules["gevent"].get_hub().threadpool.apply(kept)
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


def _in_thread(run: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="skill") as executor:
        return executor.submit(run).result()
