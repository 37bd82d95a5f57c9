"""What the skills of one app share in one process: settings, memory, the worker's id."""

from __future__ import annotations

import math
import os
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

from audit.breaker import Breaker
from audit.invocation import new_request_id
from audit.keys import Key
from audit.memory import AuditMemory, open_memory
from audit.recorder import Recorder
from audit.settings import AuditSettings
from audit.spool import Spool
from tasks.coroutine import PerThread
from tasks.lease import Lease

#: Seconds an emit of the worker's main process may take; its event loop waits for it.
OUTSIDE_SECONDS: Final = 0.5


class SkillRuntime:
    """The shared things of one app.

    Nothing is read or opened before it is needed, so an app can be configured after it was made;
    the memory opens its connections anew in every process.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._memories = PerThread(self._open_memory)
        self._recorders = PerThread(self._make_recorder)
        self._breakers: dict[int, Breaker] = {}
        self._leases: dict[tuple[int, str], Lease] = {}
        self._worker: str | None = None
        self._others: dict[int, str] = {}

    @cached_property
    def settings(self) -> AuditSettings:
        return AuditSettings.read(self._app.conf, os.environ)

    def hash_key(self, tenant_id: str) -> Key | None:
        """The key of the tenant's hashes; ``None`` where they are plain SHA-256."""
        keys = self.settings.hash_keys
        return keys.first_for(tenant_id) if keys else None

    @property
    def memory(self) -> AuditMemory:
        return self._memories.get()

    @property
    def recorder(self) -> Recorder:
        """Puts the rows of this process on record."""
        return self._recorders.get()

    @cached_property
    def spool(self) -> Spool:
        """This host's spool for the memory."""
        return Spool(Path(self.settings.spool_dir), self.memory.name)

    @cached_property
    def outside(self) -> Recorder:
        """For endings that the worker's main process sees: its event loop must not wait long."""
        return Recorder(self._open_memory(OUTSIDE_SECONDS), self.spool)

    def hold_lease(self, holder: str) -> None:
        """Hold the lease of ``holder`` from the first call in this process on."""
        key = (os.getpid(), holder)
        if key not in self._leases:
            # With a short timeout: a direct caller's first call waits for it, beside its own emit.
            memory = self._open_memory(OUTSIDE_SECONDS)
            lease = Lease(memory, self.spool, holder, self.settings.lease_seconds)
            if self._leases.setdefault(key, lease) is lease:
                lease.hold()

    def _open_memory(self, at_most: float = math.inf) -> AuditMemory:
        timeout = min(self.settings.emit_timeout, at_most)
        return open_memory(self.settings.memory_url, timeout=timeout)

    def _make_recorder(self) -> Recorder:
        # One breaker a process: what one thread found out spares the others the timeout.
        breaker = self._breakers.setdefault(os.getpid(), Breaker())
        return Recorder(self.memory, self.spool, breaker)

    @property
    def worker_id(self) -> str:
        """The id of the worker that runs what is delivered; its pool children share it."""
        return self._worker if self._worker is not None else self.own_id

    @property
    def own_id(self) -> str:
        """The id of this very process, for what it calls directly or eagerly; it holds a lease.

        A pool child is no exception: when it dies, its main process reports the message it ran, and
        knows nothing of what its body had called besides.
        """
        pid = os.getpid()
        # setdefault: threads that come first at the same time must end up with one id.
        own = self._others.get(pid) or self._others.setdefault(pid, new_request_id())
        self.hold_lease(own)
        return own

    def boot_worker(self) -> None:
        """This process is a worker from now on; the pool children it forks share its id."""
        self._worker = new_request_id()


def runtime_of(app: Any) -> SkillRuntime:
    """The runtime of ``app``, made at the first call."""
    try:
        return cast(SkillRuntime, app.skill_runtime)
    except AttributeError:
        app.skill_runtime = SkillRuntime(app)
        return cast(SkillRuntime, app.skill_runtime)
