"""How a build reports its progress, and its result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from ngramspec.files.container import Header
from ngramspec.files.dates import NANO, changed_ns, date_of, fixed_date
from ngramspec.lab.builder.feed import Totals
from ngramspec.lab.builder.held_out import HeldOut
from ngramspec.lab.builder.options import BuildOptions
from ngramspec.lab.corpus import CorpusPlan, Problems

MOST_NAMES = 50


class Progress(Protocol):
    """Called from the thread that called build."""

    def phase(self, name: str, total: int) -> None:
        """Begin a phase such as "reading" or "writing"; total in bytes, 0 = unknown."""
        ...

    def done(self, amount: int, tokens: int) -> None:
        """Report the bytes of the phase that are done, and all tokens counted so far."""
        ...

    @property
    def stopped(self) -> bool:
        """Whether the user wants the build to stop at the next document."""
        ...


class NoProgress:
    """Shows nothing and never stops."""

    stopped = False

    def phase(self, name: str, total: int) -> None:
        """Show nothing."""

    def done(self, amount: int, tokens: int) -> None:
        """Show nothing."""


@dataclass
class Seconds:
    """Where the time went; tokenising is a sum over threads, on Ray counting as well."""

    total: float = 0.0
    tokenising: float = 0.0
    counting: float = 0.0
    writing: float = 0.0
    measuring: float = 0.0

    @property
    def tokenising_share(self) -> float:
        """Return the tokenizer's share of the work on text."""
        work = self.tokenising + self.counting + self.writing
        return self.tokenising / work if work else 0.0


@dataclass(frozen=True)
class BuildResult:
    """A finished build."""

    path: str
    header: Header
    file_bytes: int
    totals: Totals
    problems: Problems
    seconds: Seconds = field(default_factory=Seconds)
    num_runs: int = 0  # sorted runs written to disk
    held_out: HeldOut | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        facts = asdict(self)
        del facts["problems"]["skipped_sources"]
        fingerprint = self.header.fingerprint
        facts["header"]["fingerprint"] = fingerprint.hex() if fingerprint else None
        facts["seconds"]["tokenising_share"] = self.seconds.tokenising_share
        if self.held_out is not None:
            for name in ("without_file", "with_file"):
                drafts = getattr(self.held_out, name)
                facts["held_out"][name] |= {
                    "mean_accepted_length": drafts.mean_accepted_length,
                    "acceptance": drafts.acceptance,
                }
        return facts


def provenance(
    plan: CorpusPlan, options: BuildOptions, totals: Totals, problems: Problems, tokenizer: str
) -> dict[str, Any] | None:
    """Return the provenance of a file; it depends on corpus and options, not on the day.

    The date is that of the newest input, or SOURCE_DATE_EPOCH; None if there is none.

    Raises:
        InputError: SOURCE_DATE_EPOCH is no date.
    """
    if not options.provenance:
        return None
    skipped = set(problems.skipped_sources)
    read = [unit for unit in plan.units if unit.source not in skipped]
    names = sorted({unit.source for unit in read})
    settings = options.as_dict()
    if options.kind != "ngram-cache":
        del settings["ngram_min"], settings["ngram_max"]
    if options.kind != "hash-pool":
        del settings["pool"]
    if options.kind == "suffix":
        del settings["min_count"]
    if not options.follow_links:
        del settings["follow_links"]
    if options.gitignore:
        del settings["gitignore"]
    return {
        "corpus": names[:MOST_NAMES],
        "more_files": max(0, len(names) - MOST_NAMES),
        "newest_input": _newest({unit.path for unit in read if unit.path != "-"}),
        "documents": totals.documents - totals.held_out,
        "duplicates": totals.duplicates,
        "held_out_documents": totals.held_out,
        "text_bytes": totals.text_bytes,
        "tokens": totals.tokens,
        "tokenizer": tokenizer,
        "options": settings,
    }


def _newest(paths: Iterable[str]) -> str | None:
    if (fixed := fixed_date()) is not None:
        return fixed
    times = [ns for ns in map(changed_ns, paths) if ns is not None]
    return date_of(max(times) // NANO) if times else None
