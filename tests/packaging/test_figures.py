"""Figures of the documentation are what their commands print."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import check_figures

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIGURE = re.compile(r"\**\d[\d,.]*\.\d+x?\**")
FEW_FIGURES = 3  # a table with less is not of figures that were measured
SCRIPT = re.compile(r"python ((?:benchmarks|tools|tests)/[\w/]+\.py)([^`]*)")
COMMAND = re.compile(r"ngramspec (?:bench|check|build-cache)|make \w+|pytest ")


def sections_with_figures(page: Path) -> Iterator[str]:
    """Yield the sections of a page that have a table of figures."""
    for section in re.split(r"(?m)^(?=#{1,4} )", page.read_text()):
        rows = [line for line in section.splitlines() if line.startswith("|")]
        cells = [cell.strip() for row in rows for cell in row.split("|")]
        if sum(FIGURE.fullmatch(cell) is not None for cell in cells) >= FEW_FIGURES:
            yield section


def corpus_file() -> check_figures.Figures:
    """Return the figures that take least time."""
    return next(one for one in check_figures.FIGURES if "build-cache" in one.command)


def test_tables_of_figures_are_found() -> None:
    assert len([section for page in PAGES for section in sections_with_figures(page)]) >= 15


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_table_of_figures_names_a_command_that_exists(page: Path) -> None:
    for section in sections_with_figures(page):
        scripts = SCRIPT.findall(section)
        assert scripts or COMMAND.search(section), section.splitlines()[0]
        for script, arguments in scripts:
            folder = (ROOT / script).parent
            source = "".join(path.read_text() for path in folder.rglob("*.py"))
            assert (ROOT / script).is_file()
            for option in re.findall(r"--[a-z][\w-]*", arguments):
                assert f'"{option}"' in source, f"{script} {option}"


def test_a_corpus_file_adds_what_its_page_says() -> None:
    assert corpus_file().missing() == []


def test_a_figure_that_differs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = corpus_file()
    text = (ROOT / figures.document).read_text()
    stale = tmp_path / figures.document
    stale.parent.mkdir(parents=True)
    stale.write_text(text.replace("1.95 with it", "1.54 with it"))
    monkeypatch.setattr(check_figures, "ROOT", tmp_path)
    monkeypatch.setattr(
        check_figures, "run", lambda _: {"held_out": {"without_file": FEW, "with_file": MORE}}
    )
    assert figures.missing() == ["(mean accepted length 1.66 without, 1.95 with it)"]


FEW = {"right": 100, "mean_accepted_length": 1.66}
MORE = {"right": 122, "mean_accepted_length": 1.95}
