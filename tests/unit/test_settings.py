"""audit/settings.py: where a setting comes from, and what it takes."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any

import pytest

from audit.errors import SettingsError
from audit.keys import KeyRing
from audit.settings import AuditSettings

GOOD: list[tuple[str, str, Any, str, Any]] = [
    # name, variable, value in the configuration, value in the environment, what the latter means
    ("memory_url", "AUDIT_MEMORY_URL", "redis://conf/0", "redis://env/0", "redis://env/0"),
    ("emit_timeout", "AUDIT_EMIT_TIMEOUT", 3, "0.5", 0.5),
    ("error_message", "AUDIT_ERROR_MESSAGE", "masked", "type", "type"),
    ("instrument", "AUDIT_INSTRUMENT", True, "off", False),
    ("context_max_age", "AUDIT_CONTEXT_MAX_AGE", 3600, "2678400", 2678400.0),
    ("redact_logs", "AUDIT_REDACT_LOGS", True, "no", False),
    ("ledger_dir", "AUDIT_LEDGER_DIR", "/srv/ledger", " /srv/other ", "/srv/other"),
    ("ledger_origin", "AUDIT_LEDGER_ORIGIN", "a.example/x", "b.example", "b.example"),
    ("ledger_keys", "AUDIT_LEDGER_KEYS", "/etc/keys", "/etc/other", "/etc/other"),
    ("ledger_seal_seconds", "AUDIT_LEDGER_SEAL_SECONDS", 2, "0.5", 0.5),
    (
        "ledger_witnesses",
        "AUDIT_LEDGER_WITNESSES",
        (),
        '[{"url": "https://w.example:1/a-b/", "vkey": "w+1+k"}]',
        (("https://w.example:1/a-b/", "w+1+k"),),
    ),
    ("hot_retention", "AUDIT_HOT_RETENTION", 60, "86400", 86400.0),
    ("gateway_tokens", "AUDIT_GATEWAY_TOKENS", "/run/tokens", " /run/others ", "/run/others"),
    ("gateway_max_body", "AUDIT_GATEWAY_MAX_BODY", 1024, "2048", 2048),
    ("gateway_max_wait", "AUDIT_GATEWAY_MAX_WAIT", 5.0, "60", 60.0),
    (
        "trace_url",
        "AUDIT_TRACE_URL",
        "http://t/{trace_id}",
        "https://t/#/{trace_id}?a=b",
        "https://t/#/{trace_id}?a=b",
    ),
]
KEYS = [
    {"id": "new", "secret": "s3cret-" * 5},
    {"id": "old", "secret": "s3cret_" * 5},
]
KEY_SETTINGS = [
    ("context_keys", "AUDIT_CONTEXT_KEYS"),
    ("hash_keys", "AUDIT_HASH_KEYS"),
    ("gateway_keys", "AUDIT_GATEWAY_KEYS"),
]


def read(
    conf: dict[str, Any] | None = None, environ: dict[str, str] | None = None
) -> AuditSettings:
    return AuditSettings.read(conf or {}, environ or {})


def test_defaults() -> None:
    """With nothing set: a Redis on this machine, two seconds in all, masked texts."""
    settings = read()
    assert settings == AuditSettings()
    assert settings.memory_url == "redis://127.0.0.1:6379/1"
    assert settings.emit_timeout == 2.0
    assert settings.error_message == "masked"
    assert settings.instrument is True
    assert not settings.context_keys
    assert not settings.hash_keys
    assert settings.context_max_age == 24 * 3600
    assert settings.redact_logs is True


def test_the_docstring_tells_of_every_setting() -> None:
    """Each attribute is listed, and none that is not there."""
    listed = re.findall(r"^        (\w+): ", AuditSettings.__doc__ or "", re.MULTILINE)
    assert sorted(listed) == sorted(part.name for part in fields(AuditSettings))


@pytest.mark.parametrize(("name", "variable"), KEY_SETTINGS)
def test_keys_come_as_a_list_or_as_text(name: str, variable: str) -> None:
    """A list in the configuration, JSON text in the environment, which wins; never shown."""
    settings = read({f"audit_{name}": KEYS})
    ring = getattr(settings, name)
    assert [key.key_id for key in ring.keys] == ["new", "old"]
    assert read({}, {variable: json.dumps(KEYS)}) == settings
    assert getattr(read({f"audit_{name}": KEYS}, {variable: "[]"}), name) == KeyRing()
    assert getattr(read({f"audit_{name}": KEYS}, {variable: ""}), name) == ring
    for shown in (repr(settings), repr(ring), str(ring.keys)):
        assert "s3cret" not in shown


def test_a_hash_key_is_for_tenants() -> None:
    """A limit to personas would be one that nobody keeps."""
    with pytest.raises(SettingsError, match="audit_hash_keys"):
        read({"audit_hash_keys": [{**KEYS[0], "personas": ["cuo-*"]}]})


def test_a_key_of_status_links_has_no_limits() -> None:
    """Whom a caller may name stands with its token."""
    with pytest.raises(SettingsError, match="audit_gateway_keys"):
        read({"audit_gateway_keys": [{**KEYS[0], "personas": ["cuo-*"]}]})


@pytest.mark.parametrize(("name", "variable"), KEY_SETTINGS)
def test_a_bad_key_is_named_by_position_and_field(name: str, variable: str) -> None:
    """With the setting and its variable, and without a value."""
    bad = json.dumps([KEYS[0], {**KEYS[1], "tenants": ["s3cret"]}])
    with pytest.raises(SettingsError) as caught:
        read({}, {variable: bad})
    assert str(caught.value).startswith(f"audit_{name} (or {variable}): [1].tenants takes")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("value", [1, "1", 31 * 86400, "1.5"])
def test_an_age_is_a_second_to_31_days(value: Any) -> None:
    """In seconds."""
    assert read({"audit_context_max_age": value}).context_max_age == float(value)


@pytest.mark.parametrize(("name", "variable", "conf", "env", "meant"), GOOD)
def test_the_environment_wins_over_the_configuration(
    name: str, variable: str, conf: Any, env: str, meant: Any
) -> None:
    """As Celery's own CELERY_BROKER_URL does; an empty variable counts as none."""
    assert getattr(read({f"audit_{name}": conf}), name) == conf
    assert getattr(read({}, {variable: env}), name) == meant
    assert getattr(read({f"audit_{name}": conf}, {variable: env}), name) == meant
    assert getattr(read({f"audit_{name}": conf}, {variable: ""}), name) == conf
    assert getattr(read({f"audit_{name}": None}), name) == getattr(AuditSettings(), name)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        (" keeper-1.example:0 ", ("keeper-1.example", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("off", None),
    ],
)
def test_where_a_keeper_listens(text: str, meant: tuple[str, int] | None) -> None:
    """A host and a port, 0 for any; "off", or nothing in the configuration, for nowhere."""
    assert read({}, {"AUDIT_KEEPER_LISTEN": text}).keeper_listen == meant
    assert read({"audit_keeper_listen": text}).keeper_listen == meant
    assert read({"audit_keeper_listen": ""}).keeper_listen is None
    assert read().keeper_listen == ("127.0.0.1", 9464)


def test_other_settings_are_left_alone() -> None:
    """Celery's own settings, and variables of others, change nothing."""
    conf = {"broker_url": "redis://x", "emit_timeout": 9, "audit": 1}
    assert read(conf, {"EMIT_TIMEOUT": "9"}) == AuditSettings()


@pytest.mark.parametrize("text", ["1", "true", "TRUE", "yes", "On"])
def test_words_for_true(text: str) -> None:
    """The usual ones, in any case."""
    assert read({}, {"AUDIT_INSTRUMENT": text}).instrument is True


@pytest.mark.parametrize("text", ["0", "false", "False", "no", "OFF"])
def test_words_for_false(text: str) -> None:
    """The usual ones, in any case."""
    assert read({"audit_instrument": True}, {"AUDIT_INSTRUMENT": text}).instrument is False


@pytest.mark.parametrize("value", [0.01, 1, 2.5, 3600, "0.01", "1e1", " 2 "])
def test_seconds(value: Any) -> None:
    """A number or its text, from a hundredth of a second to an hour."""
    assert read({"audit_emit_timeout": value}).emit_timeout == float(value)


BAD: list[tuple[str, Any]] = [
    *(("memory_url", value) for value in (5, b"redis://x", "  ", ["redis://x"], {})),
    *(
        ("emit_timeout", value)
        for value in (0, 0.009, -1, 3601, "two", "nan", "inf", float("nan"), [], True)
    ),
    *(("error_message", value) for value in ("full", "MASKED", "", True, ["type"], 0)),
    *(("instrument", value) for value in ("maybe", "2", 1, 0, 0.0, [], "")),
    *(("redact_logs", value) for value in ("maybe", 1, [])),
    *(("ledger_dir", value) for value in (5, "  ", ["/srv"])),
    *(("ledger_origin", value) for value in (5, " ", "a+b", "a b", "a/", "a\x07b")),
    *(("ledger_keys", value) for value in (5, " ", b"PRIVATE+KEY+")),
    *(
        ("keeper_listen", value)
        for value in (9464, ":9464", "h", "h:", "h:65536", "h:1:2", "::1:80", "u:p@h:80", ["h:1"])
    ),
    *(("hot_retention", value) for value in (0, -1, "1d", True, 1e12)),
    *(("gateway_tokens", value) for value in (5, " ", {}, [{1, 2}])),
    *(("gateway_max_body", value) for value in (0, 1023, 2**30 + 1, "1k", -1, 1024.5)),
    *(("gateway_max_wait", value) for value in (0, -1, "1s", 3601)),
    *(
        ("trace_url", value)
        for value in (
            5,
            "https://t/trace",
            "https://t/{trace_id}/{trace_id}",
            "https://{trace_id}/",
            "https://u:p@t/{trace_id}",
            "javascript:alert('{trace_id}')",
            "//t/{trace_id}",
            'https://t/{trace_id}"',
            "https://t/{trace_id} x",
        )
    ),
    *(("ledger_witnesses", value) for value in (5, "x", "{}", "[1]", [{"url": "http://w"}])),
    *(
        ("ledger_witnesses", [{"url": url, "vkey": "k"}])
        for url in (5, "", "w", "ftp://w", "http://", "http://u:p@w", "http://w/?s", "http://w/#s")
    ),
    ("ledger_witnesses", [{"url": "http://w", "vkey": 5}]),
    ("ledger_witnesses", [{"url": "http://w", "vkey": "k", "more": "x"}]),
    *(("ledger_seal_seconds", value) for value in (0, -1, "1s", 3601)),
    *(
        ("context_max_age", value)
        for value in (0, 0.99, 31 * 86400 + 1, "1d", float("nan"), float("inf"), True, [])
    ),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{n}={v!r}" for n, v in BAD])
def test_what_a_setting_does_not_take(name: str, value: Any) -> None:
    """The error names the setting and its variable, and never repeats the value."""
    variable = f"AUDIT_{name.upper()}"
    with pytest.raises(SettingsError) as caught:
        read({f"audit_{name}": value})
    text = str(caught.value)
    assert f"audit_{name}" in text
    assert variable in text
    assert "takes" in text


def test_a_bad_value_is_not_repeated() -> None:
    """It may be a secret in the wrong place."""
    with pytest.raises(SettingsError) as caught:
        read({}, {"AUDIT_EMIT_TIMEOUT": "redis://:s3cret@h", "AUDIT_INSTRUMENT": "s3cret"})
    assert "s3cret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_the_password_of_the_memory_is_not_shown() -> None:
    """Settings that land in a log or a traceback do not carry the URL."""
    settings = read({"audit_memory_url": "redis://:s3cret@h/0"})
    assert "s3cret" not in repr(settings)
    assert settings.memory_url == "redis://:s3cret@h/0"


def test_witnesses_may_stand_in_the_configuration_as_a_list() -> None:
    """Of each a URL, of any kind of host, and the text of its key."""
    urls = ["http://w", "https://w.example/a-b/~c", "http://127.0.0.1:8080", "http://[::1]:80"]
    listed = [{"url": url, "vkey": "w+1+k"} for url in urls]
    read_back = read({"audit_ledger_witnesses": listed}).ledger_witnesses
    assert read_back == tuple((url, "w+1+k") for url in urls)
