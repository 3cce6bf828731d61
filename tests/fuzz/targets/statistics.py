"""Files of all kinds and llama.cpp's lookup files, damaged in every way.

An input is the kind of a file, a line end and the file. What is done with it is that of the
property test of damaged files (helpers/fuzz.py), which damages whole files without a guide.
"""

from __future__ import annotations

import random
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fuzz.target import Run, Target
from helpers.files import resealed
from helpers.fuzz import Case, damaged


@contextmanager
def opened() -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as folder:
        case = Case(Path(folder))

        def run(data: bytes) -> None:
            head, _, file = data.partition(b"\n")
            kind = head.decode("ascii", "replace")
            if kind in case.files:
                case.use(random.Random(zlib.crc32(file)), kind, file)

        yield run


def seeds() -> Iterator[bytes]:
    """Yield a whole file of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        for kind, data in Case(Path(folder)).files.items():
            yield kind.encode() + b"\n" + data


def mutate(data: bytes, most: int, seed: int, plain: Callable[[bytes, int], bytes]) -> bytes:
    rng = random.Random(seed)
    head, _, file = data.partition(b"\n")
    if not file or rng.random() < 0.05:
        return plain(data, most)
    file = damaged(rng, file)
    if head != b"bin" and rng.random() < 0.9:
        file = resealed(file)
    mutant = head + b"\n" + file
    return mutant if len(mutant) <= most else data


TARGET = Target(
    opened=opened,
    instrumented=("ngramspec.files", "ngramspec.drafting"),
    mutate=mutate,
    more_seeds=seeds,
    max_bytes=1 << 15,
    seconds=60,
)
