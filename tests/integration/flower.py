"""One ``celery flower`` process, started as users start it, and what its addresses answer."""

from __future__ import annotations

import base64
import http.client
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.integration.prepared import celery
from tests.integration.stack import ROOT, Stack
from tests.support import wait_until

SHIPPED = ROOT / "flowerconfig.py"
LOGIN = "auditor:correct-horse"


class Answer(NamedTuple):
    status: int
    text: str


class Flower:
    """Args:
    stack: whose broker and backend it watches.
    directory: its working directory.
    arguments: of the command line, after ``flower``.
    environ: what goes over ``stack``'s addresses; no other ``FLOWER_*`` comes along.
    """

    def __init__(self, stack: Stack, directory: Path, *arguments: str, **environ: str) -> None:
        self.log = directory / "flower.log"
        own = {name: value for name, value in os.environ.items() if name[:7] != "FLOWER_"}
        with self.log.open("wb") as log:
            self.process = celery(
                *("-A", "tests.integration.worker_app", "flower", "--port=0", *arguments),
                stdout=log,
                stderr=log,
                cwd=directory,
                env={**own, **stack.environ, "PYTHONPATH": str(ROOT), **environ},
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def port(self) -> int:
        """Where it listens, once it does."""

        def visit() -> re.Match[str] | None:
            assert self.process.poll() is None, self.text()
            return re.search(r"Visit me at http://[\d.]+:(\d+)", self.text())

        found = wait_until(visit, 60)
        assert found
        return int(found[1])

    def ask(self, path: str, method: str = "GET", login: str | None = LOGIN) -> Answer:
        headers = {}
        if login is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        return self.send(path, method, headers)

    def send(self, path: str, method: str, headers: dict[str, str], body: str = "") -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port(), timeout=20)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return Answer(response.status, response.read().decode())
        finally:
            connection.close()

    def headers(self, path: str) -> dict[str, str]:
        """Of the answer to somebody who is logged in."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port(), timeout=20)
        code = base64.b64encode(LOGIN.encode()).decode()
        try:
            connection.request("GET", path, headers={"Authorization": f"Basic {code}"})
            return dict(connection.getresponse().getheaders())
        finally:
            connection.close()

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(20)


def start_flower(stack: Stack, directory: Path, **environ: str) -> Flower:
    """With the shipped configuration and a login, once it listens."""
    shutil.copy(SHIPPED, directory)
    flower = Flower(stack, directory, FLOWER_BASIC_AUTH=LOGIN, **environ)
    flower.port()
    return flower
