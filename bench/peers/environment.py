"""Environments of the peers: made when first asked for, kept in the user's cache, pinned by hash.

None of them is a dependency of the project, and none of their packages comes near its environment.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.processes import BenchError

#: Seconds that one installation may take.
INSTALL_SECONDS: Final = 600.0
HERE: Final = Path(__file__).parent
STAMP: Final = "installed"


def lock(name: str) -> Path:
    """What is installed for that peer."""
    return HERE / f"{name.partition('_')[0]}.lock"


def pinned(text: str, package: str) -> str:
    """The version that a lock names for a package."""
    found = re.search(rf"^{re.escape(package)}==([^ \\;]+)", text, re.MULTILINE)
    if found is None:
        raise BenchError(f"the lock has no version of {package}")
    return found[1]


def python_for(name: str) -> str:
    """The interpreter of that peer's environment, installed if it is not there.

    Raises:
        BenchError: it cannot be installed; the reason names no address and no path.
    """
    folder = cache() / f"{name}-{_digest(lock(name))}"
    if not (folder / STAMP).exists():
        _install(name, folder)
    return str(folder / "bin" / "python")


def cache(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of all environments."""
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "skill-host-bench"


def _digest(path: Path) -> str:
    """Of the lock and the interpreter: another of either is another environment."""
    made_of = path.read_bytes() + sys.version.encode()
    return hashlib.sha256(made_of).hexdigest()[:12]


def _install(name: str, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "-qq"]
    options = ["--disable-pip-version-check", "--require-hashes", "-r", str(lock(name))]
    try:
        venv.create(folder, with_pip=True)
        subprocess.run([*command, *options], check=True, timeout=INSTALL_SECONDS, stdout=sys.stderr)
    except subprocess.TimeoutExpired:
        raise BenchError(f"not installed within {INSTALL_SECONDS:g} s") from None
    except subprocess.CalledProcessError as error:
        raise BenchError(f"not installed: pip ended with status {error.returncode}") from None
    except OSError as error:
        raise BenchError(f"not installed: {type(error).__name__}") from None
    (folder / STAMP).touch()
