"""The options of `ngramspec serve`: llama-server's names where the meaning is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ngramspec.cli.options import Function, drafter_options
from ngramspec.cli.sizes import SizeType
from ngramspec.cli.target_options import option, running

MODEL, SLOTS, DEFAULTS = "Model", "Slots and batches", "Defaults for requests"
SERVER, ACCESS, DRAFT_MODEL, OUTPUT = "Server", "Access", "Draft model", "Output"
FILE = click.Path(path_type=Path)
COUNT, SECONDS = click.IntRange(0), click.FloatRange(0)
# What the options of the drafters have beside their names for `generate`.
MORE_FLAGS = {"pool_file": "--pool"}
VARIABLES = {"spec_type": "LLAMA_ARG_SPEC_TYPE"}


OPTIONS: tuple[Any, ...] = (
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
           help="Context of all slots together, in tokens; 0: as trained for each.",
           show_default=True),
    option(SLOTS, "-np", "--parallel", env="N_PARALLEL", type=click.IntRange(1, 256), default=4,
           help="Slots: requests that run at the same time."),
    running(SLOTS, "batch_size"),
    running(SLOTS, "ubatch_size"),
    running(SLOTS, "threads"),
    running(SLOTS, "threads_batch"),
    running(SLOTS, "flash_attn"),
    running(SLOTS, "cache_type_k"),
    running(SLOTS, "cache_type_v"),
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
    option(SERVER, "-to", "--timeout", env="TIMEOUT", type=click.FloatRange(0, min_open=True),
           default=3600.0, help="Seconds a request may run."),
    option(SERVER, "--queue-timeout", type=click.FloatRange(0, min_open=True), default=600.0,
           help="Seconds it may wait for a slot."),
    option(SERVER, "--slow-client-timeout", type=click.FloatRange(0, min_open=True), default=30.0,
           help="Seconds a client may leave its stream unread."),
    option(SERVER, "--drain-timeout", type=SECONDS, default=30.0,
           help="Seconds that running requests get at the end."),
    option(SERVER, "--stall-timeout", type=SECONDS, default=600.0,
           help="Seconds a decode may take before the server counts as failed; after twice as many "
           "it ends. 0: any time."),
    option(SERVER, "--sse-ping-interval", env="SSE_PING_INTERVAL", type=click.FloatRange(-1),
           default=30.0, help="Seconds of silence before a stream gets a ping; -1: none."),
    option(SERVER, "--max-connections", type=click.IntRange(1), default=512,
           help="Open connections; when there are more, the one that waits for its client for "
           "longest is closed."),
    option(SERVER, "--max-body", type=SizeType(1024), default="32M", metavar="SIZE",
           help="Largest body of a request."),
    option(SERVER, "--max-prompt-tokens", type=click.IntRange(1),
           help="Longest prompt in tokens.  [default: the context]"),
    option(SERVER, "--max-generations", type=click.IntRange(1), default=32,
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
    option(ACCESS, "--props", env="ENDPOINT_PROPS", is_flag=True, help="POST /props."),
    option(ACCESS, "--allow-host", multiple=True, metavar="NAME",
           help="Name that clients may call the server by, or several with commas between; .NAME: "
           "all below it; *: any. Addresses, names without a dot and those of the local network "
           "need none, nor do servers with API keys."),
    option(ACCESS, "--cors-origins", env="CORS_ORIGINS", metavar="ORIGINS", default="",
           help="Origins whose pages may ask, with commas between, or *; others are refused."),
    option(DEFAULTS, "-n", "--predict", "--n-predict", "predict", env="N_PREDICT",
           type=click.IntRange(-1), default=-1, show_default=True,
           help="Tokens of an answer; -1: until the context is full."),
    option(DEFAULTS, "-s", "--seed", type=click.IntRange(-1, 2**32 - 1), default=-1,
           help="-1: random.", show_default=True),
    option(DEFAULTS, "--temp", "--temperature", "temperature", env="TEMPERATURE",
           type=click.FloatRange(0), default=0.8, help="0 is greedy."),
    option(DEFAULTS, "--top-k", env="TOP_K", type=COUNT, default=40, help="0: off."),
    option(DEFAULTS, "--top-p", env="TOP_P", type=click.FloatRange(0, 1), default=0.95,
           help="1: off."),
    option(DEFAULTS, "--min-p", env="MIN_P", type=click.FloatRange(0, 1), default=0.05,
           help="0: off."),
    option(DEFAULTS, "--top-nsigma", "--top-n-sigma", "top_n_sigma", type=click.FloatRange(-1),
           default=-1.0, help="-1: off.", show_default=True),
    option(DEFAULTS, "--typical", "--typical-p", "typical_p", type=click.FloatRange(0, 1),
           default=1.0, help="1: off."),
    option(DEFAULTS, "--xtc-probability", type=click.FloatRange(0, 1), default=0.0,
           help="0: off.", show_default=True),
    option(DEFAULTS, "--xtc-threshold", type=click.FloatRange(0, 1), default=0.1),
    option(DEFAULTS, "--repeat-last-n", type=click.IntRange(-1), default=64,
           help="Tokens looked back on; -1: all."),
    option(DEFAULTS, "--repeat-penalty", env="REPEAT_PENALTY",
           type=click.FloatRange(0, min_open=True), default=1.0, help="1: off."),
    option(DEFAULTS, "--presence-penalty", env="PRESENCE_PENALTY", type=float, default=0.0,
           metavar="N", help="0: off.", show_default=True),
    option(DEFAULTS, "--frequency-penalty", env="FREQUENCY_PENALTY", type=float, default=0.0,
           metavar="N", help="0: off.", show_default=True),
    option(DEFAULTS, "--dry-multiplier", type=SECONDS, default=0.0, help="0: off.",
           show_default=True),
    option(DEFAULTS, "--dry-base", type=click.FloatRange(1), default=1.75),
    option(DEFAULTS, "--dry-allowed-length", type=COUNT, default=2),
    option(DEFAULTS, "--dry-penalty-last-n", type=click.IntRange(-1), default=-1,
           help="-1: all.", show_default=True),
    option(DEFAULTS, "--dry-sequence-breaker", multiple=True, metavar="TEXT",
           help='Instead of newline, ":", a quote and "*"; several times for several.'),
    option(DEFAULTS, "--dynatemp-range", type=SECONDS, default=0.0, help="0: off.",
           show_default=True),
    option(DEFAULTS, "--dynatemp-exp", "dynatemp_exponent", type=SECONDS, default=1.0),
    option(DEFAULTS, "--mirostat", type=click.IntRange(0, 2), default=0, help="0: off.",
           show_default=True),
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
    option(DRAFT_MODEL, "--spec-draft-n-max", env="SPEC_DRAFT_N_MAX", type=click.IntRange(1),
           default=3, help="Its longest draft, in tokens."),
    option(DRAFT_MODEL, "--spec-draft-n-min", env="SPEC_DRAFT_N_MIN", type=COUNT, default=0,
           help="Its shortest.", show_default=True),
    option(DRAFT_MODEL, "--spec-draft-p-min", env="SPEC_DRAFT_P_MIN",
           type=click.FloatRange(0, 1), default=0.0, show_default=True,
           help="Its drafts end before a token that is less probable."),
    option(DRAFT_MODEL, "-ngld", "--spec-draft-ngl", "--n-gpu-layers-draft", "n_gpu_layers_draft",
           env="N_GPU_LAYERS_DRAFT", metavar="N", help="Its layers on the GPU.  [default: 0]"),
    option(OUTPUT, "--log-level", default="info", metavar="LEVEL", help="What goes to stderr.",
           type=click.Choice(["debug", "info", "warning", "error"])),
    option(OUTPUT, "--access-log", is_flag=True, help="A line per request."),
    option(OUTPUT, "--stats-interval", type=SECONDS, default=0.0, show_default=True,
           help="Seconds between statistics lines; 0: at the end and at SIGUSR1."),
    # Accepted because start scripts have them; what they ask for is the only way here.
    option(SERVER, "--jinja", is_flag=True, hidden=True),
    option(SERVER, "-cb", "--cont-batching", is_flag=True, hidden=True),
    # Known, and refused with a reason.
    option(SLOTS, "--cache-reuse", env="CACHE_REUSE", type=COUNT, default=0, hidden=True),
)  # fmt: skip


def serve_options(function: Function) -> Function:
    """Add all options of the server to a command, those of the drafters among them."""
    spec_default = option(
        "Drafts", "--spec-default", is_flag=True, help="ngram-mod with 24/48/64, as llama-server."
    )
    drafts: Callable[..., Any] = drafter_options(spec_default(function))
    for param in getattr(drafts, "__click_params__", ()):
        if param.name in MORE_FLAGS:
            param.opts.append(MORE_FLAGS[param.name])
        if param.name in VARIABLES:
            param.envvar = VARIABLES[param.name]
    for one in reversed(OPTIONS):
        drafts = one(drafts)
    return drafts  # type: ignore[return-value]
