"""What the skills of one app share in one process: settings, memory, the worker's id."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any, cast

from audit.invocation import new_request_id
from audit.memory import AuditMemory, open_memory
from audit.settings import AuditSettings
from tasks.coroutine import PerThread


class SkillRuntime:
    """The shared things of one app.

    Nothing is read or opened before it is needed, so an app can be configured after it was made;
    the memory opens its connections anew in every process.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._memories = PerThread(self._open_memory)
        self._worker: str | None = None
        self._others: dict[int, str] = {}

    @cached_property
    def settings(self) -> AuditSettings:
        return AuditSettings.read(self._app.conf, os.environ)

    @property
    def memory(self) -> AuditMemory:
        return self._memories.get()

    def _open_memory(self) -> AuditMemory:
        return open_memory(self.settings.memory_url, timeout=self.settings.emit_timeout)

    @property
    def worker_id(self) -> str:
        """The id of the process group that runs invocations.

        A worker and its pool children share one, made at boot. Any other process (direct and
        eager callers, also after a fork) has its own.
        """
        if self._worker is not None:
            return self._worker
        pid = os.getpid()
        # setdefault: threads that come first at the same time must end up with one id.
        return self._others.get(pid) or self._others.setdefault(pid, new_request_id())

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
