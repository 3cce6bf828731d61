"""generate() with drafts that branch: texts, caches, and where drafts stay chains."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from helpers.later import Later
from helpers.tiny_models import GEMMA, own_cache, prompts, tiny
from helpers.tree_drafter import TreeDrafter, Trees
from ngramspec import AutoPolicy, create_drafter
from ngramspec.costs import CostTable
from ngramspec.errors import InputError
from ngramspec.hosts.transformers import NgramSpeculator, checks, ngramspec_generate
from ngramspec.hosts.transformers.drafts import Drafts
from ngramspec.hosts.transformers.generate import _say_once
from ngramspec.hosts.transformers.loop import Loop
from ngramspec.hosts.transformers.passes import CutPass, RowsPass

torch = Later("torch", "runs models of torch")
transformers = Later("transformers", "drives transformers")

CHEAP = CostTable(((1, 1.0), (2, 1.001)))


def truths(ids: Any, inputs: Any, extra: int = 12) -> list[list[int]]:
    """Return what rows said, and some tokens more for drafts that go beyond the end."""
    return [[*row, *[0] * extra] for row in ids[:, inputs["input_ids"].shape[1] :].tolist()]


def with_trees(
    model: Any, inputs: Any, expected: Any, turns: Iterable[int] = (1,), **options: Any
) -> list[Any]:
    """Return what trees around the wanted texts give; side branches of them were accepted."""
    counts, outputs = np.zeros(3, int), []
    for seed in turns:
        drafter = TreeDrafter(truths(expected, inputs), model.config.vocab_size, seed)
        result = model.generate(
            **inputs,
            **{"tree": 4, **options},
            custom_generate=ngramspec_generate,
            drafter=Trees(drafter),
        )
        outputs.append(result)
        text = result if isinstance(result, torch.Tensor) else result.sequences
        assert text.equal(expected), seed
        counts += drafter.branched, drafter.side, drafter.accepted
    assert counts[0] >= 5
    assert counts[1] >= 3
    assert counts[2] >= 20
    return outputs


@pytest.mark.parametrize(
    ("rows", "cache", "attention"),  # each with each of the others
    [(1, None, "sdpa"), (1, "static", "eager"), (3, None, "eager"), (3, "static", "sdpa")],
)
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Llama", {}),
        ("Mistral", {"sliding_window": 7}),
        ("Gemma3", {"sliding_window": 7, **GEMMA}),
        ("Qwen3", {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1}),
        ("GPT2", {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 512}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "full",
)
def test_greedy_texts_are_those_of_no_drafts(
    kind: str, changes: Any, rows: int, cache: Any, attention: str
) -> None:
    if cache == "static" and "sliding_window" in changes:
        changes = {**changes, "sliding_window": 90}  # static ones must not slide
    model, inputs = tiny(kind, attention, **changes), prompts(rows)
    options = {"max_new_tokens": 40, "do_sample": False, "cache_implementation": cache}
    expected = model.generate(**inputs, **options)
    with_trees(model, inputs, expected, **options)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 3, "temperature": 0.7},
        {"prefix_allowed_tokens_fn": lambda row, ids: [(7 * row + int(ids[-2:].sum())) % 40, 3, 9]},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("sample", [False, True])
def test_processors_see_the_path_of_each_token(options: Any, sample: bool, rows: int) -> None:
    model, inputs = tiny("Llama"), prompts(rows)
    options = {**options, "max_new_tokens": 40, "do_sample": sample}
    if sample:
        options["seeds"] = 3
        expected = model.generate(
            **inputs, **options, custom_generate=ngramspec_generate, max_draft=0
        )
    else:
        expected = model.generate(**inputs, **options)
    with_trees(model, inputs, expected, **options)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("sample", [False, True])
def test_processors_see_no_text_that_they_have_ruled_out(sample: bool, rows: int) -> None:
    """As with a trie: whoever is asked for what may follow such a text finds nothing."""
    model, inputs = tiny("Llama"), prompts(rows)
    begin = inputs["input_ids"].shape[1]

    def after(token: Any) -> list[int]:
        return [int(token) % 7 + 20, int(token) % 5 + 30, 3]

    def allowed(row: int, ids: Any) -> list[int]:
        right = all(int(b) in after(a) for a, b in zip(ids[begin - 1 :], ids[begin:], strict=False))
        return after(ids[-1]) if right else []

    options = {"max_new_tokens": 40, "do_sample": sample, "prefix_allowed_tokens_fn": allowed}
    if sample:
        options["seeds"] = 3
    plain = {"custom_generate": ngramspec_generate, "max_draft": 0} if sample else {}
    expected = model.generate(**inputs, **options, **plain)
    with_trees(model, inputs, expected, **options)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("options", [{}, {"temperature": 2.0, "top_k": 10, "top_p": 0.9}])
def test_compare_gives_the_text_of_no_drafts(options: Any, rows: int) -> None:
    model, inputs = tiny("Llama"), prompts(rows)
    options = {**options, "max_new_tokens": 60, "do_sample": True, "seeds": 8}
    expected = model.generate(**inputs, **options, custom_generate=ngramspec_generate, max_draft=0)
    with_trees(model, inputs, expected, **options)


def test_ends_and_criteria_end_rows_where_they_would() -> None:
    model, inputs = tiny("Llama"), prompts(3)

    def at_a_pair(ids: Any, scores: Any, **_: Any) -> Any:
        return ids[:, -2:].sum(dim=1) == 4

    for more in (
        {"eos_token_id": [12]},
        {"eos_token_id": [7], "stopping_criteria": [at_a_pair]},
    ):
        for rows in (1, 3):
            some = {key: values[:rows] for key, values in inputs.items()}
            options = {"max_new_tokens": 60, "do_sample": False, **more}
            expected = model.generate(**some, **options)
            assert expected.shape[1] < 72 or (expected[:, -1] == 0).any()
            with_trees(model, some, expected, **options)


class Listener:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def put(self, value: Any) -> None:
        self.heard.append(value.tolist())

    def end(self) -> None:
        self.heard.append("end")


def test_streamers_hear_what_they_would() -> None:
    for rows in (1, 3):
        model, inputs = tiny("Llama"), prompts(rows)
        options = {"max_new_tokens": 60, "do_sample": False}
        plain, ours = Listener(), Listener()
        expected = model.generate(**inputs, **options, streamer=plain)
        with_trees(model, inputs, expected, [5], **options, streamer=ours)
        assert ours.heard == plain.heard


@pytest.mark.parametrize("kind", ["Llama", "Gemma3"])
def test_the_returned_cache_is_that_of_plain_generate(kind: str) -> None:
    model = tiny(kind, **({"sliding_window": 7, **GEMMA} if kind == "Gemma3" else {}))
    inputs = {key: values[2:3] for key, values in prompts(3).items()}  # with padding
    options = {"max_new_tokens": 60, "do_sample": False, "return_dict_in_generate": True}
    plain = model.generate(**inputs, **options)
    for output in with_trees(model, inputs, plain.sequences, **options):
        caches = [out[checks.cache_name()] for out in (output, plain)]
        assert caches[0].get_seq_length() == caches[1].get_seq_length() == 71
        for ours, theirs in zip(*(cache.layers for cache in caches), strict=True):
            assert ours.keys.shape == theirs.keys.shape
            assert torch.allclose(ours.keys, theirs.keys)
            assert torch.allclose(ours.values, theirs.values)


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("rows", [1, 3])
def test_after_each_pass_the_cache_holds_the_text(monkeypatch: Any, rows: int, cache: Any) -> None:
    model, inputs = tiny("Llama"), prompts(rows)
    expected = model.generate(**inputs, max_new_tokens=60, cache_implementation=cache)
    pads = (inputs["attention_mask"] == 0).sum(dim=1).tolist()
    plain = []
    for row, pad in enumerate(pads):
        past = model(expected[row : row + 1, pad:])[checks.cache_name()]
        plain.append([(layer.keys[0], layer.values[0]) for layer in past.layers])
    kind: Any = CutPass if rows == 1 else RowsPass
    keep, checked = kind.keep, [0]

    def checking(self: Any, counts: Any, paths: Any) -> None:
        keep(self, counts, paths)
        ends = [self._seen] if rows == 1 else self._starts[self._held].tolist()
        held = [0] if rows == 1 else self._held.tolist()
        for number, layer in enumerate(self.cache.layers):
            for place, (row, end) in enumerate(zip(held, ends, strict=True)):
                for ours, theirs in zip(
                    (layer.keys, layer.values), plain[row][number], strict=True
                ):
                    there = ours[place, :, pads[row] : end]
                    assert torch.allclose(there, theirs[:, : max(0, end - pads[row])])
        checked[0] += 1

    monkeypatch.setattr(kind, "keep", checking)
    options = {"max_new_tokens": 60, "cache_implementation": cache}
    with_trees(model, inputs, expected, **options)
    assert checked[0] > 10


def test_a_cache_of_ones_own_takes_trees() -> None:
    model, inputs = tiny("Llama"), prompts(1)
    options = {"max_new_tokens": 60, "do_sample": False}
    expected = model.generate(**inputs, **options)
    cache = transformers.StaticCache(config=model.config, max_cache_len=100)
    with_trees(model, inputs, expected, [5], **options, **own_cache(cache))


@pytest.mark.parametrize("method", ["compare", "reject"])
def test_texts_have_the_distribution_of_the_model(method: Any) -> None:
    from itertools import product

    model = tiny("Llama", vocab_size=3, pad_token_id=None)
    model.lm_head.weight.data *= 2.4  # neither even nor certain
    prompt, count, rows, rounds = [0, 1, 2, 0, 1, 2], 4, 400, 6
    exact = {}
    texts = list(product(range(3), repeat=count))
    logits = model(torch.tensor([[*prompt, *text] for text in texts])).logits
    chances = torch.softmax(logits[:, len(prompt) - 1 : -1].detach(), -1)
    for text, each in zip(texts, chances, strict=True):
        exact[text] = float(each[torch.arange(count), torch.tensor(text)].prod())
    assert 0.02 < max(exact.values()) < 0.5
    seen = dict.fromkeys(exact, 0)
    side = 0
    for turn in range(rounds):
        drafter = TreeDrafter([max(exact, key=lambda text: exact[text])] * rows, 3, turn)
        ids = model.generate(
            torch.tensor([prompt] * rows),
            do_sample=True,
            max_new_tokens=count + 4,  # the last tokens have small trees
            top_k=0,
            seeds=turn * rows,
            verification=method,
            tree=4,
            custom_generate=ngramspec_generate,
            drafter=Trees(drafter),
        )
        side += drafter.side
        for text in ids[:, len(prompt) : len(prompt) + count].tolist():
            seen[tuple(text)] += 1
    assert side > 50
    total = rows * rounds
    common = [text for text, chance in exact.items() if total * chance >= 5]
    error = sum((seen[text] - total * exact[text]) ** 2 / (total * exact[text]) for text in common)
    freedom = len(common)
    assert error < freedom + 5 * (2 * freedom) ** 0.5


# -- with a drafter and a policy, on the embedded model ----------------------------------------


@pytest.fixture
def watched(monkeypatch: Any) -> dict[str, int]:
    """Count passes that branch, and rows whose accepted path is not the first tokens."""
    counts = {"branched": 0, "side": 0}
    verified = Loop._verified

    def watch(self: Any, logits: Any, nodes: Any) -> Any:
        outcome = verified(self, logits, nodes)
        counts["branched"] += nodes.branched
        for path, n in zip(outcome.paths.tolist(), outcome.num_accepted.tolist(), strict=True):
            counts["side"] += path[:n] != list(range(n))
        return outcome

    monkeypatch.setattr(Loop, "_verified", watch)
    return counts


@pytest.fixture
def known_costs(monkeypatch: Any) -> None:
    """Let policies keep the costs they were given, however busy the machine is."""
    monkeypatch.setattr(Drafts, "observe", lambda *_: None)


@pytest.mark.usefixtures("known_costs")
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("rows", [1, 4])
def test_the_embedded_model_says_the_same_with_trees(
    model: Any, batch: Any, plain: Any, watched: dict[str, int], rows: int, cache: Any
) -> None:
    count = 100 if rows == 1 else 60
    inputs, expected = batch, plain[:, : batch["input_ids"].shape[1] + count]
    if rows == 1:
        inputs, expected = {key: values[2:3] for key, values in batch.items()}, expected[2:3]
    options = {"max_new_tokens": count, "do_sample": False, "cache_implementation": cache}
    speculator = NgramSpeculator("suffix", policy=AutoPolicy(costs=CHEAP))
    ids = model.generate(
        **inputs, **options, custom_generate=ngramspec_generate, drafter=speculator
    )
    assert ids.equal(expected)
    assert watched["branched"] > 3
    assert watched["side"] > 0
    assert speculator.stats()["suffix"].num_accepted_tokens > 50


@pytest.mark.parametrize("rows", [1, 4])
def test_the_embedded_model_samples_the_same_with_trees(
    model: Any, batch: Any, watched: dict[str, int], rows: int
) -> None:
    inputs = batch if rows > 1 else {key: values[2:3] for key, values in batch.items()}
    options = {"max_new_tokens": 40, "do_sample": True, "temperature": 0.9, "seeds": 21}
    options["custom_generate"] = ngramspec_generate
    expected = model.generate(**inputs, **options, max_draft=0)
    ids = model.generate(
        **inputs,
        **options,
        tree=4,
        max_draft=16,
        drafter=NgramSpeculator("suffix", policy="fixed"),
    )
    assert ids.equal(expected)
    assert watched["branched"] > 3
    assert watched["side"] > 0


@pytest.mark.parametrize("rows", [1, 4])
def test_stop_strings_end_rows_where_they_would(
    model: Any, tokenizer: Any, batch: Any, watched: dict[str, int], rows: int
) -> None:
    def at_a_colon(ids: Any, scores: Any, **_: Any) -> Any:
        return (ids[:, -2:-1] == 28).any(dim=1) | (ids[:, -1] == 295)

    inputs = batch if rows > 1 else {key: values[2:3] for key, values in batch.items()}
    strings = transformers.StopStringCriteria(tokenizer, ["return", '"kind"'])
    criteria = [at_a_colon, strings] if rows > 1 else [strings]
    options = {"max_new_tokens": 60, "do_sample": False, "stopping_criteria": criteria}
    expected = model.generate(**inputs, **options)
    assert expected.shape[1] < inputs["input_ids"].shape[1] + 60 or (expected[:, -1] == 0).any()
    for tree in ("off", 4):
        assert watched["branched"] == 0
        speculator = NgramSpeculator("suffix", policy="fixed")
        options |= {"max_draft": 16, "tree": tree, "drafter": speculator}
        assert generated(model, inputs, **options).equal(expected)
        assert speculator.stats()["suffix"].num_accepted_tokens > 0
    assert watched["branched"] > 0


def generated(model: Any, inputs: Any, **options: Any) -> Any:
    return model.generate(
        **inputs,
        **{"max_new_tokens": 40, "do_sample": False, **options},
        custom_generate=ngramspec_generate,
    )


@pytest.mark.usefixtures("known_costs")
def test_off_and_auto_without_costs_are_chains(
    model: Any, batch: Any, watched: dict[str, int]
) -> None:
    inputs = {key: values[:1] for key, values in batch.items()}
    cheap = NgramSpeculator("suffix", policy=AutoPolicy(costs=CHEAP))
    dear = AutoPolicy(costs=CostTable(((1, 1.0), (2, 1.9))))
    texts = [
        generated(model, inputs, drafter=cheap, tree="off"),
        generated(model, inputs, drafter=NgramSpeculator("suffix", policy="fixed")),
        generated(model, inputs, drafter=create_drafter("suffix")),
        generated(model, inputs, drafter=NgramSpeculator("suffix", policy=dear), max_draft=1),
    ]
    assert watched["branched"] == 0
    texts.append(generated(model, inputs, drafter=create_drafter("suffix"), tree=2))
    assert watched["branched"] > 0
    assert all(text.equal(texts[0]) for text in texts)


@pytest.mark.usefixtures("known_costs")
def test_models_without_masks_of_ours_get_chains_and_say_why(caplog: Any) -> None:
    _say_once.cache_clear()
    model, inputs = tiny("Bloom", "eager", n_head=4, n_layer=2), prompts(1)
    expected = model.generate(**inputs, max_new_tokens=30, do_sample=False)
    with caplog.at_level(logging.INFO, "ngramspec"):
        for _ in range(2):
            speculator = NgramSpeculator("suffix", policy=AutoPolicy(costs=CHEAP))
            assert generated(model, inputs, drafter=speculator, max_new_tokens=30).equal(expected)
            assert speculator.stats()["suffix"].num_accepted_tokens > 0
    assert [record.message for record in caplog.records] == [
        "drafts are chains, not trees: BloomForCausalLM does not take one position per token"
    ]
    caplog.clear()
    with pytest.raises(
        InputError, match=r'tree=3 needs masks of our own: Bloom.* per token; set tree="off"'
    ):
        generated(model, inputs, drafter="suffix", tree=3)
    assert generated(model, inputs, tree="off", max_new_tokens=30).equal(expected)
    assert not caplog.records
    with pytest.raises(InputError, match=r'tree=2 needs masks.*"sdpa" or "eager", got .flex'):
        generated(tiny("Llama", "flex_attention"), inputs, tree=2)


@pytest.mark.usefixtures("known_costs")
def test_models_of_ones_own_get_trees_if_asked_for(caplog: Any, watched: dict[str, int]) -> None:
    class Own(transformers.PreTrainedModel, transformers.GenerationMixin):
        config_class = transformers.LlamaConfig
        _supports_sdpa = True

        def __init__(self, inner: Any) -> None:
            super().__init__(inner.config)
            self.inner = inner

        def forward(self, input_ids: Any, position_ids: Any = None, **kwargs: Any) -> Any:
            return self.inner(input_ids=input_ids, position_ids=position_ids, **kwargs)

    _say_once.cache_clear()
    inner, inputs = tiny("Llama"), prompts(1)
    model = Own(inner)
    expected = inner.generate(**inputs, max_new_tokens=60, do_sample=False)
    cheap = NgramSpeculator("suffix", policy=AutoPolicy(costs=CHEAP))
    with caplog.at_level(logging.INFO, "ngramspec"):
        assert generated(model, inputs, drafter=cheap, max_new_tokens=60).equal(expected)
    assert watched["branched"] == 0
    assert [record.message for record in caplog.records] == [
        "drafts are chains, not trees: Own is not of transformers, and may take no 4D masks; "
        "tree=8 tries it"
    ]
    with_trees(model, inputs, expected, max_new_tokens=60, do_sample=False)
    assert watched["branched"] > 0
    assert generated(inner, inputs, drafter=cheap, max_new_tokens=60).equal(expected)


@pytest.mark.parametrize("tree", [0, -1, 1025, 2.0, True, None, "on", "4"])
def test_what_is_no_tree_is_refused(tree: Any) -> None:
    message = 'tree must be "auto", "off" or an integer in 1..1024, the most drafted tokens at'
    with pytest.raises(InputError, match=message):
        generated(tiny("Llama"), prompts(1), tree=tree)


def test_rows_at_the_last_position_of_a_model_draft_nothing() -> None:
    """Where others still draft, their padding must not ask for positions that there are none of."""
    model = tiny("GPT2", n_embd=32, n_head=4, n_layer=2, max_position_embeddings=40)
    assert model.transformer.wpe.weight.shape[0] == 40
    inputs = prompts(3)
    options = {"max_new_tokens": 28, "do_sample": False}
    expected = model.generate(**inputs, **options)
    with_trees(model, inputs, expected, range(6), **options)
    for drafter in ("ngram-simple", create_drafter("suffix", slots=3)):
        assert generated(model, inputs, drafter=drafter, tree="off", **options).equal(expected)
