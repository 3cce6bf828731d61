"""What a server's model takes: lines at its start, and `memory` in /props."""

from __future__ import annotations

import re
from pathlib import Path

from ngramspec.cli.output import printable
from ngramspec.llamacpp.placement import Placement, gpus
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.messages import size_text
from ngramspec.server import Memory

SMALL = 1024  # tokens of a slot's part of a shared cache: prompt and answer of many a request
_FIRST = re.compile(r"-00001-of-(\d{5})\.gguf$")  # of a split model


def memory_of(target: LlamaTarget, placement: Placement) -> Memory:
    """Return what a target takes.

    Args:
        target: The target.
        placement: Of its model's weights.
    """
    model, buffers, settings = target.model, target.buffers, target.settings
    shared = settings.kv_unified and settings.slots > 1
    return Memory(
        weights=model.size_bytes,
        context=buffers.context,
        context_per_slot=buffers.context if shared else buffers.context // settings.slots,
        context_shared=shared,
        compute=buffers.outputs + sum(buffers.compute.values()),
        device=_device(target, placement),
    )


def memory_line(memory: Memory, slots: int) -> str:
    each = f"{size_text(memory.context_per_slot)} per slot"
    if memory.context_shared:
        each = f"shared by {slots} slots"
    return (
        f"memory: weights {size_text(memory.weights)}, context {size_text(memory.context)} "
        f"({each}), computing {size_text(memory.compute)}; {memory.device}"
    )


def sharing_line(target: LlamaTarget) -> str:
    """Return what a small cache for many slots means and what to change, "" if it is large."""
    cells, slots, each = target.cells, target.num_sequences, target.context_size
    if cells is None or slots == 1 or cells >= slots * min(each, SMALL):
        return ""
    return (
        f"{slots} slots share {cells} tokens of context: requests that need more together wait for "
        f"one another; -c {slots * each} -np {slots} lets each slot hold {each}"
    )


def _device(target: LlamaTarget, placement: Placement) -> str:
    layers, devices = target.model.n_gpu_layers, gpus(placement)
    if not layers or not devices:
        return "CPU"
    count = "all" if layers < 0 or layers > target.model.num_layers else layers
    names = " and ".join(f"{one.name} ({one.description})" for one in devices)
    return f"{count} of {target.model.num_layers + 1} layers on {names}"


def loading_line(path: Path, name: str = "") -> str:
    """Return what is being loaded, and how large its file is, or its files are.

    Args:
        path: A model's file; for a split model, its first.
        name: Of the model, "" = that of the file.

    Raises:
        OSError: A file is not there.
    """
    size = sum(part.stat().st_size for part in _parts(path))
    return f"loading {printable(name or path.name)} ({size_text(size)}) ..."


def _parts(path: Path) -> list[Path]:
    """Return the files of a model."""
    match = _FIRST.search(path.name)
    if match is None:
        return [path]
    stem, count = path.name[: match.start()], match[1]
    return [
        path.with_name(f"{stem}-{number:05}-of-{count}.gguf") for number in range(1, int(count) + 1)
    ]
