"""``audit compare-args``: whether an invocation was given the arguments that an investigator holds.

A row has the arguments' hash only. The arguments to compare come from a file or from standard input
and never from the command line, which every user of the machine can read while the command runs.
No text repeats any of them.
"""

from __future__ import annotations

import json
from typing import IO, Any, Final

import click
from kombu.utils.json import object_hook

from audit.canonical import KEYED, digest
from audit.errors import CanonicalizationError
from audit.keys import Key
from audit.memory.base import RowFilter
from audit.plain import clean
from audit.row import STARTED
from audit.terminal import echo, settings_of, stored_rows

_SHAPE: Final = "give the arguments as one JSON object by name, in UTF-8"


@click.command(name="compare-args")
@click.argument("request_id")
@click.argument("file", type=click.File("rb"), default="-")
@click.pass_context
def compare_args(ctx: click.Context, request_id: str, file: IO[bytes]) -> None:
    """Say whether arguments are those of an invocation.

    FILE, or standard input, holds them as a JSON object by name, without defaults, `*args` under
    "*args". What JSON has no word for is written as Celery does, e.g.
    {"__type__": "date", "__value__": "2026-11-29"}. A hash made with a key needs that key in
    AUDIT_HASH_KEYS.

    Exit status: 0 the same, 1 not the same or no such invocation, 2 wrong usage.

    \b
    Example:
      celery -A tasks audit compare-args 01KB8Z5T3MZJ9Y2V4Q6R8S0TAW arguments.json
    """
    given = _arguments(file.read())
    recorded = _recorded(ctx, request_id)
    same = _hash(given, _key(ctx, recorded)) == recorded
    echo("the same" if same else "not the same")
    ctx.exit(0 if same else 1)


def _arguments(written: bytes) -> dict[str, Any]:
    """The arguments as the caller's Python had them, so that they hash as they did."""
    try:
        found = json.loads(written.decode("utf-8-sig"), object_pairs_hook=_members)
    except Exception:  # also what the decoders of an application's own types raise
        found = None
    if not isinstance(found, dict):  # out here, so that nothing of the text hangs on to the error
        raise click.UsageError(f"these are no arguments: {_SHAPE}")
    return found


def _members(pairs: list[tuple[str, Any]]) -> Any:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError
    return object_hook(members)


def _recorded(ctx: click.Context, request_id: str) -> str:
    for row in stored_rows(ctx, RowFilter(request_id=request_id)):
        if row.kind == STARTED:
            return str(row.payload["args_hash"])
    raise click.ClickException(f"no invocation {request_id!r} was started in this memory")


def _key(ctx: click.Context, recorded: str) -> Key | None:
    """The key that the row names, ``None`` where it names none."""
    scheme, _, rest = recorded.partition(":")
    if scheme != KEYED:
        return None
    key_id = rest.partition(":")[0]
    key = settings_of(ctx).hash_keys.find(key_id)
    if key is None:
        raise click.UsageError(
            f"the row's hash was made with the key {clean(key_id)!r}, which audit_hash_keys"
            " (or AUDIT_HASH_KEYS) does not hold"
        )
    return key


def _hash(arguments: dict[str, Any], key: Key | None) -> str:
    try:
        return digest(arguments, key)
    except CanonicalizationError as error:
        fault = str(error)
    raise click.UsageError(f"these can be no invocation's arguments: {fault}")
