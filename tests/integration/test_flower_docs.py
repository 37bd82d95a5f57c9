"""The documented ways to start Flower, as a reader of an own application follows them."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest

from audit.embedded import EmbeddedServer
from tests.integration.stack import ROOT
from tests.support import wait_until

SKILLS = re.compile(r"<!-- snippet: my_skills.py -->\n```python\n(.*?)```", re.S)
START = re.compile(r"```sh\n((?:(?!```).)*^celery -A my_skills flower.*?)```", re.S | re.M)


def status_of(port: int, path: str, login: str = "") -> int:
    headers = {"Authorization": f"Basic {b64encode(login.encode()).decode()}"} if login else {}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("page", ["README.md", "docs/pages.md"])
def test_flower_is_guarded_wherever_it_is_started(page: str, tmp_path: Path) -> None:
    """In a folder that has no ``flowerconfig.py`` too: a login, the audit's pages, no results."""
    (skills,) = SKILLS.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    (tmp_path / "my_skills.py").write_text(skills)
    (command,) = START.findall((ROOT / page).read_text(encoding="utf-8"))
    own = {name: value for name, value in os.environ.items() if not name.startswith("FLOWER_")}
    with EmbeddedServer() as server, (tmp_path / "log").open("wb") as log:
        environ = {
            **own,
            "AUDIT_MEMORY_URL": server.url_for(1),
            "CELERY_BROKER_URL": server.url_for(0),
            "CELERY_RESULT_BACKEND": server.url_for(0),
            "FLOWER_PORT": "0",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
        }
        flower = subprocess.Popen(
            ["sh", "-ec", command.replace("\ncelery ", "\nexec celery ")],
            cwd=tmp_path,
            env=environ,
            stdout=log,
            stderr=log,
        )
        try:
            found = wait_until(
                lambda: re.search(
                    r"Visit me at http://[\d.]+:(\d+)", (tmp_path / "log").read_text()
                ),
                60,
            )
            assert found
            port = int(found[1])
            (login,) = re.findall(r"FLOWER_BASIC_AUTH=(\S+)", command)
            assert status_of(port, "/audit") == status_of(port, "/workers") == 401
            assert status_of(port, "/audit", login) == 200
            assert status_of(port, "/api/task/result/1", login) == 403
        finally:
            flower.terminate()
            flower.wait(30)
