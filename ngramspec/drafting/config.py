"""One dataclass per drafter: its parameters, llama.cpp's names and defaults, and their bounds.

A parameter with a help text is an option of the command line, see `options_of`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ngramspec.drafting.names import FROM_LOGITS, nearest
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
Check = Callable[[str, object], None]  # of a parameter, by its name
MAX_LENGTH = 65535  # longest n-gram and longest draft of the simple and map drafters, in tokens
MAX_SUFFIX_DRAFT = 64
MAX_CHOSEN = 1024  # longest draft that an AutoPolicy chooses
MAX_DRAFT = 4096  # longest draft of ngram-mod and ngram-cache, in tokens


def check_int(name: str, value: object, low: int, high: int) -> None:
    """Raise InputError unless value is an int in low..high."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{name} must be an integer in {low}..{high}, got {value!r}")


def _whole(low: int, high: int) -> Check:
    return lambda name, value: check_int(name, value, low, high)


def _bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, got {value!r}")


def _seconds(name: str, value: object) -> None:
    if not isinstance(value, (int, float)) or not value >= 0:
        raise InputError(f"{name} must be >= 0 seconds, got {value!r}")


def _probability(name: str, value: object) -> None:
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InputError(f"{name} must be a number in 0..1, got {value!r}")


_COUNT, _PERCENT = _whole(0, 1 << 30), _whole(0, 100)


def _by_size(name: str, values: object) -> None:
    if not isinstance(values, (list, tuple)) or len(values) != 4:
        raise InputError(f"{name} must hold 4 integers, one per n-gram size, got {values!r}")
    for size, value in enumerate(values, start=1):
        (_PERCENT if "percent" in name else _COUNT)(f"{name} of size {size}", value)


def _option(default: T, help: str, check: Check | None = None) -> T:
    """Return a field that is an option of the command line, with its help and its bounds."""
    option: Any = field(default=default, metadata={"help": help, "check": check})
    return option  # type: ignore[no-any-return]


class _Checked:
    """A dataclass whose fields are checked when it is made."""

    def __post_init__(self) -> None:
        for one in fields(cast("Any", self)):
            if check := one.metadata.get("check"):
                check(one.name, getattr(self, one.name))


@dataclass(frozen=True)
class SimpleConfig(_Checked):
    """Parameters of ngram-simple."""

    size_n: int = _option(12, "Length of the n-gram looked up, in tokens.", _whole(1, MAX_LENGTH))
    size_m: int = _option(48, "Longest draft, in tokens.", _whole(1, MAX_LENGTH))
    min_hits: int = _option(1, "Earlier occurrences needed for a draft.", _whole(1, MAX_LENGTH))


@dataclass(frozen=True)
class MapKConfig(SimpleConfig):
    """Parameters of ngram-map-k."""


@dataclass(frozen=True)
class MapK4vConfig(SimpleConfig):
    """Parameters of ngram-map-k4v."""

    max_values: int = _option(4, "Continuations compared per key.", _whole(2, 16))
    window: int = _option(16, "Most recent occurrences of a key that vote.", _whole(1, MAX_LENGTH))


@dataclass(frozen=True)
class ModConfig(_Checked):
    """Parameters of ngram-mod; capacity, check_bits and max_occupancy shape a new pool.

    HashPool checks these.
    """

    n_match: int = _option(24, "Tokens hashed per lookup.", _whole(1, MAX_LENGTH))
    n_min: int = _option(48, "Tokens in a row that the pool must know.", _whole(0, MAX_DRAFT))
    n_max: int = _option(64, "Longest draft, in tokens.", _whole(1, MAX_DRAFT))
    pool: HashPool | PathLike | None = None  # a file is shared by all processes that use it
    capacity: int = _option(1 << 22, "Cells of the pool, 4 bytes each.")
    check_bits: int = _option(8, "Check bits per cell, against false hits.")
    max_occupancy: float = _option(0.5, "Filled share above which old cells are evicted.")
    tokenizer: Fingerprint | PathLike | None = None  # of the target; what a file must agree with
    any_tokenizer: bool = False  # take files of another tokenizer


@dataclass(frozen=True)
class CacheConfig(_Checked):
    """Parameters of ngram-cache. Sequences have one value per n-gram size 1..4."""

    n_draft: int = _option(8, "Longest draft, in tokens.", _whole(1, MAX_DRAFT))
    ngram_min: int = _option(1, "Shortest n-gram, in tokens.", _whole(1, 4))
    ngram_max: int = _option(4, "Longest n-gram, in tokens.")
    static: StaticCache | NgramCache | PathLike | None = None
    dynamic: NgramCache | DynamicFile | PathLike | None = None
    lax_min_sample: Sequence[int] = _option(
        (2, 2, 1, 1), "Minimum count in the slot's cache, for n-gram sizes 1 to 4.", _by_size
    )
    lax_min_percent: Sequence[int] = _option(
        (66, 50, 50, 50), "Minimum percent in the slot's cache, by size.", _by_size
    )
    strict_min_sample: Sequence[int] = _option(
        (4, 3, 2, 2), "Minimum count in the dynamic cache, by size.", _by_size
    )
    strict_min_percent: Sequence[int] = _option(
        (75, 66, 66, 66), "Minimum percent in the dynamic cache, by size.", _by_size
    )
    static_min_sample: int = _option(2, "Minimum count in the static cache alone.", _COUNT)
    static_min_percent: int = _option(50, "Minimum percent in the static cache alone.", _PERCENT)
    static_veto: bool = _option(True, "Let the static cache veto a follower that passes.", _bool)
    dynamic_update: bool = _option(True, "Add generated text to the dynamic cache.", _bool)
    # For a dynamic cache that is opened from a path.
    max_ngrams: int = _option(1 << 22, "Most n-grams kept in the dynamic cache.")
    # Seconds between saves of that cache; 0 = at the end only.
    save_interval: float = field(default=300.0, metadata={"check": _seconds})
    tokenizer: Fingerprint | PathLike | None = None  # of the target; what a file must agree with
    any_tokenizer: bool = False  # take files of another tokenizer

    def __post_init__(self) -> None:
        """Check the bounds; NgramCache checks max_ngrams."""
        super().__post_init__()
        check_int("ngram_max", self.ngram_max, self.ngram_min, 4)

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
class SuffixConfig(_Checked):
    """Parameters of suffix; capacity sizes a new pool if none is given."""

    max_draft: int = _option(64, "Longest draft, in tokens.", _whole(1, MAX_SUFFIX_DRAFT))
    min_probability: float = _option(
        0.01, "End a draft when it is less likely right than this.", _probability
    )
    share: bool = _option(True, "Draft from other requests too.", _bool)
    pool_prompts: bool = _option(True, "Draft from other requests' prompts too.", _bool)
    capacity: int = _option(
        1 << 20, "Tokens kept of other requests, 31 bytes each.", _whole(4096, 29_000_000)
    )
    pool: SuffixPool | None = None  # shared with other drafters
    static: SuffixIndex | PathLike | None = None  # index of a corpus to draft from as well
    tokenizer: Fingerprint | PathLike | None = None  # of the target; what a file must agree with
    any_tokenizer: bool = False  # take files of another tokenizer

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pool is not None and type(self.pool).__name__ != "SuffixPool":
            raise InputError(f"pool must be a SuffixPool, got {type(self.pool).__name__}")


@dataclass(frozen=True)
class RecycleConfig(_Checked):
    """Parameters of recycle; capacity and top shape a new pool if none is given."""

    max_draft: int = _option(64, "Longest draft, in tokens.", _whole(1, MAX_SUFFIX_DRAFT))
    min_probability: float = _option(
        0.01, "End a draft when it is less likely right than this.", _probability
    )
    key_tokens: int = _option(2, "Newest tokens looked up: 1, or 2 and then 1.", _whole(1, 2))
    top: int = _option(8, "Followers kept of a key.", _whole(1, 16))
    capacity: int = _option(
        1 << 17, "Keys kept, 64 bytes each for 8 followers.", _whole(64, 1 << 26)
    )
    pool: SuccessorPool | PathLike | None = None  # shared with other drafters; a file is saved
    # Seconds between saves of that file; 0 = at the end only.
    save_interval: float = field(default=300.0, metadata={"check": _seconds})
    tokenizer: Fingerprint | PathLike | None = None  # of the target; what a file must agree with
    any_tokenizer: bool = False  # take files of another tokenizer

    def __post_init__(self) -> None:
        super().__post_init__()
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


def by_drafter(
    names: Sequence[str],
    shared: Mapping[str, Any],
    params: Mapping[str, Mapping[str, Any]],
    where: str = "params",
) -> dict[str, dict[str, Any]]:
    """Return the parameters of each drafter: the shared ones that it has, and its own.

    Args:
        names: Of the drafters.
        shared: Parameters of any of them.
        params: Parameters by drafter name.
        where: What holds `params`, for messages.

    Raises:
        InputError: No drafter has a shared parameter, or one has not what is its own; or `params`
            names another drafter or is no mapping of mappings.
    """
    if not isinstance(params, Mapping):
        raise InputError(f"{where} must be a mapping by drafter, got {type(params).__name__}")
    keys = {name: {one.name for one in fields(CONFIGS[name])} for name in names}
    for key in shared:
        if not any(key in one for one in keys.values()):
            hint = nearest(key, sorted(set().union(*keys.values())))
            raise InputError(f"unknown parameter {key!r} for {', '.join(names)}; {hint}")
    per_name = {name: {k: v for k, v in shared.items() if k in keys[name]} for name in names}
    for name, own in params.items():
        if name not in per_name:
            raise InputError(f"{where} names {name!r}, which is not in {', '.join(names)}")
        if not isinstance(own, Mapping):
            raise InputError(f"{where} of {name} must be a mapping, got {type(own).__name__}")
        for key in own:
            if key not in keys[name]:
                hint = nearest(str(key), keys[name])
                raise InputError(f"unknown parameter {key!r} for {name}; {hint}")
        per_name[name].update(own)
    return per_name


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
