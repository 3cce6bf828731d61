"""`ngramspec bench exactness`: in which settings drafts cannot change a single bit."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.group import SectionCommand, SectionOption
from ngramspec.cli.vocabulary import json_option

if TYPE_CHECKING:
    from ngramspec.engine.exactness import Exactness, Setting

EPILOG = """\b
Examples:
  ngramspec bench exactness
  ngramspec bench exactness --model model.gguf --threads 1,4 --flash-attn on
  ngramspec bench exactness --model model.gguf --cache-type f16,q8_0 --json

A batch of n tokens is a verified draft of n - 1 and the token before it, or that of
several slots together. "up to 50" means: every row of every batch of 1 to 50 tokens
has the bits that the token has when it is decoded alone. Such a setting is what
--exact of `ngramspec serve` chooses.
"""


@click.command("exactness", cls=SectionCommand, epilog=EPILOG)
@click.option(
    "-m", "--model", cls=SectionOption, type=click.Path(dir_okay=False, path_type=Path),
    help="GGUF file; the embedded model when left out.",
)  # fmt: skip
@click.option("-t", "--threads", cls=SectionOption, default="1,2", show_default=True,
              metavar="LIST", help="Numbers of threads to try.")  # fmt: skip
@click.option("-fa", "--flash-attn", cls=SectionOption, default="both", show_default=True,
              type=click.Choice(["on", "off", "both"]), help="Flash attention.")  # fmt: skip
@click.option("-ct", "--cache-type", cls=SectionOption, default="f16", show_default=True,
              metavar="LIST", help="Types of the key-value cache to try.")  # fmt: skip
@click.option("--tokens", cls=SectionOption, default=640, show_default=True,
              type=click.IntRange(72, 1 << 20),
              help="Length of the text; long ones show what depends on it.")  # fmt: skip
@click.option("--no-extra-buffers", cls=SectionOption, is_flag=True,
              help="Keep weights as they are in the file, not repacked for the CPU.")  # fmt: skip
@json_option()
def exactness(
    model: Path | None,
    threads: str,
    flash_attn: str,
    cache_type: str,
    tokens: int,
    no_extra_buffers: bool,
    as_json: bool,
) -> None:
    """Measure in which batches logits keep all their bits.

    The same tokens are decoded one by one and in batches of 2 to 64, alone, beside other slots, and
    with wrong drafts decoded and taken back on the way. Every bit of every row is compared.
    """
    settings = _settings(_numbers(threads), flash_attn, cache_type.split(","))
    found = _measure(model, settings, tokens, False if no_extra_buffers else None)
    if as_json:
        click.echo(json.dumps([_as_json(result) for result in found]))
    else:
        _print_table(found)


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


def _settings(threads: list[int], flash_attn: str, cache_types: list[str]) -> list[Setting]:
    """Return all combinations; padding only where it may help."""
    from ngramspec.engine.exactness import Setting

    flash = {"on": [True], "off": [False], "both": [True, False]}[flash_attn]
    made = []
    for kind, on, count, unified in itertools.product(cache_types, flash, threads, (True, False)):
        if on or kind in ("f16", "f32"):  # llama.cpp has no quantised cache without it
            made.append(Setting(count, on, kind, unified))
            if count > 1 and unified:
                made.append(Setting(count, on, kind, unified, padded=True))
    return made


def _measure(
    path: Path | None, settings: list[Setting], tokens: int, extra_buffers: bool | None
) -> list[Exactness]:
    from rich.console import Console
    from rich.progress import Progress

    from ngramspec.adapters.llama_cpp.exact import open_setting, test_tokens
    from ngramspec.adapters.llama_cpp.model import LlamaModel
    from ngramspec.engine.exactness import SIZES, measure
    from ngramspec.models import embedded_model

    made = []
    console = Console(stderr=True)
    with (
        LlamaModel(path or embedded_model(), use_extra_bufts=extra_buffers) as model,
        Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress,
    ):
        ids = test_tokens(model, tokens)
        task = progress.add_task("measuring", total=len(settings) * (len(SIZES) + 1) * 3)
        for setting in settings:
            progress.update(task, description=setting.text())
            made.append(
                measure(
                    lambda s, n: open_setting(model, s, n, tokens),
                    setting,
                    ids,
                    on_step=lambda: progress.advance(task),
                )
            )
    return made


def _as_json(found: Exactness) -> dict[str, Any]:
    return {
        **dataclasses.asdict(found.setting),
        "exact_batch": found.limit(),
        "rows": found.num_rows,
        "differing": found.differing,
    }


def _print_table(found: list[Exactness]) -> None:
    from rich.console import Console
    from rich.table import Table

    ways = list(found[0].differing)
    table = Table(box=None, pad_edge=False)
    for name in ("threads", "flash", "cache", "slots have", "padded", *ways, "all"):
        table.add_column(name)
    for result in found:
        setting = result.setting
        limits = [_range(result.limit(way)) for way in ways]
        row = (
            str(setting.threads),
            "on" if setting.flash_attn else "off",
            setting.cache_type,
            "one cache" if setting.unified else "a cache each",
            "yes" if setting.padded else "no",
        )
        table.add_row(*row, *limits, _range(result.limit()))
    console = Console()
    console.print("Tokens per batch for which all bits of all logits are those of single tokens:")
    console.print(table)


def _range(limit: int) -> str:
    return "none" if limit < 2 else f"1 to {limit}"
