"""`celery -A app audit ...` as an operator runs it: a process of its own, a real memory.

The Celery application is a plain one: the command line needs nothing of the host.
"""

from __future__ import annotations

import errno
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from audit import AuditMemory, AuditRow, Reason, open_memory
from audit.embedded import EmbeddedServer
from tests.integration.prepared import Started, celery
from tests.support import TENANT, completed, make_ending, make_identity, started

ROOT = Path(__file__).parents[2]
OTHER_TENANT = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
#: Nobody listens on the discard port.
NOWHERE = "redis://127.0.0.1:9/0"


@dataclass(frozen=True)
class Cli:
    """Runs `celery -A app audit ...` with a memory URL in the environment."""

    directory: Path
    memory_url: str

    def start(
        self, *args: str, stdout: int | IO[bytes] = subprocess.PIPE, **environ: str
    ) -> Started:
        return celery(
            *("-A", "cli_app", "audit", *args),
            stdout=stdout,
            stderr=subprocess.PIPE,
            cwd=self.directory,
            env=self._environ(environ),
        )

    def run(self, *args: str, **environ: str) -> tuple[int, bytes, str]:
        """Exit status, standard output, standard error."""
        with self.start(*args, stdout=subprocess.PIPE, **environ) as process:
            out, err = process.communicate()
        assert process.returncode is not None
        return process.returncode, out, err.decode()

    def run_on_terminal(self, *args: str, **environ: str) -> tuple[int, str]:
        """Exit status, and what came out on a terminal of 120 columns."""
        ours, theirs = pty.openpty()
        terminal = {"TERM": "xterm-256color", "COLUMNS": "120"}
        with subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "cli_app", "audit", *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=self.directory,
            env=self._environ(terminal | environ),
        ) as process:
            os.close(theirs)
            shown = b"".join(read_all(ours))
        os.close(ours)
        return process.returncode, shown.decode()

    def _environ(self, environ: dict[str, str]) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AUDIT_", "CELERY_"))
            and name not in ("NO_COLOR", "FORCE_COLOR")
        }
        ours = {"AUDIT_MEMORY_URL": self.memory_url, "PYTHONPATH": str(ROOT)}
        return inherited | ours | environ


def read_all(terminal: int) -> Iterator[bytes]:
    """What a terminal shows until its last process ends, which Linux tells as an I/O error."""
    try:
        while chunk := os.read(terminal, 65536):
            yield chunk
    except OSError as error:
        if error.errno != errno.EIO:
            raise


@pytest.fixture
def cli(tmp_path: Path, server: EmbeddedServer) -> Cli:
    source = f"""
        from celery import Celery
        app = Celery("cli_app", broker="redis://127.0.0.1:9/0")
        app.conf.audit_memory_url = {server.url!r}
    """
    (tmp_path / "cli_app.py").write_text(re.sub("^ +", "", source, flags=re.MULTILINE))
    return Cli(tmp_path, server.url)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A child can be interrupted even where this process was started to ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def emitted(memory: AuditMemory, *rows: AuditRow) -> list[bytes]:
    """Emit the rows; the lines in which --json prints them."""
    for row in rows:
        memory.emit(row)
    return [row.to_bytes() + b"\n" for row in rows]


def invocation(
    memory: AuditMemory, reason: Reason = Reason.RETURNED, **changes: str
) -> tuple[bytes, bytes]:
    """Emit both rows of an invocation; their lines."""
    identity = make_identity(**changes)
    first, last = emitted(memory, started(identity), completed(identity, make_ending(reason)))
    return first, last


def test_json_prints_the_stored_bytes(cli: Cli, memory: AuditMemory) -> None:
    """Each command prints, byte for byte, what the memory holds."""
    done = make_identity(skill_id="ops.é")
    rows = emitted(memory, started(done), completed(done), started(make_identity()))
    assert cli.run("list", "--json") == (0, b"".join(rows), "")
    assert cli.run("show", done.request_id, "--json") == (0, rows[0] + rows[1], "")
    assert cli.run("running", "--json") == (0, rows[2], "")


def test_the_filters_reach_the_memory(cli: Cli, memory: AuditMemory) -> None:
    """A tenant, an outcome, a time and a number of rows each narrow the answer."""
    first = invocation(memory)
    panic = invocation(memory, Reason.WORKER_LOST, tenant_id=OTHER_TENANT)
    assert cli.run("list", "--json", "--tenant", OTHER_TENANT) == (0, b"".join(panic), "")
    assert cli.run("list", "--json", "--outcome", "panic", "--since", "1h") == (0, panic[1], "")
    assert cli.run("list", "--json", "--until", "1h") == (0, b"", "")
    said = "older rows left out: 1; --limit 0 prints all\n"
    assert cli.run("list", "--json", "--tenant", TENANT, "--limit", "1") == (0, first[1], said)


def test_a_pipe_gets_plain_lines(cli: Cli, memory: AuditMemory) -> None:
    """Without a terminal a table is lines of tab-separated cells under their titles."""
    invocation(memory, skill_id="ops.é")
    status, out, _ = cli.run("list", FORCE_COLOR="1", PYTHONIOENCODING="ascii")
    titles, *lines = (line.split("\t") for line in out.decode("ascii").splitlines())
    assert status == 0
    assert [len(line) for line in lines] == [len(titles), len(titles)]
    assert {line[titles.index("SKILL")] for line in lines} == {"ops.\\xe9"}


def test_a_terminal_gets_colours_and_nothing_that_was_stored_to_harm_it(
    cli: Cli, server: EmbeddedServer
) -> None:
    """On a terminal the only escape sequences are the table's own colours."""
    # Not the `memory` fixture: no writer of ours stores such a message, the schema forbids it.
    memory = open_memory(server.url)
    identity = make_identity(skill_id="\x1b[2J\x07[red]")
    ending = make_ending(Reason.RAISED, "\x1b]0;owned\x07\r\x9b2J")
    emitted(memory, started(identity), completed(identity, ending))
    memory.close()
    status, shown = cli.run_on_terminal("list")
    assert status == 0
    assert "\x1b[31merror" in shown
    bare = re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r\n", "")
    assert bare.isprintable()
    assert "[red]" in bare
    for args, environ in ((["show", identity.request_id], {}), (["list"], {"NO_COLOR": "1"})):
        status, shown = cli.run_on_terminal(*args, **environ)
        assert status == 0
        assert shown.replace("\r\n", "").isprintable()


def test_tail_prints_rows_that_are_emitted_while_it_runs(
    cli: Cli, memory: AuditMemory, interruptible: None
) -> None:
    """The last rows, then each new one at once, a new tenant's too; Ctrl-C ends it well."""
    there = invocation(memory)
    with cli.start("tail", "--json", "--last", "1") as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline() == there[1]
        for tenant_id in (OTHER_TENANT, "0f0e0d0c-0b0a-4908-8706-050403020100"):
            (line,) = emitted(memory, started(make_identity(tenant_id=tenant_id)))
            assert tail.stdout.readline() == line
        tail.send_signal(signal.SIGINT)
        assert tail.communicate() == (b"", b"")
    assert tail.returncode == 0


def test_tail_follows_a_filter_as_a_table(
    cli: Cli, memory: AuditMemory, interruptible: None
) -> None:
    """The titles come at once, so one sees that it runs; then only what passes the filter."""
    with cli.start("tail", "--outcome", "error") as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline().startswith(b"TIME\tREQUEST\tKIND\t")
        invocation(memory)
        invocation(memory, Reason.RAISED)
        assert b"\terror\t" in tail.stdout.readline()
        tail.send_signal(signal.SIGINT)
        assert tail.communicate() == (b"", b"")
    assert tail.returncode == 0


@pytest.mark.parametrize("command", [("list", "--limit", "0", "--json"), ("list", "--limit", "0")])
def test_a_reader_that_leaves_is_no_error(
    cli: Cli, memory: AuditMemory, command: tuple[str, ...]
) -> None:
    """`... | head` ends with exit status 0 and without a word."""
    for _ in range(400):  # more than a pipe holds
        emitted(memory, started(make_identity()))
    with cli.start(*command) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has a device that is always full")
def test_a_full_disk_is_bad_news(cli: Cli, memory: AuditMemory) -> None:
    """An answer that could not be written down whole gives exit status 1 and says why."""
    invocation(memory)
    with open("/dev/full", "wb") as full, cli.start("list", "--json", stdout=full) as process:
        _, err = process.communicate()
    assert process.returncode == 1
    assert err == b"Error: [Errno 28] No space left on device\n"


def test_a_memory_out_of_reach_is_bad_news(cli: Cli) -> None:
    """Exit status 1 and one line; the password of its URL is not in it."""
    for command in (["list"], ["running", "--json"], ["tail"], ["show", "x"]):
        url = NOWHERE.replace("//", "//:hunter2@")
        status, out, err = cli.run(*command, AUDIT_MEMORY_URL=url)
        assert (status, out) == (1, b"")
        assert re.fullmatch(r"Error: memory redis://127\.0\.0\.1:9/0 did not answer .+\n", err)
        assert "hunter2" not in err


def test_exit_status_of_an_unknown_invocation_and_of_wrong_usage(cli: Cli) -> None:
    """1 and 2, each with a text on standard error that is no traceback."""
    status, out, err = cli.run("show", "01KB8Z5T3MZJ9Y2V4Q6R8S0TAW")
    assert (status, out) == (1, b"")
    assert err.startswith("Error: no invocation '01KB8Z5T3MZJ9Y2V4Q6R8S0TAW' in this memory")
    status, out, err = cli.run("list", "--outcome", "panik")
    assert (status, out) == (2, b"")
    assert err.endswith(
        "Error: Invalid value for '--outcome': 'panik' is unknown, did you mean 'panic'?\n"
    )


def test_where_the_memory_is_comes_from_option_environment_and_configuration(
    cli: Cli, memory: AuditMemory
) -> None:
    """--memory wins over AUDIT_MEMORY_URL, that over the application's audit_memory_url."""
    (row,) = emitted(memory, started(make_identity()))
    assert cli.run("running", "--json", AUDIT_MEMORY_URL="") == (0, row, "")
    assert cli.run("running", "--json", AUDIT_MEMORY_URL=NOWHERE)[0] == 1
    option = ("--memory", cli.memory_url)
    assert cli.run(*option, "running", "--json", AUDIT_MEMORY_URL=NOWHERE) == (0, row, "")


def test_celery_finds_the_commands(cli: Cli) -> None:
    """The entry point makes `audit` a command of Celery, and its help names what it can do."""
    status, out, _ = cli.run("--help", AUDIT_MEMORY_URL=NOWHERE)
    assert status == 0
    for name in ("list", "running", "show", "tail"):
        assert re.search(rf"^  {name} ", out.decode(), re.MULTILINE)
