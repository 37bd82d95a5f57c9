"""The URL of a SQL memory: ours and the driver's parameters told apart.

No error repeats a URL, for it may hold a password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from audit.errors import MemoryUrlError

#: Driver parameters that would break a promise of the memory.
_FIXED: Final = frozenset({"connect_timeout", "options", "client_encoding"})
#: Driver parameters that say which database it is.
_PLACE: Final = ("host", "hostaddr", "port", "dbname", "service")
_HOSTS: Final = re.compile(r"(\[[0-9A-Fa-f:.%]*\]|[^][:]*)(:[0-9]*)?")
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,50}")
_DURABILITIES: Final = ("server", "always")


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """Attributes:
    conninfo: as libpq takes it, a URL.
    shown: what may be told of it; another one for another database.
    schema: where the tables are.
    durable: whether every commit has to be on disk, whatever the server is configured for.
    """

    conninfo: str
    shown: str
    schema: str
    durable: bool


def parse_postgres(url: str) -> PostgresUrl:
    """Raises MemoryUrlError: a part of it cannot be used."""
    parts = _split(url)
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise MemoryUrlError(
            "memory URL: cannot tell user, password and host apart; it is"
            " postgresql://USER:PASSWORD@HOST:PORT/DATABASE, where / ? # @ : in user and password"
            " are written %2F %3F %23 %40 %3A"
        )
    # libpq takes a plus for a plus.
    query = dict(parse_qsl(parts.query.replace("+", "%2B"), keep_blank_values=True))
    if fixed := sorted(_FIXED & query.keys()):
        raise MemoryUrlError(f"memory URL: the memory sets {', '.join(fixed)} itself, leave it out")
    schema = query.pop("schema", "audit")
    if not _SCHEMA.fullmatch(schema):
        raise MemoryUrlError("memory URL: schema must be lower-case letters, digits and _")
    durable = _durability(query.pop("durability", "server"))
    place = {str(name): query[name] for name in _PLACE if name in query}
    user, _, host = parts.netloc.rpartition("@")
    if not all(map(_HOSTS.fullmatch, host.split(","))):
        # What stands there may be a password.
        raise MemoryUrlError("memory URL: behind the host comes : and a port, which is a number")
    path = parts.path.rstrip("/") or f"/{user.partition(':')[0] or query.get('user', '')}"
    return PostgresUrl(
        conninfo=f"postgresql://{parts.netloc}{parts.path}{_asked(query)}",
        shown=f"postgresql://{host}{path}{_asked(place)} {schema}",
        schema=schema,
        durable=durable,
    )


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise MemoryUrlError("memory URL: [ and ] stand around an IPv6 address only") from None


def _asked(query: dict[str, str]) -> str:
    return f"?{urlencode(query, quote_via=quote)}" if query else ""


def parse_sqlite(url: str) -> tuple[str, bool]:
    """The file's path, and whether every commit has to be on disk.

    Raises:
        MemoryUrlError: a part of it cannot be used.
    """
    parts = _split(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    durability = query.pop("durability", "always")
    if query or parts.fragment:
        raise MemoryUrlError("memory URL: sqlite:// knows no parameter but durability")
    path = unquote(parts.path)[1:]
    if parts.netloc or not path or path == ":memory:" or "\0" in path:
        raise MemoryUrlError(
            "memory URL: name a file, sqlite:///relative.db or sqlite:////absolute/path.db"
        )
    return path, _durability(durability)


def _durability(text: str) -> bool:
    if text not in _DURABILITIES:
        raise MemoryUrlError(
            f"memory URL: durability must be one of {', '.join(_DURABILITIES)}, got {text!r}"
        )
    return text == "always"
