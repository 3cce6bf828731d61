"""`ngramspec bench replay`: how drafters would have done on recorded outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ngramspec.cli.group import SectionCommand
from ngramspec.cli.vocabulary import json_option, section_option

PEERS = "Peers"
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EPILOG = """\b
Examples:
  ngramspec bench replay benchmarks/data/traces
  ngramspec bench replay chat.jsonl --tokenizer model.gguf --drafter ngram-mod,ngram-cache
  ngramspec bench replay traces --drafter ngram-map-k:size_n=8,size_m=32 --cold
  ngramspec bench replay traces --peers --peers-python peers/bin/python --save-peers peers.json
  ngramspec bench replay traces --peers-from peers.json --plot replay.svg --json -o replay.json

TRACES are files, or folders of files: NAME.txt.xz or NAME.txt hold a request per line as
numbers (prompt length, prompt ids, output ids), NAME.jsonl.xz or NAME.jsonl hold records
with text (session, turn, messages, output), for which --tokenizer is needed.

The target is a model of costs: "h100-8b" 7.09 + 0.021 b ms, "moe" 1 + 0.12 b, "cpu"
1 + 0.35 b, "moe-a3b" 0.4 + 19.2 (1 - (31/32)^b), with b tokens in the batch, 1 + drafted.
The modelled speed-up is tokens x T(1) / (sum over passes of T(b)); the times of drafting,
"µs/pass", are measured here and not part of it.
"""


@click.command("replay", cls=SectionCommand, epilog=EPILOG)
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@section_option("Options", "--tokenizer", type=click.Path(path_type=Path),
                help="GGUF file or tokenizer.json, for traces with text.")  # fmt: skip
@section_option("Options", "--drafter", "drafters", multiple=True, metavar="SPEC",
                help="Names with commas between, then :NAME=VALUE,... for parameters; again for "
                "more drafters. Without it the default.")  # fmt: skip
@section_option("Options", "--cold", is_flag=True,
                help="A fresh drafter for every request instead of one that keeps what it "
                "learned.")  # fmt: skip
@section_option("Options", "--limit", type=click.IntRange(1), help="First requests of each set.")
@section_option("Options", "--max-prompt", type=click.IntRange(1), default=12_000,
                help="Last tokens of a prompt.")  # fmt: skip
@section_option("Options", "--max-output", type=click.IntRange(2), default=1_200,
                help="First tokens of an output.")  # fmt: skip
@section_option("Options", "--costs", multiple=True, type=FILE,
                metavar="FILE", help="A measured table of costs as one more profile.")  # fmt: skip
@section_option("Options", "--growth", is_flag=True,
                help="Also measure a step at contexts of 1k, 8k, 32k and 128k tokens.")  # fmt: skip
@section_option("Options", "--plot", type=click.Path(dir_okay=False, path_type=Path),
                metavar="FILE", help="Draw a picture, .png or .svg.")  # fmt: skip
@json_option()
@section_option("Options", "-o", "--output", type=click.Path(dir_okay=False, path_type=Path),
                metavar="FILE", help="Write the JSON there.")  # fmt: skip
@section_option(PEERS, "--peers", is_flag=True,
                help="Run other projects' drafters on the same tokens.")  # fmt: skip
@section_option(PEERS, "--peers-python", "pythons", multiple=True, metavar="PYTHON",
                help="Interpreter that has peers which this one lacks.")  # fmt: skip
@section_option(PEERS, "--vllm-wheel", type=FILE,
                metavar="FILE", help="vLLM's wheel or the ngram_proposer.py from it.")  # fmt: skip
@section_option(PEERS, "--llamacpp", type=FILE,
                metavar="PROGRAM", help="llama.cpp's drafters as a replay program.")  # fmt: skip
@section_option(PEERS, "--save-peers", type=click.Path(dir_okay=False, path_type=Path),
                metavar="FILE", help="Record what the peers did.")  # fmt: skip
@section_option(PEERS, "--peers-from", type=FILE,
                metavar="FILE", help="Such a record, for peers that do not run.")  # fmt: skip
def replay(**options: Any) -> None:
    """Replay recorded outputs as the target's greedy choice.

    A draft is accepted up to its first wrong token, so no model is needed to tell how many passes
    of the target a drafter would have saved, and what that is worth for different costs of a batch.
    """
    from ngramspec.cli.replay_report import show_replays
    from ngramspec.cli.replay_run import run_replays

    _check(options)
    found = run_replays(options)
    if options["plot"] is not None:
        from ngramspec.bench.plot import plot_replays

        plot_replays(found, options["plot"])
    _write(found.as_json(), options)
    if not options["as_json"]:
        show_replays(found, recorded=options["peers_from"] is not None)


def _check(options: dict[str, Any]) -> None:
    """Refuse options that contradict one another."""
    for name in ("pythons", "vllm_wheel", "llamacpp", "save_peers"):
        if options[name] and not options["peers"]:
            flag = "peers-python" if name == "pythons" else name.replace("_", "-")
            raise click.UsageError(f"--{flag} is for --peers")
    plot = options["plot"]
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise click.BadParameter(
            f"{plot}: the name must end with .png or .svg", param_hint="--plot"
        )


def _write(found: dict[str, Any], options: dict[str, Any]) -> None:
    import json

    if options["output"] is not None:
        options["output"].write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options["as_json"]:
        click.echo(json.dumps(found))
