"""Every command of docker-compose.yml, started once without Docker, as Compose would start it."""

from __future__ import annotations

import base64
import json
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError

import pytest
import redis

from audit.memory import open_memory
from audit.row import COMPLETED, STARTED, AuditRow
from tests.integration.composed import HOST, SECRETS, SERVERS, Machine, resolved
from tests.integration.gateway import KEYS, TOKEN, TOKENS
from tests.integration.otlp import OtlpSink
from tests.support import TENANT, checked_memory, require, wait_until

SKILL = "obs.queue-depth"
GIVEN = {
    **SECRETS,
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
    "AUDIT_GATEWAY_TOKENS": json.dumps(TOKENS),
    "AUDIT_GATEWAY_KEYS": json.dumps(KEYS),
    "AUDIT_LEDGER_DIR": "/var/lib/skill-ledger",
    "AUDIT_TRACE_URL": "https://traces.example/{trace_id}",
}


@contextmanager
def silent_server() -> Iterator[str]:
    """A place that takes no connection and refuses none, for others wait before."""
    with socket.socket() as server, ExitStack() as waiting:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


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

    def call(
        self, skill: str = SKILL, arguments: object = None, wait: str = "?wait=30"
    ) -> tuple[int, bytes]:
        """One skill, through the gateway."""
        return self.ask(
            "gateway",
            f"/v1/skills/{skill}{wait}",
            arguments or {"queues": ["celery"]},
            **{
                "Authorization": f"Bearer {TOKEN}",
                "Content-Type": "application/json",
                "X-Audit-Persona": "cuo-cpo@0.4.1",
                "X-Audit-Tenant": TENANT,
            },
        )

    def rows(self, tenant_id: str | None = TENANT) -> list[AuditRow]:
        url = self.machine.environ("worker")["AUDIT_MEMORY_URL"]
        with checked_memory(url) as memory:
            return list(memory.rows(tenant_id=tenant_id))

    def runs(self, skill: str) -> bool:
        """Whether it runs just now; every row is checked only where nobody writes."""
        memory = open_memory(self.machine.environ("worker")["AUDIT_MEMORY_URL"])
        try:
            return any(row.payload["skill_id"] == skill for row in memory.running())
        finally:
            memory.close()


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


def test_the_doctor_finds_nothing_wrong(host: Host) -> None:
    """`audit doctor`, where and as the worker runs: exit status 0, and no secret in a line."""
    machine = host.machine
    done = subprocess.run(
        [require("celery"), "-A", "tasks", "audit", "doctor", "--json"],
        cwd=machine.directory / "srv",
        env=machine.environ("worker"),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("memory", "writes", "durability", "keeper", "spool", "broker", "worker pools"):
        assert lines[name]["level"] == "OK", lines[name]
    assert not [s for s in SECRETS.values() if s in done.stdout + done.stderr and s != "auditor"]


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


def test_the_memory_refused_nobody(host: Host) -> None:
    """No process of the host asked for what its user may not do, and beat for nothing at all."""
    operator = redis.Redis(
        port=host.machine.ports["memory"],
        username="operator",
        password=SECRETS["MEMORY_OPERATOR_PASSWORD"],
    )
    with closing(operator):
        assert operator.execute_command("ACL", "LOG") == []
        users = {client["user"] for client in operator.client_list()}
    assert users - {"operator"} <= {"worker", "keeper", "flower", "gateway"}
    assert {"worker", "keeper"} <= users


def test_a_worker_that_is_stopped_lets_its_skill_end(host: Host) -> None:
    """The stop signal comes in the middle of a skill: its pair says success, and none is open."""
    skill = "obs.probe-endpoints"
    with silent_server() as place:
        assert host.call(skill, {"endpoints": [place], "timeout": 6.0}, wait="")[0] == 202
        wait_until(lambda: host.runs(skill), 30)
        assert host.machine.running["worker"].stop() == 0
    rows = [row for row in host.rows() if row.payload["skill_id"] == skill]
    assert [row.kind for row in rows] == [STARTED, COMPLETED]
    assert (rows[1].payload["outcome"], rows[1].meta["reason"]) == ("success", "returned")
    host.machine.start("worker")
    host.machine.running["worker"].until_healthy()


def test_everything_stops_within_its_grace_period(host: Host) -> None:
    """The stop signal ends each one in order, and the worker's last numbers reach the collector."""
    host.call()
    assert host.machine.running["worker"].stop() == 0
    # Of every tenant: beat calls the skill once a minute for one of its own.
    rows = [row for row in host.rows(None) if row.payload.get("skill_id") == SKILL]
    completed = sum(row.kind == COMPLETED for row in rows)
    statuses = host.machine.down()
    # uvicorn ends its work and then by the signal itself: Docker says 143.
    assert statuses == {**dict.fromkeys((*SERVERS, *HOST), 0), "gateway": -signal.SIGTERM}
    assert host.sink.total("skill_invoked_total", skill_id=SKILL) == completed
    assert (Path(host.machine.directory) / "volumes" / "spool" / "spool").exists()
