"""Commands to the servers of a memory and their raw replies, each call under one deadline.

Every command goes to the node that serves its key; those of one node go in one round trip. What a
node does not do (the key has moved, the slot is moving, it is no master) is asked again, of whoever
does it, for as long as the deadline allows. A command that may have been done and whose reply was
lost is sent again only where the caller says that this does no harm.

Of N replicas that must have what was written, this waits for the acknowledgements in the same round
trip (``WAIT``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

from redis.exceptions import ConnectionError as LostConnectionError
from redis.exceptions import RedisError, ResponseError

from audit.errors import AuditMemoryError, MemoryUnavailableError
from audit.memory.connection import AGAIN, Command, Line, Nodes
from audit.memory.redis_form import refuse
from audit.memory.redis_url import Address

#: Commands whose key stands behind a script and the number of keys.
_SCRIPTS: Final = frozenset({"EVAL", "EVAL_RO", "EVALSHA"})
#: Seconds that are kept for the reply of WAIT: a server that is idle looks every 0.1 seconds
#: whether the time of anybody who waits is over.
_WAY_BACK: Final = 0.2
#: What a server answers to WAIT once it is a master no longer.
_DEMOTED: Final = ("UNBLOCKED", "WAIT cannot be used with replica")


@dataclass(slots=True)
class Doubt:
    """What the tries that failed leave open.

    Attributes:
        maybe_stored: whether a row may have been stored by one of them.
        before: why the last but one failed. The last may have had no time left to find out.
    """

    maybe_stored: bool = False
    before: str = ""

    def why(self, error: BaseException) -> str:
        """Of the last try, and of the one before it where it says something else."""
        same = not self.before or self.before in str(error)
        return str(error) if same else f"{error} (the try before: {self.before})"


@dataclass(slots=True)
class _Asked:
    """Commands on their way: the replies so far, and where the next try goes, if not home."""

    commands: Sequence[Command]
    open: list[int]
    replies: dict[int, Any] = field(default_factory=dict)
    places: dict[int, Address | None] = field(default_factory=dict)


class _Ours(AbstractContextManager[None]):
    """No generator, which would cost an emit more than the rest of its bookkeeping."""

    __slots__ = ("_doubt", "_shown", "_writes")

    def __init__(self, shown: str, doubt: Doubt | None, writes: bool) -> None:
        self._shown = shown
        self._doubt = doubt
        self._writes = writes

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            return
        doubt = self._doubt or Doubt()
        stored = self._writes and doubt.maybe_stored
        if isinstance(error, AuditMemoryError):
            error.maybe_stored |= stored
        elif isinstance(error, RedisError | OSError):
            raise MemoryUnavailableError(
                f"memory {self._shown} did not answer as it should: {doubt.why(error)}",
                maybe_stored=stored,
            ) from error


class Talk:
    """What a memory says to its servers.

    Args:
        nodes: the connections.
        prefix: of the keys.
        shown: the memory's URL as it may be told.
        timeout: seconds any call may take in all.
        clock: monotonic seconds.
        pause: waits so many seconds.
    """

    def __init__(
        self,
        nodes: Nodes,
        *,
        prefix: str,
        shown: str,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._nodes = nodes
        self._prefix = prefix
        self._shown = shown
        self._timeout = timeout
        self._clock = clock
        self._pause = pause

    def read(self, commands: Sequence[Command]) -> list[Any]:
        """Raw replies to what may be sent twice, from servers as they are."""
        deadline, doubt = self._clock() + self._timeout, Doubt()
        with self.errors_of_ours(doubt, writes=False):
            return self.ask(commands, deadline, doubt, judged=False, twice=True)

    def write(self, commands: Sequence[Command], replicas: int = 0) -> list[Any]:
        """Raw replies from judged servers; nothing that may have been done is sent twice."""
        deadline, doubt = self._clock() + self._timeout, Doubt()
        with self.errors_of_ours(doubt):
            return self.ask(commands, deadline, doubt, replicas=replicas)

    def ask(
        self,
        commands: Sequence[Command],
        deadline: float,
        doubt: Doubt,
        *,
        judged: bool = True,
        twice: bool = False,
        replicas: int = 0,
    ) -> list[Any]:
        """Raw replies, in the order of the commands.

        Raises:
            AuditMemoryError, RedisError, OSError: as :meth:`errors_of_ours` knows them.
        """
        asked, pauses = _Asked(commands, list(range(len(commands)))), self._nodes.pauses()
        while True:
            try:
                error = self._round(asked, deadline, doubt, judged, replicas)
            except AGAIN as raised:
                if doubt.maybe_stored and not twice:
                    self._nodes.turn(raised)
                    raise
                error = raised
                asked.places = dict.fromkeys(asked.open, self._nodes.turn(raised))
            if error is None:
                return [asked.replies[at] for at in range(len(commands))]
            self.wait(pauses, deadline, error, doubt)

    def wait(
        self, pauses: Iterator[float], deadline: float, error: Exception, doubt: Doubt
    ) -> None:
        """Before the next try; raises ``error`` where there is none."""
        pause = next(pauses, None)
        if pause is None or self._clock() + pause >= deadline:
            raise error
        doubt.before = str(error)
        if pause:
            self._pause(pause)

    def errors_of_ours(
        self, doubt: Doubt | None = None, *, writes: bool = True
    ) -> AbstractContextManager[None]:
        """Errors of redis-py and of the system as errors of the memory.

        Args:
            doubt: what the tries leave open.
            writes: whether a row may have been stored at all.
        """
        return _Ours(self._shown, doubt, writes)

    # --- inside -------------------------------------------------------------------------------

    def _round(
        self, asked: _Asked, deadline: float, doubt: Doubt, judged: bool, replicas: int
    ) -> Exception | None:
        """Ask each node once what is open of it; why something is open still, if anything is."""
        error = None
        asked.open = [at for at in asked.open if at not in asked.replies]
        for group in self._groups(asked, deadline):
            replies = self._ask_node(asked, group, deadline, doubt, judged, replicas)
            for at, reply in zip(group, replies, strict=True):
                if isinstance(reply, AGAIN):
                    error, asked.places[at] = reply, self._nodes.turn(reply)
                    continue
                if isinstance(reply, ResponseError):
                    refuse(self._prefix, asked.commands[at], reply)
                asked.replies[at] = reply
        return error

    def _groups(self, asked: _Asked, deadline: float) -> list[list[int]]:
        """What is open, by the node it goes to; what goes elsewhere just once stands alone."""
        if self._nodes.one_node:
            return [asked.open]
        groups: dict[Any, list[int]] = {}
        for at in asked.open:
            key = key_of(asked.commands[at], self._prefix)
            node = at if asked.places.get(at) else self._nodes.node_of(key, deadline)
            groups.setdefault(node, []).append(at)
        return list(groups.values())

    def _ask_node(
        self,
        asked: _Asked,
        group: Sequence[int],
        deadline: float,
        doubt: Doubt,
        judged: bool,
        replicas: int,
    ) -> list[Any]:
        commands = [asked.commands[at] for at in group]
        place, key = asked.places.get(group[0]), key_of(commands[0], self._prefix)
        take = self._nodes.take if judged else self._nodes.take_plain
        line = take(deadline, key, place)
        try:
            replies = exchange(
                line, commands, lambda: deadline - self._clock(), place is not None, replicas
            )
        except BaseException:
            doubt.maybe_stored = True
            self._nodes.broken(line)
            raise
        if any(isinstance(reply, Exception) for reply in replies):
            line.connection.disconnect()
        else:
            self._nodes.give_back(line)
        return replies


def exchange(
    line: Line,
    commands: Sequence[Command],
    left: Callable[[], float],
    asking: bool = False,
    replicas: int = 0,
) -> list[Any]:
    """The replies to commands on one connection, once so many replicas have what was written.

    Args:
        line: the connection.
        commands: what is sent in one go.
        left: seconds until the deadline.
        asking: the last command goes to a node that its slot is still on the way to.
        replicas: 0 where none is waited for.

    Raises:
        MemoryUnavailableError: fewer replicas had it in time.
    """
    if not (asking or replicas):
        return line.exchange(commands, left)
    *others, last = commands
    before: list[Command] = [("ASKING",)] if asking else []
    after = [wait_for(replicas, left())] if replicas else []
    replies = line.exchange([*others, *before, last, *after], left)
    acknowledged = replies.pop() if replicas else 0
    if asking:
        del replies[-2]
    # What was not done is asked again, or is an error: nobody need have it.
    if replicas and not any(isinstance(reply, Exception) for reply in replies):
        insist_on(replicas, acknowledged)
    return replies


def wait_for(replicas: int, left: float) -> Command:
    """The command that waits for replicas, and gives up while its reply still comes in time."""
    return ("WAIT", str(replicas), str(max(1, int((left - _WAY_BACK) * 1000))))


def insist_on(replicas: int, acknowledged: Any) -> None:
    """Hold the reply of WAIT against what the URL asks for.

    Never raises a server's error as it came: WAIT's says nothing of what was written before it.

    Raises:
        MemoryUnavailableError: it is fewer, or nobody may wait; what was written stands on the
            master.
        redis.ConnectionError: the master became a replica meanwhile.
    """
    if isinstance(acknowledged, Exception):
        text = f"the server did not wait for replicas: {acknowledged}"
        if any(word in text for word in _DEMOTED):
            raise LostConnectionError(text) from acknowledged
        raise MemoryUnavailableError(text, maybe_stored=True) from acknowledged
    if acknowledged < replicas:
        raise MemoryUnavailableError(
            f"only {acknowledged} of the {replicas} replicas that the memory URL asks for have"
            " acknowledged in time: see that they run and are connected"
        )


def key_of(command: Command, prefix: str) -> str:
    """The key that says where a command goes: what has none goes where the list of tenants is."""
    if command[0] in _SCRIPTS:
        return str(command[3])
    return str(command[1]) if len(command) > 1 else f"{prefix}:tenants"
