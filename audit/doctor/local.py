"""Checks of this machine: keys, and the spool. Nothing is made or changed that was not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from audit.doctor.check import Check, Probe, bad, ok, skipped, warn
from audit.ledger.keys import LedgerKeys
from audit.settings import AuditSettings
from audit.spool import QUARANTINE, Spool

_OTHERS: Final = 0o077


def key_probes(settings: AuditSettings) -> list[Probe]:
    """The checks of the keys that the settings name."""
    return [
        Probe(name="context keys", look=lambda: context_keys(settings)),
        Probe(name="hash keys", look=lambda: hash_keys(settings)),
        Probe(
            name="ledger keys",
            look=lambda: ledger_keys(settings),
            advice="the keeper seals nothing until AUDIT_LEDGER_KEYS are good",
        ),
    ]


def spool_probe(settings: AuditSettings, memory_name: str) -> Probe:
    """The check of this host's spool."""
    return Probe(
        name="spool",
        look=lambda: spool(Spool(Path(settings.spool_dir), memory_name)),
        advice="give the worker's user this folder, or set AUDIT_SPOOL_DIR",
    )


def context_keys(settings: AuditSettings) -> Check:
    if settings.context_keys:
        return ok("context keys", f"contexts are signed: {settings.context_keys}")
    return warn(
        "context keys",
        "contexts are not signed",
        "set AUDIT_CONTEXT_KEYS: until then whoever can write to the broker can call any skill"
        " as anybody",
    )


def hash_keys(settings: AuditSettings) -> Check:
    if settings.hash_keys:
        return ok("hash keys", f"hashes are HMACs: {settings.hash_keys}")
    return warn(
        "hash keys",
        "hashes are plain SHA-256",
        "set AUDIT_HASH_KEYS: until then whoever reads rows can find short values by guessing",
    )


def ledger_keys(settings: AuditSettings) -> Check:
    """The keys of the ledger parse, fit its origin, and nobody else reads their file."""
    if settings.ledger_dir is None:
        return skipped("ledger keys", "no ledger is configured (AUDIT_LEDGER_DIR)")
    keys = LedgerKeys.load(settings.ledger_keys, settings.ledger_origin)
    return ok("ledger keys", f"checkpoints are signed by {len(keys.signers)} key(s)")


def spool(found: Spool) -> Check:
    """Whether rows wait, whether more could be kept, and whether anybody else reads them."""
    folder = found.directory
    if not _could_be_kept(found):
        return bad("spool", f"{folder} cannot be written", "give the worker's user this folder")
    if aside := _rows_in(folder / QUARANTINE):
        return bad(
            "spool",
            f"rows in quarantine: {aside}",
            f"read {folder / QUARANTINE}: the memory refused these rows, and they are on no record",
        )
    if others := found.others():
        return bad(
            "spool",
            f"rows wait for a memory that is spelled otherwise: {', '.join(map(str, others))}",
            "run `audit keep` once with that spelling of AUDIT_MEMORY_URL",
        )
    return _waiting(found)


def _waiting(found: Spool) -> Check:
    usage = found.usage()
    if found.full:
        return bad(
            "spool",
            f"full: {usage.rows} rows, {usage.bytes} bytes; new invocations are refused",
            "bring the memory back: a worker or `audit keep` replays them",
        )
    if usage.rows:
        return warn(
            "spool",
            f"rows that wait for the memory: {usage.rows}",
            "see that the memory answers, and that a worker or `audit keep` runs on this host",
        )
    if found.directory.is_dir() and found.directory.stat().st_mode & _OTHERS:
        return warn(
            "spool",
            f"{found.directory} is open to other users",
            f"chmod 700 {found.directory}",
        )
    return ok("spool", f"{found.directory} is empty and can be written")


def _could_be_kept(found: Spool) -> bool:
    """Whether a row could be kept; a folder made here would belong to the wrong user."""
    if found.directory.is_dir():
        found.check()
        return True
    above = next(path for path in found.directory.parents if path.exists())
    return above.is_dir() and os.access(above, os.W_OK | os.X_OK)


def _rows_in(folder: Path) -> int:
    return sum(1 for _ in folder.glob("*.row"))
