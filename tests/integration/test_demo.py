"""The demo as a user runs it: what it shows, and that nothing of it stays, however it ends.

Every process of a demo is known by a variable of its environment, every file by its TMPDIR.
"""

from __future__ import annotations

import base64
import http.client
import os
import re
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from audit.embedded import EmbeddedServer
from audit.memory import AuditMemory
from demo.story import CLERK, OFFICER
from tests.support import wait_until

ROOT = Path(__file__).parents[2]
MARK = "SKILLHOST_DEMO_TEST"
SECONDS = 90.0
SAMPLES = ("obs.triage-alert", "obs.queue-depth", "cuo.cfo.payroll-draft", "obs.probe-endpoints")
ENDINGS = (
    ("obs.triage-alert", "success / returned"),
    ("demo.fail", "error / raised"),
    ("demo.panic", "panic / base_exception"),
    ("demo.overrun", "timeout / soft_time_limit"),
)
#: What the caller's environment may hold and the demo would heed.
HEEDED = ("AUDIT_", "CELERY_", "FLOWER_", "KEEP", "OTEL_")


class Demo:
    """A running demo, its output so far, and whatever there is of it on this machine."""

    def __init__(self, directory: Path, environ: dict[str, str], stdout: int | None) -> None:
        self.files = directory / "tmp"
        self.files.mkdir()
        self._output = directory / "output"
        self._mark = uuid.uuid4().hex
        inherited = {n: v for n, v in os.environ.items() if not n.startswith(HEEDED)}
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "demo"],
                cwd=ROOT,
                env=inherited | {"TMPDIR": str(self.files), MARK: self._mark} | environ,
                stdin=subprocess.DEVNULL,
                stdout=output if stdout is None else stdout,
                stderr=output,
            )

    def output(self) -> str:
        return self._output.read_text(encoding="utf-8")

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.output() or self.process.poll() is not None, SECONDS)
        assert text in self.output(), self.output()

    def end(self) -> int:
        """Its exit status, once it has ended."""
        return self.process.wait(SECONDS)

    def is_gone(self) -> bool:
        """Whether no process and no file of it is left."""
        return not self.processes() and not list(self.files.iterdir())

    def processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            return bool(alive and process.environ().get(MARK) == self._mark)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False


StartDemo = Callable[..., Demo]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartDemo]:
    """Starts a demo with variables in its environment; kills what a failed test leaves."""
    demos: list[Demo] = []

    def start(stdout: int | None = None, **environ: str) -> Demo:
        demos.append(Demo(tmp_path, environ, stdout))
        return demos[-1]

    yield start
    for demo in demos:
        for process in demo.processes():
            process.kill()
        demo.process.wait()


def has_line(output: str, *parts: str) -> bool:
    return any(all(part in line for part in parts) for line in output.splitlines())


def password(output: str) -> str:
    (found,) = re.findall(r"password: +(\S+)", output)
    return str(found)


def test_it_shows_both_rows_of_every_skill_and_every_outcome(start: StartDemo) -> None:
    """A plain run ends by itself, has shown all there is to see, and leaves nothing behind."""
    demo = start()
    assert demo.end() == 0, demo.output()
    assert demo.is_gone()
    output = demo.output()
    for skill_id in SAMPLES:
        assert has_line(output, "started", skill_id, OFFICER.persona), skill_id
        assert has_line(output, "completed", skill_id, "success / returned"), skill_id
    for skill_id, ending in ENDINGS:
        assert has_line(output, "completed", skill_id, ending), ending
    assert has_line(output, "started", CLERK.persona)
    assert has_line(output, "started", "demo-scheduler@1.0.0")
    assert has_line(output, "started", "obs.queue-depth", f"{OFFICER.persona}, in ..")
    assert re.search(r"Running now.*\n +demo\.slow ", output)
    assert re.search(r"^  together .* 0$", output, re.MULTILINE)
    assert output.count(password(output)) == 1
    assert "\x1b" not in output  # no colours in a pipe


def test_every_row_it_leaves_is_valid_and_holds_no_value(
    start: StartDemo, server: EmbeddedServer, memory: AuditMemory
) -> None:
    """With addresses given it starts no server and shows none of them; its rows keep the rules."""
    given = {
        "AUDIT_MEMORY_URL": server.url,
        "CELERY_BROKER_URL": server.url_for(1),
        "CELERY_RESULT_BACKEND": server.url_for(2),
    }
    demo = start(**given)
    demo.wait_for("Up in")
    assert not [p for p in demo.processes() if "valkey-server" in " ".join(p.cmdline())]
    assert demo.end() == 0, demo.output()
    assert not [address for address in given.values() if address in demo.output()]
    rows = list(memory.rows())  # the fixture checks each of them
    assert {OFFICER.tenant_id, CLERK.tenant_id} < {row.tenant_id for row in rows}
    stored = b"".join(row.to_bytes() for row in rows)
    # Hashes, ids and times hold any digits by chance, but never these alone.
    values = rb"(?<![0-9A-Za-z])(DE02\d+|70000|612500|e-1041)(?![0-9A-Za-z])"
    assert re.findall(values, stored) == []
    assert re.search(values, b'"index out of bounds: 70000"')


def test_keep_leaves_it_up_for_a_look_around(start: StartDemo) -> None:
    """With KEEP=1 Flower asks for the password, the printed commands run, and Ctrl-C ends it."""
    demo = start(KEEP="1", FLOWER_UNAUTHENTICATED_API="true")
    demo.wait_for("Ctrl-C ends it all.")
    output, secret = demo.output(), password(demo.output())
    port = int(re.findall(r"http://127\.0\.0\.1:(\d+)", output)[0])

    assert [flower(port, path) for path in ("/", "/api/workers", "/api/tasks")] == [401] * 3
    assert flower(port, "/api/workers", "demo:wrong") == 401
    assert [flower(port, path, f"demo:{secret}") for path in ("/", "/api/tasks")] == [200] * 2
    assert flower(port, "/api/worker/shutdown/demo@localhost", f"demo:{secret}", "POST") == 403
    assert output.count(secret) == 1
    assert {address for address, _ in listening(demo)} == {"127.0.0.1"}
    assert port in {number for _, number in listening(demo)}
    assert not [p for p in demo.processes() if secret in " ".join(p.cmdline())]

    exports = dict(re.findall(r"^  export (\w+)='(.*)'$", output, re.MULTILINE))
    addresses = {"AUDIT_MEMORY_URL", "CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"}
    ledger = {"AUDIT_LEDGER_DIR", "AUDIT_LEDGER_KEYS", "AUDIT_LEDGER_ORIGIN"}
    assert set(exports) == addresses | ledger
    holders = [p for p in demo.processes() if "AUDIT_LEDGER_KEYS" in p.environ()]
    assert {p.cmdline()[-1] for p in holders} == {"keep"}
    commands = re.findall(r"^  (\S+celery -A demo.skills audit .*)$", output, re.MULTILINE)
    named = {shlex.split(command)[4] for command in commands}
    assert named == {"running", "list", "show", "tail", "verify"}
    for command in commands:
        assert runs(command, exports), command

    demo.process.send_signal(signal.SIGINT)
    assert demo.end() == 0
    assert demo.is_gone()


def flower(port: int, path: str, credentials: str = "", method: str = "GET") -> int:
    """The status of Flower's answer."""
    coded = base64.b64encode(credentials.encode()).decode()
    headers = {"Authorization": f"Basic {coded}"} if credentials else {}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def listening(demo: Demo) -> list[tuple[str, int]]:
    """Address and port of every TCP socket that a process of the demo listens on."""
    return [
        (socket.laddr.ip, socket.laddr.port)
        for process in demo.processes()
        for socket in process.net_connections("tcp")
        if socket.status == psutil.CONN_LISTEN
    ]


def runs(command: str, environ: dict[str, str]) -> bool:
    """Whether the command prints something and ends well; one without end ends by Ctrl-C."""
    with subprocess.Popen(
        shlex.split(command), cwd=ROOT, env=os.environ | environ, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        printed = process.stdout.readline()
        if command.endswith("tail"):
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    return bool(printed) and process.returncode == 0


@pytest.mark.parametrize(
    ("signum", "text"),
    [
        (signal.SIGINT, "Starting a server"),
        (signal.SIGTERM, "Up in"),
        (signal.SIGHUP, "demo.overrun"),
    ],
)
def test_a_signal_ends_it_in_order(start: StartDemo, signum: int, text: str) -> None:
    """Ctrl-C, SIGTERM or a closed terminal, while it starts or runs: nothing is left."""
    demo = start()
    demo.wait_for(text)
    demo.process.send_signal(signum)
    assert demo.end() == 128 + signum, demo.output()
    assert signal.Signals(signum).name in demo.output()
    assert demo.is_gone()


def test_even_sigkill_leaves_nothing(start: StartDemo) -> None:
    """A demo that is killed takes its processes and files along."""
    demo = start()
    demo.wait_for("demo.overrun")
    demo.process.kill()
    demo.end()
    wait_until(demo.is_gone, 30)


def test_a_reader_that_leaves_ends_it(start: StartDemo) -> None:
    """`make demo | head` ends the demo without a word, and nothing is left."""
    ours, theirs = os.pipe()
    demo = start(stdout=theirs)
    os.close(theirs)
    assert os.read(ours, 1)
    os.close(ours)
    assert demo.end() == 1
    assert demo.output() == ""
    assert demo.is_gone()


def test_a_dead_worker_fails_it(start: StartDemo) -> None:
    """When the worker dies the demo says so, shows the end of its log, and ends with status 1."""
    demo = start()
    demo.wait_for("Up in")
    parents = [p for p in demo.processes() if "worker" in p.cmdline()]
    min(parents, key=lambda process: process.create_time()).kill()
    assert demo.end() == 1
    assert "The demo failed: the worker ended, status -9. The end of its log:" in demo.output()
    assert "demo@localhost ready." in demo.output()
    assert "Traceback" not in demo.output().rpartition("The demo failed")[0]
    assert demo.is_gone()


@pytest.mark.parametrize(
    "variable", ["AUDIT_MEMORY_URL", "CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"]
)
def test_an_address_where_nobody_answers_fails_it(start: StartDemo, variable: str) -> None:
    """An address that leads nowhere is named at once, in one line."""
    demo = start(**{variable: "redis://127.0.0.1:9/0"})
    assert demo.end() == 1
    assert "The demo failed: " in demo.output()
    assert "Traceback" not in demo.output()
    assert "Connection refused" in demo.output()
    assert demo.is_gone()
