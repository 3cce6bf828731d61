"""`ngramspec generate`: complete a prompt with any GGUF model, with drafts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.group import SectionCommand, SectionOption
from ngramspec.cli.options import Function, drafter_options, take_draft_choice

if TYPE_CHECKING:
    from ngramspec.cli.session import Session

EPILOG = """\b
Examples:
  ngramspec generate -p $'Repeat this text:\\n\\none two three, one two three'
  ngramspec generate --model model.gguf --spec-type ngram-simple \\
      --spec-ngram-simple-size-n 6 -f prompt.txt -n 400 --temp 0.7 --seed 1
  git diff | ngramspec generate --model model.gguf -f - --compare
  ngramspec generate --model model.gguf -p "{" --raw --json > result.json
"""
MODEL, PROMPT, SAMPLING, OUTPUT = "Model", "Prompt", "Sampling", "Output"


def _option(section: str, *flags: str, **settings: Any) -> Callable[[Function], Function]:
    if isinstance(settings.get("type"), (click.IntRange, click.FloatRange)):
        settings.setdefault("metavar", "N")
    settings.setdefault("show_default", settings.get("default") is not None)
    return click.option(*flags, cls=SectionOption, section=section, **settings)


@click.command(
    cls=SectionCommand,
    epilog=EPILOG,
    context_settings={
        "token_normalize_func": lambda name: name.replace("_", "-"),
    },
)
@_option(
    MODEL,
    "-m",
    "--model",
    type=click.Path(path_type=Path),
    help="GGUF file; without it the embedded model.",
)
@_option(
    MODEL,
    "-c",
    "--ctx-size",
    type=click.IntRange(0),
    default=4096,
    help="Context in tokens; 0: as trained.",
)
@_option(
    MODEL,
    "-t",
    "--threads",
    type=click.IntRange(1, 512),
    help="Default: one per physical core; 1 for the embedded model.",
)
@_option(
    MODEL,
    "-fa",
    "--flash-attn",
    is_flag=True,
    help="Use flash attention.",
)
@_option(
    MODEL,
    "--exact",
    is_flag=True,
    help="Bit-exact setting for Q8_0 weights on the CPU: flash attention, one thread.",
)
@_option(PROMPT, "-p", "--prompt", metavar="TEXT", help="The prompt; - reads it from stdin.")
@_option(PROMPT, "-f", "--file", metavar="FILE", help="Read the prompt from a file; - is stdin.")
@_option(
    PROMPT,
    "--chat/--raw",
    default=None,
    help="Use the model's chat template, if it has one (default), or the prompt as it is.",
)
@_option(PROMPT, "-sys", "--system", metavar="TEXT", help="System message of the chat.")
@_option(
    SAMPLING,
    "-n",
    "--max-tokens",
    type=click.IntRange(1),
    default=256,
    help="Tokens to generate at most.",
)
@_option(
    SAMPLING, "--temp", type=click.FloatRange(0), default=0.0, help="Temperature; 0 is greedy."
)
@_option(SAMPLING, "--top-k", type=click.IntRange(0), default=40, help="0: off.")
@_option(SAMPLING, "--top-p", type=click.FloatRange(0, 1), default=0.95, help="1: off.")
@_option(SAMPLING, "--min-p", type=click.FloatRange(0, 1), default=0.05, help="0: off.")
@_option(
    SAMPLING,
    "--repeat-penalty",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    help="1: off.",
)
@_option(SAMPLING, "-s", "--seed", type=click.IntRange(0, 2**32 - 1), help="Default: random.")
@_option(SAMPLING, "--grammar", metavar="GBNF", help="Grammar that the text must follow.")
@_option(
    SAMPLING, "--grammar-file", type=click.Path(path_type=Path), help="File with such a grammar."
)
@drafter_options
@_option(
    OUTPUT,
    "--compare",
    is_flag=True,
    help="Also generate without drafts: speed-up, and whether the texts are equal.",
)
@_option(
    OUTPUT,
    "--json",
    "as_json",
    is_flag=True,
    help="Print machine-readable results instead of the text.",
)
@_option(OUTPUT, "--no-color", is_flag=True, help="No colour for accepted draft tokens.")
def generate(**options: Any) -> None:
    """Complete a prompt with drafts, for any GGUF model.

    The text streams to stdout, accepted draft tokens in green if that is a terminal; figures go to
    stderr. A draft changes only the speed: with one seed the text is that of plain decoding, up to
    the rounding of llama.cpp's kernels (--exact avoids that on the CPU with Q8_0 weights).
    """
    from ngramspec.cli.session import open_llm, open_session, read_grammar
    from ngramspec.errors import InputError

    choice = take_draft_choice(options)
    if options["exact"] and options["threads"] not in (None, 1):
        raise click.UsageError("--exact is for one thread: drop --threads")
    prompt = _read_prompt(options)
    if not prompt.strip():
        raise InputError("the prompt is empty")
    read_grammar(options)  # says what is wrong before the model is loaded
    if options["model"] is None and not options["as_json"]:
        from ngramspec.models import embedded_model

        name = embedded_model().name
        click.echo(f"no --model given: using the embedded model {name}", err=True)
    with open_llm(options, choice) as llm:  # closing it saves what was learned, also on Ctrl-C
        session = open_session(llm, options, prompt)
        if options["as_json"]:
            _print_json(session)
        else:
            _print_text(session, options["no_color"])


def _read_prompt(options: dict[str, Any]) -> str:
    text, file = options["prompt"], options["file"]
    if (text is None) == (file is None):
        raise click.UsageError("give the prompt by -p TEXT, -f FILE, or -f - for stdin")
    if "-" in (text, file):
        return sys.stdin.buffer.read().decode("utf-8", "replace")
    return text if text is not None else Path(file).read_text("utf-8", "replace")


def _print_text(session: Session, no_color: bool) -> None:
    """Stream the text, then print the figures to stderr."""
    from rich.console import Console
    from rich.text import Text

    from ngramspec.cli.report import has_colour
    from ngramspec.cli.text import styled

    console = Console(no_color=no_color or None, highlight=False)
    coloured = has_colour(console)
    for piece in session.stream():
        if coloured:
            console.print(Text.assemble(*styled([piece])), end="", soft_wrap=True)
        else:
            click.echo(piece[0], nl=False)
    click.echo()
    click.echo(session.summary(), err=True)
    for line in session.stats_lines():
        click.echo(line, err=True)
    if session.compares:
        click.echo(session.comparison().line(), err=True)


def _print_json(session: Session) -> None:
    import json

    for _ in session.stream():
        pass
    click.echo(json.dumps(session.as_json()))
