"""`audit.top` and `audit top`: what a picture says, and who gets one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from audit.cli import audit
from audit.memory.base import RowFilter
from audit.memory.page import Open, Page
from audit.row import Reason, timestamp
from audit.testing import InMemory
from audit.top import LOOK, Frame, as_text, read_frame
from tests.fakes import DOWN
from tests.support import completed, make_ending, make_identity, started

OTHER = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
NOW = datetime.now(UTC)


def ago(seconds: float) -> str:
    return timestamp(NOW - timedelta(seconds=seconds))


def shown(frame: Frame | None, width: int = 200, trouble: str = "", **more: Any) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(as_text(frame, width, trouble, **more))
    return [line.rstrip() for line in captured.get().splitlines()]


def frame_of(memory: InMemory, **wanted: Any) -> Frame:
    return read_frame(memory, NOW, **{"running": 10, "ended": 10, **wanted})


@pytest.fixture
def memory() -> InMemory:
    """Two that run, the older one by a dead process; one that has panicked since."""
    memory = InMemory()
    memory.hold_lease("w-alive", 60)
    for name, seconds in (("gone", 90), ("alive", 5)):
        worker, skill = f"w-{name}", f"skill.{name}"
        memory.emit(started(make_identity(worker=worker, skill_id=skill), ts=ago(seconds)))
    ended = make_identity(skill_id="skill.ended", tenant_id=OTHER)
    memory.emit(started(ended, ts=ago(9)))
    ending = make_ending(Reason.WORKER_LOST, "killed")
    memory.emit(completed(ended, ending, duration_ms=1234, ts=ago(8)))
    return memory


def test_a_picture_has_what_runs_and_what_ended(memory: InMemory) -> None:
    """The oldest first with its age and lease; the endings with outcome, reason and error."""
    title, head, oldest, youngest, _, last, _, ended = shown(frame_of(memory))
    assert title.startswith("Running: 2 ")
    assert head.split()[:4] == ["AGE", "SKILL", "LEASE", "REQUEST"]
    assert oldest.split()[:3] == ["1m30s", "skill.gone", "lost"]
    assert youngest.split()[:3] == ["5s", "skill.alive", "held"]
    assert last == "Last endings: 1"
    assert ended.split()[:5] == ["8s", "panic", "skill.ended", "1234", "worker_lost"]
    assert "killed" in ended


def test_a_picture_of_one_tenant(memory: InMemory) -> None:
    """Nothing of another's."""
    assert [line for line in shown(frame_of(memory, tenant_id=OTHER)) if "skill." in line] == [
        line for line in shown(frame_of(memory)) if "skill.ended" in line
    ]


def test_what_has_no_room_is_said(memory: InMemory) -> None:
    """How many more are running."""
    assert shown(frame_of(memory, running=1))[0].startswith("Running: 2, 1 younger ones left out")


def test_reading_is_bounded(memory: InMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One page of open invocations and one bounded look back, never the whole history."""
    asked: list[object] = []

    def open_page(tenant_id: str | None, most: int) -> Open:
        asked.append(most)
        return Open(rows=(), total=0)

    def page(wanted: RowFilter, *, most: int, look: int) -> Page:
        asked.append((most, look))
        return Page(rows=())

    def never(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the whole history is read")

    for name, answer in {"open_page": open_page, "page": page, "select": never}.items():
        monkeypatch.setattr(memory, name, answer)
    frame_of(memory, running=7, ended=8)
    assert asked == [7, (8, LOOK)]


def test_in_an_outage_the_last_picture_stays(memory: InMemory) -> None:
    """Above it stands why there is none newer; ages go on."""
    frame = frame_of(memory)
    trouble, title, _, oldest, *_ = shown(frame, 200, "gone", now=NOW + timedelta(seconds=30))
    assert trouble == "No newer picture: gone"
    assert title.startswith("Running: 2")
    assert oldest.startswith("2m00s")
    assert shown(None, 200, "gone") == ["No newer picture: gone"]


def test_no_line_is_wider_than_the_terminal(memory: InMemory) -> None:
    """Whatever its width; a line that folded would push others out of the screen."""
    for width in (20, 60, 80, 120):
        lines = shown(frame_of(memory), width, "a long story " * 20)
        assert len(lines) == 9
        assert max(map(len, lines)) <= width
        assert lines[0].endswith("\N{HORIZONTAL ELLIPSIS}")


def test_what_is_stored_is_no_order_to_a_terminal() -> None:
    """Neither control characters nor markup do anything."""
    memory = InMemory()
    memory.emit(started(make_identity(caller_persona="[red]x\x1b[2J@1", worker="\u202ew")))
    text = "\n".join(shown(frame_of(memory)))
    assert "[red]x\N{REPLACEMENT CHARACTER}[2J" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


# --- the command --------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, memory: InMemory, *args: str) -> Result:
    monkeypatch.setattr("audit.terminal.open_memory", lambda url, *, timeout: memory)
    monkeypatch.delenv("AUDIT_MEMORY_URL", raising=False)
    app = SimpleNamespace(conf={})
    return CliRunner().invoke(audit, ["top", *args], obj=SimpleNamespace(app=app, no_color=False))


def test_once_prints_one_picture_as_text(monkeypatch: pytest.MonkeyPatch, memory: InMemory) -> None:
    """In a pipe too, without anything that only a terminal reads."""
    result = run(monkeypatch, memory, "--once")
    assert result.exit_code == 0
    assert "skill.gone" in result.stdout
    assert "\x1b" not in result.stdout


def test_once_and_an_outage(monkeypatch: pytest.MonkeyPatch, memory: InMemory) -> None:
    """Bad news, as with the other commands."""

    def down(*_: object) -> NoReturn:
        raise DOWN

    monkeypatch.setattr(memory, "open_page", down)
    result = run(monkeypatch, memory, "--once")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "did not answer" in result.stderr


def test_the_live_view_is_for_terminals(monkeypatch: pytest.MonkeyPatch, memory: InMemory) -> None:
    """In a pipe it is wrong usage, and the text says what is there for pipes."""
    result = run(monkeypatch, memory)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--once" in result.stderr
