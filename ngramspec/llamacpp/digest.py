"""file_digest: what identifies a model file, however it is called."""

from __future__ import annotations

import os
from pathlib import Path

ENDS = 1 << 20  # bytes that are hashed at either end


def file_digest(path: Path) -> str:
    """Return a digest that identifies a model file by content: size, first and last MiB.

    Raises:
        OSError: It cannot be read.
    """
    import xxhash

    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest = xxhash.xxh3_128(size.to_bytes(8, "little"))
        for at in (0, max(0, size - ENDS)):
            file.seek(at)
            digest.update(file.read(ENDS))
    return digest.hexdigest()
