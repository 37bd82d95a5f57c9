"""What a newcomer sees first: the audit's pages of a demo that stays up, behind its login."""

from __future__ import annotations

import base64
import http.client
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from demo.story import CLERK, OFFICER
from tests.support import require, wait_until

ROOT = Path(__file__).parents[2]
#: What the caller's environment may hold and the demo would heed.
HEEDED = ("AUDIT_", "CELERY_", "FLOWER_", "KEEP", "OTEL_")
UP_SECONDS = 90.0


@dataclass(frozen=True)
class Seen:
    """What the demo prints for whoever started it: an address and a login."""

    address: str
    user: str
    password: str

    def get(self, path: str = "", *, user: str = "", password: str = "") -> tuple[int, str]:
        """Status and text of a page below the address that was printed."""
        place = urlsplit(self.address)
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        headers = {"Authorization": f"Basic {login}"} if user else {}
        connection = http.client.HTTPConnection(place.netloc, timeout=20)
        try:
            connection.request("GET", f"{place.path}{path}", headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def page(self, path: str = "") -> str:
        status, text = self.get(path, user=self.user, password=self.password)
        assert status == 200, text
        return text


def read_output(text: str) -> Seen:
    address, login = r"(http://127\.0\.0\.1:\d+/audit)", r"\n +user: +(\S+)\n +password: +(\S+)"
    (found,) = re.findall(f"The audit, in Flower: +{address}{login}", text)
    return Seen(*found)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """A demo that stays up, as ``make demo KEEP=1`` starts it, its tour done."""
    directory = tmp_path_factory.mktemp("demo-pages")
    output = directory / "output"
    own = {name: value for name, value in os.environ.items() if not name.startswith(HEEDED)}
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "demo"],
            cwd=ROOT,
            env={**own, "TMPDIR": str(directory), "KEEP": "1"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        wait_until(
            lambda: "Still up" in output.read_text() or process.poll() is not None, UP_SECONDS
        )
        assert process.poll() is None, output.read_text()
        yield read_output(output.read_text())
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(60)


@pytest.mark.parametrize("path", ["", "/list", "/invocation/01M8MNNZ00SBQ3NSC3V3S5FMH4"])
def test_nobody_sees_a_page_without_the_login(seen: Seen, path: str) -> None:
    """Without a login, with a wrong one, with a wrong user: 401, and nothing of the audit."""
    logins = (
        {},
        {"user": seen.user, "password": "wrong"},
        {"user": "x", "password": seen.password},
    )
    for login in logins:
        status, text = seen.get(path, **login)
        assert status == 401
        assert OFFICER.tenant_id not in text
        assert "demo.panic" not in text


def test_the_printed_address_shows_the_audit(seen: Seen) -> None:
    """With the printed login: the page, with what the tour did, its endings and its tenants."""
    page = seen.page()
    for wanted in ("Running now", "Keeper", "at work", "Ledger", "demo.panic", "demo.fail"):
        assert wanted in page, wanted
    listed = seen.page("/list")
    for wanted in (OFFICER.persona, CLERK.persona, "demo.overrun", "obs.triage-alert"):
        assert wanted in listed, wanted


def test_its_ledger_is_at_work(seen: Seen) -> None:
    """A panicked invocation opens from the list, and soon the ledger has its rows."""
    listed = seen.page("/list?skill=demo.panic")
    (request_id,) = set(re.findall(r"/audit/invocation/(\w{26})", listed))
    sealed = '<dd class="metric-value">sealed</dd>'
    wait_until(lambda: sealed in seen.page(f"/invocation/{request_id}"), 30)
    assert "not configured" not in seen.page()


def test_two_commands_of_the_readme_lead_there() -> None:
    """The README's newcomer types two lines; the second is the demo of these tests."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- newcomer -->\n```sh\n(.*?)```", readme, re.S)
    assert block
    clone, demo = (re.sub(r"\s+#.*", "", line) for line in block[1].splitlines())
    assert clone == 'git clone "$REPOSITORY" skill-host'
    words = shlex.split(demo)
    assert words[:3] == ["make", "-C", "skill-host"]
    dry = [require("make"), "-C", str(ROOT), "-n", "-o", ".venv/.installed", *words[3:]]
    done = subprocess.run(dry, capture_output=True, text=True, timeout=60, check=True)
    assert ".venv/bin/python -m demo" in done.stdout
    assert "KEEP=1" in words


def test_the_readme_has_a_picture_of_it() -> None:
    """It is a PNG of the tree, and small enough to be looked at."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (path,) = re.findall(r"!\[[^]]{20,}\]\((\S+\.png)\)", readme)
    picture = (ROOT / path).read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(picture) < 400_000
