"""`ngramspec bench e2e`: tokens per second with and without drafts, on real prompts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli import completion
from ngramspec.cli.command import (
    EXIT_INTERRUPTED,
    NOTE_MEASURED,
    Interrupt,
    SectionCommand,
    interruptible,
)
from ngramspec.cli.draft_model import (
    HEADS,
    NAME,
    draft_model_options,
    names_model,
    take_second,
)
from ngramspec.cli.drafts import NO_DRAFTS, policy_option, tree_of, tree_option
from ngramspec.cli.llama_cpp.loading import loading_options
from ngramspec.cli.llama_cpp.placement import placement_options
from ngramspec.cli.llama_cpp.threads import thread_options
from ngramspec.cli.model import resolve_model
from ngramspec.cli.options import (
    AT_LEAST_1,
    Decorator,
    NumberRange,
    json_option,
    option,
    options,
)
from ngramspec.cli.output import make_table, plain_console, print_json, speedup_cell
from ngramspec.cli.progress import progress
from ngramspec.cli.target import model_options, open_idle, running
from ngramspec.drafting.names import DEFAULT_MAX_DRAFT, DRAFTER_NAMES
from ngramspec.messages import page_url

if TYPE_CHECKING:
    from rich.text import Text

    from ngramspec.arrays import TokenIds
    from ngramspec.lab.e2e.bench import Bench, Mode, PromptOutcome, PromptResult
    from ngramspec.lab.e2e.tasks import Task
    from ngramspec.llamacpp.model import LlamaModel
    from ngramspec.llamacpp.mtp import SecondSettings
    from ngramspec.llamacpp.target import LlamaTarget

PROMPTS, DRAFTS, MEASURE = "Prompts", "Drafts", "Measurement"
EPILOG = """\b
Examples:
  ngramspec bench e2e
  ngramspec bench e2e --model model.gguf --drafter ngram-mod --drafter ngram-mod,ngram-cache
  ngramspec bench e2e --model model.gguf --prompts edit.txt --prompts chats.jsonl -n 300
  ngramspec bench e2e --model model.gguf --drafter ngram-map-k:size_n=8,size_m=32 --policy fixed
  ngramspec bench e2e --model model.gguf --model-draft small.gguf --drafter suffix \\
      --drafter suffix,draft-simple --drafter draft-simple --spec-draft-n-max 8
  ngramspec bench e2e --exact --json > e2e.json

A file of --prompts is one prompt, or, if its name ends in .jsonl, an object per line with
"prompt", or a chat in "messages", and maybe "name". An answer at a chat's end is left out. The
requests run one by one on the engine of `ngramspec serve`.
"""
WARM_UP = 64  # tokens of the prompt before anything is timed
SETTINGS = (
    *("repeats", "n_predict", "temp", "seed", "policy", "spec_tree", "max_draft", "exact"),
    *("threads", "flash_attn", "cache_type_k", "cache_type_v", "n_gpu_layers", "device"),
    *("split_mode", "tensor_split", "main_gpu", "override_tensor", "cpu_moe", "n_cpu_moe"),
    *("n_cpu_ffn", "kv_offload", "op_offload", "repack", "draft_model"),
)
COLUMNS = ("prompt", "drafter", "tok/s", "ratio", "accepted/drafted", "tok/pass", "same")
NOTE = """\
tok/s: after the prompt, median; ratio: over plain decoding, median of the
rounds, of all prompts their geometric mean; accepted/drafted: tokens of all
runs; tok/pass: tokens per decode of the model; same: whether the text equals
the plain one, or the position of the first token that differs.
"""
DIFFERS = f"""\
Texts differ where rounding decides between two tokens. --exact avoids that; see
{page_url("explanation/exactness.md")}"""


def prompt_options(otherwise: str) -> Decorator:
    """Return the options that name prompts. otherwise: what is asked without them."""
    return options(
        option(PROMPTS, "--prompts", "files", multiple=True, metavar="PATH",
               type=click.Path(exists=True, path_type=Path),
               help="Text or .jsonl file, or a folder of them (repeatable). Default: "
               f"{otherwise}."),
        option(PROMPTS, "--chat/--raw", default=None,
               help="Use the model's chat template, if it has one (default), or the bare prompt."),
    )  # fmt: skip


@click.command("e2e", cls=SectionCommand, epilog=EPILOG)
@options(
    model_options("Model"),
    running("Model"),
    prompt_options("the demo's tasks"),
    option(DRAFTS, "--drafter", "--spec-type", "drafters", multiple=True, metavar="SPEC",
           shell_complete=completion.in_list(*DRAFTER_NAMES, "draft-mtp", NO_DRAFTS),
           help="none, or comma-separated names, then :NAME=VALUE,... for parameters "
           "(repeatable); draft-simple is the draft model, draft-mtp the model's MTP heads. "
           "Default: each drafter. Plain decoding always runs."),
    policy_option(" NAME:policy=... sets it for one drafter."),
    tree_option(),
    option(DRAFTS, "--max-draft", "--draft-max", "max_draft", type=AT_LEAST_1,
           help=f"Longest draft of any drafter, in tokens.  [default: {DEFAULT_MAX_DRAFT}]"),
    draft_model_options(shortest="0"),
    option(MEASURE, "--repeats", type=click.IntRange(1, 1000), default=5,
           help="Timed runs of each prompt with each drafter."),
    option(MEASURE, "-n", "--n-predict", type=click.IntRange(2), default=128,
           help="Longest answer, in tokens."),
    option(MEASURE, "--temp", type=NumberRange(0), default=0.0,
           help="Temperature; 0 is greedy."),
    option(MEASURE, "-s", "--seed", type=click.IntRange(0, 2**32 - 1), default=1,
           help="Sampling seed, the same for all runs; for temperatures above 0."),
    placement_options(),
    loading_options(),
    thread_options(),
    json_option(),
)  # fmt: skip
def e2e(**values: Any) -> None:
    """Measure tokens/s with and without drafts.

    All drafters run in one process, in turn, once per round, and are compared with plain decoding
    in the same round. Every run has a fresh drafter: nothing is learned from the run before, which
    had the same prompt. Times do not include the prompt.
    """
    from ngramspec.lab.e2e.tasks import TASKS, load_tasks

    resolve_model(values)
    tasks = load_tasks(values["files"]) if values["files"] else list(TASKS)
    modes = _modes(values)
    heads = any(HEADS in mode.spec for mode in modes)
    if heads and any(NAME in mode.spec for mode in modes):
        raise click.UsageError(f"--drafter takes either {NAME} or {HEADS}")
    named = names_model(values)
    values["mtp"] = heads and not named
    small = take_second(values, 1, heads, values["max_draft"])
    values["max_draft"] = values["max_draft"] or DEFAULT_MAX_DRAFT
    with open_bench(values, tasks, modes, small) as (bench, target, prompts):
        values["draft_model"] = None if bench.small is None else bench.small.info.as_json()
        with interruptible(NOTE_MEASURED) as interrupt:
            results = list(
                _results(values, target.model, bench, tasks, prompts, len(modes), interrupt)
            )
    if not results:
        click.echo("nothing was measured", err=True)
    elif values["as_json"]:
        print_json(_as_json(values, results))
    else:
        _show(values, results)
    if interrupt.requested:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)


@contextlib.contextmanager
def open_bench(
    values: dict[str, Any],
    tasks: Sequence[Task],
    modes: Sequence[Mode],
    small: SecondSettings | None = None,
) -> Iterator[tuple[Bench, LlamaTarget, list[TokenIds]]]:
    """Load the model; yield what runs the modes on it, the idle target, and the tasks' prompts.

    Args:
        values: A command's options, with `chat`, `n_predict`, `max_draft`, `policy` and
            `spec_tree`, which is turned off where no mode can choose branches.
        tasks: What the model is asked.
        modes: As for Bench.
        small: The draft model or MTP heads.

    Raises:
        As tokenize_tasks, open_idle and set_up_drafts.
    """
    from ngramspec.lab.e2e.bench import Bench, tokenize_tasks
    from ngramspec.runtime import set_up_drafts

    policies = [mode.policy or values["policy"] for mode in modes if mode.drafts]
    tree = values["spec_tree"] = tree_of(values["spec_tree"], policies)
    prompts: list[TokenIds] = []

    def size_of(model: LlamaModel) -> int:
        prompts.extend(tokenize_tasks(model, tasks, values["chat"]))
        room = max(prompt.size for prompt in prompts) + values["n_predict"] + values["max_draft"]
        return int(min(room + 1, model.n_ctx_train))

    with open_idle(values, size_of, tree) as target, contextlib.ExitStack() as stack:
        setup = set_up_drafts(target, small, stack, policies)
        bench = Bench(target, modes, values["policy"], values["max_draft"], setup, tree)
        yield bench, target, prompts


def _modes(values: Mapping[str, Any]) -> list[Mode]:
    """Return plain decoding and the drafters."""
    from ngramspec.lab.e2e.bench import PLAIN, parse_mode
    from ngramspec.models import embedded_model
    from ngramspec.text.tokenizers import fingerprint_of

    specs = values["drafters"] or DRAFTER_NAMES
    files = {}
    if any("static=" in spec for spec in specs):
        files["tokenizer"] = fingerprint_of(values["model"] or embedded_model())
    return [parse_mode(spec, **files) for spec in dict.fromkeys((PLAIN, *specs))]


def _results(
    values: Mapping[str, Any],
    model: LlamaModel,
    bench: Bench,
    tasks: Sequence[Task],
    prompts: Sequence[TokenIds],
    num_modes: int,
    interrupt: Interrupt,
) -> Iterator[PromptResult]:
    from ngramspec.engine import Sampling
    from ngramspec.lab.e2e.bench import PromptResult

    sampling = Sampling(temperature=values["temp"], seed=values["seed"])
    with progress("warming up", num_modes * values["repeats"] * len(tasks)) as advance:
        bench.warm_up(prompts[0][:WARM_UP], sampling)
        for number, (task, prompt) in enumerate(zip(tasks, prompts, strict=True)):
            advance.name(task.title)
            outcomes = bench.run(
                prompt,
                max_tokens=values["n_predict"],
                repeats=values["repeats"],
                sampling=sampling,
                advance=advance,
                # Rounds are counted on from prompt to prompt. With few of each, plain decoding
                # would otherwise begin most of them, and a machine that warms up or slows down
                # would favour one side.
                first=number * values["repeats"],
                stopped=lambda: interrupt.requested,
            )
            if not outcomes:
                return
            text = model.detokenize(outcomes[0].runs[0].token_ids)
            yield PromptResult(task.name, int(prompt.size), text, outcomes)


def _as_json(values: Mapping[str, Any], results: Sequence[PromptResult]) -> dict[str, Any]:
    from ngramspec import __version__
    from ngramspec.lab.e2e.bench import totals
    from ngramspec.models import embedded_model

    rows = totals(results)
    return {
        "version": __version__,
        "model": str(values["model"] or embedded_model()),
        "settings": {key: values[key] for key in SETTINGS},
        "identical": all(row.same == row.texts for row in rows),
        "summary": [row.as_json() for row in rows],
        "prompts": [result.as_json() for result in results],
    }


def _show(values: Mapping[str, Any], results: Sequence[PromptResult]) -> None:
    """Print a row for each prompt and drafter, and for each drafter over all prompts."""
    from ngramspec.lab.e2e.bench import totals

    console = plain_console()
    table = make_table(COLUMNS, text=COLUMNS[:2])
    for result in results:
        for number, outcome in enumerate(result.outcomes):
            table.add_row("" if number else result.name, *_cells(outcome))
        table.add_section()
    rows = totals(results)
    if len(results) > 1:
        for outcome, row in zip(results[0].outcomes, rows, strict=True):
            drafts = outcome.mode.drafts
            rest = (f"{row.accepted}/{row.drafted}", "", f"{row.same}/{row.texts}")
            cells = (row.drafter, f"{row.tokens_per_second:.1f}", _ratio(row.ratio, drafts))
            table.add_row("" if drafts else "all", *cells, *(rest if drafts else ()))
    console.print(table)
    console.print(NOTE, style="dim")
    if any(row.same < row.texts for row in rows) and not values["exact"]:
        console.print(DIFFERS, soft_wrap=True)


def _cells(outcome: PromptOutcome) -> Iterator[str | Text]:
    drafts, difference = outcome.mode.drafts, outcome.difference
    yield outcome.mode.spec
    yield f"{outcome.tokens_per_second:.1f}"
    yield _ratio(outcome.ratio, drafts)
    if drafts:
        yield f"{outcome.accepted}/{outcome.drafted}"
        yield f"{outcome.mean_accepted_length:.2f}"
        yield "yes" if difference is None else f"no: {difference + 1}"


def _ratio(ratio: float | None, drafts: bool) -> str | Text:
    return "-" if ratio is None else speedup_cell(ratio, not drafts)
