"""`ngramspec serve`: an inference server with drafts, for OpenAI's and llama-server's clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ngramspec._version import __version__
from ngramspec.cli import completion
from ngramspec.cli.command import Failure, SectionCommand
from ngramspec.cli.draft_model import draft_model_options, take_drafts
from ngramspec.cli.drafts import drafter_options
from ngramspec.cli.grammar import grammar_options
from ngramspec.cli.llama_cpp.fit import fit_options, take_whole
from ngramspec.cli.llama_cpp.flags import other_flags
from ngramspec.cli.llama_cpp.loading import loading_options
from ngramspec.cli.llama_cpp.lora import lora_options
from ngramspec.cli.llama_cpp.placement import placement_options
from ngramspec.cli.llama_cpp.presets import preset_options, take_preset
from ngramspec.cli.llama_cpp.rope import rope_options
from ngramspec.cli.llama_cpp.threads import thread_options
from ngramspec.cli.llama_cpp.words import AUTO, Switch
from ngramspec.cli.model import downloaded_model
from ngramspec.cli.options import (
    AT_LEAST_1,
    COUNT,
    FILE,
    NumberRange,
    SizeType,
    option,
    options,
)
from ngramspec.cli.serve.config import take_config
from ngramspec.cli.serve.embeddings import embedding_options
from ngramspec.cli.serve.ollama import take_recipe
from ngramspec.cli.serve.recording import recording_options
from ngramspec.cli.target import hub_options, running
from ngramspec.errors import InputError
from ngramspec.messages import not_installed

MODEL, SLOTS, DEFAULTS = "Model", "Slots and batches", "Defaults for requests"
SERVER, ACCESS, OUTPUT, SESSIONS = "Server", "Access", "Output", "Long sessions"
AUTO_SLOTS = 4
SLOTS_ARE_AUTO = "ngramspec.slots_are_auto"
SECONDS, SHARE = NumberRange(0), NumberRange(0, 1)
ABOVE_0 = NumberRange(0, min_open=True)
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
    *(
        "path",
        "model",
        "hf_repo",
        "alias",
        "ctx_size",
        "parallel",
        "threads",
        "n_gpu_layers",
        "exact",
    ),
    *("host", "port", "api_key_file", "pool_per_key", "metrics", "predict", "temperature"),
    *("spec_type", "suffix_index", "pool_file", "model_draft", "log_level", "log_file", "config"),
)


class Slots(click.ParamType):  # type: ignore[type-arg]
    """A number of slots; auto and -1 are AUTO_SLOTS, and are noted in ctx.meta."""

    name = "slots"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        if str(value) not in AUTO:
            return int(click.IntRange(1, 256).convert(value, param, ctx))
        if ctx is not None:
            ctx.meta[SLOTS_ARE_AUTO] = True
        return AUTO_SLOTS


@click.command(
    cls=SectionCommand,
    everyday=EVERYDAY,
    epilog=EPILOG,
    context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
)
@click.argument("path", required=False, type=FILE, metavar="[MODEL]",
                shell_complete=completion.model)  # fmt: skip
@options(
    option(MODEL, "-m", "--model", env="MODEL", type=FILE, shell_complete=completion.model,
           help="GGUF file, name of a model that Ollama has pulled, or Modelfile; the same as "
           "MODEL; default: the embedded model."),
    hub_options(MODEL),
    option(MODEL, "--modelfile", type=FILE, help="Modelfile with FROM, PARAMETER, SYSTEM, ..."),
    option(MODEL, "-a", "--alias", env="ALIAS", multiple=True, metavar="NAME",
           help="Names of the model for clients, comma-separated (repeatable); the first in the "
           "alphabet is its id."
           "  [default: the file's name]"),
    option(MODEL, "--tags", env="TAGS", default="", metavar="NAMES",
           help="Tags that /v1/models lists, comma-separated."),
    option(MODEL, "--chat-template", env="CHAT_TEMPLATE", metavar="JINJA",
           help="Chat template instead of the model's, or the name of one of llama.cpp's."),
    option(MODEL, "--chat-template-file", env="CHAT_TEMPLATE_FILE", type=FILE,
           help="File with a chat template."),
    option(MODEL, "--chat-template-kwargs", env="CHAT_TEMPLATE_KWARGS", metavar="JSON",
           help="Further variables for the template."),
    option(SLOTS, "-c", "--ctx-size", env="CTX_SIZE", type=COUNT, default=0, show_default=False,
           help="Context of all slots together, in tokens.  [default: the trained size, which all "
           "slots share, cut to free memory; 0: not cut]"),
    option(SLOTS, "-np", "--parallel", env="N_PARALLEL", type=Slots(), default="auto", metavar="N",
           help="Slots: requests that run at the same time; auto or -1: 4."),
    fit_options(SLOTS),
    running(SLOTS, "batch_size", "ubatch_size", "threads", "threads_batch", "flash_attn",
            "cache_type_k", "cache_type_v"),
    option(SLOTS, "--kv-unified/--no-kv-unified", "-kvu/-no-kvu", "kv_unified", env="KV_UNIFIED",
           default=None,
           help="One cache of --ctx-size tokens that all slots share, or one per slot.  [default: "
           "shared; if --ctx-size and --parallel are given, a slot can use an equal part of it, "
           "and has a cache of its own if nothing drafts; one per slot with --exact]"),
    option(SLOTS, "--kv-unified-per-slot", env="KV_UNIFIED_PER_SLOT", type=AT_LEAST_1,
           help="Most tokens of a slot in a cache that all share, which holds N for each unless "
           "--ctx-size says more or less."),
    option(SLOTS, "--cache-prompt/--no-cache-prompt", env="CACHE_PROMPT", default=True,
           help="Reuse the part of a prompt that slots already hold."),
    running(SLOTS, "exact"),
    embedding_options(SLOTS),
    option(SLOTS, "--max-queue", type=COUNT, default=256,
           help="Requests that can wait for a slot; more get 503. With several keys, "
           "a key can use at most as many places as it leaves free; more get 429."),
    option(SLOTS, "--kept-memory", type=SizeType(0), default="1G", metavar="SIZE",
           help="Memory for what drafters of other keys, namespaces and sizes learned; beyond it, "
           "the key that holds most loses its oldest."),
    option(SERVER, "--host", env="HOST", default="127.0.0.1", metavar="HOST",
           help="Addresses to listen on, comma-separated; paths ending in .sock are Unix sockets."),
    option(SERVER, "--port", env="PORT", type=click.IntRange(0, 65535), default=8080,
           help="0: any free port."),
    option(SERVER, "--reuse-port", env="REUSE_PORT", is_flag=True,
           help="Let other processes listen on the same port."),
    option(SERVER, "--api-prefix", env="API_PREFIX", default="", metavar="/PATH",
           help="What all paths begin with."),
    option(SERVER, "--ui/--no-ui", "--webui/--no-webui", "ui", env=("UI", "WEBUI"), default=True,
           help="The page at /."),
    option(SERVER, "-to", "--timeout", env="TIMEOUT", type=ABOVE_0,
           default=3600.0, help="Seconds a request can run."),
    option(SERVER, "--queue-timeout", type=ABOVE_0, default=600.0,
           help="Seconds a request can wait for a slot."),
    option(SERVER, "--slow-client-timeout", type=ABOVE_0, default=30.0,
           help="Seconds a client can leave its stream unread."),
    option(SERVER, "--drain-timeout", type=SECONDS, default=30.0,
           help="Seconds that running requests get to finish at shutdown."),
    option(SERVER, "--stall-timeout", type=SECONDS, default=600.0,
           help="Seconds a decode can take before the server reports failure; after twice that it "
           "exits. 0: no limit."),
    option(SERVER, "--sse-ping-interval", env="SSE_PING_INTERVAL", type=NumberRange(-1),
           default=30.0, help="Seconds of silence before a stream gets a ping; -1: none."),
    option(SERVER, "--max-connections", type=AT_LEAST_1, default=512,
           help="Open connections; beyond that, the one that has waited longest for its client is "
           "closed."),
    option(SERVER, "--max-body", type=SizeType(1024), default="32M", metavar="SIZE",
           help="Largest request body."),
    option(SERVER, "--max-prompt-tokens", type=AT_LEAST_1,
           help="Longest prompt in tokens.  [default: the context]"),
    option(SERVER, "--max-generations", type=AT_LEAST_1, default=32,
           help="Largest number of prompts times choices in one request."),
    option(SERVER, "--ssl-key-file", env="SSL_KEY_FILE", type=FILE, help="Private key in PEM."),
    option(SERVER, "--ssl-cert-file", env="SSL_CERT_FILE", type=FILE, help="Certificate in PEM."),
    option(ACCESS, "--api-key", env="LLAMA_API_KEY", multiple=True, metavar="KEY",
           help="Keys that requests must send, comma-separated (repeatable). Visible in the "
           "process list: prefer --api-key-file, or the variable LLAMA_API_KEY."),
    option(ACCESS, "--api-key-file", env="API_KEY_FILE", type=FILE,
           help="File with one key per line; lines that begin with # are skipped. A change is "
           "taken up while the server runs."),
    option(ACCESS, "--pool-per-key/--share-between-keys", "pool_per_key", default=None,
           help="Use what is learned from one key's requests, and its cached prompts, for that key "
           "only.  [default: if there are several keys]"),
    option(ACCESS, "--metrics/--no-metrics", env="ENDPOINT_METRICS", default=None,
           help="GET /metrics, for any key.  [default: if there is one key, or keys share]"),
    option(ACCESS, "--slots/--no-slots", env="ENDPOINT_SLOTS", default=None,
           help="GET /slots and the page's live figures, for any key.  [default: as --metrics; "
           "live figures also without keys if --host is this machine only]"),
    option(ACCESS, "--props", env="ENDPOINT_PROPS", is_flag=True, help="Allow POST /props."),
    option(ACCESS, "--allow-host", multiple=True, metavar="NAME",
           help="Host names that the server answers to, comma-separated (repeatable); .NAME: all "
           "below it; *: any. Not needed for addresses, names without a dot, names of the local "
           "network, or with API keys."),
    option(ACCESS, "--cors-origins", env="CORS_ORIGINS", metavar="ORIGINS", default="",
           help="Comma-separated origins whose pages can send requests, or *; others are refused."),
    option(DEFAULTS, "-n", "--predict", "--n-predict", "predict", env="N_PREDICT",
           type=click.IntRange(-2), default=-1,
           help="Largest number of tokens of an answer; -1: until the context is full, or without "
           "limit if it shifts; -2: until it is full in any case."),
    option(DEFAULTS, "-s", "--seed", type=click.IntRange(-1, 2**32 - 1), default=-1,
           help="-1: random."),
    option(DEFAULTS, "--samplers", default="", metavar="LIST",
           help="Samplers in their order, with ; between them.  [default: "
           "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature]"),
    option(DEFAULTS, "--sampler-seq", "--sampling-seq", "sampler_seq", default="",
           metavar="LETTERS",
           help="The same with a letter for each, such as edskypmxt."),
    option(DEFAULTS, "--temp", "--temperature", "temperature", env="TEMPERATURE",
           type=NumberRange(0, clamp=True), default=0.8, help="0 is greedy."),
    option(DEFAULTS, "--top-k", env="TOP_K", type=click.IntRange(0, clamp=True), default=40,
           help="0: off."),
    option(DEFAULTS, "--top-p", env="TOP_P", type=SHARE, default=0.95,
           help="1: off."),
    option(DEFAULTS, "--min-p", env="MIN_P", type=SHARE, default=0.05,
           help="0: off."),
    option(DEFAULTS, "--top-nsigma", "--top-n-sigma", "top_n_sigma", type=NumberRange(-1),
           default=-1.0, help="-1: off."),
    option(DEFAULTS, "--typical", "--typical-p", "typical_p", type=SHARE,
           default=1.0, help="1: off."),
    option(DEFAULTS, "--xtc-probability", type=SHARE, default=0.0,
           help="0: off."),
    option(DEFAULTS, "--xtc-threshold", type=SHARE, default=0.1),
    option(DEFAULTS, "--repeat-last-n", type=click.IntRange(-1), default=64,
           help="Last tokens to penalize; -1: all."),
    option(DEFAULTS, "--repeat-penalty", env="REPEAT_PENALTY",
           type=ABOVE_0, default=1.0, help="1: off."),
    option(DEFAULTS, "--presence-penalty", env="PRESENCE_PENALTY", type=float, default=0.0,
           metavar="N", help="0: off."),
    option(DEFAULTS, "--frequency-penalty", env="FREQUENCY_PENALTY", type=float, default=0.0,
           metavar="N", help="0: off."),
    option(DEFAULTS, "--dry-multiplier", type=SECONDS, default=0.0, help="0: off."),
    option(DEFAULTS, "--dry-base", type=NumberRange(1), default=1.75),
    option(DEFAULTS, "--dry-allowed-length", type=COUNT, default=2),
    option(DEFAULTS, "--dry-penalty-last-n", type=click.IntRange(-1), default=-1,
           help="-1: all."),
    option(DEFAULTS, "--dry-sequence-breaker", multiple=True, metavar="TEXT",
           help='Replaces newline, ":", a quote and "*" (repeatable); none: no breaker.'),
    option(DEFAULTS, "--dynatemp-range", type=SECONDS, default=0.0, help="0: off."),
    option(DEFAULTS, "--dynatemp-exp", "dynatemp_exponent", type=SECONDS, default=1.0),
    option(DEFAULTS, "--mirostat", type=click.IntRange(0, 2), default=0, help="0: off."),
    option(DEFAULTS, "--mirostat-lr", "mirostat_eta", type=SECONDS, default=0.1),
    option(DEFAULTS, "--mirostat-ent", "mirostat_tau", type=SECONDS, default=5.0),
    option(DEFAULTS, "--ignore-eos", is_flag=True, help="Continue past end tokens."),
    option(DEFAULTS, "-l", "--logit-bias", multiple=True, metavar="ID+BIAS",
           help="Make a token likelier (15043+1) or less likely (15043-1), by its id "
           "(repeatable)."),
    grammar_options(DEFAULTS),
    option(DEFAULTS, "-sp", "--special", is_flag=True, help="Show special tokens in answers."),
    option(DEFAULTS, "--escape/--no-escape", "-e/ ", "escape", default=True,
           help="Read \\n, \\t and the like in stop texts and breakers as what they stand for."),
    option(DEFAULTS, "-r", "--reverse-prompt", multiple=True, metavar="TEXT",
           help="Stop text for requests that give none (repeatable)."),
    option(DEFAULTS, "-sys", "--system-prompt", metavar="TEXT", default="",
           help="System message for chats that have none."),
    option(DEFAULTS, "--reasoning-format", env="THINK", default="auto",
           type=click.Choice(["auto", "deepseek", "deepseek-legacy", "none"]),
           help="Return reasoning as reasoning_content, or leave it in the content (none)."),
    option(DEFAULTS, "-rea", "--reasoning", env="REASONING", type=Switch(), default="auto",
           metavar="[on|off|auto]", help="Let the model think, if its template can say so."),
    option(DEFAULTS, "--reasoning-effort", env="REASONING_EFFORT", metavar="LEVEL",
           help="How much, for templates that know: low, medium, high, ..., or default."),
    option(DEFAULTS, "--reasoning-preserve/--no-reasoning-preserve", env="REASONING_PRESERVE",
           default=None, help="Show the model what it thought before, if its template can."),
    option(DEFAULTS, "--prefill-assistant/--no-prefill-assistant", env="PREFILL_ASSISTANT",
           default=True, help="Continue an assistant's message that ends a chat."),
    option(DEFAULTS, "--spm-infill", is_flag=True, help="/infill: suffix before prefix."),
    option(SESSIONS, "--context-shift/--no-context-shift", env="CONTEXT_SHIFT", default=False,
           help="When a slot's context is full, discard the older half of it and go on, "
           "instead of ending the answer."),
    option(SESSIONS, "--slot-save-path", metavar="FOLDER",
           type=click.Path(exists=True, file_okay=False, path_type=Path),
           help="Folder for slots that clients save: POST /slots/0?action=save, restore or "
           "erase.  [default: slots cannot be saved]"),
    option(SESSIONS, "--keep", type=click.IntRange(-1), default=0,
           help="Tokens at the start of the prompt that are never discarded; -1: all of it."),
    option(SESSIONS, "--reasoning-budget", env="THINK_BUDGET", type=click.IntRange(-1),
           default=-1,
           help="Tokens of reasoning in a chat, after which its end is written for the model; "
           "0: no reasoning; -1: any number."),
    option(SESSIONS, "--reasoning-budget-message", env="THINK_BUDGET_MESSAGE", metavar="TEXT",
           default="", help="Text to write before that end."),
    recording_options(),
    option(OUTPUT, "--log-level", metavar="LEVEL",
           type=click.Choice(["debug", "info", "warning", "error"]),
           help="Log level on stderr: debug, info, warning or error. info has a line for each "
           "finished request.  [default: info]"),
    option(OUTPUT, "-v", "--verbose", "--log-verbose", is_flag=True,
           help="The same as --log-level debug; answers have __verbose, and statistics are "
           "llama-server's lines."),
    option(OUTPUT, "-lv", "--verbosity", "--log-verbosity", "verbosity", env="LOG_VERBOSITY",
           type=int, default=3, hidden=True),
    option(OUTPUT, "--log-disable", is_flag=True, hidden=True),
    option(OUTPUT, "--log-file", env="LOG_FILE", type=FILE,
           help="Write the log here as well, with what the server tells at its start and end. If "
           "the file is moved away, a new one begins."),
    option(OUTPUT, "--access-log", is_flag=True, help="A line per HTTP request: path and status."),
    option(OUTPUT, "--stats-interval", type=SECONDS, default=0.0,
           help="Seconds between statistics lines; 0: at the end and at SIGUSR1."),
    lora_options(),
    placement_options(),
    loading_options(),
    thread_options(),
    rope_options(),
    drafter_options(),
    draft_model_options(),
    preset_options(),
    other_flags(),
    click.version_option(__version__, "--version", prog_name="ngramspec", hidden=True),
    click.help_option("--usage", hidden=True),
    option(OUTPUT, "--config", type=FILE, is_eager=True, expose_value=False, callback=take_config,
           help="File with options, in YAML or TOML."),
)  # fmt: skip
@click.pass_context
def serve(ctx: click.Context, /, **values: Any) -> None:
    """Serve a GGUF model over HTTP, with drafts.

    The routes are OpenAI's (/v1/chat/completions, /v1/responses, ...), Anthropic's (/v1/messages),
    llama-server's (/completion, /infill, /tokenize, /slots, ...) and Ollama's (/api/chat,
    /api/generate, /api/tags, ...). Requests can set the fields speculative.*:

    \b
    https://github.com/ngramspec/ngramspec/tree/main/docs/reference/server/drafts.md
    """
    _take_path(ctx, values)
    take_preset(ctx, values)
    values["model"] = downloaded_model(
        values["model"], values.pop("hf_repo"), values.pop("hf_file"), "--model"
    )
    take_recipe(ctx, values)
    take_whole(ctx, values)
    drafts = take_drafts(values, values["parallel"])
    if values["kv_unified"] is None:
        _choose_cache(values, SLOTS_ARE_AUTO in ctx.meta, drafts.any)
    _refuse(values)
    try:
        from ngramspec.cli.serve.run import run
    except ImportError as error:
        raise Failure(not_installed(f"serve needs {error.name}", "server")) from error
    run(values, drafts)


def _take_path(ctx: click.Context, values: dict[str, Any]) -> None:
    """Remove MODEL from the values and set `model` to it, if it was given."""
    path = values.pop("path")
    if path is None:
        return
    if values["model"] != path and (
        ctx.get_parameter_source("model") is ParameterSource.COMMANDLINE
    ):
        raise click.UsageError(f"the model is either {path} or {values['model']}: name one")
    values["model"] = path


def _choose_cache(values: dict[str, Any], auto: bool, drafts: bool) -> None:
    """Choose between a cache for all slots and one for each, as nobody said which."""
    from ngramspec.llamacpp.settings import lay_out

    slots, total, each = values["parallel"], values["ctx_size"], values["kv_unified_per_slot"] or 0
    if not auto:
        each = each or total // slots
    layout = lay_out(slots, total, each, drafts=drafts, exact=values["exact"])
    values["kv_unified"] = layout.kv_unified
    if layout.kv_unified:
        values["kv_unified_per_slot"] = each or None


def _refuse(values: dict[str, Any]) -> None:
    if values["chat_template"] and values["chat_template_file"]:
        raise click.UsageError("give either --chat-template or --chat-template-file")
    if bool(values["ssl_key_file"]) != bool(values["ssl_cert_file"]):
        raise click.UsageError("--ssl-key-file and --ssl-cert-file belong together")
    if values["ssl_key_file"]:
        _check_certificate(values["ssl_cert_file"], values["ssl_key_file"])


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
