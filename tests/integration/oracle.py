"""Programs of other people that the tests hold this project against, installed when a test runs.

They are no dependencies of this project and never come into its environment: ``pip`` puts each into
a folder of its own under the user's cache, checked against the hashes in ``oracles/*.txt``, and the
next run finds it there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import missing

ORACLES = Path(__file__).with_name("oracles")


def cache() -> Path:
    """Where it stays from run to run."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "skill-host-tests"


def installed(name: str) -> Path:
    """The folder with the package ``name`` in it; :func:`tests.support.missing` if there is none.

    Another process may install the same at the same time: whoever is second takes the first's.
    """
    wanted = ORACLES / f"{name}.txt"
    mark = hashlib.sha256(wanted.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = cache() / f"{name}-{mark}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        unnamed = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
        try:
            _pip_install(name, wanted, unnamed)
            with contextlib.suppress(OSError):
                unnamed.rename(folder)
        finally:
            shutil.rmtree(unnamed, ignore_errors=True)
    return folder


def _pip_install(name: str, wanted: Path, target: Path) -> None:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--only-binary=:all:"]
    exact = ["--require-hashes", "--no-deps", "--ignore-requires-python"]
    command = [sys.executable, "-m", "pip", "install", *quiet, *exact]
    run = subprocess.run(
        [*command, "--target", str(target), "-r", str(wanted)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    if run.returncode:
        missing(f"{name} cannot be installed here: {run.stderr.strip()[-300:]}")
