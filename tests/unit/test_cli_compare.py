"""`audit.cli_compare`: what `compare-args` answers, and that it repeats nothing it reads."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from audit.canonical import digest
from audit.cli import audit
from audit.keys import KeyRing
from audit.row import Identity, skill_invoked_started
from audit.testing import InMemory
from tests.support import TENANT, make_identity, now, refused

SECRET = "hunter2-4242"
ENTRIES = [
    {"id": "new", "secret": "n" * 32, "tenants": ["6ba7b810-9dad-41d1-80b4-00c04fd430c8"]},
    {"id": "old.1", "secret": "o" * 32},
]
RING = KeyRing.parse(ENTRIES)
EXAMPLE_ID = "01KB8Z5T3MZJ9Y2V4Q6R8S0TAW"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> InMemory:
    memory = InMemory()
    monkeypatch.setattr("audit.terminal.open_memory", lambda url, *, timeout: memory)
    for variable in ("AUDIT_MEMORY_URL", "AUDIT_HASH_KEYS"):
        monkeypatch.delenv(variable, raising=False)
    return memory


def start(memory: InMemory, arguments: Any, key_id: str = "", **changes: Any) -> Identity:
    identity = make_identity(**changes)
    args_hash = digest(arguments, RING.find(key_id) if key_id else None)
    memory.emit(skill_invoked_started(identity, args_hash, ts=now()))
    return identity


def compare(
    request_id: str, given: str | bytes, *more: str, keys: list[dict[str, Any]] = ENTRIES
) -> Result:
    app = SimpleNamespace(conf={"audit_hash_keys": keys})
    args = ["compare-args", request_id, *more]
    return CliRunner().invoke(
        audit, args, input=given, obj=SimpleNamespace(app=app, no_color=False)
    )


@pytest.mark.parametrize("key_id", ["", "new", "old.1"])
def test_arguments_are_compared_in_the_scheme_of_the_row(memory: InMemory, key_id: str) -> None:
    """Plain, or with the key that the row names, whomever that is for; exit status 0 and 1."""
    identity = start(memory, {"name": SECRET, "n": 1}, key_id)
    same = compare(identity.request_id, f'{{"n": 1.0, "name": "{SECRET}"}}')
    assert (same.exit_code, same.stdout, same.stderr) == (0, "the same\n", "")
    for other in ('{"n": 1}', '{"n": 2, "name": "hunter2-4242"}', "{}"):
        result = compare(identity.request_id, other, "-")
        assert (result.exit_code, result.stdout, result.stderr) == (1, "not the same\n", "")


def test_arguments_come_from_a_file(memory: InMemory, tmp_path: Path) -> None:
    """As written by an editor that begins its files with a byte order mark, too."""
    identity = start(memory, {"q": "é"})
    file = tmp_path / "arguments.json"
    file.write_bytes(b"\xef\xbb\xbf" + '{"q": "é"}\n'.encode())
    assert compare(identity.request_id, "", str(file)).stdout == "the same\n"


def test_what_json_has_no_word_for_is_written_as_celery_does(memory: InMemory) -> None:
    """Dates, UUIDs and numbers of any size are compared like everything else."""
    identity = start(memory, {"on": date(2026, 11, 29), "who": UUID(TENANT), "n": 2**60})
    on = '{"__type__": "date", "__value__": "2026-11-29"}'
    who = '{"__type__": "uuid", "__value__": {"hex": "550e8400e29b41d4a716446655440000"}}'
    given = f'{{"on": {on}, "who": {who}, "n": {2**60}}}'
    assert compare(identity.request_id, given).stdout == "the same\n"


def test_an_invocation_that_never_started_is_bad_news(memory: InMemory) -> None:
    """Unknown ones and refused ones have no hash: exit status 1."""
    identity = make_identity()
    memory.emit(refused(identity))
    for request_id in (identity.request_id, "no\x1bsuch"):
        result = compare(request_id, "{}")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "was started in this memory" in result.stderr
        assert "\x1b" not in result.stderr


def test_a_key_that_is_not_at_hand_is_wrong_usage(memory: InMemory) -> None:
    """The text names the key and the setting."""
    identity = start(memory, {}, "old.1")
    result = compare(identity.request_id, "{}", keys=ENTRIES[:1])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'old.1'" in result.stderr
    assert "audit_hash_keys (or AUDIT_HASH_KEYS)" in result.stderr


@pytest.mark.parametrize(
    "given",
    [
        "", SECRET, f'"{SECRET}"', f'["{SECRET}"]', f'{{"x": "{SECRET}"', "null", "5",
        f'{{"{SECRET}": 1, "{SECRET}": 2}}', f'{{"x": {{"__type__": "{SECRET}", "__value__": 1}}}}',
        f'{{"x": {{"__type__": "date", "__value__": "{SECRET}"}}}}',
        f'{{"__type__": "bytes", "__value__": "{SECRET}"}}',
        SECRET.encode() + b"\xff", SECRET.encode("utf-16"), "[" * 200_000, f'{{"x": {"9" * 5000}}}',
    ],
)  # fmt: skip
def test_what_is_no_arguments_is_wrong_usage(memory: InMemory, given: str | bytes) -> None:
    """Exit status 2, what is wanted, and nothing of what was given."""
    result = compare(start(memory, {}).request_id, given)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "give the arguments as one JSON object by name" in result.stderr
    assert SECRET not in result.stderr


@pytest.mark.parametrize("value", ["NaN", "-Infinity", r'"\ud800"', "[" * 140 + "]" * 140])
def test_what_has_no_canonical_form_is_wrong_usage(memory: InMemory, value: str) -> None:
    """Exit status 2 and the place, as in every error about a canonical form."""
    given = f'{{"x": {{"{SECRET}": {value}}}}}'
    result = compare(start(memory, {}).request_id, given)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no canonical JSON form at $.x.{key 0}" in result.stderr
    assert SECRET not in result.stderr


def test_a_file_that_is_not_there_is_wrong_usage(memory: InMemory) -> None:
    """Exit status 2."""
    assert compare(start(memory, {}).request_id, "", "nowhere/arguments.json").exit_code == 2


def test_arguments_are_not_taken_from_the_command_line(memory: InMemory) -> None:
    """Every user of the machine could read them there: a JSON text is but a file's name."""
    assert compare(start(memory, {}).request_id, "{}", "{}").exit_code == 2


def test_keys_come_from_the_environment_too(
    memory: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As JSON text, which wins over the configuration."""
    identity = start(memory, {"x": 1}, "old.1")
    monkeypatch.setenv("AUDIT_HASH_KEYS", json.dumps(ENTRIES))
    assert compare(identity.request_id, '{"x": 1}', keys=[]).stdout == "the same\n"


def test_the_example_in_the_help_runs(
    memory: InMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does what it says without complaint."""
    start(memory, {"x": 1}, request_id=EXAMPLE_ID)
    monkeypatch.chdir(tmp_path)
    Path("arguments.json").write_text('{"x": 1}')
    shown = CliRunner().invoke(audit, ["compare-args", "--help"]).stdout
    (example,) = re.findall(r"^ +celery -A tasks audit compare-args (\S+) (\S+)$", shown, re.M)
    result = compare(example[0], "", example[1])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "the same\n", "")
