"""The target model: its options, with llama-server's names, and opening it with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli import completion
from ngramspec.cli.llama_cpp.fit import limits_of
from ngramspec.cli.llama_cpp.loading import loading_of
from ngramspec.cli.llama_cpp.lora import adapters_of
from ngramspec.cli.llama_cpp.placement import placement_of
from ngramspec.cli.llama_cpp.rope import rope_of
from ngramspec.cli.llama_cpp.threads import prepare_process, thread_plans_of
from ngramspec.cli.llama_cpp.words import Switch, Threads
from ngramspec.cli.options import AT_LEAST_1, FILE, Decorator, option, options
from ngramspec.cli.progress import progress
from ngramspec.cli.told import tell
from ngramspec.errors import InputError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ngramspec.adapters.llama_cpp.fit import Fitted
    from ngramspec.adapters.llama_cpp.model import LlamaModel
    from ngramspec.adapters.llama_cpp.mtp import SecondSettings
    from ngramspec.adapters.llama_cpp.settings import ContextSettings
    from ngramspec.adapters.llama_cpp.target import LlamaTarget


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
SHORT = 4096  # tokens of a context where the command does not know yet how long it must be


class CacheType(click.ParamType):  # type: ignore[type-arg]
    """A type of cached keys or values, from the adapter's list."""

    name = "type"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name of the type."""
        from ngramspec.adapters.llama_cpp.settings import CACHE_TYPES

        return click.Choice(CACHE_TYPES).convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the types that begin so."""
        return completion.cache_types(ctx, param, incomplete)


# By name: flags and settings.
RUNNING: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "batch_size": (
        ("-b", "--batch-size"),
        {"env": "BATCH", "type": AT_LEAST_1, "default": 2048, "help": "Tokens in one decode."},
    ),
    "ubatch_size": (
        ("-ub", "--ubatch-size"),
        {"env": "UBATCH", "type": AT_LEAST_1, "default": 512,
         "help": "Tokens computed at once."},
    ),
    "threads": (
        ("-t", "--threads"),
        {"env": "THREADS", "type": Threads(),
         "help": "CPU threads.  [default: one per physical core; 1 for the embedded model]"},
    ),
    "threads_batch": (
        ("-tb", "--threads-batch"),
        {"env": "THREADS_BATCH", "type": Threads(),
         "help": "Threads for prompts.  [default: --threads]"},
    ),
    "flash_attn": (
        ("-fa", "--flash-attn"),
        {"env": "FLASH_ATTN", "default": "auto", "metavar": "[on|off|auto]", "type": Switch(),
         "is_flag": False, "flag_value": "on", "help": "Flash attention; without a value: on."},
    ),
    "cache_type_k": (
        ("-ctk", "--cache-type-k"),
        {"env": "CACHE_TYPE_K", "default": "f16", "type": CacheType(),
         "help": "Type of the cached keys."},
    ),
    "cache_type_v": (
        ("-ctv", "--cache-type-v"),
        {"env": "CACHE_TYPE_V", "default": "f16", "type": CacheType(),
         "help": "Type of the cached values."},
    ),
    "exact": (
        ("--exact",),
        {"is_flag": True,
         "help": "Bit-exact setting: drafts cannot change a token. Tested at the first start; "
         "fails if the model has none. Several slots have one thread then, and batches at most 64 "
         "tokens; what contradicts it, such as -fa off and layers on a GPU, is refused."},
    ),
}  # fmt: skip


def hub_options(section: str) -> Decorator:
    """Return the options that name a model on Hugging Face instead of a file."""
    return options(
        option(section, "-hf", "-hfr", "--hf-repo", "hf_repo", env="HF_REPO",
               metavar="USER/MODEL[:QUANT]",
               help="The model by its name on Hugging Face; it must be downloaded already."),
        option(section, "-hff", "--hf-file", "hf_file", env="HF_FILE", metavar="NAME",
               help="Its file there, instead of a quantisation."),
    )  # fmt: skip


def model_options(section: str) -> Decorator:
    """Return the options that name the model, for resolve_model."""
    return options(
        option(section, "-m", "--model", env="MODEL", type=FILE, shell_complete=completion.model,
               help="GGUF file, or name of a model that Ollama has pulled; default: the embedded "
               "model."),
        hub_options(section),
    )  # fmt: skip


def running(section: str, *names: str) -> Decorator:
    """Return options of RUNNING under a heading: those named, or all."""
    return options(
        *(
            option(section, *flags, **settings)
            for name, (flags, settings) in RUNNING.items()
            if name in (names or RUNNING)
        )
    )


def fit_target(values: Mapping[str, Any], small: SecondSettings | None = None) -> Fitted:
    """Return how the target fits in free memory, and tell on stderr what its user should know.

    Args:
        values: A command's options.
        small: The draft model or MTP heads.

    Raises:
        FormatError, OSError: The file cannot be read.
        InputError: An option is not understood, or what was asked for does not fit.
        BackendError: llama.cpp cannot load it.
    """
    from ngramspec.adapters.llama_cpp.fit import fit
    from ngramspec.models import embedded_model

    fitted = fit(
        values["model"] or embedded_model(),
        context_settings(values),
        placement_of(values),
        loading_of(values),
        draft=small,
        limits=limits_of(values),
    )
    for line in fitted.notes:
        tell(line)
    return fitted


def open_model(values: Mapping[str, Any], fitted: Fitted | None = None) -> LlamaModel:
    """Load the target model.

    Args:
        values: A command's options.
        fitted: How it fits in memory, from fit_target; None: with the context of a short text.

    Raises:
        FormatError, OSError: The file cannot be read.
        InputError: An option is not understood, or this machine does not have what it names.
        BackendError: llama.cpp cannot load it.
    """
    from ngramspec.adapters.llama_cpp.model import LlamaModel
    from ngramspec.models import embedded_model

    prepare_process(values)
    if fitted is None:
        fitted = fit_target({**values, "ctx_size": values.get("ctx_size") or SHORT})
    return LlamaModel(
        values["model"] or embedded_model(),
        placement=fitted.placement,
        loading=loading_of(values),
        adapters=[path for path, _ in adapters_of(values)],
    )


def open_target(
    values: Mapping[str, Any], model: LlamaModel, fitted: Fitted | None = None
) -> LlamaTarget:
    """Return the target; with --exact in a setting that was tested to be bit-exact.

    Args:
        values: A command's options.
        model: The model.
        fitted: How it fits in memory; None: as the options say.

    Raises:
        InputError: A setting is out of its bounds.
        BackendError: llama.cpp cannot run it, or the model has no exact setting.
    """
    from ngramspec.adapters.llama_cpp.contexts import NoContextError
    from ngramspec.adapters.llama_cpp.fit import possible
    from ngramspec.adapters.llama_cpp.target import LlamaTarget

    settings = fitted.settings if fitted else context_settings(values)
    try:
        return _open_exact(settings, model) if values.get("exact") else LlamaTarget(model, settings)
    except NoContextError as error:
        placement = fitted.placement if fitted else placement_of(values)
        known = (model.path, settings, placement, loading_of(values), limits_of(values))
        raise NoContextError(
            f"{error}: -c and -np say how large it is; {possible(*known)}"
        ) from error


def context_settings(values: Mapping[str, Any]) -> ContextSettings:
    """Return the settings of the target.

    Raises:
        InputError: A setting is out of its bounds, or contradicts --exact.
    """
    from ngramspec.adapters.llama_cpp.exact import check_exact
    from ngramspec.adapters.llama_cpp.settings import ContextSettings, lay_out, with_branches
    from ngramspec.engine.branches import OFF

    slots, total = values.get("parallel", 1), values.get("ctx_size", 0)
    if total and total < slots:
        raise InputError(f"--ctx-size {total} is less than a token for each of {slots} slots")
    threads = values["threads"] or (None if values["model"] else 1)
    each, exact = values.get("kv_unified_per_slot") or 0, bool(values.get("exact"))
    shared = bool(values.get("kv_unified") or (each and not exact))
    made = ContextSettings(
        slots=slots,
        **lay_out(slots, total, each, shared=shared)._asdict(),
        n_batch=max(values["batch_size"], slots),
        n_ubatch=values["ubatch_size"],
        threads=threads,
        threads_batch=values["threads_batch"] or threads,
        flash_attn={"on": True, "off": False}.get(values["flash_attn"], "auto"),
        type_k=values["cache_type_k"],
        type_v=values["cache_type_v"],
        offload_kqv=values.get("kv_offload", True),
        op_offload=values.get("op_offload", True),
        rope=rope_of(values),
        thread_plans=thread_plans_of(values),
    )
    made = with_branches(made, values.get("spec_tree", OFF))
    if exact:
        check_exact(made, placement_of(values), EXACT_FLAGS)
    return made


@contextlib.contextmanager
def looking() -> Iterator[None]:
    """Tell that the block looks for an exact setting, and now and then for how long."""
    tell("looking for an exact setting ...")
    with progress("testing"):
        yield


def _open_exact(settings: ContextSettings, model: LlamaModel) -> LlamaTarget:
    """Return a target in a setting that tests found to be exact."""
    from ngramspec.adapters.llama_cpp.exact import open_tested

    with looking():
        target, found = open_tested(model, settings)
    tell(f"exact: {found.setting.text()}, batches up to {target.exact_batch}")
    return target
