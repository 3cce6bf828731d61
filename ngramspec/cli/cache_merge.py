"""`ngramspec cache merge`: counts of several files added up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.group import SectionCommand
from ngramspec.cli.outputs import check_output, output_option, say_written
from ngramspec.cli.sizes import LEAST_FILE, SizeType
from ngramspec.cli.vocabulary import json_option
from ngramspec.errors import InputError, VocabMismatchError

if TYPE_CHECKING:
    from ngramspec.cli.cache_open import Statistics
    from ngramspec.formats.cache_file import Origin
    from ngramspec.formats.container import Header

EPILOG = """\b
Examples:
  ngramspec cache merge monday.ngc tuesday.ngc -o week.ngc
  ngramspec cache merge code.ngc lookup.bin -o code.ngc --min-count 2 --max-size 50M
  ngramspec cache merge a.pool b.pool -o both.pool
"""


@click.command("merge", cls=SectionCommand, epilog=EPILOG)
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
@output_option
@click.option(
    "--min-count",
    type=click.IntRange(1),
    metavar="N",
    default=1,
    show_default=True,
    help="Leave out followers that came less often in all.",
)
@click.option(
    "--max-size", type=SizeType(LEAST_FILE), help="Keep the most useful within this size."
)
@click.option("--any-tokenizer", is_flag=True, help="Also merge files of different tokenizers.")
@json_option()
def merge(files: tuple[Path, ...], output: Path, as_json: bool, **options: Any) -> None:
    """Add up the counts of several files.

    The order of the files does not matter, and the output may be one of them. Of hash pools, which
    must have one shape, each cell keeps the entry that is more often confirmed.
    """
    from ngramspec.cli.cache_open import POOL_KIND, open_statistics

    if len(files) < 2:
        raise click.UsageError("give two files or more")
    check_output(output)
    found = [open_statistics(path, verify=True) for path in files]
    for one in found:
        one.need_statistics("merge")
    is_pool = found[0].kind == POOL_KIND
    for other in found[1:]:
        if (other.kind == POOL_KIND) is not is_pool:
            raise InputError(
                f"{found[0].path} is a {found[0].kind}, {other.path} is a {other.kind}"
            )
    origin = merged_origin(found, options)
    if is_pool:
        if options["min_count"] > 1 or options["max_size"] is not None:
            raise click.UsageError("--min-count and --max-size are not for hash pools")
        from ngramspec.cli.cache_pools import merge_pools

        header = merge_pools(found, output, origin)
    else:
        header = _merge_caches(found, output, origin, options)
    say_written(output, header, as_json)


def _merge_caches(
    found: Sequence[Statistics], output: Path, origin: Origin, options: dict[str, Any]
) -> Header:
    """Write the sums of all entries."""
    from ngramspec._native.files.merge import EntryMerger
    from ngramspec.build.options import BuildOptions
    from ngramspec.build.output import write_output

    by_size: dict[int, list[Any]] = {}
    for one in found:
        for size, source in one.sources().items():
            by_size.setdefault(size, []).append(source)
    merged = {size: EntryMerger(sources, options["min_count"]) for size, sources in by_size.items()}
    return write_output(output, merged, origin, BuildOptions(max_bytes=options["max_size"]))


def merged_origin(found: Sequence[Statistics], options: dict[str, Any]) -> Origin:
    """Return tokenizer and provenance of what is made of several files.

    Raises:
        VocabMismatchError: They are of different tokenizers, and any_tokenizer is not set.
    """
    from ngramspec.formats.cache_file import Origin

    known = [one for one in found if one.fingerprint is not None]
    others = [one for one in known if one.fingerprint != known[0].fingerprint]
    if others and not options["any_tokenizer"]:
        raise VocabMismatchError(
            f"{others[0].path} was made with another tokenizer than {known[0].path}: counts of "
            "different tokens cannot be added up (--any-tokenizer overrides)"
        )
    fingerprint = known[0].fingerprint if known and not others else None
    sized = found if options["any_tokenizer"] or not known else known
    vocab_size = max(one.vocab_size for one in sized)
    if options["any_tokenizer"] and not all(one.vocab_size for one in found):
        vocab_size = 0  # a lookup cache may hold larger ids
    return Origin(fingerprint, vocab_size, _merged_about(found, options))


def _merged_about(found: Sequence[Statistics], options: dict[str, Any]) -> dict[str, Any] | None:
    """Return the provenance of all files, sorted; merging in steps gives that of one merge."""
    parts: list[dict[str, Any]] = []
    for one in found:
        about = one.about
        parts += about["merged"] if set(about) == {"merged"} else [about]
    if not any(parts):
        return None
    made: dict[str, Any] = {
        "merged": sorted(parts, key=lambda part: json.dumps(part, sort_keys=True))
    }
    kept = {"min_count": options["min_count"], "max_bytes": options["max_size"]}
    if options["min_count"] > 1 or options["max_size"] is not None:
        made["pruned"] = [kept]
    return made
