"""Prints as JSON what a context was planned to take and by how much it made this process grow.

Arguments: the model's file and ContextSettings as JSON.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np

from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.llamacpp.fit.dry import DRAFT_ROWS, DryModel
from ngramspec.llamacpp.loading import Loading
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.placement import Placement
from ngramspec.llamacpp.settings import ContextSettings
from ngramspec.llamacpp.target import LlamaTarget


def held(kind: str) -> int:
    """Return bytes of this process: allocated (VmData), or in use and of no file (RssAnon)."""
    match = re.search(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def main(path: str, arguments: str) -> None:
    """Measure one model."""
    settings = ContextSettings(**json.loads(arguments))
    with DryModel(path, Placement(), Loading()) as dry:
        need = dry.need(settings)
    with LlamaModel(path) as model:
        _ = model.state_bytes
        before = held("VmData"), held("RssAnon")
        with LlamaTarget(model, settings) as target:
            count = min(target.max_batch, settings.context_size)
            ids = np.random.default_rng(1).integers(5, target.vocab_size, count).astype(np.int32)
            outputs = min(DRAFT_ROWS * settings.slots, count)
            batch, rows = Batch(count), Rows(target.vocab_size)
            if count > outputs:
                batch.add(0, 0, ids[: count - outputs], output=False)
            batch.add(0, count - outputs, ids[count - outputs : count - outputs + 1],
                      draft=ids[count - outputs + 1 :])  # fmt: skip
            target.decode(batch, rows)
            allocated, used = held("VmData") - before[0], held("RssAnon") - before[1]
            buffers = target.buffers
    real = buffers.context + sum(buffers.compute.values())
    print(json.dumps({
        "planned": need.context + need.host_compute, "real": real, "outputs": need.outputs,
        "allocated": allocated, "used": used,
    }))  # fmt: skip


main(*sys.argv[1:])
