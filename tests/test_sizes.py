"""Numbers of bytes in words."""

from __future__ import annotations

import pytest

from ngramspec.sizes import size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        *((0, "0 B"), (1000, "1000 B"), (1024, "1.0 KiB"), (5_827_584, "5.6 MiB")),
        *((64 << 20, "64.0 MiB"), (131 << 30, "131.0 GiB"), (5 << 50, "5120.0 TiB")),
    ],
)
def test_sizes_as_text(size: int, text: str) -> None:
    assert size_text(size) == text
