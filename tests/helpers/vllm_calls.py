"""Recorded calls of vLLM's runner, and their batches."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np

from helpers.paths import ROOT

RECORDED = ROOT / "tests" / "hosts" / "vllm" / "data" / "vllm_calls.json"
CALLS = json.loads(RECORDED.read_text())["calls"]


def batch_of(call: Any) -> Any:
    """A recorded call's batch, as far as proposers look at it."""
    shape = call["table"][0]
    table, lengths = np.full(shape, 7, np.int32), np.full(shape[0], 99, np.int32)
    for row, text in enumerate(call["texts"]):
        table[row, : len(text)] = text
        lengths[row] = len(text)
    return SimpleNamespace(
        req_ids=call["ids"],
        req_id_to_index={name: row for row, name in enumerate(call["ids"])},
        token_ids_cpu=table,
        num_tokens_no_spec=lengths,
        num_prompt_tokens=np.full(shape[0], 24, np.int32),
    )
