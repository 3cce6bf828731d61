"""A tokenizer of single characters that has ChatML's markers."""

from __future__ import annotations

import pytest

from helpers.letters import Letters


@pytest.fixture
def letters() -> Letters:
    return Letters("<|im_start|>", "<|im_end|>")
