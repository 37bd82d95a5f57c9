"""The URL of a memory on Redis or Valkey: ours and redis-py's parameters told apart.

No error repeats a URL, for it may hold a password; :attr:`RedisUrl.shown` is what may be told.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

from audit.errors import MemoryUrlError
from audit.memory.server import DURABILITIES

#: Parameters of redis-py that would break a promise of the memory, or the reading of replies.
FIXED_PARAMETERS: Final = frozenset(
    [
        "protocol",
        "legacy_responses",
        "decode_responses",
        "encoding",
        "encoding_errors",
        "max_connections",
        "socket_timeout",
        "socket_connect_timeout",
        "retry",
        "retry_on_timeout",
        "retry_on_error",
    ]
)

#: Host and port.
Address = tuple[str, int]

_SEVERAL: Final = re.compile(r"(rediss?)\+(cluster|sentinel)://([^/?#]*)(.*)", re.DOTALL)

#: Days for which the lists of traces are kept, unless the URL says otherwise, and at most.
TRACE_DAYS: Final = 30
MOST_TRACE_DAYS: Final = 36_500
DAY: Final = 86_400


class Topology(StrEnum):
    """How many servers there are, and who says which one serves a key."""

    SINGLE = "single"
    CLUSTER = "cluster"
    SENTINEL = "sentinel"


_PORTS: Final = {Topology.CLUSTER: 6379, Topology.SENTINEL: 26379}


@dataclass(frozen=True, kw_only=True, slots=True)
class RedisUrl:
    """The parts of a memory's URL.

    Attributes:
        url: of the server, as redis-py takes it; of several, a form for :meth:`at`.
        shown: what may be told of the URL: neither password nor parameters.
        durability: one of :data:`audit.memory.server.DURABILITIES`.
        prefix: of the keys.
        replicas: how many must acknowledge a row; 0 where none is waited for.
        trace_seconds: for which the list of a trace is kept; 0: there is none.
        seeds: nodes of the cluster, or the sentinels, that are asked first.
        service: how the sentinels call the master.
        database: of several servers, which one there.
        sentinel_login: user and password for the sentinels, as in a URL.
    """

    url: str
    shown: str
    durability: str
    prefix: str
    replicas: int
    trace_seconds: int
    topology: Topology = Topology.SINGLE
    seeds: tuple[Address, ...] = ()
    service: str = ""
    database: str = "0"
    sentinel_login: str = ""

    def at(self, address: Address) -> str:
        """The URL of one of several servers."""
        before, _, after = self.url.rpartition(_PLACE)
        return f"{before}{place_of(address)}{after}"

    def sentinel_at(self, address: Address) -> str:
        """The URL of one of the sentinels."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{self.sentinel_login}{place_of(address)}/0?{parts.query}"


#: Stands where host and port come in; no host is called so.
_PLACE: Final = "%place%"


def parse_url(url: str) -> RedisUrl:
    """The parts of the URL.

    Raises:
        MemoryUrlError: a part of it cannot be used.
    """
    if several := _SEVERAL.fullmatch(url):
        return _parse_several(*several.groups())
    parts = _split_url(url)
    query = _query(parts)
    durability, prefix, replicas, trace_seconds = _pop_ours(query)
    scheme = parts.scheme
    number = query.get("db", "") if scheme == "redis+socket" else parts.path.strip("/")
    _check_database(number)
    if scheme == "redis+socket":
        scheme = "unix"
        query.setdefault("db", query.pop("virtual_host", "0").strip("/") or "0")
    # Not urlunsplit: it knows no scheme "unix" and would leave the slashes out.
    return RedisUrl(
        url=f"{scheme}://{parts.netloc}{parts.path}?{urlencode(query)}",
        shown=f"{scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}",
        durability=durability,
        prefix=prefix,
        replicas=replicas,
        trace_seconds=trace_seconds,
    )


def place_of(address: Address) -> str:
    """HOST:PORT, as it stands in a URL."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# --- inside ---------------------------------------------------------------------------------------


def _parse_several(scheme: str, kind: str, netloc: str, rest: str) -> RedisUrl:
    topology = Topology(kind)
    login, at, hosts = netloc.rpartition("@")
    each = [_split_url(f"{scheme}://{login}{at}{host}{rest}") for host in hosts.split(",")]
    if not all(parts.hostname for parts in each):
        raise MemoryUrlError(f"memory URL: redis+{kind}:// names hosts, like HOST:PORT,HOST:PORT")
    seeds = tuple((str(p.hostname), p.port or _PORTS[topology]) for p in each)
    query = _query(each[0])
    durability, prefix, replicas, trace_seconds = _pop_ours(query)
    service, database = _service(topology, each[0].path)
    user = quote(query.pop("sentinel_username", ""), safe="")
    password = quote(query.pop("sentinel_password", ""), safe="")
    query.pop("db", None)
    return RedisUrl(
        url=f"{scheme}://{login}{at}{_PLACE}/{database}?{urlencode(query)}",
        shown=f"{scheme}+{kind}://{','.join(map(place_of, seeds))}{each[0].path}",
        durability=durability,
        prefix=prefix,
        replicas=replicas,
        trace_seconds=trace_seconds,
        topology=topology,
        seeds=seeds,
        service=service,
        database=database,
        sentinel_login=f"{user}:{password}@" if user or password else "",
    )


def _service(topology: Topology, path: str) -> tuple[str, str]:
    """The service and the database that the path names."""
    if topology is Topology.CLUSTER:
        if path.strip("/") not in ("", "0"):
            raise MemoryUrlError("memory URL: a cluster has the database 0 alone, leave it out")
        return "", "0"
    service, _, database = path.strip("/").partition("/")
    if not service:
        raise MemoryUrlError(
            "memory URL: the service is missing, like redis+sentinel://HOST:PORT/SERVICE/DB"
        )
    _check_database(database)
    return service, database or "0"


def _query(parts: SplitResult) -> dict[str, str]:
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if fixed := sorted(FIXED_PARAMETERS & query.keys()):
        raise MemoryUrlError(f"memory URL: the memory sets {', '.join(fixed)} itself, leave it out")
    return query


def _pop_ours(query: dict[str, str]) -> tuple[str, str, int, int]:
    """Durability, prefix, replicas, and seconds for which traces are listed."""
    durability = query.pop("durability", "server")
    if durability not in DURABILITIES:
        raise MemoryUrlError(
            f"memory URL: durability must be one of {', '.join(DURABILITIES)}, got {durability!r}"
        )
    prefix = query.pop("prefix", "audit")
    if not prefix or set(prefix) & set("{} \r\n"):
        raise MemoryUrlError("memory URL: prefix must be text without braces and blanks")
    replicas = query.pop("replicas", "0")
    if not (replicas.isascii() and replicas.isdecimal() and len(replicas) < 4):
        raise MemoryUrlError("memory URL: replicas is a number, how many must have a row")
    days = query.pop("trace_days", str(TRACE_DAYS))
    fits = days.isascii() and days.isdecimal() and len(days) <= len(str(MOST_TRACE_DAYS))
    if not (fits and int(days) <= MOST_TRACE_DAYS):
        raise MemoryUrlError(
            f"memory URL: trace_days must be a whole number from 0 to {MOST_TRACE_DAYS}"
        )
    return durability, prefix, int(replicas), int(days) * DAY


def _check_database(number: str) -> None:
    if number and not number.isdecimal():
        raise MemoryUrlError("memory URL: the database is a number, like redis://HOST:PORT/1")


def _split_url(url: str) -> SplitResult:
    """The parts of a URL in which it is beyond doubt what is password and what is not."""
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.port != 0 and "@" not in f"{parts.path}{parts.query}{parts.fragment}":
            return parts
    # Out here, so that no __context__ leads to an error that quotes the URL.
    raise MemoryUrlError(
        "memory URL: cannot tell user, password, host and port apart; it is"
        " redis://USER:PASSWORD@HOST:PORT/DB, where / ? # @ : in user and password are written"
        " %2F %3F %23 %40 %3A"
    )
