"""The file that a counting task leaves in the work folder, which all hosts see.

Layout: the parts one after another; a table with offset, bytes and xxh3_64 of every part, u64 each;
the report as JSON; the number of parts, the bytes of the report, and xxh3_64 of table and report,
u64 each. Parts are the entries of every range of every label, or the texts of an index, and last
the documents held out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ngramspec.errors import FormatError
from ngramspec.files.atomic import new_file
from ngramspec.lab.builder.checkpoint import TokenArray
from ngramspec.lab.builder.feed import Totals
from ngramspec.lab.builder.result import Seconds
from ngramspec.lab.corpus import Problem, Problems

PATTERN = "shard-*"
_ROW = np.dtype([("offset", "<u8"), ("bytes", "<u8"), ("checksum", "<u8")])
_END_BYTES = 24


@dataclass
class Report:
    """The results of counting a shard, without its entries.

    held_out: Tokens of each document that was held out.
    """

    totals: Totals
    problems: Problems
    seconds: Seconds
    num_runs: int
    held_out: list[int]


class _Places(NamedTuple):
    """What the end of a file tells.

    table, report, end: Where table and report begin, and where the report ends.
    checksum: Of table and report.
    """

    num_parts: int
    table: int
    report: int
    end: int
    checksum: int


class ShardFile:
    """ShardFile(path): reads parts of a shard's file.

    Raises:
        FormatError: It is damaged, or the part that is read is.
        OSError: It cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def num_parts(self) -> int:
        with self._open() as (_, at):
            return at.num_parts

    def part(self, number: int, dtype: str) -> NDArray[Any]:
        """Return a part as a flat array of its own, checked."""
        from xxhash import xxh3_64_intdigest

        with self._open() as (file, at):
            file.seek(at.table + number * _ROW.itemsize)
            row = np.fromfile(file, _ROW, 1)[0]
            offset, num_bytes = int(row["offset"]), int(row["bytes"])
            if offset + num_bytes > at.table or num_bytes % np.dtype(dtype).itemsize:
                raise self._damaged(f"part {number} has {num_bytes} bytes at offset {offset}")
            file.seek(offset)
            data = np.fromfile(file, np.uint8, num_bytes)
        if xxh3_64_intdigest(data.data) != int(row["checksum"]):
            raise self._damaged(f"part {number} is not what was written")
        return data.view(dtype)

    def report(self) -> Report:
        from xxhash import xxh3_64_intdigest

        with self._open() as (file, at):
            file.seek(at.table)
            raw = file.read(at.end - at.table)
        try:
            if xxh3_64_intdigest(raw) != at.checksum:
                raise ValueError("not what was written")
            body = json.loads(raw[at.report - at.table :])
            problems = body["problems"]
            first = [Problem(**problem) for problem in problems.pop("first")]
            return Report(
                Totals(**body["totals"]),
                Problems(**problems, first=first),
                Seconds(**body["seconds"]),
                body["num_runs"],
                body["held_out"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(f"no report: {error!r}") from None

    def held_out(self) -> list[TokenArray]:
        tokens = self.part(self.num_parts - 1, "<i4").astype(np.int32, copy=False)
        return np.split(tokens, np.cumsum(self.report().held_out)[:-1]) if len(tokens) else []

    @contextmanager
    def _open(self) -> Iterator[tuple[BinaryIO, _Places]]:
        """Open the file and find its table, at once: a merge opens many files."""
        with open(self.path, "rb") as file:
            end = os.fstat(file.fileno()).st_size - _END_BYTES
            if end < 0:
                raise self._damaged(f"{end + _END_BYTES} bytes")
            file.seek(end)
            num_parts, report_bytes, checksum = np.fromfile(file, "<u8", 3).tolist()
            report = end - report_bytes
            table = report - num_parts * _ROW.itemsize
            if table < 0:
                raise self._damaged(f"{num_parts} parts in {end + _END_BYTES} bytes")
            yield file, _Places(num_parts, table, report, end, checksum)

    def _damaged(self, reason: str) -> FormatError:
        return FormatError(
            f"{self.path}: {reason}: the unfinished build is damaged, --restart starts over"
        )


class ShardWriter:
    """ShardWriter(path): writes parts; the file is there once `write` has returned."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path

    def write(
        self, parts: Iterable[NDArray[Any]], held_out: Sequence[TokenArray], report: Report
    ) -> None:
        """Write the parts, then what was held out and the report, which may change until then.

        Raises:
            OSError: The disk is full or the like; no file is left.
        """
        from xxhash import xxh3_64_intdigest

        rows: list[tuple[int, int, int]] = []
        with new_file(self._path) as file:

            def add(part: NDArray[Any]) -> None:
                data = np.ascontiguousarray(part).data.cast("B") if part.size else memoryview(b"")
                rows.append((file.tell(), len(data), xxh3_64_intdigest(data)))
                file.write(data)

            for part in parts:
                add(part.astype(part.dtype.newbyteorder("<"), copy=False))
            report.held_out = [len(tokens) for tokens in held_out]
            add(np.concatenate([*held_out, np.empty(0, np.int32)]).astype("<i4", copy=False))
            text = json.dumps(asdict(report)).encode()
            last = np.array(rows, _ROW).tobytes() + text
            end = [len(rows), len(text), xxh3_64_intdigest(last)]
            file.write(last + np.array(end, "<u8").tobytes())
