"""`ngramspec tune`: which drafter and sizes suit your own requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ngramspec.cli.group import SectionCommand
from ngramspec.cli.interrupt import EXIT_INTERRUPTED
from ngramspec.cli.target_options import RUNNING, running
from ngramspec.cli.vocabulary import json_option, section_option
from ngramspec.costs import PROFILES

COSTS, SEARCH = "Costs", "Search"
FILE = click.Path(path_type=Path)
EPILOG = """\b
Examples:
  ngramspec tune benchmarks/data/traces --profile cpu
  ngramspec tune chat.jsonl --tokenizer tokenizer.json --profile h100-8b
  ngramspec tune logs/ --model model.gguf              # its tokenizer and measured costs
  ngramspec tune logs/ --model model.gguf --costs costs.json --time-limit 60
  ngramspec tune tokens.txt.xz --requests 200 --json

TRACES are what `ngramspec bench replay` reads: NAME.txt.xz or NAME.txt with token ids,
NAME.jsonl.xz or NAME.jsonl with text, for which --tokenizer or --model is needed, or
folders of them.

The recorded outputs play the target. Drafters and sizes are chosen on the first two
thirds of each set; figures are those of the last third, which the choice has not seen.
Without costs, the table is used that `ngramspec bench calibrate` saved for --model in
this setting, else the profile cpu. Ctrl-C prints the best that is known by then.
"""


def _setting_options(function: Any) -> Any:
    """Add the options that saved costs depend on."""
    for name in reversed([name for name in RUNNING if name != "exact"]):
        function = running("Setting of saved costs", name)(function)
    return function


@click.command("tune", cls=SectionCommand, epilog=EPILOG)
@click.argument("traces", nargs=-1, required=True, type=FILE)
@section_option("Options", "-m", "--model", type=FILE,
                help="GGUF file: its tokenizer, for traces with text, and its costs.")  # fmt: skip
@section_option("Options", "--tokenizer", type=FILE,
                help="GGUF file or tokenizer.json, for traces with text.")  # fmt: skip
@json_option()
@section_option(COSTS, "--profile", type=click.Choice(list(PROFILES)),
                help="What a batch costs the target, as in `bench replay`.")  # fmt: skip
@section_option(COSTS, "--costs", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                metavar="FILE", help="A table that `bench calibrate -o` saved.")  # fmt: skip
@section_option(SEARCH, "--requests", type=click.IntRange(1), default=600,
                help="First requests of each set; others are not read.")  # fmt: skip
@section_option(SEARCH, "--time-limit", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
                help="Recommend the best that is known by then. A quarter is for the held-out "
                "requests.")  # fmt: skip
@section_option(SEARCH, "--seed", type=int, default=0, metavar="N",
                help="Of the samples that the first rounds take.")  # fmt: skip
@section_option(SEARCH, "--max-prompt", type=click.IntRange(1), default=12_000,
                help="Last tokens of a prompt.")  # fmt: skip
@section_option(SEARCH, "--max-output", type=click.IntRange(2), default=1_200,
                help="First tokens of an output.")  # fmt: skip
@_setting_options
def tune(**options: Any) -> None:
    """Recommend a drafter and its sizes for your own requests.

    Replays recorded outputs with some 340 drafters, sizes and lengths, first all on a few requests,
    then the best on more and more, and ranks them by the modelled speed-up over plain decoding.
    """
    from ngramspec.cli.tune_report import as_json, show
    from ngramspec.cli.tune_run import run_tune

    if options["profile"] is not None and options["costs"] is not None:
        raise click.UsageError("give either --profile or --costs")
    found = run_tune(options)
    if options["as_json"]:
        import json

        click.echo(json.dumps(as_json(found)))
    else:
        show(found)
    if found.interrupted:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)
