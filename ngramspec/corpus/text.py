"""Text files: decode, and cut very long ones."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator

from ngramspec.corpus.encoding import WESTERN, find_encoding
from ngramspec.corpus.streams import OpenUnit

DECODE_WINDOW = 64 << 10


def read_texts(source: OpenUnit, most: int, on_western: Callable[[], object]) -> Iterator[str]:
    """Read a text file.

    Args:
        source: The open file.
        most: Bytes to decode at a time. A longer file is cut after the last line end of every such
            block, or at the block's end where it has none.
        on_western: Called if the file is not UTF-8 and is read as Windows-1252.

    Yields:
        The texts; joined, they are the file. An empty file has none. What cannot be decoded
        becomes U+FFFD.

    Raises:
        BinaryFileError: As find_encoding, for the first 64 KiB.
    """
    head = source.read(DECODE_WINDOW)
    bom, encoding = find_encoding(head, whole=len(head) < DECODE_WINDOW)
    if encoding == WESTERN:
        on_western()
    head = head[len(bom) :]
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
