"""Weights of every type that llama.cpp writes without an importance matrix: drafts work on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.quantisations import KINDS, requantized
from ngramspec import LLM

CODE = "def area(width, height):\n    total = width * height\n    return total\n"
QUESTION = {"role": "user", "content": f"Repeat this code:\n\n```python\n{CODE}```"}


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_leave_the_text_of_a_quantised_model_as_it_is(kind: str, tmp_path: Path) -> None:
    """The model is sure of a copy, so that rounding decides no token."""
    from gguf import GGUFReader

    path = requantized(kind, tmp_path)
    types = [tensor.tensor_type.name for tensor in GGUFReader(path).tensors if tensor.data.ndim > 1]
    assert max(types, key=types.count) == KINDS[kind][1]
    with LLM(path, slots=1, context_size=512, threads=1, policy="fixed") as llm:
        plain = llm.chat([QUESTION], max_tokens=40, temperature=0, speculation=False)
        drafted = llm.chat([QUESTION], max_tokens=40, temperature=0)
    assert drafted.text == plain.text
    assert CODE in plain.text
    assert sum(drafted.accepted) > drafted.num_tokens / 2
