"""The whole host on one machine: server, worker, keeper, beat, Flower, up as long as asked for.

Broker, result backend and audit memory are three databases of one embedded server, unless the
environment names others. The memory is asked for ``durability=always``: a row is on disk before the
skill runs, and the server would be refused if it did not promise that.
"""

from __future__ import annotations

import http.client
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from audit import open_memory
from audit.embedded import EmbeddedServer
from audit.memory import migrate_memory
from demo.ledger import new_ledger
from demo.postgres import PostgresServer
from demo.processes import ROOT, Child, Janitor
from demo.skills import app
from demo.waiting import DemoError, wait_until

#: What the embedded server provides where the environment does not: its database, and parameters.
PROVIDED: Final[Mapping[str, tuple[int, str]]] = {
    "CELERY_BROKER_URL": (0, ""),
    "CELERY_RESULT_BACKEND": (1, ""),
    "AUDIT_MEMORY_URL": (2, "?durability=always"),
}
#: What ``MEMORY`` may ask for.
KINDS: Final = ("valkey", "postgres", "sqlite")
NODE: Final = "demo@localhost"
FLOWER_USER: Final = "demo"
UP_SECONDS: Final = 60.0

_VISIT: Final = re.compile(r"Visit me at http://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """What is up.

    Attributes:
        directory: temporary, shared with the worker.
        provided: what the demo brought along, by environment variable: the addresses that the
            embedded server stands behind, and the ledger of its memory; what is not among them
            was in the environment before, and is not ours to show.
        worker, keeper, beat, flower: the children.
        flower_port: where Flower listens on 127.0.0.1.
        flower_password: what it asks for, beside :data:`FLOWER_USER`.
        check: raises where a signal asks for the end, or a child has ended by itself.
    """

    directory: Path
    provided: Mapping[str, str]
    worker: Child
    keeper: Child
    beat: Child
    flower: Child
    flower_port: int
    flower_password: str
    check: Callable[[], None]

    @property
    def flower_url(self) -> str:
        """Flower's first page."""
        return f"http://127.0.0.1:{self.flower_port}"

    @property
    def audit_url(self) -> str:
        """The first of the audit's pages in it."""
        return f"{self.flower_url}/audit"

    @property
    def endpoints(self) -> list[str]:
        """``host:port`` of Flower, and of the broker where its address has them."""
        broker = urlsplit(os.environ["CELERY_BROKER_URL"])
        known = [f"{broker.hostname}:{broker.port}"] if broker.hostname and broker.port else []
        return [f"127.0.0.1:{self.flower_port}", *known]


@contextmanager
def running_stack(interrupted: Callable[[], None]) -> Iterator[Stack]:
    """Start everything, wait until it answers, and end it without a trace.

    Args:
        interrupted: raises when the demo is asked to end; every wait calls it.

    Raises:
        DemoError: something did not come up.
        AuditError: there is no server to start, or the audit memory cannot be used.
    """
    with ExitStack() as ends:
        directory = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="skillhost-demo-")))
        janitor = ends.enter_context(Janitor(directory))
        provided = _provide(ends, directory)
        _check_addresses()
        password = secrets.token_urlsafe(12)
        worker, keeper, beat, flower = children = [
            _child(ends, janitor, name, arguments, environment, directory)
            for name, arguments, environment in _programs(directory, password)
        ]
        ends.callback(_ask_all_to_end, children)

        def check() -> None:
            interrupted()
            for child in children:
                child.check()

        _wait_for_worker(worker, check)
        yield Stack(
            directory=directory,
            provided=provided,
            worker=worker,
            keeper=keeper,
            beat=beat,
            flower=flower,
            flower_port=_wait_for_flower(flower, check),
            flower_password=password,
            check=check,
        )


def _provide(ends: ExitStack, directory: Path) -> Mapping[str, str]:
    """Start a server for the addresses that are missing, and put them into the environment.

    A memory that is ours gets a ledger of its own, whatever ledger the environment names.
    """
    kind = os.environ.get("MEMORY") or "valkey"
    if kind not in KINDS:
        raise DemoError(f"MEMORY={kind}: the demo brings {', '.join(KINDS)}")
    missing = [name for name in PROVIDED if not os.environ.get(name)]
    if not missing:
        return {}
    server = ends.enter_context(EmbeddedServer(directory=directory / "server", fsync="always"))
    provided = {}
    for name in missing:
        database, parameters = PROVIDED[name]
        provided[name] = f"{server.url_for(database)}{parameters}"
    if "AUDIT_MEMORY_URL" in provided:
        provided.update(_memory(ends, kind, directory), **new_ledger(directory))
    os.environ.update(provided)
    return provided


def _memory(ends: ExitStack, kind: str, directory: Path) -> Mapping[str, str]:
    """The address of a memory that is not the server's, where ``MEMORY`` asks for one."""
    if kind == "sqlite":
        return {"AUDIT_MEMORY_URL": f"sqlite:///{directory}/audit.db"}
    if kind == "postgres":
        url = ends.enter_context(PostgresServer()).url(durability="always")
        migrate_memory(url)
        return {"AUDIT_MEMORY_URL": url}
    return {}


def _check_addresses() -> None:
    """Ask memory, broker and result backend for a sign of life before anything is built on them."""
    with closing(open_memory(os.environ["AUDIT_MEMORY_URL"])) as memory:
        memory.check()
    _ask("CELERY_BROKER_URL", _connect_to_broker)
    _ask("CELERY_RESULT_BACKEND", lambda: app.AsyncResult("nobody").state)


def _ask(variable: str, ask: Callable[[], object]) -> None:
    try:
        ask()
    except Exception as error:  # each transport and each backend has errors of its own
        raise DemoError(f"what {variable} names does not answer: {error}") from error


def _connect_to_broker() -> None:
    with app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, interval_start=0)


def _programs(directory: Path, password: str) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Name, arguments and environment of each child."""
    # Nothing of the caller's own Flower comes along: one variable of it opens the API to everyone.
    own = {name: value for name, value in os.environ.items() if not name.startswith("FLOWER_")}
    # Who seals has the ledger's keys, and nobody else.
    keys = {name: own.pop(name) for name in ("AUDIT_LEDGER_KEYS",) if name in own}
    # A worker's temporary files go where everything else goes, even if it has no time to clear up.
    base = {**own, "TMPDIR": str(directory), "AUDIT_SPOOL_DIR": str(directory / "spool")}
    yield "worker", ["worker", "-n", NODE, "-c", "4", "-E", "-l", "INFO"], base
    # Its pages are for who runs it for good; here the usual port may be that keeper's.
    yield "keeper", ["audit", "keep"], {"AUDIT_KEEPER_LISTEN": "off", **base, **keys}
    yield "beat", ["beat", "-l", "INFO", "-s", str(directory / "schedule")], base
    # The password goes through the environment, because a command line shows in `ps`.
    yield (
        "Flower",
        ["flower", f"--conf={ROOT / 'flowerconfig.py'}", "--port=0"],
        {**base, "FLOWER_BASIC_AUTH": f"{FLOWER_USER}:{password}"},
    )


def _child(
    ends: ExitStack,
    janitor: Janitor,
    name: str,
    arguments: list[str],
    environment: Mapping[str, str],
    directory: Path,
) -> Child:
    child = Child(name, arguments, environment, directory / f"{name.lower()}.log")
    ends.callback(child.end)
    janitor.watch_over(child.group)
    return child


def _ask_all_to_end(children: list[Child]) -> None:
    """All at once, so that they end side by side."""
    for child in children:
        child.ask_to_end()


def _wait_for_worker(worker: Child, check: Callable[[], None]) -> None:
    wait_until(
        lambda: app.control.ping(destination=[NODE], timeout=0.5),
        seconds=UP_SECONDS,
        check=check,
        failure=lambda: worker.failure(f"the worker gave no answer in {UP_SECONDS:g} s"),
    )


def _wait_for_flower(flower: Child, check: Callable[[], None]) -> int:
    """The port that Flower chose, once it answers there."""

    def port() -> int | None:
        told = _VISIT.search(flower.log())
        return int(told[1]) if told and _is_healthy(int(told[1])) else None

    found = wait_until(
        port,
        seconds=UP_SECONDS,
        check=check,
        failure=lambda: flower.failure(f"Flower gave no answer in {UP_SECONDS:g} s"),
    )
    assert found is not None
    return found


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/healthcheck")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
