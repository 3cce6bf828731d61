"""The documents of a corpus in order, duplicates dropped, some set aside."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from ngramspec.errors import InputError
from ngramspec.lab.builder.options import BuildOptions
from ngramspec.lab.corpus import (
    CorpusPlan,
    DigestSet,
    Problems,
    ReadOptions,
    Unit,
    document_digest,
    find_units,
    is_held_out,
    pieces,
)
from ngramspec.lab.corpus.documents import read_steps
from ngramspec.lab.corpus.inputs import STDIN

PART_CHARS = 1 << 20  # longer documents are tokenised and counted in parts


class UnfitCorpusError(InputError):
    """No statistics file is made of the corpus, however often it is tried: nothing is kept."""


@dataclass
class Totals:
    """What has been read so far."""

    documents: int = 0
    duplicates: int = 0
    held_out: int = 0
    text_bytes: int = 0
    tokens: int = 0

    def add(self, other: Totals) -> None:
        self.documents += other.documents
        self.duplicates += other.duplicates
        self.held_out += other.held_out
        self.text_bytes += other.text_bytes
        self.tokens += other.tokens


@dataclass
class Feed:
    """Feed(plan, options): yields documents; its position can be saved and restored.

    unit, document: The position: a unit, and how many of its documents are done.
    done_bytes: Read in all units, about.
    digests: Of the documents seen so far; new_digests: those since the last checkpoint.
    """

    plan: CorpusPlan
    options: BuildOptions
    unit: int = 0
    document: int = 0
    done_bytes: int = 0
    totals: Totals = field(default_factory=Totals)
    problems: Problems = field(default_factory=Problems)
    digests: DigestSet = field(default_factory=DigestSet)
    new_digests: list[bytes] = field(default_factory=list)

    def documents(self) -> Iterator[tuple[list[str], bool]]:
        """Yield each document in parts, and whether it is held out; it already counts as done.

        A duplicate has no parts, nor has a line, row or file without text: they are yielded so that
        a build can stop there, too.

        Raises:
            UnfitCorpusError: Recorded requests come from a pipe, without a word on their format.
        """
        read_options = ReadOptions(self.options.field, self.options.roles)
        before = sum(unit.num_bytes for unit in self.plan.units[: self.unit])
        while self.unit < len(self.plan.units):
            unit, skip, problems = self.plan.units[self.unit], self.document, Problems()
            number = 0
            for document in read_steps(unit, read_options, problems):
                is_text = bool(document.text)
                number += is_text
                if is_text and number == 1:
                    self._refuse_requests(unit, document.text)
                if number - is_text < skip:
                    continue
                self.document = number
                self.done_bytes = before + min(document.position, unit.num_bytes)
                if not is_text or not self._is_new(digest := document_digest(document.text)):
                    yield [], False
                    continue
                aside = is_held_out(digest, self.options.held_out)
                self._count(document.text, aside)
                yield list(pieces(document.text, PART_CHARS)), aside
            self.problems.merge(problems)
            before += unit.num_bytes
            self.done_bytes = before
            self.unit += 1
            self.document = 0
            if not number:
                yield [], False

    def _refuse_requests(self, unit: Unit, text: str) -> None:
        """Refuse recorded requests from a pipe: of a file, the command counts the answers."""
        # Only what is no regular file has no size.
        if self.options.format is not None or unit.format != "text" or unit.num_bytes:
            return
        from ngramspec.lab.recordings.formats import LOOKED_AT, is_recorded

        if is_recorded(text[:LOOKED_AT]):
            name = "standard input" if unit.path == STDIN else unit.path
            raise UnfitCorpusError(
                f"{name} holds recorded requests, which are read more than once: name a file that "
                "holds them to count the answers, or give --format text to count all as text"
            )

    def _is_new(self, digest: bytes) -> bool:
        if not self.digests.add(digest):
            self.totals.duplicates += 1
            return False
        self.new_digests.append(digest)
        return True

    def _count(self, text: str, aside: bool) -> None:
        self.totals.documents += 1
        self.totals.held_out += aside
        self.totals.text_bytes += len(text.encode("utf-8", "replace"))


def plan_of(
    paths: Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    options: BuildOptions,
) -> CorpusPlan:
    """Find what to read: not the output, which a build before may have left among it.

    Raises:
        InputError: There is nothing else; or as find_units.
        IsADirectoryError: The output is a folder.
        As find_units.
    """
    if os.path.isdir(output):
        raise IsADirectoryError(errno.EISDIR, "is a folder, not a file to write", os.fspath(output))
    plan = find_units(
        paths, include=options.include, exclude=options.exclude, format=options.format,
        gitignore=options.gitignore, follow_links=options.follow_links,
    )  # fmt: skip
    units = tuple(unit for unit in plan.units if not _is_file(unit.path, output))
    if len(units) == len(plan.units):
        return plan
    if not units:
        raise InputError(f"there is nothing to read but {os.fspath(output)}, the output itself")
    num_bytes = sum(unit.num_bytes for unit in units)
    return replace(plan, units=units, num_files=plan.num_files - 1, num_bytes=num_bytes)


def _is_file(path: str, output: str | os.PathLike[str]) -> bool:
    """Return whether a path is that of the output; one with another name is not looked at."""
    if os.path.basename(path) == os.path.basename(output):
        with contextlib.suppress(OSError):  # there is no output yet
            return os.path.samefile(path, output)
    return False
