"""The `vllm.general_plugins` entry point: our drafter in place of vLLM's for `method="suffix"`.

Nothing happens unless NGRAMSPEC_VLLM=suffix is set: vLLM loads plugins before it has a
configuration. vLLM may call this in each of its processes, and more than once in one.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from typing import Any

from ngramspec.hosts.vllm.counters import log

SWITCH = "NGRAMSPEC_VLLM"
HOME = "vllm.v1.spec_decode.suffix_decoding"
NAME = "SuffixDecodingProposer"
RUNNER = "vllm.v1.worker.gpu_model_runner"
BATCH = "vllm.v1.worker.gpu_input_batch"
CONFIG = "vllm.config.speculative"
CHECK = "has_arctic_inference"  # a function in CONFIG; the method is refused if it returns False
# Parameters of the methods that are replaced, without self.
INIT = ("vllm_config",)
PROPOSE = ("num_speculative_tokens", "input_batch", "sampled_token_ids", "slot_mappings")
ADD = ("request",)
BATCH_FIELDS = ("req_id_to_index", "num_prompt_tokens", "token_ids_cpu", "num_tokens_no_spec")


def register() -> None:
    """Install the proposer if the environment asks for it; log why if that is not possible."""
    kind = os.environ.get(SWITCH, "")
    if not kind:
        return
    if kind != "suffix":
        log.warning("ngramspec: %s must be suffix, got %r: nothing is changed", SWITCH, kind)
        return
    try:
        problem = install()
    except Exception as error:  # vLLM is free to change all of this
        problem = f"{type(error).__name__}: {error}"
    if problem:
        log.warning("ngramspec does not fit this vLLM, which goes on without it: %s", problem)


def install() -> str:
    """Replace the proposer class; return why it was left alone, "" when it is in place.

    Raises:
        ImportError, AttributeError: vLLM lacks a module or name that is needed; nothing is changed.
    """
    home, config = importlib.import_module(HOME), importlib.import_module(CONFIG)
    base = getattr(home, NAME)
    getattr(config, CHECK)
    try:
        with_arctic = importlib.util.find_spec("arctic_inference") is not None
    except ValueError:  # it is imported, but was not found in the usual way
        with_arctic = True
    if not getattr(base, "is_ngramspec", False):
        batch = importlib.import_module(BATCH).InputBatch
        problem = misfit(base, batch)
        if problem:
            return problem
        from ngramspec.hosts.vllm.request_options import hold_options
        from ngramspec.hosts.vllm.suffix import suffix_proposer

        base = suffix_proposer(base)
        if not getattr(batch.add_request, "holds_options", False):
            batch.add_request = hold_options(batch.add_request)
        setattr(home, NAME, base)
    runner = sys.modules.get(RUNNER)  # it imports the class by name
    if runner is not None:
        setattr(runner, NAME, base)
    if not with_arctic:
        setattr(config, CHECK, lambda: True)  # the method is accepted without Arctic Inference
    return ""


def misfit(base: Any, input_batch: Any) -> str:
    """Return how vLLM differs from what the proposer expects, "" if it does not."""
    for owner, method, expected in (
        (base, "__init__", INIT),
        (base, "propose", PROPOSE),
        (input_batch, "add_request", ADD),
    ):
        names = tuple(inspect.signature(getattr(owner, method)).parameters)[1:]
        if names != expected:
            name = f"{owner.__name__}.{method}"
            return f"{name} takes {', '.join(names)} instead of {', '.join(expected)}"
    source = inspect.getsource(input_batch)
    for name in BATCH_FIELDS:
        if f"self.{name}" not in source:
            return f"InputBatch has no {name}"
    if not hasattr(input_batch, "req_ids"):
        return "InputBatch has no req_ids"
    return ""
