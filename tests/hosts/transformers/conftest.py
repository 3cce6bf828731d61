"""The embedded model as transformers loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.paths import ROOT
from helpers.programs import load_program

REASON = "drives transformers, which is not installed"
REPEAT = "Repeat this code:\n\n```python\ndef area(w, h):\n    return w * h\n```"
EXPORTER = ROOT / "tools" / "gguf_to_transformers.py"


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("torch", "transformers", "gguf"):
        pytest.importorskip(name, reason=REASON)
    from ngramspec import embedded_model

    folder = tmp_path_factory.mktemp("exported")
    load_program(EXPORTER).export(embedded_model(), folder)
    return folder


@pytest.fixture(scope="session")
def model(exported: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(exported)


@pytest.fixture(scope="session")
def tokenizer(exported: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(exported, padding_side="left")


@pytest.fixture(scope="session")
def prompts(tokenizer: Any) -> list[str]:
    from ngramspec.lab.e2e.tasks import FREE, TASKS

    return [
        tokenizer.apply_chat_template(task.messages, add_generation_prompt=True, tokenize=False)
        for task in (*TASKS, FREE)
    ]


@pytest.fixture(scope="session")
def batch(tokenizer: Any, prompts: list[str]) -> Any:
    """Four prompts of unequal length, padded on the left; what follows the second one is short."""
    messages = [{"role": "user", "content": REPEAT}]
    short = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer([prompts[3], short, *prompts[4:]], return_tensors="pt", padding=True)


@pytest.fixture(scope="session")
def plain(model: Any, batch: Any) -> Any:
    """Return what the batch says in 100 tokens, greedy and undrafted: some rows end before."""
    return model.generate(**batch, max_new_tokens=100, do_sample=False)
