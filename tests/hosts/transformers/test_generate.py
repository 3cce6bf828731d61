"""generate() with drafts: greedy texts, and everything that ends or changes them."""

from __future__ import annotations

import copy
import logging
import random
from typing import Any

import pytest

from helpers import tiny_models
from hosts.transformers.conftest import REASON
from ngramspec import AutoPolicy, create_drafter
from ngramspec.hosts.transformers import NgramSpeculator, checks, ngramspec_generate, passes
from ngramspec.hosts.transformers.drafts import Drafts
from ngramspec.hosts.transformers.passes import RowsPass

CACHES = (None, "static")
END = 2  # of the embedded model
ENDS = [2, 12]  # of the small one: two rows of four say one of them


def greedy(model: Any, inputs: Any, **options: Any) -> Any:
    return model.generate(**inputs, **{"max_new_tokens": 64, "do_sample": False, **options})


def drafted(model: Any, inputs: Any, drafter: Any = None, **options: Any) -> Any:
    """The same call with drafts, which must have been accepted now and then."""
    drafter = drafter or NgramSpeculator("suffix", policy="fixed")
    ids = greedy(
        model, inputs, custom_generate=ngramspec_generate, drafter=drafter, **copy.copy(options)
    )
    assert sum(stats.num_accepted_tokens for stats in drafter.stats().values()) > 0
    return ids


def same(a: Any, b: Any) -> bool:
    import torch

    return torch.equal(a, b)


def row(inputs: Any, index: int) -> Any:
    """One row without its padding."""
    mask = inputs["attention_mask"][index].bool()
    return {key: values[index : index + 1, mask] for key, values in inputs.items()}


def whole(text: list[int]) -> list[int]:
    """Return a text up to its end token, if it has one."""
    return text[: text.index(END) + 1] if END in text else text


@pytest.fixture(scope="module")
def small() -> Any:
    """A model of random weights, which soon says the same again and again."""
    for name in ("torch", "transformers"):
        pytest.importorskip(name, reason=REASON)
    return tiny_models.tiny("Llama")


@pytest.fixture(scope="module")
def few(small: Any) -> Any:
    """Four prompts for it, of unequal length, padded on the left."""
    return tiny_models.prompts(4)


def test_one_row_says_what_it_says_without_drafts(model: Any, batch: Any, plain: Any) -> None:
    start = batch["input_ids"].shape[1]
    for i, expected in enumerate(plain[:, start : start + 80].tolist()):
        inputs = row(batch, i)
        options = {"max_new_tokens": 80, "max_draft": 16, "cache_implementation": CACHES[i % 2]}
        ids = drafted(model, inputs, **options)
        assert ids[0, inputs["input_ids"].shape[1] :].tolist() == whole(expected)


def test_rows_of_a_batch_say_what_they_say_without_drafts(
    model: Any, batch: Any, plain: Any, monkeypatch: Any
) -> None:
    # Some rows have ended and others have not, and buffers grow.
    ends = [int((text != model.config.pad_token_id).nonzero().max()) for text in plain]
    assert len(set(ends)) > 2
    monkeypatch.setattr(passes, "FIRST_ROOM", 16)
    assert same(drafted(model, batch, max_new_tokens=100, max_draft=16), plain)
    speculator = NgramSpeculator(policy=AutoPolicy())
    options = {"max_new_tokens": 100, "cache_implementation": "static"}
    assert same(drafted(model, batch, speculator, **options), plain)
    # Again, from the texts of the first time: nearly nothing is left to be computed alone.
    before = speculator.stats()["suffix"].num_accepted_tokens
    assert same(drafted(model, batch, speculator, max_new_tokens=100), plain)
    assert speculator.stats()["suffix"].num_accepted_tokens > before


def test_a_batch_is_its_rows(small: Any, few: Any) -> None:
    texts = drafted(small, few, max_new_tokens=40)
    for i, text in enumerate(texts):
        inputs = row(few, i)
        alone = drafted(small, inputs, max_new_tokens=40)[0, inputs["input_ids"].shape[1] :]
        assert text[-40:].tolist()[: len(alone)] == alone.tolist()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_short_answers(small: Any, few: Any, count: int) -> None:
    for inputs in (few, row(few, 1)):
        expected = greedy(small, inputs, max_new_tokens=count)
        ids = greedy(small, inputs, max_new_tokens=count, custom_generate=ngramspec_generate)
        assert same(ids, expected)


def test_drafters_come_by_name_and_ready_made(small: Any, few: Any) -> None:
    expected = greedy(small, few)
    for drafter in ("suffix", ["ngram-simple", "ngram-cache"], "ngram-mod,suffix"):
        assert same(
            greedy(small, few, custom_generate=ngramspec_generate, drafter=drafter), expected
        )
    ready = create_drafter("ngram-simple", slots=6, size_n=3)
    assert same(drafted(small, few, ready), expected)
    assert same(drafted(small, few, ready, max_draft=2), expected)


def test_a_drafter_that_fails_leaves_the_text_alone(small: Any, few: Any, caplog: Any) -> None:
    drafter = create_drafter("suffix", slots=4)

    def spoil(ids: Any, scores: Any, **_: Any) -> bool:
        if ids.shape[1] == few["input_ids"].shape[1] + 20 and drafter.length(2):
            drafter.begin(2, [])
            drafter.end(2)
        return False

    expected = greedy(small, few)
    with caplog.at_level(logging.WARNING, "ngramspec"):
        assert same(drafted(small, few, drafter, stopping_criteria=[spoil]), expected)
    assert [record.name.split(".")[-1] for record in caplog.records] == ["drafts"]


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 5},
        {"encoder_repetition_penalty": 1.2, "min_new_tokens": 50, "eos_token_id": ENDS},
        {"bad_words_ids": [[24], [31, 30]], "suppress_tokens": [11, 12]},
        {"prefix_allowed_tokens_fn": lambda row, ids: [row + 20, (len(ids) % 3) + 30, 39]},
        {
            "exponential_decay_length_penalty": (20, 1.4),
            "eos_token_id": ENDS,
            "remove_invalid_values": True,
        },
        {"forced_eos_token_id": 7, "begin_suppress_tokens": [10]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_processors_see_each_row_as_if_its_draft_were_emitted(
    small: Any, few: Any, options: Any
) -> None:
    for inputs in (few, row(few, 0)):
        expected = greedy(small, inputs, **options)
        assert same(drafted(small, inputs, **options), expected)


def test_a_processor_of_ones_own_sees_the_whole_batch(small: Any, few: Any) -> None:
    import torch

    def favour(ids: Any, scores: Any) -> Any:
        assert ids.shape[0] == scores.shape[0]
        places = torch.arange(scores.shape[0])
        scores[places, (ids[:, -1] + ids.shape[1] + places) % scores.shape[1]] += 9
        return scores

    for inputs in (few, row(few, 0)):
        expected = greedy(small, inputs, logits_processor=[favour])
        texts = greedy(
            small,
            inputs,
            logits_processor=[favour],
            custom_generate=ngramspec_generate,
            drafter=NgramSpeculator("suffix", policy="fixed"),
        )
        assert same(texts, expected)


def test_a_rule_of_each_row_is_asked_about_texts_of_that_row_only(small: Any, few: Any) -> None:
    start = few["input_ids"].shape[1]
    rng = random.Random(1)
    # What is drafted is right in some rows and not in others, so they are of unequal length.
    texts = [[20 + i % (3 + row) for i in range(64)] for row in range(2)]
    texts += [rng.choices(range(20, 40), k=64) for _ in range(2)]

    def allowed(row: int, ids: Any) -> list[int]:
        text = ids[start:].tolist()
        return [texts[row][len(text)]] if texts[row][: len(text)] == text else []

    options = {"prefix_allowed_tokens_fn": allowed}
    assert drafted(small, few, **options)[:, start:].tolist() == texts
    assert same(drafted(small, few, **options), greedy(small, few, **options))


def test_defaults_come_from_the_generation_config(small: Any, few: Any) -> None:
    config = copy.deepcopy(small.generation_config)
    config.update(repetition_penalty=1.1, max_new_tokens=30, eos_token_id=ENDS)
    expected = small.generate(**few, generation_config=config)
    ids = small.generate(**few, generation_config=config, custom_generate=ngramspec_generate)
    assert same(ids, expected)


def test_criteria_of_ones_own_end_rows_where_they_would(small: Any, few: Any) -> None:
    def at_the_third_time(ids: Any, scores: Any, **_: Any) -> Any:
        last = ids[:, -2:]
        return ((ids[:, -4:-2] == last) & (ids[:, -6:-4] == last)).all(dim=1)

    for inputs in (few, row(few, 0)):
        options = {"stopping_criteria": [at_the_third_time], "eos_token_id": 1}
        expected = greedy(small, inputs, **options)
        assert same(drafted(small, inputs, **options), expected)
        assert expected.shape[1] < inputs["input_ids"].shape[1] + 64 or (expected[:, -1] == 0).any()


def test_time_ends_all_rows(small: Any, few: Any) -> None:
    ids = greedy(small, few, max_time=1e-9, custom_generate=ngramspec_generate)
    assert ids.shape[1] == few["input_ids"].shape[1] + 1


class Listener:
    """A streamer of any batch size."""

    def __init__(self) -> None:
        self.heard: list[list[int]] = []
        self.ended = 0

    def put(self, value: Any) -> None:
        self.heard.append(value.tolist())

    def end(self) -> None:
        self.ended += 1


def test_streamers_hear_what_they_would(small: Any, few: Any) -> None:
    for inputs in (few, row(few, 0)):
        plain, ours = Listener(), Listener()
        greedy(small, inputs, eos_token_id=ENDS, streamer=plain)
        drafted(small, inputs, eos_token_id=ENDS, streamer=ours)
        assert ours.heard == plain.heard
        assert ours.ended == 1


def test_text_streamers(model: Any, tokenizer: Any, batch: Any, capsys: Any) -> None:
    from transformers import TextStreamer

    texts = []
    for generate in (greedy, drafted):
        generate(model, row(batch, 0), streamer=TextStreamer(tokenizer, skip_prompt=True))
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert "def " in texts[0]


def test_the_returned_cache_is_that_of_the_text(small: Any, few: Any) -> None:
    inputs = row(few, 0)
    longer = greedy(small, inputs, max_new_tokens=60)
    for cache in CACHES:
        options = {"return_dict_in_generate": True, "cache_implementation": cache}
        output = drafted(small, inputs, max_new_tokens=30, **options)
        assert same(output.sequences, longer[:, : output.sequences.shape[1]])
        if cache is None:
            past = output[checks.cache_name()]
            assert past.get_seq_length() == output.sequences.shape[1] - 1
            rest = {"input_ids": output.sequences, checks.cache_name(): past}
            assert same(drafted(small, rest, max_new_tokens=30), longer)
    output = drafted(small, few, return_dict_in_generate=True)
    assert same(output.sequences, greedy(small, few))
    assert getattr(output, checks.cache_name()) is None


def test_a_static_cache_of_ones_own(small: Any, few: Any) -> None:
    from transformers import StaticCache

    inputs = row(few, 0)
    expected = greedy(small, inputs)
    cache = StaticCache(config=small.config, max_cache_len=100)
    for _ in range(2):
        assert same(drafted(small, inputs, **{checks.cache_name(): cache}), expected)
        assert int(cache.get_seq_length()) == expected.shape[1] - 1
        cache.reset()


def test_prompts_in_chunks(small: Any, few: Any) -> None:
    for inputs in (few, row(few, 0)):
        expected = greedy(small, inputs, prefill_chunk_size=5)
        assert same(drafted(small, inputs, prefill_chunk_size=5), expected)


def test_the_policy_learns_what_passes_take(small: Any, few: Any) -> None:
    speculator = NgramSpeculator("suffix")
    assert speculator.policy is not None
    before = speculator.policy.costs().cost(1)
    greedy(small, row(few, 0), custom_generate=ngramspec_generate, drafter=speculator)
    assert speculator.policy.costs().cost(1) < before / 2  # in seconds now, of passes


def test_a_pass_is_told_with_all_tokens_that_it_computes(
    small: Any, few: Any, monkeypatch: Any
) -> None:
    observed: list[int] = []
    computed: list[int] = []
    monkeypatch.setattr(Drafts, "observe", lambda self, tokens, seconds: observed.append(tokens))
    forward = RowsPass._forward

    def count(self: Any, token_ids: Any, *rest: Any) -> Any:
        computed.append(token_ids.numel())
        return forward(self, token_ids, *rest)

    monkeypatch.setattr(RowsPass, "_forward", count)
    expected = greedy(small, few, eos_token_id=ENDS)
    assert same(drafted(small, few, eos_token_id=ENDS), expected)  # rows end and are dropped
    assert observed == computed
    assert len(set(computed)) > 3


def test_the_exported_model_is_the_one_llama_cpp_runs(
    model: Any, tokenizer: Any, prompts: list[str]
) -> None:
    numpy = pytest.importorskip("numpy")
    llama_cpp = pytest.importorskip("llama_cpp", reason="compares with llama.cpp")
    import torch

    from ngramspec import embedded_model

    llama = llama_cpp.Llama(
        str(embedded_model()),
        n_ctx=1024,
        n_threads=1,
        n_threads_batch=1,
        logits_all=True,
        verbose=False,
    )
    right = total = 0
    for prompt in prompts:
        ids = tokenizer(prompt)["input_ids"]
        assert llama.tokenize(prompt.encode(), add_bos=False, special=True) == ids
        llama.reset()
        llama.eval(ids)
        theirs = numpy.array(llama.scores[: len(ids)])
        ours = model(torch.tensor([ids])).logits[0].detach().numpy()
        # llama.cpp rounds activations to 8 bits for these weights; logits spread by 3.
        assert numpy.abs(ours - theirs).mean() < 0.2
        right += (ours.argmax(1) == theirs.argmax(1)).sum()
        total += len(ids)
    llama.close()
    assert right > 0.95 * total
