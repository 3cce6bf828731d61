"""llama.cpp's options that do nothing here, are refused, or stand for others: tables of data.

The names are those of `llama-server --help` and `llama-completion --help` (llama.cpp, MIT licence).
Options that work are where their command is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import click

from ngramspec._version import __version__
from ngramspec.cli.command import SectionOption
from ngramspec.cli.options import is_set

Kind = Literal["silent", "note", "refused"]
OPTIONAL = -1  # values: one, or none where another option follows


@dataclass(frozen=True)
class Flag:
    """An option of llama.cpp's programs.

    names: All its names that mean the same, a `--no-` form only if it does as well.
    kind: What happens: nothing; a line says why it does nothing; the start ends with the reason.
    reason: The rest of a sentence that begins with the name and a colon.
    values: How many values follow; OPTIONAL: one or none.
    env: What follows LLAMA_ARG_ in a variable that sets it; only where it is not silent.
    harmless: Values with which it asks for nothing, so that it is silent.
    """

    names: str
    kind: Kind = "silent"
    reason: str = ""
    values: int = 0
    env: str = ""
    harmless: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return its first long name."""
        return next(name for name in self.names.split() if name.startswith("--"))


def silent(text: str) -> Iterator[Flag]:
    """Yield options that ask for what always happens, or for what changes no answer."""
    for row in text.replace("\n", " | ").split(" | "):
        values = {"N": 1, "[N]": OPTIONAL}.get(row.split()[-1], 0)
        yield Flag(row.removesuffix(" [N]").removesuffix(" N"), values=values)


def note(names: str, reason: str, values: int = 0, env: str = "", *harmless: str) -> Flag:
    """Return an option that does nothing here, which its user may want to know."""
    return Flag(names, "note", reason, values, env, harmless)


def refused(names: str, reason: str, values: int = 0, env: str = "", *harmless: str) -> Flag:
    """Return an option without which the server would not be what was asked for."""
    return Flag(names, "refused", reason, values, env, harmless)


DOWNLOAD = "nothing is downloaded: get the file, then start with --model FILE"
IMAGES = "only text is taken: leave it out, or keep llama.cpp's program for images and sound"
RERANKING = "this server generates text: leave it out, or keep llama-server for reranking"
ROUTER = "one server has one model: start one for each model, on ports of their own"
AGENT = "this server runs no tools of its own: leave it out; clients can send tools with requests"
VECTOR = "control vectors are not applied: leave it out"
SYNTHETIC = "drafts are accepted by what the model says: it is for llama-server's benchmarks only"
DRAFT_THREADS = "the draft model's threads run as the system decides"
REMOVED = "llama-server no longer has it"

# Of server and completion. Texts: what is always so, or has no meaning here. N: a value follows.
COMMON_SILENT = """\
--jinja | --no-jinja | --warmup --no-warmup | --perf --no-perf | --offline | --swa-full
-bs --backend-sampling | --spec-draft-backend-sampling --no-spec-draft-backend-sampling
-dt --defrag-thold N | -hft --hf-token N | --no-mmproj --no-mmproj-auto --mmproj-auto
--mmproj-offload --no-mmproj-offload | -mmdev --mmproj-device N | --image-min-tokens N
--image-max-tokens N | --mtmd-batch-max-tokens N | --video-fps N | --video-timestamp-interval N
--video-ffmpeg-dir N | --log-colors N | --log-prefix --no-log-prefix
--log-timestamps --no-log-timestamps | --no-log-jsonl | --no-skip-chat-parsing
-dio --direct-io -ndio --no-direct-io | --log-new --log-append | --log-test | --adaptive-decay N"""
COMMON_FLAGS = (
    *silent(COMMON_SILENT),
    # What may be missed.
    note("--log-jsonl", "the log is lines of text", 0, "LOG_JSONL"),
    note("--spec-draft-cpu-mask -Cd --cpu-mask-draft", DRAFT_THREADS, 1),
    note("--spec-draft-cpu-range -Crd --cpu-range-draft", DRAFT_THREADS, 1),
    note("--spec-draft-cpu-strict --cpu-strict-draft", DRAFT_THREADS, 1, "", "0"),
    note("--spec-draft-prio --prio-draft", DRAFT_THREADS, 1, "", "0"),
    note("--spec-draft-poll --poll-draft", DRAFT_THREADS, 1),
    note("--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft", DRAFT_THREADS, 1),
    note("-Crbd --cpu-range-batch-draft", DRAFT_THREADS, 1),
    note("--spec-draft-cpu-strict-batch --cpu-strict-batch-draft", DRAFT_THREADS, 1, "", "0"),
    note("--spec-draft-prio-batch --prio-batch-draft", DRAFT_THREADS, 1, "", "0"),
    note("--spec-draft-poll-batch --poll-batch-draft", DRAFT_THREADS, 1),
    note("-gan --grp-attn-n", f"{REMOVED}; --rope-scale stretches the context", 1, "GRP_ATTN_N"),
    note("-gaw --grp-attn-w", f"{REMOVED}; --rope-scale stretches the context", 1, "GRP_ATTN_W"),
    # Refused: the program would be another one without them.
    refused("-mu --model-url", DOWNLOAD, 1, "MODEL_URL"),
    refused("-dr --docker-repo", DOWNLOAD, 1, "DOCKER_REPO"),
    refused("-cl --cache-list", "`hf cache ls` lists what is downloaded"),
    refused("--completion-bash",
            'eval "$(_NGRAMSPEC_COMPLETE=bash_source ngramspec)" completes words in bash'),
    refused("--rpc", "weights stay on this machine: leave it out", 1, "RPC"),
    refused("-mm --mmproj", IMAGES, 1, "MMPROJ"),
    refused("-mmu --mmproj-url", IMAGES, 1, "MMPROJ_URL"),
    refused("--control-vector", VECTOR, 1),
    refused("--control-vector-scaled", VECTOR, 1),
    refused("--control-vector-layer-range", VECTOR, 2),
    refused("--adaptive-target", "there is no adaptive-p sampler: leave it out", 1, "",
            "-1", "-1.0"),
    refused("--spec-synth-len", SYNTHETIC, 1, "SPEC_SYNTH_LEN"),
    refused("--spec-synth-rates", SYNTHETIC, 1, "SPEC_SYNTH_RATES"),
)  # fmt: skip
# Of llama-server alone.
SERVER_SILENT = """\
-cb --cont-batching | -nocb --no-cont-batching | --threads-http N
-sps --slot-prompt-similarity N | -cms --checkpoint-min-step N
--cache-idle-slots --no-cache-idle-slots | --models-max N
--models-autoload --no-models-autoload | -no-ag --no-agent
--no-ui-mcp-proxy --no-webui-mcp-proxy | --no-cors-credentials --cors-credentials
-ctxcp --ctx-checkpoints --swa-checkpoints N"""
SERVER_FLAGS = (
    *silent(SERVER_SILENT),
    note("-cram --cache-ram", "prompts are cached in the slots only", 1, "CACHE_RAM", "0"),
    note("--cache-reuse", "chunks are not moved within the cache; common prefixes are reused",
         1, "CACHE_REUSE", "0"),
    note("--sleep-idle-seconds", "the model stays loaded", 1, "", "-1"),
    note("--cors-methods", "GET, POST, DELETE and OPTIONS are allowed", 1, "CORS_METHODS"),
    note("--cors-headers", "all are allowed", 1, "CORS_HEADERS"),
    note("--ui-config --webui-config", "settings of the page are the browser's", 1, "UI_CONFIG"),
    note("--ui-config-file --webui-config-file", "settings of the page are the browser's", 1,
         "UI_CONFIG_FILE"),
    refused("--media-path", IMAGES, 1),
    refused("--embd-gemma-default", DOWNLOAD),
    refused("--rerank --reranking", RERANKING, 0, "RERANKING"),
    refused("--models-dir", ROUTER, 1, "MODELS_DIR"),
    refused("--models-preset", ROUTER, 1, "MODELS_PRESET"),
    refused("--tools", AGENT, 1, "TOOLS"),
    refused("--tools-runtime", AGENT, 1, "TOOLS_RUNTIME", "none"),
    refused("--mcp-servers-config", AGENT, 1, "MCP_SERVERS_CONFIG"),
    refused("--mcp-servers-json", AGENT, 1, "MCP_SERVERS_JSON"),
    refused("-ag --agent", AGENT, 0, "AGENT"),
    refused("--ui-mcp-proxy --webui-mcp-proxy", AGENT, 0, "UI_MCP_PROXY"),
    refused("--path", "only the own page is served: a web server serves files", 1, "STATIC_PATH"),
    refused("--log-prompts-dir", "prompts are not written to files: leave it out", 1),
    refused("--skip-chat-parsing", "tool calls are found in answers to requests that have tools; "
            "--reasoning-format none leaves thinking in the text", 0, "SKIP_CHAT_PARSING"),
)  # fmt: skip
FLAGS = (*COMMON_FLAGS, *SERVER_FLAGS)

# What llama-cli and llama-completion have besides.
ONE_ANSWER = "there is one answer per start: `ngramspec serve` chats, on its page too"
CLI_SILENT = """\
--no-context-shift | --keep N | --display-prompt --no-display-prompt | --verbose-prompt
--show-timings --no-show-timings | -st --single-turn | -mli --multiline-input | --simple-io
-co --color [N] | -ptc --print-token-count N | --prompt-cache-all --prompt-cache-ro
--in-prefix-bos | --log-disable | -lv --verbosity --log-verbosity N"""
CLI_FLAGS = (
    *silent(CLI_SILENT),
    note("--context-shift", "a full context ends the answer", 0, "CONTEXT_SHIFT"),
    note("--reasoning-format", "the text is printed as it comes", 1, "THINK"),
    refused(
        "--reasoning-budget", "`ngramspec serve` has it: leave it out", 1, "THINK_BUDGET", "-1"
    ),
    note("--prompt-cache", "the prompt is read at every start", 1),
    refused("-i --interactive", ONE_ANSWER),
    refused("-if --interactive-first", ONE_ANSWER),
    refused("--in-prefix", ONE_ANSWER, 1),
    refused("--in-suffix", ONE_ANSWER, 1),
    refused("--image --audio --video", IMAGES, 1),
    refused("--server-base", "the model runs here: leave it out", 1),
)
ALL_CLI_FLAGS = (*COMMON_FLAGS, *CLI_FLAGS)


def other_flags(flags: tuple[Flag, ...] = FLAGS) -> list[click.Parameter]:
    """Return the options of the table, hidden from --help; none of them reaches the command."""

    @click.version_option(__version__, "--version", prog_name="ngramspec", hidden=True)
    @click.help_option("--usage", hidden=True)
    def shown() -> None:
        """Have what llama.cpp's programs tell of themselves."""

    rest = shown.__click_params__  # type: ignore[attr-defined]
    return [*(_option(number, flag) for number, flag in enumerate(flags)), *rest]


def _option(number: int, flag: Flag) -> SectionOption:
    shape: dict[str, Any] = {"is_flag": True}
    if flag.values == OPTIONAL:
        shape = {"is_flag": False, "flag_value": "on"}
    elif flag.values:
        shape = {"nargs": flag.values, "multiple": True}
    return SectionOption(
        [*flag.names.split(), f"llama_server_{number}"],
        envvar=[f"LLAMA_ARG_{flag.env}"] if flag.env else None,
        hidden=True,
        expose_value=False,
        callback=_speak(flag),
        **shape,
    )


def _speak(flag: Flag) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return what happens when the option is given."""

    def speak(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        words = value if flag.values == 1 else ()
        harmless = words and all(one.lower() in flag.harmless for one in words)
        if not value or harmless or ctx.resilient_parsing:
            return
        if flag.kind == "refused":
            raise click.UsageError(f"{flag.name}: {flag.reason}", ctx)
        if flag.kind == "note":
            click.echo(f"{flag.name} does nothing: {flag.reason}", err=True)

    return speak


FILL_IN = {"port": 8012, "ubatch_size": 1024, "batch_size": 1024}
FILL_IN_WITH_DRAFTS = {**FILL_IN, "hf_repo_draft": "ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF"}
GPT_OSS = {
    "port": 8013, "ubatch_size": 2048, "batch_size": 32768, "parallel": 2, "ctx_size": 262144,
    "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.01
}  # fmt: skip
# Flag -> the model's name on Hugging Face and the options it sets. Source: llama.cpp's common/arg.
PRESETS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "--fim-qwen-1.5b-default": ("ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF", FILL_IN),
    "--fim-qwen-3b-default": ("ggml-org/Qwen2.5-Coder-3B-Q8_0-GGUF", FILL_IN),
    "--fim-qwen-7b-default": ("ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF", FILL_IN),
    "--fim-qwen-7b-spec": ("ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF", FILL_IN_WITH_DRAFTS),
    "--fim-qwen-14b-spec": ("ggml-org/Qwen2.5-Coder-14B-Q8_0-GGUF", FILL_IN_WITH_DRAFTS),
    "--fim-qwen-30b-default": ("ggml-org/Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF", FILL_IN),
    "--gpt-oss-20b-default": ("ggml-org/gpt-oss-20b-GGUF:mxfp4", GPT_OSS),
    "--gpt-oss-120b-default": ("ggml-org/gpt-oss-120b-GGUF:mxfp4", GPT_OSS),
    "--vision-gemma-4b-default": ("ggml-org/gemma-3-4b-it-qat-GGUF:Q4_0", {"port": 8014}),
    "--vision-gemma-12b-default": ("ggml-org/gemma-3-12b-it-qat-GGUF:Q4_0", {"port": 8014}),
}


def preset_options() -> list[click.Parameter]:
    """Return the presets' options, hidden from --help."""
    return [SectionOption([flag, "preset"], flag_value=flag, hidden=True) for flag in PRESETS]


def preset_values(has_model: bool) -> Mapping[str, Any]:
    """Return what the preset of the running command stands for, as far as no option sets it.

    has_model: Other options name a model.

    Raises:
        click.UsageError: They do.
    """
    flag = click.get_current_context().params.get("preset")
    if flag is None:
        return {}
    if has_model:
        raise click.UsageError(f"{flag} names a model: leave out --model and --hf-repo")
    repo, settings = PRESETS[flag]
    values = {"hf_repo": repo, **settings}
    return {name: value for name, value in values.items() if not is_set(name)}
