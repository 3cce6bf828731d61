"""Figures of the documentation are what their commands print."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from helpers.paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import check_figures


def corpus_file() -> check_figures.Figures:
    """Return the figures that take least time."""
    return next(one for one in check_figures.FIGURES if one.command[0] == "build-cache")


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
