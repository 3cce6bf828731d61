"""Text files: decode, and cut very long ones."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator

from ngramspec.lab.corpus.encoding import WESTERN, find_encoding
from ngramspec.lab.corpus.streams import OpenUnit

DECODE_WINDOW = 64 << 10

AS_WESTERN = "not UTF-8, read as Windows-1252"
DAMAGED = "not UTF-8 everywhere: other bytes are read as U+FFFD"
_REPLACED = "\ufffd"


def read_texts(source: OpenUnit, most: int, note: Callable[[str], object]) -> Iterator[str]:
    """Read a text file.

    Args:
        source: The open file.
        most: Bytes to decode at a time. A longer file is cut after the last line end of every such
            block, or at the block's end where it has none.
        note: Called once if bytes are not in UTF-8, with what becomes of them.

    Yields:
        The texts; joined, they are the file. An empty file has none. What cannot be decoded
        becomes U+FFFD.

    Raises:
        BinaryFileError: As find_encoding, for the first 64 KiB.
    """
    head = source.read(DECODE_WINDOW)
    bom, encoding = find_encoding(head, whole=len(head) < DECODE_WINDOW)
    noted = encoding == WESTERN
    if noted:
        note(AS_WESTERN)
    excess = 0  # replacement characters that are not in the file itself
    head = head[len(bom) :]
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    blocks = _blocks(head, source, most)
    carried, block = "", next(blocks, b"")
    for following in blocks:
        decoded = decoder.decode(block)
        excess += num_replaced(block, decoded, encoding)
        text = carried + decoded
        cut = text.rfind("\n") + 1 or len(text)
        if cut:
            yield text[:cut]
        carried, block = text[cut:], following
    decoded = decoder.decode(block, final=True)
    if excess + num_replaced(block, decoded, encoding) > 0 and not noted:
        note(DAMAGED)
    if text := carried + decoded:
        yield text


def num_replaced(data: bytes, text: str, encoding: str) -> int:
    """Return how many more replacement characters a text has than the bytes it was decoded from."""
    count = text.count(_REPLACED)
    return count and count - data.count(_REPLACED.encode(encoding, "ignore") or _REPLACED.encode())


def _blocks(head: bytes, source: OpenUnit, most: int) -> Iterator[bytes]:
    """Yield `head` and the rest of the file in blocks of `most` bytes."""
    data = head
    while data:
        data += source.read(max(0, most - len(data)))
        yield data[:most]
        data = data[most:] or source.read(most)
