"""`ngramspec bench e2e`: tokens per second with and without drafts, on real prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ngramspec.cli.group import SectionCommand
from ngramspec.cli.target_options import running_options
from ngramspec.cli.vocabulary import json_option, section_option
from ngramspec.drafters.names import POLICY_NAMES

PROMPTS, DRAFTS, MEASURE = "Prompts", "Drafts", "Measurement"
EPILOG = """\b
Examples:
  ngramspec bench e2e
  ngramspec bench e2e --model model.gguf --drafter ngram-mod --drafter ngram-mod,ngram-cache
  ngramspec bench e2e --model model.gguf --prompts edit.txt --prompts chats.jsonl -n 300
  ngramspec bench e2e --model model.gguf --drafter ngram-map-k:size_n=8,size_m=32 --policy fixed
  ngramspec bench e2e --exact --json > e2e.json

A file of --prompts is one prompt, or, if its name ends in .jsonl, an object per line with
"prompt" and maybe "name". The requests run one by one on the engine of `ngramspec serve`.
"""


@click.command("e2e", cls=SectionCommand, epilog=EPILOG)
@section_option("Model", "-m", "--model", type=click.Path(path_type=Path),
                help="GGUF file; the embedded model when left out.")  # fmt: skip
@running_options("Model")
@section_option(PROMPTS, "--prompts", "files", multiple=True, metavar="FILE",
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help="Text or .jsonl; again for more. Without it the tasks of the demo and free "
                "text.")  # fmt: skip
@section_option(PROMPTS, "--chat/--raw", default=None,
                help="Use the model's chat template, if it has one (default), or the prompt as it "
                "is.")  # fmt: skip
@section_option(DRAFTS, "--drafter", "drafters", multiple=True, metavar="SPEC",
                help="none, or names with commas between, then :NAME=VALUE,... for parameters; "
                "again for more. Without it each drafter. Plain decoding always runs.")  # fmt: skip
@section_option(DRAFTS, "--policy", type=click.Choice(POLICY_NAMES), default="auto",
                help="How long drafts may be: as long as tokens pay, by how right they were, or as "
                "they come; NAME:policy=... sets that of one drafter.")  # fmt: skip
@section_option(DRAFTS, "--max-draft", type=click.IntRange(1), default=62,
                help="Longest draft, in tokens.")  # fmt: skip
@section_option(MEASURE, "--repeats", type=click.IntRange(1, 1000), default=5,
                help="Timed runs of each prompt with each drafter.")  # fmt: skip
@section_option(MEASURE, "-n", "--n-predict", type=click.IntRange(2), default=128,
                help="Longest answer, in tokens.")  # fmt: skip
@section_option(MEASURE, "--temp", type=click.FloatRange(0), default=0.0,
                help="Temperature; 0 is greedy.")  # fmt: skip
@section_option(MEASURE, "-s", "--seed", type=click.IntRange(0, 2**32 - 1), default=1,
                help="Of all runs alike, for other temperatures.")  # fmt: skip
@json_option()
def e2e(**options: Any) -> None:
    """Measure tokens/s with and without drafts.

    All drafters run in one process and in turns, each round once, and are compared with plain
    decoding in the same round. Every run has a fresh drafter: nothing is learned from the run
    before, which had the same prompt. Times are those after the prompt.
    """
    from ngramspec.cli.e2e_report import as_json, show
    from ngramspec.cli.e2e_run import run_e2e

    found = run_e2e(options)
    if options["as_json"]:
        import json

        click.echo(json.dumps(as_json(found, options)))
    else:
        show(found, options)
