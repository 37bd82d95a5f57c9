"""Clears up after a demo that was killed and could not do it; ``demo.processes`` runs it.

Standard input is a pipe that only the demo can write to: a line for each process group it starts.
End of file means that the demo is gone. A demo that ends in order has nothing left to clear up, and
ends its janitor before it closes the pipe, so that no number is used that may be someone else's.

Usage: ``python janitor.py DIRECTORY``, the directory being the demo's, removed last of all.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable


def clear_up(groups: Iterable[int], directory: str) -> None:
    """Kill the process groups and remove the directory."""
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for _ in range(100):  # who was killed just now may still be writing
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.exists(directory):
            return
        time.sleep(0.05)


if __name__ == "__main__":
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    clear_up([int(line) for line in sys.stdin], sys.argv[1])
