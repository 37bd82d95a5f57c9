"""docker-compose.yml as the real Compose reads it, and its services run without Docker.

A service here is a process of its own: the command, the environment and the healthcheck are
Compose's, word for word, but for what only a container has. Names of services become 127.0.0.1 with
a free port, volumes become folders, and ``0.0.0.0`` becomes 127.0.0.1.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, Final

import pytest

from audit.binary import find_server
from tests.support import require

ROOT: Final = Path(__file__).parents[2]
SECRETS: Final = {
    "MEMORY_FLOWER_PASSWORD": "memoryflowersecret",
    "MEMORY_GATEWAY_PASSWORD": "memorygatewaysecret",
    "MEMORY_KEEPER_PASSWORD": "memorykeepersecret",
    "MEMORY_OPERATOR_PASSWORD": "memoryoperatorsecret",
    "MEMORY_WORKER_PASSWORD": "memoryworkersecret",
    "BROKER_PASSWORD": "brokersecret",
    "FLOWER_USER": "auditor",
    "FLOWER_PASSWORD": "flowersecret",
}
SERVERS: Final = ("memory", "broker")
HOST: Final = ("worker", "keeper", "beat", "flower", "gateway")
OBSERVERS: Final = ("collector", "prometheus", "grafana")

#: What the image of the servers has and the tests' binary lacks: one PING, as healthchecks send it.
_CLI: Final = """#!{python}
import os, sys, redis
*user, word = sys.argv[1:]
assert (user[:1], word) in (([], "ping"), (["--user"], "ping")), sys.argv
name = user[1] if user else None
client = redis.Redis(port={port}, username=name, password=os.environ["REDISCLI_AUTH"])
print("PONG" if client.ping() else "")
"""


def compose(
    *arguments: str,
    given: dict[str, str],
    profile: str | None = None,
    env_file: str | Path = os.devnull,
) -> subprocess.CompletedProcess[str]:
    """Compose as on a fresh machine: only these variables, no developer's .env file."""
    command = [require("docker-compose"), "--file", str(ROOT / "docker-compose.yml")]
    command += ["--env-file", str(env_file), *(["--profile", profile] if profile else [])]
    return subprocess.run(
        [*command, *arguments],
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", os.devnull), **given},
        capture_output=True,
        text=True,
        check=False,
    )


def resolved(
    given: dict[str, str] = SECRETS,
    profile: str | None = "*",
    env_file: str | Path = os.devnull,
) -> dict[str, Any]:
    """The whole file as Compose understands it: variables filled in, dollars as containers get."""
    answer = compose("config", "--format", "json", given=given, profile=profile, env_file=env_file)
    assert answer.returncode == 0, answer.stderr
    model: dict[str, Any] = json.loads(answer.stdout.replace("$$", "$"))
    return model


def seconds(duration: str) -> float:
    """A Compose duration ("1m30s") in seconds."""
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(float(n) * units[unit] for n, unit in re.findall(r"([\d.]+)([hms])", duration))


def starting_order(services: dict[str, Any], names: tuple[str, ...]) -> list[list[str]]:
    """Batches of services: each waits until the batches before it are healthy."""
    waits = {name: set(services[name].get("depends_on", {})) for name in names}
    sorter = TopologicalSorter(waits)
    sorter.prepare()
    batches = []
    while sorter.is_active():
        ready = sorter.get_ready()
        batches.append(sorted(ready))
        sorter.done(*ready)
    return batches


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Machine:
    """What stands in for Docker: folders for volumes, ports for services, processes.

    Args:
        directory: where all of it lies.
        model: what :func:`resolved` gave.
        places: addresses of containers ("collector:4318") that somebody else serves.
    """

    def __init__(self, directory: Path, model: dict[str, Any], places: dict[str, str]) -> None:
        self.directory = directory
        self.services: dict[str, Any] = model["services"]
        self._configs = model["configs"]
        self._places = dict(places)
        self.ports: dict[str, int] = {name: free_port() for name in (*SERVERS, *HOST)}
        for name in SERVERS:
            self._places[f"{name}:6379"] = f"127.0.0.1:{self.ports[name]}"
        self.running: dict[str, Running] = {}
        # WORKDIR /srv of the image, and what the Dockerfile copies there.
        (directory / "srv").mkdir()
        shutil.copy(ROOT / "flowerconfig.py", directory / "srv")

    def here(self, text: str, name: str) -> str:
        """What a text of a service means on this machine."""
        for there, place in self._places.items():
            text = text.replace(there, place)
        for mount in self.services[name].get("volumes", []):
            if mount["type"] == "bind":
                text = text.replace(mount["target"], mount["source"])
                continue
            folder = self.directory / "volumes" / mount["source"]
            folder.mkdir(parents=True, exist_ok=True)
            text = text.replace(mount["target"], str(folder))
        text = text.replace("/srv/", f"{self.directory}/srv/").replace("0.0.0.0", "127.0.0.1")
        return re.sub(r"(?<=[:=])(5555|8080|9464)\b", str(self.ports[name]), text)

    def environ(self, name: str) -> dict[str, str]:
        """What a container has: its image's variables and its own, nothing of this shell's."""
        own = self.services[name]["environment"]
        return {
            # PYTHONPATH: the image has this tree installed.
            "PATH": f"{self._programs(name)}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "HOSTNAME": socket.gethostname(),
            **{key: self.here(value, name) for key, value in own.items() if value is not None},
        }

    def _programs(self, name: str) -> Path:
        folder = self.directory / "bin" / name
        if name in SERVERS and not folder.exists():
            folder.mkdir(parents=True)
            (folder / "valkey-server").symlink_to(find_server())
            cli = folder / "valkey-cli"
            cli.write_text(_CLI.format(python=sys.executable, port=self.ports[name]))
            cli.chmod(0o755)
        return folder

    def _command(self, name: str) -> list[str]:
        """A server's words name its config, which is written from Compose's own text."""
        words = [self.here(word, name) for word in self.services[name]["command"]]
        for mount in self.services[name].get("configs", []):
            content = self.here(self._configs[mount["source"]]["content"], name)
            path = self.directory / f"{name}.conf"
            path.write_text(f"{content}\nbind 127.0.0.1\nport {self.ports[name]}\n")
            words = [word.replace(mount["target"], str(path)) for word in words]
        return words

    def start(self, name: str) -> None:
        self.running[name] = Running(self, name, self._command(name), self.environ(name))

    def up(self, names: tuple[str, ...]) -> list[list[str]]:
        """Start them as Compose would, each batch once what it depends on is healthy."""
        batches = starting_order(self.services, names)
        for batch in batches:
            for name in batch:
                self.start(name)
            for name in batch:
                self.running[name].until_healthy()
        return batches

    def down(self) -> dict[str, int]:
        """Stop them in the opposite order; each one's exit status."""
        return {name: one.stop() for name, one in reversed(self.running.items())}

    def close(self) -> None:
        """Nothing stays behind, whatever the test came to."""
        for one in self.running.values():
            one.kill()


class Running:
    """One service: a process in a session of its own."""

    def __init__(
        self, machine: Machine, name: str, command: list[str], env: dict[str, str]
    ) -> None:
        self._machine = machine
        self._name = name
        self._service = machine.services[name]
        self._environ = env
        self.log = machine.directory / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                # By its full path: Popen looks into the PATH of this process.
                [str(shutil.which(command[0], path=env["PATH"])), *command[1:]],
                cwd=machine.directory / "srv",
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def is_healthy(self) -> bool:
        """One run of the healthcheck, as CMD or CMD-SHELL, with its own timeout."""
        check = self._service["healthcheck"]
        kind, *words = [self._machine.here(word, self._name) for word in check["test"]]
        command = {"CMD": words, "CMD-SHELL": ["/bin/sh", "-c", *words]}[kind]
        program = shutil.which(command[0], path=self._environ["PATH"])
        try:
            done = subprocess.run(
                [str(program), *command[1:]],
                cwd=self._machine.directory / "srv",
                env=self._environ,
                capture_output=True,
                timeout=seconds(check["timeout"]),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def until_healthy(self) -> None:
        """Wait no longer than Compose does before it calls a service unhealthy."""
        check = self._service["healthcheck"]
        patience = seconds(check["start_period"]) + check["retries"] * seconds(check["interval"])
        deadline = time.monotonic() + patience
        while not self.is_healthy():
            assert self.process.poll() is None, f"{self._name} ended:\n{self.text()}"
            if time.monotonic() > deadline:
                pytest.fail(f"{self._name} is not healthy:\n{self.text()}")

    def stop(self) -> int:
        """The stop signal, and the status within the grace period."""
        self.process.send_signal(self._service.get("stop_signal", signal.SIGTERM))
        return self.process.wait(seconds(self._service["stop_grace_period"]))

    def kill(self) -> None:
        """End what is left of the session, children too."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait(20)

    def text(self) -> str:
        return self.log.read_text(errors="replace")
