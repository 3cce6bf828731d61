"""How the target model runs: its options, with llama-server's names, and opening it with them.

SamplingOptions: how tokens are chosen, and what they must follow: a grammar, or a JSON schema.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ngramspec.cli.files import read_utf8
from ngramspec.cli.model import LoadingOptions, LoraOptions, ModelOptions, PlacementOptions
from ngramspec.cli.options import THREADS, Switch, flag, in_list, numbers_in
from ngramspec.cli.output import tell
from ngramspec.cli.progress import progress
from ngramspec.errors import InputError
from ngramspec.llamacpp.contexts import CACHE_TYPES
from ngramspec.llamacpp.rope import SCALINGS, YARN, Rope
from ngramspec.llamacpp.threads import (
    NUMA,
    POLL,
    ThreadPlan,
    cpus_of_mask,
    cpus_of_range,
    set_numa,
    set_priority,
)

if TYPE_CHECKING:
    from ngramspec.llamacpp.fit import Limits
    from ngramspec.llamacpp.model import LlamaModel
    from ngramspec.llamacpp.settings import ContextSettings
    from ngramspec.llamacpp.target import LlamaTarget
    from ngramspec.runtime import ModelSettings

SHORT = 4096  # tokens of a context where the command does not know yet how long it must be
WHOLE = 1 << 31  # tokens: no context is cut below it
MIB = 1 << 20
CACHE_TYPE = "f16"
CACHE = {  # of an option for a type of cached keys or values
    "default": CACHE_TYPE,
    "choices": CACHE_TYPES,
    "metavar": "TYPE",
    "shell_complete": in_list(*CACHE_TYPES),
}
# Options that contradict --exact, by the names of the settings that they set.
EXACT_FLAGS = {
    "exact": "--exact",
    "flash_attn": "--flash-attn off",
    "threads_batch": "--threads-batch",
    "type_k": "--cache-type-k",
    "type_v": "--cache-type-v",
    "kv_unified": "--kv-unified",
    "n_gpu_layers": "--n-gpu-layers, or set it to 0",
}
NAMES = ("grammar", "grammar_file", "json_schema", "json_schema_file")


@dataclass
class RunningOptions:
    """How the target computes."""

    section = "Computing"
    # fmt: off
    batch_size: int = flag(
        "-b --batch-size", "Tokens in one pass.", env="BATCH", default=2048, low=1)
    ubatch_size: int = flag(
        "-ub --ubatch-size", "Tokens computed at once.", env="UBATCH", default=512, low=1)
    threads: int | None = flag("-t --threads", "CPU threads.  [default: one per physical core; 1 "
        "for the embedded model]", env="THREADS", type=THREADS)
    threads_batch: int | None = flag("-tb --threads-batch", "Threads for prompts.  [default: "
        "--threads]", env="THREADS_BATCH", type=THREADS)
    flash_attn: str = flag(
        "-fa --flash-attn", "Flash attention; without a value: on.", env="FLASH_ATTN",
        default="auto", type=Switch(), metavar="[on|off|auto]", is_flag=False, flag_value="on")
    cache_type_k: str = flag(
        "-ctk --cache-type-k", "Type of the cached keys.", env="CACHE_TYPE_K", **CACHE)
    cache_type_v: str = flag(
        "-ctv --cache-type-v", "Type of the cached values.", env="CACHE_TYPE_V", **CACHE)
    exact: bool = flag("--exact", "Use a bit-exact setting: drafts cannot change a token. On "
        "the CPU, with one thread for several slots; refused if the model has none.", default=False)


@dataclass
class ThreadOptions:
    """On which processors and how urgently threads run."""

    section = "Threads"
    # fmt: off
    cpu_mask: str | None = flag(
        "-C --cpu-mask", "Processors for the threads, as a mask.  [default: all]", metavar="HEX")
    cpu_range: str | None = flag(
        "-Cr --cpu-range", "The same as a range; adds to the mask.", metavar="LOW-HIGH")
    cpu_strict: int | None = flag(
        "--cpu-strict", "1: each thread has one of them for itself.", low=0, high=1, metavar="0|1")
    prio: int | None = flag(
        "--prio", "Priority: -1 low, 0 normal, 1 medium, 2 high, 3 realtime.", low=-1, high=3)
    poll: int | None = flag(
        "--poll", "How eagerly threads wait for work: 0 asleep, 100 always awake."
        f"  [default: {POLL}]", low=0, high=100)
    cpu_mask_batch: str | None = flag("-Cb --cpu-mask-batch", "As --cpu-mask, for prompts.  "
        "[default: --cpu-mask]", metavar="HEX")
    cpu_range_batch: str | None = flag(
        "-Crb --cpu-range-batch", "As --cpu-range, for prompts.", metavar="LOW-HIGH")
    cpu_strict_batch: int | None = flag(
        "--cpu-strict-batch", "As --cpu-strict, for prompts.", low=0, high=1, metavar="0|1")
    prio_batch: int | None = flag("--prio-batch", "As --prio, for prompts.", low=-1, high=3)
    poll_batch: int | None = flag("--poll-batch", "As --poll, for prompts.", low=0, high=100)
    numa: str | None = flag("--numa", "On NUMA machines: distribute threads over the nodes, "
        "isolate them on one, or as numactl says.", env="NUMA", choices=NUMA, metavar="TYPE")
    # fmt: on

    def thread_plans(self) -> tuple[ThreadPlan, ThreadPlan] | None:
        """Return how threads run, for single tokens and for batches; None if no option says.

        Raises:
            InputError: A mask or a range is not valid.
        """
        single, batch = (self.cpu_mask, self.cpu_range), (self.cpu_mask_batch, self.cpu_range_batch)
        pairs = (
            (self.cpu_strict, self.cpu_strict_batch),
            (self.prio, self.prio_batch),
            (self.poll, self.poll_batch),
        )
        if all(value is None for pair in (single, batch, *pairs) for value in pair):
            return None
        processors = single if batch == (None, None) else batch
        urgency = [first if second is None else second for first, second in pairs]
        return _plan(*single, *(first for first, _ in pairs)), _plan(*processors, *urgency)

    def prepare_process(self) -> None:
        """Set this process's priority and NUMA strategy; before a model is loaded.

        Raises:
            BackendError: llama-cpp-python is not installed.
        """
        from ngramspec.text.tokenizers.llama_library import load_library

        set_priority(self.prio or 0)
        if self.numa:
            set_numa(load_library(), self.numa)


def _plan(
    mask: str | None, span: str | None, strict: int | None, prio: int | None, poll: int | None
) -> ThreadPlan:
    cpus = cpus_of_mask(mask) if mask else frozenset[int]()
    return ThreadPlan(
        cpus=cpus | cpus_of_range(span) if span else cpus,
        strict=bool(strict),
        priority=prio or 0,
        poll=POLL if poll is None else poll,
    )


@dataclass
class RopeOptions:
    """Contexts longer than the model was trained with."""

    section = "Longer contexts"
    # fmt: off
    rope_scaling: str | None = flag("--rope-scaling", "none, linear or yarn.  [default: the "
        "model's]", env="ROPE_SCALING_TYPE", choices=SCALINGS, metavar="METHOD")
    rope_scale: float | None = flag(
        "--rope-scale", "Stretch the context N times.", env="ROPE_SCALE", low=0, min_open=True)
    rope_freq_base: float | None = flag(
        "--rope-freq-base", "Base frequency.  [default: the model's]", env="ROPE_FREQ_BASE", low=0)
    rope_freq_scale: float | None = flag(
        "--rope-freq-scale", "1 / N is --rope-scale N.", env="ROPE_FREQ_SCALE", low=0)
    yarn_orig_ctx: int = flag("--yarn-orig-ctx", "Context that the model was trained with; 0: the "
        "model's.", env="YARN_ORIG_CTX", default=Rope.yarn_orig_ctx, low=0)
    yarn_ext_factor: float | None = flag(
        "--yarn-ext-factor", "Mix of extrapolation, 0: interpolation only.", env="YARN_EXT_FACTOR")
    yarn_attn_factor: float | None = flag(
        "--yarn-attn-factor", "Scale of attention.", env="YARN_ATTN_FACTOR")
    yarn_beta_slow: float | None = flag(
        "--yarn-beta-slow", "High correction dimension.", env="YARN_BETA_SLOW")
    yarn_beta_fast: float | None = flag(
        "--yarn-beta-fast", "Low correction dimension.", env="YARN_BETA_FAST")
    # fmt: on

    def rope(self) -> Rope:
        """Return how positions are encoded.

        Raises:
            click.UsageError: Two options give the scale.
            InputError: A value is out of its bounds.
        """
        scale, freq_scale = self.rope_scale, self.rope_freq_scale
        if scale is not None and freq_scale is not None:
            raise click.UsageError("give either --rope-scale or --rope-freq-scale")
        return Rope(
            scaling=self.rope_scaling,
            freq_base=self.rope_freq_base or 0.0,
            freq_scale=1 / scale if scale is not None else freq_scale or 0.0,
            yarn_orig_ctx=self.yarn_orig_ctx,
            **{name: value for name in YARN if (value := getattr(self, name)) is not None},
        )


@dataclass
class FitOptions:
    """The context, and what is fitted to free memory."""

    section = "Context"
    # fmt: off
    ctx_size: int | None = flag("-c --ctx-size", "Context in tokens, at most the trained size "
        "unless RoPE stretches it; 0: the trained size.  [default: the trained size, cut to free "
        "memory]", env="CTX_SIZE", low=0)
    fit: str = flag(
        "-fit --fit", "Fit layers and context that no option sets to free memory, and refuse what "
        "cannot fit.", env="FIT", default="on", type=Switch(auto=False), metavar="[on|off]")
    fit_target: str | None = flag(
        "-fitt --fit-target", "Memory to leave free, of each GPU, or of the host without GPUs.  "
        "[default: 1024, or a quarter of what is free]", env="FIT_TARGET", metavar="MiB,...")
    fit_ctx: int = flag("-fitc --fit-ctx", "Least context that --fit leaves a cache, in "
        "tokens.", env="FIT_CTX", default=4096, low=1)
    # fmt: on

    def margins(self) -> tuple[int, ...]:
        """Return the bytes to leave free.

        Raises:
            InputError: --fit-target is no list of numbers.
        """
        targets = numbers_in(self.fit_target, "--fit-target")
        if any(not 0 <= target < WHOLE for target in targets):
            raise InputError(f"--fit-target must be MiB from 0 on, got {self.fit_target}")
        return tuple(int(target * MIB) for target in targets)


@dataclass
class TargetOptions(ModelOptions, RunningOptions, PlacementOptions, LoadingOptions, ThreadOptions):
    """What all commands that run a model have; some have FitOptions, RopeOptions, LoraOptions."""


def limits_of(options: object) -> Limits:
    """Return how much a model may take: no context is cut for FitOptions with --ctx-size 0.

    Raises:
        InputError: As FitOptions.margins.
    """
    from ngramspec.llamacpp.fit import Limits, Words

    words = Words("-c", "-np", "-ngl", "-ub", "--fit off", total=True, exact=EXACT_FLAGS)
    if not isinstance(options, FitOptions):
        return Limits(least=1, words=words)
    return Limits(
        enabled=options.fit == "on",
        margins=options.margins(),
        least=WHOLE if options.ctx_size == 0 else options.fit_ctx,
        words=words,
    )


def model_settings(options: TargetOptions) -> ModelSettings:
    """Return which model to load, and how.

    Raises:
        InputError: An option is not understood, or this machine does not have what it names.
    """
    from ngramspec.runtime import ModelSettings

    adapters = options.adapters() if isinstance(options, LoraOptions) else []
    return ModelSettings(
        path=options.model,
        placement=options.placement(),
        loading=options.loading(),
        adapters=[path for path, _ in adapters],
        limits=limits_of(options),
    )


def context_settings(
    options: TargetOptions, total: int, slots: int = 1, each: int = 0, *, shared: bool = False
) -> ContextSettings:
    """Return the settings of the target, as far as options say them.

    Args:
        options: The command's.
        total: Tokens of all slots together, 0 = as the model was trained.
        slots: Sequences.
        each: Tokens of a slot, 0 = as `total` allows.
        shared: All slots share a cache.

    Raises:
        InputError: A setting is out of its bounds.
    """
    from ngramspec.llamacpp.settings import ContextSettings, lay_out

    return ContextSettings(
        slots=slots,
        **lay_out(slots, total, each, shared=shared)._asdict(),
        n_batch=max(options.batch_size, slots),
        n_ubatch=options.ubatch_size,
        threads=options.threads,
        threads_batch=options.threads_batch,
        flash_attn={"on": True, "off": False}.get(options.flash_attn, "auto"),
        type_k=options.cache_type_k,
        type_v=options.cache_type_v,
        offload_kqv=options.kv_offload,
        op_offload=options.op_offload,
        rope=options.rope() if isinstance(options, RopeOptions) else Rope(),
        thread_plans=options.thread_plans(),
    )


@contextlib.contextmanager
def open_idle(
    options: TargetOptions,
    size_of: Callable[[LlamaModel], int],
    tree: int | str,
    *,
    mtp: bool = False,
) -> Iterator[LlamaTarget]:
    """Load a model and make a target of one slot, for measuring.

    Args:
        options: The command's.
        size_of: Returns the tokens of its context.
        tree: Most branches of a draft, as for Engine.
        mtp: Load the model's MTP heads, too.

    Raises:
        As open_runtime.
    """
    from ngramspec.runtime import load_model, open_target, settle

    options.prepare_process()
    own, exact = model_settings(options), options.exact
    own = replace(own, loading=replace(own.loading, mtp=mtp))
    short = settle(own, context_settings(options, SHORT), tree, exact)
    model, fitted = load_model(own, short, exact=exact, tell=tell)
    with model, contextlib.ExitStack() as testing:
        context = replace(fitted.settings, context_size=size_of(model), cells=0)
        target, setting = open_target(
            own, model, replace(fitted, settings=context), exact, lambda: looking(testing)
        )
        testing.close()
        if exact:
            tell(exact_line(target, setting))
        with target:
            yield target


def looking(stack: contextlib.ExitStack) -> None:
    """Tell that an exact setting is looked for, and now and then for how long, in the stack."""
    tell("looking for an exact setting ...")
    stack.enter_context(progress("testing"))


def exact_line(target: LlamaTarget, setting: str) -> str:
    return f"exact: {setting}, batches up to {target.exact_batch}"


@dataclass
class SamplingOptions:
    """How tokens are chosen."""

    section = "Sampling"
    # fmt: off
    seed: int = flag("-s --seed", "-1: random.", default=-1, low=-1, high=2**32 - 1)
    top_k: int = flag("--top-k", "0: off.", env="TOP_K", default=40, low=0, clamp=True)
    top_p: float = flag("--top-p", "1: off.", env="TOP_P", default=0.95, low=0, high=1)
    min_p: float = flag("--min-p", "0: off.", env="MIN_P", default=0.05, low=0, high=1)
    repeat_penalty: float = flag(
        "--repeat-penalty", "1: off.", env="REPEAT_PENALTY", default=1.0, low=0, min_open=True)
    top_n_sigma: float = flag("--top-nsigma --top-n-sigma", "-1: off.", default=-1.0, low=-1)
    typical_p: float = flag("--typical --typical-p", "1: off.", default=1.0, low=0, high=1)
    xtc_probability: float = flag("--xtc-probability", "0: off.", default=0.0, low=0, high=1)
    xtc_threshold: float = flag("--xtc-threshold", default=0.1, low=0, high=1)
    repeat_last_n: int = flag("--repeat-last-n", "Last tokens to penalize; -1: all.", default=64,
                              low=-1)
    presence_penalty: float = flag(
        "--presence-penalty", "0: off.", env="PRESENCE_PENALTY", default=0.0)
    frequency_penalty: float = flag(
        "--frequency-penalty", "0: off.", env="FREQUENCY_PENALTY", default=0.0)
    dry_multiplier: float = flag("--dry-multiplier", "0: off.", default=0.0, low=0)
    dry_base: float = flag("--dry-base", default=1.75, low=1)
    dry_allowed_length: int = flag("--dry-allowed-length", default=2, low=0)
    dry_penalty_last_n: int = flag("--dry-penalty-last-n", "-1: all.", default=-1, low=-1)
    dynatemp_range: float = flag("--dynatemp-range", "0: off.", default=0.0, low=0)
    dynatemp_exponent: float = flag("--dynatemp-exp", default=1.0, low=0)
    mirostat: int = flag("--mirostat", "0: off.", default=0, low=0, high=2)
    mirostat_eta: float = flag("--mirostat-lr", default=0.1, low=0)
    mirostat_tau: float = flag("--mirostat-ent", default=5.0, low=0)
    ignore_eos: bool = flag("--ignore-eos", "Continue past end tokens.", default=False)
    grammar: str | None = flag("--grammar", "Grammar that texts follow.", metavar="GBNF")
    grammar_file: Path | None = flag("--grammar-file", "File with a GBNF grammar.")
    json_schema: str | None = flag("-j --json-schema", "JSON schema of texts.", metavar="JSON")
    json_schema_file: Path | None = flag("-jf --json-schema-file", "File with a JSON schema.")
    # fmt: on

    def grammar_text(self) -> str:
        """Return the grammar that the options give, "" for none.

        Raises:
            InputError: More than one is given, or the schema is not valid.
            OSError: A file cannot be read.
        """
        from ngramspec.text.structured.guidance import schema_grammar

        texts = {name: value for name in NAMES if (value := getattr(self, name))}
        if len(texts) > 1:
            flags = " or ".join(f"--{name.replace('_', '-')}" for name in texts)
            raise InputError(f"give either {flags}")
        if not texts:
            return ""
        ((name, value),) = texts.items()
        text = read_utf8(value) if name.endswith("_file") else str(value)
        if name.startswith("grammar"):
            return text
        place = f"--json-schema-file {value}" if name.endswith("_file") else "--json-schema"
        try:
            schema = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place} must be JSON: {error}") from None
        return schema_grammar(schema, place)
