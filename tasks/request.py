"""What happens to an invocation in the worker's main process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from celery.exceptions import InvalidTaskError
from celery.worker.request import Request

from audit.invocation import new_request_id
from tasks.caller import REQUEST_ID_HEADER


class SkillRequest(Request):
    """One delivery of one message: the place where the request_id is made.

    It goes to the pool child in the request's headers, so that both processes know it, and always
    over what the message claims: an unknown header of a message is copied into its retries, and a
    retry is an invocation of its own.

    Raises:
        InvalidTaskError: a header would end the whole worker, and the next one that gets the
            message back; Celery rejects it for good.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, usable in _USABLE.items():
            if not usable(self._request_dict.get(name)):
                raise InvalidTaskError(f"header {name!r} has no value that Celery could use")
        self._request_dict[REQUEST_ID_HEADER] = self.request_id = new_request_id()


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
