"""docs/publish-paths.md: every path of its table is tested, every tested way stands in it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.ways import WAYS

ROOT = Path(__file__).parents[2]
FILES = ("test_publish_paths.py", "test_pools.py", "test_no_leak.py", "test_gateway.py")
TEST = re.compile(r"`(test_\w+\.py::[^`]+)`")


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "publish-paths.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """The ids of the tests that exist, and their names without parameters."""
    files = [f"tests/integration/{name}" for name in FILES]
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    ids = {
        line.removeprefix("tests/integration/") for line in told.stdout.splitlines() if "::" in line
    }
    return ids | {name.partition("[")[0] for name in ids}


def paths(page: str) -> list[list[str]]:
    """The rows of the table."""
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_every_path_of_the_table_names_a_test_that_exists(page: str, collected: set[str]) -> None:
    """Path, what travels, test: none is empty, no path stands twice, and each test is there."""
    rows = paths(page)
    for path, travels, test in rows:
        assert path
        assert travels
        assert TEST.fullmatch(test), path
        assert test.strip("`") in collected, path
    assert len({path for path, _, _ in rows}) == len({test for _, _, test in rows}) == len(rows)


def test_every_test_that_the_page_names_exists(page: str, collected: set[str]) -> None:
    """Outside the table too."""
    assert set(TEST.findall(page)) <= collected


def test_every_tested_way_stands_in_the_table(page: str) -> None:
    """A way that is added to WAYS is added to the table."""
    named = re.findall(r"`test_publish_paths\.py::test_the_caller_arrives\[(\w+)\]`", page)
    assert named == [way.name for way in WAYS]


def test_the_table_says_which_ways_have_a_parent(page: str) -> None:
    """ "no parent" stands exactly where the test finds none."""
    says = {test: travels for _, travels, test in paths(page)}
    for way in WAYS:
        travels = says[f"`test_publish_paths.py::test_the_caller_arrives[{way.name}]`"]
        alone = {parent for _, parent in way.invocations} == {"-"}
        assert ("no parent" in travels) is alone, way.name
