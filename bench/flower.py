"""A Flower with the audit's pages: ``python -m bench.flower MEMORY BROKER PORT LOGIN``.

It is the one that users start: Celery's own command with the shipped flowerconfig. It ends with
whoever started it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from celery.bin.celery import main as celery

from bench.processes import ROOT


def main(memory: str, broker: str, port: str, login: str) -> None:
    os.environ |= {
        "AUDIT_MEMORY_URL": memory,
        "CELERY_BROKER_URL": broker,
        "CELERY_RESULT_BACKEND": broker,
        "FLOWER_BASIC_AUTH": login,
    }
    leash = os.dup(0)
    threading.Thread(target=_end_with_launcher, args=(leash,), daemon=True).start()
    sys.argv = ["celery", "-A", "tasks", "flower", f"--conf={ROOT / 'flowerconfig.py'}"]
    sys.argv += [f"--port={port}", "--logging=warning"]
    celery()


def _end_with_launcher(leash: int) -> None:
    """Standard input is a pipe that the launcher never writes to: its end is the launcher's."""
    os.read(leash, 1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
