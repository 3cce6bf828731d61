"""`ngramspec generate`: complete a prompt with any GGUF model, with drafts."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.draft_model import AllDraftOptions
from ngramspec.cli.files import read_utf8
from ngramspec.cli.llama_cpp import ALL_CLI_FLAGS, other_flags
from ngramspec.cli.model import LoraOptions
from ngramspec.cli.options import command, flag, unescaped
from ngramspec.cli.output import AnswerText, Piece, drafting_line, has_colour, print_json, styled
from ngramspec.cli.target import (
    FitOptions,
    RopeOptions,
    SamplingOptions,
    TargetOptions,
    context_settings,
    looking,
    model_settings,
)
from ngramspec.errors import InputError

if TYPE_CHECKING:
    from ngramspec.arrays import TokenIds
    from ngramspec.engine import Generation
    from ngramspec.llm import LLM
    from ngramspec.runtime import DraftSettings
    from ngramspec.text.chat.format import ChatFormat

EPILOG = """\b
Examples:
  ngramspec generate -p $'Repeat this text:\\n\\n'"$(seq -s ' ' 60)"
  ngramspec generate --model model.gguf -f prompt.txt -n 400 --temp 0.7 --seed 1
  git diff | ngramspec generate --model model.gguf -f -
  ngramspec generate --model model.gguf -p "{" --raw --json > result.json
"""
# What --help shows.
EVERYDAY = (
    *("model", "ctx_size", "threads", "n_gpu_layers", "exact", "prompt", "file", "chat", "system"),
    *("max_tokens", "temp", "seed", "json_schema_file", "spec_type", "suffix_index", "model_draft"),
    *("as_json", "verbose"),
)


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
        "--temp --temperature", "0 is greedy. llama-cli's default is 0.8.", env="TEMPERATURE",
        default=0.0, low=0)


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
    as_json: bool = flag(
        "--json", "Print machine-readable results instead of the text.", default=False)
    verbose: bool = flag("-v --verbose --log-verbose", "Print llama-server's statistics line for "
        "each drafter.", default=False)


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
            _print_text(session)


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


def _print_text(session: _Session) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    coloured = has_colour(console)
    for piece in session.stream():
        if coloured:
            console.print(Text.assemble(*styled([piece])), end="", soft_wrap=True)
        else:
            click.echo(piece[0], nl=False)
    click.echo()
    for line in session.lines():
        click.echo(line, err=True)


class _Session:
    """A prompt for a loaded model; `stream` generates once, other methods report on that run.

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
        from ngramspec.engine import Sampling

        seed = random.getrandbits(32) if options.seed < 0 else options.seed
        names = vars(options).keys() & (one.name for one in fields(Sampling))
        self._options = {name: getattr(options, name) for name in names}
        self._options |= {"temperature": options.temp, "seed": seed, "grammar": grammar}
        self._options["max_tokens"] = max(-1, options.max_tokens)
        scales = enumerate(scale for _, scale in options.adapters())
        self._options["adapters"] = tuple((number, scale) for number, scale in scales if scale)
        if format is not None:
            self._options |= {"format": format, "special": format.shows_special}
        self._format = format
        self._llm = llm
        self._prompt_ids = prompt_ids
        self._verbose = options.verbose
        self._draft_seconds = 0.0
        self._run: Generation

    def stream(self) -> Iterator[Piece]:
        shown = AnswerText(self._format)
        for chunk in self._llm.stream(self._prompt_ids, **self._options):
            yield from shown.pieces(chunk.spans, chunk.finish_reason is not None)
            self._run = chunk.generation
        self._draft_seconds = self._llm.engine.stats().draft_seconds

    def lines(self) -> Iterator[str]:
        run, seconds = self._run, self._run.timings.prompt_seconds
        yield (
            f"{run.num_tokens} tokens ({run.finish_reason}), {run.tokens_per_second:.1f} tokens/s; "
            f"{self._prompt_ids.size} prompt tokens in {1e3 * seconds:.0f} ms; seed {run.seed}"
        )
        figures = _figures(run, self._draft_seconds)
        if self._llm.engine.drafters.types and figures["steps"]:
            draft_us = 1e6 * self._draft_seconds / figures["steps"]
            yield (
                f"draft acceptance = {figures['acceptance']:.1%} "
                f"({figures['num_accepted']} accepted / {figures['drafted']} drafted), "
                f"mean accepted length = {run.mean_accepted_length:.2f}, "
                f"{draft_us:.0f} µs of drafting per pass"
            )
        yield from self._llm.engine.stats_lines(verbose=self._verbose)

    def as_json(self) -> dict[str, Any]:
        run = self._run
        stats = self._llm.engine.source_stats()
        return {
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


def _figures(run: Generation, draft_seconds: float) -> dict[str, Any]:
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
