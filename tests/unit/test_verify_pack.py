"""audit/ledger/verify_pack.py: what an auditor's single file accepts, and all that it refuses.

Each forgery names the step that must find it. A careful forger keeps every hash of the manifest in
order (``with_hashes``); what a clumsy one changes, the manifest gives away.
"""

from __future__ import annotations

import ast
import base64
import importlib.util
import io
import json
import random
import stat
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from audit.ledger import verify_pack
from audit.ledger.note_key import SignerKey
from audit.ledger.pack import export
from audit.ledger.verify_pack import Key, KeyTextError, Report, Step
from tests.evidence import (
    LEDGER_KEY,
    NAME,
    ORIGIN,
    asked,
    listed,
    moment,
    packed,
    rows,
    seal,
    unpacked,
    with_hashes,
)
from tests.support import completed, make_identity, started

SIZE = 23
ROWS = rows(SIZE)
FIRST, LAST = 4, 15  # the pack's rows; those asked for are 5 to 14
KEYS = [Key.parse(LEDGER_KEY.verifier.to_text())]

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pack")
    export(seal(folder / "ledger", ROWS), asked(5, 15), folder / "good.zip")
    return folder / "good.zip"


@pytest.fixture
def files(pack: Path) -> Files:
    return unpacked(pack)


def found(path: Path, files: Files, keys: list[Key] = KEYS) -> list[tuple[Step, str]]:
    return verify_pack.verify(packed(path / "forged.zip", files), keys).findings


def steps(path: Path, files: Files) -> set[Step]:
    return {step for step, _ in found(path, files)}


# --- a good one -----------------------------------------------------------------------------------


def test_a_pack_passes_and_says_what_it_holds(pack: Path) -> None:
    """The facts an auditor has to read are there, and which invocations are half outside."""
    report = verify_pack.verify(pack, KEYS)
    assert report.findings == []
    assert report.facts == [
        f"log {ORIGIN}: 23 rows, signed by your key",
        "asked for: since 2026-11-29T12:05:00.000000Z, until 2026-11-29T12:15:00.000000Z",
        "claimed: exported 2026-11-30T00:00:00.000000Z by skill-host 0.1.0",
        "rows asked for: 10, from index 5 to 14",
    ]
    assert report.notes == []


def test_a_key_under_the_name_of_the_log_will_do(pack: Path) -> None:
    """As foreign tools need it; and one good key among others of the ledger is enough."""
    renamed = Key.parse(LEDGER_KEY.renamed(ORIGIN).verifier.to_text())
    other = Key.parse(SignerKey.generate(NAME).verifier.to_text())
    assert verify_pack.verify(pack, [renamed]).passed
    assert verify_pack.verify(pack, [other, *KEYS]).passed


BOOTSTRAP = """
import runpy, sys
folder, script, *arguments = sys.argv[1:]
sys.path.append(folder)
sys.argv = [script, *arguments]
try:
    runpy.run_path(script, run_name="__main__")
finally:
    top = {name.partition(".")[0] for name in sys.modules}
    print("foreign:", sorted(top - sys.stdlib_module_names - {"__main__"}), file=sys.stderr)
"""


@pytest.fixture
def alone(tmp_path: Path, files: Files) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the pack's own copy in an empty folder, with no package in reach but cryptography."""
    only, empty = tmp_path / "only", tmp_path / "empty"
    only.mkdir()
    empty.mkdir()
    for name in ("cryptography", "cffi", "_cffi_backend"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            source = Path(spec.origin)
            source = source.parent if source.name == "__init__.py" else source
            (only / source.name).symlink_to(source)
    (tmp_path / "verify_pack.py").write_bytes(files["verify_pack.py"])

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-S", "-c", BOOTSTRAP, str(only)]
        return subprocess.run(
            [*command, str(tmp_path / "verify_pack.py"), *arguments],
            cwd=empty,
            env={},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_the_file_runs_alone(alone: Callable[..., Any], pack: Path, tmp_path: Path) -> None:
    """Out of the pack, isolated, it passes a good pack with cryptography and nothing of ours."""
    key = LEDGER_KEY.verifier.to_text()
    good = alone(str(pack), "--key", key)
    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, "PASS: everything holds")
    (foreign,) = good.stderr.splitlines()
    assert set(ast.literal_eval(foreign.removeprefix("foreign: "))) <= {
        "cryptography",
        "cffi",
        "_cffi_backend",
        "_openssl",  # a part of cryptography
    }
    (tmp_path / "key").write_text(f"\n{key}\n")
    assert alone(str(pack), "--key", str(tmp_path / "key")).returncode == 0


def test_the_exit_status_says_what_happened(
    alone: Callable[..., Any], pack: Path, tmp_path: Path
) -> None:
    """1 for whatever is wrong with the pack, 2 for what is wrong with the question."""
    key = LEDGER_KEY.verifier.to_text()
    (tmp_path / "garbage").write_bytes(b"garbage")
    bad = alone(str(tmp_path / "garbage"), "--key", key)
    assert (bad.returncode, bad.stdout.splitlines()[-1][:4]) == (1, "FAIL")
    other = SignerKey.generate(NAME).verifier.to_text()
    assert alone(str(pack), "--key", other).returncode == 1
    for arguments in (
        [str(pack)],
        [str(pack), "--key", "a+b+c"],
        [str(pack), "--key", str(tmp_path / "nowhere")],
        [str(tmp_path / "nowhere"), "--key", key],
        [str(tmp_path), "--key", key],
        [],
    ):
        wrong = alone(*arguments)
        assert wrong.returncode == 2, arguments
        assert "Traceback" not in wrong.stderr


def test_it_imports_the_standard_library_and_cryptography() -> None:
    """By its source, too: not even inside a function."""
    tree = ast.parse(Path(verify_pack.__file__).read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(str(node.module).partition(".")[0])
    assert names - sys.stdlib_module_names == {"cryptography"}


# --- every file, every field ----------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(verify_pack.FILES))
def test_no_file_can_be_changed_or_missing(tmp_path: Path, files: Files, name: str) -> None:
    """One byte more, one less, one other, and no file at all: each is refused."""
    good = files[name]
    for bad in (good + b"\n", good[:-1], good[:9] + bytes([good[9] ^ 1]) + good[10:], b""):
        if name == "manifest.json" and bad.strip() == good.strip():
            continue  # white space around the JSON: nothing hangs on it
        assert found(tmp_path, {**files, name: bad}), name
    files.pop(name)
    assert found(tmp_path, files) == [(Step.CONTAINER, f"files are missing: {name}")]


@pytest.mark.parametrize("name", sorted(set(verify_pack.FILES) - {"manifest.json"}))
def test_a_changed_file_is_named(tmp_path: Path, files: Files, name: str) -> None:
    """The manifest's hash of a file that says nothing else of importance gives it away."""
    manifest = json.loads(files["manifest.json"])
    manifest["files"][name] = "0" * 64
    forged = {**files, "manifest.json": json.dumps(manifest).encode()}
    assert found(tmp_path, forged) == [
        (Step.MANIFEST, f"the SHA-256 of {name} is not the one in manifest.json")
    ]


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("format", "audit-evidence-pack/2", "format"),
        ("origin", f"{NAME}/other", "origin"),
        ("ledger_size", SIZE - 1, "ledger_size"),
        ("ledger_size", "23", "ledger_size"),
        ("root", "0" * 64, "root"),
        ("first_index", FIRST - 1, "first_index"),
        ("first_index", -1, "first_index"),
        ("first_index", 4.0, "first_index"),
        ("first_index", True, "first_index"),
        ("last_index", LAST + 1, "last_index"),
        ("rows", LAST - FIRST, "rows"),
        ("rows", 0, "rows"),
        ("files", [], "files"),
        ("files", {}, "files"),
        ("more", 1, "fields"),
    ],
)
def test_no_field_of_the_manifest_can_change(
    tmp_path: Path, files: Files, field: str, value: object, text: str
) -> None:
    """Each is held against the checkpoint or the rest, and named."""
    manifest = {**json.loads(files["manifest.json"]), field: value}
    findings = found(tmp_path, {**files, "manifest.json": json.dumps(manifest).encode()})
    assert findings
    assert all(step is Step.MANIFEST and text in said for step, said in findings[-1:]), findings


@pytest.mark.parametrize(
    "field", ["format", "origin", "ledger_size", "root", "first_index", "last_index", "rows"]
)
def test_no_field_of_the_manifest_can_be_missing(tmp_path: Path, files: Files, field: str) -> None:
    """Nor be there twice."""
    manifest = json.loads(files["manifest.json"])
    twice = files["manifest.json"].replace(b"{", b'{"%b": 0,' % field.encode(), 1)
    del manifest[field]
    for content in (json.dumps(manifest).encode(), twice):
        assert steps(tmp_path, {**files, "manifest.json": content}) == {Step.MANIFEST}


@pytest.mark.parametrize(
    "changes",
    [{"first_index": -1, "rows": 17}, {"first_index": False, "rows": 16}, {"rows": 12.0}],
)
def test_counts_are_whole_numbers(tmp_path: Path, files: Files, changes: dict[str, Any]) -> None:
    """Even where they fit each other."""
    findings = found(tmp_path, with_hashes(files, **changes))
    assert [(step, said[:14]) for step, said in findings] == [(Step.MANIFEST, "these must be ")]


def test_the_range_lies_in_the_ledger(tmp_path: Path, files: Files) -> None:
    """So nothing is read beyond the size that was signed."""
    forged = with_hashes(files, last_index=SIZE, rows=SIZE - FIRST + 1)
    assert found(tmp_path, forged) == [(Step.MANIFEST, "last_index lies outside of the ledger")]


def test_the_manifest_names_the_files_of_the_pack_only(tmp_path: Path, files: Files) -> None:
    """A hash for a file that is not there is refused."""
    manifest = json.loads(files["manifest.json"])
    manifest["files"]["more"] = "0" * 64
    assert found(tmp_path, {**files, "manifest.json": json.dumps(manifest).encode()}) == [
        (Step.MANIFEST, "files does not name exactly the files of the pack")
    ]


# --- rows and tree, by a careful forger -----------------------------------------------------------


def forged_rows(files: Files, entries: list[bytes], first: int = FIRST, **changes: Any) -> Files:
    return with_hashes({**files, **listed(first, entries)}, **changes)


INSIDE = ROWS[FIRST : LAST + 1]
OTHER_ROW = completed(make_identity()).to_bytes()


@pytest.mark.parametrize("at", range(LAST - FIRST + 1))
def test_an_edited_row_is_found(tmp_path: Path, files: Files, at: int) -> None:
    """By the root where the hashes were forged as well, and by its index where they were not."""
    entries = [*INSIDE]
    entries[at] = entries[at].replace(b"alerts.triage", b"alerts.triagE")
    assert steps(tmp_path, forged_rows(files, entries)) == {Step.TREE}
    clumsy = with_hashes({**files, "rows.jsonl": b"".join(row + b"\n" for row in entries)})
    findings = found(tmp_path, clumsy)
    named = f"row {FIRST + at} is not the one that was sealed: changed, moved or left out"
    assert findings[0] == (Step.ROWS, named)
    assert [step for step, _ in findings] == [Step.ROWS, Step.TREE]


@pytest.mark.parametrize("at", range(LAST - FIRST + 1))
def test_a_dropped_row_is_found(tmp_path: Path, files: Files, at: int) -> None:
    """With an honest count, with a forged one, and with a range that is one shorter."""
    entries = [*INSIDE[:at], *INSIDE[at + 1 :]]
    assert found(tmp_path, forged_rows(files, entries))[0] == (
        Step.ROWS,
        "the pack has 11 rows, not 12",
    )
    assert steps(tmp_path, forged_rows(files, entries, rows=11)) == {Step.MANIFEST}
    forged = forged_rows(files, entries, rows=11, last_index=LAST - 1)
    assert found(tmp_path, forged)[0][0] is Step.TREE
    clumsy = with_hashes({**files, "rows.jsonl": b"".join(row + b"\n" for row in entries)})
    findings = found(tmp_path, clumsy)
    assert f"row {FIRST + at} is not" in findings[0][1] or at == LAST - FIRST
    assert findings[-1] == (Step.ROWS, "rows.jsonl ends after 11 rows, another file does not")


@pytest.mark.parametrize("at", [0, 3, 10])
def test_swapped_rows_are_found(tmp_path: Path, files: Files, at: int) -> None:
    """Rows are sealed in their order."""
    entries = [*INSIDE[:at], INSIDE[at + 1], INSIDE[at], *INSIDE[at + 2 :]]
    assert Step.TREE in steps(tmp_path, forged_rows(files, entries))


@pytest.mark.parametrize("at", [0, 5, 12])
def test_an_inserted_row_is_found(tmp_path: Path, files: Files, at: int) -> None:
    """With an honest count, and with a range that is one longer."""
    entries = [*INSIDE[:at], OTHER_ROW, *INSIDE[at:]]
    assert found(tmp_path, forged_rows(files, entries))[-1][0] is Step.ROWS
    forged = forged_rows(files, entries, rows=13, last_index=LAST + 1)
    assert Step.TREE in steps(tmp_path, forged)


def test_indexes_run_without_gap_or_repetition(tmp_path: Path, files: Files) -> None:
    """A line of hashes that names another index is named."""
    for wrong in (b"6 ", b"8 ", b"07 ", b"\xff ", b""):
        hashes = files["hashes.txt"].replace(b"\n7 ", b"\n" + wrong)
        findings = found(tmp_path, with_hashes({**files, "hashes.txt": hashes}))
        assert findings[0][0] is Step.ROWS
        assert "where row 7 belongs" in findings[0][1]


def test_a_line_too_many_of_hashes_is_found(tmp_path: Path, files: Files) -> None:
    """The two files end together, where the manifest says."""
    hashes = files["hashes.txt"] + b"16 %b\n" % (b"0" * 64)
    assert found(tmp_path, with_hashes({**files, "hashes.txt": hashes}))[0][0] is Step.ROWS
    both = {name: files[name] + files[name] for name in ("rows.jsonl", "hashes.txt")}
    findings = found(tmp_path, with_hashes({**files, **both}))
    assert findings[-1] == (Step.ROWS, "manifest.json ends after 12 rows, another file does not")


@pytest.mark.parametrize("name", ["rows.jsonl", "hashes.txt", "range-proof.txt"])
def test_nothing_stands_behind_the_last_line(tmp_path: Path, files: Files, name: str) -> None:
    """Not even something that no reader of lines would see."""
    forged = with_hashes({**files, name: files[name] + b"more"})
    assert found(tmp_path, forged) == [(Step.ROWS, f"{name} ends within a line")]


@pytest.mark.parametrize("which", range(6))
def test_no_hash_of_the_range_proof_can_change(tmp_path: Path, files: Files, which: int) -> None:
    """Another hash leads elsewhere; a line less, more, or of another place is no proof."""
    lines = files["range-proof.txt"].splitlines(keepends=True)
    place = lines[which % len(lines)].rsplit(b" ", 1)[0]
    other = [*lines]
    other[which % len(lines)] = place + b" " + b"0" * 64 + b"\n"
    assert steps(tmp_path, with_hashes({**files, "range-proof.txt": b"".join(other)})) == {
        Step.TREE
    }
    less = [line for at, line in enumerate(lines) if at != which % len(lines)]
    for content in (less, [*lines, lines[-1]], [b"0" + lines[0], *lines[1:]], [*lines, b"\n"]):
        findings = found(tmp_path, with_hashes({**files, "range-proof.txt": b"".join(content)}))
        assert findings == [
            (Step.TREE, "range-proof.txt is not the proof for these rows, or is cut")
        ]


def test_what_is_no_row_is_found(tmp_path: Path) -> None:
    """Sealed or not: rows are JSON objects with kind, time and invocation."""
    for number, bad in enumerate(
        (b"x", b"[]", b"{}", b"null", b"[" * 60_000, INSIDE[0].replace(b"2026", b"20x6"))
    ):
        folder = tmp_path / str(number)
        log = seal(folder, ROWS)
        export(log, asked(), folder / "good")
        forged = with_hashes(
            {**unpacked(folder / "good"), **listed(0, [*ROWS[:6], bad, *ROWS[7:]])}
        )
        assert (Step.CONTENT, "row 6 is no audit row") in found(folder, forged)


def test_rows_are_of_one_tenant(tmp_path: Path) -> None:
    """A sealed row of another tenant is named, though the tree holds."""
    tenant = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
    row = started(make_identity(tenant_id=tenant), ts=moment(30).isoformat()).to_bytes()
    assert export_findings(tmp_path, [*ROWS, row]) == [
        (Step.CONTENT, "row 23 is of another tenant than the rows before it")
    ]


# --- the question ---------------------------------------------------------------------------------


def with_policy(files: Files, **changes: Any) -> Files:
    policy = {**json.loads(files["policy.json"]), **changes}
    return with_hashes({**files, "policy.json": json.dumps(policy).encode()})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"since": None}, "in front"),
        ({"since": "2026-11-29T12:04:00Z"}, "in front"),
        ({"since": "2026-11-29T12:06:00Z"}, "in front"),
        ({"until": None}, "at the end"),
        ({"until": "2026-11-29T12:15:01Z"}, "at the end"),
        ({"until": "2026-11-29T12:14:00Z"}, "at the end"),
        ({"since": "2027-01-01T00:00:00Z"}, "no row lies in what was asked for"),
        ({"tenant": "0" * 32}, "tenant"),
        ({"since": "yesterday"}, "since"),
        ({"since": "2026-11-29T12:05:00"}, "since"),
        ({"until": "2026-11-29\x1b12:05:00Z"}, "until"),
        ({"exported_at": "x"}, "exported_at"),
        ({"exported_at": None}, "exported_at"),
        ({"version": None}, "version"),
        ({"version": "\x1b[2J"}, "version"),
        ({"more": 1}, "fields"),
    ],
)
def test_the_rows_begin_and_end_where_the_question_did(
    tmp_path: Path, files: Files, changes: dict[str, Any], text: str
) -> None:
    """A question that was made wider or narrower afterwards no longer fits the rows at the ends."""
    findings = found(tmp_path, with_policy(files, **changes))
    assert findings
    assert all(step is Step.POLICY for step, _ in findings)
    assert text in findings[0][1]


def test_a_cherry_picked_range_is_found(tmp_path: Path) -> None:
    """Rows cut at one end, with a proof that is honest for the rest: the end gives it away."""
    log = seal(tmp_path / "ledger", ROWS)
    export(log, asked(5, 15), tmp_path / "all")
    export(log, asked(7, 13), tmp_path / "picked")
    policy = {"policy.json": unpacked(tmp_path / "all")["policy.json"]}
    forged = with_hashes({**unpacked(tmp_path / "picked"), **policy})
    texts = [text for step, text in found(tmp_path, forged) if step is Step.POLICY]
    assert ["in front" in texts[0], "at the end" in texts[1]] == [True, True]


def test_a_pack_without_rows_is_no_pass(tmp_path: Path, files: Files) -> None:
    """Empty files and a manifest that says so prove nothing."""
    for changes in ({"rows": 0}, {"rows": 0, "first_index": 4, "last_index": 3}):
        forged = forged_rows(files, [], **changes)
        assert steps(tmp_path, forged) == {Step.MANIFEST}
    assert found(tmp_path, forged_rows(files, []))[0] == (
        Step.ROWS,
        "the pack has 0 rows, not 12",
    )


# --- the checkpoint -------------------------------------------------------------------------------


def test_only_the_key_from_outside_counts(tmp_path: Path, files: Files) -> None:
    """A ledger of a forger's own, with the forger's key in the pack, is refused."""
    forger = SignerKey.generate(NAME)
    log = seal(tmp_path / "ledger", ROWS, forger)
    export(log, asked(), tmp_path / "own")
    assert forger.renamed(ORIGIN).verifier.to_text().encode() in unpacked(tmp_path / "own")["keys"]
    report = verify_pack.verify(tmp_path / "own", KEYS)
    assert report.findings == [
        (Step.CHECKPOINT, f"your key has not signed it; it is of the log {ORIGIN}")
    ]
    other = {"checkpoint": unpacked(tmp_path / "own")["checkpoint"]}
    assert steps(tmp_path, with_hashes({**files, **other})) == {Step.CHECKPOINT}


def test_another_checkpoint_of_the_log_is_another_tree(tmp_path: Path, files: Files) -> None:
    """An older one of the same key: size and root of the manifest do not fit, nor does the tree."""
    seal(tmp_path / "older", ROWS[:20])
    (older,) = (tmp_path / "older").glob("*/checkpoint")
    forged = with_hashes({**files, "checkpoint": older.read_bytes()})
    assert steps(tmp_path, forged) == {Step.MANIFEST}
    root = older.read_text().split("\n")[2]
    hexed = base64.b64decode(root).hex()
    forged = with_hashes(forged, ledger_size=20, root=hexed)
    assert steps(tmp_path, forged) == {Step.TREE}


def test_a_key_of_another_ledger_is_refused(tmp_path: Path, pack: Path) -> None:
    """The same secret under another name signs nothing here."""
    for name in ("other.example", NAME[:-1], f"{ORIGIN}0", f"{ORIGIN}/x"):
        key = Key(name, KEYS[0].public)
        assert verify_pack.verify(pack, [key]).findings[0][0] is Step.CHECKPOINT
    assert verify_pack.verify(pack, []).findings[0][0] is Step.CHECKPOINT


def test_no_byte_of_the_signed_text_or_the_signature_can_change(
    tmp_path: Path, files: Files
) -> None:
    """Whatever bit of the checkpoint flips, it is no longer signed."""
    good = files["checkpoint"]
    for at in range(len(good)):
        bad = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        forged = with_hashes({**files, "checkpoint": bad})
        assert steps(tmp_path, forged) == {Step.CHECKPOINT}, at


def test_a_checkpoint_has_one_form(tmp_path: Path, files: Files) -> None:
    """A signature in another spelling of base64 is none, and an origin is a line of text."""
    good = files["checkpoint"]
    assert good.endswith(b"=\n")
    last = good[-3:-2]
    other = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    spelled = other[other.index(last) + 1 :][:1]
    bad = good[:-3] + spelled + good[-2:]
    assert base64.b64decode(bad.split()[-1]) == base64.b64decode(good.split()[-1])
    assert steps(tmp_path, with_hashes({**files, "checkpoint": bad})) == {Step.CHECKPOINT}
    painted = good.replace(b"ledger", b"\x1b[2Jledger", 1)
    assert found(tmp_path, with_hashes({**files, "checkpoint": painted})) == [
        (Step.CHECKPOINT, "it is no signed checkpoint")
    ]


def test_a_bad_signature_is_refused_beside_a_good_one(tmp_path: Path, files: Files) -> None:
    """Each line of a known key has to hold; lines of unknown keys count for nothing."""
    good = files["checkpoint"]
    line = good.splitlines(keepends=True)[-1]
    raw = bytearray(base64.b64decode(line.split()[2]))
    raw[-1] ^= 1
    prefix = line.rsplit(b" ", 1)[0]
    bad = prefix + b" " + base64.b64encode(raw) + b"\n"
    for lines in (bad + line, line + bad):
        checkpoint = good.replace(line, lines)
        findings = found(tmp_path, with_hashes({**files, "checkpoint": checkpoint}))
        assert findings == [(Step.CHECKPOINT, "the signature by your key does not hold")]
    unknown = good + "\N{EM DASH} somebody AAAAAAAA\n".encode()
    assert found(tmp_path, with_hashes({**files, "checkpoint": unknown})) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no key",
        "a+b+c",
        LEDGER_KEY.verifier.to_text().replace("+", "+0", 1),
        LEDGER_KEY.verifier.to_text() + "A",
        LEDGER_KEY.verifier.to_text()[len(NAME) :],
        "x" + LEDGER_KEY.verifier.to_text(),
        LEDGER_KEY.to_text(),
    ],
)
def test_what_is_no_key_is_refused(text: str) -> None:
    """A damaged one, and a private one; the error repeats nothing of it."""
    with pytest.raises(KeyTextError) as caught:
        Key.parse(text)
    assert len(text) < 10 or text not in str(caught.value)


def test_a_key_without_a_name_or_for_another_purpose_is_refused() -> None:
    """Even where its id was made to fit."""
    nameless = Key("", KEYS[0].public).id_under("").hex()
    material = base64.b64encode(b"\x01" + KEYS[0].public).decode()
    witness = base64.b64encode(b"\x04" + KEYS[0].public).decode()
    for text in (f"+{nameless}+{material}", f"{NAME}+{KEYS[0].id_under(NAME).hex()}+{witness}"):
        with pytest.raises(KeyTextError):
            Key.parse(text)


# --- pairs ----------------------------------------------------------------------------------------


def export_report(folder: Path, entries: list[bytes]) -> Report:
    export_unverified(folder, entries)
    return verify_pack.verify(folder / "pack", KEYS)


def export_findings(folder: Path, entries: list[bytes]) -> list[tuple[Step, str]]:
    return export_report(folder, entries).findings


def export_unverified(folder: Path, entries: list[bytes]) -> None:
    """The pack of a log whose rows themselves are wrong, which ``export`` itself refuses."""
    log = seal(folder / "ledger", ROWS[: len(entries)])
    export(log, asked(), folder / "good")
    seal(folder / "wrong", entries)
    (checkpoint,) = (folder / "wrong").glob("*/checkpoint")
    root = base64.b64decode(checkpoint.read_text().split("\n")[2]).hex()
    count = len(entries)
    files = {**unpacked(folder / "good"), **listed(0, entries)}
    files["checkpoint"], files["range-proof.txt"] = checkpoint.read_bytes(), b""
    changes = {"rows": count, "last_index": count - 1, "ledger_size": count, "root": root}
    packed(folder / "pack", with_hashes(files, **changes))


def test_an_invocation_without_its_end_is_noted(tmp_path: Path) -> None:
    """It may still run, so it is no finding; the row and the invocation are named."""
    report = export_report(tmp_path, [*ROWS[:3], *ROWS[4:]])
    open_one, last = (json.loads(ROWS[at])["payload"]["request_id"] for at in (2, 22))
    assert report.notes == [
        f"row 2 is a started row without a completed one in this pack: {open_one!r}",
        f"row 21 is a started row without a completed one in this pack: {last!r}",
    ]
    assert report.passed


def test_an_invocation_without_its_beginning_is_found(tmp_path: Path) -> None:
    """In a pack that begins with the log; in another one its beginning may lie before."""
    assert export_findings(tmp_path, [*ROWS[:2], *ROWS[3:]]) == [
        (Step.PAIRS, "row 2 is a completed row without a started one before it")
    ]
    log = seal(tmp_path / "ledger2", ROWS)
    export(log, asked(6, 14), tmp_path / "middle")
    report = verify_pack.verify(tmp_path / "middle", KEYS)
    assert report.passed
    assert "completed rows whose started row lies before this pack: 1" in report.notes
    assert any(note.startswith("row 14 is a started row") for note in report.notes)


def test_an_invocation_that_starts_twice_is_found(tmp_path: Path) -> None:
    """The memory lets none do so."""
    assert export_findings(tmp_path, [ROWS[0], *ROWS]) == [
        (Step.PAIRS, "row 1: started twice, or too many without a completed row")
    ]


def test_open_invocations_are_counted_where_they_are_too_many_to_list(tmp_path: Path) -> None:
    """Twenty are named, and how many there are."""
    report = export_report(tmp_path, [row for row in rows(60) if b"started" in row][:23])
    assert report.passed
    assert len(report.notes) == 21
    assert report.notes[-1] == "started rows without a completed one, all: 23"


def test_open_invocations_are_bounded(
    tmp_path: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a machine should keep in memory are a finding."""
    monkeypatch.setattr(verify_pack, "MAX_OPEN", 0)
    assert {step for step, _ in verify_pack.verify(pack, KEYS).findings} == {Step.PAIRS}


# --- hostile containers ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "more.txt", "a/", "rows.jsonl\0x"])
def test_a_file_that_does_not_belong_is_refused(tmp_path: Path, files: Files, name: str) -> None:
    """Nothing is ever unpacked, and it is refused all the same."""
    path = packed(tmp_path / "forged.zip", files)
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("x" * len(name))
        archive.writestr(info, b"")
    path.write_bytes(path.read_bytes().replace(b"x" * len(name), name.encode()))
    findings = verify_pack.verify(path, KEYS).findings
    assert len(findings) == 1
    assert findings[0][0] is Step.CONTAINER
    assert "does not belong" in findings[0][1]


def test_a_file_is_there_once(tmp_path: Path, files: Files) -> None:
    """Tools differ on which of two they show."""
    path = packed(tmp_path / "forged.zip", files)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("checkpoint", b"other")
    assert verify_pack.verify(path, KEYS).findings == [
        (Step.CONTAINER, "checkpoint is there twice")
    ]


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFDIR, stat.S_IFIFO])
def test_files_are_plain_files(tmp_path: Path, files: Files, kind: int) -> None:
    """No link, folder or pipe."""
    path = tmp_path / "forged.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = ((kind if name == "keys" else stat.S_IFREG) | 0o644) << 16
            archive.writestr(info, content)
    assert [step for step, _ in verify_pack.verify(path, KEYS).findings] == [Step.CONTAINER]


def test_encrypted_or_strangely_packed_files_are_refused(tmp_path: Path, files: Files) -> None:
    """Stored and deflated are what packs use."""
    path = tmp_path / "forged.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert [step for step, _ in verify_pack.verify(path, KEYS).findings] == [Step.CONTAINER]
    raw = bytearray(packed(path, files).read_bytes())
    raw[raw.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(raw)
    assert "encrypted" in verify_pack.verify(path, KEYS).findings[0][1]


@pytest.mark.parametrize(
    "name", ["rows.jsonl", "hashes.txt", "range-proof.txt", "checkpoint", "manifest.json"]
)
def test_a_zip_bomb_costs_little(tmp_path: Path, files: Files, name: str) -> None:
    """200 MB out of 200 KB, in whatever file: refused with a few MB of memory."""
    path = packed(tmp_path / "forged.zip", {**files, name: b"\0" * 200_000_000})
    tracemalloc.start()
    try:
        assert verify_pack.verify(path, KEYS).findings
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_a_bomb_of_short_lines_stops(tmp_path: Path, files: Files) -> None:
    """Lines without end are read no further than a few findings."""
    bomb = {"rows.jsonl": b"\n" * 50_000_000}
    report = verify_pack.verify(packed(tmp_path / "forged.zip", {**files, **bomb}), KEYS)
    assert len(report.findings) <= verify_pack.MAX_FINDINGS + 1


def test_a_table_of_contents_of_absurd_size_is_not_read(tmp_path: Path, files: Files) -> None:
    """A hundred thousand names are refused before they are in memory."""
    path = tmp_path / "forged.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(60_000):
            archive.writestr(f"{number}", b"")
    tracemalloc.start()
    try:
        findings = verify_pack.verify(path, KEYS).findings
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert findings == [(Step.CONTAINER, "the zip has a table of contents of absurd size")]


def test_nobody_reads_a_whole_file_at_once(tmp_path: Path) -> None:
    """Whatever the zip library asks for, without a number too."""
    (tmp_path / "large").write_bytes(b"\0" * 3_000_000)
    for size in (-1, None):
        with verify_pack._Frugal(tmp_path / "large") as file:
            assert len(file.read(size)) == verify_pack.MAX_SMALL + 1


def test_too_many_findings_end_the_reading(tmp_path: Path) -> None:
    """A pack that is wrong all over is not read to its end."""
    export(seal(tmp_path / "ledger", rows(100)), asked(), tmp_path / "good")
    files = unpacked(tmp_path / "good")
    files["rows.jsonl"] = files["rows.jsonl"].replace(b"alerts", b"alertS")
    findings = found(tmp_path, with_hashes(files))
    assert len(findings) == verify_pack.MAX_FINDINGS + 1
    assert "too many findings" in findings[-1][1]


@pytest.mark.parametrize("what", ["table", "name", "offset"])
def test_impossible_tables_are_findings(tmp_path: Path, files: Files, what: str) -> None:
    """A table of contents behind the end, a name that is no text, a file at byte 2^64 - 1."""
    path = packed(tmp_path / "forged.zip", files)
    raw = bytearray(path.read_bytes())
    end, table = raw.rindex(b"PK\5\6"), raw.index(b"PK\1\2")
    if what == "table":
        raw[end + 16 : end + 20] = (len(raw) + 9_000).to_bytes(4, "little")
    elif what == "name":
        raw[table + 8 : table + 10] = (0x800).to_bytes(2, "little")
        raw[table + 46] = 0xFF
    else:
        extra = struct.pack("<HHQ", 1, 8, 2**64 - 1)
        name = raw[table + 28]
        raw[table + 30 : table + 32] = len(extra).to_bytes(2, "little")
        raw[table + 42 : table + 46] = b"\xff" * 4
        raw[table + 46 + name : table + 46 + name] = extra
        end += len(extra)
        size = int.from_bytes(raw[end + 12 : end + 16], "little") + len(extra)
        raw[end + 12 : end + 16] = size.to_bytes(4, "little")
    path.write_bytes(raw)
    findings = verify_pack.verify(path, KEYS).findings
    assert [step for step, _ in findings] == [Step.CONTAINER]
    assert "no sound zip" in findings[0][1]


def test_no_garbage_crashes_it(tmp_path: Path, pack: Path) -> None:
    """Cut, filled, flipped and shuffled bytes: always findings, and never another error."""
    good, chance = pack.read_bytes(), random.Random(5)
    path = tmp_path / "forged.zip"
    for number in range(600):
        bad = bytearray(good)
        match number % 4:
            case 0:
                del bad[chance.randrange(len(bad)) :]
            case 1:
                for _ in range(chance.randrange(1, 40)):
                    bad[chance.randrange(len(bad))] = chance.randrange(256)
            case 2:
                table = good.index(b"PK\1\2")
                for _ in range(chance.randrange(1, 6)):
                    bad[chance.randrange(table, len(bad))] = chance.randrange(256)
            case 3:
                bad = bytearray(chance.randbytes(chance.randrange(2000)))
        path.write_bytes(bad)
        report = verify_pack.verify(path, KEYS)
        assert report.findings or unpacked_alike(path, pack)


def unpacked_alike(one: Path, other: Path) -> bool:
    """Bytes that mean nothing, like a date or a comment, may differ."""
    return unpacked(one) == unpacked(other)


def test_what_is_printed_is_safe_for_a_terminal(tmp_path: Path, files: Files) -> None:
    """No control character of a pack gets to the auditor's terminal."""
    path = packed(tmp_path / "forged.zip", {**files, "\x1b[2J": b""})
    printed = io.StringIO()
    assert verify_pack.main([str(path), "--key", LEDGER_KEY.verifier.to_text()], printed.write) == 1
    assert all(line.isprintable() for line in printed.getvalue().splitlines())
