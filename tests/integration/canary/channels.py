"""Where a secret could show up: everything that each channel said, as texts with a name."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from google.protobuf.json_format import MessageToDict

from audit.memory import AuditMemory
from tests.integration.otlp import OtlpSink
from tests.integration.prepared import celery
from tests.integration.stack import ROOT
from tests.support import wait_until

USER, PASSWORD = "flower", "for this test"
_TOKEN = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

#: Task ids on Flower's pages are asked for one by one, and these as they are.
PAGES = ("/", "/tasks", "/workers", "/broker", "/metrics", "/healthcheck")
ANSWERS = ("/api/tasks", "/api/workers?refresh=1", "/api/workers", "/api/task/types")
COLUMNS = ("name", "uuid", "state", "args", "kwargs", "result", "exception", "traceback", "worker")


@dataclass(frozen=True)
class Document:
    """One text of a channel, and what it is called there."""

    channel: str
    name: str
    text: str


class Events:
    """Every event as it came over the broker."""

    def __init__(self, app: Any) -> None:
        self.seen: list[dict[str, Any]] = []
        self._app = app
        self._receiver: Any = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(self._ready.is_set, 20)
        return self

    def __exit__(self, *raised: object) -> None:
        self._receiver.should_stop = True
        self._thread.join(20)

    def _receive(self) -> None:
        with self._app.connection_for_read() as connection:
            self._receiver = self._app.events.Receiver(connection, handlers={"*": self._keep})
            self._receiver.on_consume_ready = lambda *_, **__: self._ready.set()
            self._receiver.capture(wakeup=False)

    def _keep(self, event: dict[str, Any]) -> None:
        self.seen.append(event)

    def types(self) -> set[str]:
        return {event["type"] for event in self.seen}

    def documents(self) -> Iterator[Document]:
        for event in self.seen:
            skill = event.get("name", event.get("uuid", ""))
            yield Document("events", f"{event['type']} {skill}", repr(event))


class Flower:
    """A Flower of its own, and what it shows to somebody who may look."""

    def __init__(
        self, directory: Path, app: str, environ: dict[str, str], conf: Path | None
    ) -> None:
        self.log = directory / "flower.log"
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = free.getsockname()[1]
        options = ["--address=127.0.0.1", f"--port={self.port}", "--logging=debug"]
        options += [f"--basic_auth={USER}:{PASSWORD}", *([f"--conf={conf}"] if conf else [])]
        with self.log.open("wb") as log:
            self.process = celery(
                *("-A", app, "flower", *options),
                stdout=log,
                stderr=log,
                cwd=directory,
                env={**os.environ, **environ, "PYTHONPATH": str(ROOT)},
            )

    def ready(self) -> Self:
        wait_until(lambda: self.get("/healthcheck")[0] == 200 or self._ended(), 60)
        assert not self._ended(), self.log.read_text()
        return self

    def _ended(self) -> bool:
        return self.process.poll() is not None

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)

    def get(self, path: str, *, auth: bool = True) -> tuple[int, str]:
        """Status and text of an answer; the status is 0 while nobody answers."""
        headers = {"Authorization": f"Basic {_TOKEN}"} if auth else {}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        with closing(connection):
            try:
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
                return answer.status, answer.read().decode()
            except ConnectionError:
                return 0, ""

    def tasks(self) -> dict[str, dict[str, Any]]:
        return json.loads(self.get("/api/tasks")[1])

    def online(self) -> bool:
        """Whether it takes any worker for alive."""
        return any(json.loads(self.get("/api/workers?status=1")[1]).values())

    def documents(self, workers: Iterable[str]) -> Iterator[Document]:
        """Every page and every answer, for every task and worker that it knows."""
        ids = list(self.tasks())
        yield from (self._page("Flower pages", page) for page in PAGES)
        yield from (self._page("Flower pages", f"/worker/{worker}") for worker in workers)
        yield from (self._page("Flower pages", f"/task/{task}") for task in ids)
        yield self._page("Flower pages", f"/tasks/datatable?{_whole_table()}")
        yield from (self._page("Flower API", answer) for answer in ANSWERS)
        for kind in ("info", "result"):
            yield from (self._page("Flower API", f"/api/task/{kind}/{task}") for task in ids)

    def _page(self, channel: str, path: str) -> Document:
        status, text = self.get(path)
        name = re.sub(r"\?.*", "", path)
        return Document(channel, f"{status} {name}", text)


def _whole_table() -> str:
    asked = {"draw": 1, "start": 0, "length": 10_000, "search[value]": ""}
    asked |= {"order[0][column]": 0, "order[0][dir]": "asc"}
    asked |= {f"columns[{n}][data]": column for n, column in enumerate(COLUMNS)}
    return urlencode(asked)


def rows(memory: AuditMemory) -> Iterator[Document]:
    for row in memory.rows():
        yield Document("rows", f"{row.kind} {row.payload['skill_id']}", row.to_bytes().decode())


def spans(sink: OtlpSink) -> Iterator[Document]:
    for span in sink.spans():
        text = json.dumps(MessageToDict(span), ensure_ascii=False)
        yield Document("spans", span.name, text)


def files(channel: str, paths: Iterable[Path]) -> Iterator[Document]:
    for path in paths:
        yield Document(channel, path.name, path.read_bytes().decode("utf-8", "replace"))


def results(app: Any, ids: Iterable[str]) -> Iterator[Document]:
    """What the result backend keeps of skills whose body is excluded; of others it keeps all."""
    for task_id in ids:
        kept = app.backend.get(app.backend.get_key_for_task(task_id))
        yield Document("results", task_id, (kept or b"").decode())


def inspections(app: Any, ids: Iterable[str]) -> Iterator[Document]:
    """What the workers answer to whoever asks what they are at."""
    inspect = app.control.inspect(timeout=3, limit=1)
    questions = ("active", "reserved", "scheduled", "stats", "conf", "report", "revoked")
    answers = {question: getattr(inspect, question)() for question in questions}
    answers["query_task"] = inspect.query_task(list(ids))
    for question, answer in answers.items():
        yield Document("inspect", question, repr(answer))
