"""`ngramspec serve`: an inference server with drafts, for OpenAI's and llama-server's clients."""

from __future__ import annotations

from typing import Any

import click

from ngramspec.cli.command import Failure, SectionCommand
from ngramspec.cli.drafts import DraftChoice, drafter_options, take_draft_choice
from ngramspec.cli.options import (
    AT_LEAST_1,
    COUNT,
    FILE,
    Function,
    SizeType,
    option,
    options,
)
from ngramspec.cli.serve.config import take_config
from ngramspec.cli.serve.ollama import take_recipe
from ngramspec.cli.target import running

MODEL, SLOTS, DEFAULTS = "Model", "Slots and batches", "Defaults for requests"
SERVER, ACCESS, DRAFT_MODEL, OUTPUT = "Server", "Access", "Draft model", "Output"
SECONDS, SHARE = click.FloatRange(0), click.FloatRange(0, 1)
ABOVE_0 = click.FloatRange(0, min_open=True)
# What the options of the drafters have beside their names for `generate`.
MORE_FLAGS = {"pool_file": "--pool"}
VARIABLES = {"spec_type": "LLAMA_ARG_SPEC_TYPE"}
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


def _as_llama_server(function: Function) -> Function:
    """Give the drafters' options what llama-server has: further names, environment variables."""
    for param in getattr(function, "__click_params__", ()):
        if param.name in MORE_FLAGS:
            param.opts.append(MORE_FLAGS[param.name])
        if param.name in VARIABLES:
            param.envvar = VARIABLES[param.name]
    return function


@click.command(
    cls=SectionCommand,
    epilog=EPILOG,
    context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
)
@options(
    option(MODEL, "-m", "--model", env="MODEL", type=FILE,
           help="GGUF file, name of a model that Ollama has pulled, or Modelfile; without it the "
           "embedded model."),
    option(MODEL, "--modelfile", type=FILE, help="Modelfile with FROM, PARAMETER, SYSTEM, ..."),
    option(MODEL, "-a", "--alias", env="ALIAS", multiple=True, metavar="NAME",
           help="Name of the model for clients; further ones after commas."
           "  [default: the file's name]"),
    running(MODEL, "n_gpu_layers"),
    option(MODEL, "--mmap/--no-mmap", env="MMAP", default=True, help="Map the file."),
    option(MODEL, "--mlock", env="MLOCK", is_flag=True, help="Keep the model in memory."),
    option(MODEL, "--chat-template", env="CHAT_TEMPLATE", metavar="JINJA",
           help="Chat template instead of the model's; or: chatml."),
    option(MODEL, "--chat-template-file", env="CHAT_TEMPLATE_FILE", type=FILE,
           help="File with such a template."),
    option(MODEL, "--chat-template-kwargs", env="CHAT_TEMPLATE_KWARGS", metavar="JSON",
           help="Further variables of the template."),
    option(SLOTS, "-c", "--ctx-size", env="CTX_SIZE", type=COUNT, default=0,
           help="Context of all slots together, in tokens; 0: as trained for each."),
    option(SLOTS, "-np", "--parallel", env="N_PARALLEL", type=click.IntRange(1, 256), default=4,
           help="Slots: requests that run at the same time."),
    running(SLOTS, "batch_size", "ubatch_size", "threads", "threads_batch", "flash_attn",
            "cache_type_k", "cache_type_v"),
    option(SLOTS, "--kv-unified/--no-kv-unified", "-kvu/-no-kvu", "kv_unified", env="KV_UNIFIED",
           default=False,
           help="One cache of --ctx-size tokens that all slots share, or one for each."),
    option(SLOTS, "--cache-prompt/--no-cache-prompt", env="CACHE_PROMPT", default=True,
           help="Reuse what slots hold of a prompt."),
    running(SLOTS, "exact"),
    option(SLOTS, "--max-queue", type=COUNT, default=256,
           help="Requests that may wait for a slot; more get 503. With several keys, "
           "each may have no more than there are places left; more get 429."),
    option(SLOTS, "--kept-memory", type=SizeType(0), default="1G", metavar="SIZE",
           help="Memory for what is learned under several keys, namespaces and sizes of drafters; "
           "beyond it, whoever has most loses its oldest."),
    option(SERVER, "--host", env="HOST", default="127.0.0.1", metavar="HOST",
           help="Address to listen on, or the path of a Unix socket ending in .sock."),
    option(SERVER, "--port", env="PORT", type=click.IntRange(0, 65535), default=8080,
           help="0: any free one."),
    option(SERVER, "-to", "--timeout", env="TIMEOUT", type=ABOVE_0,
           default=3600.0, help="Seconds a request may run."),
    option(SERVER, "--queue-timeout", type=ABOVE_0, default=600.0,
           help="Seconds it may wait for a slot."),
    option(SERVER, "--slow-client-timeout", type=ABOVE_0, default=30.0,
           help="Seconds a client may leave its stream unread."),
    option(SERVER, "--drain-timeout", type=SECONDS, default=30.0,
           help="Seconds that running requests get at the end."),
    option(SERVER, "--stall-timeout", type=SECONDS, default=600.0,
           help="Seconds a decode may take before the server counts as failed; after twice as many "
           "it ends. 0: any time."),
    option(SERVER, "--sse-ping-interval", env="SSE_PING_INTERVAL", type=click.FloatRange(-1),
           default=30.0, help="Seconds of silence before a stream gets a ping; -1: none."),
    option(SERVER, "--max-connections", type=AT_LEAST_1, default=512,
           help="Open connections; when there are more, the one that waits for its client for "
           "longest is closed."),
    option(SERVER, "--max-body", type=SizeType(1024), default="32M", metavar="SIZE",
           help="Largest body of a request."),
    option(SERVER, "--max-prompt-tokens", type=AT_LEAST_1,
           help="Longest prompt in tokens.  [default: the context]"),
    option(SERVER, "--max-generations", type=AT_LEAST_1, default=32,
           help="Prompts times choices of one request."),
    option(SERVER, "--ssl-key-file", env="SSL_KEY_FILE", type=FILE, help="Private key in PEM."),
    option(SERVER, "--ssl-cert-file", env="SSL_CERT_FILE", type=FILE, help="Certificate in PEM."),
    option(ACCESS, "--api-key", env="LLAMA_API_KEY", multiple=True, metavar="KEY",
           help="Key that requests must bring, or several with commas between. Others can see it "
           "in the list of processes: better a file or the variable."),
    option(ACCESS, "--api-key-file", env="API_KEY_FILE", type=FILE,
           help="File with one key per line; lines that begin with # are left out."),
    option(ACCESS, "--pool-per-key/--share-between-keys", "pool_per_key", default=None,
           help="Whether what is learned from one key's requests, and the cache of its prompts, is "
           "for that key alone.  [default: it is, where there are several keys]"),
    option(ACCESS, "--metrics/--no-metrics", env="ENDPOINT_METRICS", default=None,
           help="GET /metrics, for any key; by default where there is one key, or keys share."),
    option(ACCESS, "--slots/--no-slots", env="ENDPOINT_SLOTS", default=None,
           help="GET /slots and live figures, for any key; by default as --metrics."),
    option(ACCESS, "--props", env="ENDPOINT_PROPS", is_flag=True, help="Allow POST /props."),
    option(ACCESS, "--allow-host", multiple=True, metavar="NAME",
           help="Name that clients may call the server by, or several with commas between; .NAME: "
           "all below it; *: any. Addresses, names without a dot and those of the local network "
           "need none, nor do servers with API keys."),
    option(ACCESS, "--cors-origins", env="CORS_ORIGINS", metavar="ORIGINS", default="",
           help="Origins whose pages may ask, with commas between, or *; others are refused."),
    option(DEFAULTS, "-n", "--predict", "--n-predict", "predict", env="N_PREDICT",
           type=click.IntRange(-1), default=-1,
           help="Tokens of an answer; -1: until the context is full."),
    option(DEFAULTS, "-s", "--seed", type=click.IntRange(-1, 2**32 - 1), default=-1,
           help="-1: random."),
    option(DEFAULTS, "--temp", "--temperature", "temperature", env="TEMPERATURE",
           type=click.FloatRange(0), default=0.8, help="0 is greedy."),
    option(DEFAULTS, "--top-k", env="TOP_K", type=COUNT, default=40, help="0: off."),
    option(DEFAULTS, "--top-p", env="TOP_P", type=SHARE, default=0.95,
           help="1: off."),
    option(DEFAULTS, "--min-p", env="MIN_P", type=SHARE, default=0.05,
           help="0: off."),
    option(DEFAULTS, "--top-nsigma", "--top-n-sigma", "top_n_sigma", type=click.FloatRange(-1),
           default=-1.0, help="-1: off."),
    option(DEFAULTS, "--typical", "--typical-p", "typical_p", type=SHARE,
           default=1.0, help="1: off."),
    option(DEFAULTS, "--xtc-probability", type=SHARE, default=0.0,
           help="0: off."),
    option(DEFAULTS, "--xtc-threshold", type=SHARE, default=0.1),
    option(DEFAULTS, "--repeat-last-n", type=click.IntRange(-1), default=64,
           help="Tokens looked back on; -1: all."),
    option(DEFAULTS, "--repeat-penalty", env="REPEAT_PENALTY",
           type=ABOVE_0, default=1.0, help="1: off."),
    option(DEFAULTS, "--presence-penalty", env="PRESENCE_PENALTY", type=float, default=0.0,
           metavar="N", help="0: off."),
    option(DEFAULTS, "--frequency-penalty", env="FREQUENCY_PENALTY", type=float, default=0.0,
           metavar="N", help="0: off."),
    option(DEFAULTS, "--dry-multiplier", type=SECONDS, default=0.0, help="0: off."),
    option(DEFAULTS, "--dry-base", type=click.FloatRange(1), default=1.75),
    option(DEFAULTS, "--dry-allowed-length", type=COUNT, default=2),
    option(DEFAULTS, "--dry-penalty-last-n", type=click.IntRange(-1), default=-1,
           help="-1: all."),
    option(DEFAULTS, "--dry-sequence-breaker", multiple=True, metavar="TEXT",
           help='Instead of newline, ":", a quote and "*"; several times for several.'),
    option(DEFAULTS, "--dynatemp-range", type=SECONDS, default=0.0, help="0: off."),
    option(DEFAULTS, "--dynatemp-exp", "dynatemp_exponent", type=SECONDS, default=1.0),
    option(DEFAULTS, "--mirostat", type=click.IntRange(0, 2), default=0, help="0: off."),
    option(DEFAULTS, "--mirostat-lr", "mirostat_eta", type=SECONDS, default=0.1),
    option(DEFAULTS, "--mirostat-ent", "mirostat_tau", type=SECONDS, default=5.0),
    option(DEFAULTS, "--ignore-eos", is_flag=True, help="Go on after end tokens."),
    option(DEFAULTS, "-r", "--reverse-prompt", multiple=True, metavar="TEXT",
           help="Stop text of requests that have none."),
    option(DEFAULTS, "-sys", "--system-prompt", metavar="TEXT", default="",
           help="System message of chats that have none."),
    option(DEFAULTS, "--reasoning-format", env="THINK", default="auto",
           type=click.Choice(["auto", "deepseek", "none"]),
           help="Tell <think> text apart as reasoning_content, or leave it in the content."),
    option(DEFAULTS, "--spm-infill", is_flag=True, help="/infill: suffix before prefix."),
    option(DRAFT_MODEL, "-md", "--model-draft", "--spec-draft-model", "model_draft",
           env="SPEC_DRAFT_MODEL", type=FILE,
           help="Small GGUF model of the same vocabulary, asked where no n-gram is known."),
    option(DRAFT_MODEL, "--spec-draft-n-max", env="SPEC_DRAFT_N_MAX", type=AT_LEAST_1,
           default=3, help="Its longest draft, in tokens."),
    option(DRAFT_MODEL, "--spec-draft-n-min", env="SPEC_DRAFT_N_MIN", type=COUNT, default=0,
           help="Its shortest draft, in tokens."),
    option(DRAFT_MODEL, "--spec-draft-p-min", env="SPEC_DRAFT_P_MIN",
           type=SHARE, default=0.0,
           help="Its drafts end before a token that is less probable."),
    option(DRAFT_MODEL, "-ngld", "--spec-draft-ngl", "--n-gpu-layers-draft", "n_gpu_layers_draft",
           env="N_GPU_LAYERS_DRAFT", metavar="N", help="Its layers on the GPU.  [default: 0]"),
    option(OUTPUT, "--log-level", default="info", metavar="LEVEL", help="What goes to stderr.",
           type=click.Choice(["debug", "info", "warning", "error"])),
    option(OUTPUT, "--access-log", is_flag=True, help="A line per request."),
    option(OUTPUT, "--stats-interval", type=SECONDS, default=0.0,
           help="Seconds between statistics lines; 0: at the end and at SIGUSR1."),
    # Accepted because start scripts have them; what they ask for is the only way here.
    option(SERVER, "--jinja", is_flag=True, hidden=True),
    option(SERVER, "-cb", "--cont-batching", is_flag=True, hidden=True),
    # Known, and refused with a reason.
    option(SLOTS, "--cache-reuse", env="CACHE_REUSE", type=COUNT, default=0, hidden=True),
    _as_llama_server,
    drafter_options(),
    option("Drafts", "--spec-default", is_flag=True,
           help="ngram-mod with 24/48/64, as llama-server."),
    option(OUTPUT, "--config", type=FILE, is_eager=True, expose_value=False, callback=take_config,
           help="File with options, in YAML or TOML."),
)  # fmt: skip
@click.pass_context
def serve(ctx: click.Context, /, **values: Any) -> None:
    """Serve a GGUF model over HTTP, with drafts.

    The routes are OpenAI's (/v1/chat/completions, /v1/completions, /v1/models),
    llama-server's (/completion, /infill, /tokenize, /slots, ...) and Ollama's (/api/chat,
    /api/generate, /api/tags, ...). Requests may set the fields speculative.* for themselves;
    `docs/server.md` lists them.
    """
    take_recipe(ctx, values)
    choice = _take_choice(values)
    _refuse(values)
    try:
        from ngramspec.cli.serve.run import run
    except ImportError as error:
        raise Failure(
            f"serve needs {error.name}, which is not installed: pip install 'ngramspec[server]'"
        ) from error
    run(values, choice)


def _take_choice(values: dict[str, Any]) -> DraftChoice:
    """Return the drafters; --spec-default stands for a list of one."""
    if values.pop("spec_default") and not values["spec_type"]:
        values["spec_type"] = ("ngram-mod",)
    names = ",".join(values["spec_type"]).split(",")
    if "draft-simple" in names:  # llama-server's word for a draft model
        if values["model_draft"] is None:
            raise click.UsageError("--spec-type draft-simple needs --model-draft")
        values["spec_type"] = tuple(n for n in names if n != "draft-simple") or ("none",)
    return take_draft_choice(values)


def _refuse(values: dict[str, Any]) -> None:
    if values.pop("cache_reuse"):
        raise click.UsageError(
            "--cache-reuse: chunks cannot be moved within the cache; prefixes are reused anyway"
        )
    if values["exact"] and values["model_draft"] is not None:
        raise click.UsageError("--exact is for n-gram drafters: drop --model-draft")
    if values["chat_template"] and values["chat_template_file"]:
        raise click.UsageError("give either --chat-template or --chat-template-file")
    if bool(values["ssl_key_file"]) != bool(values["ssl_cert_file"]):
        raise click.UsageError("--ssl-key-file and --ssl-cert-file belong together")
