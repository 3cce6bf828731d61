"""Other models and caches: served as without drafts, or refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.tiny_models import GEMMA, prompts, tiny
from ngramspec.adapters.transformers import NgramSpeculator, checks, ngramspec_generate
from ngramspec.errors import BackendError, InputError

torch = pytest.importorskip("torch", reason="runs models of torch")
transformers = pytest.importorskip("transformers", reason="drives transformers")
CACHE = checks.cache_name()


def both(model: Any, inputs: Any, **options: Any) -> tuple[Any, Any]:
    options = {"max_new_tokens": 60, "do_sample": False, **options}
    plain = model.generate(**inputs, **options)
    speculator = NgramSpeculator("ngram-simple", policy="fixed", size_n=2, size_m=6)
    made = model.generate(
        **inputs, **options, custom_generate=ngramspec_generate, drafter=speculator
    )
    stats = speculator.stats()["ngram-simple"]
    assert stats.num_accepted_tokens > 0
    return made, plain


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Llama", {}),
        ("Mistral", {"sliding_window": 7}),
        ("Mistral", {"sliding_window": None}),
        ("Gemma3", {"sliding_window": 7, **GEMMA}),
        ("Qwen3", {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1}),
        ("GPT2", {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 512}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "full",
)
def test_dynamic_caches_of_all_kinds(kind: str, changes: Any, attention: str, rows: int) -> None:
    made, plain = both(tiny(kind, attention, **changes), prompts(rows))
    assert made.equal(plain)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", ["Llama", "Gemma3"])
def test_static_caches_within_their_window(kind: str, rows: int) -> None:
    model = tiny(kind, **({"sliding_window": 80, **GEMMA} if kind == "Gemma3" else {}))
    made, plain = both(model, prompts(rows), cache_implementation="static")
    assert made.equal(plain)


def test_one_row_may_be_padded() -> None:
    inputs = {key: values[2:3] for key, values in prompts(3).items()}
    for cache in (None, "static"):
        made, plain = both(tiny("Llama"), inputs, cache_implementation=cache)
        assert made.equal(plain)


def test_positions_may_come_from_the_mask_alone() -> None:
    model = tiny("Bloom", "eager", n_head=4, n_layer=2)
    made, plain = both(model, prompts(1))
    assert made.equal(plain)
    refused(model, prompts(3), "batch size 1 only: Bloom.* does not take one position per token")


def refused(model: Any, inputs: Any, message: str, **options: Any) -> None:
    options = {"max_new_tokens": 20, "do_sample": False, "drafter": "suffix", **options}
    with pytest.raises(InputError, match=message):
        model.generate(**inputs, **options, custom_generate=ngramspec_generate)


def test_a_static_window_that_slides_is_refused() -> None:
    model, options = tiny("Mistral", sliding_window=7), {"cache_implementation": "static"}
    refused(model, prompts(1), "31 tokens outgrow its sliding window of 7: use a dyn", **options)
    refused(model, prompts(3), "31 tokens outgrow its sliding window of 7: use a dyn", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "greedy search and sampling, not for beam_search"),
        ({"prompt_lookup_num_tokens": 3}, "not for assisted_generation"),
        ({"use_cache": False}, "use_cache=False is not supported"),
        ({"guidance_scale": 1.5}, "UnbatchedClassifierFree.* must see every token once, in order"),
        ({"synced_gpus": True, "_own": True}, "synced_gpus=True is not supported"),
        ({"drafter": 5}, "drafter must be drafter names, a Drafter or an NgramSpeculator, got int"),
        ({"drafter": "sufix"}, "unknown drafter"),
        ({"verification": "guess"}, 'verification must be "compare" or "reject", got .guess'),
        ({"seeds": [1, 2], "do_sample": True}, r"one whole number or one per row \(1\), got"),
        ({"seeds": 0.5, "do_sample": True}, "seeds must be one whole number"),
        ({"max_draft": -1}, "max_draft must be an integer in 0..1024, got -1"),
        ({"max_draft": 2.0}, "max_draft must be an integer"),
        *[
            ({"return_dict_in_generate": True, name: True}, f"{name}=True is not supported")
            for name in (
                *("output_attentions", "output_hidden_states", "output_logits", "output_scores"),
            )
        ],
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_drafts_cannot_serve_is_refused(options: dict[str, Any], message: str) -> None:
    if options.pop("_own", False):
        options = {}
        config = transformers.GenerationConfig()
        with pytest.raises(InputError, match=message):
            ngramspec_generate(tiny("Llama"), torch.ones(1, 2), (), (), config, synced_gpus=True)
        return
    refused(tiny("Llama", attention="eager"), prompts(1), message, **options)


def test_a_transformers_without_such_caches_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(checks, "OLDEST", (99, 0))
    with pytest.raises(BackendError, match=r"drafts need the caches of 5\.23 or later"):
        tiny("Llama").generate(**prompts(1), max_new_tokens=2, custom_generate=ngramspec_generate)


def test_inputs_that_are_not_ids_are_refused() -> None:
    model = tiny("Llama")
    embeds = {"inputs_embeds": torch.zeros(1, 4, 32, dtype=torch.float64)}
    refused(model, embeds, "call this through generate.* with a prompt of ids")
    refused(
        tiny("GPT2", n_embd=32, n_head=4, n_layer=2),
        {**prompts(1), "token_type_ids": torch.zeros(1, 12, dtype=torch.int64)},
        "token_type_ids is not supported: give input_ids alone",
    )
    with pytest.raises(InputError, match="call this through generate"):
        ngramspec_generate(model, torch.ones(1, 2))


def test_models_that_cannot_take_back_tokens_are_refused() -> None:
    sizes = {"vocab_size": 40, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 1}
    mamba = transformers.MambaForCausalLM(transformers.MambaConfig(**sizes, pad_token_id=0))
    refused(mamba.eval(), prompts(1), "MambaForCausalLM keeps a recurrent state")
    sizes = {"vocab_size": 40, "d_model": 16, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(**sizes, decoder_start_token_id=0)
    t5 = transformers.T5ForConditionalGeneration(config).eval()
    refused(t5, prompts(1), "encoder-decoder models are not supported")


def test_caches_that_cannot_take_back_tokens_are_refused() -> None:
    from transformers.cache_utils import Cache, DynamicCache, LinearAttentionLayer

    model, inputs = tiny("Llama"), prompts(1)
    other = Cache(layers=DynamicCache(config=model.config).layers)
    refused(model, inputs, "expected a DynamicCache or StaticCache, got Cache", **{CACHE: other})
    cache = DynamicCache(config=model.config)
    cache.layers[1] = LinearAttentionLayer()
    message = "a cache with layers of LinearAttentionLayer cannot take back rejected drafts"
    refused(model, inputs, message, **{CACHE: cache})
    cache = DynamicCache(config=model.config)
    cache.offloading = True
    refused(model, inputs, "offloaded caches are not supported", **{CACHE: cache})


def test_batches_that_need_more_than_a_mask_and_positions_are_refused() -> None:
    model, inputs = tiny("Llama"), prompts(3)
    cache = transformers.DynamicCache(config=model.config)
    refused(model, inputs, f"{CACHE} of your own needs batch size 1", **{CACHE: cache})
    refused(
        tiny("Llama", "flex_attention"),
        inputs,
        'batch size 1 only: attn_impl.* must be "sdpa" or "eager", got',
    )
    model.create_masks_for_generate = lambda **_: None
    refused(model, inputs, "batch size 1 only: LlamaForCausalLM makes masks of its own")
    model = tiny("Llama")
    message = "rows of a batch end one by one: set pad_token_id"
    model.config.pad_token_id = model.generation_config.pad_token_id = None
    refused(model, inputs, message, stopping_criteria=[lambda ids, scores, **_: False])
