"""Statistics that drafters are given as files: static and dynamic caches, pools, indexes."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from ngramspec._native.cache.ngram_cache import NgramCache
from ngramspec._native.cache.static import StaticCache
from ngramspec._native.mod.pool import HashPool
from ngramspec._native.suffix.index import SuffixIndex
from ngramspec.drafting.config import CacheConfig, ModConfig, RecycleConfig, SuffixConfig
from ngramspec.errors import InputError, VocabMismatchError
from ngramspec.files.cache_file import SIZES, Origin, cache_in_memory, open_cache
from ngramspec.files.container import is_container
from ngramspec.files.dynamic_file import CONTAINER_SUFFIX, Autosave, DynamicFile, SavedFile
from ngramspec.files.entries import ArraySource, Entries
from ngramspec.files.llama_lookup import read_lookup_entries
from ngramspec.files.pool_file import PoolShape, create_pool, open_pool
from ngramspec.files.successor_file import SuccessorFile
from ngramspec.files.suffix_file import open_suffix_index
from ngramspec.text.tokenizers import Fingerprint, fingerprint_of

DRAFTERS_WITH_FILES = ("ngram-mod", "ngram-cache", "suffix", "recycle")
AnyConfig: TypeAlias = CacheConfig | ModConfig | SuffixConfig | RecycleConfig
Config = TypeVar("Config", bound=AnyConfig)
Opened = TypeVar("Opened")


def _names_target(open: Callable[[Config], Opened]) -> Callable[[Config], Opened]:
    """Let a VocabMismatchError of a function name the target too, where its config tells it."""

    @functools.wraps(open)
    def opened(config: Config) -> Opened:
        try:
            return open(config)
        except VocabMismatchError as error:
            target = _target(config)
            if target is None or not target.name:
                raise
            raise VocabMismatchError(f"{error}; the target is {target.name}") from None

    return opened


@_names_target
def open_static(config: CacheConfig) -> StaticCache | None:
    """Return the static cache that a config names: mapped, or made from counts or a lookup cache.

    Raises:
        InputError: It is neither a cache nor a path.
        FormatError: The file is not valid.
        VocabMismatchError: It was built with another tokenizer than config.tokenizer.
        OSError: It cannot be read.
    """
    static = config.static
    if static is None or isinstance(static, StaticCache):
        return static
    if isinstance(static, NgramCache):
        return _in_memory({size: static.entries(size) for size in SIZES})
    path = _path("static", "a StaticCache, an NgramCache", static)
    if is_container(path) or path.suffix == CONTAINER_SUFFIX:
        digest = _origin(config).fingerprint
        return open_cache(path, fingerprint=digest, any_tokenizer=config.any_tokenizer)
    return _in_memory(read_lookup_entries(path))


@_names_target
def open_dynamic(config: CacheConfig) -> tuple[NgramCache | None, DynamicFile | None]:
    """Return the dynamic cache that a config names, and its file if the config gives a path.

    Raises:
        As open_static; CapacityError: The file holds more than max_ngrams.
    """
    dynamic = config.dynamic
    if dynamic is None or isinstance(dynamic, NgramCache):
        return dynamic, None
    if isinstance(dynamic, DynamicFile):
        return dynamic.cache, None
    path = _path("dynamic", "an NgramCache, a DynamicFile", dynamic)
    bounds = (config.ngram_min, config.ngram_max, config.max_ngrams)
    file = DynamicFile(path, *bounds, _origin(config), config.any_tokenizer)
    return file.cache, file


@_names_target
def open_successor_file(config: RecycleConfig) -> SuccessorFile:
    """Open the file that a config names as the pool of recycle.

    Raises:
        As SuccessorFile.
    """
    path = _path("pool", "a SuccessorPool", config.pool)
    return SuccessorFile(path, config.capacity, config.top, _origin(config), config.any_tokenizer)


def save_with(owner: object, file: SavedFile, seconds: float) -> None:
    """Save the file at intervals, when `owner` is freed and when the process ends."""
    if seconds > 0:
        weakref.finalize(owner, Autosave(file, seconds).stop)
    else:
        weakref.finalize(owner, file.close)


class Saves:
    """Files that are saved at intervals in the block, and once more at its end; see `close`.

    Thread-safety: `save_soon` from any thread, the rest from one.
    """

    def __init__(self) -> None:
        self._savings: list[Autosave] = []
        self._ends = contextlib.ExitStack()

    def __enter__(self) -> Saves:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.__exit__(kind, error, trace)

    def add(self, file: SavedFile, seconds: float) -> None:
        """Save a file every `seconds`; 0: at the end only."""
        saving = Autosave(file, seconds)
        self._savings.append(saving)
        self._ends.callback(saving.stop)

    def close(self) -> None:
        """Save all of them a last time, and save them no more. May be called again.

        Raises:
            As Autosave.stop: the last of them that failed, once all were tried.
        """
        self._ends.close()

    def save_soon(self) -> None:
        """Save all of them now, each in a thread of its own, without waiting for it."""
        for saving in self._savings:
            saving.save_soon()


def open_shared(params: Mapping[str, Mapping[str, Any]], saves: Saves) -> dict[str, dict[str, Any]]:
    """Open the files of drafter parameters once, for all drafters that are made of them.

    Args:
        params: Parameters by drafter name. A pool stays a path, as every user maps it, and is
            opened here to see whether it fits.
        saves: Saves a dynamic cache and recycle's pool.

    Returns:
        The parameters with opened files, as a copy.

    Raises:
        As open_static and open_dynamic; FileNotFoundError: The folder of a file that will be
        written does not exist.
    """
    opened = {name: dict(own) for name, own in params.items()}
    mod, cache, suffix, recycle = (opened.get(name, {}) for name in DRAFTERS_WITH_FILES)
    if isinstance(mod.get("pool"), (str, os.PathLike)):
        _need_folder(mod["pool"])
        if Path(mod["pool"]).exists():
            open_or_make_pool(ModConfig(**mod))
    if suffix.get("static") is not None:
        suffix["static"] = open_index(SuffixConfig(**suffix))
    if cache.get("static") is not None:
        cache["static"] = open_static(CacheConfig(**cache))
    if isinstance(cache.get("dynamic"), (str, os.PathLike)):
        _need_folder(cache["dynamic"])
        config = CacheConfig(**cache)
        _, file = open_dynamic(config)
        assert file is not None  # as it is a path
        cache["dynamic"] = file
        saves.add(file, config.save_interval)
    if isinstance(recycle.get("pool"), (str, os.PathLike)):
        _need_folder(recycle["pool"])
        settings = RecycleConfig(**recycle)
        successors = open_successor_file(settings)
        recycle["pool"] = successors.pool
        saves.add(successors, settings.save_interval)
    return opened


def _need_folder(path: str | os.PathLike[str]) -> None:
    folder = Path(path).parent
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "No such folder", str(folder))


@_names_target
def open_or_make_pool(config: ModConfig) -> HashPool:
    """Return the pool that a config names (not None); a file that does not exist yet is made.

    Raises:
        As open_pool.
    """
    pool = config.pool
    if isinstance(pool, HashPool):
        return pool
    path = _path("pool", "a HashPool", pool)
    origin = _origin(config)
    if not path.exists():
        shape = PoolShape(config.n_match, config.capacity, config.check_bits, config.max_occupancy)
        with contextlib.suppress(FileExistsError):  # another process was faster
            create_pool(path, shape, origin)
    return open_pool(
        path,
        n_match=config.n_match,
        fingerprint=origin.fingerprint,
        any_tokenizer=config.any_tokenizer,
    )


@_names_target
def open_index(config: SuffixConfig) -> SuffixIndex:
    """Return the static index that a config names (not None).

    Raises:
        As open_static.
    """
    static = config.static
    if isinstance(static, SuffixIndex):
        return static
    path = _path("static", "a SuffixIndex", static)
    digest = _origin(config).fingerprint
    return open_suffix_index(path, fingerprint=digest, any_tokenizer=config.any_tokenizer)


def _in_memory(entries: dict[int, Entries]) -> StaticCache:
    return cache_in_memory({s: ArraySource(some) for s, some in entries.items() if len(some)})


def _path(role: str, kinds: str, source: object) -> Path:
    if not isinstance(source, (str, os.PathLike)):
        raise InputError(f"{role} must be {kinds} or a path, got {type(source).__name__}")
    return Path(source)


def _origin(config: AnyConfig) -> Origin:
    """Return the target's tokenizer as files state it; unknown unless the config names it."""
    target = _target(config)
    return Origin() if target is None else Origin(target.digest, target.vocab_size)


def _target(config: AnyConfig) -> Fingerprint | None:
    tokenizer = config.tokenizer
    if tokenizer is None or isinstance(tokenizer, Fingerprint):
        return tokenizer
    return fingerprint_of(tokenizer)
