"""vLLM's n-gram proposer for the CPU (numba), without the rest of vLLM, which needs CUDA."""

from __future__ import annotations

import importlib.util
import sys
import types
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ngramspec.lab.replay.player import FixedSubject, GrowingText, Subject, Tokens

SOURCE = "v1/spec_decode/ngram_proposer.py"
ENDLESS = 1 << 30


def open_subject(name: str, *, wheel: Path | None, **settings: int) -> Subject:
    """Return the subject, compiled and warm.

    Args:
        name: What tables call it.
        wheel: vLLM's wheel or its ngram_proposer.py; None = the installed package's.
        **settings: Of vLLM's speculative configuration.

    Raises:
        ImportError: No vLLM, or no numba.
        OSError: The file cannot be read.
    """
    module = _load(_source(wheel))
    subject = FixedSubject(name, lambda: _Ngrams(module.NgramProposer(_config(settings))))
    warm = subject.opener()
    warm.begin(np.arange(64, dtype=np.int32) % 8)
    warm.propose(8)
    return subject


def _source(wheel: Path | None) -> str:
    if wheel is None:
        spec = importlib.util.find_spec("vllm")
        if spec is None or not spec.submodule_search_locations:
            raise ImportError("vllm is not installed and no --vllm-wheel is given")
        return Path(spec.submodule_search_locations[0], SOURCE).read_text("utf-8")
    if wheel.suffix == ".py":
        return wheel.read_text("utf-8")
    try:
        with zipfile.ZipFile(wheel) as files:
            return files.read(f"vllm/{SOURCE}").decode("utf-8")
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
        exec(compile(source, f"vllm/{SOURCE}", "exec"), module.__dict__)
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


class _Ngrams:
    def __init__(self, proposer: Any) -> None:
        self._proposer, self._text = proposer, GrowingText()
        proposer.max_model_len = ENDLESS
        self.begin = self._text.begin

    def propose(self, limit: int) -> Tokens:
        text = self._text.view()
        lengths = np.array([len(text)], dtype=np.int32)
        most = min(limit, self._proposer.k)
        # A row's last sampled tokens only say that its prompt is complete.
        (draft,) = self._proposer.propose(most, [[0]], lengths, text[None])
        return np.array(draft, dtype=np.int32)

    def accept(self, tokens: Tokens, num_accepted: int) -> None:
        self._text.add(tokens)

    def end(self) -> None:
        """Keep nothing."""

    def nbytes(self) -> int:
        return 0
