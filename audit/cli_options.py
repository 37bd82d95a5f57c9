"""Options that several commands read: the memory, tenants, and moments in time."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar
from uuid import UUID

import click

#: Where the context keeps what ``--memory`` said.
MEMORY_URL: Final = "audit.memory_url"

_RFC_3339: Final = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE
)
_AGO: Final = re.compile(r"(?P<count>\d{1,9})(?P<unit>[smhdw])", re.ASCII)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

_Value = TypeVar("_Value")


def parse_tenant(text: str) -> str:
    """A tenant as rows spell it. The nil UUID is one: refused rows may have no proven tenant."""
    try:
        return str(UUID(text))
    except ValueError:
        raise ValueError(f"{text!r} is no UUID like 550e8400-e29b-41d4-a716-446655440000") from None


def parse_moment(text: str, now: datetime) -> datetime:
    """A moment in RFC 3339, or one that lies so long before ``now``: ``15m``, ``2h``, ``7d``."""
    with suppress(ValueError, OverflowError):
        if ago := _AGO.fullmatch(text):
            return now - timedelta(**{_UNITS[ago["unit"]]: int(ago["count"])})
        if _RFC_3339.fullmatch(text):
            return datetime.fromisoformat(text.upper())
    raise ValueError(
        f"{text!r} is no time: give RFC 3339 with its offset, like 2026-11-29T21:45:00Z, or how"
        " long ago, like 15m, 2h or 7d"
    )


def reading(
    parse: Callable[[str], _Value],
) -> Callable[[click.Context, click.Parameter, str | None], _Value | None]:
    """The callback of an option whose text ``parse`` reads; its ``ValueError`` is for the user."""

    def read(ctx: click.Context, param: click.Parameter, text: str | None) -> _Value | None:
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return read


#: The callback of an option that takes a moment.
moment: Final = reading(lambda text: parse_moment(text, datetime.now(UTC)))

#: The option of commands that can be asked of one tenant.
tenant_option: Final = click.option(
    "--tenant",
    "tenant_id",
    metavar="UUID",
    callback=reading(parse_tenant),
    help="Of this tenant only.",
)
