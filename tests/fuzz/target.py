"""Target: what is fuzzed, and how a failure of it is told."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
# Slow ones last: each gets the same time.
NAMES = (
    *("speculative", "schemas", "patterns", "modelfiles", "templates", "gguf", "manifests"),
    *("grammars", "statistics", "bodies"),
)
Run = Callable[[bytes], None]
Mutate = Callable[[bytes, int, int, Callable[[bytes, int], bytes]], bytes]


class Finding(AssertionError):
    """An input did what no input may do."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One thing that is fuzzed.

    opened: Makes it ready; gives the function that takes one input and raises if it misbehaves.
    instrumented: Packages whose branches guide the search.
    mutate: Makes another input of one: (data, most bytes, seed, libFuzzer's own mutation).
    words: What libFuzzer's own mutation may insert.
    more_seeds: Further seeds, those that would go stale as files.
    max_bytes: Longest input.
    seconds: What one input may take at most, in wall time; typical ones take milliseconds.
    rss_mib: Memory of the whole process.
    """

    opened: Callable[[], AbstractContextManager[Run]]
    instrumented: tuple[str, ...]
    mutate: Mutate | None = None
    words: tuple[str, ...] = ()
    more_seeds: Callable[[], Iterable[bytes]] = tuple
    max_bytes: int = 4096
    seconds: int = 30
    rss_mib: int = 2048


def load(name: str) -> Target:
    """Return a target by its name."""
    module = importlib.import_module(f"fuzz.targets.{name}")
    target = module.TARGET
    assert isinstance(target, Target)
    return target


def inputs_of(name: str) -> list[Path]:
    """Return the seeds of a target and the inputs that once failed."""
    folders = [FOLDER / "corpus" / name, FOLDER / "found" / name]
    return sorted(path for folder in folders if folder.is_dir() for path in folder.iterdir())


def kind_of(error: BaseException) -> str:
    """Return what two inputs with the same fault have in common: the exception and its place."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/ngramspec/" in frame.filename] or frames
    place = f"{Path(own[-1].filename).name}:{own[-1].name}" if own else "?"
    words = str(error).split(":", 1)[0][:100] if isinstance(error, Finding) else ""
    return f"{type(error).__name__} in {place} {words}".strip()
