"""A scenario for vLLM's model runner, and the calls that it makes of a proposer, as JSON.

In tests/, this records them anew from the vLLM that VLLM_SOURCES names:
PYTHONPATH=..:. python -m helpers.vllm_scenario hosts/vllm/data/vllm_calls.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VERSION = "0.33.0"
MAX_LENGTH = 160


def model(req_id: str, text: Sequence[int]) -> int:
    """A text that goes round in circles of 5 to 9 tokens, with a mistake now and then."""
    back = 5 + int(req_id[1:]) % 5
    if len(text) % 13 == 0:
        return 40 + len(text) % 7
    return text[-back]


def prompt(number: int, size: int = 24) -> list[int]:
    """A prompt of its own."""
    return [200 + number, *((i * (number + 3)) % 17 + 3 for i in range(size - 1))]


def play(engine: Any) -> None:
    """Begin, chunk, pause, resume, swap and end requests."""
    for number in range(4):
        engine.add(f"r{number}", prompt(number))
    engine.step(chunked=["r2"])
    engine.step()
    engine.step()
    engine.step(paused=["r1"])  # preempted: the last row slides into its place
    engine.finish("r0")
    engine.add("r4", prompt(4))
    engine.step(paused=["r1"])
    engine.step(chunked=["r1"])  # it comes back, and is computed again
    engine.step()
    engine.runner.input_batch.swap_states(0, 2)  # as an attention backend does
    engine.step()
    engine.finish("r3")
    engine.finish("r4")
    engine.add("r5", prompt(1))  # what r1 was asked, too
    engine.step()
    for _ in range(3):
        engine.step()


class Recorder:
    """Stand between a runner and its proposer, and write down all calls."""

    def __init__(self, proposer: Any, rows: Any) -> None:
        self.proposer, self.rows = proposer, rows
        self.calls: list[dict[str, Any]] = []

    def propose(self, sampled: Any, lengths: Any, table: Any, slot_mappings: Any = None) -> Any:
        drafts = self.proposer.propose(sampled, lengths, table, slot_mappings=slot_mappings)
        num = len(sampled)
        self.calls.append(
            {
                "ids": self.rows(),
                "sampled": [list(map(int, one)) for one in sampled],
                "texts": [table[row, : lengths[row]].tolist() for row in range(num)],
                "table": [list(table.shape), str(table.dtype), table.flags.c_contiguous],
                "lengths": [list(lengths.shape), str(lengths.dtype)],
                "drafts": [list(one) for one in drafts],
            }
        )
        return drafts


def record() -> dict[str, Any]:
    """Play the scenario with our proposer in vLLM's runner; return all calls."""
    from helpers.vllm_engine import Engine, config, load

    proposer = load("vllm.v1.spec_decode.custom_class_proposer").create_custom_proposer(
        config(**OPTIONS)
    )
    recorder = Recorder(proposer, lambda: engine.rows())
    engine = Engine(recorder, "custom_class", model)
    play(engine)
    return {"vllm": VERSION, "calls": recorder.calls}


OPTIONS = {"drafter": "ngram-simple", "policy": "fixed", "size_n": 3, "size_m": 4}

if __name__ == "__main__":
    text = json.dumps(record()).replace('{"ids"', '\n{"ids"')
    Path(sys.argv[1]).write_text(text + "\n")
