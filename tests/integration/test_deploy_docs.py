"""docs/deploy.md against docker-compose.yml: its secrets, its profiles, the volumes to back up."""

from __future__ import annotations

import json
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from audit.keys import KeyRing
from tasks.gateway_tokens import Tokens
from tests.integration.composed import HOST, OBSERVERS, ROOT, SERVERS, resolved
from tests.support import require

PAGE = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    found = re.search(rf"<!-- deploy: {name} -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


@pytest.fixture(scope="module")
def env_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``.env`` that the page's own lines make."""
    folder = tmp_path_factory.mktemp("deploy")
    script = "".join(map(block, ("secrets", "gateway", "observability")))
    require("openssl")
    subprocess.run([require("bash"), "-euc", script], cwd=folder, check=True)
    return folder / ".env"


@pytest.fixture(scope="module")
def services(env_file: Path) -> dict[str, Any]:
    services: dict[str, Any] = resolved({}, env_file=env_file)["services"]
    return services


def test_the_page_s_file_is_all_that_compose_needs(services: dict[str, Any]) -> None:
    """With the file alone every profile resolves, and no variable of the host stays empty."""
    assert services.keys() == {*SERVERS, *HOST, *OBSERVERS}
    for name in ("worker", "gateway"):
        environ = services[name]["environment"]
        assert environ["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"
        assert len(KeyRing.parse(json.loads(environ["AUDIT_CONTEXT_KEYS"])).keys) == 1
        assert len(KeyRing.parse(json.loads(environ["AUDIT_HASH_KEYS"])).keys) == 1
    assert len(services["grafana"]["environment"]["GRAFANA_PASSWORD"]) == 48


def test_the_page_s_tokens_are_tokens(services: dict[str, Any]) -> None:
    """The gateway reads the tokens and the keys as Compose hands them on."""
    environ = services["gateway"]["environment"]
    assert Tokens.read(environ["AUDIT_GATEWAY_TOKENS"])
    assert len(KeyRing.parse(json.loads(environ["AUDIT_GATEWAY_KEYS"])).keys) == 1


def test_nobody_else_reads_the_file(env_file: Path) -> None:
    """The file is its owner's alone, and Git ignores its name."""
    assert stat.S_IMODE(env_file.stat().st_mode) == 0o600
    assert "/.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_lines_leave_the_shell_as_it_was(tmp_path: Path) -> None:
    """A umask of 077 that stayed would make what git writes next unreadable to the containers."""
    script = f"umask 022\n{block('secrets')}\numask"
    told = subprocess.check_output([require("bash"), "-euc", script], cwd=tmp_path, text=True)
    assert told.split()[-1] == "0022"


def test_every_service_and_volume_is_on_the_page(services: dict[str, Any]) -> None:
    """The page names each service, each published port and each volume."""
    volumes = {v["source"] for s in services.values() for v in s.get("volumes", ())}
    for name in {*SERVERS, "worker", "keeper", "beat", "flower"}:
        assert f"| `{name}` |" in PAGE
    for name in {volume for volume in volumes if "/" not in volume}:
        assert f"`{name}`" in PAGE
    for service in services.values():
        for port in service.get("ports", ()):
            assert f"http://127.0.0.1:{port['published']}" in PAGE


def test_every_command_of_the_audit_on_the_page_exists() -> None:
    """Each `audit` command that the page has one type is one."""
    named = set(re.findall(r"celery -A tasks audit (\S+)|`audit (\w+)`", PAGE))
    words = {word for pair in named for word in pair if word}
    assert words >= {"list", "doctor", "keygen", "verify", "duplicates"}
    for word in words:
        done = subprocess.run(
            [require("celery"), "-A", "tasks", "audit", word, "--help"],
            cwd=ROOT,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
