"""Bytes of a file, decompressed as they are read."""

from __future__ import annotations

import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from ngramspec.errors import BackendError, FormatError
from ngramspec.lab.corpus.inputs import STDIN, Unit
from ngramspec.messages import not_installed

_PACKED_READ = 4 << 10  # small, since a few bytes may decompress to very many
XZ_MEMORY = 256 << 20  # of a decoder; xz -9 takes 65 MiB, a file may ask for 4 GiB
ZSTD_WINDOW = 128 << 20  # of a frame; zstd -19 takes 8 MiB, --ultra -22 all, --long=31 2 GiB
_BUFFER = 1 << 20


class OpenUnit:
    """An open unit.

    stream: Its bytes, decompressed.
    raw: The underlying file, whose position is the progress.
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
        """Return how many bytes of the file were read, about."""
        return self.raw.tell() if self._seekable else self._num_read


@contextmanager
def open_unit(unit: Unit) -> Iterator[OpenUnit]:
    """Open a unit for reading; damage found in the block raises FormatError.

    Raises:
        FormatError: The compressed data is truncated or damaged, or needs too much memory.
        BackendError: zstandard is not installed.
        OSError: The file cannot be read.
    """
    if unit.path == STDIN:
        yield OpenUnit(sys.stdin.buffer, sys.stdin.buffer, seekable=False)
        return
    with open(unit.path, "rb", buffering=_BUFFER) as raw:
        seekable = raw.seekable()
        if not unit.compression:
            yield OpenUnit(raw, raw, seekable=seekable)
            return
        with _damage_named(unit), _decompressed(raw, unit.compression) as stream:
            yield OpenUnit(raw, stream, seekable=seekable)


def _decompressed(raw: BinaryIO, compression: str) -> BinaryIO:
    if compression == "gz":
        import gzip

        return cast(BinaryIO, gzip.GzipFile(fileobj=raw, mode="rb"))
    if compression == "xz":
        return io.BufferedReader(_PackedReader(raw, _Xz()), _BUFFER)
    if compression == "bz2":
        import bz2

        return cast(BinaryIO, bz2.BZ2File(raw))
    return io.BufferedReader(_PackedReader(raw, _Zstd()), _BUFFER)


@contextmanager
def _damage_named(unit: Unit) -> Iterator[None]:
    try:
        yield
    except _TooLargeError as error:
        raise FormatError(f"{unit.path}: {error}") from None
    except (EOFError, zlib.error) as error:
        raise _damaged(unit, error) from None
    except OSError as error:  # gzip.BadGzipFile, and what bz2 raises
        if error.errno is not None:
            raise
        raise _damaged(unit, error) from None


def _damaged(unit: Unit, error: Exception) -> FormatError:
    return FormatError(f"{unit.path}: the {unit.compression} data is truncated or damaged: {error}")


class _TooLargeError(Exception):
    """What a file needs to be unpacked is more than a decoder may have."""

    def __init__(self, most: int, command: str) -> None:
        super().__init__(f"more than {most >> 20} MiB are needed to unpack it: use `{command}`")


class _Xz:
    """Decodes xz streams in bounded memory; data after the last one is ignored."""

    def __init__(self) -> None:
        import lzma

        self._lzma = lzma

    def begin(self) -> Any:
        return self._lzma.LZMADecompressor(memlimit=XZ_MEMORY)

    def decode(self, decoder: Any, data: bytes, *, may_end: bool) -> bytes | None:
        """Return some decompressed bytes; None if the data starts no stream and `may_end`."""
        try:
            unpacked: bytes = decoder.decompress(data, _BUFFER)
        except self._lzma.LZMAError as error:
            if "limit" in str(error):
                raise _TooLargeError(XZ_MEMORY, "xz -d") from None
            if may_end:
                return None
            raise EOFError(error) from None
        return unpacked


class _Zstd:
    """Decodes zstd frames; zstandard refuses windows above ZSTD_WINDOW."""

    def __init__(self) -> None:
        self._zstd = _zstandard()

    def begin(self) -> Any:
        return self._zstd.ZstdDecompressor().decompressobj()

    def decode(self, decoder: Any, data: bytes, *, may_end: bool) -> bytes | None:
        try:
            unpacked: bytes = decoder.decompress(data)
        except self._zstd.ZstdError as error:
            if "too much memory" in str(error):
                raise _TooLargeError(ZSTD_WINDOW, "zstd -d --long=31") from None
            raise EOFError(error) from None
        return unpacked


class _PackedReader(io.RawIOBase):
    """Decompresses one frame after another; raises if the last one is incomplete."""

    def __init__(self, raw: BinaryIO, codec: _Xz | _Zstd) -> None:
        self._raw = raw
        self._codec = codec
        self._decoder: Any = None  # of the current frame
        self._ended = False
        self._waiting = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with available data; return the bytes, 0 at the end."""
        while not self._waiting:
            if not self._fill():
                return 0
        count = min(len(buffer), len(self._waiting))
        buffer[:count] = self._waiting[:count]
        self._waiting = self._waiting[count:]
        return count

    def _fill(self) -> bool:
        """Decompress some more; False at the end of the file."""
        if self._ended:
            return False
        decoder, data = self._decoder, b""
        inside = decoder is not None and not decoder.eof
        if decoder is not None and decoder.eof:
            data = decoder.unused_data
        if not inside or getattr(decoder, "needs_input", True):
            data = data or self._raw.read(_PACKED_READ)
            if not data:
                if inside:
                    raise EOFError("the last frame is incomplete")
                return False
        may_end = decoder is not None and not inside
        if not inside:
            self._decoder = self._codec.begin()
        unpacked = self._codec.decode(self._decoder, data, may_end=may_end)
        if unpacked is None:
            self._ended = True
            return False
        self._waiting = memoryview(unpacked)
        return True


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise BackendError(not_installed(".zst files need zstandard", "corpus")) from error
    return zstandard
