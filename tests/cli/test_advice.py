"""The advice of ngramspec bench replay: what is fastest, at whose costs, and its options."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from helpers.recordings import TRACES
from ngramspec.cli.bench.replay import advice_line, advise, serve_words
from ngramspec.cli.serve import serve
from ngramspec.costs import CostTable, save_costs
from ngramspec.lab.replay.sets import Replays, same_for_all
from ngramspec.lab.replay.walk import ReplayTally
from ngramspec.models import embedded_model

FLAT = CostTable(((1, 1.0),), "flat")  # a pass costs the same for any batch
DEAR = CostTable(((1, 1.0), (2, 2.0)), "dear")
SQL = str(TRACES / "structured.spider_sql.txt.xz")
MOD = "--spec-type ngram-mod --policy fixed"


def replays(costs: CostTable, **right: int) -> Replays:
    """Return the replay of a set of 1000 passes with one drafted token each."""
    profiles = {"target": costs}
    names = [name.replace("_", "-") for name in right]
    tallies = (ReplayTally(1, (0, 1000), (1000 - n, n), 0, 0, 0) for n in right.values())
    outcomes = (same_for_all(tally, profiles) for tally in tallies)
    return Replays(profiles, names, {"a": dict(zip(names, outcomes, strict=True))})


@pytest.mark.parametrize(
    ("replayed", "drafter", "speedup", "words"),
    [
        (replays(FLAT, auto=500, ngram_mod=510), "auto", 1.5, ""),  # 0.7 % more
        (replays(FLAT, auto=500, ngram_mod=520), "ngram-mod", 1.52, MOD),
        (replays(FLAT, ngram_mod=5), "none", 1.0, "--spec-type none"),
        (replays(DEAR, auto=500, ngram_mod=600), "none", 1.0, "--spec-type none"),
    ],
)
def test_what_gains_more_than_a_percent_is_advised(
    replayed: Replays, drafter: str, speedup: float, words: str
) -> None:
    assert advise(replayed, "target") == {
        "costs": "target", "drafter": drafter, "modelled_speedup": speedup, "serve": words
    }  # fmt: skip


def test_it_is_a_line() -> None:
    best = {"costs": "cpu", "drafter": "auto", "modelled_speedup": 1.5, "serve": ""}
    text = "Advice at the costs of cpu: "
    assert advice_line(best) == f"{text}the default, 1.500 times the speed without drafts."
    other = best | {"drafter": "none", "serve": "--spec-type none"}
    line = f"{text}no drafts, 1.500 times the speed without drafts."
    assert advice_line(other) == f"{line} Options of `serve`: --spec-type none"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("auto", ""),
        ("auto:share=false,capacity=65536", "--no-spec-suffix-share --spec-suffix-capacity 65536"),
        (
            "ngram-simple,ngram-map-k:size_n=3",
            "--spec-type ngram-simple,ngram-map-k --policy fixed --spec-ngram-simple-size-n 3 "
            "--spec-ngram-map-k-size-n 3",
        ),
        (
            "ngram-cache:static=a b.ngc",
            "--spec-type ngram-cache --policy fixed --lookup-cache-static 'a b.ngc'",
        ),
    ],
)
def test_serve_takes_the_options(spec: str, words: str) -> None:
    options = serve_words(spec)
    assert options == shlex.split(words)
    with serve.make_context("serve", options) as context:
        assert context.params["policy"] == ("fixed" if "fixed" in words else "auto")


def test_what_serve_has_no_option_for_is_not_advised() -> None:
    assert serve_words("auto:tree=64") is None


def test_it_ends_the_output_and_stands_in_the_json(
    invoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def advice(*more: str) -> Any:
        result = invoke("bench", "replay", SQL, "--limit", "3", *more, "--json")
        return json.loads(result.stdout)["advice"]

    usual = advice()
    assert (usual["costs"], usual["drafter"], usual["serve"]) == ("cpu", "auto", "")
    text = invoke("bench", "replay", SQL, "--limit", "3").stdout
    assert text.splitlines()[-1] == advice_line(usual)
    assert advice("--profile", "moe")["costs"] == "moe"
    save_costs(CostTable(((1, 1.0), (2, 2.0)), "mine"), tmp_path / "mine.json")
    assert advice("--costs", str(tmp_path / "mine.json"))["costs"] == "mine"


def test_the_costs_are_those_saved_for_the_model(
    invoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llama_cpp", reason="the models are llama.cpp's")
    from ngramspec.lab.costs import saved_costs
    from ngramspec.llamacpp import LlamaModel
    from ngramspec.llamacpp.saved_costs import costs_path
    from ngramspec.llamacpp.settings import ContextSettings

    def advised(*more: str) -> Any:
        arguments = (SQL, "--limit", "3", "--model", str(embedded_model()), "--json", *more)
        return json.loads(invoke("bench", "replay", *arguments).stdout)["advice"]["costs"]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = embedded_model()
    assert advised() == "cpu"
    assert "`ngramspec bench calibrate --model" in saved_costs(model).reason
    with LlamaModel(model, vocab_only=True) as opened:
        path = costs_path(opened, ContextSettings())
    path.parent.mkdir(parents=True)
    table = CostTable(((1, 1.0), (2, 2.0)), "mine")
    reasons: list[tuple[dict[str, Any], str]] = [
        ({}, f"saved for {model.name}"),  # as older versions did
        ({"rough": True}, "measured roughly when "),
        ({"rough": False}, f"saved for {model.name} by `ngramspec bench calibrate`"),
    ]
    for about, reason in reasons:
        save_costs(table, path, about)
        assert saved_costs(model).reason.startswith(reason)
    assert advised() == "mine"
    assert advised("--profile", "moe") == "moe"
