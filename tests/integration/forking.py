"""The process that has imported Celery and the host once, and forks those that a test orders.

``tests/integration/prepared.py`` starts it and orders. Each order is a message with three
descriptors: where to tell how it ended, and its two outputs. Between this process and the ordered
one stands a third, which waits for its end and tells: first the pid, in the end the return code.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import threading
from collections.abc import Mapping
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


def serve(orders: socket.socket) -> None:
    """Fork what is ordered until the tests are gone; comes back in each ordered process."""
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, "a fork would lose a thread"
    while True:
        head, fds, _, _ = socket.recv_fds(orders, LENGTH, 3)
        if not head:
            _reap()
            sys.exit()
        order = json.loads(exactly(orders, int.from_bytes(head, "big")))
        if os.fork() == 0:
            orders.detach()
            _attend(order, *fds)
            return
        for fd in fds:
            os.close(fd)
        _reap()


def _attend(order: Mapping[str, Any], report: int, stdout: int, stderr: int) -> None:
    """Fork once more and tell what becomes of it; comes back in the ordered process only."""
    pid = os.fork()
    if pid == 0:
        _become(order, stdout, stderr)
        return
    os.dup2(report, 3)
    os.closerange(4, _most())
    with socket.socket(fileno=3) as connection, suppress(OSError):  # whoever asked may be gone
        connection.sendall(pid.to_bytes(LENGTH, "big"))
        status = os.waitpid(pid, 0)[1]
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(order: Mapping[str, Any], stdout: int, stderr: int) -> None:
    if order["session"]:
        os.setsid()
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
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
    import celery.__main__
    import celery.apps.worker
    import celery.bin.celery
    import celery.concurrency.prefork
    import celery.worker.consumer

    import tasks  # noqa: F401

    serve(socket.socket(fileno=int(sys.argv[1])))
    sys.argv[0] = celery.__main__.__file__
    celery.__main__.main()
