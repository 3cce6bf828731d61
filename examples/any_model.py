"""Draft for any causal model that has a forward pass and a cache that can be truncated.

Here: a tiny Llama with random weights, greedy, checked against the same model without drafts; in
float64, so that rounding, which depends on the batch size, changes no token. Needs torch and
transformers: `python examples/any_model.py`
"""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from ngramspec import AutoPolicy, create_drafter
from ngramspec.verify import verify_greedy


@torch.inference_mode()
def generate(model: Any, prompt: list[int], count: int, drafter: Any, policy: Any) -> list[int]:
    """Return count tokens; the drafter's slot 0 and its policy learn from them."""
    cache, text, new = DynamicCache(config=model.config), list(prompt), list(prompt)
    drafter.begin(0, prompt)
    while len(text) < len(prompt) + count:
        draft = drafter.propose(0, len(prompt) + count - len(text) - 1) if text != prompt else []
        started = time.perf_counter()
        batch = torch.tensor([[*new, *draft]])
        keep = len(draft) + 1  # rows: after the last token, and after each drafted one
        # By place: transformers 5.24 renamed the cache's argument.
        logits = model(batch, None, None, cache, logits_to_keep=keep).logits
        verified = verify_greedy(logits, [draft], [len(draft)])
        accepted = int(verified.num_accepted[0])
        new = verified.tokens[0, : accepted + 1].tolist()
        policy.observe(batch.shape[1], time.perf_counter() - started)
        drafter.accept(0, new, accepted)
        text += new
        if accepted < len(draft):
            cache.crop(accepted - len(draft))  # negative: drops tokens from the end
        new = new[-1:]
    drafter.end(0)
    return text[len(prompt) :]


def main() -> None:
    """Generate with drafts and without, and compare."""
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_attention_heads=4, **sizes)).double()
    prompt, count = [7, 8, 9, 10, 7, 8, 9], 200
    policy = AutoPolicy()
    drafter = create_drafter("suffix", policy=policy)
    plain = model.generate(
        torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None
    )
    for _ in range(3):  # text generated once is drafted the next time
        answer = generate(model, prompt, count, drafter, policy)
        assert answer == plain[0, len(prompt) :].tolist()
        drafted = drafter.stats()["suffix"].num_accepted_tokens
        print(f"{count} tokens, equal to those without drafts; {drafted} drafted ones accepted")


if __name__ == "__main__":
    main()
