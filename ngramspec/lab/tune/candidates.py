"""Candidates for a user's own text: drafters with sizes and draft lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any

from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.costs import CostTable
from ngramspec.drafting import create_drafter
from ngramspec.drafting.config import CONFIGS
from ngramspec.drafting.names import DEFAULT_MAX_DRAFT, DRAFTER_NAMES, FROM_LOGITS
from ngramspec.lab.replay.player import Player
from ngramspec.lab.replay.subjects import AUTO, DrafterPlayer

MAPS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
MOD, CACHE = "ngram-mod", "ngram-cache"
# By drafter, the parameters that llama-server has as options and uses. Its ngram-cache has none
# and learns next to nothing from requests, so a replay of ours does not predict it.
LLAMA_SERVER = {
    "ngram-simple": ("size_n", "size_m"),
    "ngram-map-k": ("size_n", "size_m"),
    "ngram-map-k4v": ("size_n", "size_m", "min_hits"),
    MOD: ("n_match", "n_min", "n_max"),
}
KEYS = (3, 4, 6, 8, 12, 16, 24)
LENGTHS = (4, 8, 16, 32, 48, 64)
MATCHES = (6, 8, 12, 16, 24, 32)
# Of ngram-mod: tokens in a row that the pool must know, longest draft.
RUNS = ((1, 8), (1, 16), (2, 32), (4, 64), (8, 16), (8, 64), (16, 32), (16, 64), (48, 64))
AUTO_RUNS = ((1, 64), (4, 64), (16, 64))
CHAINS = (
    "ngram-mod,ngram-cache",
    "ngram-simple,ngram-cache",
    "ngram-map-k,ngram-cache",
    "ngram-map-k4v,ngram-cache",
    "ngram-map-k,ngram-mod",
    "ngram-map-k4v,ngram-mod",
    "ngram-mod,suffix",
    "ngram-cache,suffix",
)
Sizes = dict[str, Any]
# With these the first drafter of a chain finds more; the others do not have them.
SHORT_KEYS: Sizes = {"size_n": 8, "n_match": 12, "n_min": 4}


@dataclass(frozen=True)
class Candidate:
    """A drafter or chain with its sizes; a Subject of a replay.

    spec: names with commas between, as create_drafter takes them.
    params: what differs from the defaults; each goes to all members of a chain that have it.
    adaptive: whether an AutoPolicy chooses the lengths of drafts by the costs of the target.
    """

    spec: str
    params: Mapping[str, Any] = field(hash=False)
    adaptive: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The drafters, in the order in which they are asked."""
        return tuple(self.spec.split(","))

    @property
    def sizes(self) -> str:
        """The parameters as `bench replay --drafter` takes them after the colon."""
        shown = {key: str(value).lower() for key, value in self.params.items()}
        return ",".join(f"{key}={value}" for key, value in shown.items())

    @property
    def lengths(self) -> str:
        """How the lengths of drafts are chosen: "auto" or "fixed"."""
        return "auto" if self.adaptive else "fixed"

    @property
    def name(self) -> str:
        """A name that no other candidate has."""
        sizes = f":{self.sizes}" if self.params else ""
        return f"{self.spec}{sizes} {self.lengths}"

    @property
    def for_llama_server(self) -> bool:
        """Whether llama-server has these drafters, sizes and lengths."""
        keys = {key for name in self.names for key in LLAMA_SERVER.get(name, ())}
        all_there = not self.adaptive and all(name in LLAMA_SERVER for name in self.names)
        # Its ngram-simple drafts nothing where the draft is shorter than the key.
        silent = "ngram-simple" in self.names and self.value("size_m") < self.value("size_n")
        return all_there and set(self.params) <= keys and not silent

    def value(self, key: str) -> Any:
        """Return a parameter; if it is not set, the default of the first drafter that has it.

        Raises:
            StopIteration: No drafter has it.
        """
        return self.params.get(key, next(d for name in self.names if (d := _default(name, key))))

    def open(
        self, profile: CostTable, files: Mapping[str, Mapping[str, Any]] | None = None
    ) -> Player:
        """Return a fresh player for a target with these costs.

        files: Further parameters by drafter: statistics that they read.
        """
        policy = AutoPolicy(DEFAULT_MAX_DRAFT, profile) if self.adaptive else None
        drafter = create_drafter(self.spec, policy=policy, params=files, **self.params)
        return DrafterPlayer(drafter)


DEFAULT = Candidate(AUTO, {}, True)


def grid() -> list[Candidate]:
    """Return all candidates: the default, every drafter and chain as it is, then other sizes."""
    candidates = [DEFAULT]
    for spec in (*(name for name in reversed(DRAFTER_NAMES) if name not in FROM_LOGITS), *CHAINS):
        candidates += [_candidate(spec, {}, adaptive) for adaptive in (True, False)]
    candidates += [_candidate(spec, sizes, True) for spec, sizes in _auto_sizes()]
    candidates += [_candidate(spec, sizes, False) for spec, sizes in _fixed_sizes()]
    return list({candidate.name: candidate for candidate in candidates}.values())


def _candidate(spec: str, sizes: Sizes, adaptive: bool) -> Candidate:
    """Return a candidate with those sizes that are not defaults."""
    names = spec.split(",")
    changed = {
        key: value
        for key, value in sizes.items()
        if any(_default(name, key) not in (None, value) for name in names)
    }
    return Candidate(spec, changed, adaptive)


def _default(drafter: str, key: str) -> Any:
    """Return the default of a parameter, None if the drafter does not have it."""
    return next((f.default for f in fields(CONFIGS[drafter]) if f.name == key), None)


def _auto_sizes() -> Iterator[tuple[str, Sizes]]:
    """Yield sizes for drafts that a policy shortens: the lengths are upper bounds."""
    for spec in MAPS:
        yield from ((spec, {"size_n": n, "size_m": DEFAULT_MAX_DRAFT}) for n in KEYS)
        yield from (
            (spec, {"size_n": n, "size_m": DEFAULT_MAX_DRAFT, "min_hits": 2}) for n in KEYS[:4]
        )
    for n_match, (n_min, n_max) in product(MATCHES, AUTO_RUNS):
        yield MOD, {"n_match": n_match, "n_min": n_min, "n_max": n_max}
    for n_draft, ngram_min in product((8, 16, 32), (1, 2)):
        yield CACHE, {"n_draft": n_draft, "ngram_min": ngram_min}
    for share, prompts in ((True, False), (False, True)):
        yield AUTO, {"share": share, "pool_prompts": prompts}
    yield from ((AUTO, {"min_probability": least}) for least in (0.0, 0.05, 0.2))
    yield from ((AUTO, {"capacity": capacity}) for capacity in (1 << 16, 1 << 18, 1 << 22))
    yield from ((AUTO, {"max_draft": most}) for most in (8, 16, 32))
    for chain in CHAINS:
        yield chain, SHORT_KEYS


def _fixed_sizes() -> Iterator[tuple[str, Sizes]]:
    for spec, size_n, size_m in product(MAPS, KEYS, LENGTHS):
        yield spec, {"size_n": size_n, "size_m": size_m}
    for size_n, size_m in product(KEYS[:4], LENGTHS[:3]):
        yield "ngram-map-k4v", {"size_n": size_n, "size_m": size_m, "min_hits": 2}
    for n_match, (n_min, n_max) in product(MATCHES, RUNS):
        yield MOD, {"n_match": n_match, "n_min": n_min, "n_max": n_max}
    for n_draft, ngram_min, ngram_max in product((2, 4, 8, 16), (1, 2), (3, 4)):
        yield CACHE, {"n_draft": n_draft, "ngram_min": ngram_min, "ngram_max": ngram_max}
    for max_draft, least in product((4, 8, 16, 32, 64), (0.01, 0.1, 0.3, 0.5)):
        yield AUTO, {"max_draft": max_draft, "min_probability": least}
    for chain in CHAINS:
        yield chain, SHORT_KEYS
        yield chain, {**SHORT_KEYS, "size_m": 16, "n_max": 16, "n_draft": 4}
