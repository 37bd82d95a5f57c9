"""Questions to the audit memory, asked where Flower's event loop does not wait for them.

A memory that hangs holds up a few threads of this module's own, each for the memory's deadline at
most: neither the loop nor the threads that Flower works with.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cached_property
from threading import Lock
from typing import Any, Final, TypeVar, cast

from audit.memory import AuditMemory, open_memory
from audit.settings import AuditSettings

T = TypeVar("T")

#: Pages that are read at the same time.
THREADS: Final = 4
_KEY: Final = "audit_reader"


class Reader:
    """The memory of one Celery app. Nothing is opened before the first question."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._threads = ThreadPoolExecutor(THREADS, "audit-pages")
        self._opening = Lock()
        self._memory: AuditMemory | None = None

    @cached_property
    def settings(self) -> AuditSettings:
        """The app's.

        Raises:
            SettingsError: one of them cannot be used.
        """
        return AuditSettings.read(self._app.conf, os.environ)

    async def ask(self, question: Callable[[AuditMemory, datetime], T]) -> T:
        """What ``question`` returns for the memory and the present moment.

        Raises:
            AuditError: the memory did not answer, or is not set up; whatever ``question`` raises.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._answer, question)

    def _answer(self, question: Callable[[AuditMemory, datetime], T]) -> T:
        return question(self._opened(), datetime.now(UTC))

    def _opened(self) -> AuditMemory:
        with self._opening:
            if self._memory is None:
                settings = self.settings
                self._memory = open_memory(settings.memory_url, timeout=settings.emit_timeout)
            return self._memory


def reader_of(application: Any) -> Reader:
    """The reader of a running Flower, made at the first call."""
    if _KEY not in application.settings:
        application.settings[_KEY] = Reader(application.capp)
    return cast(Reader, application.settings[_KEY])
