"""Statistics files as bytes: taken apart, changed and sealed again; programs that share them."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

from helpers.backends import int32
from helpers.statistics_files import sources_of
from ngramspec import open_pool
from ngramspec.errors import FormatError
from ngramspec.files.cache_file import Origin, write_cache
from ngramspec.files.pool_file import PoolShape, create_pool

OURS, OTHERS = b"0123456789abcdef", b"fedcba9876543210"  # fingerprints
SAMPLE = {
    1: Counter({(1, 2): 3, (1, 3): 1, (2, 5): 2, (9, 5): 4, (9, 6): 4}),
    4: Counter({(1, 2, 3, 4, 5): 1, (2, 2, 3, 4, 5): 1, (3, 3, 3, 3, 6): 2}),
}
SHAPE = PoolShape(4, 1024, 8, 0.5)
posix = pytest.mark.skipif(os.name != "posix", reason="Windows has no such modes, limits or forks")


def sample_cache(folder: Path) -> Path:
    """A file of the n-grams of SAMPLE."""
    path = folder / "corpus.ngc"
    write_cache(path, sources_of(SAMPLE), Origin(OURS, 10, {"corpus": ["a"]}))
    return path


def sample_pool(folder: Path) -> Path:
    """A file with 9 entries."""
    path = folder / "shared.ngp"
    create_pool(path, SHAPE, Origin(OURS, 10))
    pool = open_pool(path)
    for token in range(9):
        pool.insert(int32([1, 2, 3, token]), token)
    return path


def section_table(data: bytes) -> dict[str, tuple[int, int]]:
    """Where the sections of a file lie: name -> offset, size, as far as its table says."""
    (number,) = struct.unpack_from("<I", data, 12)
    table: dict[str, tuple[int, int]] = {}
    for i in range(min(number, 28)):
        name, offset, size, _ = struct.unpack_from("<8sQQQ", data, 128 + 32 * i)
        table[name.rstrip(b"\0").decode("latin-1")] = offset, size
    return table


def resealed(changed: bytes) -> bytes:
    """A file with all its checksums made right, so that what was changed is taken for true."""
    data = bytearray(changed)
    if len(data) < 1024:
        return changed
    (number,) = struct.unpack_from("<I", data, 12)
    for i in range(min(number, 28)):
        _, offset, size, checksum = struct.unpack_from("<8sQQQ", data, 128 + 32 * i)
        if checksum and offset + size <= len(data):
            digest = xxh3_64_intdigest(bytes(data[offset : offset + size])) or 1
            struct.pack_into("<Q", data, 128 + 32 * i + 24, digest)
    struct.pack_into("<Q", data, 24, 0)
    struct.pack_into("<Q", data, 24, xxh3_64_intdigest(bytes(data[:1024])) or 1)
    return bytes(data)


def leftovers(folder: Path, *expected: str) -> list[str]:
    """The names in a folder that are not expected, such as those of temporary files."""
    return sorted(path.name for path in folder.iterdir() if path.name not in expected)


def is_private(path: Path) -> bool:
    """Whether a file is its owner's alone, as far as its mode tells: Windows has none."""
    return os.name != "posix" or path.stat().st_mode & 0o077 == 0


def refused(path: Path, call: Callable[[], Any], message: str, error: Any = FormatError) -> None:
    """The call raises the error; its message has the file's name and the given words."""
    with pytest.raises(error, match=re.escape(message) or None) as caught:
        call()
    assert str(path) in str(caught.value)


def patched(path: Path, *patches: tuple[int, str, int | bytes]) -> None:
    """Change values at offsets, and make the checksums fit again."""
    data = bytearray(path.read_bytes())
    for offset, code, value in patches:
        struct.pack_into(code, data, offset, value)
    path.write_bytes(resealed(bytes(data)))


def place(path: Path, name: str, word: int) -> int:
    """The offset of a word of a section."""
    return section_table(path.read_bytes())[name][0] + 4 * word


def entry_at(path: Path, name: str) -> int:
    """The offset of a section's entry in the table."""
    return 128 + 32 * list(section_table(path.read_bytes())).index(name)


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Run Python code that imports what this process does."""
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )


def finished(program: str, *arguments: object) -> str:
    """What the code printed, once it has ended well."""
    process = start(program, *arguments)
    try:
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    return output


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
