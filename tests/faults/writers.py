"""Everything that writes files of ours, on small inputs: what it makes of which files."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from helpers.observing import observe
from ngramspec import DynamicFile, NgramCache, SuccessorPool, embedded_model
from ngramspec.files.cache_file import Origin, write_cache
from ngramspec.files.entries import ArraySource
from ngramspec.files.llama_lookup import write_lookup_cache
from ngramspec.files.pool_file import PoolShape, create_pool, write_pool
from ngramspec.files.slot_file import SavedSlot, write_slot
from ngramspec.files.successor_file import write_successors
from ngramspec.files.suffix_file import write_suffix_index
from ngramspec.lab.builder import BuildOptions, Resources, build, runs

SHAPE = PoolShape(2, 4096, 8, 0.5)  # larger than the buffer of a file
TEXTS = ("def area(width, height):\n    return width * height\n", "x = area(2, 3)\n" * 9, "y = 0\n")


def counted(seed: int, num_tokens: int = 1500) -> NgramCache:
    cache = NgramCache(1, 3)
    cache.update(np.random.default_rng(seed).integers(0, 40, num_tokens).astype(np.int32))
    return cache


def write_counts(path: Path, seed: int, num_tokens: int = 1500) -> None:
    cache = counted(seed, num_tokens)
    write_cache(path, {size: ArraySource(cache.entries(size)) for size in (1, 2, 3)}, Origin())


class Writer:
    """Makes `target` in a folder, where there may be an old one.

    kept_after_errors: What may lie beside it until the writer has ended well.
    """

    target = "out.ngc"
    kept_after_errors: frozenset[str] = frozenset()

    def set_up(self, sources: Path) -> None:
        """Make what is read, once."""

    def prepare(self, folder: Path) -> None:
        """Make the old file, once: it is put back before each run."""
        write_counts(folder / self.target, 1)

    def run(self, folder: Path) -> None:
        """Write."""
        raise NotImplementedError

    def again(self, folder: Path) -> None:
        """Write once more after an error, in the same process."""
        self.run(folder)

    def after_death(self, folder: Path) -> bool:
        """Do what comes next after the writer was killed; return whether the new file is there."""
        self.again(folder)
        return True


class Cache(Writer):
    def run(self, folder: Path) -> None:
        write_counts(folder / self.target, 2)


class Pool(Writer):
    target = "out.ngp"

    def prepare(self, folder: Path) -> None:
        write_pool(folder / self.target, np.full(4096, 7, np.uint32), SHAPE, Origin())

    def run(self, folder: Path) -> None:
        write_pool(folder / self.target, np.full(4096, 8, np.uint32), SHAPE, Origin())


class NewPool(Writer):
    target = "out.ngp"

    def prepare(self, folder: Path) -> None:
        """Nothing: it is made where there is none."""

    def run(self, folder: Path) -> None:
        create_pool(folder / self.target, SHAPE, Origin())

    def again(self, folder: Path) -> None:
        if not (folder / self.target).exists():
            self.run(folder)

    def after_death(self, folder: Path) -> bool:
        write_pool(folder / self.target, np.zeros(4096, np.uint32), SHAPE, Origin())
        return True


class Seeded(Writer):
    """Writes one content over another."""

    def prepare(self, folder: Path) -> None:
        self._write(folder, 1)

    def run(self, folder: Path) -> None:
        self._write(folder, 2)

    def _write(self, folder: Path, seed: int) -> None:
        raise NotImplementedError


class Index(Seeded):
    target = "out.ngx"

    def _write(self, folder: Path, seed: int) -> None:
        tokens = np.random.default_rng(seed).integers(0, 9, 3000).astype(np.int32)
        write_suffix_index(folder / self.target, np.append(tokens, np.int32(-1)), Origin())


class Slot(Seeded):
    target = "out.slot"

    def _write(self, folder: Path, seed: int) -> None:
        rng = np.random.default_rng(seed)
        tokens, state = rng.integers(0, 9, 300).astype(np.int32), rng.bytes(20_000)
        saved = SavedSlot(tokens, np.frombuffer(state, np.uint8), tokens, bytes(16), 9)
        write_slot(folder / self.target, saved)


class Successors(Seeded):
    target = "out.pool"

    def _write(self, folder: Path, seed: int) -> None:
        pool = SuccessorPool(1 << 10)
        observe(pool, np.random.default_rng(seed).integers(0, 40, 300).tolist(), 40)
        write_successors(folder / self.target, pool, Origin())


class LookupCache(Writer):
    target = "out.bin"

    def prepare(self, folder: Path) -> None:
        write_lookup_cache(counted(1), folder / self.target)

    def run(self, folder: Path) -> None:
        write_lookup_cache(counted(2), folder / self.target)


class Dynamic(Writer):
    """A save into a file that another process has saved into meanwhile."""

    file: DynamicFile | None = None

    def prepare(self, folder: Path) -> None:
        self._learn(DynamicFile(folder / self.target), 1).save()

    def run(self, folder: Path) -> None:
        self.file = None
        self.file = self._learn(DynamicFile(folder / self.target), 2)
        self.file.save()

    def again(self, folder: Path) -> None:
        """Save again: nothing is lost, nothing is counted twice."""
        if self.file is None:
            self.run(folder)
        else:
            self.file.save()

    def after_death(self, folder: Path) -> bool:
        DynamicFile(folder / self.target)
        return False

    def _learn(self, file: DynamicFile, seed: int) -> DynamicFile:
        tokens = np.random.default_rng(seed).integers(0, 40, 400).astype(np.int32)
        file.cache.update(tokens)
        return file


class DynamicLookup(Dynamic):
    target = "out.bin"


class Build(Writer):
    """A build with a checkpoint after each document, which is gone on with."""

    kept_after_errors = frozenset({".out.ngc.build"})
    options: ClassVar[dict[str, Any]] = {"held_out": 0.4, "max_bytes": 4000}

    def set_up(self, sources: Path) -> None:
        from ngramspec.text.tokenizers import load_tokenizer

        runs.FAN_IN = 2
        sources.mkdir(parents=True)
        self.corpus = sources / "corpus.jsonl"
        self.corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
        self.tokenizer = load_tokenizer(embedded_model())

    def prepare(self, folder: Path) -> None:
        if self.target.endswith(".ngc"):
            super().prepare(folder)

    def run(self, folder: Path, *, resume: bool = False) -> None:
        options = BuildOptions(ngram_max=3, **self.options)
        resources = Resources(seconds=0)
        output = folder / self.target
        build([self.corpus], output, self.tokenizer, options, resources, resume=resume)

    def again(self, folder: Path) -> None:
        self.run(folder, resume=True)


class BuildIndex(Build):
    target = "out.ngx"
    kept_after_errors = frozenset({".out.ngx.build"})
    options: ClassVar[dict[str, Any]] = {"kind": "suffix"}


class Command(Writer):
    """A command of `ngramspec cache`."""

    arguments: tuple[str, ...] = ()

    def set_up(self, sources: Path) -> None:
        sources.mkdir(parents=True)
        write_counts(sources / "a.ngc", 3, 3000)
        write_counts(sources / "b.ngc", 4)
        write_lookup_cache(counted(5), sources / "c.bin")
        self.sources = sources

    def run(self, folder: Path) -> None:
        from ngramspec.cli import main

        paths = (str(self.sources / name) if "." in name else name for name in self.arguments)
        try:
            with contextlib.redirect_stdout(None):
                main(["cache", *paths, *self.output(folder)], prog_name="ngramspec")
        except SystemExit as error:
            if error.code:
                raise

    def output(self, folder: Path) -> tuple[str, ...]:
        return "-o", str(folder / self.target)


class Merge(Command):
    arguments = ("merge", "a.ngc", "b.ngc", "c.bin")


class MergeSmall(Command):
    arguments = ("merge", "a.ngc", "b.ngc", "--max-size", "64K")


class Prune(Command):
    arguments = ("prune", "a.ngc", "--min-count", "2")  # by size: as MergeSmall


class Convert(Command):
    arguments = ("convert", "c.bin")

    def output(self, folder: Path) -> tuple[str, ...]:
        return (str(folder / self.target),)


class ConvertBack(Convert):
    target = "out.bin"
    arguments = ("convert", "a.ngc")


class Careless(Writer):
    """Writes in place: what a writer must not do, for the test of the tests."""

    def run(self, folder: Path) -> None:
        (folder / self.target).write_bytes(bytes(20_000))


WRITERS = {
    one.__name__: one
    for one in (
        *(Cache, Pool, NewPool, Index, Slot, Successors, LookupCache, Dynamic, DynamicLookup),
        *(Build, BuildIndex, Merge, MergeSmall, Prune, Convert, ConvertBack, Careless),
    )
}
