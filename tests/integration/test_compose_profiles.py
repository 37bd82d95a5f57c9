"""What the optional profiles of docker-compose.yml run, and the files below deploy/ they read."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import yaml

from audit import metrics
from audit.settings import AuditSettings
from tests.integration.composed import HOST, OBSERVERS, ROOT, SECRETS, Machine, resolved, seconds
from tests.integration.gateway import KEYS, TOKENS
from tests.support import require

PROMETHEUS: Final = ROOT / "deploy/prometheus"
COLLECTOR: Final = ROOT / "deploy/collector/collector.yml"
GRAFANA: Final = ROOT / "deploy/grafana"


@pytest.fixture(scope="module")
def model() -> dict[str, Any]:
    return resolved()


@pytest.fixture(scope="module")
def services(model: dict[str, Any]) -> dict[str, Any]:
    return model["services"]


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def port_of(address: str) -> str:
    return address.rpartition(":")[2]


def mounts(service: dict[str, Any]) -> dict[str, Path]:
    """Where a container finds which file or folder of the tree."""
    binds = [one for one in service["volumes"] if one["type"] == "bind"]
    assert all(one["read_only"] for one in binds)
    return {one["target"]: Path(one["source"]) for one in binds}


# --- whoever asks for a profile without its secrets ----------------------------------------------


@pytest.mark.parametrize("given", [{}, {"GRAFANA_PASSWORD": ""}])
def test_grafana_does_not_start_without_a_password(
    services: dict[str, Any], given: dict[str, str]
) -> None:
    """Grafana's container ends at once and names the variable, instead of taking "admin"."""
    done = subprocess.run(
        services["grafana"]["entrypoint"],
        env={"PATH": os.defpath, **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "GRAFANA_PASSWORD" in done.stderr
    assert "run.sh" not in done.stderr


def test_grafana_starts_with_the_password_given(services: dict[str, Any], tmp_path: Path) -> None:
    """The password reaches Grafana's own variable, and no command line."""
    assert services["grafana"]["environment"]["GRAFANA_PASSWORD"] is None
    run = tmp_path / "run.sh"
    run.write_text('#!/bin/sh\nprintf %s "$GF_SECURITY_ADMIN_PASSWORD"\n')
    run.chmod(0o755)
    command = [word.replace("/run.sh", str(run)) for word in services["grafana"]["entrypoint"]]
    environ = {"PATH": os.defpath, "GRAFANA_PASSWORD": "grafana secret"}
    assert subprocess.check_output(command, env=environ) == b"grafana secret"


@pytest.mark.parametrize("profile", [None, "observability"])
def test_others_need_no_secret_of_the_gateway(profile: str | None) -> None:
    """Whoever runs no gateway is not asked for its tokens."""
    assert "gateway" not in resolved(profile=profile)["services"]


@pytest.mark.parametrize("absent", ["AUDIT_GATEWAY_TOKENS", "AUDIT_GATEWAY_KEYS"])
def test_the_gateway_does_not_start_without(absent: str, tmp_path: Path) -> None:
    """Without tokens, or without keys, the gateway's command ends and names what it lacks."""
    both = {"AUDIT_GATEWAY_TOKENS": json.dumps(TOKENS), "AUDIT_GATEWAY_KEYS": json.dumps(KEYS)}
    del both[absent]
    machine = Machine(tmp_path, resolved({**SECRETS, **both}), {})
    try:
        machine.start("gateway")
        one = machine.running["gateway"]
        assert one.process.wait(60) > 0
        assert absent in one.text()
    finally:
        machine.close()


# --- files and the names in them -----------------------------------------------------------------


@pytest.mark.parametrize("name", OBSERVERS)
def test_every_mounted_file_is_in_the_tree(services: dict[str, Any], name: str) -> None:
    """What is mounted exists, read-only; Docker would make an empty folder of what does not."""
    found = mounts(services[name])
    assert found
    assert [path for path in found.values() if not path.exists()] == []


def test_promtool_accepts_the_configuration(services: dict[str, Any]) -> None:
    """promtool finds the configuration and its rules, in the folder that Compose mounts."""
    assert mounts(services["prometheus"]) == {"/etc/prometheus": PROMETHEUS}
    assert "--config.file=/etc/prometheus/prometheus.yml" in services["prometheus"]["command"]
    done = subprocess.run(
        [require("promtool"), "check", "config", str(PROMETHEUS / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rule files found" in done.stdout


def test_prometheus_scrapes_what_the_services_serve(services: dict[str, Any]) -> None:
    """Its targets are the keeper's pages and the collector's exporter, at the ports they have."""
    keepers, collectors = parsed(PROMETHEUS / "prometheus.yml")["scrape_configs"]
    keeper = port_of(services["keeper"]["environment"]["AUDIT_KEEPER_LISTEN"])
    exporter = port_of(parsed(COLLECTOR)["exporters"]["prometheus"]["endpoint"])
    (names,) = keepers["dns_sd_configs"]
    assert (names["names"], str(names["port"])) == (["keeper"], keeper)
    assert collectors["static_configs"] == [{"targets": [f"collector:{exporter}"]}]


def test_prometheus_scrapes_every_keeper() -> None:
    """One name stands for all of `--scale keeper=2`: each address of it is a target of its own.

    Scraped as one target, the answer may be the stand-by's, which sees no orphan: no alarm fires.
    """
    keepers = parsed(PROMETHEUS / "prometheus.yml")["scrape_configs"][0]
    assert "static_configs" not in keepers
    (names,) = keepers["dns_sd_configs"]
    assert names["type"] == "A"
    assert seconds(names["refresh_interval"]) <= 10


def test_the_keeper_listens_where_only_its_network_reaches_it(services: dict[str, Any]) -> None:
    """The keeper's address is one it can read, its check asks that port, and none is published."""
    keeper = services["keeper"]
    listen = keeper["environment"]["AUDIT_KEEPER_LISTEN"]
    settings = AuditSettings.read({}, {"AUDIT_KEEPER_LISTEN": listen})
    assert settings.keeper_listen == ("0.0.0.0", 9464)
    assert ":9464/" in keeper["healthcheck"]["test"][-1]
    assert "readyz" in keeper["healthcheck"]["test"][-1]
    assert "ports" not in keeper


def test_only_what_is_not_scraped_may_push(services: dict[str, Any]) -> None:
    """Worker and gateway push where the variable says; the keeper's numbers would count twice."""
    endpoint = "http://collector:4318"
    pushed = resolved({**SECRETS, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})["services"]
    pushing = {n for n in HOST if "OTEL_EXPORTER_OTLP_ENDPOINT" in pushed[n]["environment"]}
    assert pushing == {"worker", "gateway"}
    assert pushed["worker"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == endpoint
    assert services["worker"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] is None
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert f"OTEL_EXPORTER_OTLP_ENDPOINT={endpoint}" in text
    receiver = parsed(COLLECTOR)["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert port_of(receiver) == port_of(endpoint)


def test_the_documented_verify_reaches_the_collector() -> None:
    """The keeper is told of none, so the command that pages on a finding is."""
    page = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    verify = r"exec -e OTEL_EXPORTER_OTLP_ENDPOINT=(\S+) keeper celery -A tasks audit verify"
    assert re.findall(verify, page) == ["http://collector:4318"]


def test_the_collector_s_pipelines_are_whole() -> None:
    """Each pipeline names what is declared, all that is declared is used, and both signals flow."""
    config = parsed(COLLECTOR)
    pipelines = config["service"]["pipelines"]
    assert pipelines.keys() == {"metrics", "traces"}
    for kind in ("receivers", "processors", "exporters"):
        used = {name for pipeline in pipelines.values() for name in pipeline[kind]}
        assert used == config[kind].keys()
    assert all(pipeline["processors"][0] == "memory_limiter" for pipeline in pipelines.values())


def test_the_collector_changes_no_name_that_an_alarm_knows() -> None:
    """Names leave it as they come: it adds no suffix, and each is one that Prometheus takes."""
    exporter = parsed(COLLECTOR)["exporters"]["prometheus"]
    assert exporter["add_metric_suffixes"] is False
    assert exporter["resource_to_telemetry_conversion"] == {"enabled": True}
    names = {*metrics._COUNTERS, *metrics._HISTOGRAMS, *metrics._GAUGES}
    assert [name for name in names if not re.fullmatch(r"[a-z_]+", name)] == []
    assert all(name.endswith("_total") for name in metrics._COUNTERS)


def test_a_process_that_is_gone_stays_as_long_as_alarms_look_back() -> None:
    """The collector keeps numbers for longer than any window of an alarm."""
    windows = re.findall(r"\[(\w+)(?::\w*)?\]", (PROMETHEUS / "alerts.yml").read_text())
    assert windows
    kept = parsed(COLLECTOR)["exporters"]["prometheus"]["metric_expiration"]
    assert seconds(kept) >= max(map(seconds, windows))


def test_grafana_finds_prometheus_and_the_dashboard(services: dict[str, Any]) -> None:
    """The datasource is the Prometheus of the file, and the dashboard lies where it is sought."""
    (source,) = parsed(GRAFANA / "provisioning/datasources/prometheus.yml")["datasources"]
    url = urlsplit(source["url"])
    assert url.hostname in services
    assert url.port == services["prometheus"]["ports"][0]["target"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    (provider,) = parsed(GRAFANA / "provisioning/dashboards/skill-host.yml")["providers"]
    found = mounts(services["grafana"])
    assert found["/etc/grafana/provisioning"] == GRAFANA / "provisioning"
    (dashboard,) = [at for at in found if at.startswith(provider["options"]["path"] + "/")]
    assert found[dashboard] == GRAFANA / "dashboard.json"


def test_the_image_has_the_gateway() -> None:
    """The lock that the Dockerfile installs holds Starlette and uvicorn, with hashes."""
    lock = (ROOT / "requirements/runtime.lock").read_text(encoding="utf-8")
    for package in ("starlette", "uvicorn"):
        assert re.search(rf"^{package}==\S+ \\\n    --hash=sha256:", lock, re.MULTILINE)
    assert "--extra gateway -c requirements/dev.lock" in (ROOT / "Makefile").read_text()
