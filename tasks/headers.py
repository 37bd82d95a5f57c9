"""Headers that Celery uses in the worker's main process without a look, and what it can use there.

A foreign publisher may put anything into a message. A value that Celery stumbles over in the main
process would end the whole worker, and the next one that gets the message back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from celery.exceptions import InvalidTaskError

#: What Celery puts into a message's body beside the arguments.
EMBEDDED: Final = ("callbacks", "errbacks", "chain", "chord")


def check_embed(embed: Any) -> None:
    """Celery lets a body's embedded parts replace any header, and what is made in this process.

    Raises:
        InvalidTaskError: there are others than Celery's own.
    """
    if embed and not (isinstance(embed, Mapping) and embed.keys() <= set(EMBEDDED)):
        raise InvalidTaskError(f"a body embeds {', '.join(EMBEDDED)} and nothing else")


def unusable_header(message: Mapping[str, Any]) -> str | None:
    """The name of a header that Celery could not use; ``None`` where all is well."""
    return next((n for n, usable in _USABLE.items() if not usable(message.get(n))), None)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_limits(value: Any) -> bool:
    return not value or (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(limit is None or type(limit) in (int, float) for limit in value)
    )


def _are_texts(value: Any) -> bool:
    return not value or (isinstance(value, list | tuple) and all(map(_is_text, value)))


def _is_object(value: Any) -> bool:
    return not value or isinstance(value, Mapping)


#: Headers that Celery uses in the main process without a look, and what it can use there.
_USABLE: Final[Mapping[str, Callable[[Any], bool]]] = {
    "id": _is_text,
    "timelimit": _are_limits,
    "stamped_headers": _are_texts,
    "stamps": _is_object,
}
