"""The ``audit_*`` settings: names, environment variables, defaults, and what makes one unusable.

A setting is a Celery setting (``celeryconfig.py``); where it has an environment variable, that
wins, as Celery's own ``CELERY_BROKER_URL`` does.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from audit.errors import SettingsError
from audit.keys import KeyRing

#: Where a witness listens: no user, no query, no fragment, so nothing that could be a secret.
_URL: Final = re.compile(
    r"https?://([A-Za-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?(/[\w.~/-]*)?", re.ASCII
)

_TRACE_URL: Final = re.compile(
    r"https?://[^\s/@?#{}<>\"]+/[\w.~/?#&=:;,+%{}@!$()*|\[\]-]*", re.ASCII
)
_PLACE: Final = re.compile(
    r"(?:(?P<host>[A-Za-z0-9.-]+)|\[(?P<v6>[0-9a-f:.]+)\]):(?P<port>[0-9]{1,5})", re.ASCII
)


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditSettings:
    """The settings of one host.

    Attributes:
        memory_url: where the rows go, see :func:`audit.open_memory`.
        emit_timeout: seconds one emit may take in all, retries included (decision 13).
        error_message: ``"masked"`` keeps type and masked text, ``"type"`` the type alone.
        spool_dir: this host's folder for completed rows the memory did not take.
        lease_seconds: how long a process that starts invocations may be silent before they count
            as abandoned.
        max_deaths: so many workers may die over one message before the next delivery is refused.
        instrument: whether the host instruments Celery, where a tracer provider is set.
        context_keys: prove the context of every message: the first that may signs, all verify;
            without any, contexts are not signed.
        context_max_age: seconds that a proof holds, counted from the message's ETA.
        hash_keys: the first that allows the tenant makes its hashes; without one they are plain.
        redact_logs: whether values are masked in log records, too.
        ledger_dir: the folder of the ledger, which keepers of one memory share; without one
            nothing is sealed.
        ledger_origin: what the origins of all logs begin with, a URL without its scheme.
        ledger_keys: text of the ledger's keys, or the path of their file (``audit keygen``).
        ledger_seal_seconds: how long the keeper waits between two rounds of sealing.
        ledger_witnesses: who is asked to cosign the meta log; of each the URL and the key's text.
        keeper_listen: host and port where the keeper serves metrics and health; ``None``: nowhere.
        hot_retention: sealed rows older than so many seconds leave the memory, and are read from
            the ledger; ``None``: none does.
        gateway_tokens: JSON of the tokens of the gateway's callers, or the path of its file;
            without any the gateway does not start.
        gateway_keys: what its status links are signed with: the first signs, all verify.
        gateway_max_body: bytes that the body of a request to the gateway may have.
        gateway_max_wait: seconds that a request to the gateway may wait for a result.
        trace_url: where the audit pages lead to for a trace, ``{trace_id}`` in its place.
    """

    memory_url: str = field(default="redis://127.0.0.1:6379/1", repr=False)  # has a password
    emit_timeout: float = 2.0
    error_message: str = "masked"
    instrument: bool = True
    spool_dir: str = field(default_factory=lambda: str(_default_spool()))
    lease_seconds: float = 15.0
    max_deaths: int = 3
    context_keys: KeyRing = field(default_factory=KeyRing, repr=False)
    context_max_age: float = 86400.0
    hash_keys: KeyRing = field(default_factory=KeyRing, repr=False)
    redact_logs: bool = True
    ledger_dir: str | None = None
    ledger_origin: str = "skill-host.invalid"
    ledger_keys: str | None = field(default=None, repr=False)
    ledger_seal_seconds: float = 1.0
    ledger_witnesses: tuple[tuple[str, str], ...] = ()
    keeper_listen: tuple[str, int] | None = ("127.0.0.1", 9464)
    hot_retention: float | None = None
    gateway_tokens: str | None = field(default=None, repr=False)
    gateway_keys: KeyRing = field(default_factory=KeyRing, repr=False)
    gateway_max_body: int = 1_048_576
    gateway_max_wait: float = 30.0
    trace_url: str | None = None

    @classmethod
    def read(cls, conf: Mapping[str, Any], environ: Mapping[str, str]) -> AuditSettings:
        """The settings from a Celery configuration and the environment.

        Raises:
            SettingsError: a value cannot be used; the text names the setting and what it takes.
        """
        values: dict[str, Any] = {}
        for name, (variable, parse) in _SETTINGS.items():
            raw = environ.get(variable) or conf.get(f"audit_{name}")
            if raw is not None:
                values[name] = _parsed(name, variable, raw, parse)
        return cls(**values)


def _parsed(name: str, variable: str, raw: object, parse: Callable[[object], Any]) -> Any:
    try:
        return parse(raw)
    except (ValueError, TypeError) as error:
        raise SettingsError(f"audit_{name} (or {variable}): {error}") from None


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError(f"takes text, got {type(raw).__name__}")
    return raw.strip()


def _seconds(raw: object, least: float = 0.01, most: float = 3600) -> float:
    try:
        seconds = 0.0 if isinstance(raw, bool) else float(raw)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = 0.0
    if not least <= seconds <= most:
        raise ValueError(f"takes seconds between {least} and {most}")
    return seconds


def _age(raw: object) -> float:
    return _seconds(raw, least=1, most=31 * 86400)


def _retention(raw: object) -> float:
    return _seconds(raw, least=1, most=100 * 366 * 86400)


def _witnesses(raw: object) -> tuple[tuple[str, str], ...]:
    """Whether a key is one is found out where it is used; nothing of a value is repeated."""
    try:
        listed = json.loads(raw) if isinstance(raw, str | bytes) else raw
    except ValueError:
        listed = None
    if not isinstance(listed, list | tuple) or not all(map(_is_witness, listed)):
        raise ValueError('takes a list of {"url": "https://...", "vkey": "..."}, or JSON of one')
    return tuple((str(witness["url"]), str(witness["vkey"])) for witness in listed)


def _is_witness(raw: object) -> bool:
    if not isinstance(raw, dict) or raw.keys() != {"url", "vkey"}:
        return False
    url, vkey = raw["url"], raw["vkey"]
    return isinstance(vkey, str) and isinstance(url, str) and _URL.fullmatch(url) is not None


def _count(raw: object) -> int:
    text = str(raw)
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise ValueError("takes a whole number between 1 and 1000")
    return int(text)


def _default_spool() -> Path:
    """Where a user's programs keep state (XDG Base Directory Specification)."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "skill-host" / "spool"


def _flag(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.lower() in {"1", "true", "yes", "on"}:
        return True
    if isinstance(raw, str) and raw.lower() in {"0", "false", "no", "off"}:
        return False
    raise ValueError("takes true or false")


def _hash_keys(raw: object) -> KeyRing:
    ring = KeyRing.parse(raw)
    if any(key.personas for key in ring.keys):
        raise ValueError(
            "takes keys limited to tenants, not to personas: a hash tells of no caller"
        )
    return ring


def _origin(raw: object) -> str:
    text = _text(raw)
    if "+" in text or text.endswith("/") or not text.isprintable() or len(text.split()) > 1:
        raise ValueError("takes a URL without its scheme: no spaces, no plus, no slash at its end")
    return text


def _listen(raw: object) -> tuple[str, int] | None:
    if raw in ("", "off"):
        return None
    match = _PLACE.fullmatch(raw.strip()) if isinstance(raw, str) else None
    if match is None or int(match["port"]) > 65535:
        raise ValueError('takes "host:port", "[IPv6]:port" or "off"')
    return match["v6"] or match["host"], int(match["port"])


def _tokens(raw: object) -> str:
    """Whether they are tokens is found out where they are used; nothing of a value is repeated."""
    if isinstance(raw, list | tuple):
        try:
            return json.dumps(raw)
        except (TypeError, ValueError):
            raise ValueError("takes a list of plain JSON values") from None
    return _text(raw)


def _link_keys(raw: object) -> KeyRing:
    ring = KeyRing.parse(raw)
    if any(key.tenants or key.personas for key in ring.keys):
        raise ValueError("takes keys without limits: the tokens say who may name whom")
    return ring


def _bytes(raw: object) -> int:
    text = str(raw)
    if not text.isdecimal() or not 1024 <= int(text) <= 2**30:
        raise ValueError(f"takes a whole number of bytes between 1024 and {2**30}")
    return int(text)


def _trace_url(raw: object) -> str:
    """No user and password in it: whoever sees a page sees its links."""
    text = _text(raw)
    if not _TRACE_URL.fullmatch(text) or text.count("{trace_id}") != 1:
        raise ValueError("takes a http(s) URL, without a login, with {trace_id} in it once")
    return text


def _detail(raw: object) -> str:
    if raw not in ("masked", "type"):
        raise ValueError('takes "masked" or "type"')
    return str(raw)


_SETTINGS: Final[Mapping[str, tuple[str, Callable[[object], Any]]]] = {
    "memory_url": ("AUDIT_MEMORY_URL", _text),
    "emit_timeout": ("AUDIT_EMIT_TIMEOUT", _seconds),
    "error_message": ("AUDIT_ERROR_MESSAGE", _detail),
    "instrument": ("AUDIT_INSTRUMENT", _flag),
    "spool_dir": ("AUDIT_SPOOL_DIR", _text),
    "lease_seconds": ("AUDIT_LEASE_SECONDS", _seconds),
    "max_deaths": ("AUDIT_MAX_DEATHS", _count),
    "context_keys": ("AUDIT_CONTEXT_KEYS", KeyRing.parse),
    "context_max_age": ("AUDIT_CONTEXT_MAX_AGE", _age),
    "hash_keys": ("AUDIT_HASH_KEYS", _hash_keys),
    "redact_logs": ("AUDIT_REDACT_LOGS", _flag),
    "ledger_dir": ("AUDIT_LEDGER_DIR", _text),
    "ledger_origin": ("AUDIT_LEDGER_ORIGIN", _origin),
    "ledger_keys": ("AUDIT_LEDGER_KEYS", _text),
    "ledger_seal_seconds": ("AUDIT_LEDGER_SEAL_SECONDS", _seconds),
    "ledger_witnesses": ("AUDIT_LEDGER_WITNESSES", _witnesses),
    "keeper_listen": ("AUDIT_KEEPER_LISTEN", _listen),
    "hot_retention": ("AUDIT_HOT_RETENTION", _retention),
    "gateway_tokens": ("AUDIT_GATEWAY_TOKENS", _tokens),
    "gateway_keys": ("AUDIT_GATEWAY_KEYS", _link_keys),
    "gateway_max_body": ("AUDIT_GATEWAY_MAX_BODY", _bytes),
    "gateway_max_wait": ("AUDIT_GATEWAY_MAX_WAIT", _seconds),
    "trace_url": ("AUDIT_TRACE_URL", _trace_url),
}
