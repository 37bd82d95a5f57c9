"""`audit.cli_verify`: what `verify` says, in words and in JSON, and its exit status."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from audit.cli import audit
from audit.errors import MemoryDamagedError
from audit.ledger.note_key import Algorithm, SignerKey, VerifierKey
from audit.ledger.text import encode_base64
from audit.row import timestamp
from tests.integration.otlp import OtlpSink
from tests.ledger_writer import (
    META,
    PREFIX,
    SECRET,
    TENANTS,
    WITNESS,
    PlainEntry,
    PlainLedger,
    PlainMemory,
    cosigned,
    fill,
    just_now,
    rows_of,
)

SIGNER = SignerKey.generate(PREFIX, random=lambda count: b"k" * count)
STRANGER = SignerKey.generate(PREFIX, random=lambda count: b"x" * count)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlainLedger:
    """Two tenants with 40 sealed rows each and 2 that are not."""
    memory, random = PlainMemory(), Random(1)
    ledger = PlainLedger(tmp_path / "ledger", memory, SIGNER)
    for tenant in TENANTS[:2]:
        waiting = just_now(rows_of(tenant, 2, random))
        fill(memory, tenant, [*rows_of(tenant, 40, random), *waiting])
    ledger.round(dict.fromkeys(TENANTS[:2], 40))
    ledger.finish()
    monkeypatch.setattr(memory, "close", lambda: None, raising=False)
    monkeypatch.setattr("audit.terminal.open_memory", lambda url, *, timeout: memory)
    monkeypatch.setattr("audit.ledger.sources._PAUSE", 0)
    for variable in ("DIR", "KEYS", "ORIGIN"):
        monkeypatch.delenv(f"AUDIT_LEDGER_{variable}", raising=False)
    return ledger


def run(ledger: PlainLedger | None, *args: str, **more: Any) -> Result:
    conf: dict[str, Any] = dict(more)
    if ledger is not None:
        text = f"{SIGNER.to_text()}\nsecret {encode_base64(SECRET)}\n"
        conf |= {"audit_ledger_dir": str(ledger.root), "audit_ledger_origin": PREFIX}
        conf.setdefault("audit_ledger_keys", text)
    app = SimpleNamespace(conf=conf)
    command = ["verify", *args]
    return CliRunner().invoke(audit, command, obj=SimpleNamespace(app=app, no_color=True))


def objects(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_sound_ledger_is_right(ledger: PlainLedger) -> None:
    """Exit status 0; each log with what is sealed and unsealed, and the sum."""
    result = run(ledger)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == "RIGHT: 82 rows checked, findings: 0"
    assert result.stdout.count("sealed 40, checked 40; cosigned 0; unsealed 2") == 2


def test_a_finding_says_where(ledger: PlainLedger) -> None:
    """Exit status 1, and kind, index, position and request_id, in words and in JSON."""
    rows = ledger.memory.rows[TENANTS[0]]
    request_id = json.loads(rows[7].stored)["payload"]["request_id"]
    rows[7] = PlainEntry("8-0", rows[7].stored.replace(b'"attempt":0', b'"attempt":1'))
    result = run(ledger)
    assert result.exit_code == 1
    expected = f"  EDITED in the memory: index 7, position 8-0, request {request_id}"
    assert expected in result.stdout.splitlines()
    told = objects(run(ledger, "--json"))
    (finding,) = [one for one in told if one["type"] == "finding"]
    assert finding == {
        "type": "finding", "kind": "edited", "source": "memory", "log": ledger.log(TENANTS[0]),
        "tenant": TENANTS[0], "index": 7, "count": 1, "position": "8-0",
        "request_id": request_id, "text": "",
    }  # fmt: skip
    assert told[-1] == {
        "type": "verdict", "verdict": "wrong", "checked": 82, "unsealed": 4, "findings": 1,
    }  # fmt: skip


def test_findings_are_told_over_otlp(ledger: PlainLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many, for the sev-1 alarm; a sound ledger tells a zero."""
    with OtlpSink() as sink:
        for name, value in sink.environ.items():
            monkeypatch.setenv(name, value)
        run(ledger)
        rows = ledger.memory.rows[TENANTS[0]]
        rows[7] = PlainEntry("8-0", rows[7].stored.replace(b'"attempt":0', b'"attempt":1'))
        run(ledger)
        told = [point.as_int for _, point in sink._points("skill_ledger_findings")]
        assert sorted(set(told)) == [0, 1]
        assert {who["skill.host.role"] for who in sink.resources()} == {"verifier"}


def test_one_tenant_is_checked_alone(ledger: PlainLedger) -> None:
    """The other's rows are of no concern."""
    del ledger.memory.rows[TENANTS[1]][3]
    assert run(ledger, "--tenant", TENANTS[0]).exit_code == 0
    assert run(ledger, "--tenant", TENANTS[1]).exit_code == 1


def test_nothing_to_check_is_no_pass(ledger: PlainLedger, tmp_path: Path) -> None:
    """Exit status 1 and a verdict of its own: an unknown tenant, an empty folder."""
    (tmp_path / "empty").mkdir()
    key = SIGNER.verifier.to_text()
    for args in (["--tenant", TENANTS[2]], ["--ledger", str(tmp_path / "empty"), "--key", key]):
        result = run(ledger, *args, "--json")
        assert (result.exit_code, objects(result)[-1]["verdict"]) == (1, "empty")
        assert "NOTHING WAS CHECKED" in run(ledger, *args).stdout


def test_an_outsider_needs_a_copy_and_a_key(ledger: PlainLedger, tmp_path: Path) -> None:
    """No secret, no list of tenants, no memory; a stranger's key is not enough."""
    copy = tmp_path / "copy"
    shutil.copytree(ledger.root, copy, ignore=lambda *_: ["tenants", "keys", "positions"])
    args = ("--ledger", str(copy), "--key")
    result = run(None, *args, SIGNER.verifier.to_text())
    assert (result.exit_code, result.stderr) == (0, "")
    result = run(None, *args, STRANGER.verifier.to_text(), "--json")
    assert result.exit_code == 1
    assert {one["kind"] for one in objects(result) if one["type"] == "finding"} == {"untrusted"}


def test_keys_beside_the_rows_count_with_a_warning(ledger: PlainLedger) -> None:
    """Where no other key is at hand; who can change the rows can change them."""
    result = run(ledger, audit_ledger_keys=None)
    assert result.exit_code == 0
    assert "give --key VKEY" in result.stderr
    (ledger.root / "keys").unlink()
    assert run(ledger, audit_ledger_keys=None).exit_code == 2


def test_what_witnesses_have_seen_is_told_for_those_that_are_known(ledger: PlainLedger) -> None:
    """Of the setting, of --key, and of the keys beside the rows where those count; given keys of
    witnesses leave no other, and a damaged one of the setting is wrong usage."""
    path = ledger.root / META / "checkpoint.cosigned"
    path.write_bytes(cosigned(ledger.note(META, 1)))
    vkey, ours = WITNESS.to_text(), SIGNER.verifier.to_text()
    known = {"audit_ledger_witnesses": [{"url": "https://witness.example", "vkey": vkey}]}
    other = VerifierKey("witness.example", b"o" * 32, Algorithm.COSIGNATURE).to_text()

    def cosigned_rows(*args: str, **more: Any) -> list[int]:
        told = objects(run(ledger, "--json", *args, **more))
        assert told[-1]["verdict"] == "right"
        return sorted(o["cosigned"] for o in told if o["type"] == "log" and o["tenant"])

    assert cosigned_rows() == cosigned_rows("--key", ours) == [0, 0]
    assert cosigned_rows(**known) == cosigned_rows("--key", vkey) == [0, 40]
    assert cosigned_rows("--key", ours, **known) == [0, 40]
    assert cosigned_rows("--key", other, **known) == [0, 0]
    with (ledger.root / "keys").open("a") as keys:
        keys.write(f"{vkey}\n")
    assert cosigned_rows(audit_ledger_keys=None) == [0, 40]
    known["audit_ledger_witnesses"][0]["vkey"] = "junk"
    damaged = run(ledger, **known)
    assert (damaged.exit_code, "audit_ledger_witnesses" in damaged.stderr) == (2, True)


def test_a_kept_checkpoint_is_held_against_the_log(ledger: PlainLedger, tmp_path: Path) -> None:
    """One that the log has grown from is right; one of another history is a fork."""
    kept = tmp_path / "kept"
    kept.write_bytes(ledger.note(TENANTS[0], 11))
    assert run(ledger, "--from-checkpoint", str(kept)).exit_code == 0
    kept.write_bytes(ledger.sign(TENANTS[0], 11, b"o" * 32))
    result = run(ledger, "--from-checkpoint", str(kept))
    assert result.exit_code == 1
    assert "FORK in the given: index 11" in result.stdout


@pytest.mark.parametrize("only", ["memory", "files"])
def test_one_side_is_checked_alone(ledger: PlainLedger, only: str) -> None:
    """What was done to the other is not seen."""
    assert run(ledger, "--only", only).exit_code == 0
    ledger.memory.rows[TENANTS[0]].pop(5)
    assert run(ledger, "--only", only).exit_code == (1 if only == "memory" else 0)


def test_what_was_not_checked_is_no_pass(ledger: PlainLedger) -> None:
    """The memory alone, trimmed as it says itself: exit status 1 and a word of its own, of one
    tenant and of both."""
    ledger.memory.trim(TENANTS[0], 7)
    result = run(ledger, "--only", "memory")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (
        1,
        "NOT ALL WAS CHECKED: 40 rows checked, findings: 0; nothing of 1 logs with sealed rows",
    )
    assert objects(run(ledger, "--only", "memory", "--json"))[-1]["verdict"] == "partial"
    ledger.memory.trim(TENANTS[1], 7)
    result = run(ledger, "--only", "memory")
    last = "NOTHING WAS CHECKED of 80 sealed rows, and that proves nothing"
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (1, last)
    assert run(ledger).exit_code == 0


def test_rows_that_nobody_seals_are_findings(ledger: PlainLedger) -> None:
    """After a minute and the time between two seals, or as long as is asked for."""
    row = rows_of(TENANTS[0], 1, Random(2))[0]
    old = replace(row, ts=timestamp(datetime.now(UTC) - timedelta(seconds=120))).to_bytes()
    result = run(ledger, "--unsealed-for", "0")
    assert (result.exit_code, result.stdout.count("UNSEALED in the memory: 2 rows")) == (1, 2)
    ledger.memory.rows[TENANTS[0]].append(PlainEntry("43-0", old))
    assert "UNSEALED in the memory: position 43-0" in run(ledger).stdout
    assert run(ledger, "--unsealed-for", "600").exit_code == 0
    assert run(ledger, audit_ledger_seal_seconds=600).exit_code == 0


def test_wrong_usage(ledger: PlainLedger, tmp_path: Path) -> None:
    """Exit status 2: no ledger, a folder that is not there, a damaged key, no checkpoint."""
    assert "AUDIT_LEDGER_DIR" in run(None).stderr
    junk = tmp_path / "junk"
    junk.write_bytes(b"junk")
    for where, args in (
        (None, []), (ledger, ["--ledger", "nowhere"]), (ledger, ["--key", "junk"]),
        (ledger, ["--from-checkpoint", str(junk)]), (ledger, ["--tenant", "junk"]),
    ):  # fmt: skip
        assert run(where, *args).exit_code == 2


def test_the_example_in_the_help_runs(ledger: PlainLedger) -> None:
    """It does what it says without complaint."""
    shown = CliRunner().invoke(audit, ["verify", "--help"]).stdout
    (example,) = re.findall(r"^ +celery -A tasks audit verify (.*)$", shown, re.MULTILINE)
    result = run(ledger, *example.split())
    assert (result.exit_code, result.stderr) == (0, "")


def test_what_is_not_known_is_not_told_as_nothing(
    ledger: PlainLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant whose keys in the memory are damaged is a finding, and its unsealed rows unknown."""
    memory = ledger.memory
    right = memory.trimmed

    def trimmed(tenant_id: str) -> str | None:
        if tenant_id == TENANTS[0]:
            raise MemoryDamagedError("a position is none", tenant_id=tenant_id)
        return right(tenant_id)

    monkeypatch.setattr(memory, "trimmed", trimmed)
    result = run(ledger)
    assert result.exit_code == 1
    assert result.stdout.count("sealed 40, checked 40; cosigned 0; unsealed unknown") == 1
    assert result.stdout.count("sealed 40, checked 40; cosigned 0; unsealed 2") == 1
    assert "MALFORMED in the memory: a position is none" in result.stdout
    logs = [one for one in objects(run(ledger, "--json")) if one["type"] == "log"]
    assert sorted(str(log["unsealed"]) for log in logs) == ["0", "2", "None"]
