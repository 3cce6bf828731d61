"""SGLang's own NGRAM worker without a GPU: its files as they stand, stubs for what needs CUDA."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SOURCES = "SGLANG_SOURCES"  # names a folder with an unpacked sglang wheel, or an installed one's
WORKER = "sglang.srt.speculative.ngram_worker"
REAL = (
    "sglang.srt.environ",
    "sglang.srt.plugins",
    "sglang.srt.plugins.hook_registry",
    "sglang.srt.speculative.cpp_ngram.external_corpus",
    "sglang.srt.speculative.cpp_ngram.ngram_corpus",
    "sglang.srt.speculative.external_corpus_manager",
    WORKER,
)
VOCAB_SIZE = 1000
Model = Callable[[Sequence[int]], int]  # text to the next token


def sources() -> Path:
    """Return the folder that holds the package sglang, or skip the test."""
    named = os.environ.get(SOURCES, "")
    spec = importlib.util.find_spec("sglang") if not named else None
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not named and not places:
        pytest.skip(f"no sglang: install it, or let {SOURCES} name an unpacked wheel")
    return Path(named) if named else Path(places[0]).parent


class Stub(types.ModuleType):
    """A module whose classes are empty and whose functions return None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value: Any = type(name, (), {}) if name[0].isupper() else lambda *_, **__: None
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds SGLang's files in REAL; packages are empty, everything else of it is a Stub."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] != "sglang":
            return None
        place = self.folder.joinpath(*name.split("."))
        if name in REAL:
            package = place.is_dir()
            file = place / "__init__.py" if package else place.with_suffix(".py")
            folders = [str(place)] if package else None
            return importlib.util.spec_from_file_location(
                name, file, submodule_search_locations=folders
            )
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        spec.submodule_search_locations = [str(place)]
        return spec

    def create_module(self, spec: Any) -> Any:
        return Stub(spec.name)

    def exec_module(self, module: Any) -> None:
        """Nothing to run."""


def load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `import sglang` find the files; undone with monkeypatch."""
    finder = Finder(sources())
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    monkeypatch.setattr(sys, "modules", sys.modules)


def unload() -> None:
    """Forget what was imported of SGLang."""
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        del sys.modules[name]


class Batch(SimpleNamespace):
    """What the worker reads of a ScheduleBatch."""

    def grammar_needs_sync(self) -> bool:
        return False


class Mode(str):
    """A forward mode; compares by name."""

    def is_decode(self) -> bool:
        return self == "DECODE"

    def is_target_verify(self) -> bool:
        return self == "TARGET_VERIFY"


class Engine:
    """A scheduler in few lines around the real NGRAMWorker.forward_batch_generation, greedy.

    Args:
        model: Chooses each token.
        rows: speculative_num_draft_tokens.
        overlap: Results are processed a step later, as on CUDA.
    """

    def __init__(self, model: Model, rows: int = 6, overlap: bool = False, **spec: Any) -> None:
        self.model, self.rows, self.overlap = model, rows, overlap
        self.torch = importlib.import_module("torch")
        self.worker_module = importlib.import_module(WORKER)
        self._settings(spec)
        target = SimpleNamespace(
            model_runner=SimpleNamespace(
                max_running_requests=8,
                watermark_state=None,
                model_config=SimpleNamespace(vocab_size=VOCAB_SIZE),
            ),
            get_memory_pool=lambda: (None, None),
            forward_batch_generation=self._forward,
            tokenizer=None,
        )
        self.worker = self.worker_module.NGRAMWorker(None, 0, 0, target)
        self.worker.target_worker = target
        self.worker.alloc_memory_pool()
        self.running: list[Any] = []
        self.pending: Any = None  # accepted tokens that output_ids lack, with overlap
        self.spec_info: Any = None
        self.steps = 0

    def add(self, name: str, prompt: Sequence[int], length: int) -> None:
        request = SimpleNamespace(
            rid=name, origin_input_ids_unpadded=array("q", prompt), output_ids=array("q"),
            length=length, text=list(prompt),
        )  # fmt: skip
        self.running.append(request)
        self._extend(request)

    def step(self) -> None:
        """Verify a tree for each running request; those that are long enough leave."""
        batch = Batch(
            reqs=self.running, forward_mode=Mode("DECODE"), has_grammar=False,
            spec_info=self.spec_info, seq_lens=self._lengths(), seq_lens_cpu=self._lengths(),
            req_pool_indices=None, return_logprob=False, sampling_info=None,
            req_to_token_pool=SimpleNamespace(req_to_token=None),
        )  # fmt: skip
        result = self.worker.forward_batch_generation(batch)
        self.steps += 1
        if self.overlap:
            self._process()
        stride = self.rows
        tokens, counts = result.next_token_ids.tolist(), result.accept_lens.tolist()
        emitted = [tokens[i * stride : i * stride + n] for i, n in enumerate(counts)]
        for request, new in zip(self.running, emitted, strict=True):
            request.text += new
        self.pending = list(zip(self.running, emitted, strict=True))
        if not self.overlap:
            self._process()
        self._keep(result.next_draft_input)

    def _keep(self, spec_info: Any) -> None:
        stays = [len(r.text) - len(r.origin_input_ids_unpadded) < r.length for r in self.running]
        index = self.torch.tensor(
            [i for i, stay in enumerate(stays) if stay], dtype=self.torch.long
        )
        tokens = spec_info.accept_tokens.reshape(-1, self.rows)[index].flatten()
        self.spec_info = SimpleNamespace(
            accept_tokens=tokens, accept_lens=spec_info.accept_lens[index]
        )
        self.running = [r for r, stay in zip(self.running, stays, strict=True) if stay]

    def _process(self) -> None:
        for request, new in self.pending or ():
            request.output_ids.extend(new)
        self.pending = None

    def _extend(self, request: Any) -> None:
        """Prefill by itself: the worker only passes such a batch on."""
        token = self.model(request.text)
        torch = self.torch
        first = torch.zeros(self.rows, dtype=torch.int32)
        first[0] = token
        request.text.append(token)
        if not self.overlap:
            request.output_ids.append(token)
        else:
            self.pending = [*(self.pending or ()), (request, [token])]
        old = self.spec_info
        ones = torch.ones(1, dtype=torch.int32)
        self.spec_info = SimpleNamespace(
            accept_tokens=torch.cat((old.accept_tokens, first)) if old else first,
            accept_lens=torch.cat((old.accept_lens, ones)) if old else ones,
        )

    def _lengths(self) -> Any:
        return self.torch.tensor([len(request.text) - 1 for request in self.running])

    def _forward(self, batch: Any, **_: Any) -> Any:
        """What the model says after each row, given the rows above it."""
        mask = batch.spec_info.custom_mask.reshape(len(batch.reqs), self.rows, self.rows)
        rows = batch.input_ids.reshape(len(batch.reqs), self.rows).tolist()
        self.rows_seen, self.mask_seen = rows, mask
        tokens = []
        for request, ids, allowed in zip(batch.reqs, rows, mask.tolist(), strict=True):
            assert ids[0] == request.text[-1]
            for row in allowed:
                path = [t for t, on in zip(ids, row, strict=True) if on]
                tokens.append(self.model([*request.text[:-1], *path]))
        return SimpleNamespace(
            logits_output=SimpleNamespace(next_token_logits=None, chosen=tokens),
            can_run_cuda_graph=False,
        )

    def _sample(self, verify_input: Any, batch: Any, logits: Any, *_: Any, **__: Any) -> Any:
        """Greedy: from the root to the child that holds what the model says, while there is one."""
        torch, d = self.torch, self.rows
        links = self.worker_module._derive_tree_links(
            self.mask_seen.numpy().astype(bool), len(batch.reqs), d
        )
        following, siblings = (part.tolist() for part in links)
        index, counts = [], []
        for i in range(len(batch.reqs)):
            path = [0]
            while True:
                node = following[i][path[-1]]
                while node >= 0 and self.rows_seen[i][node] != logits.chosen[i * d + path[-1]]:
                    node = siblings[i][node]
                if node < 0:
                    break
                path.append(node)
            counts.append(len(path))
            index.append([i * d + node for node in path] + [-1] * (d - len(path)))
        predict = torch.tensor(logits.chosen, dtype=torch.int32)
        return predict, torch.tensor(counts, dtype=torch.int32), torch.tensor(index)

    def _settings(self, spec: dict[str, Any]) -> None:
        fields = {
            "speculative_num_draft_tokens": self.rows, "speculative_num_steps": 1,
            "speculative_eagle_topk": 8, "speculative_ngram_max_trie_depth": 18,
            "speculative_ngram_min_bfs_breadth": 1, "speculative_ngram_max_bfs_breadth": 8,
            "speculative_ngram_match_type": "BFS", "speculative_ngram_capacity": 1000,
            "speculative_ngram_external_sam_budget": 0,
            "speculative_ngram_external_corpus_max_tokens": 1000,
            "speculative_ngram_external_corpus_path": None, **spec,
        }  # fmt: skip
        module = self.worker_module
        module.get_spec = lambda: SimpleNamespace(**fields)
        module.get_schedule = lambda: SimpleNamespace(
            disable_overlap_schedule=not self.overlap, page_size=1
        )
        module.get_device = lambda: SimpleNamespace(device="cpu")
        module._is_cpu = True
        module.eagle_sample = self._sample
        module.ForwardMode = SimpleNamespace(
            TARGET_VERIFY=Mode("TARGET_VERIFY"), DECODE=Mode("DECODE")
        )
        for name in ("NgramVerifyInput", "GenerationBatchResult"):
            setattr(module, name, SimpleNamespace)
