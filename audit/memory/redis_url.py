"""The URL of a memory on Redis or Valkey: ours and redis-py's parameters told apart.

No error repeats a URL, for it may hold a password; :func:`shown` gives what may be told of one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

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


#: Days for which the lists of traces are kept, unless the URL says otherwise, and at most.
TRACE_DAYS: Final = 30
MOST_TRACE_DAYS: Final = 36_500
DAY: Final = 86_400


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A URL, taken apart.

    Attributes:
        url: as redis-py takes it.
        durability: ``server``, ``everysec`` or ``always``.
        prefix: of the keys.
        trace_seconds: for which the list of a trace is kept; 0: there is none.
    """

    url: str
    durability: str
    prefix: str
    trace_seconds: int


def parse_url(url: str) -> RedisUrl:
    """The URL as redis-py takes it, and what is ours.

    Raises:
        MemoryUrlError: a part of it cannot be used.
    """
    parts = _split_url(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if fixed := sorted(FIXED_PARAMETERS & query.keys()):
        raise MemoryUrlError(f"memory URL: the memory sets {', '.join(fixed)} itself, leave it out")
    durability = query.pop("durability", "server")
    if durability not in DURABILITIES:
        raise MemoryUrlError(
            f"memory URL: durability must be one of {', '.join(DURABILITIES)}, got {durability!r}"
        )
    prefix = query.pop("prefix", "audit")
    if not prefix or set(prefix) & set("{} \r\n"):
        raise MemoryUrlError("memory URL: prefix must be text without braces and blanks")
    days = query.pop("trace_days", str(TRACE_DAYS))
    if not (days.isascii() and days.isdecimal() and int(days[:9]) <= MOST_TRACE_DAYS):
        raise MemoryUrlError(
            f"memory URL: trace_days must be a whole number from 0 to {MOST_TRACE_DAYS}"
        )
    scheme = parts.scheme
    number = query.get("db", "") if scheme == "redis+socket" else parts.path.strip("/")
    if number and not number.isdecimal():
        raise MemoryUrlError("memory URL: the database is a number, like redis://HOST:PORT/1")
    if scheme == "redis+socket":
        scheme = "unix"
        query.setdefault("db", query.pop("virtual_host", "0").strip("/") or "0")
    # Not urlunsplit: it knows no scheme "unix" and would leave the slashes out.
    found = f"{scheme}://{parts.netloc}{parts.path}?{urlencode(query)}"
    return RedisUrl(found, durability, prefix, int(days) * DAY)


def shown(url: str) -> str:
    """The URL without its password and parameters."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


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
