"""docker-compose.yml and Dockerfile, read by the real Compose and the real hadolint."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from flower.options import default_options

from tests.support import require

ROOT = Path(__file__).parents[2]
SECRETS = {
    "MEMORY_PASSWORD": "memorysecret",
    "BROKER_PASSWORD": "brokersecret",
    "FLOWER_USER": "auditor",
    "FLOWER_PASSWORD": "flowersecret",
}
HOST = ("worker", "keeper", "beat", "flower")
SERVERS = ("memory", "broker")
LONGEST_SKILL = 70


def compose(*arguments: str, secrets: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Compose as on a fresh machine: only these secrets, and no .env file of a developer's."""
    binary = require("docker-compose")
    return subprocess.run(
        [binary, "--file", str(ROOT / "docker-compose.yml"), "--env-file", os.devnull, *arguments],
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", os.devnull), **secrets},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def model() -> dict[str, Any]:
    """The whole file as Compose understands it, secrets filled in."""
    answer = compose("config", "--format", "json", secrets=SECRETS)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.fixture(scope="module")
def services(model: dict[str, Any]) -> dict[str, Any]:
    return model["services"]


def seconds(duration: str) -> float:
    """A Compose duration ("1m30s") in seconds."""
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(float(n) * units[unit] for n, unit in re.findall(r"([\d.]+)([hms])", duration))


def server_settings(model: dict[str, Any], service: str) -> dict[str, str]:
    """What the server's configuration file says, by name of the setting."""
    (mount,) = model["services"][service]["configs"]
    assert model["services"][service]["command"] == ["valkey-server", mount["target"]]
    lines = model["configs"][mount["source"]]["content"].splitlines()
    return dict(line.split(maxsplit=1) for line in lines)


def test_compose_accepts_the_file() -> None:
    """`docker-compose config` finds nothing to complain about, not even a warning."""
    answer = compose("config", "--quiet", secrets=SECRETS)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


@pytest.mark.parametrize("absent", SECRETS)
@pytest.mark.parametrize("how", ["unset", "empty"])
def test_no_start_without_each_secret(absent: str, how: str) -> None:
    """A secret that is not given, or is empty, stops Compose with a message that names it."""
    given = {name: value for name, value in SECRETS.items() if name != absent}
    answer = compose("config", "--quiet", secrets=given | ({absent: ""} if how == "empty" else {}))
    assert answer.returncode != 0
    assert absent in answer.stderr


def test_the_file_holds_no_secret() -> None:
    """Every password in the file is a variable, and no variable has a default."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{(\w+):\?", text)) == SECRETS.keys()
    assert re.findall(r"\$\{\w+(?!\w|:\?)", text) == []
    spoken = re.findall(r"://:(\S+?)[ @}]|requirepass (\S+)|REDISCLI_AUTH: (\S+)", text)
    assert len(spoken) == 7
    assert all(value.startswith("${") for group in spoken for value in group if value)


def test_the_services_are_the_known_ones(services: dict[str, Any]) -> None:
    """Memory, broker, worker, beat, Flower: one that joins them joins the tests below too."""
    assert services.keys() == {*HOST, *SERVERS}


def test_published_ports_are_bound_to_loopback(services: dict[str, Any]) -> None:
    """Nothing listens to the network; only Flower's page is published at all."""
    published = {
        (name, port.get("host_ip"), port["published"])
        for name, service in services.items()
        for port in service.get("ports", [])
    }
    assert published == {("flower", "127.0.0.1", "5555")}


@pytest.mark.parametrize("name", [*HOST, *SERVERS])
def test_every_service_can_be_watched_and_stopped(services: dict[str, Any], name: str) -> None:
    """Each service has a healthcheck, an init that passes signals on, and time to stop."""
    service = services[name]
    assert service["healthcheck"]["test"]
    assert service["init"] is True
    assert seconds(service["stop_grace_period"]) >= 10


def test_the_worker_may_end_its_longest_skill(services: dict[str, Any]) -> None:
    """A stop waits longer for the worker than the longest skill runs."""
    assert seconds(services["worker"]["stop_grace_period"]) > LONGEST_SKILL


@pytest.mark.parametrize("name", HOST)
def test_every_process_of_the_host_has_its_addresses(services: dict[str, Any], name: str) -> None:
    """Worker, beat and Flower know memory, broker and result backend, whatever else is set."""
    environment = services[name]["environment"]
    assert environment["AUDIT_MEMORY_URL"] == (
        "redis://:memorysecret@memory:6379/0?durability=always"
    )
    assert environment["CELERY_BROKER_URL"] == "redis://:brokersecret@broker:6379/0"
    assert environment["CELERY_RESULT_BACKEND"] == "redis://:brokersecret@broker:6379/1"


@pytest.mark.parametrize("name", HOST)
def test_the_host_waits_for_its_stores(services: dict[str, Any], name: str) -> None:
    """Worker, beat and Flower start once both servers answer."""
    waits = services[name]["depends_on"]
    assert {store: waits[store]["condition"] for store in waits} == dict.fromkeys(
        SERVERS, "service_healthy"
    )


def test_the_memory_loses_no_row(model: dict[str, Any]) -> None:
    """The memory has each row on disk before it answers, on a volume, and evicts nothing."""
    settings = server_settings(model, "memory")
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "always"
    assert settings["maxmemory-policy"] == "noeviction"
    (volume,) = model["services"]["memory"]["volumes"]
    assert (volume["type"], volume["target"]) == ("volume", settings["dir"])


def test_the_broker_is_a_server_of_its_own(model: dict[str, Any]) -> None:
    """Broker and memory share no server, volume or password; the broker keeps its queue."""
    memory, broker = server_settings(model, "memory"), server_settings(model, "broker")
    assert broker["appendonly"] == "yes"
    assert broker["maxmemory-policy"] == "noeviction"
    assert (memory["requirepass"], broker["requirepass"]) == ("memorysecret", "brokersecret")
    sources = [model["services"][name]["volumes"][0]["source"] for name in SERVERS]
    assert len(set(sources)) == 2


def test_flower_asks_for_a_password_and_changes_nothing(services: dict[str, Any]) -> None:
    """Flower runs under the shipped configuration, by its full name, with a password given."""
    flower = services["flower"]
    assert "--conf=/srv/flowerconfig.py" in flower["command"]
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^WORKDIR /srv\n#.*\nCOPY flowerconfig.py ./$", dockerfile, re.MULTILINE)
    assert flower["environment"]["FLOWER_BASIC_AUTH"] == "auditor:flowersecret"
    assert "FLOWER_UNAUTHENTICATED_API" not in flower["environment"]
    assert not any("secret" in word for word in flower["command"])


def test_flower_knows_the_options_it_is_given(services: dict[str, Any]) -> None:
    """Each option exists in the installed Flower, which ignores a misspelt one silently."""
    given = [
        word[2:].partition("=")[0] for word in services["flower"]["command"] if word[:2] == "--"
    ]
    assert given
    assert {"basic_auth", *given} <= set(default_options)


def test_hadolint_accepts_the_dockerfile() -> None:
    """hadolint has nothing to say about the Dockerfile."""
    answer = subprocess.run(
        [require("hadolint"), str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert (answer.returncode, answer.stdout) == (0, "")


def test_the_image_runs_as_nobody_in_particular() -> None:
    """The image's last user is no root, and each install in it checks hashes or has no source."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    assert re.findall(r"^USER (\S+)$", text, re.MULTILINE)[-1] not in {"root", "0"}
    installs = re.findall(r"pip (?:install|wheel) [^&\n]+", text)
    assert len(installs) == 4
    checked = ("--require-hashes", "--no-index", "--no-build-isolation")
    assert [one for one in installs if not any(flag in one for flag in checked)] == []
