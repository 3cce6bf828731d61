"""Options that say on which devices and in which memory a model's weights lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import click

from ngramspec.cli.llama_cpp.words import names_in, numbers_in
from ngramspec.cli.options import COUNT, Decorator, option, options
from ngramspec.errors import InputError

if TYPE_CHECKING:
    from ngramspec.llamacpp.placement import Placement

SECTION = "Devices"
ALL_LAYERS = -1


def layers_option(
    section: str, otherwise: str = "auto; the embedded model and --exact: 0"
) -> Decorator:
    """Return --n-gpu-layers. otherwise: the default, for --help."""
    return option(section, "-ngl", "--n-gpu-layers", "--gpu-layers", "n_gpu_layers",
                  env="N_GPU_LAYERS", metavar="N",
                  help="Layers on the GPU: a number, all, or auto: those that fit.  "
                  f"[default: {otherwise}]")  # fmt: skip


def placement_options() -> Decorator:
    """Return the options of a placement."""
    return options(
        layers_option(SECTION),
        option(SECTION, "-dev", "--device", env="DEVICE", metavar="NAMES",
               help="Devices for the layers, comma-separated; none: no device.  [default: all]"),
        option(SECTION, "--list-devices", is_flag=True, is_eager=True, expose_value=False,
               callback=_list_devices, help="Show the devices and exit."),
        option(SECTION, "-sm", "--split-mode", env="SPLIT_MODE",
               type=click.Choice(["none", "layer", "row", "tensor"]), metavar="MODE",
               help="How GPUs share the model: none (one has it), layer, row, tensor."
               "  [default: layer]"),
        option(SECTION, "-ts", "--tensor-split", env="TENSOR_SPLIT", metavar="N,N,...",
               help="Share of each GPU, such as 3,1.  [default: by free memory]"),
        option(SECTION, "-mg", "--main-gpu", env="MAIN_GPU", type=COUNT, default=0,
               help="The GPU for everything (split mode none) or what is not split (row)."),
        option(SECTION, "-ot", "--override-tensor", env="OVERRIDE_TENSOR", multiple=True,
               metavar="PATTERN=MEMORY",
               help="Keep tensors whose names the pattern finds in another memory, such as "
               "exps=CPU; comma-separated (repeatable)."),
        option(SECTION, "-cmoe", "--cpu-moe", env="CPU_MOE", is_flag=True,
               help="Keep the experts of a mixture in the CPU's memory."),
        option(SECTION, "-ncmoe", "--n-cpu-moe", env="N_CPU_MOE", type=COUNT, default=0,
               help="The same for the first N layers."),
        option(SECTION, "-ncffn", "--n-cpu-ffn", env="N_CPU_FFN", type=COUNT, default=0,
               help="The same for feed-forward networks of models that are no mixtures."),
        option(SECTION, "--kv-offload/--no-kv-offload", "-kvo/-nkvo", "kv_offload",
               env="KV_OFFLOAD", default=True, help="Keep the cache where the layers are."),
        option(SECTION, "--op-offload/--no-op-offload", default=True,
               help="Let a GPU compute large operations of layers that it does not hold."),
    )  # fmt: skip


def placement_of(values: Mapping[str, Any]) -> Placement:
    """Return the placement that a command's options give; those it does not have are the default.

    Raises:
        InputError: A value is not understood or out of its bounds.
    """
    from ngramspec.llamacpp.placement import Placement

    layers = layers_of(values["n_gpu_layers"], "--n-gpu-layers")
    experts = ALL_LAYERS if values.get("cpu_moe") else values.get("n_cpu_moe", 0)
    return Placement(
        layers,
        devices=names_in(values.get("device")),
        cpu_experts=experts,
        cpu_dense=values.get("n_cpu_ffn", 0),
        buffers=buffers_of(values.get("override_tensor", ()), "--override-tensor"),
        split=values.get("split_mode"),
        main_gpu=values.get("main_gpu", 0),
        shares=numbers_in(values.get("tensor_split"), "--tensor-split"),
    )


def layers_of(text: str | None, flag: str) -> int | Literal["auto"]:
    """Return how many layers an option puts on the GPU: -1 = all, "auto" = those that fit.

    Raises:
        InputError: It is neither a number nor one of the words.
    """
    if text is None or text in ("auto", ""):
        return "auto"
    if text == "all":
        return ALL_LAYERS
    try:
        return max(ALL_LAYERS, int(text))
    except ValueError:
        raise InputError(f"{flag} must be a number, all or auto, got {text!r}") from None


def buffers_of(texts: Iterable[str], flag: str) -> tuple[tuple[str, str], ...]:
    """Return pairs of a pattern and a kind of memory.

    Raises:
        InputError: A part is no such pair.
    """
    pairs = [part.rpartition("=") for text in texts for part in names_in(text)]
    for pattern, mark, memory in pairs:
        if not (pattern and mark and memory):
            text = f"{pattern}{mark}{memory}"
            raise InputError(f"{flag} must be PATTERN=MEMORY, such as exps=CPU, got {text!r}")
    return tuple((pattern, memory) for pattern, _, memory in pairs)


def _list_devices(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from ngramspec.llamacpp.placement import device_lines
    from ngramspec.text.tokenizers.llama_library import load_library

    load_library()
    lines = device_lines() or ["none: this build of llama.cpp sees no GPU"]
    click.echo("\n".join(lines))
    ctx.exit()
