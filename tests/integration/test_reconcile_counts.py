"""`celery -A app audit reconcile` is a process like any other: what it closes is counted."""

from __future__ import annotations

import os
from pathlib import Path

from audit import open_memory
from audit.embedded import EmbeddedServer
from audit.row import COMPLETED
from tests.integration.otlp import OtlpSink
from tests.integration.prepared import run_celery
from tests.integration.stack import ROOT
from tests.support import make_identity, started


def test_reconciling_by_hand_is_counted(tmp_path: Path) -> None:
    """Pushed at its end, so the alarm on abandoned invocations fires without a keeper, too."""
    (tmp_path / "app.py").write_text("from celery import Celery\n\napp = Celery('plain')\n")
    with EmbeddedServer() as server, OtlpSink() as sink:
        memory = open_memory(server.url)
        memory.emit(started(make_identity(worker="gone")))
        environ = {
            "PYTHONPATH": str(ROOT),
            "AUDIT_MEMORY_URL": server.url,
            "AUDIT_SPOOL_DIR": str(tmp_path / "spool"),
            "AUDIT_LEASE_SECONDS": "1",
        }
        done = run_celery(
            *("-A", "app", "audit", "reconcile"),
            cwd=tmp_path,
            env={**os.environ, **environ, **sink.environ},
        )
        assert done.returncode == 0, done.stderr
        assert len(list(memory.rows(kind=COMPLETED))) == 1
        assert sink.total("skill_abandoned_total") == sink.total("skill_invoked_total") == 1
        memory.close()
