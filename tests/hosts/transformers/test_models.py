"""Other models and caches: served as without drafts, or refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.later import Later
from helpers.tiny_models import GEMMA, own_cache, prompts, tiny
from ngramspec.errors import BackendError, InputError
from ngramspec.hosts.transformers import NgramSpeculator, checks, ngramspec_generate
from ngramspec.hosts.transformers.passes import Places, RowStore
from ngramspec.hosts.transformers.scores import Scores

torch = Later("torch", "runs models of torch")
transformers = Later("transformers", "drives transformers")


def both(model: Any, inputs: Any, **options: Any) -> tuple[Any, Any]:
    options = {"max_new_tokens": 40, "do_sample": False, **options}
    plain = model.generate(**inputs, **options)
    speculator = NgramSpeculator("ngram-simple", policy="fixed", size_n=2, size_m=6)
    ids = model.generate(
        **inputs, **options, custom_generate=ngramspec_generate, drafter=speculator
    )
    stats = speculator.stats()["ngram-simple"]
    assert stats.num_accepted_tokens > 0
    return ids, plain


@pytest.mark.parametrize(("rows", "attention"), [(1, "sdpa"), (3, "eager")])
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
def test_dynamic_caches_of_all_kinds(kind: str, changes: Any, rows: int, attention: str) -> None:
    ids, plain = both(tiny(kind, attention, **changes), prompts(rows))
    assert ids.equal(plain)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", ["Llama", "Gemma3"])
def test_static_caches_within_their_window(kind: str, rows: int) -> None:
    model = tiny(kind, **({"sliding_window": 80, **GEMMA} if kind == "Gemma3" else {}))
    ids, plain = both(model, prompts(rows), cache_implementation="static")
    assert ids.equal(plain)


def test_one_row_may_be_padded() -> None:
    inputs = {key: values[2:3] for key, values in prompts(3).items()}
    for cache in (None, "static"):
        ids, plain = both(tiny("Llama"), inputs, cache_implementation=cache)
        assert ids.equal(plain)


def test_positions_may_come_from_the_mask_alone() -> None:
    model = tiny("Bloom", "eager", n_head=4, n_layer=2)
    ids, plain = both(model, prompts(1))
    assert ids.equal(plain)
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


@pytest.mark.parametrize(
    ("kind", "rope", "changes"),
    [
        ("Llama", {"rope_type": "dynamic", "factor": 2.0}, {"max_position_embeddings": 71}),
        (
            "Phi3",
            {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
            {"original_max_position_embeddings": 71},
        ),
    ],
)
def test_rope_that_goes_by_the_length_of_a_pass_is_refused_where_it_does(
    kind: str, rope: dict[str, Any], changes: dict[str, Any]
) -> None:
    model = tiny(kind, rope_parameters={"rope_theta": 10000.0, **rope}, **changes)
    for rows in (1, 3):
        ids, plain = both(model, prompts(rows), max_new_tokens=60)
        assert ids.equal(plain)
        message = f"beyond 71 tokens {kind}ForCausalLM turns keys .* have 72 tokens, got 73"
        refused(model, prompts(rows), message, max_new_tokens=61)


def test_tensor_parallel_models_are_refused() -> None:
    model = tiny("Llama")
    model._tp_size = 2  # as from_pretrained(tp_plan=...) sets it
    refused(model, prompts(1), "tensor parallelism is not supported")


def test_models_that_change_their_inputs_are_refused() -> None:
    class Grows(transformers.LlamaForCausalLM):  # type: ignore[misc]
        def _update_model_kwargs_for_generation(self, *arguments: Any, **named: Any) -> Any:
            return super()._update_model_kwargs_for_generation(*arguments, **named)

    model = tiny("Llama")
    model.__class__ = Grows
    refused(model, prompts(1), "Grows changes its inputs after each token")


def test_a_window_over_places_is_refused_where_places_are_not_positions() -> None:
    kinds = {"attention_types": [[["global", "local"], 1]], "window_size": 7}
    model = tiny("GPTNeo", "eager", num_layers=2, num_heads=4, **kinds)
    ids, plain = both(model, prompts(1))
    assert ids.equal(plain)
    refused(model, prompts(3), "batch size 1 only: GPTNeoForCausalLM makes masks of its own")
    refused(model, prompts(1), "tree=4 needs masks of our own: GPTNeoForCausalLM", tree=4)


def test_processors_that_keep_a_state_are_refused() -> None:
    class Guided(transformers.UnbatchedClassifierFreeGuidanceLogitsProcessor):  # type: ignore[misc]
        pass

    model, message = tiny("Llama"), "must see every token once, in order"
    refused(model, prompts(1), f"Guided {message}", logits_processor=[Guided(1.5, model)])

    # As xgrammar's, which goes by the last token or reads the whole text again.
    class LogitsProcessor:
        __module__ = "xgrammar.contrib.hf"

        def stateful_call(self, ids: Any, scores: Any) -> Any: ...

        def stateless_call(self, ids: Any, scores: Any) -> Any: ...

    matcher: Any = LogitsProcessor()
    matcher.call_fn = matcher.stateful_call
    with pytest.raises(InputError, match=f"LogitsProcessor {message}"):
        Scores([matcher])
    matcher.call_fn = matcher.stateless_call
    Scores([matcher])


@pytest.mark.parametrize(("kind", "static"), [("Mistral", False), ("Llama", True)])
def test_a_call_that_breaks_off_leaves_what_was_verified_in_the_cache(
    kind: str, static: bool
) -> None:
    model = tiny(kind, **({} if static else {"sliding_window": 7}))
    inputs, options = prompts(1), {"max_new_tokens": 60, "do_sample": False}
    expected = model.generate(**inputs, **options)

    def fail(ids: Any, scores: Any, **_: Any) -> Any:
        if ids.shape[1] > 40:
            raise RuntimeError("no more")
        return torch.zeros(1, dtype=torch.bool)

    cache = transformers.DynamicCache(config=model.config)
    if static:
        cache = transformers.StaticCache(config=model.config, max_cache_len=80)
    drafts = {"drafter": "ngram-simple", "custom_generate": ngramspec_generate}
    with pytest.raises(RuntimeError, match="no more"):
        model.generate(**inputs, **options, **drafts, stopping_criteria=[fail], **own_cache(cache))
    held = int(cache.get_seq_length())
    assert 12 <= held < 40
    assert not any(getattr(layer, "record_past", False) for layer in cache.layers)
    text = expected[:, : held + 1]
    rest = {"input_ids": text, "attention_mask": torch.ones_like(text), **own_cache(cache)}
    assert model.generate(**rest, **{**options, "max_new_tokens": 71 - held}).equal(expected)


def test_layers_may_lie_elsewhere_than_the_places() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a second device")
    places = Places()
    store = RowStore(places, capacity=8, fixed=True)
    prompt = torch.zeros(2, 1, 3, 4)
    store.update(prompt, prompt)
    places.rows = torch.arange(2, device="cuda")[:, None]
    places.columns, places.end = torch.tensor([[3], [2]], device="cuda"), 4
    keys, _ = store.update(torch.ones(2, 1, 1, 4), torch.ones(2, 1, 1, 4))
    assert keys[:, 0, :, 0].tolist() == [[0, 0, 0, 1], [0, 0, 1, 0]]
    store.move(*torch.tensor([[1], [2], [3]], device="cuda"))
    store.select(torch.tensor([1], device="cuda"))
    assert store.keys[:, 0, :4, 0].tolist() == [[0, 0, 1, 1]]


def test_a_call_without_a_length_limit_is_refused() -> None:
    def unlimited(*arguments: Any, stopping_criteria: Any, **options: Any) -> Any:
        return ngramspec_generate(*arguments, **options)

    with pytest.raises(InputError, match="set no length limit: set max_new_tokens"):
        tiny("Llama").generate(**prompts(1), max_new_tokens=9, custom_generate=unlimited)


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
    refused(model, inputs, "expected a DynamicCache or StaticCache, got Cache", **own_cache(other))
    cache = DynamicCache(config=model.config)
    cache.layers[1] = LinearAttentionLayer()
    message = "a cache with layers of LinearAttentionLayer cannot take back rejected drafts"
    refused(model, inputs, message, **own_cache(cache))
    cache = DynamicCache(config=model.config)
    cache.offloading = True
    refused(model, inputs, "offloaded caches are not supported", **own_cache(cache))


def test_batches_that_need_more_than_a_mask_and_positions_are_refused() -> None:
    model, inputs = tiny("Llama"), prompts(3)
    cache = transformers.DynamicCache(config=model.config)
    refused(model, inputs, ".* of your own needs batch size 1", **own_cache(cache))
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
