"""The leash: a process of a run ends when the process that started it has ended, however it did.

Standard input is a pipe that the launcher holds the other end of and never writes to. What is
frozen at that very moment follows when it is thawed.
"""

from __future__ import annotations

import os
import signal
import threading


def follow() -> None:
    """End this process's whole group with its launcher."""
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)
