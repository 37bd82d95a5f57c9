"""The worker's bootstep: what a worker does before it takes its first message."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Final

from celery import Task, bootsteps

from audit.errors import (
    AuditMemoryError,
    MemoryUnavailableError,
    SettingsError,
    SkillDefinitionError,
    SpoolError,
)
from audit.keeper import ROLE
from audit.keys import KeyRing
from audit.memory import AuditMemory
from audit.spool import Spool
from tasks import redaction, telemetry
from tasks.amqp import require_protocol_2
from tasks.caller import is_built_in, is_skill
from tasks.discretion import make_discreet
from tasks.proof import verifies
from tasks.runtime import runtime_of

logger: Final = logging.getLogger("audit")

#: How a worker receives Celery's own tasks, and where it has keys, plain ones.
DISCREET: Final = "tasks.request:DiscreetRequest"
CARRYING: Final = "tasks.request:CarryingRequest"


class AuditStep(bootsteps.StartStopStep):
    """Gives the worker its id, judges configuration and memory, and prepares telemetry.

    A setting that cannot be used stops the worker, and so does a memory that could lose or evict
    rows. One that does not answer does not: it may be back soon, and until then every invocation
    is refused.

    Its lease is held from after the pool is there (a thread started before would be forked) until
    the process has ended, and before the consumer takes a message.
    """

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        runtime = runtime_of(parent.app)
        runtime.boot_worker()
        try:
            telemetry.connect(
                pool_forks="prefork" in parent.pool_cls.__module__,
                spans=runtime.settings.instrument,
            )
            require_protocol_2(parent.app)
            if runtime.settings.redact_logs:
                redaction.install()
            _receive(parent.app, proven=bool(runtime.settings.context_keys))
            runtime.spool.check()
            _check(runtime.memory)
        except MemoryUnavailableError as error:
            logger.critical(
                "the audit memory is out of reach, every skill is refused until it is back: %s",
                error,
                extra={"severity": "sev-1"},
            )
        except (AuditMemoryError, SettingsError, SkillDefinitionError, SpoolError) as error:
            raise SystemExit(f"This worker does not start: {error}") from error

    def start(self, parent: Any) -> None:
        runtime = runtime_of(parent.app)
        runtime.hold_lease(runtime.worker_id)
        _say_what_is_proven(runtime.settings.context_keys)
        _report_other_spools(runtime.spool)
        _warn_of_limits(parent.pool_cls.__module__)
        _warn_without_keeper(runtime.memory)

    def stop(self, parent: Any) -> None:
        """The lease is given back when the process ends, after the pool has."""


def _receive(app: Any, *, proven: bool) -> None:
    """How messages are received, where that must be another way than Celery's.

    What a plain task publishes inherits the context of its message: that must be proven too. A
    plain task with a request class of its own, and one declared later, carry no context.

    Raises:
        SkillDefinitionError: a skill has a request class that does not verify.
    """
    for task in app.tasks.values():
        if is_built_in(task):
            make_discreet(task)
            task.Request = DISCREET
        elif proven and task.Request == Task.Request:
            task.Request = CARRYING
        if getattr(task, "body_excluded", False) and _keeps_arguments(app):
            raise SkillDefinitionError(
                f"skill {task.name}: its body is excluded, and result_extended would keep its"
                " arguments in the result backend: leave that setting out"
            )
        if is_skill(task) and not verifies(task):
            raise SkillDefinitionError(
                f"skill {task.name}: its Request must be a subclass of SkillRequest"
            )


def _keeps_arguments(app: Any) -> bool:
    """Whether Celery's own result backend stores a task's arguments beside its result."""
    return app.conf.result_extended and type(app.backend).__module__.startswith("celery.")


def _say_what_is_proven(keys: KeyRing) -> None:
    if keys:
        logger.info("contexts must be proven: %s", keys)
    else:
        logger.warning(
            "contexts are not signed: whoever can write to the broker can call any skill as any"
            " persona for any tenant (audit_context_keys)"
        )


def _warn_of_limits(pool: str) -> None:
    """Say what the pool does not do, for it will be missed when a skill overruns."""
    name = pool.rpartition(".")[2]
    if name in _IGNORED:
        logger.warning("the %s pool ignores %s", name, _IGNORED[name])


_IGNORED: Final = {
    "solo": "time limits, and a revoke reaches a skill only when its body has ended",
    "thread": "time limits, and cannot terminate a running skill",
    "gevent": "soft time limits, and hard ones end a skill only where it waits",
    "eventlet": "soft time limits, and hard ones end a skill only where it waits",
}


def _report_other_spools(spool: Spool) -> None:
    for folder in spool.others():
        logger.critical(
            "rows wait in %s for a memory that is spelled otherwise than ours: run a keeper with"
            " that spelling of AUDIT_MEMORY_URL",
            folder,
            extra={"severity": "sev-1"},
        )


def _warn_without_keeper(memory: AuditMemory) -> None:
    with suppress(AuditMemoryError):
        if not memory.is_led(ROLE):
            logger.warning(
                "no keeper has been seen: invocations of a worker that dies stay open until"
                " `celery audit keep` runs"
            )


def _check(memory: AuditMemory) -> None:
    try:
        memory.check()
    finally:
        # A pool child opens connections of its own; this process needs none yet.
        memory.close()
