"""`ngramspec bench exactness`: in which settings drafts cannot change a single bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ngramspec.cli.files import JsonOptions
from ngramspec.cli.model import ModelOptions
from ngramspec.cli.options import command, flag, in_list
from ngramspec.cli.output import make_table, plain_console, print_json
from ngramspec.cli.progress import progress
from ngramspec.cli.target import CACHE_TYPE
from ngramspec.llamacpp.contexts import CACHE_TYPES

if TYPE_CHECKING:
    from ngramspec.engine.exactness import Exactness, Setting
    from ngramspec.llamacpp.target import LlamaTarget

EPILOG = """\b
Examples:
  ngramspec bench exactness --threads 1 --flash-attn on --tokens 200
  ngramspec bench exactness --model model.gguf --threads 1,4 --cache-type f16,q8_0 --json

A batch of n tokens is a draft of n - 1 and the token before it, or such batches of
several slots together. "1 to 50" means: in every batch of 1 to 50 tokens, every row
of logits has the same bits as when the token is decoded alone. --exact of
`ngramspec serve` chooses such a setting.
"""


FLASH_ATTN = {"on": [True], "off": [False], "both": [True, False]}


@dataclass
class ExactnessOptions(ModelOptions, JsonOptions):
    """Options of `bench exactness`."""

    # fmt: off
    threads: str = flag("-t --threads", "Numbers of threads to try.", default="1,2", metavar="LIST")
    flash_attn: str = flag(
        "-fa --flash-attn", "Flash attention.", default="both", choices=tuple(FLASH_ATTN))
    cache_type: str = flag("-ct --cache-type", "Types of the key-value cache to try.",
        default=CACHE_TYPE, metavar="LIST", shell_complete=in_list(*CACHE_TYPES))
    tokens: int = flag("--tokens", "Length of the text; a long one also shows effects of the "
        "length.", default=640, low=72, high=1 << 20)
    no_extra_buffers: bool = flag("--no-extra-buffers", "Use weights as stored in the file, not "
        "repacked for the CPU.", default=False)


@command("exactness", EPILOG)
def exactness(options: ExactnessOptions) -> None:
    """Measure in which batches logits keep all their bits.

    Decodes the same tokens one by one and in batches of 2 to 64: alone, beside other slots, and
    with wrong drafts decoded and taken back in between. Compares every bit of every row.
    """
    from ngramspec.engine.exactness import combinations

    options.resolve()
    threads = _numbers(options.threads)
    kind = click.Choice(CACHE_TYPES)
    types = [kind.convert(one.strip(), None, None) for one in options.cache_type.split(",")]
    settings = combinations(threads, FLASH_ATTN[options.flash_attn], types)
    results = _measure(options, settings)
    if options.as_json:
        print_json([result.as_json() for result in results])
    else:
        _show(results)


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a list of numbers", param_hint="--threads"
        ) from None
    if min(numbers) < 1:
        raise click.BadParameter("threads must be 1 or more", param_hint="--threads")
    return numbers


def _measure(options: ExactnessOptions, settings: list[Setting]) -> list[Exactness]:
    from ngramspec.engine.exactness import SIZES, WAYS, measure
    from ngramspec.llamacpp.exact import open_setting, random_tokens
    from ngramspec.llamacpp.loading import Loading
    from ngramspec.llamacpp.model import LlamaModel
    from ngramspec.models import embedded_model

    results = []
    repack = False if options.no_extra_buffers else None
    each = (len(SIZES) + 1) * len(WAYS)
    with LlamaModel(options.model or embedded_model(), loading=Loading(repack=repack)) as model:
        ids = random_tokens(model, options.tokens)

        def open_target(setting: Setting, slots: int) -> LlamaTarget:
            return open_setting(model, setting, slots, options.tokens)

        with progress("measuring", each * len(settings)) as advance:
            for setting in settings:
                advance.name(setting.text())
                results.append(measure(open_target, setting, ids, on_step=advance))
    return results


def _show(results: list[Exactness]) -> None:
    ways = list(results[0].differing)
    columns = ("threads", "flash", "cache", "slots have", "padded", *ways, "all")
    table = make_table(columns, text=columns)
    for result in results:
        setting = result.setting
        limits = (_range(result.limit(way)) for way in ways)
        table.add_row(
            str(setting.threads),
            "on" if setting.flash_attn else "off",
            setting.cache_type,
            "one cache" if setting.unified else "a cache each",
            "yes" if setting.padded else "no",
            *limits,
            _range(result.limit()),
        )
    console = plain_console()
    console.print("Batch sizes at which all logits have the same bits as those of single tokens:")
    console.print(table)


def _range(limit: int) -> str:
    return "none" if limit < 2 else f"1 to {limit}"
