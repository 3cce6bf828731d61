"""`ngramspec generate`: complete a prompt with any GGUF model, with drafts."""

from __future__ import annotations

import contextlib
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.draft_model import AllDraftOptions
from ngramspec.cli.files import read_utf8
from ngramspec.cli.llama_cpp import ALL_CLI_FLAGS, other_flags
from ngramspec.cli.model import LoraOptions
from ngramspec.cli.options import command, flag, unescaped
from ngramspec.cli.output import AnswerText, Piece, drafting_line, has_colour, print_json, styled
from ngramspec.cli.sampling import SamplingOptions
from ngramspec.cli.target import (
    FitOptions,
    RopeOptions,
    TargetOptions,
    context_settings,
    looking,
    model_settings,
)
from ngramspec.errors import InputError

if TYPE_CHECKING:
    from ngramspec.arrays import TokenIds
    from ngramspec.engine import Generation
    from ngramspec.lab.e2e.difference import Difference
    from ngramspec.llm import LLM
    from ngramspec.runtime import DraftSettings
    from ngramspec.text.chat.format import ChatFormat

EPILOG = """\b
Examples:
  ngramspec generate --compare -p $'Repeat this text:\\n\\n'"$(seq -s ' ' 60)"
  ngramspec generate --model model.gguf -f prompt.txt -n 400 --temp 0.7 --seed 1
  git diff | ngramspec generate --model model.gguf -f - --compare
  ngramspec generate --model model.gguf -p "{" --raw --json > result.json
"""
# What --help shows.
EVERYDAY = (
    *("model", "ctx_size", "threads", "n_gpu_layers", "exact", "prompt", "file", "chat", "system"),
    *("max_tokens", "temp", "seed", "json_schema_file", "spec_type", "suffix_index", "model_draft"),
    *("compare", "as_json", "verbose"),
)
ROUNDS = 3  # of --compare, each with drafts and without


@dataclass
class PromptOptions:
    """What is completed."""

    section = "Prompt"
    # fmt: off
    prompt: str | None = flag("-p --prompt", "The prompt; - reads it from stdin.", metavar="TEXT")
    file: str | None = flag("-f --file", "Read the prompt from a file; - is stdin.", metavar="FILE")
    escape: bool = flag("-e/--no-escape --escape", "Read \\n, \\t and the like in the prompt as "
        "what they stand for.", default=False)
    chat: bool | None = flag("--chat/--raw -cnv/-no-cnv --conversation/--no-conversation", "Use "
        "the model's chat template, or the bare prompt.  [default: the template, if there is one]")
    system: str | None = flag(
        "-sys --system --system-prompt", "System message of the chat.", metavar="TEXT")
    system_prompt_file: Path | None = flag("-sysf --system-prompt-file", "File with it.")


@dataclass
class GeneratedOptions(SamplingOptions):
    """How many tokens are generated, and how warm."""

    section = "Sampling"
    # fmt: off
    max_tokens: int = flag(
        "-n --max-tokens --predict --n-predict", "Longest answer, in tokens; -1, llama-cli's "
        "default: until the context is full.", env="N_PREDICT", default=256, low=-2)
    temp: float = flag(
        "--temp", "Temperature; 0 is greedy. llama-cli's default is 0.8.", default=0.0, low=0)


@dataclass
class GenerateOptions(
    TargetOptions,
    FitOptions,
    PromptOptions,
    GeneratedOptions,
    AllDraftOptions,
    LoraOptions,
    RopeOptions,
):
    """Options of `generate`."""

    section = "Output"
    # fmt: off
    compare: bool = flag("--compare", "Generate three times with and without drafts, by turns, "
        "and print the speed-up.", default=False)
    as_json: bool = flag(
        "--json", "Print machine-readable results instead of the text.", default=False)
    verbose: bool = flag("-v --verbose --log-verbose", "Print llama-server's statistics line for "
        "each drafter.", default=False)
    no_color: bool = flag("--no-color", "No colour for accepted draft tokens.", default=False)


@command("generate", EPILOG, everyday=EVERYDAY, more=other_flags(ALL_CLI_FLAGS), any_hyphens=True)
def generate(options: GenerateOptions) -> None:
    """Complete a prompt with drafts, for any GGUF model.

    The text streams to stdout, on a terminal with accepted draft tokens in green; figures go to
    stderr. Drafts change only the speed, up to the rounding of llama.cpp's kernels, which --exact
    avoids.

    A chat's reasoning stands between <think> and </think>; text that a grammar shapes is printed as
    it is. With --json `text` is what the model wrote, and `message` a chat's answer in its parts.
    """
    options.resolve()
    drafts = options.draft_settings(1, options.exact)
    prompt = _read_prompt(options)
    if not prompt.strip():
        raise InputError("the prompt is empty")
    options.system = _system_of(options)
    grammar = options.grammar_text()
    if options.model is None and not options.as_json:
        from ngramspec.models import embedded_model

        name = embedded_model().name
        click.echo(f"no --model given: using the embedded model {name}", err=True)
    # Closing it saves what was learned, also on Ctrl-C.
    with _open_llm(options, drafts) as llm:
        if not options.as_json:
            _tell_notes(llm)
        prompt_ids, format = _prompt_of(llm, options, prompt)
        session = _Session(llm, prompt_ids, options, grammar, None if grammar else format)
        if options.as_json:
            for _ in session.stream():
                pass
            print_json(session.as_json())
        else:
            _print_text(session, options.no_color)


def _read_prompt(options: GenerateOptions) -> str:
    text, file = options.prompt, options.file
    if (text is None) == (file is None):
        raise click.UsageError("give the prompt with -p TEXT, -f FILE, or -f - for stdin")
    if "-" in (text, file):
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
    elif file is not None:
        text = Path(file).read_text("utf-8", "replace")
    return unescaped(str(text)) if options.escape else str(text)


def _system_of(options: GenerateOptions) -> str | None:
    if options.system_prompt_file is None:
        return options.system
    if options.system is not None:
        raise click.UsageError("give either --system or --system-prompt-file")
    return read_utf8(options.system_prompt_file)


def _open_llm(options: GenerateOptions, drafts: DraftSettings) -> LLM:
    from ngramspec.llm import LLM
    from ngramspec.runtime import Settings, within_trained

    options.prepare_process()
    model, context = model_settings(options), context_settings(options, options.ctx_size or 0)
    size = within_trained(model, context.context_size, context.rope)
    settings = Settings(
        model=model,
        context=replace(context, context_size=size),
        drafts=drafts,
        exact=options.exact,
        max_queue=1,
    )
    with contextlib.ExitStack() as testing:
        return LLM.open(settings, lambda: looking(testing))


def _tell_notes(llm: LLM) -> None:
    """Tell on stderr what drafts, as `serve` does, if there is something to note about it."""
    drafting = llm.engine.drafting()
    if drafting.notes and (drafting.drafters or drafting.draft_model):
        click.echo(drafting_line(drafting), err=True)


def _prompt_of(
    llm: LLM, options: GenerateOptions, prompt: str
) -> tuple[TokenIds, ChatFormat | None]:
    """Return the prompt's tokens, as a chat unless --raw is given or there is no template.

    Of a chat also how its answer is written, else None.

    Raises:
        InputError: They do not fit in the context, or there is no template.
    """
    ids, format = _tokenized(llm, options, prompt)
    size, trained = llm.engine.context_size, llm.model.n_ctx_train
    if ids.size >= size:
        more = f"-c N gives more, up to {trained} if memory allows"
        if size >= trained:
            more = f"the model was trained with {trained}; --rope-scale N and -c N stretch that"
        raise InputError(f"the prompt has {ids.size} tokens, the context {size}: {more}")
    return ids, format


def _tokenized(
    llm: LLM, options: GenerateOptions, prompt: str
) -> tuple[TokenIds, ChatFormat | None]:
    from ngramspec.text.chat.prompt import chat_prompt

    template = llm.model.chat_template
    if options.chat and not template:
        raise InputError("this model has no chat template: use --raw")
    if not (template if options.chat is None else options.chat):
        return llm.model.tokenize_prompt(prompt), None
    text = options.system
    system = [{"role": "system", "content": text}] if text else []
    chat = chat_prompt(llm.model, [*system, {"role": "user", "content": prompt}])
    return llm.model.tokenize_prompt(chat.text), chat.format


def _print_text(session: _Session, no_color: bool) -> None:
    """Stream the text, then print the figures to stderr."""
    from rich.console import Console
    from rich.text import Text

    console = Console(no_color=no_color or None, highlight=False)
    coloured = has_colour(console)
    for piece in session.stream():
        if coloured:
            console.print(Text.assemble(*styled([piece])), end="", soft_wrap=True)
        else:
            click.echo(piece[0], nl=False)
    click.echo()
    for line in session.lines():
        click.echo(line, err=True)


@dataclass(frozen=True)
class _Comparison:
    """Runs by turns with drafts and without.

    plain: The first run without. plain_rates: tokens/s of all of them. ratios: the speed-up of each
        round.
    """

    plain: Generation
    plain_rates: list[float]
    ratios: list[float]
    difference: Difference | None

    @property
    def speedup(self) -> float:
        """The median of the rounds, 0 where nothing was generated."""
        return statistics.median(self.ratios) if self.ratios else 0.0

    @property
    def noisy(self) -> bool:
        """Whether equal runs differ too much for a conclusion."""
        from ngramspec.lab.e2e.bench import NOISY, spread

        return spread(self.plain_rates) > NOISY


class _Session:
    """A prompt for a loaded model; `stream` generates once, other methods report on that run.

    Every run reads the whole prompt. With --compare runs without drafts and with them follow
    by turns, with the same seed.

    format: How the answer to a chat is read; None: it is one text.
    """

    def __init__(
        self,
        llm: LLM,
        prompt_ids: TokenIds,
        options: GenerateOptions,
        grammar: str,
        format: ChatFormat | None,
    ) -> None:
        seed = random.getrandbits(32) if options.seed < 0 else options.seed
        names = ("max_tokens", "top_k", "top_p", "min_p", "repeat_penalty", "ignore_eos")
        self._options = {name: getattr(options, name) for name in names}
        self._options |= {"temperature": options.temp, "seed": seed, "grammar": grammar}
        self._options["max_tokens"] = max(-1, options.max_tokens)
        scales = enumerate(scale for _, scale in options.adapters())
        self._options["adapters"] = tuple((number, scale) for number, scale in scales if scale)
        self._options["cache_prompt"] = False
        if format is not None:
            self._options |= {"format": format, "special": format.shows_special}
        self._format = format
        self._llm = llm
        self._prompt_ids = prompt_ids
        self._compares, self._verbose = options.compare, options.verbose
        self._draft_seconds = 0.0
        self._run: Generation

    def stream(self) -> Iterator[Piece]:
        """Generate; yield the text in pieces as it comes."""
        if self._compares:  # the first of the runs must not pay for cold memory
            self._run_plain(max_tokens=1)
        shown = AnswerText(self._format)
        for chunk in self._llm.stream(self._prompt_ids, **self._options):
            yield from shown.pieces(chunk.spans, chunk.finish_reason is not None)
            self._run = chunk.generation
        self._draft_seconds = self._llm.engine.stats().draft_seconds

    def lines(self) -> Iterator[str]:
        """Yield the figures as lines of text."""
        run, seconds = self._run, self._run.timings.prompt_seconds
        yield (
            f"{run.num_tokens} tokens ({run.finish_reason}), {run.tokens_per_second:.1f} tokens/s; "
            f"{self._prompt_ids.size} prompt tokens in {1e3 * seconds:.0f} ms; seed {run.seed}"
        )
        figures = _figures(run)
        if self._llm.engine.drafters.types and figures["steps"]:
            draft_us = 1e6 * self._draft_seconds / figures["steps"]
            yield (
                f"draft acceptance = {figures['acceptance']:.1%} "
                f"({figures['num_accepted']} accepted / {figures['drafted']} drafted), "
                f"mean accepted length = {run.mean_accepted_length:.2f}, "
                f"{draft_us:.0f} µs of drafting per pass"
            )
        yield from self._llm.engine.stats_lines(verbose=self._verbose)
        if self._compares:
            comparison = self._compare()
            difference = comparison.difference
            same = "the texts are equal" if difference is None else difference.line()
            low, high = min(comparison.plain_rates), max(comparison.plain_rates)
            if not comparison.ratios:
                verdict = "no conclusion on the speed: the answer is too short to be timed"
            elif comparison.noisy:
                verdict = (
                    f"no conclusion on the speed: the machine is too busy, as runs without drafts "
                    f"made {low:.1f} to {high:.1f} tokens/s"
                )
            else:
                verdict = (
                    f"{statistics.median(comparison.plain_rates):.1f} tokens/s without drafts, "
                    f"speed-up {comparison.speedup:.2f}x ({min(comparison.ratios):.2f} to "
                    f"{max(comparison.ratios):.2f} in {len(comparison.ratios)} rounds)"
                )
            yield f"compare: {verdict}; {same}"

    def as_json(self) -> dict[str, Any]:
        """Return everything about the run as plain data."""
        run = self._run
        stats = self._llm.engine.source_stats()
        facts: dict[str, Any] = {
            "model": str(self._llm.model.path),
            "seed": run.seed,
            "text": run.text,
            **({"message": run.message.as_json()} if run.message else {}),
            "token_ids": run.token_ids,
            "accepted": run.accepted,
            "finish_reason": run.finish_reason,
            "prompt_tokens": int(self._prompt_ids.size),
            **_figures(run, self._draft_seconds),
            "speculative": self._llm.engine.drafting().as_json(),
            "stats": {name: asdict(of) for name, of in stats.items() if of.begin_calls},
        }
        if self._compares:
            comparison = self._compare()
            difference = comparison.difference
            facts["compare"] = {
                "identical": difference is None,
                "speedup": comparison.speedup,
                "ratios": comparison.ratios,
                "noisy": comparison.noisy,
                "difference": None if difference is None else asdict(difference),
                "plain": _figures(comparison.plain),
            }
        return facts

    def _compare(self) -> _Comparison:
        """Generate by turns without drafts and with them."""
        from ngramspec.engine import Speculation
        from ngramspec.lab.e2e.difference import find_difference

        drafted, plain = [self._run], [self._run_plain()]
        for number in range(1, ROUNDS):
            # Nothing learned from the rounds before, which had the same answer.
            fresh = {**self._options, "speculation": Speculation(namespace=f"round {number}")}
            drafted.append(self._llm.generate(self._prompt_ids, **fresh))
            plain.append(self._run_plain())
        rates = [run.tokens_per_second for run in plain]
        pairs = zip(drafted, rates, strict=True)
        ratios = [run.tokens_per_second / rate for run, rate in pairs if rate]
        difference = find_difference(
            self._prompt_ids, plain[0].token_ids, self._run.token_ids, self._llm.run
        )
        return _Comparison(plain[0], rates, ratios, difference)

    def _run_plain(self, **changed: Any) -> Generation:
        options = {**self._options, "speculation": False, **changed}
        return self._llm.generate(self._prompt_ids, **options)


def _figures(run: Generation, draft_seconds: float = 0.0) -> dict[str, Any]:
    timings = run.timings
    drafted, accepted = timings.num_draft_tokens, timings.num_accepted_tokens
    return {
        "tokens_per_second": run.tokens_per_second,
        "seconds": timings.prompt_seconds + timings.decode_seconds,
        "prompt_seconds": timings.prompt_seconds,
        "draft_seconds": draft_seconds,
        "steps": max(0, timings.num_steps - 1),
        "drafts": timings.num_drafts,
        "drafted": drafted,
        "num_accepted": accepted,
        "acceptance": accepted / drafted if drafted else 0.0,
        "mean_accepted_length": run.mean_accepted_length,
    }
