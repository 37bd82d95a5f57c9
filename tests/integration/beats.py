"""Real beat processes on a stack."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

from audit.row import STARTED, AuditRow
from tests.integration.beat_app import TENANT
from tests.integration.prepared import celery, run_celery
from tests.integration.stack import ROOT, Stack


class Beat:
    """One ``celery beat`` process, its log and its schedule file."""

    def __init__(self, stack: Stack, name: str, *entries: str, **conf: Any) -> None:
        self.log = stack.directory / f"{name}.log"
        options = ["-l", "INFO", "-s", str(stack.directory / name), "--pidfile="]
        environ = {
            **os.environ,
            **stack.environ,
            "BEAT_ENTRIES": json.dumps(entries),
            "WORKER_CONF": json.dumps(conf),
            "PYTHONPATH": str(ROOT),
        }
        with self.log.open("wb") as log:
            self.process = celery(
                *("-A", "tests.integration.beat_app", "beat", *options),
                cwd=stack.directory,
                env=environ,
                stdout=log,
                stderr=log,
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)


@contextlib.contextmanager
def beats(*made: Beat) -> Iterator[tuple[Beat, ...]]:
    """Beats that are gone at the end."""
    try:
        yield made
    finally:
        for beat in made:
            beat.kill()


def ticks(stack: Stack, schedule: str, kind: str = STARTED) -> list[AuditRow]:
    """The rows of one kind of a schedule."""
    rows = stack.rows(tenant_id=TENANT, kind=kind)
    return [row for row in rows if row.meta.get("schedule") == schedule]


def ask_duplicates(stack: Stack, *more: str) -> tuple[int, list[str]]:
    """What ``audit duplicates`` says: its exit status, and its lines."""
    asked = run_celery(
        *("-A", "tests.integration.beat_app", "audit", "duplicates", *more),
        cwd=stack.directory,
        env={**os.environ, **stack.environ, "PYTHONPATH": str(ROOT)},
    )
    assert not asked.stderr.strip() or asked.returncode in (0, 1), asked.stderr
    return asked.returncode, asked.stdout.splitlines()
