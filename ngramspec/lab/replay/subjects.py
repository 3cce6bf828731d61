"""ngramspec's own drafters as Subjects, from `--drafter` specifications."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.mod.pool import HashPool
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec._native.suffix.pool import SuffixPool
from ngramspec.costs import PROFILES, CostTable
from ngramspec.drafting import create_drafter
from ngramspec.drafting.names import DEFAULT_MAX_DRAFT, parse_names
from ngramspec.errors import InputError
from ngramspec.lab.replay.walk import Draft, Subject
from ngramspec.text.tokenizers import Fingerprint

DEFAULT: tuple[str, ...] = ("auto",)
LEARNS_INTO_FILES = ("dynamic", "pool", "save_interval")
OF_THE_POOL = ("capacity", "check_bits", "max_occupancy")
# Drafters whose lengths follow the costs: what `auto` stands for.
AUTO = "suffix"
# Parameters that make a replay draft trees: their tokens, the most at one depth, and of branches.
OF_TREES = ("tree", "max_width", "max_branches")


def subject(spec: str, tokenizer: Fingerprint | None = None) -> Subject:
    """Return the drafter that a specification names.

    Args:
        spec: "auto", or names with commas between, as create_drafter takes them; then optionally
            ":" and parameters, such as "ngram-map-k:size_n=8,size_m=32". With "tree=N" among
            them, trees of N tokens are drafted, with "max_width=W" at most W of them at one depth,
            with "max_branches=B" of at most B branches.
        tokenizer: That of the requests, which a statistics file must have; None = unknown.

    Raises:
        InputError: An unknown drafter or parameter, a value out of bounds, or a file that a
            replay would change.
        OSError, FormatError: A statistics file cannot be read.
        VocabMismatchError: It is of another tokenizer.
    """
    names, params = parse_spec(spec)
    if tokenizer is not None and "static" in params:
        params.setdefault("tokenizer", tokenizer)
    if names == "auto":
        _auto(params, PROFILES["cpu"])  # raises now if it is wrong
        return Subject(spec, partial(_auto, params), adaptive=True)
    _open(names, params)
    return Subject(spec, lambda _: _open(names, params))


class DrafterPlayer:
    """DrafterPlayer(drafter, *shared, tree=None): the player of a Drafter with one slot.

    shared: pools and caches that the drafter uses; its own memory does not include them.
    tree: arguments of propose_tree after the slot; None = drafts without branches.
    """

    def __init__(
        self,
        drafter: Drafter,
        *shared: HashPool | SuffixPool,
        tree: Mapping[str, int] | None = None,
    ) -> None:
        self._drafter, self._shared = drafter, shared
        self.begin = partial(drafter.begin, 0)
        self.propose: Callable[[int], Draft] = partial(drafter.propose, 0)
        if tree is not None:
            self.propose = lambda limit: drafter.propose_tree(0, **tree)[:2]
        self.accept = partial(drafter.accept, 0)
        self.end = partial(drafter.end, 0)

    def nbytes(self) -> int:
        """Return the drafter's memory and that of what it shares."""
        return self._drafter.nbytes + sum(one.nbytes for one in self._shared)


def _auto(settings: Mapping[str, Any], profile: CostTable) -> DrafterPlayer:
    params, tree = _split(settings)
    pool = SuffixPool(params["capacity"]) if "capacity" in params else SuffixPool()
    policy = AutoPolicy(params.get("max_draft", DEFAULT_MAX_DRAFT), profile)
    drafter = create_drafter(AUTO, **{**params, "pool": pool}, policy=policy)
    return DrafterPlayer(drafter, pool, tree=tree)


def _open(names: str, settings: Mapping[str, Any]) -> DrafterPlayer:
    params, tree = _split(settings)
    if "ngram-mod" not in parse_names(names, "priority"):
        return DrafterPlayer(create_drafter(names, **params), tree=tree)
    pool = HashPool(**{key: params[key] for key in OF_THE_POOL if key in params})
    return DrafterPlayer(create_drafter(names, **{**params, "pool": pool}), pool, tree=tree)


def _split(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int] | None]:
    """Return parameters of a drafter and arguments of propose_tree, None without branches."""
    if "policy" in settings:
        raise InputError(
            "policy is not for a replay: `auto` drafts by a policy, the others at full length"
        )
    params = {key: value for key, value in settings.items() if key not in OF_TREES}
    limits = {key: settings[key] for key in OF_TREES if key in settings}
    for key, value in limits.items():
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{key} must be a whole number >= 1, got {value!r}")
    if not limits:
        return params, None
    if "tree" not in limits:
        raise InputError(f"{next(iter(limits))} is for trees: give tree=N too")
    return params, {"max_tokens": limits.pop("tree"), **limits}


def parse_spec(spec: str) -> tuple[str, dict[str, Any]]:
    """Split a specification into names and parameters, the values as Python values.

    Raises:
        InputError: It has another form, or a parameter that makes a drafter write files.
    """
    names, _, text = spec.partition(":")
    params: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, is_set, value = part.partition("=")
        if not is_set or not key or key in params:
            raise InputError(f"{spec!r}: expected NAME=VALUE once per name, got {part!r}")
        if key == "params":
            raise InputError(f"{spec!r}: give each parameter by its name, not as params")
        if key in LEARNS_INTO_FILES:
            raise InputError(
                f"{spec!r}: a benchmark must not change files, so {key} is not possible"
            )
        params[key] = _value(value)
    return names, params


def _value(text: str) -> Any:
    """Return a number or truth value as JSON writes it, other text as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float)) else text
