"""Checks: calls of generate() that drafts do not support, each with its reason."""

from __future__ import annotations

import math
from typing import Any

from ngramspec.errors import BackendError, InputError

# Layers from which rejected tokens can be removed, or that keep none.
DYNAMIC = ("DynamicLayer", "DynamicSlidingWindowLayer")
STATIC = ("StaticLayer", "StaticSlidingWindowLayer")
LAYERS = (*DYNAMIC, *STATIC, "DummyLayer")
OLDEST = (5, 23)  # 5.0 counts from the start of a cache; batches of 5.16 failed the tests
OUTPUTS = ("output_attentions", "output_hidden_states", "output_logits", "output_scores")
LAYER_TYPES = {"full_attention", "sliding_attention"}


def check_release() -> None:
    """Raise BackendError for a release of transformers with another cache interface."""
    import transformers

    release = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if release < OLDEST:
        raise BackendError(
            f"transformers {transformers.__version__}: drafts need the caches of 5.23 or later"
        )


def cache_name() -> str:
    """Return what this transformers calls the cache in calls and results: "cache" since 5.24."""
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    fields = GenerateDecoderOnlyOutput.__dataclass_fields__
    return "cache" if "cache" in fields else "past_key_values"


def check_call(model: Any, config: Any, kwargs: dict[str, Any]) -> None:
    """Raise InputError unless drafts support a call of generate().

    Args:
        model: The model.
        config: The prepared GenerationConfig.
        kwargs: What generate() would hand to the model.
    """
    from transformers import GenerationMixin

    if model.config.is_encoder_decoder:
        raise InputError("encoder-decoder models are not supported: drafts need a decoder alone")
    if getattr(model, "_is_stateful", False):
        raise InputError(
            f"{type(model).__name__} keeps a recurrent state: it cannot take back rejected drafts"
        )
    kind = type(model)
    if (getattr(model, "_tp_size", None) or 1) > 1:
        raise InputError("tensor parallelism is not supported: processes would draft differently")
    ours = GenerationMixin._update_model_kwargs_for_generation
    if kind._update_model_kwargs_for_generation is not ours:
        raise InputError(
            f"{kind.__name__} changes its inputs after each token, but passes go over several"
        )
    limit = longest_alike(model.config.get_text_config())
    if config.max_length - 1 > limit:
        raise InputError(
            f"beyond {limit} tokens {kind.__name__} turns keys by the last position of a pass, "
            f"which drafts move: prompt and text may have {limit + 1} tokens, got "
            f"{config.max_length}"
        )
    mode = str(getattr(config.get_generation_mode(), "value", ""))
    if mode not in ("greedy_search", "sample"):
        raise InputError(f"drafts work for greedy search and sampling, not for {mode}")
    if config.return_dict_in_generate:
        for name in OUTPUTS:
            if getattr(config, name, False):
                raise InputError(f"{name}=True is not supported: passes do not go token by token")
    if not config.use_cache:
        raise InputError("use_cache=False is not supported: verification needs a cache")
    for name in ("inputs_embeds", "token_type_ids", "mm_token_type_ids"):
        if kwargs.get(name) is not None:
            raise InputError(f"{name} is not supported: give input_ids alone")
    check_cache(kwargs.get(cache_name()), config)


def longest_alike(text: Any) -> float:
    """Return the most tokens of a pass up to which a model turns all keys alike, inf = any.

    Beyond it, RoPE of the kinds longrope and dynamic goes by the last position of each pass.
    """
    rope = getattr(text, "rope_parameters", None) or {}
    limits = [math.inf]
    for own in (rope, *rope.values()):  # of all layers, or of each kind of layer
        kind = str(own.get("rope_type")) if isinstance(own, dict) else ""
        if kind == "longrope":
            limits.append(own.get("original_max_position_embeddings", text.max_position_embeddings))
        elif "dynamic" in kind:
            limits.append(text.max_position_embeddings)
    return min(limits)


def check_cache(cache: Any, config: Any) -> None:
    """Raise InputError unless rejected tokens can be taken back from a cache."""
    from transformers.cache_utils import DynamicCache, StaticCache

    if type(cache) not in (DynamicCache, StaticCache):
        raise InputError(
            f"expected a DynamicCache or StaticCache, got {type(cache).__name__}: others "
            "cannot take back rejected drafts"
        )
    if cache.offloading:
        raise InputError("offloaded caches are not supported")
    for layer in cache.layers:
        name = type(layer).__name__
        if name not in LAYERS:
            raise InputError(f"a cache with layers of {name} cannot take back rejected drafts")
        # Such a layer drops tokens as soon as they leave its window.
        if name == "StaticSlidingWindowLayer" and layer.max_cache_len < config.max_length - 1:
            raise InputError(
                f"a static cache cannot take back drafts once {config.max_length - 1} tokens "
                f"outgrow its sliding window of {layer.max_cache_len}: use a dynamic cache"
            )


def check_batch(model: Any, kwargs: dict[str, Any]) -> None:
    """Raise InputError unless rows of a model can be at different positions.

    For that the model must accept our own mask and positions.
    """
    if getattr(kwargs[cache_name()], "_is_user_defined", False):
        raise InputError(
            f"{cache_name()} of your own needs batch size 1: for more rows leave it out, or set "
            'cache_implementation="static"'
        )
    reason = why_no_masks(model, kwargs)
    if reason:
        raise InputError(f"batch size 1 only: {reason}")


def why_no_masks(model: Any, kwargs: dict[str, Any]) -> str:
    """Return why a model does not take masks and positions of our own, "" if it does."""
    text = model.config.get_text_config()
    if text._attn_implementation not in ("sdpa", "eager"):
        return f'attn_implementation must be "sdpa" or "eager", got {text._attn_implementation!r}'
    positions = kwargs.get("position_ids")
    if positions is None or positions.ndim != 2 or getattr(text, "alibi", False):
        return f"{type(model).__name__} does not take one position per token"
    kinds = set(getattr(text, "layer_types", None) or ())
    if (
        hasattr(model, "create_masks_for_generate")
        or getattr(text, "attention_chunk_size", None)
        or "local" in str(getattr(text, "attention_layers", ""))  # of GPT-Neo
        or not kinds <= LAYER_TYPES
    ):
        return f"{type(model).__name__} makes masks of its own"
    return ""
