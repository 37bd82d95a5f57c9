"""The filters of the list: those of ``audit list``, as the fields of a form and of a link."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from audit.cli_options import parse_moment, parse_tenant
from audit.memory.base import RowFilter
from audit.row import COMPLETED, LATE, REFUSED, STARTED, Outcome
from audit.system_rows import SYSTEM_KINDS
from audit.table import SHORT_KIND

_LONG: Final = (STARTED, COMPLETED, LATE, REFUSED)
KINDS: Final[Mapping[str, str]] = {
    **{kind.removeprefix(SHORT_KIND): kind for kind in _LONG},
    **{kind: kind for kind in sorted(SYSTEM_KINDS)},
}
_OUTCOMES: Final[Mapping[str, str]] = {outcome.value: outcome.value for outcome in Outcome}
#: What a field may hold, far more than any id has.
_LONGEST: Final = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One field of the form.

    Attributes:
        name: in a link, and of the CLI's option.
        part: of :class:`RowFilter`.
        label: for people.
        hint: what it takes; empty where its label says so.
        choices: what it can be; empty for free text.
    """

    name: str
    part: str
    label: str
    hint: str = ""
    choices: tuple[str, ...] = ()


FIELDS: Final = (
    Field(name="skill", part="skill_id", label="Skill"),
    Field(
        name="outcome",
        part="outcome",
        label="Outcome",
        hint="Only completed and late rows have one.",
        choices=tuple(_OUTCOMES),
    ),
    Field(name="kind", part="kind", label="Kind of row", choices=tuple(KINDS)),
    Field(name="since", part="since", label="Since", hint="RFC 3339, or how long ago: 15m, 2h, 7d"),
    Field(name="until", part="until", label="Before", hint="As since."),
    Field(
        name="persona",
        part="caller_persona",
        label="Persona",
        hint="Only started and refused rows name theirs.",
    ),
    Field(name="tenant", part="tenant_id", label="Tenant", hint="A UUID."),
    Field(name="trace", part="trace_id", label="Trace id"),
    Field(name="request", part="request_id", label="Request id"),
    Field(name="task", part="task_id", label="Celery task id"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Filters:
    """What somebody asked for.

    Attributes:
        texts: by the name of the field, as they came; none that is empty.
        wanted: what they mean; lets all pass where one of them is in error.
        errors: what is wrong with a field, by its name.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    wanted: RowFilter = field(default_factory=RowFilter)
    errors: Mapping[str, str] = field(default_factory=dict)

    def query(self, **more: str) -> str:
        """These filters, and ``more``, as the query of a link: with its question mark, or empty."""
        encoded = urlencode({**self.texts, **more})
        return f"?{encoded}" if encoded else ""


def read_filters(ask: Callable[[str], str], now: datetime) -> Filters:
    """The filters of a request; ``ask`` has the text of a field, empty where there is none."""
    texts = {one.name: text for one in FIELDS if (text := ask(one.name).strip())}
    parts: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for one in FIELDS:
        try:
            if one.name in texts:
                parts[one.part] = _parser(one.name, now)(texts[one.name])
        except ValueError as error:
            errors[one.name] = str(error)
    return Filters(texts=texts, wanted=RowFilter() if errors else RowFilter(**parts), errors=errors)


def _parser(name: str, now: datetime) -> Callable[[str], Any]:
    parsers: dict[str, Callable[[str], Any]] = {
        "tenant": parse_tenant,
        "since": partial(parse_moment, now=now),
        "until": partial(parse_moment, now=now),
        "kind": partial(_word, words=KINDS),
        "outcome": partial(_word, words=_OUTCOMES),
    }
    return parsers.get(name, _text)


def _word(text: str, words: Mapping[str, str]) -> str:
    # The full name of a kind will do too, as on the command line.
    found = words.get(text, text if text in words.values() else None)
    if found is None:
        raise ValueError(f"takes one of {', '.join(words)}")
    return found


def _text(text: str) -> str:
    if len(text) > _LONGEST:
        raise ValueError(f"takes {_LONGEST} characters at most")
    return text
