"""What docs/gateway.md tells a newcomer to type works as it stands there."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.embedded import EmbeddedServer
from tests.integration.stack import ROOT
from tests.support import checked_memory, require, wait_until

PAGE = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPET = re.compile(r"<!-- snippet: (?P<name>\S+) -->\n```python\n(?P<code>.*?)```", re.S)
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.M | re.S)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def script() -> str:
    """All blocks in their order; the server goes on beside them, and what they print is marked."""
    lines = "".join(BLOCK.findall(PAGE)).replace("8080", str(port := free_port()))
    beside = (
        r"\1 >gateway.log 2>&1 &\ntrap 'kill $!' EXIT\n"
        f"until curl -sf http://127.0.0.1:{port}/healthz >/dev/null; do sleep 0.05; done"
    )
    lines, servers = re.subn(r"^(uvicorn .*)$", beside, lines, flags=re.M)
    assert servers == 1
    until = (
        r"echo; until ANSWER=$(\1); [[ $ANSWER == *succeeded* ]]; do sleep 0.05; done; echo $ANSWER"
    )
    asked = re.sub(r"^(curl .*\$LINK.*)$", until, lines, flags=re.M)
    return "set -e\n" + re.sub(r"^(?=curl )", "echo; ", asked, flags=re.M)


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The README's skills with a worker, and the page's gateway beside them."""
    for page in (README, PAGE):
        for match in SNIPPET.finditer(page):
            (tmp_path / match["name"]).write_text(match["code"])
    with EmbeddedServer() as server:
        environ = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "CELERY_BROKER_URL": server.url_for(0),
            "CELERY_RESULT_BACKEND": server.url_for(0),
            "AUDIT_MEMORY_URL": server.url_for(1),
            "AUDIT_SPOOL_DIR": str(tmp_path / "spool"),
            "PYTHONPATH": f"{ROOT}:{tmp_path}",
        }
        with (tmp_path / "worker.log").open("wb") as log:
            worker = subprocess.Popen(
                ["celery", "-A", "my_skills", "worker", "-P", "solo", "-l", "INFO"],
                cwd=tmp_path,
                env=environ,
                stdout=log,
                stderr=log,
            )
        try:
            wait_until(lambda: " ready." in (tmp_path / "worker.log").read_text(), 60)
            yield environ
        finally:
            worker.terminate()
            worker.wait(30)
            with checked_memory(environ["AUDIT_MEMORY_URL"]):
                pass


def test_the_page_as_it_stands(environ: dict[str, str], tmp_path: Path) -> None:
    """A token, the server, a result at once, a result by its link, the document, the health."""
    for program in ("curl", "openssl", "bash"):
        require(program)
    done = subprocess.run(
        ["bash", "-c", script()],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr + (tmp_path / "gateway.log").read_text()
    answers = [json.loads(line) for line in done.stdout.splitlines() if line]
    waited, asked, document, health = answers
    assert waited["result"] == {"cents": 1000}
    assert (asked["state"], asked["result"]) == ("succeeded", {"cents": 750})
    assert "/v1/skills/shop.quote" in document["paths"]
    assert health == {"status": "ok"}
