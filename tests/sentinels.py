"""Sentinels for tests: the embedded server's binary, run as one, for a master called ``audit``."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from audit.embedded import EmbeddedServer, find_server
from tests.cluster import replicated
from tests.support import wait_until

SERVICE = "audit"


@dataclass
class Watched:
    """A master with a replica, and who says which of the two is the master."""

    master: EmbeddedServer
    replica: EmbeddedServer
    ports: list[int]

    def url(self, **parameters: str | int) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        given = "&".join(f"{name}={value}" for name, value in parameters.items())
        return f"redis+sentinel://{hosts}/{SERVICE}/0?{given}"

    def named(self) -> list[int]:
        """The port that each sentinel gives for the master."""
        found = []
        for port in self.ports:
            with redis.Redis(port=port) as sentinel:
                found.append(int(sentinel.sentinel_get_master_addr_by_name(SERVICE)[1]))
        return found


@contextmanager
def watched(directory: Path, sentinels: int = 1) -> Iterator[Watched]:
    with ExitStack() as stack:
        master, replica = stack.enter_context(replicated())
        ports = [
            stack.enter_context(_sentinel(directory / f"sentinel-{number}", master.port))
            for number in range(sentinels)
        ]
        made = Watched(master, replica, ports)
        wait_until(lambda: _is_ready(made), 30)
        yield made


@contextmanager
def _sentinel(directory: Path, master: int) -> Iterator[int]:
    directory.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    settings = directory / "sentinel.conf"
    settings.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {directory}\nlogfile {directory}/log\n"
        f"sentinel monitor {SERVICE} 127.0.0.1 {master} 1\n"
        f"sentinel down-after-milliseconds {SERVICE} 500\n"
        f"sentinel failover-timeout {SERVICE} 3000\n",
        encoding="utf-8",
    )
    process = subprocess.Popen([find_server(), str(settings), "--sentinel"])
    try:
        wait_until(lambda: _answers(port), 30)
        yield port
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with closing(redis.Redis(port=port)) as sentinel:
        try:
            return bool(sentinel.ping())
        except redis.ConnectionError:
            return False


def _is_ready(made: Watched) -> bool:
    """Whether each sentinel knows the replica, so that it could be made the master."""
    for port in made.ports:
        with closing(redis.Redis(port=port)) as sentinel:
            found = sentinel.sentinel_slaves(SERVICE)
            if [int(one["port"]) for one in found] != [made.replica.port]:
                return False
    return True
