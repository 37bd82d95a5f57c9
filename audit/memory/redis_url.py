"""The URL of a memory on Redis or Valkey: ours and redis-py's parameters told apart.

No error repeats a URL, for it may hold a password; :func:`shown` gives what may be told of one.
"""

from __future__ import annotations

from contextlib import suppress
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


def parse_url(url: str) -> tuple[str, str, str]:
    """The URL as redis-py takes it, the durability and the prefix.

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
    scheme = parts.scheme
    number = query.get("db", "") if scheme == "redis+socket" else parts.path.strip("/")
    if number and not number.isdecimal():
        raise MemoryUrlError("memory URL: the database is a number, like redis://HOST:PORT/1")
    if scheme == "redis+socket":
        scheme = "unix"
        query.setdefault("db", query.pop("virtual_host", "0").strip("/") or "0")
    # Not urlunsplit: it knows no scheme "unix" and would leave the slashes out.
    return f"{scheme}://{parts.netloc}{parts.path}?{urlencode(query)}", durability, prefix


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
