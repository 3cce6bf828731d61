"""Documents of a unit, one after another, in bounded memory; pieces of long ones."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from ngramspec.errors import FormatError, InputError
from ngramspec.lab.corpus.inputs import TO_THE_END, Unit
from ngramspec.lab.corpus.parquet import ParquetRows
from ngramspec.lab.corpus.problems import Problems
from ngramspec.lab.corpus.records import KNOWN_FIELDS, RecordError, texts_of
from ngramspec.lab.corpus.streams import OpenUnit, open_unit

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
_MARKS = ("\n\n", "\n")  # a cut comes after one of these, otherwise before a space


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


MAX_DOCUMENT_BYTES = 64 << 20
DECODE_WINDOW = 64 << 10
AS_WESTERN = "not UTF-8, read as Windows-1252"
DAMAGED = "not UTF-8 everywhere: other bytes are read as U+FFFD"
_REPLACED = "\ufffd"


@dataclass(frozen=True)
class Document:
    """One text.

    text: Never empty.
    position: Bytes of the unit read so far, about; for a progress bar.
    """

    text: str
    position: int


@dataclass(frozen=True)
class ReadOptions:
    """How documents are found in a unit.

    field: Of a jsonl line or parquet row, with dots into nested objects; None = the known ones.
    roles: Messages of a conversation to take, such as ("assistant",); () = all.
    max_document_bytes: A longer text file becomes several documents, cut at line ends; a longer
        jsonl line is left out, and so is a parquet row whose values are longer.
    """

    field: str | None = None
    roles: tuple[str, ...] = ()
    max_document_bytes: int = MAX_DOCUMENT_BYTES

    def __post_init__(self) -> None:
        if self.max_document_bytes < 1:
            raise InputError(f"max_document_bytes must be at least 1: {self.max_document_bytes}")
        if self.field == "":
            raise InputError("field must not be empty")
        if isinstance(self.roles, str):  # none of whose letters is a role
            raise InputError(f"roles must be a list, got {self.roles!r}: write [{self.roles!r}]")


def read_documents(
    unit: Unit, options: ReadOptions | None = None, problems: Problems | None = None
) -> Iterator[Document]:
    """Read the documents of a unit.

    A text file is one document; a jsonl line or parquet row is one, or one per message. A damaged
    line, row or file goes to `problems` and reading continues; documents before the damage are
    yielded.

    Args:
        unit: From find_units.
        options: Default: ReadOptions().
        problems: Collects what was left out.

    Yields:
        Document: In the order of the file.

    Raises:
        BackendError: pyarrow or zstandard is needed and not installed.

    Cost: memory for one document and buffers; some 200 to 400 MB/s.
    """
    return (document for document in read_steps(unit, options, problems) if document.text)


def read_steps(
    unit: Unit, options: ReadOptions | None = None, problems: Problems | None = None
) -> Iterator[Document]:
    """Read as read_documents does, with a Document of no text for each line or row without one.

    So a reader can stop, and tell how far it is, where there are no documents.
    """
    options = options or ReadOptions()
    problems = Problems() if problems is None else problems
    try:
        if unit.format == "parquet":
            yield from _parquet(unit, options, problems)
            return
        with open_unit(unit) as source:
            if unit.format == "jsonl":
                yield from _jsonl(unit, source, options, problems)
            else:
                recoded = partial(problems.recoded, unit.source)
                for text in read_texts(source, options.max_document_bytes, recoded):
                    yield Document(text, source.position())
    except BinaryFileError as error:
        problems.skipped(unit.source, str(error))
    except FormatError as error:
        problems.file(unit.source, str(error).removeprefix(f"{unit.path}: "))
    except OSError as error:
        problems.file(unit.source, error.strerror or str(error))


def _jsonl(
    unit: Unit, source: OpenUnit, options: ReadOptions, problems: Problems
) -> Iterator[Document]:
    after = f" after byte {unit.start}" if unit.start else ""
    noted = False
    for number, line in _lines(unit, source, options.max_document_bytes):
        try:
            if line is None:
                raise RecordError(f"longer than {options.max_document_bytes} bytes")
            decoded = line.decode("utf-8-sig", "replace")
            if not noted and num_replaced(line, decoded, "utf-8") > 0:
                noted = True
                problems.recoded(unit.source, DAMAGED)
            texts = texts_of(_parse(decoded), options.field, options.roles) if line.strip() else []
        except RecordError as error:
            problems.record(unit.source, f"line {number}{after}", str(error))
            texts = []
        position = source.position() - unit.start
        if unit.num_bytes:  # the last line may reach into the next unit
            position = min(position, unit.num_bytes)
        for text in texts or [""]:
            yield Document(text, position)


def _lines(unit: Unit, source: OpenUnit, most: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield number and bytes of the lines that start in the unit; None if longer than `most`."""
    offset = unit.start
    if offset:  # a line that starts earlier belongs to the previous unit
        source.raw.seek(offset - 1)
        offset += _rest_of_line(source, most) - 1
    number = 0
    while unit.stop == TO_THE_END or offset < unit.stop:
        line = source.read_line(most + 1)
        if not line:
            return
        number += 1
        offset += len(line)
        if len(line) > most and not line.endswith(b"\n"):
            offset += _rest_of_line(source, most)
            yield number, None
        else:
            yield number, line


def _rest_of_line(source: OpenUnit, most: int) -> int:
    """Skip what is left of a line; return its length."""
    skipped = 0
    while True:
        part = source.read_line(most + 1)
        skipped += len(part)
        if not part or part.endswith(b"\n"):
            return skipped


def _parse(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}") from None


def _parquet(unit: Unit, options: ReadOptions, problems: Problems) -> Iterator[Document]:
    if unit.compression:
        raise FormatError(f"a parquet file inside .{unit.compression} cannot be read: unpack it")
    field = options.field
    columns = KNOWN_FIELDS if field is None else (field, field.partition(".")[0])
    with ParquetRows(unit.path, columns) as table:
        groups = table.groups(unit.start, unit.stop)
        total = sum(map(table.num_rows, groups))
        done = 0
        for group in groups:
            try:
                rows = table.rows(group, options.max_document_bytes)
                for number, row in enumerate(rows, 1):
                    position = unit.num_bytes * (done + number) // total
                    where = f"{group}, row {number}"
                    for text in _row_texts(unit, row, where, options, problems) or [""]:
                        yield Document(text, position)
            except FormatError as error:
                reason = str(error).removeprefix(f"{unit.path}: ")
                problems.file(unit.source, f"row group {group}: {reason}")
            done += table.num_rows(group)


def _row_texts(
    unit: Unit, row: object, where: str, options: ReadOptions, problems: Problems
) -> list[str]:
    try:
        if isinstance(row, RecordError):
            raise row
        return texts_of(row, options.field, options.roles)
    except RecordError as error:
        problems.record(unit.source, f"row group {where}", str(error))
        return []


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


def pieces(text: str, limit: int) -> Iterator[str]:
    """Cut a text at blank lines if possible, otherwise at line ends, spaces or anywhere.

    A cut is searched for in the second half of what fits, so that no piece is needlessly short.

    Args:
        text: Any text.
        limit: Most characters of a piece, at least 1.

    Returns:
        Iterator of str: Joined, they are the text; none for an empty text.

    Raises:
        InputError: The limit is not positive.

    Cost: O(characters), one copy.
    """
    if limit < 1:
        raise InputError(f"limit must be at least 1, got {limit}")
    return _pieces(text, limit)


def _pieces(text: str, limit: int) -> Iterator[str]:
    start = 0
    while len(text) - start > limit:
        stop = _cut(text, start, start + limit)
        yield text[start:stop]
        start = stop
    if start < len(text):
        yield text[start:]


def _cut(text: str, start: int, stop: int) -> int:
    """Return where the piece that begins at `start` ends, at most at `stop`."""
    middle = start + (stop - start) // 2
    for mark in _MARKS:
        at = text.rfind(mark, middle, stop)
        if at >= 0:
            return at + len(mark)
    at = text.rfind(" ", middle + 1, stop)
    return at if at > start else stop
