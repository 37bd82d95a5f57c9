"""What Flower may show of an audited host, and to whom; Flower reads this file at its start.

Flower takes it from the working directory, or from where ``--conf`` says. While it is in force,
whatever the environment and the command line say:

- nobody sees a page or calls the API without credentials: without any Flower does not start;
- nothing is changed through Flower, and no result is read from the backend: an address that
  ``SHOWN`` does not name answers 403 and a method that is no reading one 405, so what a later
  Flower adds is shut until somebody has looked at it;
- nothing is written to disk;
- what workers answer to ``inspect`` is shown without raw arguments and without passwords.

The pages of the audit, ``/audit``, are put in here as well: behind the same login, reading alone.

``/metrics``, ``/healthcheck`` and static files need no credentials, in every Flower. They hold
numbers under the names of workers and tasks.

Every global name in here that is also a name of an option would set that option, ``logging`` for
one: import members, not modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import INFO, getLogger
from os import environ
from re import IGNORECASE
from re import compile as regex
from typing import Any, Final

from click import UsageError
from flower.api import BaseApiHandler
from flower.inspector import Inspector
from flower.urls import handlers, settings
from tornado.options import options
from tornado.routing import URLSpec
from tornado.web import HTTPError

from tasks.pages.handlers import page_addresses
from tasks.pages.loader import PagesLoader

#: The addresses that stay: each of them reads, and none of them reads a result.
SHOWN: Final = frozenset(
    {
        r"/",
        r"/workers",
        r"/worker/(.+)",
        r"/task/(.+)",
        r"/tasks",
        r"/tasks/datatable",
        r"/broker",
        r"/api/workers",
        r"/api/tasks",
        r"/api/task/types",
        r"/api/task/info/(.*)",
        r"/api/queues/length",
        r"/metrics",
        r"/healthcheck",
        r"/static/(.*)",
        r"/login/?",
        r"/logout",
        r".*",
    }
)
READING: Final = ("GET", "HEAD", "OPTIONS")

NO_AUTH: Final = (
    "Flower does not start without authentication. Set FLOWER_BASIC_AUTH=user:password (the"
    " environment does not show in `ps`, a command line does), or auth, auth_provider and oauth2_*"
)
BAD_AUTH: Final = (
    "Each entry of basic_auth is user:password, both of them given, in ASCII and without a comma."
    " Flower would take an empty one for a login that anybody has"
)
OPEN_API: Final = "FLOWER_UNAUTHENTICATED_API opens Flower's API to everybody: unset it"
PERSISTENT: Final = "persistent makes Flower write what it has seen to a file: leave it out"
DEBUG: Final = "debug makes Flower show tracebacks to everybody: leave it out"
WEAK_COOKIES: Final = "cookie_secret signs the logins: 32 characters or more, or leave it out"

REFUSED: Final = (
    "Refused by flowerconfig.py: this Flower changes nothing and shows no results."
    " Who called what is in the audit: celery -A ... audit list"
)
MASK: Final = "********"

_OFF: Final = frozenset({"", "0", "f", "false", "n", "no", "off"})
_PASSWORD: Final = regex(r"(?<=://)[^/?#\s]*@|(?<=password=)[^&#\s]+", IGNORECASE)
_SECRET_NAME: Final = regex(r"passw|secret|token", IGNORECASE)
_ARGUMENTS: Final = frozenset({"args", "kwargs"})


class Refused(BaseApiHandler):
    """Answers 401 without credentials and 403 with them, whatever the method."""

    def prepare(self) -> None:
        """Runs before the method does."""
        super().prepare()
        if not self.current_user:
            raise HTTPError(401)
        raise HTTPError(403, REFUSED)


def guard() -> None:
    """Check the options, and set those that are not open to choice.

    Flower reads the environment, the command line, this file, and the command line once more.
    Tornado calls this function after the last of them.

    Raises:
        UsageError: Flower shall not start; the text says what to do, and names no value.
    """
    if found := complaints():
        raise UsageError("\n".join(found))
    options.read_only = True
    options.address = options.address or "127.0.0.1"
    # At level DEBUG this logger prints the secrets of cookies and of OAuth.
    getLogger("flower.command").setLevel(INFO)


def complaints() -> list[str]:
    """What keeps Flower from starting."""
    basic = options.basic_auth or []
    found = {
        NO_AUTH: not (basic or options.auth),
        BAD_AUTH: not all(map(is_login, basic)),
        OPEN_API: environ.get("FLOWER_UNAUTHENTICATED_API", "").strip().lower() not in _OFF,
        PERSISTENT: options.persistent,
        DEBUG: options.debug,
        WEAK_COOKIES: 0 < len(options.cookie_secret or "") < 32,
    }
    return [text for text, holds in found.items() if holds]


def is_login(entry: str) -> bool:
    """Whether an entry of ``basic_auth`` is one that Flower can check and nobody has by chance."""
    user, _, password = entry.partition(":")
    return bool(user and password) and entry.isascii()


def only_shown(entry: Any) -> URLSpec:
    """The entry of Flower's table of addresses, narrowed to reading; or its refusal."""
    spec = entry if isinstance(entry, URLSpec) else URLSpec(*entry)
    pattern = spec.regex.pattern.removesuffix("$")
    if pattern not in SHOWN:
        return URLSpec(pattern, Refused, name=spec.name)
    reading = READING if pattern != "/tasks/datatable" else (*READING, "POST")  # POST reads too
    narrowed = type(
        spec.handler_class.__name__, (spec.handler_class,), {"SUPPORTED_METHODS": reading}
    )
    return URLSpec(pattern, narrowed, spec.kwargs, spec.name)


def masked(answer: Any) -> Any:
    """What a worker answered, without arguments that are no text, and without passwords.

    Where a worker shows arguments as a text, it is the one that its events show too. Everything
    else is the arguments themselves, as in the tasks it has reserved, and in beat's schedule.
    """
    if isinstance(answer, str):
        return _PASSWORD.sub(MASK, answer)
    if isinstance(answer, Mapping):
        return {
            name: MASK if is_secret(str(name), value) else masked(value)
            for name, value in answer.items()
        }
    return [masked(item) for item in answer] if isinstance(answer, list | tuple) else answer


def is_secret(name: str, value: object) -> bool:
    """Whether ``name`` says that ``value`` is for nobody's eyes."""
    if isinstance(value, str):
        return _SECRET_NAME.search(name) is not None
    return name in _ARGUMENTS


_keep_answer = Inspector._on_update


def _keep_masked_answer(inspector: Inspector, worker: str, method: str, answer: Any) -> None:
    _keep_answer(inspector, worker, method, masked(answer))


Inspector._on_update = _keep_masked_answer
# The pages of the audit stand before Flower's last address, which is any.
*_known, _any = map(only_shown, handlers)
handlers[:] = [*_known, *page_addresses(), _any]
settings["template_loader"] = PagesLoader(settings["template_path"])
options.add_parse_callback(guard)
