"""Parquet files: rows of the columns that may hold text, one row group after another."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from ngramspec.errors import BackendError, FormatError

_BATCH_ROWS = 128


def split_row_groups(path: str, chunk_bytes: int) -> list[tuple[int, int, int]]:
    """Split a file into runs of row groups.

    Args:
        path: The file.
        chunk_bytes: A run ends once it has that many compressed bytes.

    Returns:
        list: First row group, the one behind the last, and compressed bytes of every run; one run
        (0, -1, 0) for a damaged file, so that reading it reports the damage.

    Raises:
        BackendError: pyarrow is not installed.
    """
    parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path) as file:
            sizes = [_compressed(file.metadata, i) for i in range(file.metadata.num_row_groups)]
    except (OSError, ValueError):
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
        candidates: Columns to read, as far as the file has them.

    Raises:
        FormatError: The file is damaged or has none of the columns.
        BackendError: pyarrow is not installed.
        OSError: The file cannot be read.
    """

    def __init__(self, path: str, candidates: Collection[str]) -> None:
        self.path = path
        parquet = _pyarrow()
        with open(path, "rb"):
            pass  # pyarrow has its own words for what the system refuses
        with self._damage_named():
            self._file = parquet.ParquetFile(path)
        names = self._file.schema_arrow.names
        self._columns = [name for name in names if name in candidates]
        if not self._columns:
            self._file.close()
            raise FormatError(f"{path}: no column to read among {', '.join(names)}")

    def __enter__(self) -> ParquetRows:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def groups(self, start: int, stop: int) -> range:
        """Return the row groups from `start` to `stop`, -1 = the last."""
        return range(start, self._file.metadata.num_row_groups if stop < 0 else stop)

    def num_rows(self, group: int) -> int:
        """Return the number of rows of a row group."""
        return int(self._file.metadata.row_group(group).num_rows)

    def rows(self, group: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of a row group.

        Raises:
            FormatError: It is damaged; others may be whole.
        """
        with self._damage_named():
            batches = self._file.iter_batches(
                _BATCH_ROWS, row_groups=[group], columns=self._columns
            )
            for batch in batches:
                yield from batch.to_pylist()

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        import pyarrow

        try:
            yield
        except (pyarrow.ArrowException, ValueError, OSError) as error:
            raise FormatError(f"{self.path}: {' '.join(str(error).split())}") from None


def _compressed(metadata: Any, group: int) -> int:
    row_group = metadata.row_group(group)
    return sum(row_group.column(i).total_compressed_size for i in range(row_group.num_columns))


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise BackendError(
            "parquet files need pyarrow, which is not installed: pip install 'ngramspec[corpus]'"
        ) from error
    return pyarrow.parquet
