"""Every command of docker-compose.yml, started once without Docker, as Compose would start it."""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError

import pytest

from audit.row import COMPLETED, STARTED, AuditRow
from tests.integration.composed import HOST, SECRETS, SERVERS, Machine, resolved
from tests.integration.gateway import KEYS, TOKEN, TOKENS
from tests.integration.otlp import OtlpSink
from tests.support import TENANT, checked_memory, wait_until

SKILL = "obs.queue-depth"
GIVEN = {
    **SECRETS,
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
    "AUDIT_GATEWAY_TOKENS": json.dumps(TOKENS),
    "AUDIT_GATEWAY_KEYS": json.dumps(KEYS),
    "AUDIT_LEDGER_DIR": "/var/lib/skill-ledger",
    "AUDIT_TRACE_URL": "https://traces.example/{trace_id}",
}


@dataclass
class Host:
    """The whole host, and what it left when it had stopped."""

    machine: Machine
    batches: list[list[str]]
    sink: OtlpSink

    def ask(self, name: str, path: str, data: object = None, **headers: str) -> tuple[int, bytes]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.machine.ports[name]}{path}",
            None if data is None else json.dumps(data).encode(),
            headers,
        )
        try:
            with urllib.request.urlopen(request, timeout=40) as answer:  # noqa: S310
                return answer.status, answer.read()
        except HTTPError as error:
            return error.code, error.read()

    def call(self) -> tuple[int, bytes]:
        """One skill, through the gateway."""
        return self.ask(
            "gateway",
            f"/v1/skills/{SKILL}?wait=30",
            {"queues": ["celery"]},
            **{
                "Authorization": f"Bearer {TOKEN}",
                "Content-Type": "application/json",
                "X-Audit-Persona": "cuo-cpo@0.4.1",
                "X-Audit-Tenant": TENANT,
            },
        )

    def rows(self) -> list[AuditRow]:
        url = self.machine.environ("worker")["AUDIT_MEMORY_URL"]
        with checked_memory(url) as memory:
            return list(memory.rows(tenant_id=TENANT))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with OtlpSink() as sink:
        place = sink.environ["OTEL_EXPORTER_OTLP_ENDPOINT"].removeprefix("http://")
        machine = Machine(
            tmp_path_factory.mktemp("host"), resolved(GIVEN), {"collector:4318": place}
        )
        try:
            yield Host(machine, machine.up((*SERVERS, *HOST)), sink)
        finally:
            machine.close()


def test_all_services_become_healthy_in_the_order_of_the_file(host: Host) -> None:
    """Servers first, then everything else; each one's own healthcheck says that it is well."""
    assert host.batches == [sorted(SERVERS), sorted(HOST)]
    assert all(one.process.poll() is None for one in host.machine.running.values())


@pytest.mark.parametrize("name", SERVERS)
def test_a_stopped_process_is_not_healthy(host: Host, name: str) -> None:
    """The healthcheck of a server asks that server, and fails while it does not answer."""
    one = host.machine.running[name]
    one.process.send_signal(signal.SIGSTOP)
    try:
        assert not one.is_healthy()
    finally:
        one.process.send_signal(signal.SIGCONT)
    wait_until(one.is_healthy, 30)


def test_the_keeper_is_unhealthy_while_the_memory_takes_no_writes(host: Host) -> None:
    """The keeper's healthcheck proves a write, and recovers with the memory."""
    memory, keeper = host.machine.running["memory"], host.machine.running["keeper"]
    memory.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: not keeper.is_healthy(), 30)
    finally:
        memory.process.send_signal(signal.SIGCONT)
    wait_until(keeper.is_healthy, 60)


def test_a_skill_called_through_it_has_both_rows(host: Host) -> None:
    """One POST to the gateway: 200, and a started and a completed row of one invocation."""
    wait_until(lambda: host.machine.running["worker"].is_healthy(), 60)
    before = len(host.rows())
    status, body = host.call()
    assert status == 200, body
    rows = host.rows()[before:]
    assert [row.kind for row in rows] == [STARTED, COMPLETED]
    assert {row.payload["skill_id"] for row in rows} == {SKILL}
    assert len({row.request_id for row in rows}) == 1


def test_the_keeper_counts_it_for_prometheus(host: Host) -> None:
    """What Prometheus scrapes from the keeper counts both rows."""
    host.call()

    def counted() -> list[str]:
        status, text = host.ask("keeper", "/metrics")
        assert status == 200
        return re.findall(rf'^skill_rows_total{{.*tenant_id="{TENANT}".*$', text.decode(), re.M)

    assert len(wait_until(lambda: len(found := counted()) >= 2 and found, 30)) >= 2


def test_flower_shows_its_pages_to_whoever_has_the_password(host: Host) -> None:
    """401 without the password of the environment, 200 with it; the audit's pages likewise."""
    login = base64.b64encode(b"auditor:flowersecret").decode()
    for path in ("/workers", "/audit", "/audit/list", "/audit/static/audit.js"):
        assert host.ask("flower", path)[0] == 401
        assert host.ask("flower", path, Authorization=f"Basic {login}")[0] == 200


def test_the_audit_s_pages_show_what_ran(host: Host) -> None:
    """The page of an invocation has its trace's link, and says that the ledger has it not yet."""
    host.call()
    login = base64.b64encode(b"auditor:flowersecret").decode()
    row = host.rows()[-1]
    path = f"/audit/invocation/{row.request_id}"
    status, page = host.ask("flower", path, Authorization=f"Basic {login}")
    assert status == 200
    assert f'href="https://traces.example/{row.payload["trace_id"]}"' in page.decode()
    assert ">waiting<" in page.decode()


def test_no_password_is_in_a_command_line(host: Host) -> None:
    """None of the secrets shows in `ps`."""
    for one in host.machine.running.values():
        words = subprocess.check_output(["ps", "-o", "args=", "-p", str(one.process.pid)])
        assert words.strip()
        assert not [secret for secret in SECRETS.values() if secret.encode() in words]


def test_the_memory_runs_under_the_file_s_configuration(host: Host) -> None:
    """What was appended is in the volume's folder, of the memory alone."""
    volume = host.machine.directory / "volumes" / "memory"
    assert list(volume.glob("appendonlydir/*.aof"))
    log = host.machine.running["keeper"].text()
    assert "Traceback" not in log, log


def test_everything_stops_within_its_grace_period(host: Host) -> None:
    """The stop signal ends each one in order, and the worker's last numbers reach the collector."""
    host.call()
    completed = sum(row.kind == COMPLETED for row in host.rows())
    statuses = host.machine.down()
    # uvicorn ends its work and then by the signal itself: Docker says 143.
    assert statuses == {**dict.fromkeys((*SERVERS, *HOST), 0), "gateway": -signal.SIGTERM}
    assert host.sink.total("skill_invoked_total", skill_id=SKILL) == completed
    assert (Path(host.machine.directory) / "volumes" / "spool" / "spool").exists()
