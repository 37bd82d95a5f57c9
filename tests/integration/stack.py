"""A whole host for one test module: servers, a caller's app, a worker as a real process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from audit import InvocationContext, acting_as, open_memory
from audit.embedded import EmbeddedServer
from audit.memory import AuditMemory
from audit.row import AuditRow
from tasks import SkillHost
from tests.integration.prepared import celery
from tests.integration.skills import declare
from tests.support import TENANT, check_every_row, wait_until

ROOT = Path(__file__).resolve().parents[2]
PERSONA = "cuo-cpo@0.4.1"

#: Whether whole hosts run in merged mode: any test of a default one may be run so by hand.
MERGED = os.environ.get("STACK_MERGED") == "1"


class Worker:
    """One ``celery worker`` process, its log and how to end it."""

    def __init__(self, stack: Stack, pool: str, concurrency: int, **conf: Any) -> None:
        self.log = stack.directory / f"worker-{len(stack.workers)}.log"
        app = conf.pop("app", "tests.integration.worker_app")
        level = conf.pop("level", "INFO")
        packages = conf.pop("packages", ())
        environ = {
            **os.environ,
            **stack.environ,
            **conf.pop("environ", {}),
            "WORKER_CONF": json.dumps(conf),
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *packages))),
        }
        options = ["-P", pool, "-c", str(concurrency), "-l", level, "-E"]
        options += ["--without-mingle", "--without-gossip", "-n", f"w{len(stack.workers)}@test"]
        with self.log.open("wb") as log:
            self.process = celery(
                *("-A", app, "worker", *options),
                stdout=log,
                stderr=log,
                cwd=stack.directory,
                env=environ,
                session=True,
            )

    def ready(self) -> Worker:
        wait_until(lambda: " ready." in self.text() or self.process.poll() is not None, 60)
        assert self.process.poll() is None, self.text()
        return self

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self) -> int:
        """Warm shutdown; a worker that does not end by itself is killed with its children."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait(20)


class Stack:
    """Servers, the caller's app with every test skill, the memory, and the workers."""

    def __init__(
        self, directory: Path, *, memory_url: str | None = None, merged: bool = MERGED, **conf: Any
    ) -> None:
        self.directory = directory
        self.workers: list[Worker] = []
        self.server = EmbeddedServer().start()
        self.memory_url = memory_url or self.server.url_for(2)
        self.journal_path = directory / "journal"
        self.environ = {
            "CELERY_BROKER_URL": self.server.url_for(0),
            "CELERY_RESULT_BACKEND": (
                f"merged+{self.memory_url}" if merged else self.server.url_for(1)
            ),
            "AUDIT_MEMORY_URL": self.memory_url,
            "JOURNAL": str(self.journal_path),
            "AUDIT_SPOOL_DIR": str(directory / "spool"),
        }
        self.app = SkillHost("caller")
        self.app.conf.update(
            broker_url=self.environ["CELERY_BROKER_URL"],
            result_backend=self.environ["CELERY_RESULT_BACKEND"],
            audit_memory_url=self.memory_url,
            audit_spool_dir=str(directory / "spool"),
            task_default_queue="skills",
            accept_content=["json"],
            **conf,
        )
        self.app.set_current()
        self.skills: SimpleNamespace = declare(self.app)
        self.memory: AuditMemory = open_memory(self.memory_url, timeout=10)

    def worker(self, pool: str = "prefork", concurrency: int = 4, **conf: Any) -> Worker:
        """Start one more worker and wait until it takes messages."""
        worker = Worker(self, pool, concurrency, **conf)
        self.workers.append(worker)
        return worker.ready()

    def running(self) -> Worker:
        """The one worker that runs."""
        (worker,) = (worker for worker in self.workers if worker.process.poll() is None)
        return worker

    def close(self, *, check: bool = True) -> None:
        for worker in self.workers:
            worker.stop()
        try:
            if check:
                check_every_row(self.memory)
        finally:
            self.memory.close()
            self._forget_results()
            self.app.close()
            self.server.stop()

    def _forget_results(self) -> None:
        """A result that nobody waits for any more would ask the server when it is collected."""
        consumer = self.app.backend.result_consumer
        consumer.stop()
        consumer._pubsub = None

    # --- what a test asks -----------------------------------------------------------------------

    def rows(self, **wanted: Any) -> list[AuditRow]:
        return list(self.memory.rows(**wanted))

    def pair(self, task_id: str, attempt: int = 0) -> tuple[AuditRow, AuditRow]:
        """The two rows of the invocation that ran a message, once both are there."""

        def both() -> tuple[AuditRow, AuditRow] | None:
            rows = [row for row in self.rows(task_id=task_id) if row.meta["attempt"] == attempt]
            return (rows[0], rows[1]) if len(rows) >= 2 else None

        started, completed = wait_until(both, 20)
        assert started.kind == "skill.invoked_started"
        assert completed.kind == "skill.invoked_completed"
        assert started.request_id == completed.request_id
        return started, completed

    def journal(self) -> list[str]:
        if not self.journal_path.exists():
            return []
        return self.journal_path.read_text().splitlines()


@contextlib.contextmanager
def running_stack(directory: Path, **options: Any) -> Iterator[Stack]:
    stack = Stack(directory, **options)
    try:
        yield stack
    except BaseException:
        stack.close(check=False)
        raise
    stack.close()


def caller(tenant_id: str = TENANT, persona: str = PERSONA) -> Any:
    return acting_as(persona, tenant_id=tenant_id)


__all__ = ["PERSONA", "InvocationContext", "Stack", "Worker", "caller", "running_stack"]
