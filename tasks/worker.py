"""The worker's bootstep: what a worker does before it takes its first message."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Final

from celery import bootsteps
from kombu.utils.imports import symbol_by_name

from audit.doctor.check import named
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
from tasks.consumer import steady
from tasks.doctor import IGNORED, unaudited
from tasks.merged import prove, require_fit
from tasks.reception import give_requests
from tasks.runtime import runtime_of

logger: Final = logging.getLogger("audit")


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
                pool_forks=_forks(parent),
                spans=runtime.settings.instrument,
                worker=runtime.worker_id,
            )
            require_protocol_2(parent.app)
            require_fit(parent.app)
            if runtime.settings.redact_logs:
                redaction.install()
            give_requests(parent.app, proven=bool(runtime.settings.context_keys))
            # Bootsteps are made in two rounds: the consumer is, after all have been here.
            parent.consumer_cls = steady(symbol_by_name(parent.consumer_cls))
            runtime.spool.check()
            _check(runtime.memory, parent.app)
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
        if _forks(parent):
            telemetry.begin_in_main(runtime.worker_id)
        # What begins last ends first: what giving the lease back replays is still exported.
        runtime.hold_lease(runtime.worker_id)
        _say_what_is_proven(runtime.settings.context_keys)
        _report_other_spools(runtime.spool)
        _warn_of_limits(parent.pool_cls.__module__)
        _say_what_is_not_audited(parent.app)
        _warn_without_keeper(runtime.memory)

    def stop(self, parent: Any) -> None:
        """The lease is given back when the process ends, after the pool has."""


def _forks(parent: Any) -> bool:
    return "prefork" in parent.pool_cls.__module__


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
    if name in IGNORED:
        logger.warning("the %s pool ignores %s", name, IGNORED[name])


def _say_what_is_not_audited(app: Any) -> None:
    if plain := unaudited(app.tasks.values()):
        logger.warning("plain tasks of this app are not audited: %s", named(plain))


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


def _check(memory: AuditMemory, app: Any) -> None:
    try:
        memory.check()
        prove(app)
    finally:
        # A pool child opens connections of its own; this process needs none yet.
        memory.close()
