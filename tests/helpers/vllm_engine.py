"""vLLM's own model runner without a model: its states, bookkeeping and drafting, on the CPU."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

SOURCES = "VLLM_SOURCES"  # names a folder with an unpacked vllm wheel, or an installed one's
RUNNER = "vllm.v1.worker.gpu_model_runner"
MAX_LENGTH, VOCAB = 160, 1000
Next = Callable[[str, Sequence[int]], int]  # the model: request id and text to the next token


def sources() -> Path | None:
    """Return the folder that holds the package vllm, None where it is not to be had."""
    named = os.environ.get(SOURCES, "")
    if named:
        return Path(named)
    spec = importlib.util.find_spec("vllm")
    return Path(spec.origin).parents[1] if spec is not None and spec.origin else None


def load(module: str = RUNNER) -> Any:
    """Import a module of vLLM; ImportError says what it lacks."""
    folder = sources()
    if folder is None:
        raise ImportError(f"no vllm: install it, or let {SOURCES} name an unpacked wheel")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The release is built for CUDA: without a device it takes pinned memory for granted.
        importlib.import_module("vllm.utils.torch_utils").PIN_MEMORY = False
        return importlib.import_module(module)


def config(rows: int = 8, drafted: int = 4, **additional: Any) -> SimpleNamespace:
    """The parts of a VllmConfig that proposers read."""
    return SimpleNamespace(
        additional_config={"ngramspec": additional},
        speculative_config=SimpleNamespace(
            method="custom_class",
            model="ngramspec.hosts.vllm.Proposer",
            num_speculative_tokens=drafted,
        ),
        model_config=SimpleNamespace(
            max_model_len=MAX_LENGTH, tokenizer="no/such", get_vocab_size=lambda: VOCAB
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=rows),
        parallel_config=SimpleNamespace(
            rank=0, world_size=1, tensor_parallel_size=1, distributed_executor_backend="uni"
        ),
    )


class Engine:
    """A scheduler in few lines around the real _update_states, _bookkeeping_sync and
    propose_draft_token_ids of vLLM's GPUModelRunner.

    Args:
        drafter: What the runner holds as its drafter.
        method: The speculative method.
        model: Chooses each token.
    """

    def __init__(self, drafter: Any, method: str, model: Next, rows: int = 8, most: int = 4):
        self.runner_module = load()
        self.output = load("vllm.v1.core.sched.output")
        self.torch = load("torch")
        self.model, self.most = model, most
        self.runner = self._runner(drafter, method, rows)
        self.texts: dict[str, list[int]] = {}
        self.prompt_lens: dict[str, int] = {}
        self.drafts: dict[str, list[int]] = {}
        self.running: list[str] = []
        self.seen: set[str] = set()  # by the runner
        self.finished: set[str] = set()

    def _runner(self, drafter: Any, method: str, rows: int) -> Any:
        module = self.runner_module
        runner = object.__new__(module.GPUModelRunner)
        runner.input_batch = load("vllm.v1.worker.gpu_input_batch").InputBatch(
            max_num_reqs=rows,
            max_model_len=MAX_LENGTH,
            max_num_batched_tokens=4096,
            device=self.torch.device("cpu"),
            vocab_size=VOCAB,
            block_sizes=[16],
            max_num_blocks_per_req=[64],
            num_spec_tokens=self.most,
        )
        facts: dict[str, Any] = {
            "requests": {},
            "num_prompt_logprobs": {},
            "encoder_cache": {},
            "kv_caches": [],
            "device": "cpu",
            "drafter": drafter,
            "is_pooling_model": False,
            "uses_mrope": False,
            "uses_xdrope_dim": 0,
            "use_async_scheduling": False,
            "use_async_spec_decode": False,
            "num_spec_tokens": self.most,
            "max_model_len": MAX_LENGTH,
            "late_interaction_runner": SimpleNamespace(
                on_requests_finished=lambda ids: None, register_request=lambda *a: None
            ),
            "speculative_config": SimpleNamespace(
                method=method, use_ngram_gpu=lambda: False, use_eagle=lambda: False
            ),
            "kv_cache_config": SimpleNamespace(kv_cache_groups=[]),
            "discard_request_mask": SimpleNamespace(np=np.zeros(rows, dtype=bool)),
        }
        for name, value in facts.items():
            setattr(runner, name, value)
        # What a test needs of the processes around it: one rank that is first and last.
        module.get_pp_group = lambda: SimpleNamespace(is_last_rank=True, is_first_rank=True)
        return runner

    def add(self, req_id: str, prompt: Sequence[int], extra: Mapping[str, Any] | None = None):
        """Let a request wait for its first step."""
        params = load("vllm.sampling_params").SamplingParams(
            temperature=0.0, extra_args=dict(extra) if extra else None
        )
        self.texts[req_id], self.prompt_lens[req_id] = list(prompt), len(prompt)
        self.drafts[req_id] = []
        self.running.append(req_id)
        self._params = getattr(self, "_params", {}) | {req_id: params}

    def finish(self, req_id: str) -> list[int]:
        """End a request and return what it said."""
        self.running.remove(req_id)
        if req_id in self.seen:
            self.finished.add(req_id)
            self.seen.remove(req_id)
        return self.texts.pop(req_id)[self.prompt_lens.pop(req_id) :]

    def rows(self) -> list[str]:
        """Return the request ids by row."""
        return list(self.runner.input_batch.req_ids)

    def step(self, paused: Sequence[str] = (), chunked: Sequence[str] = ()) -> dict[str, list[int]]:
        """Run all requests but those paused; those chunked are still in their prompt.

        Returns:
            The new drafts by request id, as the runner hands them to the scheduler.
        """
        ids = [one for one in self.running if one not in paused]
        for one in paused:
            self.drafts[one] = []
        for one in chunked:
            self.drafts[one] = []
        scheduled = self._scheduled(ids)
        runner = self.runner
        with self.torch.inference_mode():
            runner._update_states(scheduled)
            rows = self.rows()
            for row, req_id in enumerate(rows):
                runner.discard_request_mask.np[row] = req_id in chunked
            emitted = [self._verify(req_id) for req_id in rows]
            sampled = np.full((len(rows), self.most + 1), -1, np.int32)
            for row, tokens in enumerate(emitted):
                sampled[row, : len(tokens)] = tokens
            output = SimpleNamespace(
                sampled_token_ids=self.torch.from_numpy(sampled), logprobs_tensors=None
            )
            hidden = self.torch.zeros(1)
            valid = runner._bookkeeping_sync(scheduled, output, None, hidden, 1)[3]
            runner._draft_token_ids = runner.propose_draft_token_ids(
                scheduled, valid, None, hidden, hidden, None, None, None, None
            )
            runner._copy_draft_token_ids_to_cpu(scheduled)
        for req_id, tokens in zip(rows, valid, strict=True):
            self.texts[req_id] += tokens
        taken = runner.take_draft_token_ids()
        drafts = dict(zip(taken.req_ids, taken.draft_token_ids, strict=True))
        self.drafts.update(drafts)
        return drafts

    def _verify(self, req_id: str) -> list[int]:
        """The model's tokens: the right part of the draft and one more."""
        text, emitted = list(self.texts[req_id]), []
        for drafted in [*self.drafts[req_id], None]:
            emitted.append(self.model(req_id, text))
            text.append(emitted[-1])
            if emitted[-1] != drafted:
                break
        return emitted

    def _scheduled(self, ids: list[str]) -> Any:
        blocks = ([1],)
        rows = self.runner.input_batch.req_id_to_index
        new = [one for one in ids if one not in self.seen]
        cached = [one for one in ids if one in self.seen]
        resumed = {one for one in cached if one not in rows}
        self.seen.update(new)
        spec = {one: self.drafts[one] for one in cached if self.drafts[one] and one in rows}
        finished, self.finished = self.finished, set()
        return self.output.SchedulerOutput(
            scheduled_new_reqs=[
                self.output.NewRequestData(
                    req_id=one,
                    prompt_token_ids=list(self.texts[one]),
                    mm_features=[],
                    sampling_params=self._params[one],
                    pooling_params=None,
                    block_ids=blocks,
                    num_computed_tokens=0,
                    lora_request=None,
                )
                for one in new
            ],
            scheduled_cached_reqs=self.output.CachedRequestData(
                req_ids=cached,
                resumed_req_ids=resumed,
                new_token_ids=[],
                all_token_ids={},
                new_block_ids=[blocks if one in resumed else None for one in cached],
                num_computed_tokens=[len(self.texts[one]) - 1 for one in cached],
                num_output_tokens=[len(self.texts[one]) - self.prompt_lens[one] for one in cached],
            ),
            num_scheduled_tokens={one: 1 + len(spec.get(one, [])) for one in ids},
            total_num_scheduled_tokens=sum(1 + len(spec.get(one, [])) for one in ids),
            scheduled_spec_decode_tokens=spec,
            scheduled_encoder_inputs={},
            num_common_prefix_blocks=[0],
            finished_req_ids=finished,
            free_encoder_mm_hashes=[],
            num_spec_tokens_to_schedule=self.most,
        )
