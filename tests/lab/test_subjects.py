"""What --drafter says."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from helpers.paths import BENCHMARK_DATA
from helpers.recordings import load_trace
from helpers.replays import tokens
from ngramspec.costs import PROFILES
from ngramspec.errors import InputError
from ngramspec.lab.recordings.traces import Cut
from ngramspec.lab.replay.subjects import DEFAULT, subject
from ngramspec.lab.replay.walk import Player, walk


def opened(spec: str) -> Player:
    return subject(spec).open(PROFILES["moe"])


def test_a_specification_names_drafters_and_parameters() -> None:
    player = opened("ngram-simple:size_n=2,size_m=3")
    player.begin(tokens(1, 2, 3, 4, 5, 1))
    player.accept(tokens(2), 0)
    assert player.propose(9).tolist() == [3, 4, 5]
    assert player.propose(2).tolist() == [3, 4]
    player.end()
    assert subject("ngram-mod,ngram-cache:n_draft=4").name == "ngram-mod,ngram-cache:n_draft=4"
    assert not subject("ngram-cache:dynamic_update=false").adaptive


def test_the_memory_of_a_pool_is_counted() -> None:
    assert opened("ngram-mod:capacity=65536").nbytes() >= 4 * 65536
    assert opened("ngram-simple").nbytes() < 4 * 65536


def test_every_player_is_fresh() -> None:
    drafter = subject("ngram-mod:n_match=2,n_min=1")
    for _ in range(2):
        player = drafter.open(PROFILES["cpu"])
        player.begin(tokens(1, 2, 3, 4))
        player.accept(tokens(5), 0)
        assert player.propose(4).tolist() == []


def test_the_default_is_one_of_them() -> None:
    assert [subject(spec).name for spec in DEFAULT] == list(DEFAULT)


def test_a_tree_is_drafted_as_large_and_wide_as_the_specification_says() -> None:
    for spec, width in (("suffix:tree=6", 2), ("suffix:tree=6,max_width=1", 1)):
        player = opened(spec)
        player.begin(tokens(1, 2, 3, 4, 6, 1, 2, 5, 8, 7, 1))
        player.accept(tokens(2), 0)
        draft = player.propose(9)
        assert isinstance(draft, tuple)
        assert [len(part) for part in draft] == [6, 6]
        assert (draft[1] == -1).sum() == width


def test_trees_get_more_tokens_accepted_than_chains_of_their_size() -> None:
    requests = load_trace(
        BENCHMARK_DATA / "traces" / "structured.crux_json.txt.xz", None, Cut(30)
    ).requests
    chain, tree = (
        walk(partial(subject(spec).open, PROFILES["cpu"]), requests)
        for spec in ("suffix:max_draft=8", "suffix:tree=8")
    )
    assert tree.mean_accepted_length > 1.03 * chain.mean_accepted_length


def test_auto_is_the_suffix_drafter_with_lengths_for_the_costs() -> None:
    auto = subject("auto:capacity=8192,max_draft=20")
    assert auto.adaptive
    block = np.arange(100, 140, dtype=np.int32)
    lengths = {}
    for name in ("h100-8b", "cpu"):
        player = auto.open(PROFILES[name])
        player.begin(np.concatenate([block, block, block[:3]]))
        player.accept(block[3:4], 0)
        lengths[name] = len(player.propose(30))
    assert lengths["h100-8b"] == 20 > lengths["cpu"] >= 0


@pytest.mark.parametrize(
    ("name", "least"), {"h100-8b": 1.05, "moe": 0.99, "cpu": 0.99, "moe-a3b": 0.99}.items()
)
def test_trees_under_the_policy_pay_where_passes_are_cheap(name: str, least: float) -> None:
    path = BENCHMARK_DATA / "traces" / "structured.crux_json.txt.xz"
    requests, profile = load_trace(path).requests, PROFILES[name]
    chain, tree = (
        walk(partial(subject(spec).open, profile), requests) for spec in ("auto", "auto:tree=64")
    )
    assert tree.speedup(profile) > least * chain.speedup(profile)


@pytest.mark.parametrize("name", PROFILES)
def test_auto_is_ahead_of_every_recorded_peer(name: str) -> None:
    path = BENCHMARK_DATA / "traces" / "structured.spider_sql.txt.xz"
    tally = walk(partial(subject("auto").open, PROFILES[name]), load_trace(path).requests)
    peers = json.loads((BENCHMARK_DATA / "peers.json").read_text())["sets"]["structured.spider_sql"]
    best = max(peers[peer]["modelled_speedup"][name] for peer in peers if peer != "oracle")
    assert tally.speedup(PROFILES[name]) > max(1.0, best)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("ngram-mood", "unknown drafter 'ngram-mood'; did you mean ngram-mod"),
        ("", "at least one drafter"),
        ("ngram-mod:n_macht=4", "unknown parameter 'n_macht'"),
        ("ngram-mod:n_match=0", "n_match must be"),
        ("ngram-mod:n_match=x", "n_match must be"),
        ("ngram-mod:n_match", "expected NAME=VALUE"),
        ("ngram-mod:=4", "expected NAME=VALUE"),
        ("ngram-mod:n_match=4,n_match=5", "once per name"),
        ("ngram-mod:pool=file.pool", "must not change files"),
        ("ngram-cache:dynamic=file.ngc", "must not change files"),
        ("suffix:tree=0", "tree must be a whole number >= 1, got 0"),
        ("suffix:tree=x", "tree must be a whole number >= 1, got 'x'"),
        ("suffix:tree=4,max_width=0.5", "max_width must be a whole number >= 1, got 0.5"),
        ("suffix:max_width=4", "max_width is for trees: give tree=N too"),
        ("suffix:policy=auto", "policy is not for a replay: `auto` drafts by a policy"),
        ("auto:policy=gate", "policy is not for a replay"),
        ("suffix:params=1", "give each parameter by its name, not as params"),
        ("auto:tree=0", "tree must be a whole number >= 1, got 0"),
        ("auto:max_branches=4", "max_branches is for trees: give tree=N too"),
        ("auto:max_width=4", "max_width is for trees: give tree=N too"),
    ],
)
def test_wrong_specifications(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        subject(spec)
