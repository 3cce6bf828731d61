"""`ngramspec bench e2e`: tokens per second with and without drafts, on real prompts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.command import EXIT_INTERRUPTED, NOTE_MEASURED, Interrupt, interruptible
from ngramspec.cli.draft_model import HEADS, NAME, DraftModelOptions
from ngramspec.cli.drafts import complete_drafters, policy_flag, tree_flag, tree_of
from ngramspec.cli.files import JsonOptions
from ngramspec.cli.options import NamedPath, command, flag
from ngramspec.cli.output import make_table, plain_console, print_json, speedup_cell
from ngramspec.cli.progress import progress
from ngramspec.cli.target import TargetOptions, open_idle
from ngramspec.drafting.names import DEFAULT_MAX_DRAFT, DEFAULT_POLICY, DRAFTER_NAMES
from ngramspec.messages import page_url

if TYPE_CHECKING:
    from rich.text import Text

    from ngramspec.arrays import TokenIds
    from ngramspec.lab.e2e.bench import Bench, Mode, PromptOutcome, PromptResult
    from ngramspec.lab.e2e.tasks import Task
    from ngramspec.llamacpp.model import LlamaModel
    from ngramspec.llamacpp.mtp import SecondSettings
    from ngramspec.llamacpp.target import LlamaTarget

EPILOG = """\b
Examples:
  ngramspec bench e2e
  ngramspec bench e2e --model model.gguf --prompts edit.txt --prompts chats.jsonl -n 300
  ngramspec bench e2e --model model.gguf --drafter ngram-map-k:size_n=8,size_m=32 --policy fixed
  ngramspec bench e2e --model model.gguf --model-draft small.gguf --drafter suffix \\
      --drafter suffix,draft-simple --drafter draft-simple --spec-draft-n-max 8
  ngramspec bench e2e --model model.gguf --synthetic 0.8,0.6,0.4

A file of --prompts is one prompt, or, if its name ends in .jsonl, an object per line with
"prompt", or a chat in "messages", and maybe "name". An answer at a chat's end is left out.

With --synthetic dice say what is right, so passes take what they take with drafts of that quality;
end tokens are passed over. The default drafters are then "synthetic", which always drafts, with the
policy and with 1, 2, 4 and 8 tokens (synthetic:n=4).
"""
# What --help shows.
EVERYDAY = (
    *("model", "hf_repo", "threads", "flash_attn", "n_gpu_layers", "exact", "files", "chat"),
    *("drafters", "policy", "max_draft", "model_draft", "repeats", "n_predict", "temp", "as_json"),
    *("synthetic", "synthetic_length"),
)
WARM_UP = 64  # tokens of the prompt before anything is timed
# What drafts by default where dice decide: the policy chooses lengths, then one is fixed.
SYNTHETIC_LENGTHS = 1, 2, 4, 8
SETTINGS = (
    *("repeats", "n_predict", "temp", "seed", "policy", "spec_tree", "max_draft", "exact"),
    *("threads", "flash_attn", "cache_type_k", "cache_type_v", "n_gpu_layers", "device"),
    *("split_mode", "tensor_split", "main_gpu", "override_tensor", "cpu_moe", "n_cpu_moe"),
    *("n_cpu_ffn", "kv_offload", "op_offload", "repack"),
)
COLUMNS = ("prompt", "drafter", "tok/s", "ratio", "accepted/drafted", "tok/pass", "same")
NOTE = """\
tok/s: after the prompt, median; ratio: over no drafts, median of the
rounds, of all prompts their geometric mean; accepted/drafted: tokens of all
runs; tok/pass: tokens per pass of the model; same: whether the text equals
that without drafts, or the position of the first token that differs.
"""
DICE = "Dice said what is right: texts mean nothing and differ."
DIFFERS = f"""\
Texts differ where rounding decides between two tokens. --exact avoids that; see
{page_url("explanation/exactness.md")}"""


@dataclass
class PromptOptions:
    """What the model is asked."""

    section = "Prompts"
    # fmt: off
    files: tuple[Path, ...] = flag("--prompts", "Text or .jsonl file, or a folder of them "
        "(repeatable). Default: for `check` a copy, an edit and a story, for `bench e2e` the "
        "demo's tasks.", default=(), metavar="PATH", type=NamedPath(exists=True, path_type=Path))
    chat: bool | None = flag("--chat/--raw", "Use the model's chat template, if it has one "
        "(default), or the bare prompt.")


@dataclass
class BenchOptions(TargetOptions, PromptOptions):
    """What open_bench needs; commands make options of what they let choose."""

    policy: str = DEFAULT_POLICY
    spec_tree: int | str = "auto"
    max_draft: int | None = None
    n_predict: int = 128


@dataclass
class ComparedOptions:
    """What drafts by turns."""

    section = "Drafts"
    # fmt: off
    drafters: tuple[str, ...] = flag("--drafter --spec-type", "none, or comma-separated names, "
        "then :NAME=VALUE,... for parameters (repeatable); draft-simple is the draft model, "
        "draft-mtp the model's MTP heads. Default: each drafter. One run has no drafts.",
        default=(), metavar="SPEC", shell_complete=complete_drafters)
    policy: str = policy_flag(" NAME:policy=... sets it for one drafter.")
    spec_tree: int | str = tree_flag()
    max_draft: int | None = flag(
        "--max-draft --draft-max", "Longest draft of any drafter, in tokens."
        f"  [default: {DEFAULT_MAX_DRAFT}]", low=1)


@dataclass
class RunOptions:
    """How often and how long each drafter runs."""

    section = "Measurement"
    # fmt: off
    repeats: int = flag(
        "--repeats", "Timed runs of each prompt with each drafter.", default=5, low=1, high=1000)
    n_predict: int = flag("-n --n-predict", "Longest answer, in tokens.", default=128, low=2)
    temp: float = flag("--temp", "Temperature; 0 is greedy.", default=0.0, low=0)
    seed: int = flag("-s --seed", "Sampling seed, the same for all runs; for temperatures above 0.",
        default=1, low=0, high=2**32 - 1)


@dataclass
class SyntheticOptions:
    """How often drafts are right, whatever the model says."""

    section = "Synthetic acceptance"
    # fmt: off
    synthetic: str = flag("--synthetic", "Accept drafts by dice: how often they are right up to "
        "the first, second, ... token, such as 0.8,0.6,0.4; further tokens are wrong. Texts mean "
        "nothing then.", default="", metavar="RATES")
    synthetic_length: float | None = flag("--synthetic-length", "The same by the tokens per pass "
        "that the longest drafts bring on average, each token as likely as the others.", low=1.0)

    @property
    def is_synthetic(self) -> bool:
        return bool(self.synthetic) or self.synthetic_length is not None

    def rates(self, longest: int) -> tuple[float, ...]:
        """Return the rates by place in a draft, () if none are asked for.

        Args:
            longest: Tokens of the longest draft.

        Raises:
            click.UsageError: The options cannot be used.
        """
        from ngramspec.errors import InputError
        from ngramspec.lab.e2e.bench import rates_of

        if self.synthetic and self.synthetic_length is not None:
            raise click.UsageError("give either --synthetic or --synthetic-length")
        try:
            if self.synthetic_length is not None:
                return rates_of(self.synthetic_length, longest)
            rates = tuple(float(one) for one in self.synthetic.split(",")) if self.synthetic else ()
        except InputError as error:
            raise click.UsageError(f"--synthetic-length: {error}") from error
        except ValueError as error:
            raise click.UsageError(f"--synthetic: expected numbers with commas: {error}") from error
        if not all(0.0 <= b <= a <= 1.0 for a, b in zip((1.0, *rates), rates, strict=False)):
            raise click.UsageError(
                "--synthetic: rates must be in 0..1 and none larger than the one before: a draft "
                f"is right up to its second token only where its first one is, got {self.synthetic}"
            )
        return rates


@dataclass
class E2eOptions(
    BenchOptions, ComparedOptions, DraftModelOptions, RunOptions, SyntheticOptions, JsonOptions
):
    """Options of `bench e2e`."""


@command("e2e", EPILOG, everyday=EVERYDAY)
def e2e(options: E2eOptions) -> None:
    """Measure tokens/s with and without drafts.

    In each round every drafter runs once, and once nothing drafts. Every run has a fresh drafter:
    nothing is learned from the run before, which had the same prompt. Times do not include the
    prompt.
    """
    from ngramspec.lab.e2e.tasks import TASKS, load_tasks

    options.resolve()
    tasks = load_tasks(options.files) if options.files else list(TASKS)
    modes = _modes(options)
    heads = any(HEADS in mode.spec for mode in modes)
    if heads and any(NAME in mode.spec for mode in modes):
        raise click.UsageError(f"--drafter takes either {NAME} or {HEADS}")
    small = options.second(1, heads=heads, longest=options.max_draft)
    mtp = heads and not options.names_model
    rates = options.rates(options.max_draft or DEFAULT_MAX_DRAFT)
    with open_bench(options, tasks, modes, small, mtp=mtp, rates=rates) as opened:
        bench, target, prompts = opened
        draft_model = None if bench.small is None else bench.small.info.as_json()
        with interruptible(NOTE_MEASURED) as interrupt:
            results = list(
                _results(options, target.model, bench, tasks, prompts, len(modes), interrupt)
            )
    if not results:
        click.echo("nothing was measured", err=True)
    elif options.as_json:
        print_json(_as_json(options, results, draft_model, rates))
    else:
        _show(options, results)
    if interrupt.requested:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)


@contextlib.contextmanager
def open_bench(
    options: BenchOptions,
    tasks: Sequence[Task],
    modes: Sequence[Mode],
    small: SecondSettings | None = None,
    *,
    mtp: bool = False,
    rates: Sequence[float] = (),
) -> Iterator[tuple[Bench, LlamaTarget, list[TokenIds]]]:
    """Load the model; yield what runs the modes on it, the idle target, and the tasks' prompts.

    Args:
        options: The command's; spec_tree is turned off where no mode can choose branches.
        tasks: What the model is asked.
        modes: As for Bench.
        small: The draft model or MTP heads.
        mtp: Load the model's MTP heads.
        rates: As for Bench.

    Raises:
        As tokenize_tasks, open_idle and set_up_drafts.
    """
    from ngramspec.lab.e2e.bench import Bench, tokenize_tasks
    from ngramspec.runtime import set_up_drafts

    policies = [mode.policy or options.policy for mode in modes if mode.drafts]
    tree = options.spec_tree = tree_of(options.spec_tree, policies)
    max_draft = options.max_draft = options.max_draft or DEFAULT_MAX_DRAFT
    prompts: list[TokenIds] = []

    def size_of(model: LlamaModel) -> int:
        prompts.extend(tokenize_tasks(model, tasks, options.chat))
        room = max(prompt.size for prompt in prompts) + options.n_predict + max_draft
        return int(min(room + 1, model.n_ctx_train))

    with open_idle(options, size_of, tree, mtp=mtp) as target, contextlib.ExitStack() as stack:
        setup = set_up_drafts(target, small, stack, policies)
        seed = getattr(options, "seed", 0)
        bench = Bench(target, modes, options.policy, max_draft, setup, tree, rates, seed)
        yield bench, target, prompts


def _modes(options: E2eOptions) -> list[Mode]:
    from ngramspec.lab.e2e.bench import PLAIN, parse_mode
    from ngramspec.models import embedded_model
    from ngramspec.text.tokenizers import fingerprint_of

    specs: Sequence[str] = options.drafters or DRAFTER_NAMES
    if options.is_synthetic and not options.drafters:
        most = options.max_draft or DEFAULT_MAX_DRAFT
        lengths = (length for length in SYNTHETIC_LENGTHS if length <= most)
        specs = ["synthetic", *(f"synthetic:n={length}" for length in lengths)]
    files = {}
    if any("static=" in spec for spec in specs):
        files["tokenizer"] = fingerprint_of(options.model or embedded_model())
    return [parse_mode(spec, **files) for spec in dict.fromkeys((PLAIN, *specs))]


def _results(
    options: E2eOptions,
    model: LlamaModel,
    bench: Bench,
    tasks: Sequence[Task],
    prompts: Sequence[TokenIds],
    num_modes: int,
    interrupt: Interrupt,
) -> Iterator[PromptResult]:
    from ngramspec.engine import Sampling
    from ngramspec.lab.e2e.bench import run_tasks

    dice = options.is_synthetic
    sampling = Sampling(temperature=options.temp, seed=options.seed, ignore_eos=dice)
    with progress("warming up", num_modes * options.repeats * len(tasks)) as advance:
        bench.warm_up(prompts[0][:WARM_UP], sampling)
        for (result,) in run_tasks(
            {bench: options.repeats},
            model,
            tasks,
            prompts,
            begin=advance.name,
            max_tokens=options.n_predict,
            sampling=sampling,
            advance=advance,
            stopped=lambda: interrupt.requested,
        ):
            yield result


def _as_json(
    options: E2eOptions,
    results: Sequence[PromptResult],
    draft_model: dict[str, Any] | None,
    rates: Sequence[float],
) -> dict[str, Any]:
    from ngramspec import __version__
    from ngramspec.lab.e2e.bench import report
    from ngramspec.models import embedded_model

    return {
        "version": __version__,
        "model": str(options.model or embedded_model()),
        "settings": {
            **{key: getattr(options, key) for key in SETTINGS},
            "draft_model": draft_model,
            "synthetic": [round(rate, 6) for rate in rates],
        },
        **report(results),
    }


def _show(options: E2eOptions, results: Sequence[PromptResult]) -> None:
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
            mean = f"{row.mean_accepted_length:.2f}"
            rest = (f"{row.accepted}/{row.drafted}", mean, f"{row.same}/{row.texts}")
            cells = (row.drafter, f"{row.tokens_per_second:.1f}", _ratio(row.ratio, drafts))
            table.add_row("" if drafts else "all", *cells, *(rest if drafts else ()))
    console.print(table)
    console.print(NOTE, style="dim")
    if options.is_synthetic:
        console.print(DICE, soft_wrap=True)
    elif any(row.same < row.texts for row in rows) and not options.exact:
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
