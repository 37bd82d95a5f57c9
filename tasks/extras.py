"""What a log record is given by ``extra=``, masked.

``logging`` puts extras into a record when its factory has returned it already, and it puts them
into the record's ``__dict__``. So that is what masks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from audit.masking import Masker
from tasks.standin import stand_in

#: How deep a value is looked into; what lies deeper is printed and masked as one text.
MAX_DEPTH: Final = 8


class Extras(dict[str, Any]):
    """The attributes of a record; what is put in by its name from now on is masked."""

    def __init__(self, attributes: Mapping[str, Any], values: Masker) -> None:
        super().__init__(attributes)
        self._values = values

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, masked(value, self._values))

    def __reduce__(self) -> Any:
        """A record may be sent to a process that does not know this class."""
        return dict, (dict(self),)


def masked(value: Any, values: Masker, depth: int = 0) -> Any:
    """``value`` where nothing shows in it, else what is left of it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return values.mask(value)
    if isinstance(value, BaseException):
        return stand_in(value, values)
    if depth < MAX_DEPTH and isinstance(value, Mapping):
        pairs = value.items()
        return {masked(k, values, depth + 1): masked(v, values, depth + 1) for k, v in pairs}
    if depth < MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
        return [masked(part, values, depth + 1) for part in value]
    text = repr(value)
    told = values.mask(text)
    return value if told == text else told
