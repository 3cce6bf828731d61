"""Which model, and how it is loaded: where its weights lie, how its file is read, its adapters."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from ngramspec.cli.options import OFF, ON, complete_model, flag, names_in, numbers_in, rows_in
from ngramspec.errors import InputError
from ngramspec.llamacpp.loading import LAZY_MODES, MODES, Loading, Value
from ngramspec.llamacpp.placement import ALL, AUTO, SPLITS, Placement


@dataclass
class ModelOptions:
    """What names the model."""

    section = "Model"
    # fmt: off
    model: Path | None = flag("-m --model", "GGUF file, or name of a model that Ollama has pulled."
        "  [default: the embedded model]", env="MODEL", shell_complete=complete_model)
    hf_repo: str | None = flag("-hf -hfr --hf-repo", "The model by its name on Hugging Face, if it "
        "is downloaded.", env="HF_REPO", metavar="USER/MODEL[:QUANT]")
    hf_file: str | None = flag("-hff --hf-file", "Its file there, instead of a quantisation.",
        env="HF_FILE", metavar="NAME")
    # fmt: on

    def resolve(self) -> None:
        """Set `model` to the file that the options name; None if they name none.

        Raises:
            click.UsageError, InputError: As downloaded_model.
            ModelNotFoundError, FormatError, OSError: As pulled_model.
        """
        path = downloaded_model(self.model, self.hf_repo, self.hf_file, "--model")
        self.model = None if path is None else pulled_model(path, "--model")[0]


def downloaded_model(
    path: Path | None, repo: str | None, file: str | None, flag: str
) -> Path | None:
    """Return the file of a model that is given by its path or its name on Hugging Face.

    Args:
        path: What `flag` gives; returned as it is.
        repo: The name on Hugging Face.
        file: The file there.
        flag: The option for `path`.

    Raises:
        click.UsageError: Both are given, or a file in no repository.
        InputError: It is not downloaded; says how to get it.
    """
    from ngramspec.models.huggingface import find_downloaded

    if repo is None:
        if file is not None:
            raise click.UsageError("--hf-file needs --hf-repo")
        return path
    if path is not None:
        raise click.UsageError(f"give either {flag} or its name on Hugging Face")
    return find_downloaded(repo, file)


def pulled_model(path: Path, flag: str) -> tuple[Path, str]:
    """Return the file of a model, also where its name in Ollama's store was given, and that name.

    Args:
        path: What `flag` gives.
        flag: The option.

    Raises:
        ModelNotFoundError: No file and no model of Ollama's has the name.
        InputError: It is no valid name, or the model needs a LoRA adapter.
        FormatError, OSError: As find_gguf.
    """
    from ngramspec.models.ollama.store import ModelNotFoundError, default_roots, find_gguf

    try:
        return find_gguf(path, default_roots(os.environ.get("OLLAMA_MODELS")))
    except (ModelNotFoundError, InputError) as error:
        kind = ModelNotFoundError if isinstance(error, ModelNotFoundError) else InputError
        raise kind(f"{flag} {path}: no such file, and {error}") from None


def _list_devices(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from ngramspec.llamacpp.placement import device_lines
    from ngramspec.text.tokenizers.llama_library import load_library

    load_library()
    lines = device_lines() or ["none: this build of llama.cpp sees no GPU"]
    click.echo("\n".join(lines))
    ctx.exit()


def layers_flag(default: str) -> Any:
    """Return --n-gpu-layers. default: What it is without the option, for --help."""
    return flag(
        "-ngl --n-gpu-layers --gpu-layers",
        f"Layers on the GPU: a number, all, or auto: those that fit.  [default: {default}]",
        env="N_GPU_LAYERS",
        metavar="N",
    )


@dataclass
class PlacementOptions:
    """On which devices and in which memory a model's weights lie."""

    section = "Devices"
    # fmt: off
    n_gpu_layers: str | None = layers_flag("auto; the embedded model and --exact: 0")
    device: str | None = flag("-dev --device", "Devices for the layers, comma-separated; none: no "
        "device.  [default: all]", env="DEVICE", metavar="NAMES")
    list_devices: bool = flag("--list-devices", "Show the devices and exit.", default=False,
        is_eager=True, callback=_list_devices)
    split_mode: str | None = flag(
        "-sm --split-mode", "How GPUs share the model: none (one has it), layer, row, tensor."
        "  [default: layer]", env="SPLIT_MODE", choices=SPLITS, metavar="MODE")
    tensor_split: str | None = flag("-ts --tensor-split", "Share of each GPU, such as 3,1.  "
        "[default: by free memory]", env="TENSOR_SPLIT", metavar="N,N,...")
    main_gpu: int = flag("-mg --main-gpu", "The GPU for everything (split mode none) or what is "
        "not split (row).", env="MAIN_GPU", default=0, low=0)
    override_tensor: tuple[str, ...] = flag("-ot --override-tensor", "Keep tensors whose names the "
        "pattern finds in another memory, such as exps=CPU; comma-separated (repeatable).",
        env="OVERRIDE_TENSOR", default=(), metavar="PATTERN=MEMORY")
    cpu_moe: bool = flag("-cmoe --cpu-moe", "Keep the experts of a mixture in the CPU's memory.",
        env="CPU_MOE", default=False)
    n_cpu_moe: int = flag("-ncmoe --n-cpu-moe", "The same for the first N layers.", env="N_CPU_MOE",
        default=0, low=0)
    n_cpu_ffn: int = flag("-ncffn --n-cpu-ffn", "The same for feed-forward networks of models that "
        "are no mixtures.", env="N_CPU_FFN", default=0, low=0)
    kv_offload: bool = flag("--kv-offload/--no-kv-offload -kvo/-nkvo", "Keep the cache where the "
        "layers are.", env="KV_OFFLOAD", default=True)
    op_offload: bool = flag("--op-offload/--no-op-offload", "Let a GPU compute large operations of "
        "layers that it does not hold.", default=True)
    # fmt: on

    def placement(self) -> Placement:
        """Return where the weights lie.

        Raises:
            InputError: A value is not understood or out of its bounds.
        """
        return Placement(
            layers_in(self.n_gpu_layers, "--n-gpu-layers"),
            devices=names_in(self.device),
            cpu_experts=ALL if self.cpu_moe else self.n_cpu_moe,
            cpu_dense=self.n_cpu_ffn,
            buffers=buffers_in(self.override_tensor, "--override-tensor"),
            split=self.split_mode,
            main_gpu=self.main_gpu,
            shares=numbers_in(self.tensor_split, "--tensor-split"),
        )


def layers_in(text: str | None, flag: str) -> int | Literal["auto"]:
    """Return how many layers an option puts on the GPU: -1 = all, "auto" = those that fit.

    Raises:
        InputError: It is neither a number nor one of the words.
    """
    if text is None or text in ("auto", ""):
        return AUTO
    if text == "all":
        return ALL
    try:
        return max(ALL, int(text))
    except ValueError:
        raise InputError(f"{flag} must be a number, all or auto, got {text!r}") from None


def buffers_in(texts: Iterable[str], flag: str) -> tuple[tuple[str, str], ...]:
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


@dataclass
class LoadingOptions:
    """How a model's file is read."""

    section = "Loading"
    # fmt: off
    mmap: bool = flag("--mmap/--no-mmap", "Memory-map the file.", env="MMAP", default=True)
    mlock: bool = flag("--mlock", "Lock the model in memory.", env="MLOCK", default=False)
    load_mode: str | None = flag(
        "-lm --load-mode", "Instead of --mmap and --mlock: auto, none, mmap, mlock, mmap+mlock, or "
        "dio (direct I/O).", env="LOAD_MODE", choices=tuple(MODES), metavar="MODE")
    lazy_mode: str = flag(
        "-lzm --lazy-mode", "Read large tables row by row when needed: on, off, or auto (above "
        "4 GiB).", env="LAZY_MODE", default=Loading.lazy, choices=LAZY_MODES, metavar="MODE")
    check_tensors: bool = flag(
        "--check-tensors", "Look for invalid values in the weights.", default=False)
    override_kv: tuple[str, ...] = flag(
        "--override-kv", "Metadata to use instead of the file's; TYPE: int, float, bool, str; "
        "comma-separated (repeatable).", default=(), metavar="KEY=TYPE:VALUE")
    repack: bool | None = flag("--repack/--no-repack /-nr", "Repack weights for the CPU.  "
        "[default: unless llama.cpp has AMX kernels]", env="REPACK")
    no_host: bool = flag("--no-host", "Bypass the host's buffer, so that others can be used.",
        env="NO_HOST", default=False)
    # fmt: on

    def loading(self) -> Loading:
        """Return how to load.

        Raises:
            InputError: A value is not understood or out of its bounds.
        """
        flags = {(True, True): "mmap+mlock", (False, True): "mlock", (False, False): "none"}
        return Loading(
            mode=self.load_mode or flags.get((bool(self.mmap), bool(self.mlock)), Loading.mode),
            lazy=self.lazy_mode,
            check_tensors=self.check_tensors,
            repack=self.repack,
            host_buffers=not self.no_host,
            metadata=metadata_in(self.override_kv),
        )


def metadata_in(texts: Iterable[str]) -> dict[str, Value]:
    """Return the metadata of texts such as `key=int:4,other=bool:true`.

    Raises:
        InputError: One has another form, or a value does not fit its type.
    """
    metadata: dict[str, Value] = {}
    for text in rows_in(texts):
        key, mark, typed = text.partition("=")
        kind, colon, value = typed.partition(":")
        if not (key and mark and colon):
            raise InputError(f"--override-kv must be KEY=TYPE:VALUE, got {text!r}")
        metadata[key] = _value(kind, value, text)
    return metadata


def _value(kind: str, value: str, text: str) -> Value:
    try:
        if kind == "bool":
            return {**dict.fromkeys(ON, True), **dict.fromkeys(OFF, False)}[value]
        if kind == "str":
            return value
        return int(value) if kind == "int" else {"float": float}[kind](value)
    except (KeyError, ValueError):
        hint = "int, float, bool or str, and a value of that type"
        raise InputError(f"--override-kv {text}: the type must be {hint}") from None


@dataclass
class LoraOptions:
    """Which LoRA adapters are loaded, and how strong each is."""

    section = "Adapters"
    # fmt: off
    lora: tuple[str, ...] = flag("--lora", "LoRA adapters in GGUF, comma-separated (repeatable).",
        default=(), metavar="FILE")
    lora_scaled: tuple[str, ...] = flag(
        "--lora-scaled", "The same with scales; 0: not applied.", default=(), metavar="FILE:SCALE")
    lora_init_without_apply: bool = flag("--lora-init-without-apply", "Apply adapters only to "
        "requests that name them in `lora`, or after POST /lora-adapters.", default=False)
    # fmt: on

    def adapters(self) -> list[tuple[str, float]]:
        """Return files of adapters and their scales, in the order of their numbers.

        Raises:
            InputError: A scale is missing or no number.
        """
        adapters = [(path, 1.0) for path in rows_in(self.lora)]
        for text in rows_in(self.lora_scaled):
            path, mark, scale = text.rpartition(":")
            try:
                adapters.append((path, float(scale)))
            except ValueError:
                mark = ""
            if not (path and mark):
                raise InputError(f"--lora-scaled must be FILE:SCALE, got {text!r}")
        if self.lora_init_without_apply:
            return [(path, 0.0) for path, _ in adapters]
        return adapters
