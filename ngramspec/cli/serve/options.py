"""The options of `ngramspec serve`, with llama-server's names; --config FILE sets them too."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.draft_model import AllDraftOptions
from ngramspec.cli.files import read_utf8
from ngramspec.cli.model import LoraOptions, ModelOptions
from ngramspec.cli.options import (
    AUTO,
    AutoRange,
    NamedPath,
    SizeType,
    Switch,
    argument,
    complete_model,
    flag,
)
from ngramspec.cli.target import FitOptions, RopeOptions, SamplingOptions, TargetOptions
from ngramspec.drafting.names import nearest
from ngramspec.errors import InputError
from ngramspec.lab.recordings.writer import LEAST_BYTES
from ngramspec.messages import not_installed

if TYPE_CHECKING:
    from ngramspec.models.ollama.recipe import Recipe

AUTO_SLOTS = 4


def take_config(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Make the values in a file the defaults of the command's options.

    Raises:
        click.BadParameter: The file names an option that does not exist, or gives it no value.
        InputError: It is not YAML or TOML, or does not hold a table.
        OSError: It cannot be read.
    """
    if path is not None:
        ctx.default_map = {**(ctx.default_map or {}), **_defaults(ctx, param, read_config(path))}
    return path


def read_config(path: Path) -> dict[str, Any]:
    """Return the table in a file: TOML if its name ends in .toml, otherwise YAML.

    Raises:
        As take_config.
    """
    text = read_utf8(path)
    try:
        read = _read_toml(text) if path.suffix == ".toml" else _read_yaml(text)
    except ImportError as error:
        raise InputError(not_installed(f"{path} needs {error.name}", "server")) from error
    except Exception as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not isinstance(read, dict):
        raise InputError(f"{path} must hold option names and values")
    return read


def _read_toml(text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def _read_yaml(text: str) -> Any:
    import yaml

    return yaml.safe_load(text) or {}


def _defaults(ctx: click.Context, param: click.Parameter, table: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a table by parameter name."""
    options: dict[str, click.Parameter] = {}
    for one in ctx.command.params:
        for name in (*one.opts, *one.secondary_opts):
            options[_bare(name)] = one
    defaults = {}
    for name, value in table.items():
        key = _bare(str(name))
        option = options.get(key)
        if option is None or option is param or option.name is None:
            raise click.BadParameter(f"no option {name!r}; {nearest(key, options)}", ctx, param)
        if value is None or (isinstance(value, list) and None in value):
            raise click.BadParameter(f"{name} has no value", ctx, param)
        if key in map(_bare, option.secondary_opts):
            value = not value
        defaults[option.name] = _shaped(value, option)
    return defaults


def _bare(flag: str) -> str:
    """Return an option's name without the hyphens before it."""
    return flag.lstrip("-").replace("_", "-")


def _shaped(value: Any, param: click.Parameter) -> Any:
    """Return a value as the option takes it: a list if repeatable, otherwise joined by commas."""
    if param.multiple:
        return [str(one) for one in (value if isinstance(value, list) else [value])]
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, bool) and not isinstance(param.type, click.types.BoolParamType):
        return "on" if value else "off"  # YAML reads on and off as booleans
    return value


@dataclass
class ServedModelOptions(ModelOptions):
    """The model, and what clients see of it."""

    section = "Model"
    # fmt: off
    path: Path | None = argument(required=False, metavar="[MODEL]", shell_complete=complete_model)
    modelfile: Path | None = flag("--modelfile", "Modelfile with FROM, PARAMETER, SYSTEM, ...")
    alias: tuple[str, ...] = flag("-a --alias", "Names of the model for clients, comma-separated "
        "(repeatable); the first in the alphabet is its id.  [default: the file's name]",
        env="ALIAS", default=(), metavar="NAME")
    tags: str = flag("--tags", "Tags that /v1/models lists, comma-separated.", env="TAGS",
        default="", metavar="NAMES")
    chat_template: str | None = flag("--chat-template", "Chat template instead of the model's, or "
        "the name of one of llama.cpp's.", env="CHAT_TEMPLATE", metavar="JINJA")
    chat_template_file: Path | None = flag(
        "--chat-template-file", "File with a chat template.", env="CHAT_TEMPLATE_FILE")
    chat_template_kwargs: str | None = flag("--chat-template-kwargs", "Further variables for the "
        "template.", env="CHAT_TEMPLATE_KWARGS", metavar="JSON")


@dataclass
class SlotOptions(FitOptions):
    """How many requests run at the same time, and how they share the context."""

    section = "Slots"
    # fmt: off
    ctx_size: int | None = flag(
        "-c --ctx-size", "Context of all slots together, in tokens; 0: the trained size.  "
        "[default: the trained size, cut to free memory]", env="CTX_SIZE", low=0)
    parallel: int | None = flag(
        "-np --parallel", f"Requests that run at the same time; auto or -1: {AUTO_SLOTS}.",
        env="N_PARALLEL", default="auto", type=AutoRange(1, 256, *AUTO))
    kv_unified: bool | None = flag("--kv-unified/--no-kv-unified -kvu/-no-kvu", "One cache of "
        "--ctx-size tokens that all slots share, or one per slot.  [default: shared; one per slot "
        "with --exact, and without drafts if --ctx-size and --parallel are given]",
        env="KV_UNIFIED")
    kv_unified_per_slot: int | None = flag(
        "--kv-unified-per-slot", "Most tokens of a slot in a cache that all share; without "
        "--ctx-size the cache holds N for each.  [default: an equal part if --ctx-size and "
        "--parallel are given, else all]", env="KV_UNIFIED_PER_SLOT", low=1)
    cache_prompt: bool = flag("--cache-prompt/--no-cache-prompt", "Reuse the part of a prompt that "
        "slots already hold.", env="CACHE_PROMPT", default=True)
    embeddings: bool = flag(
        "--embeddings --embedding", "Vectors of texts too, of up to --ubatch-size tokens: "
        "/v1/embeddings, /embeddings, /api/embed.", env="EMBEDDINGS", default=False)
    pooling: str | None = flag(
        "--pooling", "How vectors of tokens become one of the text.  [default: as the model says]",
        env="POOLING", choices=("none", "mean", "cls", "last", "rank"))
    embd_normalize: int = flag("--embd-normalize", "Length of vectors: -1 as they are, 0 largest "
        "number 32760, else the p-norm.", default=2, low=-1, high=100)
    max_queue: int = flag(
        "--max-queue", "Requests that can wait for a slot; more get 503. With several keys, each "
        "has a share of the places; more get 429.", default=256, low=0)
    kept_memory: int = flag("--kept-memory", "Memory for what drafters of other keys, namespaces "
        "and sizes learned; beyond it, the key that holds most loses its oldest.", default=1 << 30,
        type=SizeType(0), metavar="SIZE")
    # fmt: on

    @property
    def num_slots(self) -> int:
        return AUTO_SLOTS if self.parallel is None else self.parallel

    def choose_cache(self, *, drafts: bool, exact: bool) -> None:
        """Choose between a cache for all slots and one for each, unless an option says which."""
        from ngramspec.llamacpp.settings import lay_out

        if self.kv_unified is not None:
            return
        total, each = self.ctx_size or 0, self.kv_unified_per_slot or 0
        if self.parallel is not None:
            each = each or total // self.num_slots
        layout = lay_out(self.num_slots, total, each, drafts=drafts, exact=exact)
        self.kv_unified = layout.kv_unified
        if layout.kv_unified:
            self.kv_unified_per_slot = each or None


@dataclass
class ServerOptions:
    """Where the server listens, and how long it waits."""

    section = "Server"
    # fmt: off
    host: str = flag("--host", "Addresses to listen on, comma-separated; a path that ends in .sock "
        "is a Unix socket.", env="HOST", default="127.0.0.1", metavar="HOST")
    port: int = flag("--port", "0: any free port.", env="PORT", default=8080, low=0, high=65535)
    reuse_port: bool = flag("--reuse-port", "Let other processes listen on the same port.",
        env="REUSE_PORT", default=False)
    api_prefix: str = flag("--api-prefix", "What all paths begin with.", env="API_PREFIX",
        default="", metavar="/PATH")
    ui: bool = flag(
        "--ui/--no-ui --webui/--no-webui", "The page at /.", env="UI WEBUI", default=True)
    timeout: float = flag("-to --timeout", "Seconds a request can run.", env="TIMEOUT",
        default=3600.0, low=0, min_open=True)
    queue_timeout: float = flag("--queue-timeout", "Seconds a request can wait for a slot.",
        default=600.0, low=0, min_open=True)
    slow_client_timeout: float = flag("--slow-client-timeout", "Seconds a client can leave its "
        "stream unread.", default=30.0, low=0, min_open=True)
    drain_timeout: float = flag("--drain-timeout", "Seconds that running requests get to finish at "
        "shutdown.", default=30.0, low=0)
    stall_timeout: float = flag("--stall-timeout", "Seconds a pass can take before the server "
        "reports failure; after twice that it exits. 0: no limit.", default=600.0, low=0)
    sse_ping_interval: float = flag("--sse-ping-interval", "Seconds of silence before a stream "
        "gets a ping; -1: none.", env="SSE_PING_INTERVAL", default=30.0, low=-1)
    max_connections: int = flag("--max-connections", "Open connections; one more closes the one "
        "that has waited longest for its client.", default=512, low=1)
    max_body: int = flag("--max-body", "Largest request body.", default=32 << 20,
        type=SizeType(1024), metavar="SIZE")
    max_prompt_tokens: int | None = flag(
        "--max-prompt-tokens", "Longest prompt in tokens.  [default: the context]", low=1)
    max_generations: int = flag("--max-generations", "Largest number of prompts times choices in "
        "one request.", default=32, low=1)
    ssl_key_file: Path | None = flag("--ssl-key-file", "Private key in PEM.", env="SSL_KEY_FILE")
    ssl_cert_file: Path | None = flag("--ssl-cert-file", "Certificate in PEM.", env="SSL_CERT_FILE")


@dataclass
class AccessOptions:
    """Who can send requests, and what they see of one another."""

    section = "Access"
    # fmt: off
    api_key: tuple[str, ...] = flag("--api-key", "Keys that requests must send, comma-separated "
        "(repeatable). Visible in the process list: prefer --api-key-file, or the variable "
        "LLAMA_API_KEY.", env="LLAMA_API_KEY", default=(), metavar="KEY")
    api_key_file: Path | None = flag("--api-key-file", "File with one key per line, and # before "
        "comments; read again when it changes.", env="API_KEY_FILE")
    pool_per_key: bool | None = flag(
        "--pool-per-key/--share-between-keys", "Whether each key drafts from its own requests and "
        "reuses its own prompts only.  [default: it does, if there are several]")
    metrics: bool | None = flag("--metrics/--no-metrics", "GET /metrics, for any key.  [default: "
        "with one key, or where keys share]", env="ENDPOINT_METRICS")
    slots: bool | None = flag("--slots/--no-slots", "GET /slots and the page's live figures, for "
        "any key.  [default: as --metrics; live figures also without keys if --host is this "
        "machine only]", env="ENDPOINT_SLOTS")
    props: bool = flag("--props", "Allow POST /props.", env="ENDPOINT_PROPS", default=False)
    allow_host: tuple[str, ...] = flag(
        "--allow-host", "Host names that the server answers to, comma-separated (repeatable); "
        ".NAME: all below it; *: any. Not needed for addresses, names without a dot, names of the "
        "local network, or with API keys.", default=(), metavar="NAME")
    cors_origins: str = flag("--cors-origins", "Comma-separated origins whose pages can send "
        "requests, or *; others are refused.", env="CORS_ORIGINS", default="", metavar="ORIGINS")


@dataclass
class ServedSamplingOptions(SamplingOptions):
    """How tokens are chosen for requests that do not say."""

    section = "Sampling"
    # fmt: off
    predict: int = flag("-n --predict --n-predict", "Longest answer, in tokens; -1: until the "
        "context is full, or any length if it shifts; -2: until it is full.", env="N_PREDICT",
        default=-1, low=-2)
    samplers: str = flag("--samplers", "Samplers in their order, with ; between them.  [default: "
        "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature]", default="",
        metavar="LIST")
    sampler_seq: str = flag("--sampler-seq --sampling-seq", "The same with a letter for each, such "
        "as edskypmxt.", default="", metavar="LETTERS")
    temperature: float = flag(
        "--temp --temperature", "0 is greedy, and best for drafts.", env="TEMPERATURE", default=0.8,
        low=0, clamp=True)
    dry_sequence_breaker: tuple[str, ...] = flag("--dry-sequence-breaker", 'Replaces newline, ":", '
        'a quote and "*" (repeatable); none: no breaker.', default=(), metavar="TEXT")
    logit_bias: tuple[str, ...] = flag("-l --logit-bias", "Make a token likelier (15043+1) or less "
        "likely (15043-1), by its id (repeatable).", default=(), metavar="ID+BIAS")


@dataclass
class RequestOptions:
    """What else holds for requests that do not say otherwise."""

    section = "Defaults for requests"
    # fmt: off
    special: bool = flag("-sp --special", "Show special tokens in answers.", default=False)
    escape: bool = flag("--escape/--no-escape -e/", "Read \\n, \\t and the like in stop texts and "
        "breakers as what they stand for.", default=True)
    reverse_prompt: tuple[str, ...] = flag("-r --reverse-prompt", "Stop text for requests that "
        "give none (repeatable).", default=(), metavar="TEXT")
    system_prompt: str = flag("-sys --system-prompt", "System message for chats that have none.",
        default="", metavar="TEXT")
    per_request_spec_decode_metrics: str = flag("--per-request-spec-decode-metrics", "Tell in "
        "answers of /v1 what came of their drafts, as vLLM does (metrics.speculative_decoding); "
        "detailed: of each.", default="none", choices=("none", "summary", "detailed"),
        metavar="LEVEL")
    reasoning_format: str = flag("--reasoning-format", "Return reasoning as reasoning_content, or "
        "leave it in the content (none).", env="THINK", default="auto",
        choices=("auto", "deepseek", "deepseek-legacy", "none"))
    reasoning: str = flag("-rea --reasoning", "Let the model think, if its template can say so.",
        env="REASONING", default="auto", type=Switch(), metavar="[on|off|auto]")
    reasoning_effort: str | None = flag("--reasoning-effort", "How much it thinks, for templates "
        "that know: low, medium, high, ..., or default.", env="REASONING_EFFORT", metavar="LEVEL")
    reasoning_preserve: bool | None = flag("--reasoning-preserve/--no-reasoning-preserve", "Show "
        "the model what it thought before, if its template can.", env="REASONING_PRESERVE")
    prefill_assistant: bool = flag("--prefill-assistant/--no-prefill-assistant", "Continue an "
        "assistant's message that ends a chat.", env="PREFILL_ASSISTANT", default=True)
    spm_infill: bool = flag("--spm-infill", "/infill: suffix before prefix.", default=False)


@dataclass
class SessionOptions:
    """What holds for long texts."""

    section = "Long sessions"
    # fmt: off
    context_shift: bool = flag(
        "--context-shift/--no-context-shift", "When a slot's context is full, discard its older "
        "half and go on.", env="CONTEXT_SHIFT", default=False)
    slot_save_path: Path | None = flag("--slot-save-path", "Folder for slots that clients save: "
        "POST /slots/0?action=save, restore or erase.  [default: slots cannot be saved]",
        metavar="FOLDER", type=NamedPath(exists=True, file_okay=False, path_type=Path))
    keep: int = flag("--keep", "Tokens at the start of the prompt that are never discarded; -1: "
        "all of it.", default=0, low=-1)
    reasoning_budget: int = flag(
        "--reasoning-budget", "Tokens of reasoning in a chat, after which the server ends it; "
        "0: no reasoning; -1: any number.", env="THINK_BUDGET", default=-1, low=-1)
    reasoning_budget_message: str = flag("--reasoning-budget-message", "Text to write before that "
        "end.", env="THINK_BUDGET_MESSAGE", default="", metavar="TEXT")


@dataclass
class RecordingOptions:
    """Whether requests are recorded."""

    section = "Recording"
    # fmt: off
    record: Path | None = flag("--record", "Write requests and answers to FILE, for "
        "`bench replay` and `build-cache`; only its owner can read it.", metavar="FILE")
    spec_trace: Path | None = flag("--spec-trace", "As --record, and a line for each decision on "
        "drafts: what each drafter offered and claimed, what was sent, what came of it.",
        metavar="FILE")
    record_max: int = flag("--record-max", "Most that is recorded. At half of it FILE becomes "
        "NAME.1.jsonl, in place of the one before, and a new FILE begins.", default=1 << 30,
        type=SizeType(LEAST_BYTES), metavar="SIZE")


@dataclass
class LogOptions:
    """What the server tells."""

    section = "Output"
    # fmt: off
    log_level: str | None = flag("--log-level", "debug, info (a line for each finished request), "
        "warning or error.  [default: info]",
        choices=("debug", "info", "warning", "error"), metavar="LEVEL")
    verbose: bool = flag("-v --verbose --log-verbose", "The same as --log-level debug; answers "
        "have __verbose, and statistics are llama-server's lines.", default=False)
    verbosity: int = flag(
        "-lv --verbosity --log-verbosity", env="LOG_VERBOSITY", default=3, hidden=True)
    log_disable: bool = flag("--log-disable", default=False, hidden=True)
    log_file: Path | None = flag("--log-file", "Write the log here as well; if the file is moved "
        "away, a new one begins.", env="LOG_FILE")
    access_log: bool = flag(
        "--access-log", "A line per HTTP request.", default=False)
    stats_interval: float = flag("--stats-interval", "Seconds between statistics lines; 0: at the "
        "end and at SIGUSR1.", default=0.0, low=0)
    config: Path | None = flag(
        "--config", "File with options, in YAML or TOML.", is_eager=True, callback=take_config)


@dataclass
class ServeOptions(
    ServedModelOptions,
    SlotOptions,
    ServerOptions,
    AccessOptions,
    ServedSamplingOptions,
    RequestOptions,
    SessionOptions,
    RecordingOptions,
    LogOptions,
    LoraOptions,
    TargetOptions,
    RopeOptions,
    AllDraftOptions,
):
    """All options of `serve`. recipe: What Ollama's settings say of the model."""

    recipe: Recipe = field(init=False)
