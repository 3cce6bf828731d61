"""The target model: its options, with llama-server's names, and opening it with them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
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

    from ngramspec.llamacpp.model import LlamaModel
    from ngramspec.llamacpp.settings import ContextSettings
    from ngramspec.llamacpp.target import LlamaTarget
    from ngramspec.runtime import ModelSettings


SHORT = 4096  # tokens of a context where the command does not know yet how long it must be


class CacheType(click.ParamType):  # type: ignore[type-arg]
    """A type of cached keys or values, from the adapter's list."""

    name = "type"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name of the type."""
        from ngramspec.llamacpp.settings import CACHE_TYPES

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


def model_settings(values: Mapping[str, Any]) -> ModelSettings:
    """Return which model to load, and how.

    Raises:
        InputError: An option is not understood, or this machine does not have what it names.
    """
    from ngramspec.runtime import ModelSettings

    return ModelSettings(
        path=values["model"],
        placement=placement_of(values),
        loading=loading_of(values),
        adapters=[path for path, _ in adapters_of(values)],
        limits=limits_of(values),
    )


def context_settings(values: Mapping[str, Any]) -> ContextSettings:
    """Return the settings of the target, as far as options say them.

    Raises:
        InputError: A setting is out of its bounds.
    """
    from ngramspec.llamacpp.settings import ContextSettings, lay_out

    slots, total = values.get("parallel", 1), values.get("ctx_size", 0)
    if total and total < slots:
        raise InputError(f"--ctx-size {total} is less than a token for each of {slots} slots")
    each = values.get("kv_unified_per_slot") or 0
    shared = bool(values.get("kv_unified") or (each and not values.get("exact")))
    return ContextSettings(
        slots=slots,
        **lay_out(slots, total, each, shared=shared)._asdict(),
        n_batch=max(values["batch_size"], slots),
        n_ubatch=values["ubatch_size"],
        threads=values["threads"],
        threads_batch=values["threads_batch"],
        flash_attn={"on": True, "off": False}.get(values["flash_attn"], "auto"),
        type_k=values["cache_type_k"],
        type_v=values["cache_type_v"],
        offload_kqv=values.get("kv_offload", True),
        op_offload=values.get("op_offload", True),
        rope=rope_of(values),
        thread_plans=thread_plans_of(values),
    )


@contextlib.contextmanager
def open_idle(
    values: Mapping[str, Any], size_of: Callable[[LlamaModel], int], tree: int | str
) -> Iterator[LlamaTarget]:
    """Load a model and make a target of one slot, for measuring.

    Args:
        values: A command's options.
        size_of: Returns the tokens of its context.
        tree: Most branches of a draft, as for Engine.

    Raises:
        As open_runtime.
    """
    from ngramspec.runtime import load_model, open_target, settle

    prepare_process(values)
    own, exact = model_settings(values), bool(values.get("exact"))
    short = settle(own, context_settings({**values, "ctx_size": SHORT}), tree, exact)
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
    """Return the setting that tests found to be exact, in a line."""
    return f"exact: {setting}, batches up to {target.exact_batch}"
