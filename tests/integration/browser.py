"""Debian's Chromium, headless, and axe-core, which looks for what keeps people out of a page."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from tests.integration.flower import LOGIN
from tests.integration.stack import ROOT
from tests.support import missing, require, wait_until

#: What a run leaves for people to look at; git ignores it.
ARTEFACTS = ROOT / ".artefacts"
AXE = "4.11.0"
#: SHA-512 of that version's package, as its registry has it.
AXE_DIGEST = (
    "ilYanEU8vxxBexpJd8cWM4ElSQq4QctCLKih0TSfjIfCQTeyH/6zVrmIJfLPrKTKJRbiG+cfnZbQIjAlJmF1jQ=="
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1000",
    "--force-color-profile=srgb",
    "--disable-dev-shm-usage",
)


class Browser:
    """One tab that is logged in to Flower."""

    def __init__(self, driver: Chrome, origin: str, axe: str) -> None:
        self.driver = driver
        self.origin = origin
        self._axe = axe

    def go(self, path: str) -> None:
        self.driver.get(self.origin + path)

    def run(self, script: str, *values: Any) -> Any:
        return self.driver.execute_script(script, *values)

    def text(self) -> str:
        """What is to be read in the part that changes."""
        return str(self.run("return document.getElementById('audit-part').innerText"))

    def state(self) -> str:
        """What the page says of its own age."""
        return str(self.run("return document.getElementById('audit-state').textContent"))

    def wait_live(self) -> None:
        """Until the page has been read again by itself."""
        self.run("document.getElementById('audit-part').firstElementChild.dataset.old = 'yes'")
        wait_until(lambda: not self.run("return document.querySelector('[data-old]')"), 30)

    def narrow(self, width: int) -> None:
        """Be as wide as a telephone; 0 for as wide as before."""
        if not width:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            return
        size = {"width": width, "height": 740, "deviceScaleFactor": 1, "mobile": True}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def shoot(self, name: str) -> None:
        """Keep the whole page as a picture."""
        ARTEFACTS.mkdir(exist_ok=True)
        shot = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"captureBeyondViewport": True, "format": "png"}
        )
        (ARTEFACTS / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))

    def faults(self) -> list[tuple[str, str, list[str]]]:
        """What axe finds that is serious or critical: rule, what it means, where."""
        self.run("arguments; " + self._axe)
        found = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "axe.run(document, {resultTypes: ['violations']})"
            ".then(found => done(found.violations), error => done([{id: String(error),"
            " impact: 'critical', help: '', nodes: []}]))"
        )
        return [
            (one["id"], one["help"], [str(node["html"])[:120] for node in one["nodes"]][:5])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]

    def complaints(self) -> list[str]:
        """What the browser's console has had to say since the last time."""
        return [one["message"] for one in self.driver.get_log("browser")]


@contextmanager
def browser_at(port: int, directory: Path) -> Iterator[Browser]:
    """A browser with a profile of its own; nothing is downloaded for it."""
    options = ChromeOptions()
    options.binary_location = require("chromium")
    for flag in (*FLAGS, f"--user-data-dir={directory / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    axe = axe_source(directory)
    driver = Chrome(options, ChromeService(require("chromedriver")))
    try:
        driver.set_page_load_timeout(60)
        driver.set_script_timeout(60)
        driver.execute_cdp_cmd("Network.enable", {})
        code = base64.b64encode(LOGIN.encode()).decode()
        headers = {"headers": {"Authorization": f"Basic {code}"}}
        driver.execute_cdp_cmd("Network.setExtraHTTPHeaders", headers)
        yield Browser(driver, f"http://127.0.0.1:{port}", axe)
    finally:
        driver.quit()


def axe_source(directory: Path) -> str:
    """The script of axe-core, from npm's registry or its cache, with the digest it must have."""
    command = [require("npm"), "pack", f"axe-core@{AXE}", "--silent", "--prefer-offline"]
    command += ["--ignore-scripts"]
    packed = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, check=False, timeout=100
    )
    package = directory / f"axe-core-{AXE}.tgz"
    if packed.returncode or not package.is_file():
        missing(f"npm could not fetch axe-core: {packed.stderr.strip()[-200:]}")
    digest = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    assert digest == AXE_DIGEST, "this is not the axe-core that was looked at"
    with tarfile.open(package) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script
        return re.sub(r"^/\*!.*?\*/", "", script.read().decode(), count=1, flags=re.DOTALL)
