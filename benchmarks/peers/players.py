"""The drafters of other projects as Subjects, each imported on demand."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec.costs import CostTable
from ngramspec.lab.replay.walk import Player, Subject, Tokens

ARCTIC_TOKENS = 64  # of a draft, and of the matched context: the tree's depth
VLLM_SOURCE = "v1/spec_decode/ngram_proposer.py"
ENDLESS = 1 << 30


class Lookup:
    """Lookup(draft): a player that keeps prompt and output so far and scans them for every draft.

    draft: takes this text and the most tokens, returns a draft.
    """

    def __init__(
        self,
        draft: Callable[[npt.NDArray[Any], int], Tokens],
        dtype: npt.DTypeLike = np.int32,
    ) -> None:
        self._draft = draft
        self._ids = np.empty(1 << 15, dtype)
        self._length = 0

    @property
    def text(self) -> npt.NDArray[Any]:
        """The text; valid until the next accept."""
        return self._ids[: self._length]

    def begin(self, prompt: Tokens) -> None:
        """Start with a prompt."""
        self._length = 0
        self.accept(prompt, 0)

    def propose(self, limit: int) -> Tokens:
        """Return a draft."""
        return self._draft(self.text, limit)

    def accept(self, tokens: Tokens, num_accepted: int) -> None:
        """Append tokens."""
        end = self._length + len(tokens)
        if end > len(self._ids):
            self._ids = np.resize(self._ids, 2 * end)
        self._ids[self._length : end] = tokens
        self._length = end

    def end(self) -> None:
        """Keep nothing."""

    def nbytes(self) -> int:
        """Return 0: it has only the text."""
        return 0


def open_prompt_lookup(name: str, **settings: Any) -> Subject:
    """Return llama-cpp-python's prompt lookup, called as its `draft_model=` is."""
    module = importlib.import_module("llama_cpp.llama_speculative")

    def opener(_: CostTable) -> Player:
        lookup = module.LlamaPromptLookupDecoding(**settings)
        return Lookup(lambda text, limit: lookup(text))

    return Subject(name, opener)


def open_transformers_lookup(name: str, **settings: Any) -> Subject:
    """Return transformers' prompt lookup, called as by assisted generation."""
    torch = importlib.import_module("torch")
    module = importlib.import_module("transformers.generation.candidate_generator")
    torch.set_num_threads(1)

    def opener(_: CostTable) -> Player:
        generator = module.PromptLookupCandidateGenerator(**settings, max_length=ENDLESS)

        def draft(text: npt.NDArray[Any], limit: int) -> Tokens:
            candidates, _ = generator.get_candidates(torch.from_numpy(text)[None])
            tokens: Tokens = candidates[0, len(text) :].numpy().astype(np.int32)
            return tokens

        return Lookup(draft, np.int64)

    return Subject(name, opener)


def open_arctic(name: str, **settings: Any) -> Subject:
    """Return ArcticInference's suffix cache."""
    cache = importlib.import_module("arctic_inference.suffix_decoding").SuffixDecodingCache
    return Subject(name, lambda _: _Suffixes(cache(ARCTIC_TOKENS), settings))


class _Suffixes(Lookup):
    """A tree per request, and one of all answers so far."""

    def __init__(self, cache: Any, settings: dict[str, Any]) -> None:
        super().__init__(self._speculate)
        self._cache, self._settings, self._request = cache, settings, -1

    def begin(self, prompt: Tokens) -> None:
        self._request += 1
        self._cache.start_request(self._request, prompt)
        self._length = 0
        super().accept(prompt, 0)

    def _speculate(self, text: Tokens, limit: int) -> Tokens:
        # The limit is left to the caller: here it would change which of the two trees is chosen.
        draft = self._cache.speculate(
            self._request, text[-ARCTIC_TOKENS:], max_spec_tokens=ARCTIC_TOKENS, **self._settings
        )
        return np.array(draft.token_ids, dtype=np.int32)

    def accept(self, tokens: Tokens, num_accepted: int) -> None:
        super().accept(tokens, num_accepted)
        self._cache.add_active_response(self._request, tokens)

    def end(self) -> None:
        self._cache.stop_request(self._request)

    def nbytes(self) -> int:
        trees = [self._cache._global_tree, *self._cache._local_trees.values()]
        return int(sum(tree.estimate_memory() for tree in trees))


def open_vllm_ngram(name: str, *, wheel: Path | None, **settings: int) -> Subject:
    """Return vLLM's n-gram proposer for the CPU (numba), compiled and warm.

    The rest of vLLM, which needs CUDA, is not loaded.

    Args:
        name: What tables call it.
        wheel: vLLM's wheel or its ngram_proposer.py; None = the installed package's.
        **settings: Of vLLM's speculative configuration.

    Raises:
        ImportError: No vLLM, or no numba.
        OSError: The file cannot be read.
    """
    module = _load(_source(wheel))

    def opener(_: CostTable) -> Player:
        proposer = module.NgramProposer(_config(settings))
        proposer.max_model_len = ENDLESS

        def draft(text: Tokens, limit: int) -> Tokens:
            lengths = np.array([len(text)], dtype=np.int32)
            # A row's last sampled tokens only say that its prompt is complete.
            (row,) = proposer.propose(min(limit, proposer.k), [[0]], lengths, text[None])
            return np.array(row, dtype=np.int32)

        return Lookup(draft)

    warm = opener(CostTable(((1, 1.0),)))
    warm.begin(np.arange(64, dtype=np.int32) % 8)
    warm.propose(8)
    return Subject(name, opener)


def _source(wheel: Path | None) -> str:
    if wheel is None:
        spec = importlib.util.find_spec("vllm")
        if spec is None or not spec.submodule_search_locations:
            raise ImportError("vllm is not installed and no --vllm-wheel is given")
        return Path(spec.submodule_search_locations[0], VLLM_SOURCE).read_text("utf-8")
    if wheel.suffix == ".py":
        return wheel.read_text("utf-8")
    try:
        with zipfile.ZipFile(wheel) as files:
            return files.read(f"vllm/{VLLM_SOURCE}").decode("utf-8")
    except (zipfile.BadZipFile, KeyError) as error:
        raise ImportError(f"{wheel}: not a wheel of vLLM: {error}") from None


def _load(source: str) -> types.ModuleType:
    """Run the file, with stubs for imports of which it needs only the names of types."""
    module = types.ModuleType("ngramspec_vllm_ngram_proposer")
    sys.modules[module.__name__] = module  # numba looks functions up there
    stubs = _stubs()
    real = {name: sys.modules.get(name) for name in stubs}
    sys.modules.update(stubs)
    try:
        exec(compile(source, f"vllm/{VLLM_SOURCE}", "exec"), module.__dict__)
    finally:
        for name, was in real.items():
            sys.modules.pop(name)
            if was is not None:
                sys.modules[name] = was
    return module


def _stubs() -> dict[str, types.ModuleType]:
    config: Any = types.ModuleType("vllm.config")
    config.VllmConfig = object
    stubs = {"vllm": types.ModuleType("vllm"), "vllm.config": config}
    if importlib.util.find_spec("torch") is None:
        torch: Any = types.ModuleType("torch")
        torch.Tensor = object
        stubs["torch"] = torch
    return stubs


def _config(settings: dict[str, int]) -> SimpleNamespace:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(**settings),
        model_config=SimpleNamespace(max_model_len=64),  # it allocates 1,024 rows of this length
        scheduler_config=SimpleNamespace(max_num_seqs=1),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
