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
  ngramspec serve model.gguf -c 32768 -np 8 -ngl all
  ngramspec serve model.gguf -md small.gguf --spec-draft-n-max 8
  ngramspec serve model.gguf --suffix-index code.ngx --record requests.jsonl
  ngramspec serve llama3:8b --port 11434
  ngramspec serve --config server.yaml --host 0.0.0.0 --api-key-file keys

Lines and LLAMA_ARG_ variables of llama-server work as they are; a few options are refused, with
the reason. --config sets options by name, in YAML or TOML, such as `spec-type: [suffix, recycle]`.
The command line overrides the environment, which overrides the file.

Ctrl-C and SIGTERM let running requests finish and save what was learned; another Ctrl-C
quits at once. SIGUSR1 prints statistics. Exit code 1: the engine or the shutdown failed.
"""
# What --help shows of 230 options.
EVERYDAY = (
    *("path", "model", "hf_repo", "ctx_size", "parallel", "threads", "n_gpu_layers", "exact"),
    *("host", "port", "api_key_file", "metrics", "temperature", "spec_type"),
    *("suffix_index", "model_draft", "record", "log_file", "config"),
)


@command(
    "serve", EPILOG, everyday=EVERYDAY, more=[*preset_options(), *other_flags()], any_hyphens=True
)
def serve(options: ServeOptions) -> None:
    """Serve a GGUF model over HTTP, with drafts.

    The APIs of OpenAI, Anthropic, Ollama and llama-server, and at / a page to chat with. MODEL is
    the same as --model; both take a Modelfile as well. Requests may bound their drafts or end them
    with speculative.*:

    \b
    https://github.com/ngramspec/ngramspec/tree/main/docs/server/options.md#drafts-of-a-request
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
