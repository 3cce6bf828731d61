"""The command: its options, the search, the statistics file and the measurement."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli import completion
from ngramspec.cli.command import EXIT_INTERRUPTED, SectionCommand, interruptible
from ngramspec.cli.llama_cpp.loading import SECTION as LOADING
from ngramspec.cli.llama_cpp.loading import loading_of, loading_options
from ngramspec.cli.llama_cpp.placement import SECTION as DEVICES
from ngramspec.cli.llama_cpp.placement import placement_of, placement_options
from ngramspec.cli.llama_cpp.threads import SECTION as THREADS
from ngramspec.cli.llama_cpp.threads import thread_options
from ngramspec.cli.model import resolve_model
from ngramspec.cli.options import (
    AT_LEAST_1,
    FILE,
    OLD_FILE,
    NumberRange,
    check_output,
    given_words,
    json_option,
    option,
    options,
)
from ngramspec.cli.output import print_json
from ngramspec.cli.progress import progress
from ngramspec.cli.recorded import (
    ABOUT_FILES,
    load_recorded,
    mix_keys_option,
    provenance_of,
    recorded_json,
    recorded_options,
    refuse_mixed_keys,
    say_recorded,
    tokenizer_of,
    traces_of,
)
from ngramspec.cli.target import (
    RUNNING,
    context_settings,
    hub_options,
    open_idle,
    running,
)
from ngramspec.costs import PROFILES
from ngramspec.drafting.names import DEFAULT_MAX_DRAFT
from ngramspec.errors import InputError, NgramspecError

if TYPE_CHECKING:
    from ngramspec.lab.costs import Costs
    from ngramspec.lab.recordings import RecordedRequest
    from ngramspec.lab.recordings.traces import Loaded, Trace
    from ngramspec.lab.tune.measured import Measured
    from ngramspec.lab.tune.result import SearchPlan, Tuned
    from ngramspec.lab.tune.trial import Trial
    from ngramspec.llamacpp.model import LlamaModel

COSTS, SEARCH, AFTER = "Costs", "Search", "Statistics file and measurement"
SETTING = "Setting of saved costs"
MEASURED = 12  # held-out requests that --measure answers
EPILOG = f"""\b
Examples:
  ngramspec serve --model model.gguf --record requests.jsonl    # then, some days later:
  ngramspec tune requests.jsonl --model model.gguf --write-cache answers.ngx --measure
  ngramspec tune sharegpt.json --model model.gguf --profile h100-8b
  ngramspec tune llama-server.log --model model.gguf --costs costs.json --time-limit 60
  ngramspec tune logs/ --model model.gguf --state tune.state   # goes on if it was stopped
  ngramspec tune benchmarks/data/traces --profile cpu --requests 200 --json

TRACES are files, or folders of files. {ABOUT_FILES}

The recorded outputs stand in for the target. Drafters and sizes are chosen on the first
two thirds of each set; the figures are those of the last third, which is held out.
--write-cache builds a file from the answers of those two thirds, and keeps it if the
last third gains more than 1 % from it after a restart. Without --profile and --costs,
the costs are those that `ngramspec bench calibrate` saved for --model in this setting,
or the profile cpu. Ctrl-C prints the best found so far.
"""
NOTE_INTERRUPTED = "interrupted: the best so far follows; Ctrl-C again quits at once"


@click.command("tune", cls=SectionCommand, epilog=EPILOG)
@click.argument("traces", nargs=-1, required=True, type=FILE)
@options(
    option("Options", "-m", "--model", env="MODEL", type=FILE, shell_complete=completion.model,
           help="GGUF file, or name of a model that Ollama has pulled: its tokenizer, for traces "
           "with text, and its costs."),
    hub_options("Options"),
    option("Options", "--tokenizer", type=FILE,
           help="GGUF file or tokenizer.json, for traces with text."),
    recorded_options(),
    json_option(),
    option(COSTS, "--profile", type=click.Choice(list(PROFILES)),
           help="Batch costs of the target, as in `bench replay`."),
    option(COSTS, "--costs", type=OLD_FILE, metavar="FILE",
           help="Cost table saved by `bench calibrate -o`."),
    option(SEARCH, "--requests", type=AT_LEAST_1, default=600,
           help="Number of requests to read from the start of each file."),
    option(SEARCH, "--time-limit", type=NumberRange(0, min_open=True), metavar="SECONDS",
           help="Stop then and recommend the best so far. A quarter of it is for the held-out "
           "requests."),
    option(SEARCH, "--seed", type=int, default=0, metavar="N",
           help="Seed of the request samples in the first rounds."),
    option(SEARCH, "--max-prompt", type=AT_LEAST_1, default=12_000,
           help="Tokens to keep from the end of a prompt."),
    option(SEARCH, "--max-output", type=click.IntRange(2), default=1_200,
           help="Tokens to keep from the start of an output."),
    option(SEARCH, "--state", type=FILE, metavar="FILE",
           help="Keep finished replays in FILE, and do not repeat those that it has."),
    option(AFTER, "--write-cache", type=FILE, metavar="FILE",
           help="Build a statistics file from the recorded answers, if it pays."),
    mix_keys_option(AFTER),
    option(AFTER, "--measure", is_flag=True,
           help=f"Also answer up to {MEASURED} held-out requests with --model, or the embedded "
           "model, and time it."),
    running(SETTING, *(name for name in RUNNING if name != "exact")),
    placement_options(),
    loading_options(),
    thread_options(),
)  # fmt: skip
def tune(**values: Any) -> None:
    """Recommend a drafter and its sizes for your own requests.

    Replays recorded outputs with about 340 combinations of drafter, sizes and lengths: all of them
    on a few requests, then the best on more and more. Ranks them by the modelled speed-up over
    plain decoding, and prints the line to start `serve` with.
    """
    from ngramspec.cli.tune.report import show
    from ngramspec.lab.recordings.traces import Cut

    _check(values)
    name = values["model"]
    resolve_model(values)
    model = values["model"] if name is None else name  # a name says more than the file it has
    cut = Cut(values["requests"], values["max_prompt"], values["max_output"])
    loaded, problems = load_recorded(values["traces"], values, cut)
    if not values["as_json"]:
        say_recorded(loaded, problems)
    tuned = dataclasses.replace(
        _search(values, traces_of(loaded)),
        setting=given_words(SETTING, DEVICES, LOADING, THREADS),
    )
    failure: BaseException | None = None
    if tuned.tuning.results and not tuned.interrupted:
        try:
            tuned = _after(tuned, values, loaded)
        except (KeyboardInterrupt, NgramspecError, OSError, MemoryError) as error:
            failure = error  # what was found is told first
    if values["as_json"]:
        recorded = recorded_json(loaded, problems)
        print_json({**tuned.as_json(model), "recorded": recorded})
    else:
        show(tuned, model)
    if failure is not None:
        raise failure
    if tuned.interrupted:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)


def _check(values: Mapping[str, Any]) -> None:
    if values["profile"] is not None and values["costs"] is not None:
        raise click.UsageError("give either --profile or --costs")
    if values["write_cache"] is not None:
        check_output(values["write_cache"])


def _search(values: Mapping[str, Any], traces: Sequence[Trace]) -> Tuned:
    from ngramspec.lab.tune.memo import Memo
    from ngramspec.lab.tune.result import plan_search, run_search

    costs = _costs(values)
    plan = plan_search(traces, values["seed"])
    if values["write_cache"] is not None:
        _check_file(traces, plan, values["mix_keys"])
    with (
        interruptible(NOTE_INTERRUPTED) as interrupt,
        progress("tuning", plan.num_replays) as advance,
    ):
        return run_search(
            plan,
            costs,
            time_limit=values["time_limit"],
            memo=Memo(values["state"]),
            advance=advance,
            interrupted=lambda: interrupt.requested,
        )


def _costs(values: Mapping[str, Any]) -> Costs:
    """Return the costs that the options name, those saved for the model, or a default profile."""
    from ngramspec.lab.costs import choose_costs, saved_costs

    if values["costs"] or values["profile"] or not values["model"]:
        return choose_costs(values["costs"], values["profile"])
    settings = context_settings(values)
    return saved_costs(values["model"], settings, placement_of(values), loading_of(values))


def _check_file(traces: Sequence[Trace], plan: SearchPlan, mix_keys: bool) -> None:
    """Refuse a file that nothing can decide on, or that would mix what keys keep apart."""
    from ngramspec.lab.tune.split import LEAST, PART

    refuse_mixed_keys(traces, mix_keys)
    if not plan.parts.num_held_out:
        raise InputError(
            f"--write-cache needs {PART * LEAST} requests, of which a third is held out to decide; "
            f"there are {plan.parts.num_chosen_on}"
        )


def _after(tuned: Tuned, values: Mapping[str, Any], loaded: Sequence[Loaded]) -> Tuned:
    """Build the statistics file and measure, where that is wanted."""
    if values["write_cache"] is not None:
        tuned = dataclasses.replace(tuned, trial=_try_file(tuned, values, loaded))
    if values["measure"]:
        tuned = dataclasses.replace(tuned, measured=_measure(tuned, values))
    return tuned


def _try_file(tuned: Tuned, values: Mapping[str, Any], loaded: Sequence[Loaded]) -> Trial:
    from ngramspec.lab.tune.trial import num_replays, try_file

    parts, candidate = tuned.plan.parts, tuned.tuning.best.candidate
    with progress("trying a file", num_replays(parts, candidate)) as advance:
        return try_file(
            values["write_cache"],
            parts,
            candidate,
            tuned.costs.table,
            tokenizer_of(values, loaded),
            about=provenance_of(values, loaded),
            advance=advance,
        )


def _measure(tuned: Tuned, values: Mapping[str, Any]) -> Measured:
    from ngramspec.engine.branches import OFF
    from ngramspec.lab.tune.measured import measure, num_answers
    from ngramspec.runtime import set_up_drafts

    trial = tuned.trial
    files: dict[str, dict[str, Any]] = {}
    if trial is not None and trial.path is not None:
        files[trial.best_with.reader] = {"static": trial.path}
    room = DEFAULT_MAX_DRAFT  # tokens for a draft
    fitting: list[RecordedRequest] = []

    def size_of(model: LlamaModel) -> int:
        most = model.n_ctx_train - room

        def fits(one: RecordedRequest) -> bool:
            largest = max(one.prompt.max(), one.output.max())
            return len(one.prompt) + len(one.output) <= most and bool(largest < model.vocab_size)

        sets = [filter(fits, requests) for requests in tuned.plan.parts.judged_on]
        turns = itertools.zip_longest(*sets)  # one of each set, so that none fills the places
        fitting.extend([one for turn in turns for one in turn if one is not None][:MEASURED])
        if not fitting:
            raise InputError("--measure: no request fits the model: name its own with --model")
        return max(len(one.prompt) + len(one.output) for one in fitting) + room

    with open_idle(values, size_of, OFF) as target, contextlib.ExitStack() as stack:
        total = len(fitting) * num_answers(tuned.advised, files)
        with progress("measuring", total) as advance:
            setup = set_up_drafts(target, None, stack, ["auto"])
            return measure(target, fitting, tuned.advised, files, setup, advance=advance)
