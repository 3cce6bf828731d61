"""`ngramspec bench calibrate`: what a batch costs on this machine, saved for whoever drafts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.group import SectionCommand
from ngramspec.cli.interrupt import EXIT_INTERRUPTED, interruptible
from ngramspec.cli.target_options import running_options
from ngramspec.cli.vocabulary import json_option, section_option

if TYPE_CHECKING:
    from ngramspec.adapters.llama_cpp import LlamaTarget
    from ngramspec.bench.calibrate import Calibration

MEASURE = "Measurement"
NOTE = "interrupted; Ctrl-C again ends at once"
EPILOG = """\b
Examples:
  ngramspec bench calibrate --model model.gguf
  ngramspec bench calibrate --model model.gguf -t 8 -fa on -ctk q8_0 -ctv q8_0
  ngramspec bench calibrate --model model.gguf --max-batch 64 --rounds 3 --json
  ngramspec bench calibrate --model model.gguf -o costs.json
  ngramspec bench replay benchmarks/data/traces --costs costs.json

A batch of n tokens is a draft of n - 1 and the token before it. Without -o the costs go
to ngramspec/costs in XDG_CACHE_HOME (~/.cache), under a name made of the model file, the
processor, threads, flash attention, cache types and batch sizes: calibrate with the
options that you serve with. Ctrl-C prints what was measured and saves nothing.
"""


@click.command("calibrate", cls=SectionCommand, epilog=EPILOG)
@section_option("Model", "-m", "--model", type=click.Path(path_type=Path),
                help="GGUF file; the embedded model when left out.")  # fmt: skip
@running_options("Model")
@section_option(MEASURE, "--context", type=click.IntRange(0), default=512,
                help="Tokens in the cache, as far as the model has room.")  # fmt: skip
@section_option(MEASURE, "--max-batch", type=click.IntRange(1), default=128,
                help="Largest batch, at most --batch-size.")  # fmt: skip
@section_option(MEASURE, "--rounds", type=click.IntRange(1, 1000), default=7,
                help="Samples of each size; medians count.")  # fmt: skip
@json_option()
@section_option("Options", "-o", "--output", type=click.Path(path_type=Path), metavar="FILE",
                help="Save there, not where they are looked for.")  # fmt: skip
def calibrate(**options: Any) -> None:
    """Measure what verification costs, by tokens in the batch.

    Real decodes of 1 to 8 and of selected larger numbers of tokens with logits for all of them, in
    rounds of random order, after a warm-up. The cost is no line: kernels change with the size.
    """
    from ngramspec.cli.target import open_model, open_target

    if options["output"] is not None:
        from ngramspec.cli.outputs import check_output

        check_output(options["output"], statistics=False)
    with open_model({**options, "mmap": True, "mlock": False}) as model:
        size, most = _sizes(options, model.n_ctx_train)
        wanted = {"parallel": 1, "ctx_size": size, "kv_unified": False}
        with open_target({**options, **wanted}, model) as target:
            path = _output(options["output"], target)
            found = _measure(options, target, most, size)
            saved = path if found.complete else None
            if saved is not None:
                _save(found, target, saved)
            _show(options, found, target, saved)
    if not found.complete:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)


def _sizes(options: dict[str, Any], trained: int) -> tuple[int, int]:
    """Return the tokens of the cache and of the largest batch."""
    most = min(options["max_batch"], options["batch_size"], trained)
    return min(options["context"] + most, trained), most


def _output(given: Path | None, target: LlamaTarget) -> Path:
    """Return the file to write; what stands in its way is said before the work."""
    if given is not None:
        return given
    from ngramspec.adapters.llama_cpp.saved_costs import costs_path

    path = costs_path(target.model, target.settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _measure(options: dict[str, Any], target: LlamaTarget, most: int, size: int) -> Calibration:
    from ngramspec.bench.calibrate import calibrate as measure
    from ngramspec.bench.calibrate import sizes_up_to
    from ngramspec.cli.progress import progress
    from ngramspec.cli.tasks import sample_tokens

    context = size - most
    most = min(most, target.max_batch, target.exact_batch or most)
    sizes, rounds = sizes_up_to(most), options["rounds"]
    tokens = sample_tokens(target.model, context + most)
    total = len(sizes) * (rounds + 1)
    with interruptible(NOTE) as interrupt, progress("measuring", total) as advance:
        return measure(
            target,
            tokens,
            sizes,
            rounds,
            advance=advance,
            stopped=lambda: interrupt.requested,
        )


def _save(found: Calibration, target: LlamaTarget, path: Path) -> None:
    from ngramspec import __version__
    from ngramspec.adapters.llama_cpp.saved_costs import cost_key
    from ngramspec.costs import save_costs

    name = target.model.path.stem
    about = {
        "unit": "s",
        "context": found.context,
        "rounds": min(map(len, found.seconds.values())),
        "key": cost_key(target.model, target.settings),
        "version_of_ngramspec": __version__,
    }
    save_costs(found.table(name), path, about)


def _show(
    options: dict[str, Any], found: Calibration, target: LlamaTarget, saved: Path | None
) -> None:
    from ngramspec.cli.calibrate_report import as_json, show

    if options["as_json"]:
        import json

        click.echo(json.dumps(as_json(found, target, saved)))
    else:
        show(found, target, saved)
