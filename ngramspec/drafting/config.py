"""One dataclass per drafter: its parameters, llama.cpp's names and defaults, and their bounds.

A parameter with a help text is an option of the command line, see `options_of`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from ngramspec.drafting.names import FROM_LOGITS
from ngramspec.errors import InputError

if TYPE_CHECKING:
    from ngramspec._native.cache.ngram_cache import NgramCache
    from ngramspec._native.cache.static import StaticCache
    from ngramspec._native.mod.pool import HashPool
    from ngramspec._native.recycle.successors import SuccessorPool
    from ngramspec._native.suffix.index import SuffixIndex
    from ngramspec._native.suffix.pool import SuffixPool
    from ngramspec.files.dynamic_file import DynamicFile
    from ngramspec.text.tokenizers import Fingerprint

PathLike = str | os.PathLike[str]
T = TypeVar("T")
MAX_LENGTH = 65535  # longest n-gram and longest draft of the simple and map drafters, in tokens
MAX_SUFFIX_DRAFT = 64
MAX_CHOSEN = 1024  # longest draft that an AutoPolicy chooses
MAX_DRAFT = 4096  # longest draft of ngram-mod and ngram-cache, in tokens


def check_int(name: str, value: object, low: int, high: int) -> None:
    """Raise InputError unless value is an int in low..high."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{name} must be an integer in {low}..{high}, got {value!r}")


def _option(default: T, help: str) -> T:
    """Return a field that is an option of the command line, with its help."""
    option: Any = field(default=default, metadata={"help": help})
    return option  # type: ignore[no-any-return]


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, got {value!r}")


def _check_interval(value: object) -> None:
    if not isinstance(value, (int, float)) or not value >= 0:
        raise InputError(f"save_interval must be >= 0 seconds, got {value!r}")


def _check_probability(name: str, value: object) -> None:
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InputError(f"{name} must be a number in 0..1, got {value!r}")


@dataclass(frozen=True)
class SimpleConfig:
    """Parameters of ngram-simple."""

    size_n: int = _option(12, "Length of the n-gram looked up, in tokens.")
    size_m: int = _option(48, "Longest draft, in tokens.")
    min_hits: int = _option(1, "Earlier occurrences needed for a draft.")

    def __post_init__(self) -> None:
        check_int("size_n", self.size_n, 1, MAX_LENGTH)
        check_int("size_m", self.size_m, 1, MAX_LENGTH)
        check_int("min_hits", self.min_hits, 1, MAX_LENGTH)


@dataclass(frozen=True)
class MapKConfig(SimpleConfig):
    """Parameters of ngram-map-k."""


@dataclass(frozen=True)
class MapK4vConfig(SimpleConfig):
    """Parameters of ngram-map-k4v."""

    max_values: int = _option(4, "Continuations compared per key.")
    window: int = _option(16, "Most recent occurrences of a key that vote.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("max_values", self.max_values, 2, 16)
        check_int("window", self.window, 1, MAX_LENGTH)


@dataclass(frozen=True)
class ModConfig:
    """Parameters of ngram-mod; capacity, check_bits and max_occupancy shape a new pool."""

    n_match: int = _option(24, "Tokens hashed per lookup.")
    n_min: int = _option(48, "Tokens in a row that the pool must know.")
    n_max: int = _option(64, "Longest draft, in tokens.")
    pool: HashPool | PathLike | None = None  # a file is shared by all processes that use it
    capacity: int = _option(1 << 22, "Cells of the pool, 4 bytes each.")
    check_bits: int = _option(8, "Check bits per cell, against false hits.")
    max_occupancy: float = _option(0.5, "Filled share above which old cells are evicted.")
    tokenizer: Fingerprint | PathLike | None = None  # of the target; what a file must agree with
    any_tokenizer: bool = False  # take files of another tokenizer

    def __post_init__(self) -> None:
        """Check the bounds; HashPool checks its own."""
        check_int("n_match", self.n_match, 1, MAX_LENGTH)
        check_int("n_min", self.n_min, 0, MAX_DRAFT)
        check_int("n_max", self.n_max, 1, MAX_DRAFT)


@dataclass(frozen=True)
class CacheConfig:
    """Parameters of ngram-cache. Sequences have one value per n-gram size 1..4."""

    n_draft: int = _option(8, "Longest draft, in tokens.")
    ngram_min: int = _option(1, "Shortest n-gram, in tokens.")
    ngram_max: int = _option(4, "Longest n-gram, in tokens.")
    static: StaticCache | NgramCache | PathLike | None = None
    dynamic: NgramCache | DynamicFile | PathLike | None = None
    lax_min_sample: Sequence[int] = _option(
        (2, 2, 1, 1), "Minimum count in the slot's cache, for n-gram sizes 1 to 4."
    )
    lax_min_percent: Sequence[int] = _option(
        (66, 50, 50, 50), "Minimum percent in the slot's cache, by size."
    )
    strict_min_sample: Sequence[int] = _option(
        (4, 3, 2, 2), "Minimum count in the dynamic cache, by size."
    )
    strict_min_percent: Sequence[int] = _option(
        (75, 66, 66, 66), "Minimum percent in the dynamic cache, by size."
    )
    static_min_sample: int = _option(2, "Minimum count in the static cache alone.")
    static_min_percent: int = _option(50, "Minimum percent in the static cache alone.")
    static_veto: bool = _option(True, "Let the static cache veto a follower that passes.")
    dynamic_update: bool = _option(True, "Add generated text to the dynamic cache.")
    # For a dynamic cache that is opened from a path.
    max_ngrams: int = _option(1 << 22, "Most n-grams kept in the dynamic cache.")
    save_interval: float = 300.0  # seconds between saves of that cache; 0 = at the end only
    tokenizer: Fingerprint | PathLike | None = None  # of the target; what a file must agree with
    any_tokenizer: bool = False  # take files of another tokenizer

    def __post_init__(self) -> None:
        """Check the bounds; NgramCache checks max_ngrams."""
        check_int("n_draft", self.n_draft, 1, MAX_DRAFT)
        check_int("ngram_min", self.ngram_min, 1, 4)
        check_int("ngram_max", self.ngram_max, self.ngram_min, 4)
        for name in ("lax_min_sample", "strict_min_sample"):
            self._check_sizes(name, 1 << 30)
        for name in ("lax_min_percent", "strict_min_percent"):
            self._check_sizes(name, 100)
        check_int("static_min_sample", self.static_min_sample, 0, 1 << 30)
        check_int("static_min_percent", self.static_min_percent, 0, 100)
        _check_bool("static_veto", self.static_veto)
        _check_interval(self.save_interval)
        _check_bool("dynamic_update", self.dynamic_update)

    def _check_sizes(self, name: str, high: int) -> None:
        values = getattr(self, name)
        if not isinstance(values, (list, tuple)) or len(values) != 4:
            raise InputError(f"{name} must hold 4 integers, one per n-gram size, got {values!r}")
        for size, value in enumerate(values, start=1):
            check_int(f"{name} of size {size}", value, 0, high)

    @property
    def lax(self) -> tuple[tuple[int, int], ...]:
        """Minimum sample and percent per size for the context."""
        return tuple(zip(self.lax_min_sample, self.lax_min_percent, strict=True))

    @property
    def strict(self) -> tuple[tuple[int, int], ...]:
        """Minimum sample and percent per size for the dynamic cache."""
        return tuple(zip(self.strict_min_sample, self.strict_min_percent, strict=True))

    @property
    def static_only(self) -> tuple[int, int]:
        """Minimum sample and percent for static counts alone."""
        return (self.static_min_sample, self.static_min_percent)


@dataclass(frozen=True)
class SuffixConfig:
    """Parameters of suffix; capacity sizes a new pool if none is given."""

    max_draft: int = _option(64, "Longest draft, in tokens.")
    min_probability: float = _option(0.01, "End a draft when it is less likely right than this.")
    share: bool = _option(True, "Draft from other requests too.")
    pool_prompts: bool = _option(True, "Draft from other requests' prompts too.")
    capacity: int = _option(1 << 20, "Tokens kept of other requests, 31 bytes each.")
    pool: SuffixPool | None = None  # shared with other drafters
    static: SuffixIndex | PathLike | None = None  # index of a corpus to draft from as well
    tokenizer: Fingerprint | PathLike | None = None  # of the target; what a file must agree with
    any_tokenizer: bool = False  # take files of another tokenizer

    def __post_init__(self) -> None:
        check_int("max_draft", self.max_draft, 1, MAX_SUFFIX_DRAFT)
        check_int("capacity", self.capacity, 4096, 29_000_000)
        _check_bool("share", self.share)
        _check_bool("pool_prompts", self.pool_prompts)
        _check_probability("min_probability", self.min_probability)
        if self.pool is not None and type(self.pool).__name__ != "SuffixPool":
            raise InputError(f"pool must be a SuffixPool, got {type(self.pool).__name__}")


@dataclass(frozen=True)
class RecycleConfig:
    """Parameters of recycle; capacity and top shape a new pool if none is given."""

    max_draft: int = _option(64, "Longest draft, in tokens.")
    min_probability: float = _option(0.01, "End a draft when it is less likely right than this.")
    key_tokens: int = _option(2, "Newest tokens looked up: 1, or 2 and then 1.")
    top: int = _option(8, "Followers kept of a key.")
    capacity: int = _option(1 << 17, "Keys kept, 64 bytes each for 8 followers.")
    pool: SuccessorPool | PathLike | None = None  # shared with other drafters; a file is saved
    save_interval: float = 300.0  # seconds between saves of that file; 0 = at the end only
    tokenizer: Fingerprint | PathLike | None = None  # of the target; what a file must agree with
    any_tokenizer: bool = False  # take files of another tokenizer

    def __post_init__(self) -> None:
        check_int("max_draft", self.max_draft, 1, MAX_SUFFIX_DRAFT)
        check_int("key_tokens", self.key_tokens, 1, 2)
        check_int("top", self.top, 1, 16)
        check_int("capacity", self.capacity, 64, 1 << 26)
        _check_probability("min_probability", self.min_probability)
        _check_interval(self.save_interval)
        pool = self.pool
        if not isinstance(pool, (str, os.PathLike, type(None))) and (
            type(pool).__name__ != "SuccessorPool"
        ):
            kind = type(pool).__name__
            raise InputError(f"pool must be a SuccessorPool or a path, got {kind}")


Config = (
    RecycleConfig
    | SuffixConfig
    | SimpleConfig
    | MapKConfig
    | MapK4vConfig
    | ModConfig
    | CacheConfig
)
CONFIGS: dict[str, type[Config]] = {
    "ngram-simple": SimpleConfig,
    "ngram-map-k": MapKConfig,
    "ngram-map-k4v": MapK4vConfig,
    "ngram-mod": ModConfig,
    "ngram-cache": CacheConfig,
    "suffix": SuffixConfig,
    "recycle": RecycleConfig,
}


def options_of(name: str) -> list[Field[Any]]:
    """Return the parameters of a drafter that are options of the command line."""
    return [one for one in fields(CONFIGS[name]) if "help" in one.metadata]


def option_flag(name: str, parameter: str, value: object = None) -> str:
    """Return the command-line flag of a drafter's parameter, its --no form for the value False."""
    words = f"spec-{name}-{parameter}".replace("_", "-")
    return f"--no-{words}" if value is False else f"--{words}"


def refuse_untaught(host: str, params: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise if a drafter would draft nothing because the host never shows logits.

    Args:
        host: Its name, for the message.
        params: Parameters of each drafter, by name. A `pool` file may hold what was learnt
            elsewhere, so with one there are drafts.

    Raises:
        InputError: A drafter learns from logits and has no such file.
    """
    for name, own in params.items():
        if name in FROM_LOGITS and own.get("pool") is None:
            raise InputError(
                f"{name} learns from the target's logits, which {host} never shows a drafter, so "
                f"it would draft nothing: leave it out"
            )
