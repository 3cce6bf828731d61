"""What a server's model takes: a line at its start, and `memory` in /props."""

from __future__ import annotations

from ngramspec.llamacpp.placement import Placement, gpus
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.server import Memory
from ngramspec.sizes import size_text

SMALL = 1024  # tokens of a slot's part of a shared cache: prompt and answer of many a request


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
    """Return it as a line."""
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
    """Return where the layers are."""
    layers, devices = target.model.n_gpu_layers, gpus(placement)
    if not layers or not devices:
        return "CPU"
    count = "all" if layers < 0 or layers > target.model.num_layers else layers
    names = " and ".join(f"{one.name} ({one.description})" for one in devices)
    return f"{count} of {target.model.num_layers + 1} layers on {names}"
