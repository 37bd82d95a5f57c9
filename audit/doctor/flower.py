"""Checks of how Flower would start here: by the environment, in this folder.

What stands on its command line nobody can see beforehand. Where the shipped ``flowerconfig.py`` is
in force, it refuses to start on what is ``BAD`` here; without it, Flower would start.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from audit.doctor.check import Check, Probe, bad, ok, skipped, warn

CONFIG: Final = "flowerconfig.py"
_OFF: Final = frozenset({"", "0", "f", "false", "n", "no", "off"})
_PREFIX: Final = "FLOWER_"


def flower_probes(environ: Mapping[str, str], folder: Path, shipped: Path | None) -> list[Probe]:
    """The checks of Flower.

    Args:
        environ: the environment it would be started with.
        folder: the working directory it would be started in.
        shipped: where the host's own ``flowerconfig.py`` is, if anywhere.
    """
    return [
        Probe(name="flower config", look=lambda: config(environ, folder, shipped)),
        Probe(name="flower access", look=lambda: access(environ)),
    ]


def config(environ: Mapping[str, str], folder: Path, shipped: Path | None) -> Check:
    """Whether Flower would read the shipped configuration."""
    name, path = "flower config", folder / environ.get(f"{_PREFIX}CONF", CONFIG)
    use = f"start Flower with --conf={shipped}" if shipped else f"put the host's {CONFIG} there"
    if not path.is_file():
        return warn(name, f"there is no {path}", f"{use}: without it Flower guards nothing")
    try:
        text = path.read_bytes()
        ast.parse(text)
    except (OSError, SyntaxError, ValueError) as error:
        return bad(name, f"{path} cannot be used: {type(error).__name__}", use)
    if shipped is None:
        return skipped(name, f"{path} is there, and no shipped one to compare it with")
    if text != shipped.read_bytes():
        return warn(name, f"{path} is not the shipped one", f"compare the two, or {use}")
    return ok(name, f"{path} is the shipped one")


def access(environ: Mapping[str, str]) -> Check:
    """Whether a stranger would see pages, or anything be written to disk."""
    name = "flower access"
    options = {
        key.removeprefix(_PREFIX).lower(): value
        for key, value in environ.items()
        if key.startswith(_PREFIX)
    }
    if faults := [text for text, holds in _faults(options).items() if holds]:
        return bad(name, "; ".join(faults), "unset or mend these variables")
    if not (options.get("basic_auth") or options.get("auth")):
        return warn(
            name,
            "neither FLOWER_BASIC_AUTH nor FLOWER_AUTH is set",
            "set FLOWER_BASIC_AUTH=user:password where Flower is started: the shipped"
            " configuration does not start without, and any other shows its pages to everybody",
        )
    return ok(name, "pages and API ask for credentials")


def _faults(options: Mapping[str, str]) -> dict[str, bool]:
    """What is wrong, and whether it is; no value is repeated."""
    secret = options.get("cookie_secret", "")
    basic = options.get("basic_auth", "")
    return {
        "FLOWER_UNAUTHENTICATED_API opens the API to everybody": _is_on(
            options, "unauthenticated_api"
        ),
        "FLOWER_PERSISTENT writes what Flower sees to a file": _is_on(options, "persistent"),
        "FLOWER_DEBUG shows tracebacks to everybody": _is_on(options, "debug"),
        "FLOWER_BASIC_AUTH has an entry that is not user:password": bool(basic)
        and not all(map(_is_login, basic.split(","))),
        "FLOWER_COOKIE_SECRET has less than 32 characters": 0 < len(secret) < 32,
    }


def _is_on(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "").strip().lower() not in _OFF


def _is_login(entry: str) -> bool:
    user, _, password = entry.partition(":")
    return bool(user and password) and entry.isascii()
