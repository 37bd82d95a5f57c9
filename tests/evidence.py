"""A small sealed ledger of real rows in files, and packs of it, whole or tampered with."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from audit.ledger.checkpoint import Checkpoint, origin_of
from audit.ledger.note_key import SignerKey
from audit.ledger.pack import Asked
from audit.ledger.sealed_log import SealedLog
from audit.ledger.tile_directory import TileDirectory
from audit.ledger.tiles import new_tiles
from audit.row import timestamp
from tests.naive_merkle import NaiveTree
from tests.sealed import fill
from tests.support import TENANT, completed, make_identity, started

NAME = "ledger.example"
SECRET = b"p" * 32
ORIGIN = origin_of(NAME, TENANT, SECRET)
LEDGER_KEY = SignerKey(NAME, bytes(range(32)))
BEGIN = datetime(2026, 11, 29, 12, tzinfo=UTC)


def moment(minute: int) -> datetime:
    return BEGIN + timedelta(minutes=minute)


def rows(count: int) -> list[bytes]:
    """A started row, a minute later its completed one, and so on."""
    made: list[bytes] = []
    for minute in range(0, count, 2):
        identity = make_identity(request_id=f"01KB8Z5T3MZJ9Y2V4Q6R{minute:06}")
        made.append(started(identity, ts=timestamp(moment(minute))).to_bytes())
        made.append(completed(identity, ts=timestamp(moment(minute + 1))).to_bytes())
    return made[:count]


def seal(
    ledger: Path,
    entries: Sequence[bytes],
    signer: SignerKey = LEDGER_KEY,
    origin: str = ORIGIN,
    first_position: int = 1000,
) -> SealedLog:
    """Write a log as the sealer leaves it; the memory positions are ``1000-0``, ``1001-0``, ..."""
    folder = ledger / origin.rpartition("/")[2]
    fill(TileDirectory(folder), list(entries))
    for tile in new_tiles(0, len(entries)):
        if tile.level is None:
            lines = [f"{first_position + tile.start + place}-0\n" for place in range(tile.width)]
            path = folder / tile.to_path().replace("tile/entries", "positions")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(lines))
    root = NaiveTree(entries).mth(0, len(entries))
    note = Checkpoint(origin, len(entries), root).sign(signer.renamed(origin))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "checkpoint").write_bytes(note.to_bytes())
    return SealedLog(ledger, origin, [signer.verifier])


def asked(since: int | None = None, until: int | None = None) -> Asked:
    return Asked(
        since=None if since is None else moment(since),
        until=None if until is None else moment(until),
        exported_at=datetime(2026, 11, 30, tzinfo=UTC),
        version="skill-host 0.1.0",
    )


# --- packs to tamper with -------------------------------------------------------------------------


def unpacked(pack: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(pack) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def with_hashes(files: Mapping[str, bytes], **changes: Any) -> dict[str, bytes]:
    """The files with a manifest that fits them, as a careful forger makes it."""
    manifest = json.loads(files["manifest.json"])
    names = [name for name in files if name != "manifest.json"]
    manifest["files"] = {name: hashlib.sha256(files[name]).hexdigest() for name in names}
    return {**files, "manifest.json": json.dumps({**manifest, **changes}).encode()}


def listed(first: int, entries: Sequence[bytes]) -> dict[str, bytes]:
    """rows.jsonl and hashes.txt of these rows."""
    hashes = [hashlib.sha256(b"\0" + entry).hexdigest() for entry in entries]
    return {
        "rows.jsonl": b"".join(entry + b"\n" for entry in entries),
        "hashes.txt": "".join(f"{first + i} {h}\n" for i, h in enumerate(hashes)).encode(),
    }
