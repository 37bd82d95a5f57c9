"""Long runs (chaos, soak) as processes of a test, and what of them is left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from chaos.place import DIRECTORY

ROOT = Path(__file__).parents[1]


@contextmanager
def run(module: str, directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """``python -m MODULE`` that works in a directory; whatever happens, nothing of it stays."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, "--keep", str(directory), *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()
            for other in left(directory):
                other.kill()


def left(directory: Path) -> list[psutil.Process]:
    """Live processes of the run in that directory, its servers among them."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get(DIRECTORY, "").startswith(str(directory))
            if mine or any(str(directory) in part for part in process.cmdline()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found
