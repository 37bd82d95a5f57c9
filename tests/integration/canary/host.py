"""The whole scenario on a real stack: publish, look while things run, break what must break."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from audit.embedded import EmbeddedServer
from audit.row import COMPLETED, REFUSED
from tests.integration.canary import channels
from tests.integration.canary.channels import Document, Events, Flower
from tests.integration.canary.protections import Protection
from tests.integration.canary.ways import CALM, HELD, WAYS
from tests.integration.otlp import OtlpSink
from tests.integration.prepared import Started, start
from tests.integration.stack import ROOT, Stack, Worker, running_stack
from tests.support import wait_until

APP = "tests.integration.canary.app"


class Host:
    """A stack with everything that could repeat a secret."""

    def __init__(
        self, stack: Stack, memory: EmbeddedServer, sink: OtlpSink, events: Events
    ) -> None:
        self.stack, self.memory, self.sink, self.events = stack, memory, sink, events
        self.directory = stack.directory
        self.seed = str(uuid4())
        self.ids: dict[str, str] = {}
        self.paths: list[str] = []
        self.looked: list[Document] = []
        self.rows = 0

    def environ(self, name: str, off: str = "") -> dict[str, str]:
        """The environment of one process."""
        own = {
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "CANARY_SEED": self.seed,
            "CANARY_OFF": off,
            "CANARY_RELEASE": str(self.directory),
        }
        own["CANARY_RECORDS"] = str(self.directory / f"{name}.records")
        own["CANARY_SIGNALS"] = str(self.directory / "signals")
        return {**self.stack.environ, **self.sink.environ, **own}

    def worker(self, off: str = "", pool: str = "prefork") -> Worker:
        environ = self.environ("worker", off)
        return self.stack.worker(pool, 2, app=APP, environ=environ, level="DEBUG")

    @contextlib.contextmanager
    def flower(self, off: str = "") -> Iterator[Flower]:
        conf = None if off == "flowerconfig.py" else ROOT / "flowerconfig.py"
        flower = Flower(self.directory, APP, self.environ("flower", off), conf)
        try:
            yield flower.ready()
        finally:
            flower.stop()

    @contextlib.contextmanager
    def caller(self, off: str = "") -> Iterator[Started]:
        """A caller that publishes what :meth:`publish` tells it."""
        with (self.directory / "caller.log").open("wb") as log:
            caller = start(
                "tests.integration.canary.caller",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.directory,
                env={**os.environ, **self.environ("caller", off), "PYTHONPATH": str(ROOT)},
            )
        try:
            yield caller
        finally:
            caller.communicate(timeout=30)

    def publish(self, caller: Any, ways: Sequence[str]) -> None:
        """Let the caller publish, and know what will come of it."""
        caller.stdin.write(json.dumps(list(ways)).encode() + b"\n")
        caller.stdin.flush()
        line = caller.stdout.readline()
        assert line, (self.directory / "caller.log").read_text()[-3000:]
        answer = json.loads(line)
        self.ids |= {way: task_id for way, task_id in answer["ids"].items() if task_id}
        self.paths = answer["paths"]
        self.rows += sum(WAYS[way].rows for way in ways)

    def closed(self, timeout: float = 40) -> None:
        """Wait until everything that ends by itself is on record."""
        kinds = (COMPLETED, REFUSED)
        found = 0

        def whole() -> bool:
            nonlocal found
            found = sum(len(self.stack.rows(kind=kind)) for kind in kinds)
            return found >= self.rows

        try:
            wait_until(whole, timeout)
        finally:
            assert found == self.rows, f"{found} of {self.rows} rows that close"

    def look(self, flower: Flower) -> None:
        """Keep what Flower shows now."""
        workers = [f"w{n}@test" for n in range(len(self.stack.workers))]
        self.looked += flower.documents(workers)

    def look_again(self, flower: Flower) -> None:
        """Keep what Flower shows once it knows everything, the worker's end included."""
        wait_until(lambda: "worker-offline" in self.events.types(), 20)
        known = {event["uuid"] for event in self.events.seen if "uuid" in event}
        wait_until(lambda: known <= set(flower.tasks()) and not flower.online(), 20)
        self.look(flower)

    def hold(self, caller: Any, flower: Flower) -> None:
        """Look while skills run, wait and are due later; then terminate one, and spool a row."""
        self.publish(caller, HELD)
        self.held()
        self.look(flower)
        self.looked += channels.inspections(self.stack.app, self.ids.values())
        self.stack.app.control.revoke(self.ids["terminated"], terminate=True)
        self.closed()
        with self.memory_down():
            (self.directory / "release").touch()
            spool = self.directory / "spool"
            # A row has its name only when it is whole; its folder holds other files before that.
            wait_until(lambda: list(spool.rglob("*.row")), 20)
            spooled = [path for path in spool.rglob("*") if path.is_file()]
            self.looked += channels.files("spool", spooled)

    def reduced(self, off: str, protection: Protection) -> None:
        """As much of the scenario as shows what a protection does, without it."""
        worker = self.worker(off)
        flower = self.flower(off) if protection.channel.startswith("Flower") else None
        with flower or contextlib.nullcontext() as page, self.caller(off) as caller:
            self.publish(caller, [way for way in protection.ways if way in CALM])
            self.closed()
            if protection.channel == "inspect":
                self.publish(caller, HELD)
                self.held()
                self.looked += channels.inspections(self.stack.app, self.ids.values())
                (self.directory / "release").touch()
            worker.stop()
            if page is not None:
                self.look_again(page)

    def held(self) -> None:
        wait_until(lambda: len(list(self.directory.glob("held-*"))) == 2, 20)

    @contextlib.contextmanager
    def memory_down(self) -> Iterator[None]:
        self.memory.stop()
        try:
            yield
        finally:
            self.memory.start()

    def documents(self) -> Iterator[Document]:
        """Everything that was said, once every process has ended."""
        yield from self.looked
        yield from channels.rows(self.stack.memory)
        yield from self.events.documents()
        yield from channels.spans(self.sink)
        yield from channels.files("logs", sorted(self.directory.glob("*.log")))
        yield from channels.files("signals", self.directory.glob("signals"))
        excluded = [task_id for way, task_id in self.ids.items() if way.startswith("body excluded")]
        yield from channels.results(self.stack.app, excluded)
        yield from channels.files("log records", sorted(self.directory.glob("*.records")))


@contextlib.contextmanager
def host(directory: Path) -> Iterator[Host]:
    """Servers, a sink and a receiver of events; the memory has a server of its own."""
    with (
        OtlpSink() as sink,
        EmbeddedServer(directory=directory / "memory") as memory,
        running_stack(directory, memory_url=memory.url) as stack,
        Events(stack.app) as events,
    ):
        yield Host(stack, memory, sink, events)
