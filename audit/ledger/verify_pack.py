"""Verify an evidence pack. For the auditor who was given one, and for whoever reads this file.

HOW TO RUN IT.  Python 3.11 or newer, and the package ``cryptography`` for one kind of signature::

    python verify_pack.py PACK --key VKEY

VKEY is the ledger's verifier key (``name+id+base64``) or a file that holds it. Get it from somebody
else than whoever gave you the pack: with a key out of the pack, anybody can make a pack. This
program lies in the pack as well; if you do not trust that copy, read it, or take one that you do.

Exit status: 0 everything holds, 1 something does not (each finding is named), 2 wrong usage.

WHAT A PACK IS.  A zip of the files in ``FILES`` below. A *log* is the list of all audit rows of one
tenant in the order in which they were stored; a row's *index* is its place there, from 0. The log
is a Merkle tree (RFC 6962), whose root is signed now and then: that is the *checkpoint*. A pack
holds all rows of the log from one index to another, none left out.

WHAT IS CHECKED, in this order:

1. CONTAINER   exactly the files of a pack, each once; nothing is unpacked to disk; everything is
               read in small pieces and not beyond what was signed, so a zip bomb gains nothing.
2. CHECKPOINT  your key has signed it, under the name of the log. Keys in the pack count nothing.
3. MANIFEST    log, ledger size, root, first and last index and number of rows agree with the
               checkpoint and with each other; the SHA-256 of every file is the one it says.
4. ROWS        each row's hash is the one listed for its index, and the indexes run from first to
               last without gap or repetition.
5. TREE        the hashes of these rows, between the hashes of what lies left and right of them,
               lead to the signed root: no row was changed, added, left out or moved.
6. POLICY      the rows begin and end where the question did. The pack holds one row more at each
               end (unless the log ends there), and its time must lie outside of what was asked;
               what has no time lies outside, unless no times were asked for.
7. CONTENT     each row is an audit row, all are of one tenant. What fails here and in step 8 was
               wrong when it was sealed: it is evidence of that, and nobody has touched the pack.
8. PAIRS       an invocation has a started row and later a completed one. One that lacks the other
               is reported; it fails only where the pack must hold it.

WHAT IS NOT PROVEN.  ``manifest.json`` and ``policy.json`` are not signed. What follows from the
rows is checked; who asked when, and with which version, are claims. A row's time is its writer's
clock, and a row may be stored long after it. So whoever knows the log could end a pack early where
a row with another time happens to lie. To rule that out, ask for a pack without times, which holds
the whole log. Rows sealed after the checkpoint are not covered; its size says where it ends.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import re
import stat
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

FORMAT: Final = "audit-evidence-pack/1"
#: Every file of a pack, and nothing else. The rows are one a line, byte for byte as stored; beside
#: them "index hash" a line; the proof has "first-index how-many hash" a line, left then right.
#: No audit row holds a line feed. What was sealed and does is written as ENCODED and its base64;
#: so is what begins like that by itself.
ROWS, HASHES, PROOF = "rows.jsonl", "hashes.txt", "range-proof.txt"
MANIFEST, POLICY, CHECKPOINT = "manifest.json", "policy.json", "checkpoint"
FILES: Final = (
    *("README.txt", MANIFEST, POLICY, CHECKPOINT, "keys", ROWS, HASHES, PROOF, "verify_pack.py"),
)
POLICY_FIELDS: Final = frozenset({"tenant", "since", "until", "exported_at", "version"})

MAX_SMALL: Final = 1 << 20  # bytes of any file but rows and hashes
MAX_ROW: Final = 65_535
ENCODED: Final = b"base64:"
MAX_LINE: Final = len(ENCODED) + -(-MAX_ROW // 3) * 4
MAX_LISTED: Final = 100  # bytes of a line of hashes
MAX_FINDINGS: Final = 20  # then reading stops
MAX_OPEN: Final = 1_000_000  # invocations that wait for their completed row
_CHUNK: Final = 1 << 16

STARTED, COMPLETED = "skill.invoked_started", "skill.invoked_completed"


class Step(StrEnum):
    """The steps of the docstring."""

    CONTAINER = "container"
    CHECKPOINT = "checkpoint"
    MANIFEST = "manifest"
    ROWS = "rows"
    TREE = "tree"
    POLICY = "policy"
    CONTENT = "content"
    PAIRS = "pairs"


class PackError(Exception):
    """The pack is so wrong that nothing behind this step can be checked."""

    def __init__(self, step: Step, text: str) -> None:
        super().__init__(text)
        self.step = step


class KeyTextError(ValueError):
    """The text of a key is none."""


@dataclass(slots=True)
class Report:
    """What came out: ``findings`` do not hold, ``facts`` and ``notes`` are to be read."""

    facts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    findings: list[tuple[Step, str]] = field(default_factory=list)
    _as_sealed: dict[Step, int] = field(default_factory=dict, init=False)

    def find(self, step: Step, text: str) -> None:
        self.findings.append((step, text))

    def find_as_sealed(self, step: Step, text: str) -> None:
        """What was wrong when it was sealed stops no reading: the first are named, all counted."""
        self._as_sealed[step] = count = self._as_sealed.get(step, 0) + 1
        if count <= MAX_FINDINGS:
            self.find(step, text)

    def count_the_rest(self) -> None:
        for step, count in self._as_sealed.items():
            if count > MAX_FINDINGS:
                self.find(step, f"further findings of this kind: {count - MAX_FINDINGS}")

    @property
    def passed(self) -> bool:
        return not self.findings

    def lines(self) -> Iterator[str]:
        yield from self.facts
        yield from (f"note: {note}" for note in self.notes)
        yield from (f"FINDING ({step}): {text}" for step, text in self.findings)
        yield "PASS: everything holds" if self.passed else "FAIL: do not rely on this pack"


# --- 1. container ---------------------------------------------------------------------------------


class _Frugal(io.FileIO):
    """A file of which nobody reads much at once, whatever its own tables ask for."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = MAX_SMALL + 1
        if size > MAX_SMALL + 1:
            raise PackError(Step.CONTAINER, "the zip has a table of contents of absurd size")
        return super().read(size) or b""


class Archive:
    """The files of a pack, read piece by piece; each one's SHA-256 is kept when it was read."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.sha256: dict[str, str] = {}
        self.sizes = {info.orig_filename: info.file_size for info in archive.infolist()}
        names = [info.orig_filename for info in archive.infolist()]
        for info in archive.infolist():
            self._check(info, names.count(info.orig_filename))
        if missing := [name for name in FILES if name not in names]:
            raise PackError(Step.CONTAINER, f"files are missing: {', '.join(missing)}")

    @staticmethod
    def _check(info: zipfile.ZipInfo, times: int) -> None:
        name, kind = info.orig_filename, stat.S_IFMT(info.external_attr >> 16)
        if name not in FILES:
            raise PackError(Step.CONTAINER, f"{name[:80]!r} does not belong into a pack")
        if times > 1:
            raise PackError(Step.CONTAINER, f"{name} is there twice")
        if kind not in (0, stat.S_IFREG) or info.flag_bits & 1:
            raise PackError(Step.CONTAINER, f"{name} is a link or encrypted, not a plain file")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise PackError(Step.CONTAINER, f"{name} is packed in another way than packs are")
        if name not in (ROWS, HASHES) and info.file_size > MAX_SMALL:
            raise PackError(Step.CONTAINER, f"{name} is too large")

    def chunks(self, name: str) -> Iterator[bytes]:
        digest = hashlib.sha256()
        with self._archive.open(name) as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                yield chunk
        self.sha256[name] = digest.hexdigest()

    def small(self, name: str) -> bytes:
        return b"".join(self.chunks(name))

    def lines(self, name: str, longest: int) -> Iterator[bytes]:
        rest = b""
        for chunk in self.chunks(name):
            *whole, rest = (rest + chunk).split(b"\n")
            if any(len(line) > longest for line in (*whole, rest)):
                raise PackError(Step.ROWS, f"{name} has a line longer than {longest} bytes")
            yield from whole
        if rest:
            raise PackError(Step.ROWS, f"{name} ends within a line")

    def document(self, name: str, step: Step, fields: frozenset[str]) -> dict[str, Any]:
        """A JSON object with exactly these fields, each once."""
        try:
            found = json.loads(self.small(name), object_pairs_hook=_members)
        except (ValueError, RecursionError):
            raise PackError(step, f"{name} is no JSON, or has a field twice") from None
        if not isinstance(found, dict) or found.keys() != fields:
            raise PackError(step, f"{name} must have exactly these fields: {sorted(fields)}")
        return found


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError
    return members


#: What the standard library raises over a zip that is none: ValueError and such from its tables.
_BROKEN: Final = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError),
    *(OSError, ValueError, OverflowError),
)


@contextmanager
def _opened(path: Path) -> Iterator[Archive]:
    """The pack; whatever is wrong with the zip itself is a finding, and no crash."""
    try:
        with _Frugal(path) as file, zipfile.ZipFile(file) as archive:
            yield Archive(archive)
    except _BROKEN as error:
        raise PackError(Step.CONTAINER, f"this is no sound zip: {str(error)[:120]!r}") from error


# --- 2. checkpoint --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """A public key of C2SP signed-note, ``name+id+base64(0x01, 32 bytes of Ed25519)``."""

    name: str
    public: bytes

    @classmethod
    def parse(cls, text: str) -> Key:
        name, _, rest = text.strip().partition("+")
        given_id, _, material = rest.partition("+")
        raw = _unbase64(material)
        if not name or raw is None or len(raw) != 33 or raw[0] != 1:
            raise KeyTextError("a verifier key reads name+id+base64, for Ed25519")
        key = cls(name, raw[1:])
        if key.id_under(name).hex() != given_id:
            raise KeyTextError("the verifier key is damaged: its id does not fit the rest")
        return key

    def id_under(self, name: str) -> bytes:
        return hashlib.sha256(name.encode() + b"\n\x01" + self.public).digest()[:4]

    def has_signed(self, text: bytes, signature: bytes) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, text)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class Checkpoint:
    origin: str
    size: int
    root: bytes


def check_checkpoint(raw: bytes, keys: Sequence[Key]) -> Checkpoint:
    """The checkpoint, if one of your keys has signed it under the name of its log."""
    text, _, signatures = raw.rpartition(b"\n\n")
    checkpoint = _parsed_checkpoint(text)
    if checkpoint is None:
        raise PackError(Step.CHECKPOINT, "it is no signed checkpoint")
    origin = checkpoint.origin
    # A ledger has a log for each tenant, all signed with the ledger's key: by their own names.
    ours = [key for key in keys if origin == key.name or origin.startswith(f"{key.name}/")]
    wanted = {(origin, key.id_under(origin)): key for key in ours}
    good = 0
    for name, key_id, signature in _signature_lines(signatures):
        if (key := wanted.get((name, key_id))) is not None:
            if not key.has_signed(text + b"\n", signature):
                raise PackError(Step.CHECKPOINT, "the signature by your key does not hold")
            good += 1
    if not good:
        raise PackError(Step.CHECKPOINT, f"your key has not signed it; it is of the log {origin}")
    return checkpoint


def _parsed_checkpoint(text: bytes) -> Checkpoint | None:
    try:
        lines = text.decode().split("\n")
    except UnicodeDecodeError:
        return None
    root = _unbase64(lines[2]) if len(lines) > 2 else None
    size = _decimal(lines[1]) if len(lines) > 2 else None
    if root is None or size is None or not lines[0].isprintable():
        return None
    return Checkpoint(lines[0], size, root)


def _signature_lines(block: bytes) -> Iterator[tuple[str, bytes, bytes]]:
    for line in block.decode(errors="replace").split("\n"):
        dash, _, rest = line.partition(" ")
        name, _, base64_text = rest.partition(" ")
        if dash == "\N{EM DASH}" and (raw := _unbase64(base64_text)) is not None:
            yield name, raw[:4], raw[4:]


def _unbase64(text: str) -> bytes | None:
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return raw if base64.b64encode(raw).decode() == text else None


def _decimal(text: str) -> int | None:
    return int(text) if re.fullmatch("0|[1-9][0-9]{0,18}", text, re.ASCII) else None


# --- 3. manifest ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the pack says of itself; nothing of it is believed before it is compared."""

    format: str
    origin: str
    ledger_size: int
    root: str
    first_index: int
    last_index: int
    rows: int
    files: dict[str, str]

    @classmethod
    def read(cls, archive: Archive) -> Manifest:
        given = archive.document(MANIFEST, Step.MANIFEST, frozenset(cls.__slots__))
        counts = ("ledger_size", "first_index", "last_index", "rows")
        if any(type(given[name]) is not int or given[name] < 0 for name in counts):
            raise PackError(Step.MANIFEST, f"these must be counts: {', '.join(counts)}")
        if not isinstance(given["files"], dict):
            raise PackError(Step.MANIFEST, "files must give a SHA-256 for each name")
        return cls(**given)

    def check(self, checkpoint: Checkpoint) -> None:
        """Raise unless it agrees with the checkpoint and with itself, field by field."""
        expected = {
            "format": FORMAT,
            "origin": checkpoint.origin,
            "ledger_size": checkpoint.size,
            "root": checkpoint.root.hex(),
        }
        for name, value in expected.items():
            if getattr(self, name) != value:
                raise PackError(
                    Step.MANIFEST, f"{name} does not agree with the checkpoint: {value}"
                )
        if self.rows != self.last_index - self.first_index + 1 or not self.rows:
            text = "first_index, last_index and rows do not agree, or there are no rows: no proof"
            raise PackError(Step.MANIFEST, text)
        if self.last_index >= checkpoint.size:
            raise PackError(Step.MANIFEST, "last_index lies outside of the ledger")

    def check_files(self, sha256: dict[str, str], report: Report) -> None:
        for name in FILES:
            if name != MANIFEST and self.files.get(name) != sha256.get(name):
                report.find(Step.MANIFEST, f"the SHA-256 of {name} is not the one in {MANIFEST}")
        if self.files.keys() != set(FILES) - {MANIFEST}:
            report.find(Step.MANIFEST, "files does not name exactly the files of the pack")


# --- 4. rows, 6. policy, 7. content, 8. pairs: in one pass, as the rows come ----------------------


@dataclass(frozen=True, slots=True)
class Policy:
    """What was asked for. ``since`` is inclusive, ``until`` exclusive; ``None`` has no limit."""

    since: datetime | None
    until: datetime | None

    @classmethod
    def read(cls, archive: Archive, origin: str, report: Report) -> Policy:
        given = archive.document(POLICY, Step.POLICY, POLICY_FIELDS)
        if given["tenant"] != origin.rpartition("/")[2]:
            report.find(Step.POLICY, "tenant is not the pseudonym in the name of the log")
        for name in ("exported_at", "version"):
            if not isinstance(given[name], str) or not given[name].isprintable():
                raise PackError(Step.POLICY, f"{name} must be a text")
        _moment(given["exported_at"], "exported_at")
        policy = cls(*(_moment(given[name], name) for name in ("since", "until")))
        spans = [f"{name} {given[name]}" for name in ("since", "until") if given[name] is not None]
        report.facts.append(f"asked for: {', '.join(spans) or 'the whole log'}")
        report.facts.append(f"claimed: exported {given['exported_at']} by {given['version']}")
        return policy

    def covers(self, document: Any) -> bool:
        """Whether the time of a row lies within; what has none does where no times were asked."""
        if self.since is None and self.until is None:
            return True
        try:
            moment = datetime.fromisoformat(document["ts"])
            return not (self.since and moment < self.since) and not (
                self.until and self.until <= moment
            )
        except (ValueError, TypeError, KeyError):
            return False


def _moment(text: object, name: str) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or not str(text).isprintable():
        raise PackError(Step.POLICY, f"{name} must be a time with its zone")
    return moment


@dataclass(slots=True)
class Reader:
    """Reads the rows once, and keeps only what the checks behind it need."""

    manifest: Manifest
    policy: Policy
    report: Report
    tree: Tree
    first: int = 0  # index of the first and last row in what was asked for, and how many
    last: int = 0
    count: int = 0
    wrong: int = 0  # rows that are not those listed
    tenant: object = None
    opened: dict[str, int] = field(default_factory=dict)
    unopened: int = 0

    def read(self, archive: Archive) -> None:
        listed, first = archive.lines(HASHES, MAX_LISTED), self.manifest.first_index
        at = -1
        for at, (row, line) in enumerate(zip_longest(archive.lines(ROWS, MAX_LINE), listed)):
            if row is None or line is None or at >= self.manifest.rows:
                short = ROWS if row is None else HASHES if line is None else MANIFEST
                raise PackError(Step.ROWS, f"{short} ends after {at} rows, another file does not")
            self._take(first + at, row_of(row), line)
            if self.wrong >= MAX_FINDINGS:
                raise PackError(Step.ROWS, "too many findings; the rest was not read")
        if at + 1 != self.manifest.rows:
            raise PackError(Step.ROWS, f"the pack has {at + 1} rows, not {self.manifest.rows}")

    def _take(self, index: int, row: bytes, line: bytes) -> None:
        leaf = hashlib.sha256(b"\x00" + row).digest()
        name, _, listed = line.decode(errors="replace").partition(" ")
        if name != str(index):
            self._find(f"{HASHES} names {name[:20]!r} where row {index} belongs: missing or twice")
        if listed != leaf.hex():
            self._find(f"row {index} is not the one that was sealed: changed, moved or left out")
        self.tree.add(0, leaf)
        document = document_of(row)
        if self.policy.covers(document):
            self.first, self.last = self.first if self.count else index, index
            self.count += 1
        self._content(index, document, sealed=listed == leaf.hex())

    def _content(self, index: int, document: Any, *, sealed: bool) -> None:
        try:
            kind, payload = document["kind"], document["payload"]
            if datetime.fromisoformat(document["ts"]).tzinfo is None:
                raise ValueError  # it lies outside of whatever is asked, so it has to be told
            tenant, request_id = payload["tenant_id"], str(payload["request_id"])
        except (ValueError, TypeError, KeyError):
            if sealed:  # else it was told already
                self.report.find_as_sealed(Step.CONTENT, f"row {index} is no audit row")
            return
        if self.tenant not in (None, tenant):
            text = f"row {index} is of another tenant than the rows before it"
            self.report.find_as_sealed(Step.CONTENT, text)
        self.tenant = tenant
        self._pair(index, kind, request_id)

    def _pair(self, index: int, kind: str, request_id: str) -> None:
        if kind == STARTED:
            if request_id in self.opened or len(self.opened) >= MAX_OPEN:
                text = f"row {index}: started twice, or too many without a completed row"
                self.report.find_as_sealed(Step.PAIRS, text)
            else:
                self.opened[request_id] = index
        elif kind == COMPLETED and self.opened.pop(request_id, None) is None:
            self.unopened += 1
            if self.manifest.first_index == 0:
                text = f"row {index} is a completed row without a started one before it"
                self.report.find_as_sealed(Step.PAIRS, text)

    def _find(self, text: str) -> None:
        self.wrong += 1
        self.report.find(Step.ROWS, text)

    def check_range(self) -> None:
        """The rows begin and end where the question did, or one row outside of it."""
        first, last, count = self.first, self.last, self.count
        begin, end = self.manifest.first_index, self.manifest.last_index
        if not count:
            self.report.find(Step.POLICY, "no row lies in what was asked for: this proves nothing")
            return
        if first != begin + 1 and not first == begin == 0:
            text = f"rows may be left out in front: row {begin} does not lie just outside"
            self.report.find(Step.POLICY, f"{text} of what was asked for")
        if last != end - 1 and not last == end == self.manifest.ledger_size - 1:
            text = f"rows may be left out at the end: row {end} does not lie just outside"
            self.report.find(Step.POLICY, f"{text} of what was asked for")
        self.report.facts.append(f"rows asked for: {count}, from index {first} to {last}")
        if between := last - first + 1 - count:
            self.report.notes.append(f"rows between them with other times: {between}")

    def note_pairs(self) -> None:
        self.report.count_the_rest()
        waiting = list(self.opened.items())
        for request_id, index in waiting[:MAX_FINDINGS]:
            text = f"row {index} is a started row without a completed one in this pack"
            self.report.notes.append(f"{text}: {request_id[:80]!r}")
        if len(waiting) > MAX_FINDINGS:
            self.report.notes.append(f"started rows without a completed one, all: {len(waiting)}")
        if self.unopened:
            text = f"completed rows whose started row lies before this pack: {self.unopened}"
            self.report.notes.append(text)


def row_of(line: bytes) -> bytes:
    """The stored bytes that a line stands for."""
    encoded = line.removeprefix(ENCODED) if line.startswith(ENCODED) else None
    row = None if encoded is None else _unbase64(encoded.decode(errors="replace"))
    return line if row is None else row


def document_of(row: bytes) -> Any:
    """What the bytes of a row say; ``None`` where they are no JSON."""
    try:
        return json.loads(row)
    except (ValueError, RecursionError):
        return None


# --- 5. tree --------------------------------------------------------------------------------------


class Tree:
    """The tree of RFC 6962, section 2.1, built from left to right out of complete subtrees."""

    def __init__(self) -> None:
        self._peaks: list[tuple[int, bytes]] = []  # level and hash, the largest first

    def add(self, level: int, node: bytes) -> None:
        while self._peaks and self._peaks[-1][0] == level:  # two of a size are one of twice that
            node = hashlib.sha256(b"\x01" + self._peaks.pop()[1] + node).digest()
            level += 1
        self._peaks.append((level, node))

    def root(self) -> bytes:
        *left, (_, node) = self._peaks
        for _, peak in reversed(left):
            node = hashlib.sha256(b"\x01" + peak + node).digest()
        return node


def pieces(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Start and level of the fewest complete subtrees over the rows ``start`` to ``end - 1``."""
    while start < end:
        level = (end - start).bit_length() - 1
        if start:
            level = min(level, (start & -start).bit_length() - 1)
        yield start, level
        start += 1 << level


def read_proof(archive: Archive, manifest: Manifest) -> tuple[list[tuple[int, bytes]], ...]:
    """Levels and hashes of what lies left and right of the rows."""
    lines = list(archive.lines(PROOF, MAX_LISTED))
    first, end = manifest.first_index, manifest.last_index + 1
    left, right = list(pieces(0, first)), list(pieces(end, manifest.ledger_size))
    nodes = []
    for (start, level), line in zip_longest([*left, *right], lines, fillvalue=(-1, 0)):
        head = f"{start} {1 << level} ".encode()
        if not isinstance(line, bytes) or not re.fullmatch(
            re.escape(head) + rb"[0-9a-f]{64}", line
        ):
            raise PackError(Step.TREE, f"{PROOF} is not the proof for these rows, or is cut")
        nodes.append((level, bytes.fromhex(line[-64:].decode())))
    return nodes[: len(left)], nodes[len(left) :]


# --- all of it ------------------------------------------------------------------------------------


def verify(path: Path, keys: Sequence[Key]) -> Report:
    """Check a pack against your keys; never raises for anything that is wrong with the pack."""
    report = Report()
    try:
        with _opened(path) as archive:
            _verify(archive, keys, report)
    except PackError as error:
        report.find(error.step, str(error))
    return report


def _verify(archive: Archive, keys: Sequence[Key], report: Report) -> None:
    checkpoint = check_checkpoint(archive.small(CHECKPOINT), keys)
    report.facts.append(f"log {checkpoint.origin}: {checkpoint.size} rows, signed by your key")
    manifest = Manifest.read(archive)
    manifest.check(checkpoint)
    policy = Policy.read(archive, checkpoint.origin, report)
    for name in ("README.txt", "keys", "verify_pack.py"):
        archive.small(name)
    left, right = read_proof(archive, manifest)
    tree = Tree()
    for level, node in left:
        tree.add(level, node)
    reader = Reader(manifest, policy, report, tree)
    reader.read(archive)
    for level, node in right:
        tree.add(level, node)
    if tree.root() != checkpoint.root:
        text = "these rows do not lead to the signed root: changed, added, left out or moved"
        report.find(Step.TREE, text)
    manifest.check_files(archive.sha256, report)
    reader.check_range()
    reader.note_pairs()


def read_keys(text: str) -> list[Key]:
    """The key of a text, or those of a file, one a line."""
    if "+" not in text:
        text = Path(text).read_text(encoding="utf-8")
    return [Key.parse(line) for line in text.splitlines() if line.strip()]


def main(arguments: Sequence[str] | None = None, write: Callable[[str], Any] | None = None) -> int:
    write = write or sys.stdout.write
    parser = argparse.ArgumentParser(
        description="Verify an evidence pack; see the top of the file."
    )
    parser.add_argument("pack", type=Path)
    parser.add_argument("--key", action="append", required=True, help="verifier key, or its file")
    given = parser.parse_args(arguments)  # leaves with 2 on wrong usage
    try:
        keys = [key for text in given.key for key in read_keys(text)]
    except (OSError, ValueError) as error:
        parser.error(f"--key: {error}")
    if not given.pack.is_file():
        parser.error(f"{given.pack} is no file")
    report = verify(given.pack, keys)
    for line in report.lines():
        write(f"{line}\n")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
