"""`ngramspec serve`: an inference server with drafts, for OpenAI's and llama-server's clients."""

from __future__ import annotations

from pathlib import Path

import click

from ngramspec.cli.command import Failure
from ngramspec.cli.llama_cpp import other_flags, preset_options, preset_values
from ngramspec.cli.model import downloaded_model
from ngramspec.cli.options import command, is_set
from ngramspec.cli.serve.ollama import take_recipe
from ngramspec.cli.serve.options import ServeOptions
from ngramspec.errors import InputError
from ngramspec.messages import not_installed

EPILOG = """\b
Examples:
  ngramspec serve
  ngramspec serve model.gguf
  ngramspec serve --model model.gguf -c 32768 -np 8 --host 0.0.0.0 --api-key-file keys
  ngramspec serve --model model.gguf --spec-type ngram-mod,ngram-cache \\
      --spec-ngram-mod-n-min 16 -lcs code.ngc --pool server.ngp
  ngramspec serve --model model.gguf -md small.gguf --spec-draft-n-max 8
  ngramspec serve -hf Qwen/Qwen3-8B-GGUF:Q8_0 --jinja -ngl 99 -fa on -c 40960
  ngramspec serve --model llama3:8b --spec-type ngram-mod
  ngramspec serve --modelfile Modelfile
  ngramspec serve --config server.yaml --port 9000

Lines and LLAMA_ARG_ variables of llama-server work as they are: its options that do nothing
here are accepted and not listed above, a few are refused with the reason.

A configuration file sets these options by name, in YAML or TOML. The command line
overrides the environment, which overrides the file:

\b
  model: model.gguf
  parallel: 8
  spec-type: [ngram-mod, ngram-cache]
  spec-ngram-mod-n-min: 16

Ctrl-C, SIGTERM and SIGHUP let running requests finish and save what was learned; another
Ctrl-C quits at once. SIGUSR1 prints statistics. Exit code 1: the engine or the shutdown
failed.
"""
# What --help shows of 230 options.
EVERYDAY = (
    *("path", "model", "hf_repo", "alias", "ctx_size", "parallel", "threads", "n_gpu_layers"),
    *("exact", "host", "port", "api_key_file", "pool_per_key", "metrics", "predict"),
    *("temperature", "spec_type", "suffix_index", "pool_file", "model_draft", "log_level"),
    *("log_file", "config"),
)


@command(
    "serve", EPILOG, everyday=EVERYDAY, more=[*preset_options(), *other_flags()], any_hyphens=True
)
def serve(options: ServeOptions) -> None:
    """Serve a GGUF model over HTTP, with drafts.

    The routes are OpenAI's (/v1/chat/completions, /v1/responses, ...), Anthropic's (/v1/messages),
    llama-server's (/completion, /infill, ...) and Ollama's (/api/chat, /api/generate, ...).
    Requests can set speculative.*:

    \b
    https://github.com/ngramspec/ngramspec/tree/main/docs/server/options.md
    """
    if options.path is not None:
        if is_set("model") and options.model != options.path:
            raise click.UsageError(
                f"the model is either {options.path} or {options.model}: name one"
            )
        options.model = options.path
    named = options.model is not None or options.hf_repo is not None
    vars(options).update(preset_values(named))
    options.model = downloaded_model(options.model, options.hf_repo, options.hf_file, "--model")
    take_recipe(options)
    drafts = options.draft_settings(options.num_slots, options.exact)
    options.choose_cache(drafts=drafts.any, exact=options.exact)
    _refuse(options)
    try:
        from ngramspec.cli.serve.run import run
    except ImportError as error:
        raise Failure(not_installed(f"serve needs {error.name}", "server")) from error
    run(options, drafts)


def _refuse(options: ServeOptions) -> None:
    if options.chat_template and options.chat_template_file:
        raise click.UsageError("give either --chat-template or --chat-template-file")
    certificate, key = options.ssl_cert_file, options.ssl_key_file
    if bool(certificate) != bool(key):
        raise click.UsageError("--ssl-key-file and --ssl-cert-file belong together")
    if certificate and key:
        _check_certificate(certificate, key)


def _check_certificate(certificate: Path, key: Path) -> None:
    """Raise InputError if they cannot be used; OSError if one cannot be read."""
    import ssl

    for path in (certificate, key):
        path.open("rb").close()  # names the file if it cannot be opened
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise InputError(
            f"--ssl-cert-file {certificate} and --ssl-key-file {key} are no certificate in PEM and "
            f"its key: {error.reason or error}"
        ) from error
