"""tests/integration/prepared.py: a forked process is as one that was started from nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.prepared import HABITS, ROOT, Process, Started, start

TELL = """
import json, os, signal, sys
from importlib import util
told = {
    "arguments": sys.argv[1:],
    "program": os.path.basename(sys.argv[0]),
    "place": os.getcwd(),
    "first place for modules": sys.path[0],
    "environment": dict(os.environ),
    "descriptors": sorted(fd for fd in os.listdir("/dev/fd") if os.path.exists(f"/dev/fd/{fd}")),
    "leads a session": os.getsid(0) == os.getpid(),
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "asked": sys.stdin.readline(),
    "name": __name__,
    "of the tests": sorted(name for name in sys.modules if name.startswith("tests.integration.")),
}
print(json.dumps(told), flush=True)
print("trouble", file=sys.stderr, flush=True)
sys.stdin.read()
sys.exit(3)
"""


@pytest.fixture
def environ() -> dict[str, str]:
    # Without a locale the interpreter would add one.
    own = {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", "AUDIT_MINE": "1"}
    return {n: v for n, v in os.environ.items() if n.startswith("PYTHON")} | own


def tell(at: Path, environ: dict[str, str], *, session: bool = False) -> Started:
    (at / "tell.py").write_text(TELL)
    pipe = subprocess.PIPE
    return start(
        *("tell", "--one", "two"),
        cwd=at,
        env=environ,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        session=session,
    )


def from_nothing(at: Path, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "tell", "--one", "two"]
    return subprocess.Popen(command, cwd=at, env=environ, stdin=pipe, stdout=pipe, stderr=pipe)


def what_it_tells(process: Started) -> dict[str, object]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"well?\n")
    process.stdin.flush()
    return dict(json.loads(process.stdout.readline()))


def test_a_forked_process_is_as_one_from_nothing(tmp_path: Path, environ: dict[str, str]) -> None:
    """Its arguments, environment, directory, descriptors and SIGINT; no module of a test's."""
    with tell(tmp_path, environ) as forked, from_nothing(tmp_path, environ) as fresh:
        assert isinstance(forked, Process)
        seen, meant = what_it_tells(forked), what_it_tells(fresh)
        assert seen == meant | {"of the tests": []}
        assert forked.communicate(20) == fresh.communicate(timeout=20) == (b"", b"trouble\n")
        assert forked.returncode == fresh.returncode == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_its_end_is_told(tmp_path: Path, environ: dict[str, str], number: signal.Signals) -> None:
    """A process that a signal ends has that signal as its return code; until then it has none."""
    with tell(tmp_path, environ, session=True) as forked:
        assert what_it_tells(forked)["leads a session"]
        assert forked.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            forked.wait(0.01)
        forked.send_signal(number)
        assert forked.wait(20) == -number
        assert forked.poll() == -number
        forked.kill()  # nobody is struck by it


def test_habits_need_no_start_from_nothing(tmp_path: Path, environ: dict[str, str]) -> None:
    """A test with an environment of its own need not know them."""
    for given in (environ | dict.fromkeys(HABITS, "1"), remaining(environ)):
        with tell(tmp_path, given) as process:
            assert isinstance(process, Process)
            what_it_tells(process)


def remaining(environ: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in HABITS}


@pytest.mark.parametrize("more", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONPATH": "/nowhere"}])
def test_what_the_interpreter_reads_needs_a_start_from_nothing(
    tmp_path: Path, environ: dict[str, str], more: dict[str, str]
) -> None:
    """Variables of Python's own are heeded."""
    with tell(tmp_path, environ | more) as process:
        assert isinstance(process, subprocess.Popen)
        what_it_tells(process)
