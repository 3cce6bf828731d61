"""`ngramspec serve`: an inference server with drafts, for OpenAI's and llama-server's clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ngramspec.cli.group import Failure, SectionCommand, SectionOption
from ngramspec.cli.options import DraftChoice, take_draft_choice
from ngramspec.cli.serve_config import take_config
from ngramspec.cli.serve_ollama import take_recipe
from ngramspec.cli.serve_options import OUTPUT, serve_options

EPILOG = """\b
Examples:
  ngramspec serve
  ngramspec serve --model model.gguf -c 32768 -np 8 --host 0.0.0.0 --api-key-file keys
  ngramspec serve --model model.gguf --spec-type ngram-mod,ngram-cache \\
      --spec-ngram-mod-n-min 16 -lcs code.ngc --pool server.ngp
  ngramspec serve --model model.gguf -md small.gguf --spec-draft-n-max 8
  ngramspec serve --model llama3:8b --spec-type ngram-mod
  ngramspec serve --modelfile Modelfile
  ngramspec serve --config server.yaml --port 9000

A configuration file holds the names of these options, in YAML or TOML. The command
line is stronger than the environment, and that stronger than the file:

\b
  model: model.gguf
  parallel: 8
  spec-type: [ngram-mod, ngram-cache]
  spec-ngram-mod-n-min: 16

Ctrl-C, SIGTERM and SIGHUP let running requests finish and save what was learned; another
Ctrl-C leaves at once. SIGUSR1 prints statistics. Exit code 1: the engine or the end failed.
"""


@click.command(
    cls=SectionCommand,
    epilog=EPILOG,
    context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
)
@serve_options
@click.option(
    "--config",
    cls=SectionOption,
    section=OUTPUT,
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=take_config,
    help="File with options, in YAML or TOML.",
)
@click.pass_context
def serve(ctx: click.Context, /, **options: Any) -> None:
    """Serve a GGUF model over HTTP, with drafts.

    The routes are OpenAI's (/v1/chat/completions, /v1/completions, /v1/models),
    llama-server's (/completion, /infill, /tokenize, /slots, ...) and Ollama's (/api/chat,
    /api/generate, /api/tags, ...). Requests may set the fields speculative.* for themselves;
    `docs/server.md` lists them.
    """
    take_recipe(ctx, options)
    choice = _take_choice(options)
    _refuse(options)
    try:
        from ngramspec.cli.serve_run import run
    except ImportError as error:
        raise Failure(
            f"serve needs {error.name}, which is not installed: pip install 'ngramspec[server]'"
        ) from error
    run(options, choice)


def _take_choice(options: dict[str, Any]) -> DraftChoice:
    """Return the drafters; --spec-default stands for a list of one."""
    if options.pop("spec_default") and not options["spec_type"]:
        options["spec_type"] = ("ngram-mod",)
    names = ",".join(options["spec_type"]).split(",")
    if "draft-simple" in names:  # llama-server's word for a draft model
        if options["model_draft"] is None:
            raise click.UsageError("--spec-type draft-simple needs --model-draft")
        options["spec_type"] = tuple(n for n in names if n != "draft-simple") or ("none",)
    return take_draft_choice(options)


def _refuse(options: dict[str, Any]) -> None:
    if options.pop("cache_reuse"):
        raise click.UsageError(
            "--cache-reuse: chunks cannot be moved within the cache; prefixes are reused anyway"
        )
    if options["exact"] and options["model_draft"] is not None:
        raise click.UsageError("--exact is for n-gram drafters: drop --model-draft")
    if options["chat_template"] and options["chat_template_file"]:
        raise click.UsageError("give either --chat-template or --chat-template-file")
    if bool(options["ssl_key_file"]) != bool(options["ssl_cert_file"]):
        raise click.UsageError("--ssl-key-file and --ssl-cert-file belong together")
