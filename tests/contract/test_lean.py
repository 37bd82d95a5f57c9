"""The shorter way to exchange gives what redis-py's own gives, and is taken only where it may."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError

from audit.embedded import EmbeddedServer
from audit.errors import MemoryUnavailableError
from audit.memory.connection import Line, Lines
from audit.memory.lean import SMALL, Lean
from audit.memory.redis import RedisMemory
from tests.support import make_identity, started

FOREVER = 5.0


@pytest.fixture
def lines(server: EmbeddedServer) -> Iterator[Lines]:
    made = Lines(server.url, script="return 1", durability="server", timeout=FOREVER)
    yield made
    made.close()


@pytest.fixture
def line(lines: Lines) -> Iterator[Line]:
    taken = lines.connect(time.monotonic() + FOREVER)
    yield taken
    taken.connection.disconnect()


def asked(line: Line, *commands: tuple[Any, ...], left: float = FOREVER) -> list[Any]:
    return line.exchange(commands, lambda: left)


def test_a_connection_is_lean(line: Line) -> None:
    """With redis-py's parser in C, which the host brings along."""
    assert line.lean is not None


def test_another_parser_is_not(lines: Lines) -> None:
    """Its own reader would miss what was read beside it."""
    connection = SimpleNamespace(_sock=None, _get_parser=lambda: None)
    assert Lean.of(connection, 1.0) is None


def test_the_whole_timeout_counts_however_late_a_connection_was_made(lines: Lines) -> None:
    """redis-py would keep what was left when it connected for good."""
    late = lines.connect(time.monotonic() + FOREVER / 10)
    large = "return string.rep('x', 300000)"
    for _ in range(2):  # the second exchange comes after one that went redis-py's way in part
        assert len(asked(late, ("EVAL", large, "0"))[0]) == 300000
        assert late.connection._sock.gettimeout() == FOREVER
    late.connection.disconnect()


def test_both_ways_read_the_same(line: Line) -> None:
    """Several replies, an error among them, nothing, numbers, and one in many pieces."""
    big = "return string.rep('x', 300000)"
    commands = [("SET", "k", "v"), ("GET", "k"), ("GET", "none"), ("NO-SUCH",), ("EVAL", big, "0")]
    lean = asked(line, *commands)
    line.lean = None
    slow = asked(line, *commands)
    assert [type(reply) for reply in lean] == [type(reply) for reply in slow]
    assert isinstance(lean[3], ResponseError)
    assert [r for r in lean if r is not lean[3]] == [r for r in slow if r is not slow[3]]


def test_what_is_large_or_late_goes_the_long_way(line: Line) -> None:
    """One call would not send it whole, or would wait longer than is left."""
    assert line.lean is not None
    assert line.lean.fits(b"x" * SMALL, FOREVER)
    assert not line.lean.fits(b"x" * (SMALL + 1), FOREVER)
    assert not line.lean.fits(b"x", FOREVER * 0.9)
    large = "x" * 2_000_000
    assert asked(line, ("SET", "large", large), ("STRLEN", "large")) == [b"OK", len(large)]
    assert asked(line, ("PING",), left=1.0) == [b"PONG"]
    assert asked(line, ("PING",)) == [b"PONG"]


@pytest.mark.parametrize("says", [b"", b"$5\r\nab"], ids=["nothing", "half a reply"])
def test_a_server_that_falls_silent_is_given_up_in_time(
    server: EmbeddedServer, says: bytes
) -> None:
    """The system's timeout and redis-py's keep one deadline; the row may have been stored."""
    memory = RedisMemory(server.url, timeout=0.4)
    memory.check()
    (line,) = memory._lines._idle
    ours, theirs = socket.socketpair()
    line.connection._sock.close()
    line.connection._sock = line.connection._get_parser()._sock = ours
    line.lean = Lean(line.connection, 0.4)
    memory._lines.connect = unreachable  # type: ignore[method-assign]
    answering = threading.Thread(target=lambda: (theirs.recv(9999), theirs.sendall(says)))
    answering.start()
    began = time.monotonic()
    with pytest.raises(MemoryUnavailableError) as caught:
        memory.emit(started(make_identity()))
    assert time.monotonic() - began < 4  # far below redis-py's own patience, above any machine's
    assert caught.value.maybe_stored
    answering.join()
    theirs.close()
    memory.close()


def unreachable(deadline: float) -> Line:
    raise redis.ConnectionError("nobody there")


def test_signals_that_raise_nothing_move_no_deadline(line: Line) -> None:
    """A timer of the application's strikes again and again while a server is silent."""
    ours, theirs = socket.socketpair()
    line.connection._sock.close()
    line.connection._sock = ours
    line.lean = Lean(line.connection, 0.4)
    struck: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: struck.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with pytest.raises(redis.TimeoutError):
            asked(line, ("PING",))
        assert len(struck) < 20
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        theirs.close()


def test_a_closed_connection_is_told_apart(line: Line) -> None:
    """The server went away while the connection was idle: an error of connections, at once."""
    ours, theirs = socket.socketpair()
    line.connection._sock.close()
    line.connection._sock = ours
    line.lean = Lean(line.connection, FOREVER)
    theirs.close()
    with pytest.raises(redis.ConnectionError):
        asked(line, ("PING",))
