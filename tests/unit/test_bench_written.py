"""The figures in the document are the command's; the words around them are not touched."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.__main__ import main
from bench.processes import BenchError
from bench.written import SHOWN, Document, content, replaced, sections

ROOT = Path(__file__).parents[2]
DOCUMENT = """# Figures

<!-- bench:peers -->
| old |
<!-- /bench -->

Words. `<!-- bench:peers -->` within a line is none.

<!-- bench:shape -->
<!-- /bench -->
The end.
"""
ENVIRONMENT = {"date": "2026-11-30T12:00:00+00:00"} | {name: f"<{name}>" for name in SHOWN}


def test_what_stands_between_the_markers_is_replaced() -> None:
    """That and nothing else, an empty section too; a second time changes nothing."""
    once = replaced(DOCUMENT, "peers", "| new |\n")
    assert once == DOCUMENT.replace("| old |", "| new |")
    assert replaced(once, "peers", "| new |") == once
    assert replaced(DOCUMENT, "shape", "| new |") == DOCUMENT.replace(
        "<!-- bench:shape -->\n", "<!-- bench:shape -->\n| new |\n"
    )


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r")))
def test_any_content_arrives_as_it_is(text: str) -> None:
    r"""No character of it means anything to the replacing, \1 and \g<0> neither."""
    before, after = DOCUMENT.split("| old |\n")
    assert replaced(DOCUMENT, "peers", text) == f"{before}{text.strip()}\n{after}"


@pytest.mark.parametrize("text", ["", "Words.\n", DOCUMENT.replace("shape", "peers")])
def test_a_section_that_is_not_there_once_is_an_error(text: str) -> None:
    """Nothing is appended somewhere, and of two places none is chosen."""
    with pytest.raises(BenchError, match="places for the section 'peers'"):
        replaced(text, "peers", "| new |")


def test_a_marker_without_its_end_is_no_section() -> None:
    """Half of a document is never taken for a section."""
    assert sections("<!-- bench:peers -->\n| old |\n") == frozenset()


def test_day_machine_and_command_stand_above_the_figures() -> None:
    """What a reader needs to judge the figures, and to get their own."""
    first, _, table = content("| a |", ENVIRONMENT, "python -m bench --only peers").split("\n")
    assert first.startswith("Written by `python -m bench --only peers` on 2026-11-30;")
    assert all(f"{name} <{name}>" in first for name in SHOWN)
    assert table == "| a |"


def test_a_run_writes_what_the_document_has_a_place_for(tmp_path: Path) -> None:
    """Sections without a place are measured and printed all the same."""
    path = tmp_path / "figures.md"
    path.write_text(DOCUMENT, encoding="utf-8")
    document = Document(path, ["emit", "shape"])
    document.write("emit", "| emit |", ENVIRONMENT, "python -m bench --only emit")
    document.write("shape", "| shape |", ENVIRONMENT, "python -m bench --only shape")
    written = path.read_text(encoding="utf-8")
    assert "| shape |\n<!-- /bench -->\nThe end." in written
    assert "| emit |" not in written
    assert "| old |" in written


@pytest.mark.parametrize("text", [None, "Words.\n", DOCUMENT])
def test_a_document_without_a_place_is_told_before_anything_runs(
    text: str | None, tmp_path: Path
) -> None:
    """A run of minutes does not end with nowhere to go."""
    path = tmp_path / "figures.md"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(BenchError, match=r"place for emit|cannot write into"):
        main(["--only", "emit", "--write", str(path)])


def test_the_projects_own_document_has_its_sections() -> None:
    """What the page says is written by the bench can be."""
    text = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    assert sections(text) == {"throughput", "shape", "peers"}
    for name in sections(text):
        replaced(text, name, "")
