"""Bytes of a file, decompressed as they are read."""

from __future__ import annotations

import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from ngramspec.corpus.inputs import STDIN, Unit
from ngramspec.errors import BackendError, FormatError

_ZSTD_READ = 4 << 10  # small, since a few bytes may decompress to very many
_BUFFER = 1 << 20


class Source:
    """An open unit.

    stream: Its bytes, decompressed.
    raw: The file below, whose position tells the progress.
    """

    def __init__(self, raw: BinaryIO, stream: BinaryIO, *, seekable: bool) -> None:
        self.raw = raw
        self.stream = stream
        self._seekable = seekable
        self._num_read = 0

    def read(self, num_bytes: int) -> bytes:
        """Return that many bytes, fewer at the end only."""
        data = self.stream.read(num_bytes)
        self._num_read += len(data)
        return data

    def read_line(self, most: int) -> bytes:
        """Return the next line with its end, cut at `most` bytes; b"" at the end."""
        data = self.stream.readline(most)
        self._num_read += len(data)
        return data

    def position(self) -> int:
        """Return how many bytes of the file were taken, about."""
        return self.raw.tell() if self._seekable else self._num_read


@contextmanager
def open_unit(unit: Unit) -> Iterator[Source]:
    """Open a unit for reading; damage found on the way is a FormatError that names the file.

    Raises:
        FormatError: The compressed data is truncated or damaged.
        BackendError: zstandard is not installed.
        OSError: The file cannot be read.
    """
    if unit.path == STDIN:
        yield Source(sys.stdin.buffer, sys.stdin.buffer, seekable=False)
        return
    with open(unit.path, "rb", buffering=_BUFFER) as raw:
        seekable = raw.seekable()
        if not unit.compression:
            yield Source(raw, raw, seekable=seekable)
            return
        with _damage_named(unit), _decompressed(raw, unit.compression) as stream:
            yield Source(raw, stream, seekable=seekable)


def _decompressed(raw: BinaryIO, compression: str) -> BinaryIO:
    if compression == "gz":
        import gzip

        return cast(BinaryIO, gzip.GzipFile(fileobj=raw, mode="rb"))
    if compression == "xz":
        import lzma

        return cast(BinaryIO, lzma.LZMAFile(raw))
    if compression == "bz2":
        import bz2

        return cast(BinaryIO, bz2.BZ2File(raw))
    return io.BufferedReader(_ZstdReader(raw), _BUFFER)


@contextmanager
def _damage_named(unit: Unit) -> Iterator[None]:
    errors: tuple[type[Exception], ...] = (EOFError, zlib.error)
    if unit.compression == "xz":
        import lzma

        errors += (lzma.LZMAError,)
    try:
        yield
    except errors as error:
        raise _damaged(unit, error) from None
    except OSError as error:  # gzip.BadGzipFile, and what bz2 raises
        if error.errno is not None:
            raise
        raise _damaged(unit, error) from None


def _damaged(unit: Unit, error: Exception) -> FormatError:
    return FormatError(f"{unit.path}: the {unit.compression} data is truncated or damaged: {error}")


class _ZstdReader(io.RawIOBase):
    """Decompressed zstd frames; unlike zstandard's own reader, it notices a missing end."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._zstd = _zstandard()
        self._frame: Any = None
        self._waiting = memoryview(b"")

    def readable(self) -> bool:
        """Tell that this can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as data is at hand; 0 at the end."""
        while not self._waiting:
            if not self._fill():
                return 0
        count = min(len(buffer), len(self._waiting))
        buffer[:count] = self._waiting[:count]
        self._waiting = self._waiting[count:]
        return count

    def _fill(self) -> bool:
        """Decompress some more; False at the end of the file."""
        unused = b"" if self._frame is None or not self._frame.eof else self._frame.unused_data
        data = unused or self._raw.read(_ZSTD_READ)
        if not data:
            if self._frame is not None and not self._frame.eof:
                raise EOFError("the last frame is not whole")
            return False
        if self._frame is None or self._frame.eof:
            self._frame = self._zstd.ZstdDecompressor().decompressobj()
        try:
            self._waiting = memoryview(self._frame.decompress(data))
        except self._zstd.ZstdError as error:
            raise EOFError(error) from None
        return True


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise BackendError(
            ".zst files need zstandard, which is not installed: pip install 'ngramspec[corpus]'"
        ) from error
    return zstandard
