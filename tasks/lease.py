"""The lease of a process that starts invocations, renewed by a thread of its own.

A thread, because a timer of the worker starves while a solo worker runs a body. While the process
lives, its invocations are never abandoned; when it ends cleanly it gives the lease back, and when
it dies the lease runs out. The same thread replays what waits in this host's spool, so rows reach
the memory soon after an outage whether or not a keeper runs.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from audit import metrics
from audit.errors import AuditError, AuditMemoryError
from audit.memory import AuditMemory
from audit.reconciler import RENEWALS
from audit.spool import Spool

logger: Final = logging.getLogger("audit")

#: Seconds until the next try while the memory is out of reach.
RETRY_SECONDS: Final = 0.5
#: Seconds between two looks into the spool.
REPLAY_SECONDS: Final = 0.5


class Lease:
    """The lease of this process.

    Args:
        memory: where the lease is; of this thread's own, so that it never waits for an emit.
        spool: this host's spool.
        worker: whose lease it is.
        seconds: how long it lasts without being renewed.
    """

    def __init__(self, memory: AuditMemory, spool: Spool, worker: str, seconds: float) -> None:
        self._memory = memory
        self._spool = spool
        self._worker = worker
        self._seconds = seconds
        self._pid = os.getpid()
        self._stop = _native_event()
        self._next_renewal = 0.0

    def hold(self) -> None:
        """Take the lease now if the memory answers, and keep it from here on."""
        self._renew()
        _start_native_thread(self._run)
        atexit.register(self.give_back)

    def give_back(self) -> None:
        """A clean end: nothing of this process is running any more."""
        if self._pid != os.getpid() or self._stop.is_set():
            return
        self._stop.set()
        try:
            self._spool.replay(self._memory)
            if self._spool.empty:  # else a keeper might close what waits here for its ending
                self._memory.drop_lease(self._worker)
        except AuditError as error:
            logger.warning("the lease of %s runs out by itself: %s", self._worker, error)

    # --- inside -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(REPLAY_SECONDS):
            try:
                if time.monotonic() >= self._next_renewal:
                    self._renew()
                self._replay()
            except Exception:  # a thread that dies here would condemn what lives
                logger.exception("the lease thread goes on after an error")

    def _renew(self) -> None:
        try:
            self._memory.hold_lease(self._worker, self._seconds)
        except AuditMemoryError as error:
            logger.warning("the lease of %s could not be renewed: %s", self._worker, error)
            self._next_renewal = time.monotonic() + RETRY_SECONDS
        else:
            self._next_renewal = time.monotonic() + self._seconds / RENEWALS

    def _replay(self) -> None:
        waiting = self._spool.usage()
        metrics.spooled(waiting.rows, waiting.bytes)
        if not waiting.rows:
            return
        try:
            # A lease that is not renewed because rows are many would condemn what lives.
            replayed = self._spool.replay(
                self._memory, go_on=lambda: time.monotonic() < self._next_renewal
            )
        except AuditMemoryError:
            return  # the next look tries again
        if replayed.emitted:
            logger.warning("%d spooled rows reached the memory", replayed.emitted)


def _original(module: str, name: str) -> Any:
    """What gevent put something else in the place of: greenlets starve while a body computes."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        return monkey.get_original(module, name)
    return getattr(sys.modules[module], name)


def _native_event() -> Any:
    return _original("threading", "Event")()


def _start_native_thread(run: Callable[[], None]) -> None:
    if _original("threading", "Thread") is threading.Thread:
        threading.Thread(target=run, name="audit-lease", daemon=True).start()
    else:
        _original("_thread", "start_new_thread")(run, ())
