"""`ngramspec cache convert`: to and from llama.cpp's lookup caches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.group import SectionCommand
from ngramspec.cli.outputs import LOOKUP_SUFFIX, check_output, say_written
from ngramspec.cli.vocabulary import given_path, json_option, tokenizer_options
from ngramspec.errors import InputError

if TYPE_CHECKING:
    from ngramspec.cli.cache_open import Statistics
    from ngramspec.formats.container import Header

EPILOG = """\b
Examples:
  ngramspec cache convert code.ngc code.bin
  ngramspec cache convert lookup.bin lookup.ngc --model model.gguf
"""
NGRAMSPEC, LLAMA_CPP = "ngramspec", "llama.cpp"


@click.command("convert", cls=SectionCommand, epilog=EPILOG)
@click.argument("source", type=click.Path(path_type=Path), metavar="IN")
@click.argument("output", type=click.Path(path_type=Path), metavar="OUT")
@click.option(
    "--to",
    "target",
    type=click.Choice([LLAMA_CPP, NGRAMSPEC]),
    help="Format of OUT; default: llama.cpp's if it ends in .bin.",
)
@tokenizer_options("states the tokenizer in OUT")
@json_option()
def convert(source: Path, output: Path, target: str | None, as_json: bool, **options: Any) -> None:
    """Convert to a lookup cache of llama.cpp, or from one.

    A lookup cache says nothing about its tokenizer; name it, so that it can be compared with that
    of a model. llama.cpp reads n-grams of 1 to 4 tokens, as a static cache those of 2.
    """
    from ngramspec.cli.cache_open import LOOKUP_KIND, open_statistics

    given = given_path(options)
    target = target or (LLAMA_CPP if output.suffix == LOOKUP_SUFFIX else NGRAMSPEC)
    check_output(output, statistics=False)
    found = open_statistics(source, verify=True)
    found.need_ngrams("convert")
    if (found.kind == LOOKUP_KIND) == (target == LLAMA_CPP):
        raise InputError(f"{source} is a file of {target} already")
    if target == LLAMA_CPP and given is not None:
        raise click.UsageError("a lookup cache of llama.cpp cannot state a tokenizer")
    if target == LLAMA_CPP:
        _to_lookup_cache(found, output)
        say_written(output, None, as_json)
    else:
        say_written(output, _to_container(found, output, given), as_json)


def _to_lookup_cache(found: Statistics, output: Path) -> None:
    from ngramspec._native.cache.ngram_cache import NgramCache
    from ngramspec.formats.llama_lookup import write_lookup_cache

    cache = NgramCache(1, 4, 1 << 30)  # all of them
    for size, source in found.sources().items():
        while len(entries := source.read()):
            cache.add_entries(entries, size)
    write_lookup_cache(cache, output)


def _to_container(found: Statistics, output: Path, given: Path | None) -> Header:
    from ngramspec.formats.cache_file import Origin, write_cache
    from ngramspec.tokenizers import fingerprint_of

    origin = Origin()
    if given is not None:
        known = fingerprint_of(given)
        origin = Origin(known.digest, known.vocab_size)
    return write_cache(output, found.sources(), origin)
