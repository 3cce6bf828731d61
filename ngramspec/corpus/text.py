"""Text files: refuse binary ones, decode, and cut very long ones."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from ngramspec.corpus.streams import OpenUnit

NUL_WINDOW = 8 << 10
DECODE_WINDOW = 64 << 10
MOST_UNDECODABLE = 0.1
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it starts with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class BinaryFileError(ValueError):
    """A file is not text; the message says why."""


def read_texts(source: OpenUnit, most: int) -> Iterator[str]:
    """Read a text file.

    Args:
        source: The open file.
        most: Bytes to decode at a time. A longer file is cut after the last line end of every such
            block, or at the block's end where it has none.

    Yields:
        The texts; joined, they are the file. An empty file has none. What is not UTF-8 (or UTF-16
        or UTF-32, with a byte order mark) becomes U+FFFD.

    Raises:
        BinaryFileError: A NUL in the first 8 KiB, or more than a tenth of the first 64 KiB cannot
            be decoded.
    """
    head = source.read(DECODE_WINDOW)
    bom, encoding = next(((b, e) for b, e in _BOMS if head.startswith(b)), (b"", "utf-8"))
    head = head[len(bom) :]
    if encoding == "utf-8":
        _refuse_binary(head)
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    blocks = _blocks(head, source, most)
    carried, block = "", next(blocks, b"")
    for following in blocks:
        text = carried + decoder.decode(block)
        cut = text.rfind("\n") + 1 or len(text)
        if cut:
            yield text[:cut]
        carried, block = text[cut:], following
    text = carried + decoder.decode(block, final=True)
    if text:
        yield text


def _blocks(head: bytes, source: OpenUnit, most: int) -> Iterator[bytes]:
    """Yield `head` and the rest of the file in blocks of `most` bytes."""
    data = head
    while data:
        data += source.read(max(0, most - len(data)))
        yield data[:most]
        data = data[most:] or source.read(most)


def _refuse_binary(head: bytes) -> None:
    if b"\0" in head[:NUL_WINDOW]:
        raise BinaryFileError("binary: it holds NUL bytes")
    try:
        head.decode()
        return
    except UnicodeDecodeError:
        pass
    decoded = head.decode(errors="surrogateescape")
    bad = sum("\udc80" <= char <= "\udcff" for char in decoded)
    if bad > MOST_UNDECODABLE * len(head):
        raise BinaryFileError(f"binary: {100 * bad // len(head)} % of it is not UTF-8")
