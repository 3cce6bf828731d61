"""A small LoRA adapter in GGUF for the embedded model, with random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

RANK = 4
SHAPES = {"attn_q": (256, 512), "ffn_down": (384, 256)}  # inputs and outputs


def write_lora(path: Path, seed: int = 1, *, inputs: int = 0, task: str = "") -> Path:
    """Write an adapter that changes what the embedded model says, and return its path.

    inputs: Columns of its matrices instead of the right number, 0 = the right one.
    task: The name of its task.
    """
    random = np.random.default_rng(seed)
    writer = GGUFWriter(path, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(RANK))
    if task:
        writer.add_string("adapter.lora.task_name", task)
    for layer in range(2):
        for name, (width, height) in SHAPES.items():
            a = random.normal(0, 0.3, (RANK, inputs or width)).astype(np.float32)
            b = random.normal(0, 0.3, (height, RANK)).astype(np.float32)
            writer.add_tensor(f"blk.{layer}.{name}.weight.lora_a", a)
            writer.add_tensor(f"blk.{layer}.{name}.weight.lora_b", b)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
