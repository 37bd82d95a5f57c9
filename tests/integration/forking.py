"""The process that has imported Celery and the host once, and forks those that a test orders.

``tests/integration/prepared.py`` starts it and orders. Each order is a message with four
descriptors: where to tell how it ended, its standard input, and its two outputs. Between this
process and the ordered one stands a third, which waits for its end and tells: first the pid, in the
end the return code.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

#: Bytes of a number in a message: the length of an order, a pid.
LENGTH = 4


def exactly(connection: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        more = connection.recv(length - len(found))
        if not more:
            raise EOFError("the other side has ended")
        found += more
    return found


def serve(orders: socket.socket) -> str:
    """Fork what is ordered until the tests are gone.

    Returns:
        In each ordered process, and there only: the module to run.
    """
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, "a fork would lose a thread"
    while True:
        head, fds, _, _ = socket.recv_fds(orders, LENGTH, 4)
        if not head:
            _reap()
            sys.exit()
        order = json.loads(exactly(orders, int.from_bytes(head, "big")))
        if os.fork() == 0:
            orders.detach()
            _attend(order, *fds)
            return str(order["module"])
        for fd in fds:
            os.close(fd)
        _reap()


def _attend(order: Mapping[str, Any], report: int, *standard: int) -> None:
    """Fork once more and tell what becomes of it; comes back in the ordered process only."""
    pid = os.fork()
    if pid == 0:
        _become(order, standard)
        return
    os.dup2(report, 3)
    os.closerange(4, _most())
    with socket.socket(fileno=3) as connection, suppress(OSError):  # whoever asked may be gone
        connection.sendall(pid.to_bytes(LENGTH, "big"))
        status = os.waitpid(pid, 0)[1]
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(order: Mapping[str, Any], standard: Sequence[int]) -> None:
    if order["session"]:
        os.setsid()
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
    os.closerange(3, _most())
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    # Here ``-m`` has put the working directory, before the same PYTHONPATH.
    sys.path[0] = order["cwd"]
    sys.argv[1:] = order["arguments"]


def _most() -> int:
    return max(map(int, os.listdir("/dev/fd"))) + 1


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    import uvicorn  # noqa: F401

    import tasks  # noqa: F401

    module = serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
