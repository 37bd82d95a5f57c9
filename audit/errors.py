"""Every error of the audit, under one root.

::

    AuditError
    ├── AuditEmitFailed            the memory did not take the row in time (HTTP 503)
    ├── CanonicalizationError      a value has no RFC 8785 form (also a ValueError)
    ├── SkillArgumentsError        arguments do not fit the skill's signature (also a TypeError)
    ├── SkillDefinitionError       a skill without a version, with a bad id, ...
    │   └── ScheduleDefinitionError    an entry of a beat schedule that could not be audited
    ├── InvocationError
    │   ├── MissingInvocationContext   nobody said for whom the skill runs
    │   ├── InvalidInvocationContext   persona, tenant or trace is malformed (also a ValueError)
    │   ├── UnprovenContextError       nobody signed for this context, or somebody altered it
    │   │   └── ExpiredContextError    it was signed too long ago
    │   ├── PoisonedMessageError       too many workers died over the message
    │   ├── TickTakenError             another message of this tick of a schedule has started
    │   ├── BodyExcludedError          a skill failed whose body is excluded from every record
    │   └── NotStartedError            a delivered message reached the body without a started row
    ├── RowError                   a row breaks the published schema (also a ValueError)
    ├── SettingsError              an audit_* setting is unusable (also a ValueError)
    ├── SpoolError                 this host's disk does not keep a row
    ├── CopyError                  a tenant's rows cannot be copied as they are
    ├── EmbeddedServerError        no server binary to start, or it did not come up
    ├── LedgerError
    │   ├── ProofError             a Merkle proof is malformed or does not hold
    │   ├── NoteError              a signed note is malformed
    │   │   ├── NoteKeyError       the text of a key is malformed or damaged
    │   │   └── NoteSignatureError no trusted key signed the note, or one did and it does not verify
    │   ├── CheckpointError        a checkpoint is malformed, or of another log
    │   ├── EvidenceError          no proof or evidence pack can be made of what was asked for
    │   ├── LedgerKeyError         the keys of the ledger are missing, damaged, or open to others
    │   ├── LedgerDamagedError     what is sealed is not as it was left: sealing stops for that log
    │   ├── LedgerRaceError        somebody else has sealed the same rows just now
    │   ├── WitnessError           a witness is out of reach, or its answer is none
    │   │   └── WitnessRefusalError    it answers that it does not cosign
    │   └── TileError              a tile or an entry bundle is malformed or out of reach
    │       ├── TileMissingError   it is not there
    │       ├── TileConflictError  it is there with other bytes
    │       └── EntryTooLargeError a row is longer than an entry may be
    └── AuditMemoryError
        ├── MemoryUrlError         the URL names no memory we know (also a ValueError)
        ├── MemoryUnavailableError the store did not answer within the deadline
        │   └── MemoryDamagedError     it answers, but what it keeps of one tenant is not ours
        ├── MemoryUnsuitableError  the store answers, but may lose or evict rows
        └── RowRefusedError        the memory refused the row: it would break "close once"

The arguments of every error are plain strings, because Celery carries an error from the worker
to the caller as JSON and builds it again there from ``type(error)(*error.args)``.
"""

from __future__ import annotations

from typing import ClassVar, Final

_NO_CALLER: Final = (
    "no caller persona and tenant: publish inside `with acting_as(persona, tenant_id=...)`, or give"
    ' a beat entry options={"headers": InvocationContext(persona, tenant_id).headers()}'
)


class AuditError(Exception):
    """Root of every error the audit raises on purpose."""

    #: What an HTTP gateway answers when this error reaches it.
    http_status: ClassVar[int] = 500


class AuditEmitFailed(AuditError):
    """The audit memory did not make the row durable in time.

    At stage ``start`` the skill's body did not run; at stage ``completed`` it did, and its effect
    stands. Remedy: bring the memory back (``AUDIT_MEMORY_URL``), then call the skill again.

    Args:
        stage: ``"start"`` or ``"completed"``.
        reason: why the memory did not take the row, in words.
    """

    http_status = 503

    def __init__(self, stage: str = "start", reason: str = "") -> None:
        super().__init__(stage, reason)
        self.stage = stage
        self.reason = reason

    def __str__(self) -> str:
        effect = "the skill did not run" if self.stage == "start" else "the skill's effect stands"
        return f"audit row not emitted at stage {self.stage!r}, {effect}: {self.reason}"


class CanonicalizationError(AuditError, ValueError):
    """A value has no canonical form (RFC 8785), so it has no hash.

    The text names the place of the value (``$.alert.labels[3]``), never the value.

    Args:
        path: where in the document, ``$`` being the whole of it.
        reason: what is wrong there, without the value.
    """

    http_status = 400

    def __init__(self, path: str = "$", reason: str = "has no canonical form") -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"no canonical JSON form at {self.path}: {self.reason}"


class SkillArgumentsError(AuditError, TypeError):
    """The arguments do not fit the skill's signature. The text names parameters, never values."""

    http_status = 400


class SkillDefinitionError(AuditError):
    """A skill is declared in a way the host cannot audit; the text says what to change."""


class ScheduleDefinitionError(SkillDefinitionError):
    """A beat entry could not be audited; the text names it and says what to change."""


class InvocationError(AuditError):
    """An invocation may not begin."""

    http_status = 400


class MissingInvocationContext(InvocationError):
    """Nobody said who calls the skill and for which tenant.

    Remedy: publish inside ``with acting_as(persona, tenant_id=...)``, or give the entry of a
    beat schedule ``options={"headers": InvocationContext(...).headers()}``.
    """

    def __init__(self, text: str = _NO_CALLER) -> None:
        super().__init__(text)


class InvalidInvocationContext(InvocationError, ValueError):
    """Persona, tenant or another part of the context is malformed; the text says which."""


class UnprovenContextError(InvocationError):
    """The context of a message has no proof that holds (``audit_context_keys`` are set here).

    Remedy: whoever publishes needs a key that this host knows, for this tenant and persona, and
    publishes through the skill host; a message that something altered on its way is published anew.
    """

    http_status = 403


class ExpiredContextError(UnprovenContextError):
    """The context was proven, longer ago than ``audit_context_max_age``.

    Remedy: publish anew; where messages wait for longer than that, raise the setting.
    """


class NotStartedError(InvocationError):
    """A delivered message reached the body without a started row.

    Remedy: a skill class that overrides ``before_start`` must call ``super().before_start(...)``.
    """

    http_status = 500


class PoisonedMessageError(InvocationError):
    """Too many workers died over this message, so no other one runs it (``audit_max_deaths``)."""

    http_status = 500


class TickTakenError(InvocationError):
    """Another message of the same tick has started, and its entry says ``once_per_tick``.

    Nothing is to be done: the tick runs, once. Where it happens at every tick, two beats send.
    """

    http_status = 409


class BodyExcludedError(InvocationError):
    """A skill failed whose body is excluded (``body_excluded=True``), so its error is withheld.

    Args:
        kind: the class of the error.
        request_id: the invocation; its completed row says how it ended.
    """

    http_status = 500

    def __init__(self, kind: str = "", request_id: str = "") -> None:
        super().__init__(kind, request_id)
        self.kind = kind
        self.request_id = request_id

    def __str__(self) -> str:
        return f"{self.kind}, withheld because the skill's body is excluded: {self.request_id}"


class SpoolError(AuditError):
    """This host's disk does not keep a row; the text says what to do."""


class CopyError(AuditError):
    """The rows of a tenant cannot be copied into another memory as they are; the text says why.

    What was copied before stays, and a copy that is done again goes on behind it.
    """


class RowError(AuditError, ValueError):
    """A row breaks the published schema; the text says where."""


class SettingsError(AuditError, ValueError):
    """An ``audit_*`` setting (or its environment variable) has a value that cannot be used."""


class EmbeddedServerError(AuditError):
    """The embedded server could not be started; the text says what to install or set."""


class LedgerError(AuditError):
    """Root of the errors of the ledger."""


class ProofError(LedgerError):
    """A Merkle proof is malformed, or does not lead to the root it was given for."""


class NoteError(LedgerError):
    """A signed note breaks the format of C2SP signed-note; the text says where."""


class NoteKeyError(NoteError):
    """The text of a signer or verifier key is malformed or damaged; no text repeats any of it.

    Remedy: restore the key from its backup, or make a new one and let both overlap.
    """


class NoteSignatureError(NoteError):
    """No trusted key signed the note, or the signature of a trusted key does not verify."""


class CheckpointError(LedgerError):
    """A checkpoint breaks the format of C2SP tlog-checkpoint, or is that of another log."""


class EvidenceError(LedgerError):
    """No proof or evidence pack can be made of what was asked for; the text says why."""


class LedgerKeyError(LedgerError):
    """The keys of the ledger are missing, damaged, or open to others; no text repeats any of them.

    Remedy: restore them from their backup. Nothing is ever made in their place.
    """


class LedgerDamagedError(LedgerError):
    """Memory, checkpoint or tiles are not as the sealer left them: changed, or lost.

    Nothing was repaired. Remedy: run ``audit verify``, which says what is wrong and where, and put
    back what was lost (the folder ``AUDIT_LEDGER_DIR``, the memory) from a backup.
    """


class LedgerRaceError(LedgerError):
    """Somebody else has sealed the same rows just now; what they sealed stands.

    Remedy: none, the next round goes on from there. Where it comes back, two keepers seal one
    memory into folders of their own: give them one folder (``AUDIT_LEDGER_DIR``).
    """


class WitnessError(LedgerError):
    """A witness is out of reach, too slow, or its answer is none; it is asked again.

    Nothing waits for it: rows are sealed, and not cosigned for as long as that lasts.
    """


class WitnessRefusalError(WitnessError):
    """A witness answered that it does not cosign.

    Args:
        text: why not.
        disagrees: whether it has seen another tree of the log, or a larger one. Then this one was
            changed, cut or rolled back, or somebody else signs with its key: run ``audit verify``.
        seen: how many leaves the tree has that it has seen, where it says so; nobody has signed it.
    """

    def __init__(self, text: str = "", *, disagrees: bool = False, seen: int | None = None) -> None:
        super().__init__(text)
        self.disagrees = disagrees
        self.seen = seen


class TileError(LedgerError):
    """A tile or entry bundle breaks C2SP tlog-tiles, or its file cannot be read or written."""


class TileMissingError(TileError):
    """A tile that a tree of this size must have is not there; the text says which."""


class TileConflictError(TileError):
    """A tile is there already, with other bytes: what is sealed is never overwritten."""


class EntryTooLargeError(TileError):
    """A row is longer than the 65,535 bytes that an entry of a bundle may have."""


class AuditMemoryError(AuditError):
    """Root of the errors of the audit memory."""

    #: Whether a row may have been stored all the same, by a try before the one that failed so.
    maybe_stored: bool = False

    http_status = 503


class MemoryUrlError(AuditMemoryError, ValueError):
    """The URL names no memory that this version knows."""


class MemoryUnavailableError(AuditMemoryError):
    """The store did not answer, or refused the write, within the deadline.

    Args:
        text: what happened.
        maybe_stored: whether the row may have been stored all the same.
    """

    def __init__(self, text: str = "", *, maybe_stored: bool = False) -> None:
        super().__init__(text)
        self.maybe_stored = maybe_stored


class MemoryDamagedError(MemoryUnavailableError):
    """The store answers, but what it keeps of one tenant is damaged or out of reach.

    A key of another type, a value of another form: somebody else has written it. Other tenants are
    not concerned. Remedy: put it back from a backup; ``audit verify`` says what else is wrong.

    Args:
        text: what is wrong, without any value.
        maybe_stored: whether the row may have been stored all the same.
        tenant_id: whose; empty for the list of tenants.
    """

    def __init__(self, text: str = "", *, maybe_stored: bool = False, tenant_id: str = "") -> None:
        super().__init__(text, maybe_stored=maybe_stored)
        self.tenant_id = tenant_id


class MemoryUnsuitableError(AuditMemoryError):
    """The store answers but could lose or evict rows; the text says which setting to change."""


class RowRefusedError(AuditMemoryError):
    """The memory refused a row, because it would break the order or the once-ness of an invocation.

    Args:
        refusal: a word of :class:`audit.memory.base.RowRefusal`.
        request_id: the invocation concerned.
    """

    http_status = 409

    def __init__(self, refusal: str = "", request_id: str = "") -> None:
        super().__init__(refusal, request_id)
        self.refusal = refusal
        self.request_id = request_id

    def __str__(self) -> str:
        return f"the memory refused a row of invocation {self.request_id}: {self.refusal}"
