"""`ngramspec generate`: complete a prompt with any GGUF model, with drafts."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec._version import __version__
from ngramspec.cli.command import SectionCommand
from ngramspec.cli.draft_model import draft_model_options, take_drafts
from ngramspec.cli.drafting import drafting_line
from ngramspec.cli.drafts import drafter_options
from ngramspec.cli.grammar import grammar_of, grammar_options
from ngramspec.cli.llama_cpp.fit import fit_options, take_whole
from ngramspec.cli.llama_cpp.flags import ALL_CLI_FLAGS, other_flags
from ngramspec.cli.llama_cpp.loading import loading_options
from ngramspec.cli.llama_cpp.lora import adapters_of, lora_options
from ngramspec.cli.llama_cpp.placement import placement_options
from ngramspec.cli.llama_cpp.rope import rope_options
from ngramspec.cli.llama_cpp.threads import prepare_process, thread_options
from ngramspec.cli.llama_cpp.words import unescaped
from ngramspec.cli.model import resolve_model
from ngramspec.cli.options import COUNT, FILE, NumberRange, option, options, read_utf8
from ngramspec.cli.output import AnswerText, Piece, has_colour, print_json, styled
from ngramspec.cli.target import (
    context_settings,
    looking,
    model_options,
    model_settings,
    running,
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
  ngramspec generate -p $'Repeat this text:\\n\\none two three, one two three'
  ngramspec generate --model model.gguf --spec-type ngram-simple \\
      --spec-ngram-simple-size-n 6 -f prompt.txt -n 400 --temp 0.7 --seed 1
  git diff | ngramspec generate --model model.gguf -f - --compare
  ngramspec generate --model model.gguf -p "{" --raw --json > result.json
"""
MODEL, PROMPT, SAMPLING, OUTPUT = "Model", "Prompt", "Sampling", "Output"
# What --help shows.
EVERYDAY = (
    *("model", "ctx_size", "threads", "n_gpu_layers", "exact", "prompt", "file", "chat", "system"),
    *("max_tokens", "temp", "seed", "json_schema_file", "spec_type", "suffix_index", "model_draft"),
    *("compare", "as_json", "verbose"),
)
SHARE = NumberRange(0, 1)
ROUNDS = 3  # of --compare, each with drafts and without


@click.command(
    cls=SectionCommand,
    everyday=EVERYDAY,
    epilog=EPILOG,
    context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
)
@options(
    model_options(MODEL),
    option(MODEL, "-c", "--ctx-size", type=COUNT, default=0, show_default=False,
           help="Context in tokens; more than the trained size is cut to that, with a warning, "
           "unless options stretch it.  [default: the trained size, cut to free memory; 0: not "
           "cut]"),
    fit_options(MODEL),
    running(MODEL, "batch_size", "ubatch_size", "threads", "threads_batch", "flash_attn",
            "cache_type_k", "cache_type_v", "exact"),
    option(PROMPT, "-p", "--prompt", metavar="TEXT", help="The prompt; - reads it from stdin."),
    option(PROMPT, "-f", "--file", metavar="FILE", help="Read the prompt from a file; - is stdin."),
    option(PROMPT, "-e/--no-escape", "--escape", "escape", default=False,
           help="Read \\n, \\t and the like in the prompt as what they stand for."),
    option(PROMPT, "--chat/--raw", "-cnv/-no-cnv", "--conversation/--no-conversation", "chat",
           default=None,
           help="Use the model's chat template, if it has one (default), or the bare prompt."),
    option(PROMPT, "-sys", "--system", "--system-prompt", "system", metavar="TEXT",
           help="System message of the chat."),
    option(PROMPT, "-sysf", "--system-prompt-file", type=FILE, help="File with it."),
    option(SAMPLING, "-n", "--max-tokens", "--predict", "--n-predict", "max_tokens",
           env="N_PREDICT", type=click.IntRange(-2), default=256,
           help="Largest number of tokens to generate; -1, llama-cli's default: until the context "
           "is full."),
    option(SAMPLING, "--temp", type=NumberRange(0), default=0.0,
           help="Temperature; 0 is greedy. llama-cli's default is 0.8."),
    option(SAMPLING, "--top-k", type=COUNT, default=40, help="0: off."),
    option(SAMPLING, "--top-p", type=SHARE, default=0.95, help="1: off."),
    option(SAMPLING, "--min-p", type=SHARE, default=0.05, help="0: off."),
    option(SAMPLING, "--repeat-penalty", type=NumberRange(0, min_open=True), default=1.0,
           help="1: off."),
    option(SAMPLING, "-s", "--seed", type=click.IntRange(-1, 2**32 - 1), default=-1,
           help="-1: random."),
    option(SAMPLING, "--ignore-eos", is_flag=True, help="Continue past end tokens."),
    grammar_options(SAMPLING),
    drafter_options(),
    draft_model_options(),
    lora_options(),
    placement_options(),
    loading_options(),
    thread_options(),
    rope_options(),
    other_flags(ALL_CLI_FLAGS),
    click.version_option(__version__, "--version", prog_name="ngramspec", hidden=True),
    click.help_option("--usage", hidden=True),
    option(OUTPUT, "--compare", is_flag=True,
           help="Generate three times with and without drafts, by turns; print the speed-up, its "
           "spread and whether texts are equal."),
    option(OUTPUT, "--json", "as_json", is_flag=True,
           help="Print machine-readable results instead of the text."),
    option(OUTPUT, "-v", "--verbose", "--log-verbose", is_flag=True,
           help="Print llama-server's statistics line for each drafter."),
    option(OUTPUT, "--no-color", is_flag=True, help="No colour for accepted draft tokens."),
)  # fmt: skip
@click.pass_context
def generate(ctx: click.Context, /, **values: Any) -> None:
    """Complete a prompt with drafts, for any GGUF model.

    The text streams to stdout, on a terminal with accepted draft tokens in green; figures go to
    stderr. Drafts change only the speed: with the same seed the text is that of plain decoding, up
    to the rounding of llama.cpp's kernels (--exact avoids that, where a model has such a setting).

    The reasoning of a chat stands between <think> and </think>, whatever marks the model writes.
    Text that a grammar shapes is printed as it is. With --json `text` is what the model wrote, and
    `message` a chat's answer in its parts.
    """
    resolve_model(values)
    take_whole(ctx, values)
    drafts = take_drafts(values, slots=1)
    prompt = _read_prompt(values)
    if not prompt.strip():
        raise InputError("the prompt is empty")
    values["system"] = _system_of(values)
    grammar = grammar_of(values)
    if values["model"] is None and not values["as_json"]:
        from ngramspec.models import embedded_model

        name = embedded_model().name
        click.echo(f"no --model given: using the embedded model {name}", err=True)
    # Closing it saves what was learned, also on Ctrl-C.
    with _open_llm(values, drafts) as llm:
        if not values["as_json"]:
            _tell_notes(llm)
        prompt_ids, format = _prompt_of(llm, values, prompt)
        session = _Session(llm, prompt_ids, values, grammar, None if grammar else format)
        if values["as_json"]:
            for _ in session.stream():
                pass
            print_json(session.as_json())
        else:
            _print_text(session, values["no_color"])


def _read_prompt(values: Mapping[str, Any]) -> str:
    text, file = values["prompt"], values["file"]
    if (text is None) == (file is None):
        raise click.UsageError("give the prompt with -p TEXT, -f FILE, or -f - for stdin")
    if "-" in (text, file):
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
    elif text is None:
        text = Path(file).read_text("utf-8", "replace")
    return unescaped(text) if values["escape"] else str(text)


def _system_of(values: Mapping[str, Any]) -> str | None:
    text: str | None = values["system"]
    if values["system_prompt_file"] is None:
        return text
    if text is not None:
        raise click.UsageError("give either --system or --system-prompt-file")
    return read_utf8(values["system_prompt_file"])


def _open_llm(values: Mapping[str, Any], drafts: DraftSettings) -> LLM:
    from ngramspec.llm import LLM
    from ngramspec.runtime import Settings, within_trained

    prepare_process(values)
    model, context = model_settings(values), context_settings(values)
    size = within_trained(model, context.context_size, context.rope)
    settings = Settings(
        model=model,
        context=dataclasses.replace(context, context_size=size),
        drafts=drafts,
        exact=values["exact"],
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
    llm: LLM, values: Mapping[str, Any], prompt: str
) -> tuple[TokenIds, ChatFormat | None]:
    """Return the prompt's tokens, as a chat unless --raw is given or there is no template.

    Of a chat also how its answer is written, else None.

    Raises:
        InputError: They do not fit in the context, or there is no template.
    """
    ids, format = _tokenized(llm, values, prompt)
    size, trained = llm.engine.context_size, llm.model.n_ctx_train
    if ids.size >= size:
        more = f"-c N gives more, up to {trained} if memory allows"
        if size >= trained:
            more = f"the model was trained with {trained}; --rope-scale N and -c N stretch that"
        raise InputError(f"the prompt has {ids.size} tokens, the context {size}: {more}")
    return ids, format


def _tokenized(
    llm: LLM, values: Mapping[str, Any], prompt: str
) -> tuple[TokenIds, ChatFormat | None]:
    from ngramspec.text.chat.prompt import chat_prompt

    template = llm.model.chat_template
    if values["chat"] and not template:
        raise InputError("this model has no chat template: use --raw")
    if not (template if values["chat"] is None else values["chat"]):
        return llm.model.tokenize_prompt(prompt), None
    text = values["system"]
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


@dataclasses.dataclass(frozen=True)
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
        from ngramspec.lab.e2e.rounds import NOISY, spread

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
        values: Mapping[str, Any],
        grammar: str,
        format: ChatFormat | None,
    ) -> None:
        seed = random.getrandbits(32) if values["seed"] < 0 else values["seed"]
        names = ("max_tokens", "top_k", "top_p", "min_p", "repeat_penalty", "ignore_eos")
        self._options = {name: values[name] for name in names}
        self._options |= {"temperature": values["temp"], "seed": seed, "grammar": grammar}
        self._options["max_tokens"] = max(-1, values["max_tokens"])
        scales = enumerate(scale for _, scale in adapters_of(values))
        self._options["adapters"] = tuple((number, scale) for number, scale in scales if scale)
        self._options["cache_prompt"] = False
        if format is not None:
            self._options |= {"format": format, "special": format.shows_special}
        self._format = format
        self._llm = llm
        self._prompt_ids = prompt_ids
        self._compares, self._verbose = values["compare"], values["verbose"]
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
        if self._llm.engine.drafters.types:
            figures = _figures(run)
            steps = figures["steps"]
            draft_us = 1e6 * self._draft_seconds / steps if steps else 0.0
            yield (
                f"draft acceptance = {figures['acceptance']:.1%} "
                f"({figures['num_accepted']} accepted / {figures['drafted']} drafted), "
                f"mean accepted length = {run.mean_accepted_length:.2f}, "
                f"{draft_us:.0f} µs per decode"
            )
        yield from self._llm.engine.stats_lines(verbose=self._verbose)
        if self._compares:
            comparison = self._compare()
            difference = comparison.difference
            same = "the texts are equal" if difference is None else difference.line()
            low, high = min(comparison.plain_rates), max(comparison.plain_rates)
            if comparison.noisy:
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
            "stats": {name: dataclasses.asdict(of) for name, of in stats.items() if of.begin_calls},
        }
        if self._compares:
            comparison = self._compare()
            difference = comparison.difference
            facts["compare"] = {
                "identical": difference is None,
                "speedup": comparison.speedup,
                "ratios": comparison.ratios,
                "noisy": comparison.noisy,
                "difference": None if difference is None else dataclasses.asdict(difference),
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
