"""Models of transformers with random weights, small enough for exhaustive tests."""

from __future__ import annotations

from typing import Any

GEMMA = {"layer_types": ["sliding_attention", "full_attention"]}
SIZES = {
    **{"vocab_size": 40, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0},
    **{"eos_token_id": None, "bos_token_id": 1, "max_position_embeddings": 512},
    "initializer_range": 0.1,  # so large that positions and attention matter
}


def tiny(kind: str, attention: str = "sdpa", **changes: Any) -> Any:
    """A model of random weights, in float64, so that rounding decides no token.

    Not for eager attention, whose masks make NaN of it.
    """
    import torch
    import transformers

    torch.manual_seed(1)
    name = "Gemma3Text" if kind == "Gemma3" else kind
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **changes})
    config._attn_implementation = attention
    name = {"GPT2": "GPT2LMHeadModel"}.get(kind, f"{kind}ForCausalLM")
    model = getattr(transformers, name)(config).eval()
    return model if attention == "eager" else model.double()


def prompts(rows: int) -> dict[str, Any]:
    """Prompts of unequal length, the first of them not padded."""
    import torch

    torch.manual_seed(2)
    ids = torch.randint(2, 40, (rows, 12))
    mask = torch.ones_like(ids)
    for i in range(1, rows):
        ids[i, : 3 * i] = mask[i, : 3 * i] = 0
    return {"input_ids": ids, "attention_mask": mask}


def own_cache(cache: Any) -> dict[str, Any]:
    """The argument of generate() that hands a cache over; its name is that of the version."""
    from ngramspec.hosts.transformers import checks

    return {checks.cache_name(): cache}
