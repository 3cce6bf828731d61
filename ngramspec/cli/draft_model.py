"""The options of a draft model and of MTP heads, with llama.cpp's names of today and before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli import completion
from ngramspec.cli.drafts import NO_DRAFTS, take_draft_settings
from ngramspec.cli.llama_cpp.placement import ALL_LAYERS, buffers_of, layers_of
from ngramspec.cli.llama_cpp.words import Threads, names_in
from ngramspec.cli.model import downloaded_model, pulled_model
from ngramspec.cli.options import AT_LEAST_1, COUNT, FILE, Decorator, NumberRange, option, options
from ngramspec.cli.target import CacheType
from ngramspec.text.tokenizers.gguf import check_gguf

if TYPE_CHECKING:
    from ngramspec.llamacpp.draft_model import DraftModelSettings
    from ngramspec.llamacpp.mtp import MtpSettings, SecondSettings
    from ngramspec.llamacpp.placement import Placement
    from ngramspec.runtime import DraftSettings

SECTION = "Draft model"
# llama.cpp's words for a draft model and for MTP heads of the target, in --spec-type.
NAME, HEADS = "draft-simple", "draft-mtp"
SHARE = NumberRange(0, 1)
CACHE_TYPE = "f16"


def draft_model_options(shortest: str = "--draft-min, or 0") -> Decorator:
    """Return the options of the draft model. shortest: the default of its shortest draft."""
    return options(
        option(SECTION, "-md", "--model-draft", "--spec-draft-model", "model_draft",
               env=("SPEC_DRAFT_MODEL", "MODEL_DRAFT"), type=FILE,
               shell_complete=completion.model,
               help="Small model, best of the same vocabulary, asked where it is worth its time: "
               "a GGUF file, or the name of a model that Ollama has pulled; or none. With "
               "--spec-type draft-mtp: MTP heads in a file of their own, such as Gemma 4's."),
        option(SECTION, "-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf", "hf_repo_draft",
               env=("SPEC_DRAFT_HF_REPO", "HFD_REPO"), metavar="USER/MODEL[:QUANT]",
               help="The same, by its name on Hugging Face; it must be downloaded already."),
        option(SECTION, "--spec-draft-n-max", env="SPEC_DRAFT_N_MAX", type=AT_LEAST_1,
               help="Its longest draft, in tokens, or that of MTP heads."
               "  [default: --draft-max, or 16; of MTP heads 3]"),
        option(SECTION, "--spec-draft-n-min", env="SPEC_DRAFT_N_MIN", type=COUNT,
               help=f"Its shortest draft, in tokens.  [default: {shortest}]"),
        option(SECTION, "--draft-p-min", "--spec-draft-p-min", "draft_p_min",
               env=("SPEC_DRAFT_P_MIN", "DRAFT_P_MIN"), type=SHARE,
               help="Its drafts, or those of MTP heads, end before a token less probable than N."
               "  [default: 0.75; of MTP heads 0]"),
        option(SECTION, "-ngld", "--n-gpu-layers-draft", "--gpu-layers-draft", "--spec-draft-ngl",
               "n_gpu_layers_draft", env="N_GPU_LAYERS_DRAFT", metavar="N",
               help="Its layers on the GPU: a number, all, or auto: all if all of the model's are "
               "there.  [default: auto]"),
        option(SECTION, "-devd", "--device-draft", "--spec-draft-device", "device_draft",
               env="DEVICE_DRAFT", metavar="NAMES",
               help="Devices that may hold them, comma-separated; none: no device."
               "  [default: all]"),
        option(SECTION, "-td", "--threads-draft", "--spec-draft-threads", "threads_draft",
               env="THREADS_DRAFT", type=Threads(), help="Its threads.  [default: --threads]"),
        option(SECTION, "-tbd", "--threads-batch-draft", "--spec-draft-threads-batch",
               "threads_batch_draft", env="THREADS_BATCH_DRAFT", type=Threads(),
               help="Its threads for prompts.  [default: --threads-draft]"),
        option(SECTION, "-cd", "--ctx-size-draft", "ctx_size_draft", env="CTX_SIZE_DRAFT",
               type=COUNT, default=0,
               help="Its context of all slots together, in tokens; 0: the target's. Where a text "
               "is longer, it does not draft."),
        option(SECTION, "-ctkd", "--cache-type-k-draft", "--spec-draft-type-k",
               "cache_type_k_draft", env=("SPEC_DRAFT_CACHE_TYPE_K", "CACHE_TYPE_K_DRAFT"),
               type=CacheType(), default=CACHE_TYPE, help="Type of its cached keys."),
        option(SECTION, "-ctvd", "--cache-type-v-draft", "--spec-draft-type-v",
               "cache_type_v_draft", env=("SPEC_DRAFT_CACHE_TYPE_V", "CACHE_TYPE_V_DRAFT"),
               type=CacheType(), default=CACHE_TYPE, help="Type of its cached values."),
        option(SECTION, "-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe", "cpu_moe_draft",
               env=("SPEC_DRAFT_CPU_MOE", "CPU_MOE_DRAFT"), is_flag=True,
               help="Keep the experts of a mixture in the CPU's memory."),
        option(SECTION, "-ncmoed", "--n-cpu-moe-draft", "--spec-draft-n-cpu-moe",
               "--spec-draft-ncmoe", "n_cpu_moe_draft",
               env=("SPEC_DRAFT_N_CPU_MOE", "N_CPU_MOE_DRAFT"), type=COUNT, default=0,
               help="The same for the first N layers."),
        option(SECTION, "-otd", "--override-tensor-draft", "--spec-draft-override-tensor",
               "override_tensor_draft", multiple=True, metavar="PATTERN=MEMORY",
               help="As --override-tensor, for the draft model."),
        replace_option(SECTION),
        # What older versions of llama.cpp did with it does not exist here.
        option(SECTION, "--draft-p-split", "--p-split", "--spec-draft-p-split", "draft_p_split",
               env=("SPEC_DRAFT_P_SPLIT", "DRAFT_P_SPLIT"), type=SHARE, hidden=True),
    )  # fmt: skip


def replace_option(section: str) -> Decorator:
    """Return the option of strings that are others for a draft model of another vocabulary."""
    return option(section, "--spec-replace", nargs=2, multiple=True, metavar="TARGET DRAFT",
                  help="For a draft model of another vocabulary, which drafts through text: write "
                  "TARGET, such as a chat marker, as DRAFT, and back (repeatable); also as one "
                  "word, 'TARGET DRAFT'.")  # fmt: skip


def take_drafts(values: dict[str, Any], slots: int) -> DraftSettings:
    """Remove the options of drafters and of a draft model or MTP heads; return what they say.

    Lines on stderr tell about options that do nothing. values["mtp"] becomes whether the model is
    to be loaded with its MTP heads.

    Args:
        values: The command's.
        slots: Of the target.

    Raises:
        click.UsageError: Options contradict one another.
        InputError: An unknown drafter, a model that is not downloaded, layers that are no number.
        ModelNotFoundError: No file and no model of Ollama's has the name.
    """
    names = [name.strip() for name in ",".join(values["spec_type"]).split(",")]
    with_model, heads = names_model(values), HEADS in names
    if NAME in names and heads:
        raise click.UsageError(f"--spec-type takes either {NAME} or {HEADS}")
    if NAME in names and not with_model:
        raise click.UsageError(f"--spec-type {NAME} needs --model-draft")
    values["mtp"] = heads and not with_model
    if NAME in names or heads:
        others = tuple(name for name in names if name not in (NAME, HEADS))
        values["spec_type"] = others or (NO_DRAFTS,)
    if values["exact"] and with_model and not heads:
        raise click.UsageError("--exact works with n-gram drafters only: drop --model-draft")
    longest = values["draft_max"]
    drafts = take_draft_settings(values)
    second = take_second(values, slots, heads, longest, drafts.min_draft)
    return replace(drafts, second=second)


def names_model(values: dict[str, Any]) -> bool:
    """Return whether the options name a draft model or a file with MTP heads; "none" names none."""
    if str(values["model_draft"]) == NO_DRAFTS:
        values["model_draft"] = None
    return values["model_draft"] is not None or values["hf_repo_draft"] is not None


def take_second(
    values: dict[str, Any], slots: int, heads: bool, longest: int | None, shortest: int = 0
) -> SecondSettings | None:
    """Remove the options of a draft model or MTP heads, and return its settings, None without one.

    Args:
        values: The command's.
        slots: Of the target.
        heads: MTP heads draft, not a draft model.
        longest, shortest: Bounds of all drafts; None: options set none.

    Raises:
        As take_drafts.
    """
    own = {name: values.pop(name) for name in _NAMES}
    bounds = (longest, shortest)
    return _heads(own, *bounds) if heads else _draft_model(own, slots, *bounds)


def _heads(values: dict[str, Any], longest: int | None, shortest: int) -> MtpSettings:
    from ngramspec.engine.sources.mtp import N_MAX, P_MIN
    from ngramspec.llamacpp.mtp import MtpSettings

    n_max = values["spec_draft_n_max"] or longest or N_MAX
    p_min = P_MIN if values["draft_p_min"] is None else values["draft_p_min"]
    settings = MtpSettings(n_max=n_max, n_min=_least(values, shortest, n_max), p_min=p_min)
    for line in _notes(values):
        click.echo(line, err=True)
    file = _file(values)
    if file is None:
        _tell_idle(
            values,
            {**_OF_THE_TARGET, **_OF_WEIGHTS},
            "the model's own MTP heads run as the model does",
        )
        return settings
    _tell_idle(values, _OF_THE_TARGET, "an assistant runs as the target, in its cache")
    return replace(settings, path=file[0], placement=_placement(values))


def _tell_idle(values: dict[str, Any], flags: Mapping[str, str], reason: str) -> None:
    """Tell in a line which options do nothing, if some were given."""
    idle = [flag for name, flag in flags.items() if values[name] not in _DEFAULTS]
    if idle:
        does = "does" if len(idle) == 1 else "do"
        click.echo(f"{', '.join(idle)} {does} nothing: {reason}", err=True)


def _least(values: dict[str, Any], shortest: int, n_max: int) -> int:
    """Return the shortest draft that is sent."""
    n_min = values["spec_draft_n_min"]
    return min(shortest, n_max) if n_min is None else int(n_min)


def _draft_model(
    values: dict[str, Any], slots: int, longest: int | None, shortest: int
) -> DraftModelSettings | None:
    from ngramspec.engine.sources.draft_model import N_MAX, P_MIN
    from ngramspec.llamacpp.draft_model import DraftModelSettings

    for line in _notes(values):
        click.echo(line, err=True)
    file = _file(values)
    if file is None:
        if values["spec_replace"]:
            click.echo("--spec-replace does nothing: there is no draft model", err=True)
        return None
    path, name = file
    n_max = values["spec_draft_n_max"] or longest or N_MAX
    return DraftModelSettings(
        path=path,
        name=name,
        n_max=n_max,
        n_min=_least(values, shortest, n_max),
        p_min=P_MIN if values["draft_p_min"] is None else values["draft_p_min"],
        placement=_placement(values),
        context_size=values["ctx_size_draft"] // slots,
        threads=values["threads_draft"],
        threads_batch=values["threads_batch_draft"],
        type_k=values["cache_type_k_draft"],
        type_v=values["cache_type_v_draft"],
        replace=values["spec_replace"],
    )


def _file(values: dict[str, Any]) -> tuple[Path, str] | None:
    """Return the file of the draft model and what it is called; None if there is none."""
    flag = "--model-draft"
    path = downloaded_model(values["model_draft"], values["hf_repo_draft"], None, flag)
    if path is None:
        return None
    named = pulled_model(path, flag)
    check_gguf(named[0])  # before the target, which may take long to load
    return named


def _placement(values: dict[str, Any]) -> Placement:
    """Return where the draft model's weights lie."""
    from ngramspec.llamacpp.placement import Placement

    return Placement(
        layers_of(values["n_gpu_layers_draft"], "--n-gpu-layers-draft"),
        devices=names_in(values["device_draft"]),
        cpu_experts=ALL_LAYERS if values["cpu_moe_draft"] else values["n_cpu_moe_draft"],
        buffers=buffers_of(values["override_tensor_draft"], "--override-tensor-draft"),
    )


def _notes(values: dict[str, Any]) -> list[str]:
    """Return what to tell about options that do nothing."""
    notes = []
    if values["draft_p_split"] is not None:
        notes.append("--draft-p-split does nothing: drafts are not split")
    return notes


# What an assistant has of the target, and the options that say it of a draft model.
_OF_THE_TARGET = {
    "device_draft": "--device-draft",
    "threads_draft": "--threads-draft",
    "threads_batch_draft": "--threads-batch-draft",
    "ctx_size_draft": "--ctx-size-draft",
    "cache_type_k_draft": "--cache-type-k-draft",
    "cache_type_v_draft": "--cache-type-v-draft",
    "spec_replace": "--spec-replace",
}
# Where weights lie: an assistant has its own, heads in the model's file have not.
_OF_WEIGHTS = {
    "n_gpu_layers_draft": "--n-gpu-layers-draft",
    "cpu_moe_draft": "--cpu-moe-draft",
    "n_cpu_moe_draft": "--n-cpu-moe-draft",
    "override_tensor_draft": "--override-tensor-draft",
}
_DEFAULTS = (None, 0, False, (), CACHE_TYPE)  # of all these options
_NAMES = (
    *("model_draft", "hf_repo_draft", "spec_draft_n_max", "spec_draft_n_min", "draft_p_min"),
    *("n_gpu_layers_draft", "device_draft", "threads_draft", "threads_batch_draft"),
    *("ctx_size_draft", "cache_type_k_draft", "cache_type_v_draft", "cpu_moe_draft"),
    *("n_cpu_moe_draft", "override_tensor_draft", "draft_p_split"),
    "spec_replace",
)
