"""Figures of the documentation are what their commands print."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import results

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
]
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


def table_of(name: str) -> results.Table:
    """Return a table by name."""
    return next(one for one in results.TABLES if one.name == name)


def page_with(folder: Path, page: str, text: str) -> Path:
    """Write a page into a copy of the checkout that has nothing else."""
    path = folder / page
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def test_tables_of_figures_are_found() -> None:
    assert len([section for page in PAGES for section in sections_with_figures(page)]) >= 11


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
    table = table_of("statistics-file")
    assert table.missing(table.run()) == []


def test_a_figure_that_differs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of("statistics-file")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    page_with(tmp_path, table.page, "It drafts 22 % more (mean accepted length 1.54 without,")
    output = {"held_out": {"without_file": FEW, "with_file": MORE}}
    assert table.missing(output) == ["(mean accepted length 1.66 without, 1.95 with it)"]


FEW = {"right": 100, "mean_accepted_length": 1.66}
MORE = {"right": 122, "mean_accepted_length": 1.95}


def test_every_table_of_the_results_is_between_marks_and_measured_files_exist() -> None:
    marks = results.MARKS.findall((ROOT / results.RESULTS).read_text("utf-8"))
    assert [name for _, name, *_ in marks] == [
        table.name for table in results.TABLES if table.page == results.RESULTS
    ]
    assert all((ROOT / path).exists() for table in results.TABLES for path in table.measured)
    assert len(list(results.ages())) == len(marks)


def test_a_table_of_real_models_is_written_between_its_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of("smollm2-two-threads")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    other = "<!-- table other 1 -->\n| 1 |\n<!-- end -->\n"
    text = f"Before\n{other}<!-- table {table.name} 2 -->\n| old |\n<!-- end -->\nAfter\n"
    page = page_with(tmp_path, table.page, text)
    rates = {"none": (10, 20), "suffix": (15, 50), "llama-server none": (11, 22)}
    cells = [
        {"program": program, "kind": kind, "prompt": 0, "turn": 0, "rate": rate, "tokens": 9,
         "drafted": 0, "accepted": 0, "others": busy}
        for program, both in rates.items()
        for kind, rate, busy in zip(("edit", "chat"), both, (0.0, 1.0), strict=True)
    ]  # fmt: skip
    setting = {"model": "model.gguf", "threads": 2, "temperature": 0, "cells": cells}
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    assert table.write({"settings": [setting]}, "abc")
    assert page.read_text("utf-8") == (
        f"Before\n{other}<!-- table {table.name} abc -->\n"
        "| drafts | edit |\n|---|---|\n| suffix, the default | 1.50 |\n"
        "| llama-server, none | 1.10 |\n<!-- end -->\nAfter\n"
    )
    assert not table_of("replay").write({"sets": {}, **REPLAYED}, "abc")


PROFILES = dict.fromkeys(results.PROFILES, 1.5)
REPLAYED = {
    "drafter": "auto",
    "geometric_mean_speedup": {"auto": PROFILES},
    "against_peers": {"auto": {p: {"geometric_mean_ratio": 1.25} for p in PROFILES}},
}


def test_tables_of_replays_have_their_columns() -> None:
    one = {"modelled_speedup": PROFILES, "mean_accepted_length": 2}
    lines = list(results.replay({"sets": {"rag.mtrag": one}, **REPLAYED}))
    assert lines[2:] == [
        "| RAG (MTRAG) | 2.00 | 1.50 | 1.50 | 1.50 | 1.50 |",
        "| all, geometric mean | | 1.50 | 1.50 | 1.50 | 1.50 |",
        "| all, over each set's best peer | | 1.250 | 1.250 | 1.250 | 1.250 |",
    ]
    ratios = {p: {"ratio": {"rag.mtrag": 1.25}} for p in PROFILES}
    output = {"sets": {"rag.mtrag": one}, "drafter": "auto", "against_peers": {"auto": ratios}}
    drawn = results.replay_picture.draw(output, results.SETS)
    assert drawn.count('class="peer" x="184"') == 2
    assert '1.50 <tspan class="soft">1.20</tspan>' in drawn
    sides = {"us_per_token": 0.5, "mean_accepted_length": 2}
    sets = {name: {"ngram-mod": {"ours": sides, "theirs": sides}} for name in ("a", "b")}
    means = {"ngram-mod": {"all": 0.5, "long prompts": 0.25}}
    lines = list(results.llamacpp({"sets": sets, "geometric_mean_ratio": means}))
    assert lines[2:] == ["| ngram-mod | 0.500 | 0.500 | 0.50 | 0.25 | 2.000 | 2.000 |"]
