"""Several real servers for tests: a cluster, or a master with a replica.

Each node is an embedded server of its own, so it ends with its test; ``pause`` and ``kill`` are
what a machine does that hangs or burns.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import redis
from redis.crc import key_slot

from audit.embedded import EmbeddedServer
from tests.support import wait_until

SLOTS = 16384
#: Milliseconds after which a node counts as gone; ours are up to three on two cores.
NODE_TIMEOUT = "1000"
#: What replicas need so that they follow at once; a master that ends waits for none that hangs.
_FAST = {
    "appendonly": "no",
    "shutdown-timeout": "0",
    "repl-diskless-sync": "yes",
    "repl-diskless-sync-delay": "0",
}
_CLUSTER = {"cluster-enabled": "yes", "databases": "1", "cluster-node-timeout": NODE_TIMEOUT}


def client(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis.from_url(server.url, protocol=2)


def cluster_node(**options: str) -> EmbeddedServer:
    """A node that knows no other yet."""
    for _ in range(20):
        with socket.socket() as bus:
            bus.bind(("127.0.0.1", 0))
            port = str(bus.getsockname()[1])
        made = EmbeddedServer(options={**_FAST, **_CLUSTER, "cluster-port": port, **options})
        with contextlib.suppress(Exception):
            return made.start()
        made.stop()
    raise AssertionError("no node came up")


@dataclass
class Cluster:
    """Masters that share the slots, each with so many replicas.

    Attributes:
        masters: in the order of their slots.
        replicas: of each master, in the same order.
    """

    masters: list[EmbeddedServer]
    replicas: list[list[EmbeddedServer]] = field(default_factory=list)

    @classmethod
    def start(cls, masters: int = 3, replicas: int = 0) -> Self:
        made = cls([])
        try:
            made.masters = [cluster_node() for _ in range(masters)]
            made.replicas = [[cluster_node() for _ in range(replicas)] for _ in range(masters)]
            made._join()
        except BaseException:
            made.stop()
            raise
        return made

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    @property
    def nodes(self) -> list[EmbeddedServer]:
        return [*self.masters, *(node for of_one in self.replicas for node in of_one)]

    def url(self, prefix: str = "audit", **parameters: str | int) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        given = "".join(f"&{name}={value}" for name, value in parameters.items())
        return f"redis+cluster://{hosts}/?prefix={prefix}{given}"

    def master_of(self, key: str) -> int:
        """Which of the masters got the key's slot at the start."""
        size = SLOTS // len(self.masters)
        return min(key_slot(key.encode()) // size, len(self.masters) - 1)

    def begin_move(self, slot: int, source: EmbeddedServer, target: EmbeddedServer) -> None:
        """From now on the slot is on its way: neither of the two has all of it."""
        ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", id_of(source))
        ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", id_of(target))

    def move_keys(self, slot: int, source: EmbeddedServer, target: EmbeddedServer) -> None:
        while keys := ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 10):
            ask(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)

    def end_move(self, slot: int, source: EmbeddedServer, target: EmbeddedServer) -> None:
        """All keys are there; the others hear of it by and by."""
        for node in (target, source):
            ask(node, "CLUSTER", "SETSLOT", slot, "NODE", id_of(target))

    def flush(self) -> None:
        for node in self.masters:
            client(node).flushall()

    def _join(self) -> None:
        size = SLOTS // len(self.masters)
        for at, node in enumerate(self.masters):
            last = SLOTS if at == len(self.masters) - 1 else (at + 1) * size
            ask(node, "CLUSTER", "ADDSLOTSRANGE", at * size, last - 1)
            ask(node, "CLUSTER", "SET-CONFIG-EPOCH", at + 1)
        for node in self.nodes[1:]:
            bus = client(node).config_get("cluster-port")["cluster-port"]
            ask(self.masters[0], "CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        everybody = len(self.nodes)
        wait_until(lambda: all(self._known(node) == everybody for node in self.nodes), 30)
        for master, of_one in zip(self.masters, self.replicas, strict=True):
            for node in of_one:
                ask(node, "CLUSTER", "REPLICATE", id_of(master))
        wait_until(lambda: all(self._is_ok(node) for node in self.nodes), 30)
        for node in (node for of_one in self.replicas for node in of_one):
            wait_until(lambda node=node: is_linked(node), 30)

    def _known(self, node: EmbeddedServer) -> int:
        known = ask(node, "CLUSTER", "NODES").decode().strip().splitlines()
        return sum("handshake" not in line for line in known)

    def _is_ok(self, node: EmbeddedServer) -> bool:
        state = ask(node, "CLUSTER", "INFO").decode()
        counted = len(ask(node, "CLUSTER", "SLOTS")) == len(self.masters)
        return "cluster_state:ok" in state and counted


def ask(node: EmbeddedServer, *command: Any) -> Any:
    """The raw reply of a node."""
    with client(node) as asked:
        asked.response_callbacks.clear()
        return asked.execute_command(*command)


@contextmanager
def replicated() -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    """A master and its replica, which are no cluster."""
    with EmbeddedServer(options=_FAST) as master:
        place = f"127.0.0.1 {master.port}"
        with EmbeddedServer(options={**_FAST, "replicaof": place}) as replica:
            wait_until(lambda: is_linked(replica) and told(master, "connected_slaves") == "1", 30)
            yield master, replica


def id_of(node: EmbeddedServer) -> str:
    return str(ask(node, "CLUSTER", "MYID").decode())


def is_linked(replica: EmbeddedServer) -> bool:
    """Whether a replica has all of its master and hears it."""
    return told(replica, "master_link_status") == "up"


def is_master(node: EmbeddedServer) -> bool:
    return told(node, "role") == "master"


def told(node: EmbeddedServer, name: str) -> str:
    """A value of INFO; empty where there is none of that name."""
    lines = (line.partition(":") for line in ask(node, "INFO").decode().splitlines())
    return next((value for found, _, value in lines if found == name), "")


def is_in_step(master: EmbeddedServer, replica: EmbeddedServer) -> bool:
    """Whether the replica has all that the master has."""
    return told(master, "master_repl_offset") == told(replica, "slave_repl_offset")


def cut_off(master: EmbeddedServer) -> None:
    """From now on no replica gets anything from this master, however often it asks."""
    ask(master, "ACL", "SETUSER", "default", "-psync", "-sync")
    ask(master, "CLIENT", "KILL", "TYPE", "replica")
    wait_until(lambda: told(master, "connected_slaves") == "0")


def take_over(replica: EmbeddedServer) -> None:
    """The replica is the master of its slots, whoever says what."""
    ask(replica, "CLUSTER", "FAILOVER", "TAKEOVER")
    wait_until(lambda: is_master(replica))
