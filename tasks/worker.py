"""The worker's bootstep: what a worker does before it takes its first message."""

from __future__ import annotations

import logging
from typing import Any, Final

from celery import bootsteps

from audit.errors import (
    AuditMemoryError,
    MemoryUnavailableError,
    SettingsError,
    SkillDefinitionError,
)
from audit.memory import AuditMemory
from tasks import telemetry
from tasks.amqp import require_protocol_2
from tasks.runtime import runtime_of

logger: Final = logging.getLogger("audit")


class AuditStep(bootsteps.Step):
    """Gives the worker its id, judges configuration and memory, and prepares telemetry.

    A setting that cannot be used stops the worker, and so does a memory that could lose or evict
    rows. One that does not answer does not: it may be back soon, and until then every invocation
    is refused.
    """

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        runtime = runtime_of(parent.app)
        runtime.boot_worker()
        telemetry.connect(pool_forks="prefork" in parent.pool_cls.__module__)
        try:
            require_protocol_2(parent.app)
            _check(runtime.memory)
        except MemoryUnavailableError as error:
            logger.critical(
                "the audit memory is out of reach, every skill is refused until it is back: %s",
                error,
                extra={"severity": "sev-1"},
            )
        except (AuditMemoryError, SettingsError, SkillDefinitionError) as error:
            raise SystemExit(f"This worker does not start: {error}") from error


def _check(memory: AuditMemory) -> None:
    try:
        memory.check()
    finally:
        # A pool child opens connections of its own; this process needs none yet.
        memory.close()
