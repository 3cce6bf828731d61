"""`ngramspec bench exactness`: in which settings drafts cannot change a single bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli import completion
from ngramspec.cli.command import SectionCommand
from ngramspec.cli.model import resolve_model
from ngramspec.cli.options import json_option, option, options
from ngramspec.cli.output import make_table, plain_console, print_json
from ngramspec.cli.progress import progress
from ngramspec.cli.target import CacheType, model_options

if TYPE_CHECKING:
    from ngramspec.engine.exactness import Exactness, Setting
    from ngramspec.llamacpp.target import LlamaTarget

EPILOG = """\b
Examples:
  ngramspec bench exactness
  ngramspec bench exactness --model model.gguf --threads 1,4 --flash-attn on
  ngramspec bench exactness --model model.gguf --cache-type f16,q8_0 --json

A batch of n tokens is a draft of n - 1 and the token before it, or such batches of
several slots together. "1 to 50" means: in every batch of 1 to 50 tokens, every row
of logits has the same bits as when the token is decoded alone. --exact of
`ngramspec serve` chooses such a setting.
"""


FLASH_ATTN = {"on": [True], "off": [False], "both": [True, False]}


@click.command("exactness", cls=SectionCommand, epilog=EPILOG)
@options(
    model_options("Options"),
    option("Options", "-t", "--threads", default="1,2", metavar="LIST",
           help="Numbers of threads to try."),
    option("Options", "-fa", "--flash-attn", default="both", type=click.Choice(list(FLASH_ATTN)),
           help="Flash attention."),
    option("Options", "-ct", "--cache-type", default="f16", metavar="LIST",
           shell_complete=completion.cache_types,
           help="Types of the key-value cache to try."),
    option("Options", "--tokens", default=640, type=click.IntRange(72, 1 << 20),
           help="Length of the text; a long one also shows effects of the length."),
    option("Options", "--no-extra-buffers", is_flag=True,
           help="Use weights as stored in the file, not repacked for the CPU."),
    json_option(),
)  # fmt: skip
def exactness(**values: Any) -> None:
    """Measure in which batches logits keep all their bits.

    Decodes the same tokens one by one and in batches of 2 to 64: alone, beside other slots, and
    with wrong drafts decoded and rolled back in between. Compares every bit of every row.
    """
    from ngramspec.engine.exactness import combinations

    resolve_model(values)
    threads = _numbers(values["threads"])
    kind = CacheType()
    types = [kind.convert(one.strip(), None, None) for one in values["cache_type"].split(",")]
    settings = combinations(threads, FLASH_ATTN[values["flash_attn"]], types)
    results = _measure(values, settings)
    if values["as_json"]:
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


def _measure(values: dict[str, Any], settings: list[Setting]) -> list[Exactness]:
    from ngramspec.engine.exactness import SIZES, WAYS, measure
    from ngramspec.llamacpp.exact import open_setting, random_tokens
    from ngramspec.llamacpp.loading import Loading
    from ngramspec.llamacpp.model import LlamaModel
    from ngramspec.models import embedded_model

    results = []
    repack = False if values["no_extra_buffers"] else None
    each = (len(SIZES) + 1) * len(WAYS)
    with LlamaModel(values["model"] or embedded_model(), loading=Loading(repack=repack)) as model:
        ids = random_tokens(model, values["tokens"])

        def open_target(setting: Setting, slots: int) -> LlamaTarget:
            return open_setting(model, setting, slots, values["tokens"])

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
