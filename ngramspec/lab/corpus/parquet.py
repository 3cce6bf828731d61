"""Parquet files: rows of the columns that may hold text, one row group after another."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from ngramspec.errors import BackendError, FormatError
from ngramspec.lab.corpus.records import RecordError
from ngramspec.messages import not_installed

_BATCH_ROWS = 128
_BUFFER = 1 << 20


def split_row_groups(path: str, chunk_bytes: int) -> list[tuple[int, int, int]]:
    """Split a file into runs of row groups.

    Args:
        path: The file.
        chunk_bytes: A run ends once it has that many compressed bytes.

    Returns:
        list: First row group, end (exclusive) and compressed bytes of every run; one run (0, -1, 0)
        for a damaged file, so that reading it reports the damage.

    Raises:
        BackendError: pyarrow is not installed.
    """
    parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path) as file:
            sizes = [_compressed(file.metadata, i) for i in range(file.metadata.num_row_groups)]
    except _damage():
        return [(0, -1, 0)]
    runs, start, size = [], 0, 0
    for i, group in enumerate(sizes):
        size += group
        if size >= chunk_bytes or i == len(sizes) - 1:
            runs.append((start, i + 1, size))
            start, size = i + 1, 0
    return runs or [(0, -1, 0)]


class ParquetRows:
    """The rows of an open file, by row group.

    Args:
        path: The file.
        candidates: Columns to read, if the file has them.

    Raises:
        FormatError: The file is damaged or has none of the columns.
        BackendError: pyarrow is not installed.
        OSError: The file cannot be read.
    """

    def __init__(self, path: str, candidates: Collection[str]) -> None:
        self.path = path
        parquet = _pyarrow()
        with open(path, "rb"):
            pass  # raises the system's OSError, unlike pyarrow
        with self._damage_named():
            with parquet.ParquetFile(path) as file:
                names = file.schema_arrow.names
                self._columns = [name for name in names if name in candidates]
                texts = _text_columns(file.schema, self._columns)
            if self._columns:
                # With dictionaries, a text that many rows share is in memory only once. With a
                # buffer_size, a column is read in steps, not as a whole.
                self._file = parquet.ParquetFile(path, read_dictionary=texts, buffer_size=_BUFFER)
        if not self._columns:
            raise FormatError(f"{path}: no column to read among {', '.join(names)}")

    def __enter__(self) -> ParquetRows:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def groups(self, start: int, stop: int) -> range:
        """Return the row groups from `start` to `stop`, -1 = the last."""
        return range(start, self._file.metadata.num_row_groups if stop < 0 else stop)

    def num_rows(self, group: int) -> int:
        return int(self._file.metadata.row_group(group).num_rows)

    def rows(self, group: int, most: int) -> Iterator[dict[str, Any] | RecordError]:
        """Yield the rows of a row group.

        A RecordError stands for a row whose values have more than `most` bytes or are none that
        Python has, such as a text that is not UTF-8.

        Raises:
            FormatError: It is damaged; other row groups may not be.

        Cost: memory for `most` bytes of values, a page of each column and a batch's dictionaries.
        """
        with self._damage_named():
            batches = self._file.iter_batches(
                _BATCH_ROWS, row_groups=[group], columns=self._columns
            )
            for batch in batches:
                yield from _rows(batch, most)

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except _damage() as error:
            raise FormatError(f"{self.path}: {' '.join(str(error).split())}") from None


def _text_columns(schema: Any, names: Collection[str]) -> list[str]:
    """Return the paths of the columns of texts or bytes under some names."""
    columns = (schema.column(i) for i in range(len(schema)))
    return [
        column.path
        for column in columns
        if column.physical_type == "BYTE_ARRAY" and column.path.partition(".")[0] in names
    ]


def _rows(batch: Any, most: int) -> Iterator[dict[str, Any] | RecordError]:
    """Yield the rows of a batch, at most `most` bytes at a time; errors for what cannot be had."""
    if sum(map(_value_bytes, batch.columns)) > most:
        rows: Any = RecordError(f"longer than {most} bytes")
    else:
        try:
            rows = batch.to_pylist()
        except (ValueError, OverflowError) as error:
            rows = RecordError(str(error))
    if not isinstance(rows, RecordError):
        yield from rows
    elif batch.num_rows == 1:
        yield rows
    else:
        half = batch.num_rows // 2
        yield from _rows(batch.slice(0, half), most)
        yield from _rows(batch.slice(half), most)


def _value_bytes(array: Any) -> int:
    """Return a lower bound of the bytes of an array's values as Python objects.

    A dictionary's value counts once per occurrence.
    """
    import pyarrow
    import pyarrow.compute as compute

    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        lengths = compute.binary_length(array.dictionary)
        return compute.sum(compute.take(lengths, array.indices)).as_py() or 0
    if pyarrow.types.is_struct(kind):
        return sum(map(_value_bytes, array.flatten()))
    if pyarrow.types.is_map(kind):
        start, stop = array.offsets[0].as_py(), array.offsets[-1].as_py()
        parts = (part.slice(start, stop - start) for part in (array.keys, array.items))
        return sum(map(_value_bytes, parts))
    if pyarrow.types.is_nested(kind) and hasattr(array, "flatten"):
        return _value_bytes(array.flatten())
    return int(array.nbytes)


def _compressed(metadata: Any, group: int) -> int:
    row_group = metadata.row_group(group)
    return sum(row_group.column(i).total_compressed_size for i in range(row_group.num_columns))


def _damage() -> tuple[type[Exception], ...]:
    """Return what pyarrow raises for a damaged file, and for one whose types it does not know."""
    import pyarrow

    return pyarrow.ArrowException, ValueError, OSError


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise BackendError(not_installed("parquet files need pyarrow", "corpus")) from error
    return pyarrow.parquet
