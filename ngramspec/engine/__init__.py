"""The multi-slot engine: continuous batching with drafts, for any target model.

    with LlamaModel(path) as model, LlamaTarget(model, slots=4) as target:
        engine = Engine(target, "ngram-mod,ngram-cache", slots=4)
        answers = engine.generate([Request(prompt_ids=model.tokenize("Once upon a time"))])

One step: schedule, propose, decode, verify, accept, emit.
"""

from __future__ import annotations

from ngramspec._native.engine.figures import EngineStats, Histogram, Timings
from ngramspec._native.engine.shadow import Shadow
from ngramspec._native.engine.trace import DecisionTrace
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.engine.engine import Engine
from ngramspec.engine.generation import Chunk, Generation, Progress, TokenLogprob
from ngramspec.engine.info import Drafting, DraftModelInfo, SlotInfo
from ngramspec.engine.request import ReasoningBudget, Request, Speculation
from ngramspec.engine.sampling import Sampling
from ngramspec.engine.sources.draft_model import DraftModel
from ngramspec.engine.sources.mtp import MtpHeads
from ngramspec.engine.sources.source import DraftSource
from ngramspec.engine.target import Target
from ngramspec.engine.thread import EngineThread
from ngramspec.files.slot_file import SavedSlot, read_slot, write_slot

__all__ = [
    "AutoPolicy",
    "Chunk",
    "DecisionTrace",
    "DraftModel",
    "DraftModelInfo",
    "DraftSource",
    "Drafting",
    "Engine",
    "EngineStats",
    "EngineThread",
    "Generation",
    "Histogram",
    "MtpHeads",
    "Progress",
    "ReasoningBudget",
    "Request",
    "Sampling",
    "SavedSlot",
    "Shadow",
    "SlotInfo",
    "Speculation",
    "Target",
    "Timings",
    "TokenLogprob",
    "read_slot",
    "write_slot",
]
