"""The README's snippets do what the README says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from audit import open_memory
from audit.embedded import EmbeddedServer
from audit.settings import AuditSettings
from tests.integration.stack import ROOT
from tests.support import check_every_row, wait_until

README = (ROOT / "README.md").read_text(encoding="utf-8")
BEFORE_LEDGER, _, LEDGER = README.partition("## Prove that nothing was changed")
SNIPPET = re.compile(r"<!-- snippet: (?P<name>\S+) -->\n```python\n(?P<code>.*?)```", re.S)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: Any) -> Iterator[Path]:
    """A folder with the README's files, a server, and a worker of its first snippet."""
    directory = tmp_path_factory.mktemp("readme")
    with EmbeddedServer() as server:
        for match in SNIPPET.finditer(README):
            code = match["code"].replace("redis://127.0.0.1:6379/1", server.url_for(1))
            (directory / match["name"]).write_text(code)
        environ = {
            "CELERY_BROKER_URL": server.url_for(0),
            "CELERY_RESULT_BACKEND": server.url_for(0),
            "AUDIT_MEMORY_URL": server.url_for(1),
            "AUDIT_SPOOL_DIR": str(directory / "spool"),
            "PYTHONPATH": f"{ROOT}:{directory}",
        }
        os.environ.update(environ)
        log = (directory / "worker.log").open("wb")
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "my_skills", "worker", "-c", "1", "-l", "INFO"],
            cwd=directory,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until(lambda: " ready." in (directory / "worker.log").read_text(), 60)
            yield directory
        finally:
            worker.terminate()
            worker.wait(30)
            log.close()
            memory = open_memory(environ["AUDIT_MEMORY_URL"])
            check_every_row(memory)
            memory.close()
            for name in environ:
                os.environ.pop(name, None)


def run(directory: Path, *command: str) -> str:
    finished = subprocess.run(
        [sys.executable, *command], cwd=directory, capture_output=True, text=True, timeout=60
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_calling_and_reading(reader: Path) -> None:
    """The caller's snippet prints the result, the reader's snippet prints both rows."""
    assert run(reader, "call.py") == "{'cents': 1000}\n"
    lines = run(reader, "read.py").splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["skill.invoked_started", "-"],
        ["skill.invoked_completed", "success"],
    ]


def test_the_commands_of_the_readme_run(reader: Path) -> None:
    """Each `celery ... audit` command of the README runs; `show` with an id that exists."""
    run(reader, "call.py")
    request_id = run(reader, "read.py").split()[-1]
    commands = re.findall(r"^celery (.* audit .*)$", BEFORE_LEDGER, re.M)
    assert len(commands) == 7
    for command in commands:
        words = shlex.split(re.sub(r"show \S+", f"show {request_id}", command))
        if not {"tail", "keep", "doctor", "top"} & set(words):
            output = run(reader, "-m", "celery", *words)
            assert "running" in words or request_id in output


def test_the_commands_of_the_ledger_run(
    reader: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order; a keeper that seals without end is left out for one round of sealing."""
    run(reader, "call.py")
    commands = re.findall(r"^(?:celery .* audit|export) .*$", LEDGER, re.M)
    assert len(commands) == 5
    for command in commands:
        words = shlex.split(command, comments=True)
        if words[0] == "export":
            for setting in words[1:]:
                name, _, value = setting.partition("=")
                monkeypatch.setenv(name, str(tmp_path / value))
            continue
        words = ["seal" if word == "keep" else word for word in words]
        words = [str(tmp_path / w) if w.endswith((".keys", ".zip")) else w for w in words]
        run(reader, "-m", *words)
    assert (tmp_path / "week.zip").stat().st_size > 1000


def test_adopting_snippet(reader: Path) -> None:
    """The snippet for an existing application declares one skill and one plain task."""
    output = run(
        reader,
        "-c",
        "import existing; from tasks import SkillTask; tasks = existing.celery_app.tasks;"
        "print(isinstance(tasks['shop.restock'], SkillTask),"
        " isinstance(tasks['existing.stays_plain'], SkillTask))",
    )
    assert output == "True False\n"


def test_every_setting_is_named() -> None:
    """Whatever AuditSettings reads stands in the README, with its environment variable."""
    for name in (field.name for field in fields(AuditSettings)):
        assert f"`audit_{name}`" in README, name
        assert f"`AUDIT_{name.upper()}`" in README, name


def test_every_setting_of_the_table_exists() -> None:
    """The settings table names what AuditSettings reads, with the defaults it has."""
    rows = re.findall(r"^\| `(audit_\w+)` \| `(\w+)` \| `([^`]+)` \|", README, re.M)
    rows = [
        (name, variable, default.replace("~", str(Path.home()))) for name, variable, default in rows
    ]
    defaults = AuditSettings()
    assert len(rows) == 14
    for name, variable, default in rows:
        field = name.removeprefix("audit_")
        assert str(getattr(AuditSettings.read({}, {variable: default}), field)) == str(
            getattr(defaults, field)
        )
