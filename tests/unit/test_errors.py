"""audit/errors.py: one tree, whose members survive Celery's way of carrying errors as JSON."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator

import pytest
from celery import Celery

from audit import errors
from audit.errors import (
    AuditEmitFailed,
    AuditError,
    CanonicalizationError,
    RowRefusedError,
)


def below(root: type[AuditError]) -> Iterator[type[AuditError]]:
    yield root
    for child in root.__subclasses__():
        yield from below(child)


TREE = [kind for kind in below(AuditError) if kind.__module__ == errors.__name__]
ARGUMENTS: dict[type[AuditError], tuple[str, ...]] = {
    AuditEmitFailed: ("completed", "the store did not answer"),
    CanonicalizationError: ("$.alert.labels[3]", "is NaN"),
    RowRefusedError: ("no started row", "01JDVZ3W4M0000000000000000"),
}


def example(kind: type[AuditError]) -> AuditError:
    return kind(*ARGUMENTS.get(kind, ("what is wrong and what to do",)))


def test_every_error_of_the_module_is_an_audit_error() -> None:
    """One ``except AuditError`` catches whatever the audit raises on purpose."""
    defined = {
        value
        for value in vars(errors).values()
        if isinstance(value, type)
        and issubclass(value, BaseException)
        and value.__module__ == errors.__name__
    }
    assert defined == set(TREE)


def test_the_docstring_draws_the_whole_tree() -> None:
    """Each error stands in the tree of the module's docstring, below its parent."""
    lines = (errors.__doc__ or "").partition("::\n")[2].splitlines()
    trail: list[str] = []
    drawn: dict[str, str | None] = {}
    for line in lines:
        words = line.strip("│├└─ ").split()
        if not words or not words[0].isidentifier() or not hasattr(errors, words[0]):
            continue
        depth = (len(line) - len(line.lstrip("│├└─ "))) // 4
        trail[depth - 1 :] = [words[0]]
        drawn[words[0]] = trail[-2] if len(trail) > 1 else None
    assert drawn == {
        kind.__name__: None if kind is AuditError else kind.__bases__[0].__name__ for kind in TREE
    }


@pytest.mark.parametrize("kind", TREE)
def test_an_error_is_built_again_from_its_arguments(kind: type[AuditError]) -> None:
    """``type(error)(*error.args)`` has the same text and attributes, and so has a pickled one."""
    error = example(kind)
    for again in (kind(*error.args), pickle.loads(pickle.dumps(error))):  # noqa: S301
        assert type(again) is kind
        assert str(again) == str(error)
        assert vars(again) == vars(error)


@pytest.mark.parametrize("kind", TREE)
def test_arguments_are_plain_strings(kind: type[AuditError]) -> None:
    """They pass through JSON unchanged."""
    error = example(kind)
    assert json.loads(json.dumps(error.args)) == list(error.args)
    assert all(type(argument) is str for argument in error.args)


@pytest.mark.parametrize("kind", TREE)
def test_an_error_survives_celery(kind: type[AuditError]) -> None:
    """What Celery's result backend stores as JSON comes back as the same error at the caller."""
    backend = Celery("errors", backend="cache+memory://").backend
    error = example(kind)
    carried = json.loads(json.dumps(backend.prepare_exception(error, "json")))
    again = backend.exception_to_python(carried)
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("kind", TREE)
def test_an_error_needs_no_arguments(kind: type[AuditError]) -> None:
    """Whoever makes one without a text gets an error, not a TypeError about it."""
    assert isinstance(str(kind()), str)


def test_http_statuses() -> None:
    """A gateway answers 503 where the memory is out of reach, 4xx where the caller can mend it."""
    statuses = {kind.__name__: kind.http_status for kind in TREE}
    assert statuses == {
        "AuditError": 500,
        "AuditEmitFailed": 503,
        "BodyExcludedError": 500,
        "CanonicalizationError": 400,
        "SkillArgumentsError": 400,
        "SkillDefinitionError": 500,
        "ScheduleDefinitionError": 500,
        "InvocationError": 400,
        "MissingInvocationContext": 400,
        "InvalidInvocationContext": 400,
        "UnprovenContextError": 403,
        "ExpiredContextError": 403,
        "PoisonedMessageError": 500,
        "TickTakenError": 409,
        "NotStartedError": 500,
        "RowError": 500,
        "SettingsError": 500,
        "SpoolError": 500,
        "CopyError": 500,
        "EmbeddedServerError": 500,
        "LedgerError": 500,
        "ProofError": 500,
        "NoteError": 500,
        "NoteKeyError": 500,
        "NoteSignatureError": 500,
        "CheckpointError": 500,
        "EvidenceError": 500,
        "LedgerKeyError": 500,
        "LedgerDamagedError": 500,
        "LedgerRaceError": 500,
        "WitnessError": 500,
        "WitnessRefusalError": 500,
        "TileError": 500,
        "TileMissingError": 500,
        "TileConflictError": 500,
        "EntryTooLargeError": 500,
        "AuditMemoryError": 503,
        "MemoryUrlError": 503,
        "MemoryUnavailableError": 503,
        "MemoryUnsuitableError": 503,
        "MemoryDamagedError": 503,
        "RowRefusedError": 409,
    }


@pytest.mark.parametrize(
    ("stage", "effect"),
    [("start", "the skill did not run"), ("completed", "the skill's effect stands")],
)
def test_a_failed_emit_says_whether_the_skill_ran(stage: str, effect: str) -> None:
    """Stage and reason are attributes, and the text says what became of the effect."""
    error = AuditEmitFailed(stage, "no answer within 2 s")
    assert (error.stage, error.reason) == (stage, "no answer within 2 s")
    assert effect in str(error)
    assert "no answer within 2 s" in str(error)


@pytest.mark.parametrize(
    ("kind", "standard"),
    [
        (errors.CanonicalizationError, ValueError),
        (errors.SkillArgumentsError, TypeError),
        (errors.InvalidInvocationContext, ValueError),
        (errors.RowError, ValueError),
        (errors.SettingsError, ValueError),
        (errors.MemoryUrlError, ValueError),
    ],
)
def test_some_errors_are_standard_ones_too(
    kind: type[AuditError], standard: type[Exception]
) -> None:
    """Callers that catch Python's own error for such a fault keep working."""
    assert issubclass(kind, standard)
