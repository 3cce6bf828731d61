"""`ngramspec cache convert`: to and from llama.cpp's lookup caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ngramspec.cli.cache.written import say_written
from ngramspec.cli.command import SectionCommand
from ngramspec.cli.options import (
    FILE,
    LOOKUP_SUFFIX,
    check_output,
    given_tokenizer,
    is_lookup_cache,
    is_statistics,
    json_option,
    option,
    options,
    tokenizer_options,
)
from ngramspec.cli.progress import progress

EPILOG = """\b
Examples:
  ngramspec cache convert code.ngc code.bin
  ngramspec cache convert lookup.bin lookup.ngc --model model.gguf
"""
NGRAMSPEC, LLAMA_CPP = "ngramspec", "llama.cpp"


@click.command("convert", cls=SectionCommand, epilog=EPILOG)
@click.argument("source", type=FILE, metavar="IN")
@click.argument("output", type=FILE, metavar="OUT")
@options(
    option("Options", "--to", "target", type=click.Choice([LLAMA_CPP, NGRAMSPEC]),
           help="Format of OUT; default: llama.cpp's if it ends in .bin."),
    tokenizer_options("its tokenizer is recorded in OUT"),
    json_option(),
)  # fmt: skip
def convert(source: Path, output: Path, target: str | None, as_json: bool, **values: Any) -> None:
    """Convert to a lookup cache of llama.cpp, or from one.

    A lookup cache does not record its tokenizer; name it, so that it can be checked against that of
    a model. llama.cpp reads n-grams of 1 to 4 tokens, from a static cache only those of 2.
    """
    from ngramspec.files.cache_file import Origin
    from ngramspec.files.convert import from_lookup_cache, to_lookup_cache
    from ngramspec.files.statistics import open_statistics
    from ngramspec.text.tokenizers import fingerprint_of

    tokenizer_path = given_tokenizer(values)
    target = target or (LLAMA_CPP if output.suffix == LOOKUP_SUFFIX else NGRAMSPEC)
    check_output(output, {"statistics file": is_statistics, "lookup cache": is_lookup_cache})
    if target == LLAMA_CPP and tokenizer_path is not None:
        raise click.UsageError(
            "a lookup cache of llama.cpp cannot record a tokenizer: drop --model and --tokenizer"
        )
    header = None
    with progress("converting"):
        statistics = open_statistics(source, verify=True)
        if target == NGRAMSPEC:
            origin = None
            if tokenizer_path is not None:
                fingerprint = fingerprint_of(tokenizer_path)
                origin = Origin(fingerprint.digest, fingerprint.vocab_size)
            header = from_lookup_cache(statistics, output, origin)
        else:
            to_lookup_cache(statistics, output)
    say_written(output, header, as_json)
