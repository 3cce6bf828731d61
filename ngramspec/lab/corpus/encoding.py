"""The encoding of a text, by its first bytes."""

from __future__ import annotations

import codecs
import re

UTF_8, WESTERN = "utf-8", "cp1252"
NUL_WINDOW = 8 << 10
MOST_UNDECODABLE = 0.1
_BOMS = (
    (codecs.BOM_UTF8, UTF_8),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it starts with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROL = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
_HIGH, _HIGH_RUN = re.compile(rb"[\x80-\xff]"), re.compile(rb"[\x80-\xff]{2,}")


class BinaryFileError(ValueError):
    """A file is not text, or in an unknown encoding; the message says why."""


def find_encoding(head: bytes, *, whole: bool) -> tuple[bytes, str]:
    """Return the byte order mark and the encoding of a file that begins with `head`, or is it.

    A file that is not UTF-8 is Windows-1252, which has Latin-1's letters, if its bytes above 127
    stand alone, as accented letters and signs do in Western languages. In other languages' old
    encodings they stand side by side.

    Raises:
        BinaryFileError: A NUL in the first 8 KiB, control characters in what is not UTF-8, or an
            encoding that cannot be told.
    """
    for bom, encoding in _BOMS:
        if head.startswith(bom):
            return bom, encoding if encoding != UTF_8 else _encoding(head[len(bom) :], whole)
    return b"", _encoding(head, whole)


def _encoding(head: bytes, whole: bool) -> str:
    """Return the encoding of a file without a mark of UTF-16 or UTF-32."""
    if b"\0" in head[:NUL_WINDOW]:
        raise BinaryFileError("binary: it holds NUL bytes")
    try:
        codecs.getincrementaldecoder(UTF_8)().decode(head, final=whole)
        return UTF_8
    except UnicodeDecodeError:
        pass
    if _CONTROL.search(head):
        raise BinaryFileError("binary: it holds control characters")
    decoded = head.decode(errors="surrogateescape")
    num_wrong = sum("\udc80" <= char <= "\udcff" for char in decoded)
    num_high = len(_HIGH.findall(head))
    if 2 * num_wrong <= num_high:
        return UTF_8  # with some damage
    if 3 * sum(map(len, _HIGH_RUN.findall(head))) <= num_high:
        return WESTERN
    if num_wrong <= MOST_UNDECODABLE * len(head):
        return UTF_8
    raise BinaryFileError(
        "text in an encoding that cannot be told: convert it to UTF-8, as with iconv"
    )
