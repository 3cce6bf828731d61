"""`ngramspec cache convert`: to and from llama.cpp's lookup caches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from ngramspec.cli.files import (
    LOOKUP_SUFFIX,
    JsonOptions,
    TokenizerOptions,
    check_output,
    is_statistics,
    say_written,
    tokenizer_flag,
)
from ngramspec.cli.options import argument, command, flag
from ngramspec.cli.progress import progress

EPILOG = """\b
Examples:
  ngramspec cache convert code.ngc code.bin
  ngramspec cache convert lookup.bin lookup.ngc --model model.gguf
"""
NGRAMSPEC, LLAMA_CPP = "ngramspec", "llama.cpp"


@dataclass
class ConvertOptions(TokenizerOptions, JsonOptions):
    """Options of `cache convert`."""

    # fmt: off
    source: Path = argument(metavar="IN")
    output: Path = argument(metavar="OUT")
    to: str | None = flag("--to", "Format of OUT; default: llama.cpp's if it ends in .bin.",
        choices=(LLAMA_CPP, NGRAMSPEC))
    model: Path | None = tokenizer_flag("its tokenizer is recorded in OUT")


@command("convert", EPILOG)
def convert(options: ConvertOptions) -> None:
    """Convert to a lookup cache of llama.cpp, or from one.

    A lookup cache does not record its tokenizer; name it, so that it can be checked against that of
    a model. llama.cpp reads n-grams of 1 to 4 tokens, from a static cache only those of 2.
    """
    from ngramspec.files.cache_file import Origin
    from ngramspec.files.convert import from_lookup_cache, to_lookup_cache
    from ngramspec.files.llama_lookup import may_hold_records
    from ngramspec.files.statistics import open_statistics
    from ngramspec.text.tokenizers import fingerprint_of

    tokenizer_path, output = options.resolve(), options.output
    target = options.to or (LLAMA_CPP if output.suffix == LOOKUP_SUFFIX else NGRAMSPEC)
    check_output(output, {"statistics file": is_statistics, "lookup cache": may_hold_records})
    if target == LLAMA_CPP and tokenizer_path is not None:
        raise click.UsageError(
            "a lookup cache of llama.cpp cannot record a tokenizer: drop --model and --tokenizer"
        )
    header = None
    with progress("converting"):
        statistics = open_statistics(options.source, verify=True)
        if target == NGRAMSPEC:
            origin = None
            if tokenizer_path is not None:
                fingerprint = fingerprint_of(tokenizer_path)
                origin = Origin(fingerprint.digest, fingerprint.vocab_size)
            header = from_lookup_cache(statistics, output, origin)
        else:
            to_lookup_cache(statistics, output)
    say_written(output, header, options.as_json)
