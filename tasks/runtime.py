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
        self._worker: tuple[int, str] | None = None
        self._is_worker = False

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
        if self._worker is None or not (self._is_worker or self._worker[0] == os.getpid()):
            self._worker = (os.getpid(), new_request_id())
        return self._worker[1]

    def boot_worker(self) -> None:
        """This process is a worker from now on; the pool children it forks share its id."""
        self._worker = (os.getpid(), new_request_id())
        self._is_worker = True


def runtime_of(app: Any) -> SkillRuntime:
    """The runtime of ``app``, made at the first call."""
    try:
        return cast(SkillRuntime, app.skill_runtime)
    except AttributeError:
        app.skill_runtime = SkillRuntime(app)
        return cast(SkillRuntime, app.skill_runtime)
