"""generate() with drafts, sampled: the same text by position, or the same distribution."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from helpers.later import Later
from helpers.tiny_models import prompts, tiny
from ngramspec.hosts.transformers import NgramSpeculator, ngramspec_generate

torch = Later("torch", "samples from a model of torch")
transformers = Later("transformers", "drives transformers")

WARPED = {"top_p": 0.95, "top_k": 10, "repetition_penalty": 1.05}


def sampled(model: Any, inputs: Any, **options: Any) -> Any:
    return model.generate(
        **inputs,
        **{"do_sample": True, "max_new_tokens": 80, **options},
        custom_generate=ngramspec_generate,
    )


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("options", [{}, WARPED], ids=["plain", "warped"])
def test_compare_gives_the_text_of_no_drafts(rows: int, cache: Any, options: Any) -> None:
    model, inputs = tiny("Llama"), prompts(rows)
    options = {**options, "temperature": 0.7, "cache_implementation": cache, "seeds": 11}
    expected = sampled(model, inputs, max_draft=0, **options)
    speculator = NgramSpeculator("suffix", policy="fixed")
    for _ in range(2):  # the second time the whole text is drafted
        assert sampled(model, inputs, drafter=speculator, **options).equal(expected)
    stats = speculator.stats()["suffix"]
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


def test_seeds_decide_texts() -> None:
    model, inputs = tiny("Llama"), prompts(1)
    options = {"num_return_sequences": 3, "max_new_tokens": 30}
    rows = sampled(model, inputs, seeds=[5, 6, 5], **options)
    assert rows[0].equal(rows[2])
    assert not rows[0].equal(rows[1])
    assert sampled(model, inputs, seeds=5, **options)[:2].equal(rows[:2])
    texts = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        texts.append(sampled(model, inputs, **options))
    assert texts[0].equal(texts[1])
    assert not texts[0].equal(texts[2])


@pytest.mark.parametrize("method", ["compare", "reject"])
def test_texts_have_the_distribution_of_the_model(method: Any) -> None:
    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(vocab_size=3, num_attention_heads=2, **sizes)
    config.update({"eos_token_id": None, "bos_token_id": None, "pad_token_id": None})
    model = transformers.LlamaForCausalLM(config).eval()
    model.lm_head.weight.data *= 30  # neither even nor certain
    prompt, count, rows = [0, 1, 2, 0, 1, 2, 0, 1], 4, 500
    exact = {}
    texts = list(product(range(3), repeat=count))
    logits = model(torch.tensor([[*prompt, *text] for text in texts])).logits
    chances = torch.softmax(logits[:, len(prompt) - 1 : -1].detach().double(), -1)
    for text, each in zip(texts, chances, strict=True):
        exact[text] = float(each[torch.arange(count), torch.tensor(text)].prod())
    seen = dict.fromkeys(exact, 0)
    speculator = NgramSpeculator("ngram-simple", policy="fixed", size_n=1, size_m=3)
    rounds = 8
    for seed in range(rounds):
        ids = sampled(
            model,
            {"input_ids": torch.tensor([prompt] * rows)},
            drafter=speculator,
            verification=method,
            max_new_tokens=count,
            top_k=0,
            seeds=seed * rows,
        )
        for text in ids[:, len(prompt) :].tolist():
            seen[tuple(text)] += 1
    stats = speculator.stats()["ngram-simple"]
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens
    total = rows * rounds
    error = sum((seen[text] - total * p) ** 2 / (total * p) for text, p in exact.items())
    # 80 degrees of freedom: the mean is 80, and 140 is passed once in 30,000 times.
    assert error < 140
