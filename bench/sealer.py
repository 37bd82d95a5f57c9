"""A sealer, as a process: ``python -m bench.sealer URL DIRECTORY``.

It takes orders, a word a line, and answers each. ``on`` seals once a second from then on, as a
keeper does, ``off`` no longer; ``all`` seals what there is, and answers what that took.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import psutil  # type: ignore[import-untyped]

from audit.ledger.keys import LedgerKeys
from audit.ledger.sealer import Sealer
from audit.memory import open_memory

#: Seconds between two rounds, the default of ``audit_ledger_seal_seconds``.
INTERVAL: Final = 1.0


def seal_all(sealer: Sealer) -> dict[str, Any]:
    """Rows, seconds, and the resident bytes of this process after each checkpoint."""
    process, held = psutil.Process(), []

    def go_on() -> bool:
        held.append(process.memory_info().rss)
        return True

    began = time.perf_counter()
    did = sealer.round(go_on)
    seconds = time.perf_counter() - began
    if did is None or did.faults:
        raise SystemExit(f"nothing was sealed: {did}")
    return {"rows": did.rows, "seconds": seconds, "held": held}


def seal_on(sealer: Sealer, off: threading.Event) -> None:
    while not off.wait(INTERVAL):
        seal_all(sealer)


def main(url: str, directory: str) -> None:
    keys = LedgerKeys.generate("bench.invalid")
    memory = open_memory(url, timeout=10)
    sealer = Sealer(memory, Path(directory), origin="bench.invalid", load_keys=lambda: keys)
    off, thread = threading.Event(), threading.Thread()
    print(json.dumps("ready"), flush=True)
    for order in map(str.strip, sys.stdin):
        answer: Any = order
        if order == "on":
            off = threading.Event()
            thread = threading.Thread(target=seal_on, args=(sealer, off))
            thread.start()
        elif order == "off":
            off.set()
            thread.join()
        else:
            answer = seal_all(sealer)
        print(json.dumps(answer), flush=True)
    off.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
