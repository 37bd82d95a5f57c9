"""`celery -A app audit keep` serves metrics, health and readiness, on a real memory."""

from __future__ import annotations

import os
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from audit import open_memory
from audit.embedded import EmbeddedServer
from tests.integration.otlp import OtlpSink
from tests.integration.prepared import celery
from tests.support import TENANT, make_identity, started, wait_until

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Kept:
    """A keeper process and its pages."""

    def __init__(self, directory: Path, memory_url: str, port: int, **environ: str) -> None:
        self._port = port
        (directory / "app.py").write_text("from celery import Celery\n\napp = Celery('plain')\n")
        self.log = directory / f"keeper-{port}.log"
        with self.log.open("ab") as log:
            self.process = celery(
                *("-A", "app", "audit", "keep"),
                cwd=directory,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "AUDIT_MEMORY_URL": memory_url,
                    "AUDIT_SPOOL_DIR": str(directory / "spool"),
                    "AUDIT_LEASE_SECONDS": "60",
                    "AUDIT_KEEPER_LISTEN": f"127.0.0.1:{port}",
                    **environ,
                },
                stdout=log,
                stderr=log,
            )

    def page(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=10) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def value(self, name: str) -> float | None:
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.page("/metrics")[1], re.MULTILINE)
        return float(found[1]) if found else None

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@contextmanager
def keeping(directory: Path, url: str, **environ: str) -> Iterator[Kept]:
    kept = Kept(directory, url, free_port(), **environ)
    try:
        wait_until(lambda: kept.page("/healthz")[0] or kept.process.poll() is not None, 60)
        yield kept
        assert kept.end() == 0
    finally:
        if kept.process.poll() is None:
            kept.process.kill()
            kept.process.wait()


def test_the_memory_in_numbers(tmp_path: Path, server: EmbeddedServer) -> None:
    """What runs without a lease, per tenant; started minus completed; who leads, how late."""
    with keeping(tmp_path, server.url) as kept:
        wait_until(lambda: kept.value("skill_keeper_leads") == 1.0, 30)
        memory = open_memory(server.url)
        for _ in range(3):
            memory.emit(started(make_identity(worker="gone")))
        memory.close()
        tenant = f'{{tenant_id="{TENANT}"}}'
        wait_until(lambda: kept.value(f"skill_orphaned{tenant}") == 3.0, 30)
        wait_until(lambda: kept.value(f"skill_started_minus_completed{tenant}") == 3.0, 30)
        wait_until(lambda: (kept.value(f"skill_orphaned_seconds{tenant}") or 0) > 1, 30)
        assert kept.value("skill_running") == 3.0
        assert (kept.value("skill_keeper_late_seconds") or 0) < 30


def test_ready_means_that_a_write_goes_through(tmp_path: Path, server: EmbeddedServer) -> None:
    """Not that the memory answers: eviction, no room and no fsync are found on a living server."""
    password = "s3cret-in-the-url"
    admin = redis.Redis.from_url(server.url)
    admin.config_set("requirepass", password)
    url = server.url.replace("://", f"://:{password}@") + "?durability=everysec"
    with keeping(tmp_path, url) as kept:

        def becomes(status: int, reason: str) -> None:
            wait_until(lambda: kept.page("/readyz")[0] == status, 30)
            said = kept.page("/readyz")[1]
            assert reason in said
            assert password not in said
            assert kept.page("/healthz")[0] == 200

        becomes(200, "ok")
        admin.config_set("maxmemory-policy", "allkeys-lru")
        becomes(503, "may evict")
        admin.config_set("maxmemory-policy", "noeviction")
        becomes(200, "ok")
        admin.config_set("maxmemory", "1mb")
        admin.ping()  # it answers, and takes nothing
        becomes(503, "does not take writes")
        admin.config_set("maxmemory", "0")
        becomes(200, "ok")
        admin.config_set("appendfsync", "no")
        becomes(503, "appendfsync")
        admin.config_set("appendfsync", "everysec")
        becomes(200, "ok")
        admin.execute_command("REPLICAOF", "127.0.0.1", "9")
        becomes(503, "does not take writes")
        admin.execute_command("REPLICAOF", "NO", "ONE")
        becomes(200, "ok")
        server.stop()
        becomes(503, "does not take writes")
        assert password not in kept.log.read_text()


def test_a_place_that_is_taken_ends_the_second_keeper_at_once(
    tmp_path: Path, server: EmbeddedServer
) -> None:
    """With a clear error, and before it leads; the first goes on."""
    with keeping(tmp_path, server.url) as kept:
        second = Kept(tmp_path, server.url, kept._port)
        assert second.process.wait(30) != 0
        said = second.log.read_text()
        assert "AUDIT_KEEPER_LISTEN" in said
        assert "Traceback" not in said
        assert kept.page("/healthz")[0] == 200


def test_a_keeper_pushes_what_it_serves(tmp_path: Path, server: EmbeddedServer) -> None:
    """Both from one provider, the last push at its end."""
    with OtlpSink() as sink:
        with keeping(tmp_path, server.url, **sink.environ) as kept:
            wait_until(lambda: kept.value("skill_keeper_leads") == 1.0, 30)
        assert sink.instances("skill_keeper_leads")
        assert {who["skill.host.role"] for who in sink.resources()} == {"keeper"}
        assert {who["service.name"] for who in sink.resources()} == {"skill-host"}
