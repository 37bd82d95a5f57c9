"""``audit verify``: whether anything was changed, cut or added since it was sealed.

With ``--json`` one object a line: what was checked of each log, each finding, and the verdict last.
Nothing is written and nothing repaired. An outsider needs a copy of the ledger's folder and a
verifier key, and no secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final
from uuid import UUID

import click

from audit import metrics
from audit.cli_options import MEMORY_URL
from audit.errors import CheckpointError, NoteKeyError
from audit.invocation import new_request_id
from audit.keeper_http import Exporting
from audit.ledger.claims import Trust
from audit.ledger.finding import Finding, LogReport, Report, Verdict
from audit.ledger.keys import LedgerKeys
from audit.ledger.note_key import Algorithm, VerifierKey
from audit.ledger.sources import Sources
from audit.ledger.subject import Limits
from audit.ledger.verifier import verify as check
from audit.plain import clean
from audit.settings import AuditSettings
from audit.terminal import echo, memory_of, settings_of

_FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)
#: Beyond a lease, how long an invocation may be open before that is worth a finding.
_OPEN_SECONDS: Final = 30.0
#: Beyond the time between two seals, how long a row may wait for one.
_UNSEALED_SECONDS: Final = 60.0


@click.command()
@click.option("--tenant", "tenant_id", metavar="UUID", type=click.UUID, help="This tenant only.")
@click.option(
    "--from-checkpoint",
    "given",
    metavar="FILE",
    multiple=True,
    type=click.File("rb"),
    help="A checkpoint that you kept: the log must have grown from it.",
)
@click.option(
    "--key",
    "keys",
    metavar="VKEY",
    multiple=True,
    help="Trust this key, no other; of the ledger, or of a witness.",
)
@click.option("--ledger", metavar="DIR", type=_FOLDER, help="Check this folder (a copy) alone.")
@click.option(
    "--only", type=click.Choice(["memory", "files"]), help="Leave the other side out of it."
)
@click.option(
    "--open-for",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="How long an invocation may be open; 30 and a lease unless given.",
)
@click.option(
    "--unsealed-for",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="How long a row may wait to be sealed; 60 and the time between two seals unless given.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
@click.pass_context
def verify(
    ctx: click.Context,
    tenant_id: UUID | None,
    given: tuple[IO[bytes], ...],
    keys: tuple[str, ...],
    ledger: Path | None,
    only: str | None,
    open_for: float | None,
    unsealed_for: float | None,
    as_json: bool,
) -> None:
    """Prove that no sealed row was changed, cut or added.

    Holds memory and ledger against each other and against the signed checkpoints. With --ledger the
    folder alone is checked, unless --memory names a memory, too.

    Exit status: 0 all is right and of each log something was checked, 1 a finding, or a log with
    sealed rows of which nothing was checked, or nothing to check, 2 wrong usage. Over OTLP, where
    that is set up, it tells how many findings there are.

    \b
    Example:
      celery -A tasks audit verify --tenant 550e8400-e29b-41d4-a716-446655440000 --json
    """
    settings = settings_of(ctx)
    folder = ledger or (Path(settings.ledger_dir) if settings.ledger_dir else None)
    if folder is None:
        raise click.UsageError("there is no ledger: set AUDIT_LEDGER_DIR, or give --ledger DIR")
    alone = only == "files" or (only is None and ledger is not None and not ctx.meta[MEMORY_URL])
    known = known_keys(settings, folder, keys, own=ledger is not None)
    try:
        report = check(
            Sources(
                trust=Trust(known[0], known[1]),
                ledger=None if only == "memory" else folder,
                memory=None if alone else memory_of(ctx),
                tenant=None if tenant_id is None else str(tenant_id),
                given=tuple(file.read() for file in given),
                secret=known[2],
                limits=Limits(
                    open_for=_open_for(open_for, settings),
                    unsealed_for=_unsealed_for(unsealed_for, settings),
                ),
            )
        )
    except CheckpointError as error:
        raise click.BadParameter(clean(str(error)), param_hint="'--from-checkpoint'") from error
    with Exporting(new_request_id(), scraped=False, role="verifier"):
        metrics.verified(findings=_sum(report)["findings"])
    for line in _json_lines(report) if as_json else _lines(report):
        echo(line)
    ctx.exit(0 if report.verdict is Verdict.RIGHT else 1)


# --- whom to trust --------------------------------------------------------------------------------


def known_keys(
    settings: AuditSettings, folder: Path, given: tuple[str, ...], *, own: bool
) -> tuple[tuple[VerifierKey, ...], str | None, bytes | None]:
    """The keys that count, what origins begin with, and the secret, where that is at hand."""
    named = tuple(map(_parsed, given))
    if not any(key.algorithm is Algorithm.COSIGNATURE for key in named):
        named += tuple(_witness_key(vkey) for _, vkey in settings.ledger_witnesses)
    if any(key.algorithm is Algorithm.ED25519 for key in named):
        return named, None if own else settings.ledger_origin, None
    if settings.ledger_keys and not own:
        ours = LedgerKeys.load(settings.ledger_keys)
        return (*ours.verifiers, *named), settings.ledger_origin, ours.secret
    click.echo(
        f"no key was given, so those count that lie beside the rows in {folder / 'keys'}; who can"
        " change the rows can change them: give --key VKEY",
        err=True,
    )
    return (*_keys_of(folder), *named), None, None


def _parsed(text: str) -> VerifierKey:
    try:
        return VerifierKey.parse(text)
    except NoteKeyError as error:
        raise click.BadParameter(str(error), param_hint="'--key'") from None


def _witness_key(text: str) -> VerifierKey:
    try:
        return VerifierKey.parse(text)
    except NoteKeyError as error:
        raise click.UsageError(f"audit_ledger_witnesses: {error}") from None


def _keys_of(folder: Path) -> tuple[VerifierKey, ...]:
    try:
        lines = (folder / "keys").read_text(encoding="utf-8").split()
        return tuple(VerifierKey.parse(line) for line in lines)
    except (OSError, ValueError, NoteKeyError):
        raise click.UsageError(
            f"{folder / 'keys'} has no keys that can be read: give --key VKEY"
        ) from None


def _open_for(given: float | None, settings: AuditSettings) -> float:
    return _OPEN_SECONDS + settings.lease_seconds if given is None else given


def _unsealed_for(given: float | None, settings: AuditSettings) -> float:
    return _UNSEALED_SECONDS + settings.ledger_seal_seconds if given is None else given


# --- telling --------------------------------------------------------------------------------------


def _json_lines(report: Report) -> Iterator[str]:
    for log in report.logs:
        yield json.dumps({"type": "log", **log.as_dict()})
        for finding in log.findings:
            yield json.dumps({"type": "finding", **finding.as_dict()})
    yield json.dumps({"type": "verdict", **_sum(report)})


def _lines(report: Report) -> Iterator[str]:
    for log in report.logs:
        yield _of_log(log)
        for finding in log.findings:
            yield f"  {_of_finding(finding)}"
    yield _of_verdict(report)


def _of_verdict(report: Report) -> str:
    """The last line: nothing that was left unchecked passes for right."""
    total = _sum(report)
    told = f"{total['checked']:,} rows checked, findings: {total['findings']}"
    left = [log for log in report.logs if log.is_unchecked]
    if report.verdict is Verdict.EMPTY and not left:
        return "NOTHING WAS CHECKED: there are no sealed rows, and that proves nothing"
    if report.verdict is Verdict.EMPTY:
        sealed = sum(log.sealed for log in left)
        return f"NOTHING WAS CHECKED of {sealed:,} sealed rows, and that proves nothing"
    if report.verdict is Verdict.PARTIAL:
        return f"NOT ALL WAS CHECKED: {told}; nothing of {len(left)} logs with sealed rows"
    return f"{report.verdict.upper()}: {told}"


def _sum(report: Report) -> dict[str, Any]:
    return {
        "verdict": report.verdict,
        "checked": sum(log.checked for log in report.logs),
        "unsealed": sum(log.unsealed or 0 for log in report.logs),
        "findings": sum(len(log.findings) for log in report.logs),
    }


def _of_log(log: LogReport) -> str:
    name = " ".join(filter(None, (log.log, log.tenant and f"(tenant {log.tenant})")))
    facts = [
        f"sealed {log.sealed:,}, checked {log.checked:,}",
        f"cosigned {log.cosigned:,}",
        "unsealed unknown" if log.unsealed is None else f"unsealed {log.unsealed:,}",
        log.pruned and f"pruned {log.pruned:,}",
        log.trimmed and f"trimmed from the memory {log.trimmed:,}",
    ]
    return clean(f"{log.verdict:5} {name}: {'; '.join(str(fact) for fact in facts if fact)}")


def _of_finding(finding: Finding) -> str:
    where = [
        finding.index is not None and f"index {finding.index}",
        finding.count > 1 and f"{finding.count:,} rows",
        finding.position and f"position {finding.position}",
        finding.request_id and f"request {finding.request_id}",
        finding.text,
    ]
    told = ", ".join(str(part) for part in where if part)
    return clean(f"{finding.kind.upper()} in the {finding.source}: {told}")
