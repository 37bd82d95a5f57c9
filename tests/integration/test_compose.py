"""docker-compose.yml and Dockerfile, read by the real Compose and the real hadolint."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
from flower.options import default_options

from audit.settings import AuditSettings
from tasks import app
from tests.integration.composed import (
    HOST,
    OBSERVERS,
    ROOT,
    SECRETS,
    SERVERS,
    compose,
    resolved,
    seconds,
)
from tests.support import require


@pytest.fixture(scope="module")
def model() -> dict[str, Any]:
    return resolved()


@pytest.fixture(scope="module")
def services(model: dict[str, Any]) -> dict[str, Any]:
    return model["services"]


def server_settings(model: dict[str, Any], service: str) -> dict[str, str]:
    """What the server's configuration file says, by name of the setting."""
    (mount,) = model["services"][service]["configs"]
    assert model["services"][service]["command"][-1] == mount["target"]
    lines = model["configs"][mount["source"]]["content"].splitlines()
    return dict(line.split(maxsplit=1) for line in lines if not line.startswith("#"))


@pytest.mark.parametrize(
    ("profile", "joins"),
    [(None, ()), ("gateway", ("gateway",)), ("observability", OBSERVERS), ("*", None)],
)
def test_compose_accepts_each_profile(profile: str | None, joins: tuple[str, ...] | None) -> None:
    """`docker-compose config` has nothing to say about any profile, and adds its services alone."""
    answer = compose("config", "--quiet", given=SECRETS, profile=profile)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
    always = {*SERVERS, *HOST} - {"gateway"}
    joined = {"gateway", *OBSERVERS} if joins is None else {*joins}
    assert resolved(profile=profile)["services"].keys() == always | joined


@pytest.mark.parametrize("absent", SECRETS)
@pytest.mark.parametrize("how", ["unset", "empty"])
def test_no_start_without_each_secret(absent: str, how: str) -> None:
    """A secret that is not given, or is empty, stops Compose with a message that names it."""
    given = {name: value for name, value in SECRETS.items() if name != absent}
    answer = compose("config", "--quiet", given=given | ({absent: ""} if how == "empty" else {}))
    assert answer.returncode != 0
    assert absent in answer.stderr


def test_the_file_holds_no_secret() -> None:
    """Every password in the file is a variable, and no variable has a default."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"(?<!\$)\$\{(\w+):\?", text)) == SECRETS.keys()
    assert re.findall(r"\$\{\w+(?!\w|:\?)", text) == []
    spoken = re.findall(r"://\w*:(\D\S*?)[ @}]|requirepass (\S+)|(?:_AUTH|_PASSWORD): (\S+)", text)
    assert len(spoken) == 15
    assert all(value.startswith("${") for group in spoken for value in group if value)


def test_published_ports_are_bound_to_loopback(services: dict[str, Any]) -> None:
    """Nothing listens to the network, and the keeper's pages are not published at all."""
    published = {
        (name, port.get("host_ip"), port["published"])
        for name, service in services.items()
        for port in service.get("ports", [])
    }
    pages = {"flower": "5555", "gateway": "8080", "prometheus": "9090", "grafana": "3000"}
    assert published == {(name, "127.0.0.1", port) for name, port in pages.items()}


@pytest.mark.parametrize("name", [*HOST, *SERVERS, *OBSERVERS])
def test_every_service_can_be_watched_and_stopped(services: dict[str, Any], name: str) -> None:
    """Each service has an init that passes signals on, time to stop, and a healthcheck.

    But for the collector, whose image has no program that could ask.
    """
    service = services[name]
    assert service["init"] is True
    assert seconds(service["stop_grace_period"]) >= 10
    assert ("healthcheck" in service) == (name != "collector")


@pytest.mark.parametrize("name", [*HOST, *SERVERS, *OBSERVERS])
def test_every_service_is_confined(services: dict[str, Any], name: str) -> None:
    """No capability, no new privileges, a bounded memory and log, and a root that is read-only.

    But for the servers: Compose itself refuses an inline config in a read-only container.
    """
    service = services[name]
    assert service["cap_drop"] == ["ALL"]
    assert not service.keys() & {"cap_add", "privileged"}
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("read_only", False) == (name not in SERVERS)
    assert service["tmpfs"] == ["/tmp"]
    assert 2**28 <= int(service["mem_limit"]) <= 2**31
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}


@pytest.mark.parametrize("name", [*SERVERS, *OBSERVERS])
def test_every_image_of_others_is_pinned(services: dict[str, Any], name: str) -> None:
    """An image from a registry has a tag that names a release."""
    assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+(\.\d+)?", services[name]["image"])


@pytest.mark.parametrize("name", SERVERS)
def test_a_full_server_refuses_before_it_is_killed(model: dict[str, Any], name: str) -> None:
    """What a server may store is at most half of what its container may use, as no superuser."""
    size = re.fullmatch(r"(\d+)(mb|gb)", server_settings(model, name)["maxmemory"])
    assert size is not None
    stored = int(size[1]) * {"mb": 2**20, "gb": 2**30}[size[2]]
    assert 2 * stored <= int(model["services"][name]["mem_limit"])
    assert model["services"][name]["user"] == "valkey"


def test_the_worker_may_end_its_longest_skill(services: dict[str, Any]) -> None:
    """A stop waits longer for the worker than any skill of the host may run."""
    app.loader.import_default_modules()
    limits = [
        task.time_limit or app.conf.task_time_limit
        for task in app.tasks.values()
        if task.__module__.startswith("tasks.")  # another test of this process may bring its own
    ]
    assert len(limits) >= 4
    assert seconds(services["worker"]["stop_grace_period"]) > max(limits)


def test_the_gateway_may_end_its_longest_wait(services: dict[str, Any]) -> None:
    """uvicorn waits longer than a request may, and Compose longer than uvicorn."""
    (graceful,) = (
        int(word.partition("=")[2])
        for word in services["gateway"]["command"]
        if word.startswith("--timeout-graceful-shutdown=")
    )
    assert (
        AuditSettings().gateway_max_wait
        < graceful
        < seconds(services["gateway"]["stop_grace_period"])
    )


@pytest.mark.parametrize("name", HOST)
def test_every_process_of_the_host_has_its_addresses(services: dict[str, Any], name: str) -> None:
    """Every process of the host knows memory, broker and result backend, whatever else is set."""
    environment = services[name]["environment"]
    login = "" if name == "beat" else f"{name}:memory{name}secret@"
    assert environment["AUDIT_MEMORY_URL"] == f"redis://{login}memory:6379/0?durability=always"
    assert environment["CELERY_BROKER_URL"] == "redis://:brokersecret@broker:6379/0"
    assert environment["CELERY_RESULT_BACKEND"] == "redis://:brokersecret@broker:6379/1"


@pytest.mark.parametrize("name", HOST)
def test_no_service_knows_another_s_password_of_the_memory(
    services: dict[str, Any], name: str
) -> None:
    """Each process of the host has the password of its own user of the memory, and of no other."""
    known = [value for value in services[name]["environment"].values() if value is not None]
    secrets = [value for key, value in SECRETS.items() if key.startswith("MEMORY_")]
    told = {secret for secret in secrets if any(secret in value for value in known)}
    assert told == ({f"memory{name}secret"} - {"memorybeatsecret"})


@pytest.mark.parametrize("name", HOST)
def test_the_host_waits_for_its_stores(services: dict[str, Any], name: str) -> None:
    """Every process of the host starts once both servers answer."""
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
    (volume,) = (one for one in model["services"]["memory"]["volumes"] if one["type"] == "volume")
    assert volume["target"] == settings["dir"]


def test_the_broker_is_a_server_of_its_own(model: dict[str, Any]) -> None:
    """Broker and memory share no server, volume or password; the broker keeps its queue."""
    memory, broker = server_settings(model, "memory"), server_settings(model, "broker")
    assert broker["appendonly"] == "yes"
    assert broker["maxmemory-policy"] == "noeviction"
    assert broker["requirepass"] == "brokersecret"
    assert "requirepass" not in memory  # it has users (test_memory_users.py)
    sources = [model["services"][name]["volumes"][0]["source"] for name in SERVERS]
    assert len(set(sources)) == 2


def test_flower_asks_for_a_password_and_changes_nothing(services: dict[str, Any]) -> None:
    """Flower runs under the shipped configuration, by its full name, with a password given."""
    flower = services["flower"]
    assert "--conf=/srv/flowerconfig.py" in flower["command"]
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    # Readable to the image's user also out of a tree that was checked out under umask 077.
    copied = r"^WORKDIR /srv\n#.*\nCOPY --chmod=0644 flowerconfig.py ./$"
    assert re.search(copied, dockerfile, re.MULTILINE)
    assert flower["environment"]["FLOWER_BASIC_AUTH"] == "auditor:flowersecret"
    assert "FLOWER_UNAUTHENTICATED_API" not in flower["environment"]
    assert not any("secret" in word for word in flower["command"])


def test_flower_knows_of_the_ledger_and_cannot_reach_it(services: dict[str, Any]) -> None:
    """Its pages are told that there is one, and get neither its keys nor its folder, nor any."""
    flower = services["flower"]
    assert {"AUDIT_LEDGER_DIR", "AUDIT_TRACE_URL"} <= set(flower["environment"])
    assert "AUDIT_LEDGER_KEYS" not in flower["environment"]
    assert not flower.get("volumes")
    assert flower["read_only"] is True


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
