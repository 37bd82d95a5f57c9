"""audit/ledger/keys.py: what keys must hold, how they rotate, and that none is made anew."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.errors import LedgerKeyError
from audit.ledger import durable
from audit.ledger.keys import LedgerKeys, rotate_file, write_new
from audit.ledger.note import open_note, sign_note

NAME = "host.example"
ORIGIN = "host.example/0123"


def counter() -> Callable[[int], bytes]:
    """Random bytes that are not: each time others, each run the same."""
    calls = iter(range(1, 250))
    return lambda size: bytes([next(calls)]) * size


def make(rotations: int = 0) -> LedgerKeys:
    random = counter()
    keys = LedgerKeys.generate(NAME, random=random)
    for _ in range(rotations):
        keys = keys.rotated(random=random)
    return keys


@pytest.mark.parametrize("rotations", [0, 1, 2, 3])
def test_keys_are_read_as_they_were_written(rotations: int) -> None:
    """Signers, retired keys and secret, in their order; also from text that somebody has edited."""
    keys = make(rotations)
    assert LedgerKeys.parse(keys.to_text()) == keys
    edited = "# of the ledger\n\n" + keys.to_text().replace("\n", "  \r\n\r\n")
    assert LedgerKeys.parse(edited) == keys
    assert LedgerKeys.load(keys.to_text()) == keys


def test_a_log_is_signed_under_its_own_name() -> None:
    """Signers and verifiers of a log fit together, and their ids differ from the bare keys'."""
    keys = make(1)
    note = sign_note("text\n", *keys.signers_of(ORIGIN))
    assert len(open_note(note.to_bytes(), keys.verifiers_of(ORIGIN)).signatures) == 2
    assert {signature.name for signature in note.signatures} == {ORIGIN}
    assert {key.key_id for key in keys.verifiers}.isdisjoint(s.key_id for s in note.signatures)


def test_a_rotation_overlaps_with_the_one_before() -> None:
    """The new key signs first, the old one beside it; older ones verify only; one secret stays."""
    before, after, later = make(0), make(1), make(2)
    assert after.signers[1:] == before.signers
    assert after.retired == ()
    assert later.signers[1] == after.signers[0]
    assert later.retired == (before.signers[0].verifier,)
    assert before.signers[0].to_text() not in later.to_text()
    assert set(before.verifiers) < set(after.verifiers) < set(later.verifiers)
    assert before.secret == after.secret == later.secret


def test_generated_keys_differ() -> None:
    """Each ledger has a key and a secret of its own."""
    one, other = LedgerKeys.generate(NAME), LedgerKeys.generate(NAME)
    assert one.signers != other.signers
    assert one.secret != other.secret


def damaged() -> dict[str, str]:
    keys = make(1)
    text, first = keys.to_text(), keys.signers[0].to_text()
    secret = text.splitlines()[-1]
    return {
        "nothing": "",
        "no-signer": f"{keys.verifiers[0].to_text()}\n{secret}\n",
        "no-secret": text.replace(secret, ""),
        "two-secrets": f"{text}{secret}\n",
        "short-secret": text.replace(secret, "secret c2hvcnQ="),
        "secret-not-base64": text.replace(secret, "secret s3cr3t!"),
        "a-letter-changed": text.replace(
            first, first[:-3] + ("A" if first[-3] != "A" else "B") + first[-2:]
        ),
        "cut": text.replace(first, first[:-6]),
        "twice": f"{text}{first}\n",
        "retired-and-not": f"{text}{keys.signers[0].verifier.to_text()}\n",
        "words": f"{text}a line of words s3cr3t\n",
    }


@pytest.mark.parametrize("text", damaged().values(), ids=damaged().keys())
def test_damaged_keys_are_an_error_that_shows_none_of_them(text: str) -> None:
    """It says what to do; no key and no secret stands in it, and no error hangs on to one."""
    with pytest.raises(LedgerKeyError) as caught:
        LedgerKeys.parse(text)
    shown = str(caught.value)
    for word in text.split():
        assert len(word) < 12 or word not in shown
    assert "s3cr3t" not in shown


def test_a_repr_shows_no_secret() -> None:
    """Neither a seed nor the secret of the pseudonyms."""
    keys = make(2)
    shown = repr(keys)
    assert repr(keys.secret) not in shown
    assert all(repr(signer.seed) not in shown for signer in keys.signers)


@pytest.mark.parametrize("given", [None, ""])
def test_no_keys_at_all_say_how_to_make_them(given: str | None) -> None:
    """The text names the command and the variable."""
    with pytest.raises(LedgerKeyError, match=r"audit keygen -o FILE.*AUDIT_LEDGER_KEYS"):
        LedgerKeys.load(given)


def test_a_bad_name_is_refused() -> None:
    """A key's name has no spaces and no plus."""
    with pytest.raises(LedgerKeyError, match="without spaces"):
        LedgerKeys.generate("a b")


# --- files ----------------------------------------------------------------------------------------


def test_a_new_file_is_for_its_owner_alone_and_never_overwritten(tmp_path: Path) -> None:
    """Mode 0600; a second one of that name is an error and the first stays."""
    path = tmp_path / "keys"
    write_new(make(0), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert LedgerKeys.load(str(path)) == make(0)
    with pytest.raises(LedgerKeyError, match="never overwritten"):
        write_new(make(1), path)
    assert LedgerKeys.load(str(path)) == make(0)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """A key that was readable has to be taken for known."""
    path = tmp_path / "keys"
    write_new(make(0), path)
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(LedgerKeyError, match="chmod 600"):
            LedgerKeys.load(str(path))
        with pytest.raises(LedgerKeyError, match="chmod 600"):
            rotate_file(path)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"secret x\n"])
def test_a_file_that_is_none_is_an_error_and_stays(content: bytes | None, tmp_path: Path) -> None:
    """Missing or damaged: no key is made in its place, not by a rotation either."""
    path = tmp_path / "s3cr3t-keys"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    for use in (lambda: LedgerKeys.load(str(path)), lambda: rotate_file(path)):
        with pytest.raises(LedgerKeyError) as caught:
            use()
        assert "s3cr3t" not in str(caught.value)
    assert (path.read_bytes() if path.exists() else None) == content


def test_a_file_is_rotated_in_place(tmp_path: Path) -> None:
    """New signer first, mode 0600, nothing beside it."""
    path, random = tmp_path / "keys", counter()
    write_new(LedgerKeys.generate(NAME, random=random), path)
    assert rotate_file(path, random=random) == make(1)
    assert LedgerKeys.load(str(path)) == make(1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_fails_leaves_the_old_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is replaced whole or not at all."""
    path = tmp_path / "keys"
    write_new(make(0), path)

    def full(descriptor: int, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable.os, "write", full)
    with pytest.raises(LedgerKeyError, match="No space left"):
        rotate_file(path)
    monkeypatch.undo()
    assert LedgerKeys.load(str(path)) == make(0)
    assert list(tmp_path.iterdir()) == [path]
