"""What checkpoints claim of a log: read, judged by the known keys, and held against one another.

What is guaranteed: a claim counts as trusted only where a known key of the log has signed it under
the log's own origin; one that is not is a finding and is never held against a trusted one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from audit.errors import CheckpointError, NoteError, NoteSignatureError
from audit.ledger.checkpoint import Checkpoint, open_checkpoint
from audit.ledger.finding import Finding, Kind, Source
from audit.ledger.note import Note
from audit.ledger.note_key import Algorithm, VerifierKey


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose signatures count.

    Attributes:
        keys: of the log's signers, under any name, and of witnesses under their own.
        prefix: what the origins of all logs begin with; ``None`` where that is not known.
    """

    keys: tuple[VerifierKey, ...]
    prefix: str | None = None

    def of_log(self, origin: str) -> list[VerifierKey]:
        """Keys in the name of the log, each once."""
        signers = (key for key in self.keys if key.algorithm is Algorithm.ED25519)
        return list(dict.fromkeys(key.renamed(origin) for key in signers))

    def witnesses(self) -> list[VerifierKey]:
        return list(
            dict.fromkeys(key for key in self.keys if key.algorithm is Algorithm.COSIGNATURE)
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """That a log has a root at a size.

    Attributes:
        source: who says so.
        name: where it stands, for people.
        size: of the tree.
        root: of the tree.
        trusted: whether a known key of the log has signed it.
        cosigned: whether a known witness has.
    """

    source: Source
    name: str
    size: int
    root: bytes
    trusted: bool = True
    cosigned: bool = False


@dataclass(frozen=True, slots=True)
class Claimed:
    """A checkpoint that was read: what it claims, if it can be read, and what is wrong with it."""

    claim: Claim | None
    finding: Finding | None = None


def read_claim(raw: bytes, log: str, source: Source, name: str, trust: Trust) -> Claimed:
    """The claim of a signed checkpoint about ``log``."""
    try:
        stated = Checkpoint.parse(Note.parse(raw).text)
    except (NoteError, CheckpointError) as error:
        return Claimed(None, _finding(Kind.MALFORMED, source, log, f"{name}: {error}"))
    unproven = Claim(source, name, stated.size, stated.root, trusted=False)
    try:
        _check_origin(stated.origin, log, trust)
        opened = open_checkpoint(raw, stated.origin, trust.of_log(stated.origin), trust.witnesses())
    except NoteSignatureError as error:
        text = f"{name}: {error}"
        return Claimed(unproven, _finding(Kind.UNTRUSTED, source, log, text, stated.size))
    except (NoteError, CheckpointError) as error:
        text = f"{name}: {error}"
        return Claimed(None, _finding(Kind.UNTRUSTED, source, log, text, stated.size))
    return Claimed(Claim(source, name, stated.size, stated.root, True, bool(opened.cosigned)))


def log_of(raw: bytes) -> str | None:
    """The pseudonym of the log that a checkpoint names, whoever signed it."""
    try:
        return Checkpoint.parse(Note.parse(raw).text).origin.rpartition("/")[2]
    except (NoteError, CheckpointError):
        return None


def size_of(raw: bytes) -> int:
    """The size that a checkpoint states, whoever signed it; -1 of what is none."""
    try:
        return Checkpoint.parse(Note.parse(raw).text).size
    except (NoteError, CheckpointError):
        return -1


def rollbacks(log: str, held: Sequence[Claim], newest: Claim) -> Iterator[Finding]:
    """Claims of what has to be up to date that are older than the newest one."""
    for claim in held:
        if claim.trusted and newest.trusted and claim.size < newest.size:
            text = (
                f"{claim.name} is of {claim.size:,} rows, {newest.name} of {newest.size:,}:"
                " somebody took it back, or the sealer has not gone on since a crash"
            )
            yield _finding(Kind.ROLLBACK, claim.source, log, text, claim.size)


def forks(log: str, claims: Sequence[Claim]) -> Iterator[tuple[Claim, Finding]]:
    """Trusted claims of one size with different roots."""
    first: dict[int, Claim] = {}
    for claim in claims:
        if claim.trusted and first.setdefault(claim.size, claim).root != claim.root:
            yield claim, fork(log, claim, first[claim.size].name)


def fork(log: str, claim: Claim, other: str) -> Finding:
    """The finding that a claim is of another history than the rest."""
    text = f"{claim.name} has another root at {claim.size:,} rows than {other}: two histories"
    return _finding(Kind.FORK, claim.source, log, text, claim.size)


def _check_origin(origin: str, log: str, trust: Trust) -> None:
    expected = f"{trust.prefix}/{log}" if trust.prefix else origin
    if origin != expected or origin.rpartition("/")[2] != log:
        raise CheckpointError(f"the checkpoint is of another log, {origin}")


def _finding(kind: Kind, source: Source, log: str, text: str, index: int | None = None) -> Finding:
    return Finding(kind=kind, source=source, log=log, index=index, text=text)
