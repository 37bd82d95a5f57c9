"""What a process of the bench does with its pipes: it takes orders, and ends with its launcher.

The processes under test import this module, so it knows nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

#: Seconds between the polite and the other end of a process whose launcher is gone.
PATIENCE: Final = 10.0


def end_with_launcher() -> None:
    """End this process when its standard input, which nobody writes to, is closed."""
    threading.Thread(target=_wait_and_end, daemon=True).start()


def serve(orders: Mapping[str, Callable[..., Any]]) -> None:
    """Take a JSON object a line, ``{"do": NAME, ...}``, and answer each with one."""
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(orders[order.pop("do")](**order)), flush=True)


def _wait_and_end() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os.kill(os.getpid(), signal.SIGKILL)
