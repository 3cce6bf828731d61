"""Detect documents seen before, by digests of 16 bytes, and hold some out by digest."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ngramspec.errors import FormatError, InputError

DIGEST_BYTES = 16
_MAGIC = b"NGDIGST1"
_LEAST = 1 << 10
_EMPTY = b"\0" * DIGEST_BYTES


def document_digest(text: str) -> bytes:
    """Return the 16 bytes that identify a text: xxh3_128 of its UTF-8."""
    import xxhash

    return xxhash.xxh3_128_digest(text.encode("utf-8", "surrogatepass"))


def is_held_out(digest: bytes, fraction: float) -> bool:
    """Return whether a document is held out for measuring.

    Args:
        digest: Of the document; only it decides, not the order or other documents.
        fraction: Share of documents to hold out, 0 to 1. A larger share includes a smaller one.

    Raises:
        InputError: The fraction is not in 0..1.
    """
    if not 0 <= fraction <= 1:
        raise InputError(f"fraction must be 0..1, got {fraction}")
    return int.from_bytes(digest[-7:], "little") < fraction * (1 << 56)


class DigestSet:
    """A set of digests in a table of 16-byte cells: 21 to 43 bytes each, 80 while it grows."""

    def __init__(self, digests: Iterable[bytes] = ()) -> None:
        self._cells = bytearray(_LEAST * DIGEST_BYTES)
        self._len = 0
        self._has_empty = False  # the digest of zeros, which marks a free cell
        for digest in digests:
            self.add(digest)

    def __len__(self) -> int:
        return self._len

    def __contains__(self, digest: bytes) -> bool:
        if digest == _EMPTY:
            return self._has_empty
        return self._cells[(at := self._find(digest)) : at + DIGEST_BYTES] != _EMPTY

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return len(self._cells)

    def add(self, digest: bytes) -> bool:
        """Add a digest.

        Args:
            digest: 16 bytes.

        Returns:
            bool: True if it is new.

        Raises:
            InputError: Not 16 bytes.

        Cost: about 3 us, growth included.
        """
        if len(digest) != DIGEST_BYTES:
            raise InputError(f"a digest has {DIGEST_BYTES} bytes, got {len(digest)}")
        if digest == _EMPTY:
            is_new, self._has_empty = not self._has_empty, True
            self._len += is_new
            return is_new
        at = self._find(digest)
        if self._cells[at : at + DIGEST_BYTES] == digest:
            return False
        self._cells[at : at + DIGEST_BYTES] = digest
        self._len += 1
        if self._len * DIGEST_BYTES * 4 > len(self._cells) * 3:
            self._grow()
        return True

    def to_bytes(self) -> bytes:
        """Return the digests as bytes; equal sets give equal bytes."""
        digests = self._digests()
        order = np.lexsort(digests.view("<u8").reshape(-1, 2).T)
        zeros = _EMPTY if self._has_empty else b""
        sorted_digests: bytes = digests[order].tobytes()
        return _MAGIC + self._len.to_bytes(8, "little") + zeros + sorted_digests

    @classmethod
    def from_bytes(cls, data: bytes) -> DigestSet:
        """Return the set that to_bytes wrote.

        Raises:
            FormatError: The bytes are of another format, truncated or hold a digest twice.
        """
        count = int.from_bytes(data[8:16], "little")
        if data[:8] != _MAGIC or len(data) != 16 + count * DIGEST_BYTES:
            raise FormatError(f"not a set of digests: {len(data)} bytes, {count} digests expected")
        digests = cls(data[i : i + DIGEST_BYTES] for i in range(16, len(data), DIGEST_BYTES))
        if len(digests) != count:
            raise FormatError(f"a set of digests holds {count - len(digests)} of them twice")
        return digests

    def _find(self, digest: bytes) -> int:
        """Return the offset of the digest's cell or of the free cell where it belongs."""
        cells = self._cells
        mask = len(cells) - 1
        at = int.from_bytes(digest[:8], "little") * DIGEST_BYTES & mask
        while (cell := cells[at : at + DIGEST_BYTES]) != digest and cell != _EMPTY:
            at = at + DIGEST_BYTES & mask
        return at

    def _digests(self) -> npt.NDArray[np.void]:
        cells = np.frombuffer(self._cells, dtype=f"V{DIGEST_BYTES}")
        return cells[cells.view("<u8").reshape(-1, 2).any(axis=1)]

    def _grow(self) -> None:
        digests = self._digests().tobytes()
        self._cells = bytearray(len(self._cells) * 2)
        for i in range(0, len(digests), DIGEST_BYTES):
            digest = digests[i : i + DIGEST_BYTES]
            at = self._find(digest)
            self._cells[at : at + DIGEST_BYTES] = digest
