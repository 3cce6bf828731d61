"""Drafts of a model at temperatures above 0: drawn with the request's numbers, or the likeliest.

    python benchmarks/drawn_drafts.py model.gguf
    python benchmarks/drawn_drafts.py model.gguf --types q3_k_m q8_0 --temperatures 0.8 --json

The draft models are coarser copies of the model itself, made by llama.cpp from its file. The policy
is `fixed`: a draft has as many tokens as its model may draft, whatever passes cost on this machine.
`right` is the share of the drafted tokens that were right, `passes` what the answers took; `equal`
says whether the texts are those without drafts.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import llama_cpp

from ngramspec import LLM
from ngramspec.engine.generation import Generation
from ngramspec.engine.sources.second_model import DraftChoice
from ngramspec.llamacpp.draft_model import DraftModelSettings

TYPES = {
    "q2_k": llama_cpp.LLAMA_FTYPE_MOSTLY_Q2_K,
    "q3_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q3_K_M,
    "q4_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "q5_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_K_M,
    "q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
}
QUESTIONS = (
    "Write a short story about a lighthouse keeper who finds a map.",
    "Explain how a hash table works, with an example in Python.",
    "List ten tips for somebody who learns to cook.",
    "What is the difference between TCP and UDP?",
)


def coarser(model: Path, kind: str, folder: Path) -> Path:
    """Return a copy of a model with weights of another type."""
    path = folder / f"{kind}.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = TYPES[kind], True, 1
    files = os.fsencode(model), os.fsencode(path)
    if llama_cpp.llama_model_quantize(*files, ctypes.byref(params)):
        raise SystemExit(f"llama.cpp could not make {kind} of {model}")
    return path


def answers(llm: LLM, temperature: float, tokens: int) -> Iterator[Generation]:
    """Yield the answers to the questions, each with its own seed."""
    for seed, question in enumerate(QUESTIONS):
        messages = [{"role": "user", "content": question}]
        yield llm.chat(messages, max_tokens=tokens, temperature=temperature, seed=seed)


def run(llm: LLM, temperature: float, tokens: int, plain: list[Any]) -> dict[str, Any]:
    """Return what came of the drafts of all answers."""
    generations = list(answers(llm, temperature, tokens))
    timings = [generation.timings for generation in generations]
    drafted = sum(one.num_draft_tokens for one in timings)
    right = sum(one.num_accepted_tokens for one in timings)
    return {
        "right": right / drafted if drafted else 0.0,
        "passes": sum(one.num_steps for one in timings),
        "equal": [list(generation.token_ids) for generation in generations] == plain,
    }


def main() -> None:
    """Measure, and show each row at once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.3, 0.8, 1.2])
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--longest", type=int, default=4, help="tokens of a draft")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    common: dict[str, Any] = {
        "slots": 1,
        "context_size": 2048,
        "threads": options.threads,
        "calibrate": 0,
    }
    plain = {}
    with LLM(options.model, None, **common) as llm:
        for temperature in options.temperatures:
            generations = answers(llm, temperature, options.tokens)
            plain[temperature] = [list(generation.token_ids) for generation in generations]
    rows = []
    never = mock.patch.object(DraftChoice, "start", return_value=None)
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.types:
            path = coarser(options.model, kind, Path(folder))
            for way in ("likeliest", "drawn"):
                second = DraftModelSettings(path=path, n_max=options.longest, p_min=0.0)
                with (
                    never if way == "likeliest" else contextlib.nullcontext(),
                    LLM(options.model, None, policy="fixed", draft_model=second, **common) as llm,
                ):
                    for temperature in options.temperatures:
                        row = run(llm, temperature, options.tokens, plain[temperature])
                        rows.append({"type": kind, "temperature": temperature, "way": way, **row})
                        if not options.json:
                            show(rows[-1])
            path.unlink()
    if options.json:
        print(json.dumps(rows, indent=1))


def show(row: dict[str, Any]) -> None:
    """Print a row."""
    same = "the same texts" if row["equal"] else "OTHER TEXTS"
    print(
        f"{row['type']:7} temperature {row['temperature']:3} {row['way']:9} "
        f"right {row['right']:.3f}  passes {row['passes']:4}  {same}",
        flush=True,
    )


if __name__ == "__main__":
    main()
