"""The evidence pack: all rows of a log from one index to another, and what proves them, in one zip.

``verify_pack.py``, which goes along, says what a pack holds and how it is verified. Why it looks so
stands in ``docs/decisions/0017-evidence-pack.md``.

What is guaranteed: a pack has its name only when it was written whole and the very program that is
shipped in it has passed it, or blames only what was wrong with the rows when they were sealed; no
file is overwritten; memory stays flat, and the pack is linear in the rows it holds.
"""

from __future__ import annotations

import json
import os
import zipfile
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final
from uuid import uuid4

from audit.errors import EvidenceError, LedgerDamagedError
from audit.ledger import verify_pack
from audit.ledger.merkle import leaf_hash
from audit.ledger.sealed_log import SealedLog
from audit.row import timestamp

_FILE_MODE: Final = 0o640
#: Findings over rows that were sealed like that: a reason to look, and none to withhold them.
_AS_SEALED: Final = frozenset({verify_pack.Step.CONTENT, verify_pack.Step.PAIRS})
_README: Final = """\
Evidence pack of an audit ledger
================================

All audit rows of one log from one index to another, none left out, and what proves it.

    python verify_pack.py PACK --key VKEY

needs Python 3.11 or newer and the package `cryptography`. VKEY is the ledger's verifier key; get it
from somebody else than whoever gave you this pack. The top of verify_pack.py explains every step.

rows.jsonl       the rows, one a line, byte for byte as stored; what was sealed and holds a line
                 feed, which no row does, as base64:...
hashes.txt       index and leaf hash of each row: SHA-256 over a zero byte and the row
range-proof.txt  first index, number of rows and hash of the subtrees left and right of the rows
checkpoint       size and root of the log, signed (C2SP tlog-checkpoint)
keys             the ledger's keys, to compare with yours; nothing is verified with them
policy.json      what was asked for: pseudonym of the tenant, times, when, by which version
manifest.json    log, size, first and last index, number of rows, SHA-256 of every other file
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What an export was asked for.

    Attributes:
        since: the first moment, inclusive; ``None`` for the log's beginning.
        until: the first moment behind it; ``None`` for the checkpoint.
        exported_at: when it was asked.
        version: of the program that answers.
    """

    since: datetime | None = None
    until: datetime | None = None
    exported_at: datetime
    version: str

    def covers(self, row: bytes) -> bool:
        """Whether the time of a stored row lies within, as the auditor's program sees it."""
        return verify_pack.Policy(self.since, self.until).covers(verify_pack.document_of(row))

    def as_dict(self, log: SealedLog) -> dict[str, Any]:
        return {
            "tenant": log.origin.rpartition("/")[2],
            "since": self.since and timestamp(self.since),
            "until": self.until and timestamp(self.until),
            "exported_at": timestamp(self.exported_at),
            "version": self.version,
        }


@dataclass(frozen=True, slots=True)
class Exported:
    """What a pack holds.

    Attributes:
        first: the index of its first row.
        last: that of its last row.
        size: how many rows the log had.
        asked: how many rows of the pack lie within what was asked for; the others lie between
            them, or just outside to show where it ends.
        findings: what is wrong with the rows themselves, as they were sealed.
    """

    first: int
    last: int
    size: int
    asked: int
    findings: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return self.last - self.first + 1


def export(log: SealedLog, asked: Asked, pack: Path) -> Exported:
    """Write an evidence pack.

    Raises:
        EvidenceError: no row was asked for, or the file is there already.
        LedgerDamagedError: the pack would not verify.
        TileError: a tile or a bundle is missing or damaged.
    """
    exported = find_range(log, asked)
    unnamed = pack.with_name(f".{pack.name}.{uuid4().hex}")
    try:
        with _new(unnamed) as file:
            write(log, asked, exported, file)
            file.flush()
            os.fsync(file.fileno())
        findings = _verify(log, unnamed)
        os.link(unnamed, pack)  # unlike a rename it never overwrites
    except FileExistsError:
        raise EvidenceError(f"{pack} is there already and was left alone") from None
    except OSError as error:
        raise EvidenceError(f"{pack} cannot be written: {error.strerror}") from error
    finally:
        unnamed.unlink(missing_ok=True)
    return replace(exported, findings=findings)


def find_range(log: SealedLog, asked: Asked) -> Exported:
    """The rows of a pack: from the first that was asked for to the last, and one more at each end.

    Rows lie in the order in which they were stored, which is not that of their times, so all of the
    log is looked through.

    Raises:
        EvidenceError: no row was asked for, or one that was pruned may have been.
    """
    held = log.held_from()
    first, last, count = 0, log.size - 1, log.size
    if asked.since or asked.until:
        first, last, count = _matching(log, asked, held)
    pruned = f"rows 0 to {held - 1} are not here, they were pruned"
    if not count:
        raise EvidenceError(
            "no sealed row lies in that time, and an empty pack proves nothing: ask for another"
            f" time, or wait until the rows are sealed{f' ({pruned})' if held else ''}"
        )
    if held and first <= held:  # the row before the first one asked for has to be shown as well
        raise EvidenceError(f"{pruned}; ask --since a moment after that of row {held}")
    return Exported(max(0, first - 1), min(log.size - 1, last + 1), log.size, count)


def _matching(log: SealedLog, asked: Asked, held: int) -> tuple[int, int, int]:
    first = last = count = 0
    for index, row in enumerate(log.tiles.rows(log.size, held), held):
        if asked.covers(row):
            first, last, count = first if count else index, index, count + 1
    return first, last, count


def write(log: SealedLog, asked: Asked, exported: Exported, file: IO[bytes]) -> None:
    """Write the zip; ``export`` is what checks it."""
    hashes: dict[str, str] = {}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, chunks in _contents(log, asked, exported):
            hashes[name] = _add(archive, name, chunks, asked.exported_at)
        manifest = _json(_manifest(log, exported, hashes))
        _add(archive, verify_pack.MANIFEST, [manifest], asked.exported_at)


def _contents(
    log: SealedLog, asked: Asked, exported: Exported
) -> Iterator[tuple[str, Iterable[bytes]]]:
    yield "README.txt", [_README.encode()]
    yield verify_pack.POLICY, [_json(asked.as_dict(log))]
    yield verify_pack.CHECKPOINT, [log.note]
    yield "keys", [f"{key.to_text()}\n".encode() for key in log.keys]
    yield verify_pack.PROOF, _proof(log, exported)
    yield (
        verify_pack.HASHES,
        (
            b"%d %b\n" % (index, leaf_hash(row).hex().encode())
            for index, row in enumerate(_rows(log, exported), exported.first)
        ),
    )
    yield verify_pack.ROWS, (_line(row) for row in _rows(log, exported))
    yield "verify_pack.py", [Path(verify_pack.__file__).read_bytes()]


def _rows(log: SealedLog, exported: Exported) -> Iterator[bytes]:
    return islice(log.tiles.rows(log.size, exported.first), exported.rows)


def _line(row: bytes) -> bytes:
    if b"\n" in row or row.startswith(verify_pack.ENCODED):
        row = verify_pack.ENCODED + b64encode(row)
    return row + b"\n"


def _proof(log: SealedLog, exported: Exported) -> Iterator[bytes]:
    node = log.tiles.node_reader(log.size)
    for start, end in ((0, exported.first), (exported.last + 1, log.size)):
        for at, level in verify_pack.pieces(start, end):
            hashed = node(level, at >> level).hex()
            yield f"{at} {1 << level} {hashed}\n".encode()


def _manifest(log: SealedLog, exported: Exported, hashes: dict[str, str]) -> dict[str, Any]:
    return {
        "format": verify_pack.FORMAT,
        "origin": log.origin,
        "ledger_size": log.size,
        "root": log.opened.checkpoint.root.hex(),
        "first_index": exported.first,
        "last_index": exported.last,
        "rows": exported.rows,
        "files": hashes,
    }


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode() + b"\n"


def _add(archive: zipfile.ZipFile, name: str, chunks: Iterable[bytes], moment: datetime) -> str:
    """Add a file; its SHA-256."""
    info = zipfile.ZipInfo(name, moment.timetuple()[:6])
    info.external_attr = (0o100000 | _FILE_MODE) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    digest = sha256()
    with archive.open(info, "w", force_zip64=True) as stream:
        for chunk in chunks:
            digest.update(chunk)
            stream.write(chunk)
    return digest.hexdigest()


def _new(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _FILE_MODE), "w+b")


def _verify(log: SealedLog, pack: Path) -> tuple[str, ...]:
    """What is wrong with the rows themselves; anything else is an error."""
    keys = [verify_pack.Key(key.name, key.public_key) for key in log.keys]
    report = verify_pack.verify(pack, keys)
    for step, text in report.findings:
        if step in _AS_SEALED:
            continue
        raise LedgerDamagedError(
            f"the pack of this ledger would not verify, so there is none ({step}: {text}): run"
            " `audit verify`"
        )
    return tuple(text for _, text in report.findings)
