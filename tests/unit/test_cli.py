"""`audit.cli`: what each command asks of the memory, prints, and answers as exit status."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from audit.cli import audit
from audit.cli_options import parse_moment
from audit.errors import MemoryUnavailableError, MemoryUnsuitableError
from audit.memory.base import AuditMemory, Hold, Once, RowFilter, Stored
from audit.row import (
    COMPLETED,
    AuditRow,
    Identity,
    Reason,
    Refusal,
    skill_invoked_completed,
    skill_invoked_refused,
    skill_invoked_started,
    timestamp,
)
from audit.testing import InMemory
from tests.support import HASH, TENANT, make_ending, make_identity

OTHER = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
EXAMPLE_ID = "01KB8Z5T3MZJ9Y2V4Q6R8S0TAW"
NOW = datetime.now(UTC)
#: When the test began: the module may have been read long before.
_began = NOW
#: They do more than ask: each has a test file of its own.
ELSEWHERE = (
    "compare-args",
    "copy",
    "doctor",
    "duplicates",
    "export",
    "keep",
    "keygen",
    "migrate",
    "prove",
    "prune",
    "reconcile",
    "seal",
    "top",
    "verify",
    "verify-pack",
)
COMMANDS = (*ELSEWHERE, "list", "running", "show", "tail")


@dataclass
class FakeMemory(InMemory):
    """Holds rows, and yields ``arriving`` (rows, ``None``, or an error to raise) to a follower."""

    stored: list[AuditRow] = field(default_factory=list)
    arriving: list[AuditRow | BaseException | None] = field(default_factory=list)
    error: Exception | None = None
    calls: list[str] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def check(self) -> None:
        raise AssertionError("the command line only reads")

    def emit(self, row: AuditRow, once: Once | None = None, hold: Hold | None = None) -> Stored:
        raise AssertionError("the command line only reads")

    def running(self, tenant_id: str | None = None) -> Iterator[AuditRow]:
        done = {row.request_id for row in self.stored if row.kind == COMPLETED}
        wanted = RowFilter(kind="skill.invoked_started", tenant_id=tenant_id)
        return (row for row in self.select(wanted) if row.request_id not in done)

    def select(self, wanted: RowFilter) -> Iterator[AuditRow]:
        self.calls.append("select")
        if self.error:
            raise self.error
        return filter(wanted.matches, list(self.stored))

    def follow(self, wanted: RowFilter, *, poll: float = 0.2) -> Iterator[AuditRow | None]:
        self.calls.append("follow")
        return self._follow(wanted)

    def _follow(self, wanted: RowFilter) -> Iterator[AuditRow | None]:
        for item in self.arriving:
            if isinstance(item, BaseException):
                raise item
            if item is None or wanted.matches(item):
                yield item

    def close(self) -> None:
        self.closed = True


def identity(number: int, **changes: Any) -> Identity:
    names = {"request_id": f"{number:026}", "trace_id": f"{number + 1:032x}"}
    return make_identity(**{**names, "task_id": f"task-{number}", **changes})


@pytest.fixture(autouse=True)
def _moment() -> None:
    global _began
    _began = datetime.now(UTC)


def started(number: int, *, ago: float = 60, **changes: Any) -> AuditRow:
    ts = timestamp(_began - timedelta(seconds=ago))
    return at(2 * number, skill_invoked_started(identity(number, **changes), HASH, ts=ts))


def completed(
    number: int, reason: Reason = Reason.RETURNED, *, ago: float = 30, **changes: Any
) -> AuditRow:
    ts = timestamp(_began - timedelta(seconds=ago))
    row = skill_invoked_completed(
        identity(number, **changes), make_ending(reason, "ValueError: boom"), 7, ts=ts
    )
    return at(2 * number + 1, row)


def at(position: int, row: AuditRow) -> AuditRow:
    """``row`` as a memory gives it back, in bytes that only it can know."""
    return AuditRow.from_bytes(row.to_bytes().replace(b",", b" ,", 1), f"{position}-0")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> FakeMemory:
    fake = FakeMemory()
    monkeypatch.setattr("audit.terminal.open_memory", lambda url, *, timeout: fake)
    for variable in ("AUDIT_MEMORY_URL", "AUDIT_EMIT_TIMEOUT", "AUDIT_LEDGER_DIR"):
        monkeypatch.delenv(variable, raising=False)
    return fake


def run(*args: str, conf: dict[str, Any] | None = None) -> Result:
    obj = SimpleNamespace(app=SimpleNamespace(conf=conf or {}), no_color=False)
    return CliRunner().invoke(audit, args, obj=obj)


def requests(result: Result) -> list[str]:
    """The REQUEST cells of a table, as numbers."""
    assert result.exit_code == 0, result.output
    titles, *lines = (line.split("\t") for line in result.stdout.splitlines())
    return [line[titles.index("REQUEST")].lstrip("0") for line in lines]


def stored_lines(*rows: AuditRow) -> bytes:
    return b"".join(row.to_bytes() + b"\n" for row in rows)


# --- running ------------------------------------------------------------------------------------


def test_running_lists_what_is_not_completed_oldest_first(memory: FakeMemory) -> None:
    """Started and not completed, whatever the tenant, the oldest first."""
    memory.stored = [
        started(1, ago=10),
        started(2, ago=300, tenant_id=OTHER),
        started(3),
        completed(3),
    ]
    assert requests(run("running")) == ["2", "1"]
    assert requests(run("running", "--tenant", TENANT)) == ["1"]


def test_running_says_since_when(memory: FakeMemory) -> None:
    """Each line begins with the age."""
    memory.stored = [started(1, ago=3 * 3600 + 60)]
    assert run("running").stdout.splitlines()[1].startswith("3h0")


# --- list ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param([], ["1", "1", "2", "2", "3", "4"], id="everything"),
        pytest.param(["--tenant", OTHER.upper()], ["2", "2"], id="tenant"),
        pytest.param(["--since", "2h"], ["2", "3", "4"], id="since"),
        pytest.param(["--until", "2h"], ["1", "1", "2"], id="until"),
        pytest.param(["--since", "150m", "--until", "90m"], ["1", "2"], id="since-until"),
        pytest.param(["--kind", "completed"], ["1", "2"], id="kind"),
        pytest.param(["--kind", "skill.invoked_refused"], ["4"], id="kind-in-full"),
        pytest.param(["--skill", "ops.other"], ["3"], id="skill"),
        pytest.param(["--outcome", "panic"], ["2"], id="outcome"),
        pytest.param(["--persona", "cmo@1"], ["3"], id="persona"),
        pytest.param(["--trace", f"{2:032x}"], ["1", "1"], id="trace"),
        pytest.param(["--request", f"{2:026}"], ["2", "2"], id="request"),
        pytest.param(["--task", "task-3"], ["3"], id="task"),
        pytest.param(["--kind", "started", "--tenant", TENANT], ["1", "3"], id="two"),
        pytest.param(["--skill", "ops.none"], [], id="nothing"),
    ],
)
def test_list_filters(memory: FakeMemory, options: list[str], expected: list[str]) -> None:
    """Each filter lets through what it names, oldest first; several must all hold."""
    memory.stored = [
        started(1, ago=9600),
        completed(1, ago=8000),
        started(2, ago=7300, tenant_id=OTHER),
        completed(2, Reason.WORKER_LOST, ago=5000, tenant_id=OTHER),
        started(3, skill_id="ops.other", caller_persona="cmo@1"),
        at(
            8,
            skill_invoked_refused(identity(4), Refusal.BAD_ARGUMENTS, ts=timestamp(_began)),
        ),
    ]
    assert requests(run("list", *options)) == expected


def test_list_keeps_to_the_newest_and_says_so(memory: FakeMemory) -> None:
    """Of more than --limit rows the newest are printed, and standard error tells the rest."""
    memory.stored = [started(number) for number in range(1, 106)]
    assert requests(run("list")) == [str(number) for number in range(6, 106)]
    assert run("list").stderr == "older rows left out: 5; --limit 0 prints all\n"
    assert requests(run("list", "--limit", "2")) == ["104", "105"]
    assert run("list", "--limit", "105").stderr == ""


def test_list_without_a_limit_streams(memory: FakeMemory) -> None:
    """--limit 0 prints every row, and each before the next is read."""
    memory.stored = [started(number) for number in range(1, 301)]
    assert len(requests(run("list", "--limit", "0"))) == 300

    def broken_after_two(wanted: RowFilter) -> Iterator[AuditRow]:
        yield from memory.stored[:2]
        raise MemoryUnavailableError("gone")

    memory.select = broken_after_two  # type: ignore[method-assign]
    result = run("list", "--limit", "0", "--json")
    assert result.stdout_bytes == stored_lines(*memory.stored[:2])
    assert result.exit_code == 1


# --- show ---------------------------------------------------------------------------------------


def test_show_prints_every_row_of_the_invocation(memory: FakeMemory) -> None:
    """Both rows are there with all fields, the parent's request_id among them."""
    memory.stored = [
        started(1),
        started(2, parent_request_id=f"{1:026}"),
        completed(2, Reason.RAISED),
    ]
    result = run("show", f"{2:026}")
    assert result.exit_code == 0
    first, second = result.stdout.split("\n\n")
    assert re.search(rf"^meta\.parent_request_id +{1:026}$", first, re.MULTILINE)
    assert re.search(r"^error_message +ValueError: boom$", second, re.MULTILINE)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_show_of_an_unknown_invocation_is_bad_news(memory: FakeMemory, options: list[str]) -> None:
    """An unknown request_id gives exit status 1, its name, and where else to look."""
    result = run("show", "no\x1bsuch", *options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no invocation 'no\\x1bsuch'" in result.stderr
    assert "list --task" in result.stderr


# --- tail ---------------------------------------------------------------------------------------


def test_tail_prints_the_last_rows_and_then_what_arrives(memory: FakeMemory) -> None:
    """Ten rows that are there, or --last many, come before those that arrive."""
    memory.stored = [started(number) for number in range(1, 21)]
    memory.arriving = [None, started(21), None, started(22)]
    assert requests(run("tail")) == [str(number) for number in range(11, 23)]
    assert requests(run("tail", "--last", "1")) == ["20", "21", "22"]
    assert requests(run("tail", "--last", "0")) == ["21", "22"]


def test_tail_prints_a_row_that_comes_both_ways_once(memory: FakeMemory) -> None:
    """It follows before it reads: a row that arrives in between is neither lost nor doubled."""
    between = started(2)
    # The position of another tenant's row may be the same.
    elsewhere = replace(started(3, tenant_id=OTHER), position=between.position)
    memory.stored = [started(1), between]
    memory.arriving = [between, elsewhere, started(4)]
    assert requests(run("tail")) == ["1", "2", "3", "4"]
    assert memory.calls == ["follow", "select"]


def test_tail_filters_both_what_is_there_and_what_arrives(memory: FakeMemory) -> None:
    """The filters of `list` hold for the last rows and for the new ones."""
    memory.stored = [completed(1), completed(2, Reason.RAISED)]
    memory.arriving = [completed(3), completed(4, Reason.RETRIED)]
    assert requests(run("tail", "--outcome", "error")) == ["2", "4"]


def test_tail_ends_well_on_ctrl_c(memory: FakeMemory) -> None:
    """Ctrl-C is how a tail ends: exit status 0, no message, the memory closed."""
    memory.arriving = [started(1), KeyboardInterrupt(), started(2)]
    result = run("tail", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout_bytes == stored_lines(started(1))
    assert memory.closed


def test_tail_says_that_the_memory_is_gone(memory: FakeMemory) -> None:
    """A memory that stops answering ends the tail with exit status 1."""
    memory.arriving = [started(1), MemoryUnavailableError("no answer")]
    result = run("tail")
    assert (result.exit_code, result.stderr) == (1, "Error: no answer\n")


# --- what all of them share ---------------------------------------------------------------------


@pytest.mark.parametrize("command", [["running"], ["list"], ["show", f"{1:026}"], ["tail"]])
def test_json_is_the_stored_bytes(memory: FakeMemory, command: list[str]) -> None:
    """With --json standard output is each row's stored bytes and a line feed, nothing else."""
    row = started(1, skill_id="ops.é\N{CJK UNIFIED IDEOGRAPH-6F22}")
    memory.stored = [row]
    result = run(*command, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout_bytes == stored_lines(row)


@pytest.mark.parametrize("command", ["running", "list", "tail"])
def test_nothing_found_is_no_bad_news(memory: FakeMemory, command: str) -> None:
    """An empty answer is a line of titles, or no line with --json, and exit status 0."""
    assert requests(run(command)) == []
    result = run(command, "--json")
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize("error", [MemoryUnavailableError("down"), MemoryUnsuitableError("evicts")])
@pytest.mark.parametrize("command", [["running"], ["list"], ["show", "x"], ["tail"]])
def test_an_error_of_the_audit_is_told_without_a_traceback(
    memory: FakeMemory, command: list[str], error: Exception
) -> None:
    """Exit status 1, the error's text on standard error, nothing on standard output."""
    memory.error = error
    result = run(*command)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {error}\n")
    assert memory.closed


def test_an_error_text_is_no_order_to_a_terminal(memory: FakeMemory) -> None:
    """What a server wrote into an error loses its control characters."""
    memory.error = MemoryUnavailableError("said \x1b[2J")
    assert run("list").stderr == "Error: said \N{REPLACEMENT CHARACTER}[2J\n"


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["list", "--tenant", "acme"], "'acme' is no UUID like 550e8400-"),
        (["running", "--tenant", ""], "'' is no UUID"),
        (["list", "--since", "yesterday"], "'yesterday' is no time: give RFC 3339"),
        (["list", "--until", "2026-11-29T21:45:00"], "is no time"),
        (["list", "--since", "1h", "--until", "2h"], "--since must lie before --until"),
        (["list", "--kind", "skill.invoked_start"], "did you mean 'skill.invoked_started'?"),
        (["list", "--kind", "compleated"], "did you mean 'completed'?"),
        (["tail", "--outcome", "sucess"], "did you mean 'success'?"),
        (["list", "--outcome", "%"], "use one of success, error, panic, timeout"),
        (["list", "--limit", "-1"], "--limit"),
        (["list", "--limt", "1"], "--limit"),
        (["show"], "REQUEST_ID"),
        (["runing"], "running"),
    ],
)
def test_wrong_usage(memory: FakeMemory, args: list[str], complaint: str) -> None:
    """Exit status 2, what is wrong and what would be right; the memory is not asked."""
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert complaint in result.stderr
    assert memory.calls == []


def test_the_memory_is_the_one_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """--memory wins over the environment, that over the configuration; the timeout comes along."""
    opened: list[tuple[str, float]] = []

    def open_memory(url: str, *, timeout: float) -> FakeMemory:
        opened.append((url, timeout))
        return FakeMemory()

    monkeypatch.setattr("audit.terminal.open_memory", open_memory)
    conf = {"audit_memory_url": "redis://conf", "audit_emit_timeout": 7}
    run("list", conf=conf)
    monkeypatch.setenv("AUDIT_MEMORY_URL", "redis://env")
    run("list", conf=conf)
    run("--memory", "redis://option", "list", conf=conf)
    assert opened == [("redis://conf", 7.0), ("redis://env", 7.0), ("redis://option", 7.0)]


def test_a_memory_url_that_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is wrong usage in --memory, and bad news in the settings."""
    given = run("--memory", "pigeon://x", "list")
    assert given.exit_code == 2
    assert "Invalid value for '--memory': unknown memory" in given.stderr
    monkeypatch.setenv("AUDIT_MEMORY_URL", "pigeon://x")
    configured = run("list")
    assert configured.exit_code == 1
    assert configured.stderr.startswith("Error: unknown memory")


def test_a_setting_that_cannot_be_used_is_bad_news(memory: FakeMemory) -> None:
    """The text names the setting."""
    result = run("list", conf={"audit_emit_timeout": "soon"})
    assert result.exit_code == 1
    assert "audit_emit_timeout" in result.stderr


# --- times --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-29T21:45:38Z", datetime(2026, 11, 29, 21, 45, 38, tzinfo=UTC)),
        ("2026-11-29t21:45:38.123456z", datetime(2026, 11, 29, 21, 45, 38, 123456, tzinfo=UTC)),
        ("2026-11-29 23:45:38+02:00", datetime(2026, 11, 29, 21, 45, 38, tzinfo=UTC)),
        ("90s", NOW - timedelta(seconds=90)),
        ("15m", NOW - timedelta(minutes=15)),
        ("2h", NOW - timedelta(hours=2)),
        ("7d", NOW - timedelta(days=7)),
        ("2w", NOW - timedelta(weeks=2)),
    ],
)
def test_a_time_is_rfc_3339_or_so_long_ago(text: str, moment: datetime) -> None:
    """RFC 3339, section 5.6, with its offset; or a number and a unit."""
    assert parse_moment(text, NOW) == moment


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11-29",
        "2026-11-29T21:45:38",
        "2026-11-29T21:45Z",
        "2026-W48-7T21:45:38Z",
        "2026-02-30T00:00:00Z",
        "15",
        "m",
        "-5m",
        "1.5h",
        "5 m",
        "999999999w",
        "99999999d",
        "٣h",
        "9999999999999999999s",
    ],
)
def test_anything_else_is_no_time(text: str) -> None:
    """No zone is guessed, no unit, and nothing before the calendar begins."""
    with pytest.raises(ValueError, match="is no time"):
        parse_moment(text, NOW)


# --- help ---------------------------------------------------------------------------------------


def help_of(*command: str) -> str:
    result = run(*command, "--help")
    assert result.exit_code == 0
    return result.stdout


def test_the_help_names_every_command() -> None:
    """The group's help lists all of its commands, each with what it does."""
    listed = help_of().partition("Commands:\n")[2]
    assert sorted(audit.commands) == sorted(COMMANDS)
    for name in COMMANDS:
        assert re.search(rf"^  {name}  +\w.+\.$", listed, re.MULTILINE)
    assert "..." not in listed


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS if name not in ELSEWHERE)])
def test_the_examples_in_the_help_run(memory: FakeMemory, command: tuple[str, ...]) -> None:
    """Every help text has an example, and each does what it says without complaint."""
    memory.stored = [started(1, request_id=EXAMPLE_ID)]
    examples = re.findall(r"^ +celery -A tasks audit (.+)$", help_of(*command), re.MULTILINE)
    assert examples
    for example in examples:
        result = run(*example.split())
        assert (result.exit_code, result.stderr) == (0, "")


def test_every_option_says_what_it_does() -> None:
    """No option is without a help text."""
    for command in (audit, *audit.commands.values()):
        options = [param for param in command.params if isinstance(param, click.Option)]
        assert [option.name for option in options if not option.help] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_needs_no_memory(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Nothing is opened, and no setting read, to print a help text."""
    broken: Callable[..., AuditMemory] = lambda *_, **__: pytest.fail("opened")  # noqa: E731
    monkeypatch.setattr("audit.terminal.open_memory", broken)
    monkeypatch.setenv("AUDIT_EMIT_TIMEOUT", "soon")
    assert "Example:" in help_of(name)
