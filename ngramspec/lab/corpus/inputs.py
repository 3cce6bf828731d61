"""Split the paths on a command line into units: what one worker reads from start to end."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ngramspec.errors import InputError
from ngramspec.lab.corpus.parquet import split_row_groups
from ngramspec.lab.corpus.patterns import GITIGNORE, Patterns, read_gitignore
from ngramspec.lab.corpus.problems import Problem

STDIN = "-"
FORMATS = ("text", "jsonl", "parquet")
CHUNK_BYTES = 64 << 20
TO_THE_END = -1
_FORMAT_OF = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_COMPRESSION_OF = {".gz": "gz", ".zst": "zst", ".xz": "xz", ".bz2": "bz2"}


@dataclass(frozen=True, slots=True)
class Unit:
    """What one worker reads: a file, or a part of one.

    path: The file, "-" for standard input.
    source: Its path relative to the argument that named it, with slashes; for messages.
    format: "text", "jsonl" or "parquet".
    compression: "", "gz", "zst", "xz" or "bz2".
    start, stop: Bytes of a jsonl file in which a line must start, row groups of a parquet file;
        stop -1 is the end of the file.
    num_bytes: Size in the file, 0 if unknown; for a progress bar.
    """

    path: str
    source: str
    format: str = "text"
    compression: str = ""
    start: int = 0
    stop: int = TO_THE_END
    num_bytes: int = 0


@dataclass(frozen=True)
class CorpusPlan:
    """All units of a corpus, in order.

    units: In the order of the arguments; within a folder by relative path.
    num_files: Files that the units come from.
    num_bytes: Sum over the units.
    left_out: Links that were not followed.
    """

    units: tuple[Unit, ...]
    num_files: int
    num_bytes: int
    left_out: tuple[Problem, ...] = ()


def find_units(
    paths: Iterable[str | os.PathLike[str]],
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    format: str | None = None,
    gitignore: bool = True,
    follow_links: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
) -> CorpusPlan:
    """Find the files to read and split them into units.

    Args:
        paths: Files, folders or "-". A folder is searched through; hidden files and folders in it
            are left out, and so are links that lead out of it. A file that is reached twice is read
            once.
        include: Patterns as in a .gitignore in the given folder: only files that match, or are in a
            folder that matches, are read; () = all. Of a file in `paths`, the name must match.
        exclude: Patterns of the same kind; what they match is left out, whatever include says.
        format: "text", "jsonl" or "parquet" for all files, None = by file name, otherwise "text".
        gitignore: Leave out what .gitignore files exclude: those in the searched folders and,
            within a git repository, above them. A path in `paths` is always read.
        follow_links: Also follow links that lead out of the given folder. In an untrusted corpus
            they can point to any file of this machine.
        chunk_bytes: Larger jsonl and parquet files are split into units of about that size. Which
            documents are read does not depend on it.

    Returns:
        CorpusPlan: At least one unit.

    Raises:
        FileNotFoundError: A path does not exist.
        InputError: Nothing was found, an option is not valid, or parquet is not in a file.
        BackendError: A parquet file must be split and pyarrow is not installed.
        OSError: A folder cannot be listed, or a .gitignore not read.

    Cost: one stat per file, and memory of some 550 bytes; files are opened only to split parquet.
    """
    if format not in (None, *FORMATS):
        raise InputError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    if chunk_bytes < 1:
        raise InputError(f"chunk_bytes must be at least 1, got {chunk_bytes}")
    for name, several in {"paths": paths, "include": include, "exclude": exclude}.items():
        if isinstance(several, (str, os.PathLike)):  # whose letters would each be one
            raise InputError(f"{name} must be a list, got {several!r}: write [{several!r}]")
    names = [os.fspath(path) for path in paths]
    search = _Search(Patterns(include), Patterns(exclude), gitignore, follow_links)
    units: list[Unit] = []
    num_files = 0
    for path, source, size in search.files(names):
        num_files += 1
        unit = _unit(path, source, size, format)
        _check_parquet(unit)
        units += _split(unit, chunk_bytes)
    if not units:
        raise InputError(f"no file to read in {', '.join(names) or 'no path'}{search.hint()}")
    num_bytes = sum(unit.num_bytes for unit in units)
    return CorpusPlan(tuple(units), num_files, num_bytes, tuple(search.left_out))


@dataclass(frozen=True)
class _Ignore:
    """The patterns of one .gitignore.

    before: Path from its folder to the one that is searched, "" or with a slash at the end.
    cut: Characters of a relative path that lead to its folder.
    """

    patterns: Patterns
    before: str = ""
    cut: int = 0

    def decide(self, relative: str) -> bool | None:
        """Decide, as Patterns do, on a path relative to the searched folder."""
        return self.patterns.decide(self.before + relative[self.cut :])


@dataclass(frozen=True)
class _Entry:
    """A file or folder that a search found.

    relative: Path below the searched folder, "" for that folder itself.
    ignores: For a folder, the .gitignore files above it, the nearest first.
    """

    path: str
    relative: str
    status: os.stat_result
    ignores: tuple[_Ignore, ...] = ()


class _Search:
    """One search through files and folders.

    seen: Device and inode of every file and folder that was reached.
    left_out: Links that were not followed.
    ignored: The first path that a .gitignore left out.
    """

    def __init__(
        self, include: Patterns, exclude: Patterns, gitignore: bool, follow_links: bool
    ) -> None:
        self.include = include
        self.exclude = exclude
        self.gitignore = gitignore
        self.follow_links = follow_links
        self.seen: set[tuple[int, int]] = set()
        self.left_out: list[Problem] = []
        self.ignored = ""

    def files(self, paths: Iterable[str]) -> Iterator[tuple[str, str, int]]:
        stdin_seen = False
        for path in paths:
            if path == STDIN:
                if not stdin_seen:
                    yield STDIN, STDIN, 0
                stdin_seen = True
                continue
            status = os.stat(path)
            if stat.S_ISDIR(status.st_mode):
                yield from self.folder(path, status)
            elif self.is_selected(Path(path).name) and self.is_new(status):
                size = status.st_size if stat.S_ISREG(status.st_mode) else 0
                yield path, Path(path).name, size

    def folder(self, path: str, status: os.stat_result) -> Iterator[tuple[str, str, int]]:
        """Yield the files below a folder, by relative path."""
        root = os.path.realpath(path)
        waiting = [_Entry(path, "", status, _ignores_above(root) if self.gitignore else ())]
        while waiting:
            entry = waiting.pop()
            if stat.S_ISREG(entry.status.st_mode):
                if self.is_selected(entry.relative) and self.is_new(entry.status):
                    yield entry.path, entry.relative, entry.status.st_size
            elif stat.S_ISDIR(entry.status.st_mode) and self.is_new(entry.status):
                waiting += reversed(self.entries(entry, root))

    def entries(self, folder: _Entry, root: str) -> list[_Entry]:
        """Return the entries of a folder by name, without hidden, excluded and broken ones.

        root: The folder that links must not lead out of.
        """
        with os.scandir(folder.path) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        start = f"{folder.relative}/" if folder.relative else ""
        ignores = folder.ignores
        for entry in listed:
            if self.gitignore and entry.name == GITIGNORE and entry.is_file(follow_symlinks=False):
                ignores = (_Ignore(read_gitignore(entry.path), cut=len(start)), *ignores)
        selected = []
        for entry in listed:
            if entry.name.startswith("."):
                continue
            try:
                status = os.stat(entry.path)
            except OSError:
                continue  # a link to nowhere or to itself
            name = start + entry.name
            shown = f"{name}/" if stat.S_ISDIR(status.st_mode) else name
            if self.exclude.decide(shown) or self.is_ignored(shown, ignores):
                continue
            if entry.is_symlink() and not self.may_follow(entry.path, root):
                if stat.S_ISDIR(status.st_mode) or self.is_selected(name):
                    reason = "a link that leads out of the folder (--follow-links reads it)"
                    self.left_out.append(Problem(name, "", reason))
                continue
            selected.append(_Entry(entry.path, name, status, ignores))
        return selected

    def may_follow(self, link: str, root: str) -> bool:
        """Return whether a link may be followed: it stays below `root`, or all may."""
        return self.follow_links or Path(os.path.realpath(link)).is_relative_to(root)

    def is_ignored(self, relative: str, ignores: Iterable[_Ignore]) -> bool:
        """Return whether the nearest .gitignore with a matching pattern excludes a path."""
        answers = (ignore.decide(relative) for ignore in ignores)
        ignored = bool(next((one for one in answers if one is not None), False))
        if ignored:
            self.ignored = self.ignored or relative
        return ignored

    def is_selected(self, relative: str) -> bool:
        if self.exclude.decide(relative):
            return False
        return not self.include.lines or self.include.select(relative)

    def is_new(self, status: os.stat_result) -> bool:
        identity = (status.st_dev, status.st_ino)
        if identity in self.seen:
            return False
        self.seen.add(identity)
        return True

    def hint(self) -> str:
        """Return why no file may have been found, to end a message."""
        if self.left_out:
            return f" but links out of it, such as {self.left_out[0].source} (--follow-links)"
        if self.ignored:
            return f" but what .gitignore leaves out, such as {self.ignored} (--no-ignore)"
        filtered = self.include.lines or self.exclude.lines
        return " that include and exclude let through" if filtered else ""


def _ignores_above(folder: str) -> tuple[_Ignore, ...]:
    """Return the .gitignore files between a folder and the root of its git repository."""
    ignores: list[_Ignore] = []
    before = ""
    place = Path(folder)
    while not (place / ".git").exists():
        if place == place.parent:
            return ()  # in no repository
        before = f"{place.name}/{before}"
        place = place.parent
        if (place / GITIGNORE).is_file():
            ignores.append(_Ignore(read_gitignore(place / GITIGNORE), before))
    return tuple(ignores)


def _unit(path: str, source: str, size: int, format: str | None) -> Unit:
    stem, suffix = os.path.splitext(source.lower())
    compression = _COMPRESSION_OF.get(suffix, "")
    if compression:
        suffix = os.path.splitext(stem)[1]
    format = format or _FORMAT_OF.get(suffix, "text")
    return Unit(path, source, format, compression, num_bytes=size)


def _check_parquet(unit: Unit) -> None:
    """Refuse parquet from standard input or a pipe: what tells its rows is at its end."""
    if unit.format != "parquet":
        return
    is_stdin = unit.path == STDIN
    if is_stdin or (os.path.exists(unit.path) and not os.path.isfile(unit.path)):
        raise InputError(
            f"{'standard input' if is_stdin else unit.path} is no file: parquet cannot be read "
            "from a pipe, name a file that holds it"
        )


def _split(unit: Unit, chunk_bytes: int) -> list[Unit]:
    if unit.compression or unit.num_bytes <= chunk_bytes:
        return [unit]
    if unit.format == "jsonl":
        starts = [*range(0, unit.num_bytes, chunk_bytes), unit.num_bytes]
        parts = [(a, b, b - a) for a, b in itertools.pairwise(starts)]
    elif unit.format == "parquet":
        parts = split_row_groups(unit.path, chunk_bytes)
    else:
        return [unit]
    return [
        Unit(unit.path, unit.source, unit.format, "", start, stop, num_bytes)
        for start, stop, num_bytes in parts
    ]
