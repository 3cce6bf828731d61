"""Files of kind "suffix": texts of a corpus and the positions of their contexts, read in place."""

from __future__ import annotations

import os
import struct

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.files.suffix_image import SuffixImage
from ngramspec._native.suffix.index import SuffixIndex
from ngramspec.errors import FormatError, InputError
from ngramspec.files.cache_file import ABOUT, Origin, about_bytes, check_tokenizer
from ngramspec.files.container import (
    ALIGNMENT,
    HEAD_BYTES,
    Container,
    ContainerWriter,
    Header,
    new_container,
    open_container,
)

KIND = "suffix"
BORDER = -1  # after each text
MOST_TOKENS = (1 << 29) - 2  # of a file, with the borders; as in suffix_image.pyx
LEAST_CONTEXT, MOST_CONTEXT = 1, 16  # tokens, as in lines.pxd
FILL = 12  # words of a line that are expected to be in use
LINE_BYTES = 64
WINDOW = 1024  # tokens that are kept or left out together when a file has to be small
MEMORY = 2 << 30
_OCCURRENCE_BYTES = 5 * 16  # per token at most, while lines are made
_LEAST_LINES = 0.5  # below this share of the wanted lines, tokens are left out
_SHAPE = struct.Struct("<IIQ")  # position_bits, zero, texts
_CHECKED = 1 << 20  # words that are checked at once

Tokens = NDArray[np.int32]


def open_suffix_index(
    path: str | os.PathLike[str],
    *,
    fingerprint: bytes | None = None,
    any_tokenizer: bool = False,
    verify: bool | None = None,
) -> SuffixIndex:
    """Open an index file for the suffix drafter to read in place.

    Args:
        path: A file of kind suffix, on a local disk.
        fingerprint: Of the target's tokenizer, 16 bytes; None = not known, nothing is compared.
        any_tokenizer: Accept a file built with another tokenizer.
        verify: Compare all bytes with their checksums; None = files up to 32 MiB only.

    Returns:
        SuffixIndex: Keeps the file's bytes alive; shared by any number of drafters. The file may be
        replaced by renaming; a file above 32 MiB is mapped and must not be overwritten or
        truncated in place.

    Raises:
        FormatError: The file is of another kind, incomplete or damaged.
        VocabMismatchError: It was built with another tokenizer.
        OSError: It cannot be read.

    Cost: O(bytes) up to 32 MiB or with verify; otherwise O(1), drafts read pages on demand.
    """
    container = open_container(path, KIND, verify=verify)
    check_tokenizer(container, fingerprint, any_tokenizer)
    return index_of(container)


def index_of(container: Container) -> SuffixIndex:
    """Return the index in an open container of this kind.

    Raises:
        FormatError: Its shape or the size of a section is impossible.
    """
    header, (bits, _, num_texts) = container.header, container.shape(_SHAPE)
    tokens, lines = (
        container.array("tokens", "<i4"),
        container.array("lines", "<u4", LINE_BYTES // 4),
    )
    for name, numbers in (("tokens", tokens), ("lines", lines)):
        if not len(numbers):
            raise FormatError(f"{container.place(name)}: it is empty")
    if num_texts > len(tokens):
        raise FormatError(f"{container.place('shape')}: {num_texts} texts in {len(tokens)} tokens")
    try:
        return SuffixIndex(
            tokens, lines, min(bits, 99), header.vocab_size, str(container.path),
            header.fingerprint, num_texts,
        )  # fmt: skip
    except InputError as error:
        raise FormatError(f"{container.place('shape')}: {error}") from None


def write_suffix_index(
    path: str | os.PathLike[str],
    tokens: Tokens,
    origin: Origin,
    *,
    max_bytes: int | None = None,
    memory: int = MEMORY,
) -> Header:
    """Write texts as an index: equal tokens give equal bytes.

    Args:
        path: The file; an existing one is replaced once the new one is complete.
        tokens: int32, shape (n,), n < 2**29 - 1: texts, each followed by -1. May be mapped.
        origin: Tokenizer and provenance.
        max_bytes: Largest size of the file, None = any. The rarest contexts lose occurrences
            first; then the parts of the text with the rarest contexts are left out.
        memory: Bytes to use, about, plus 2 to 4 per token.

    Returns:
        Header: What was written.

    Raises:
        InputError: No or too many tokens; one is not below origin.vocab_size; max_bytes is too
            small for any text.
        OSError: The file cannot be written; an existing one is kept.

    Cost: O(n log n), plus O(n) for each part; less `memory` means more parts.
    """
    about = _about(origin)
    room = None
    if max_bytes is not None:
        room = max_bytes - HEAD_BYTES - 3 * ALIGNMENT - _SHAPE.size - len(about)
    image = SuffixImage(tokens)
    if origin.vocab_size and image.largest_token >= origin.vocab_size:
        raise InputError(f"token id {image.largest_token} is not below {origin.vocab_size}")
    num_lines = image.num_words() // FILL + 1
    if room is not None:
        tokens, image, num_lines = _fitting(tokens, image, num_lines, room)
    with new_container(path) as writer:
        writer.add("shape", _SHAPE.pack(image.position_bits, 0, image.num_texts))
        if about:
            writer.add(ABOUT, about)
        writer.add("tokens", tokens.astype("<i4", copy=False))
        num_parts = -(-len(tokens) * _OCCURRENCE_BYTES // memory)
        used = _write_lines(writer, image, num_lines, num_parts)
        vocab_size = origin.vocab_size or image.largest_token + 1
        header = Header(
            KIND, origin.fingerprint, vocab_size, LEAST_CONTEXT, MOST_CONTEXT, used,
            image.num_tokens,
        )  # fmt: skip
        writer.finish(header)
    return header


def check_index(container: Container) -> None:
    """Check every token and every position. O(bytes).

    Raises:
        FormatError: One is impossible; names file and offset.
    """
    index_of(container)
    tokens, lines = container.array("tokens", "<i4"), container.array("lines", "<u4")
    bits, _, num_texts = container.shape(_SHAPE)
    borders = 0
    for at in range(0, len(tokens), _CHECKED):
        part = tokens[at : at + _CHECKED]
        borders += int(np.count_nonzero(part == BORDER))
        _check(container, "tokens", at, (part < BORDER) | (part >= container.header.vocab_size))
    if borders != num_texts or tokens[-1] != BORDER:
        raise FormatError(f"{container.path}: expected {num_texts} texts, found {borders} borders")
    for at in range(0, len(lines), _CHECKED):
        part = lines[at : at + _CHECKED]
        positions = (part & ((1 << bits) - 1)).astype(np.int64) - 1
        wrong = (part != 0) & ((positions < 0) | (positions >= len(tokens)))
        _check(container, "lines", at, wrong)
        _check(container, "lines", at, (part != 0) & (tokens[positions] < 0))


def _write_lines(
    writer: ContainerWriter, image: SuffixImage, num_lines: int, num_parts: int
) -> int:
    """Write the lines, made part by part; return the words in use."""
    used = 0
    step = -(-num_lines // num_parts)
    writer.begin("lines")
    for first in range(0, num_lines, step):
        lines = image.lines(num_lines, first, min(first + step, num_lines))
        used += int(np.count_nonzero(lines))
        writer.write(lines.astype("<u4", copy=False))
    writer.end()
    return used


def _fitting(
    tokens: Tokens, image: SuffixImage, num_lines: int, room: int
) -> tuple[Tokens, SuffixImage, int]:
    """Return tokens, their image and a number of lines that take at most `room` bytes."""
    if room < 4 * len(tokens) + LINE_BYTES * max(1, num_lines * _LEAST_LINES):
        tokens = _most_useful(tokens, image, room, LINE_BYTES * num_lines / len(tokens))
        image = SuffixImage(tokens)
        num_lines = image.num_words() // FILL + 1
    return tokens, image, min(num_lines, (room - 4 * len(tokens)) // LINE_BYTES)


def _most_useful(tokens: Tokens, image: SuffixImage, room: int, line_bytes: float) -> Tokens:
    """Return the windows of text with the most frequent contexts that fit into `room` bytes."""
    num = int(room / (4 + line_bytes)) // (WINDOW + 2)  # each gets up to two borders
    if num < 1:
        raise InputError(f"max_bytes leaves {room} bytes, too few for any text")
    ranked = np.argsort(-image.repeats(WINDOW), kind="stable")
    parts: list[Tokens] = []
    border = np.array([BORDER], np.int32)
    last = -1
    for at in np.sort(ranked[:num]).tolist():
        if parts and at != last + 1 and parts[-1][-1] != BORDER:
            parts.append(border)
        parts.append(np.asarray(tokens[at * WINDOW : (at + 1) * WINDOW]))
        last = at
    return np.concatenate(parts if parts[-1][-1] == BORDER else [*parts, border])


def _about(origin: Origin) -> bytes:
    return about_bytes(origin.about) if origin.about else b""


def _check(container: Container, name: str, at: int, wrong: NDArray[np.bool_]) -> None:
    places = np.flatnonzero(wrong)
    if places.size:
        offset = container.sections[name].offset + 4 * (at + int(places[0]))
        raise FormatError(f"{container.path}: impossible word at offset {offset} in {name!r}")
