"""Several servers: the nodes of a cluster, or the master that sentinels name.

Of both, a connection goes to the node that serves a key now. What is guaranteed beyond: asking who
that is happens within the deadline of the call; a node that says "not me" is believed at once, one
that is gone makes another be asked who serves what; a replica never gets a row; and no connection
to a node that is well is lost over one that is not.

The topology is asked for over connections of ours and not by redis-py's cluster client, which
repeats by itself, each time with the whole timeout, and has locks that a fork could leave taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import redis
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError, TryAgainError

from audit.memory.connection import Command, Line, Lines, Nodes
from audit.memory.redis_url import Address, RedisUrl, Topology, place_of

T = TypeVar("T")

SLOTS: Final = 16384
#: Pauses in seconds before the next try; the last one for as long as there is time.
PAUSES: Final = (0.0, 0.02, 0.05, 0.1)

#: Of the time that is left, one part in so many goes to a place that is asked who serves what: one
#: that hangs must leave some, and one that answers must have enough.
SHARES: Final = 4

#: Makes the connections of the server at a URL.
Opened = Callable[[str], Lines]


def nodes_of(place: RedisUrl, opened: Opened, clock: Callable[[], float]) -> Nodes:
    """The connections that a URL asks for."""
    if place.topology is Topology.CLUSTER:
        return ClusterLines(place, opened, clock)
    if place.topology is Topology.SENTINEL:
        return SentinelLines(place, opened, clock)
    return opened(place.url)


class ClusterLines:
    """Connections to the nodes of a cluster.

    Args:
        place: the URL's parts.
        opened: makes the connections of the server at a URL.
        clock: monotonic seconds.
    """

    one_node = False

    def __init__(self, place: RedisUrl, opened: Opened, clock: Callable[[], float]) -> None:
        self._place = place
        self._opened = opened
        self._clock = clock
        self._nodes: dict[Address, Lines] = {}
        self._slots: list[Address | None] | None = None
        #: Who is asked for the topology, in this order.
        self._known: list[Address] = list(place.seeds)
        opened(place.at(place.seeds[0]))  # connects nothing, but refuses what no connection takes

    @property
    def place(self) -> str:
        return _sorted(self._place.seeds)

    def take(self, deadline: float, key: str = "", at: Address | None = None) -> Line:
        return self._node(at or self.node_of(key, deadline)).take(deadline)

    def take_plain(self, deadline: float, key: str = "", at: Address | None = None) -> Line:
        return self._node(at or self.node_of(key, deadline)).take_plain(deadline)

    def check(self, deadline: float) -> None:
        slots = self._slots = self._learn(deadline)
        for address in sorted({address for address in slots if address is not None}):
            self._node(address).check(deadline)
        if None in slots:
            raise ClusterDownError("the cluster has slots that no node serves")

    def give_back(self, line: Line) -> None:
        line.home.give_back(line)

    def broken(self, line: Line) -> None:
        """That node's idle connections are as stale; the others' are not."""
        line.connection.disconnect()
        line.home.drop_idle()

    def drop_idle(self) -> None:
        for lines in list(self._nodes.values()):
            lines.drop_idle()

    def close(self) -> None:
        for lines in list(self._nodes.values()):
            lines.close()

    def node_of(self, key: str, deadline: float) -> Address:
        slots = self._slots
        if slots is None:
            slots = self._slots = self._learn(deadline)
        slot = key_slot(key.encode())
        address = slots[slot]
        if address is None:
            raise ClusterDownError(f"no node serves slot {slot}")
        return address

    def turn(self, error: Exception) -> Address | None:
        if isinstance(error, TryAgainError):
            return None  # the slot is on its way to another node
        slots = self._slots
        if isinstance(error, MovedError) and slots is not None and error.host:
            slots[error.slot_id] = (error.host, error.port)
            return None
        if isinstance(error, AskError) and not isinstance(error, MovedError):
            return (error.host, error.port)
        self._slots = None
        self._known = [*self._known[1:], self._known[0]]
        return None

    def pauses(self) -> Iterator[float]:
        return itertools.chain(PAUSES, itertools.repeat(PAUSES[-1]))

    # --- inside -------------------------------------------------------------------------------

    def _node(self, address: Address) -> Lines:
        lines = self._nodes.get(address)
        if lines is None:
            # Of two threads that come here at once, both get the same.
            lines = self._nodes.setdefault(address, self._opened(self._place.at(address)))
        return lines

    def _learn(self, deadline: float) -> list[Address | None]:
        """Who serves each slot, as one of the nodes says that answers."""
        asked, reply = _first(self._known, self._asked, deadline, self._clock)
        slots = slots_of(reply, asked[0])
        found = {node for node in slots if node is not None}
        self._known = list(dict.fromkeys([asked, *sorted(found), *self._place.seeds]))
        for gone in self._nodes.keys() - found:
            if (lines := self._nodes.pop(gone, None)) is not None:
                lines.drop_idle()
        return slots

    def _asked(self, node: Address, deadline: float) -> Any:
        return _ask(self._node(node), ("CLUSTER", "SLOTS"), deadline, self._clock)


class SentinelLines:
    """Connections to the master that the sentinels name, asked for with every new connection.

    Args:
        place: the URL's parts.
        opened: makes the connections of the server at a URL.
        clock: monotonic seconds.
    """

    one_node = True

    def __init__(self, place: RedisUrl, opened: Opened, clock: Callable[[], float]) -> None:
        self._place = place
        self._opened = opened
        self._clock = clock
        self._master: tuple[Address, Lines] | None = None
        self._known = list(place.seeds)
        opened(place.at(place.seeds[0]))  # connects nothing, but refuses what no connection takes

    @property
    def place(self) -> str:
        return f"{_sorted(self._place.seeds)}/{self._place.service}/{self._place.database}"

    def take(self, deadline: float, key: str = "", at: Address | None = None) -> Line:
        known = self._master
        line = None if known is None else known[1].idle()
        return line or self._found(deadline).connect(deadline)

    def take_plain(self, deadline: float, key: str = "", at: Address | None = None) -> Line:
        known = self._master
        line = None if known is None else known[1].idle(judged=False)
        return line or self._found(deadline).connect(deadline, judged=False)

    def check(self, deadline: float) -> None:
        self._found(deadline).check(deadline)

    def give_back(self, line: Line) -> None:
        known = self._master
        if known is not None and line.home is known[1]:
            line.home.give_back(line)
        else:
            line.connection.disconnect()

    def broken(self, line: Line) -> None:
        line.connection.disconnect()

    def drop_idle(self) -> None:
        known = self._master
        if known is not None:
            known[1].drop_idle()

    def close(self) -> None:
        known = self._master
        if known is not None:
            known[1].close()

    def node_of(self, key: str, deadline: float) -> Address | None:
        return None

    def turn(self, error: Exception) -> Address | None:
        self.drop_idle()
        return None

    def pauses(self) -> Iterator[float]:
        return itertools.chain(PAUSES, itertools.repeat(PAUSES[-1]))

    # --- inside -------------------------------------------------------------------------------

    def _found(self, deadline: float) -> Lines:
        """The connections to whom the sentinels call the master now."""
        sentinel, address = _first(self._known, self._asked, deadline, self._clock)
        self._known = [sentinel, *(other for other in self._known if other != sentinel)]
        known = self._master
        if known is None or known[0] != address:
            self.drop_idle()
            known = self._master = (address, self._opened(self._place.at(address)))
        return known[1]

    def _asked(self, sentinel: Address, deadline: float) -> Address:
        lines = self._opened(self._place.sentinel_at(sentinel))
        command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._place.service)
        try:
            found = _ask(lines, command, deadline, self._clock)
        finally:
            lines.close()
        if not found:
            raise redis.ConnectionError(
                f"the sentinel {place_of(sentinel)} knows no master {self._place.service!r}"
            )
        return found[0].decode(), int(found[1])


# --- small parts ----------------------------------------------------------------------------------


def slots_of(reply: Sequence[Any], asked: str) -> list[Address | None]:
    """Who serves each slot, by CLUSTER SLOTS; ``asked`` is the host that answered."""
    slots: list[Address | None] = [None] * SLOTS
    for first, last, master, *_ in reply:
        # Nothing, or "?": a node that does not know its own name answers under the one asked for.
        host = (master[0] or b"").decode()
        address = (host if host not in ("", "?") else asked, int(master[1]))
        slots[first : last + 1] = [address] * (last + 1 - first)
    return slots


def _first(
    places: Sequence[Address],
    ask: Callable[[Address, float], T],
    deadline: float,
    clock: Callable[[], float],
) -> tuple[Address, T]:
    """The first answer of these places, each of which gets a share of the time that is left.

    Raises:
        redis.RedisError: none answered; what the last one made of it.
    """
    for left, place in zip(range(len(places), 0, -1), places, strict=True):
        now = clock()
        try:
            return place, ask(place, now + (deadline - now) / min(left + 1, SHARES))
        except (redis.RedisError, OSError) as error:
            if left == 1:
                raise redis.ConnectionError(f"{place_of(place)}: {error}") from error
    raise redis.ConnectionError("nobody to ask")


def _ask(lines: Lines, command: Command, deadline: float, clock: Callable[[], float]) -> Any:
    line = lines.take_plain(deadline)
    try:
        (reply,) = line.exchange([command], lambda: deadline - clock())
        if isinstance(reply, ResponseError):
            raise reply
    except BaseException:
        lines.broken(line)
        raise
    lines.give_back(line)
    return reply


def _sorted(places: Sequence[Address]) -> str:
    return ",".join(sorted(map(place_of, places)))
