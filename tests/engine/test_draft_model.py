"""DraftModel: what a second model drafts, and how its cache follows the text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.backends import int32
from helpers.fake_target import END, FakeTarget
from helpers.machines import SETTINGS
from ngramspec._native.engine.decode import GreedySampler
from ngramspec.engine import AutoPolicy, DraftModel, Engine, Request, Speculation
from ngramspec.engine.sources.draft_model import vocabulary_difference
from ngramspec.engine.sources.second_model import Duration
from ngramspec.errors import BackendError, CapacityError, InputError

pytestmark = pytest.mark.usefixtures("still")


def make(n_max: int = 3, n_min: int = 0, p_min: float = 0.0, **target: Any) -> Any:
    model = FakeTarget(**{"sequences": 2, **target})
    return DraftModel(model, n_max, n_min, p_min), model


def in_step(drafts: DraftModel, model: FakeTarget, slot: int) -> bool:
    """Tell whether the model's cache holds a beginning of the slot's text, but for its end."""
    seq = drafts._sequences[slot]
    held = model.held[slot]
    return len(held) < seq.length and held == seq.tokens[: len(held)].tolist()


def test_drafts_are_what_the_model_says_next() -> None:
    drafts, model = make()
    drafts.begin(0, int32([5, 6]))
    drafts.accept(0, int32([7]), 0)
    proposals = drafts.propose([0], [64])
    assert [draft.tolist() for draft in proposals] == [model.expected([5, 6, 7], 3)]
    assert model.batches == [3, 1, 1]  # the text, two drafted tokens


@pytest.mark.parametrize(("limit", "expected"), [(1, 1), (2, 2), (3, 3), (9, 3)])
def test_drafts_keep_to_the_limit_and_to_n_max(limit: int, expected: int) -> None:
    drafts, model = make(n_max=3)
    drafts.begin(0, int32([5]))
    assert len(drafts.propose([0], [limit])[0]) == expected
    assert len(model.batches) == expected


def test_drafts_below_n_min_are_dropped_and_not_counted() -> None:
    drafts, _ = make(n_max=4, n_min=3)
    drafts.begin(0, int32([5, 6]))
    assert drafts.propose([0], [2])[0].size == 0
    drafts.accept(0, int32([1]), 0)
    stats = drafts.stats()["draft-simple"]
    assert (stats.num_drafts, stats.num_draft_tokens, stats.accept_calls) == (0, 0, 0)
    assert drafts.propose([0], [3])[0].size == 3
    drafts.accept(0, int32([1]), 0)
    stats = drafts.stats()["draft-simple"]
    assert (stats.num_drafts, stats.num_draft_tokens, stats.accept_calls) == (1, 3, 1)


@pytest.mark.parametrize(("p_min", "size"), [(0.0, 3), (0.99, 3), (0.9999, 0), (1.0, 0)])
def test_drafts_end_before_a_token_that_is_less_probable(p_min: float, size: int) -> None:
    drafts, _ = make(p_min=p_min)  # every token of the fake model has 1 / (1 + 96 / e**10) = 0.9957
    drafts.begin(0, int32([5, 6]))
    assert drafts.propose([0], [9])[0].size == size


@pytest.mark.parametrize(("n_min", "size"), [(0, 2), (3, 3)])
def test_drafts_end_where_another_token_does_not_pay(n_min: int, size: int) -> None:
    drafts, model = make(n_max=6, n_min=n_min)
    for slot in range(2):
        drafts.begin(slot, int32([5, 6]))
    drafts.bound(0, lambda claims: len(claims) < 2)
    model.batches.clear()
    assert [draft.size for draft in drafts.propose([0, 1], [9, 9])] == [size, 6]
    # The slot that ends its draft leaves the batch.
    assert model.batches == [4] + [2] * (size - 1) + [1] * (6 - size)


def test_a_request_may_set_its_own_bound() -> None:
    drafts, _ = make(p_min=0.5)
    for bound, size in ((0.9999, 0), (None, 3), (0.0, 3)):
        drafts.start(
            0, Request(prompt_ids=int32([5]), speculation=Speculation(p_min=bound)), GreedySampler()
        )
        drafts.begin(0, int32([5, 6]))
        assert drafts.propose([0], [9])[0].size == size
        drafts.end(0)
    engine = Engine(FakeTarget(), None, draft_model=make()[0], policy=AutoPolicy(fixed=3))
    sizes = []
    for p_min in (0.9999, 0.5):
        speculation = Speculation(p_min=p_min)
        engine.generate([Request(prompt_ids=int32([5]), max_tokens=9, speculation=speculation)])
        sizes.append(engine.stats().num_draft_tokens)
    assert sizes[0] == 0 < sizes[1]


def test_drafts_end_with_an_end_token() -> None:
    drafts, model = make(n_max=64, end_every=7)
    prompt = next([p] for p in range(1, 50) if 1 < len(model.expected([p], 60)) < 9)
    drafts.begin(0, int32(prompt))
    assert drafts.propose([0], [64])[0].tolist() == [*model.expected(prompt, 60), END]


def test_long_texts_are_read_in_parts() -> None:
    drafts, model = make(max_batch=16)
    prompt = list(range(1, 51))
    drafts.begin(0, int32(prompt))
    assert drafts.propose([0], [1])[0].tolist() == model.expected(prompt, 1)
    assert model.batches == [16, 16, 16, 2]


def test_nothing_is_drafted_at_the_end_of_the_context() -> None:
    drafts, model = make(n_max=3, context_size=8)
    for length, size in ((5, 3), (6, 0), (8, 0), (9, 0), (30, 0)):
        drafts.begin(0, int32([1] * length))
        assert drafts.propose([0], [3])[0].size == size
        drafts.accept(0, int32([2, 3]), 0)
        assert drafts.propose([0], [3])[0].size == 0
        assert in_step(drafts, model, 0)
        drafts.end(0)


def test_a_text_that_did_not_fit_is_left_to_others_after_a_shift_too() -> None:
    """What came after the full context is missing in the middle then."""
    drafts, model = make(n_max=3, context_size=64)
    drafts.begin(0, int32(list(range(1, 11))))
    for token in range(11, 97):
        drafts.accept(0, int32([token]), 0)
    drafts.shift(0, 0, 63)
    drafts.accept(0, int32([5]), 0)
    assert drafts.propose([0], [3])[0].size == 0
    drafts.begin(0, int32([1, 2, 3]))
    assert drafts.propose([0], [3])[0].tolist() == model.expected([1, 2, 3], 3)


def test_slots_at_different_places_share_decodes() -> None:
    drafts, model = make(sequences=3)
    prompts = {0: [1], 1: [5] * 20, 2: [7, 8, 9]}
    for slot, prompt in prompts.items():
        drafts.begin(slot, int32(prompt))
    proposals = drafts.propose([0, 1, 2], [1, 3, 2])
    assert [d.tolist() for d in proposals] == [
        model.expected(prompts[slot], most) for slot, most in ((0, 1), (1, 3), (2, 2))
    ]
    assert model.batches == [19, 5, 2, 1]


def test_a_next_turn_reads_only_what_is_new() -> None:
    drafts, model = make()
    drafts.begin(0, int32([1, 2, 3, 4]))
    drafts.propose([0], [3])
    drafts.accept(0, int32([*model.expected([1, 2, 3, 4], 3), 50]), 3)
    drafts.end(0)
    text = [1, 2, 3, 4, *model.expected([1, 2, 3, 4], 3), 50, 60, 61]
    model.batches.clear()
    drafts.begin(0, int32(text))
    drafts.propose([0], [1])
    assert (model.batches, model.held[0]) == (
        [4],
        text,
    )  # 50, 60, 61; the last draft was not read


def test_tokens_of_a_draft_that_was_not_verified_are_no_text() -> None:
    drafts, model = make()
    drafts.begin(0, int32([1, 2, 3, 4, 5, 6, 7]))
    drafts.propose([0], [3])
    drafts.end(0)
    drafts.begin(0, int32([1, 2, 3]))
    drafts.propose([0], [3])
    drafts.end(0)  # the request failed between propose and accept
    drafts.begin(0, int32([1, 2, 3, 4, 5, 6, 7]))
    drafts.propose([0], [1])
    assert model.held[0] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("error", [BackendError, CapacityError])
@pytest.mark.parametrize("decode", [0, 1, 2, 3])
def test_a_failed_decode_leaves_text_and_cache_in_step(decode: int, error: Any) -> None:
    drafts, model = make(max_batch=4)
    drafts.begin(0, int32([1, 2, 3]))
    drafts.begin(1, int32([4, 5]))
    original, left = model.decode, [decode]

    def failing(batch: Any, rows: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise error("on purpose")
        original(batch, rows)

    model.decode = failing
    with pytest.raises(error):
        drafts.propose([0, 1], [3, 3])
    model.decode = original
    for slot, text in ((0, [1, 2, 3]), (1, [4, 5])):
        assert drafts._sequences[slot].num_past == len(model.held[slot])
        if decode < 3:
            assert drafts.propose([slot], [3])[0].tolist() == model.expected(text, 3)
        drafts.begin(slot, int32(text))
        assert drafts.propose([slot], [3])[0].tolist() == model.expected(text, 3)


def test_more_slots_than_a_decode_holds_are_drafted_for_one_by_one() -> None:
    target, model = FakeTarget(), FakeTarget(max_batch=2)
    engine = Engine(
        target, None, slots=4, draft_model=DraftModel(model), policy=AutoPolicy(fixed=3)
    )
    answers = engine.generate([Request(prompt_ids=int32([i + 1]), max_tokens=20) for i in range(4)])
    assert [one.token_ids for one in answers] == [target.expected([i + 1], 20) for i in range(4)]
    assert engine.stats().num_draft_tokens == engine.stats().num_accepted_tokens > 40


@pytest.mark.parametrize("memory", ["cache", "snapshots", "saved"])
@given(data=st.data())
@settings(SETTINGS)
def test_the_cache_follows_the_text_whatever_is_accepted(memory: str, data: st.DataObject) -> None:
    kinds = {"snapshots": {"max_rollback": 3}, "saved": {"max_rollback": 0, "can_save": True}}
    refusal = data.draw(st.sampled_from([0.0, 0.3])) if memory == "saved" else 0.0
    drafts, model = make(
        period=data.draw(st.sampled_from([0, 3])), refusal=refusal, **kinds.get(memory, {})
    )
    texts = {slot: data.draw(st.lists(st.integers(1, 9), min_size=1)) for slot in (0, 1)}
    for slot, text in texts.items():
        drafts.begin(slot, int32(text))
    others = st.lists(st.integers(1, 9), max_size=4)
    for _ in range(data.draw(st.integers(1, 6))):
        slots = data.draw(st.sampled_from([[0], [1], [0, 1]]))
        before = [data.draw(others) for _ in slots]
        if data.draw(st.booleans()):
            lengths = zip(slots, map(len, before), strict=True)
            before = [model.expected(texts[slot], length) for slot, length in lengths]
        proposals = drafts.extend(slots, [int32(tokens) for tokens in before], [3] * len(slots))
        for slot, first, draft in zip(slots, before, proposals, strict=True):
            assert draft.tolist() == model.expected(texts[slot] + first, 3)
            guessed = first + draft.tolist()
            right = data.draw(st.integers(0, len(guessed)))
            tail = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=2))
            drafts.accept(slot, int32(guessed[:right] + tail), max(right - len(first), 0))
            texts[slot] += guessed[:right] + tail
        for slot in (0, 1):
            assert drafts._sequences[slot].tokens[: len(texts[slot])].tolist() == texts[slot]
            assert in_step(drafts, model, slot)


def test_a_model_that_saves_its_state_reads_no_text_twice() -> None:
    drafts, model = make(max_rollback=0, can_save=True, n_max=3)
    text = list(range(1, 60))
    drafts.begin(0, int32(text))
    for right in (0, 3, 1, 2, 0):
        (draft,) = drafts.propose([0], [3])
        assert draft.tolist() == model.expected(text, 3)
        model.batches.clear()
        emitted = [*draft[:right].tolist(), 40]
        drafts.accept(0, int32(emitted), right)
        text += emitted
        drafts.propose([0], [1])
        assert sum(model.batches) <= 1 + 3 + 1 + 1, "the draft again, and what was said after it"
        drafts.accept(0, int32([]), 0)
    drafts.begin(0, int32(text[:30]))
    (draft,) = drafts.propose([0], [3])
    assert draft.tolist() == model.expected(text[:30], 3)


def test_it_drafts_after_tokens_of_another_source() -> None:
    drafts, model = make()
    drafts.begin(0, int32([5, 6]))
    (draft,) = drafts.extend([0], [int32([8, 9])], [3])
    assert draft.tolist() == model.expected([5, 6, 8, 9], 3)
    assert model.batches == [4, 1, 1]
    drafts.accept(0, int32([8, 9, *draft[:2].tolist(), 40]), 2)
    assert drafts.stats()["draft-simple"].accepted_per_position == (1, 1)
    assert in_step(drafts, model, 0)
    model.batches.clear()
    assert drafts.propose([0], [1])[0].size == 1
    assert model.batches == [1], "what was right is not read again"
    assert drafts.extend([0], [int32([97])], [3])[0].size == 0, "a token that it does not have"
    assert drafts.extend([0], [int32([8])], [3])[0].size == 3, "which is forgotten with its draft"


def test_only_what_is_sent_counts() -> None:
    drafts, model = make()
    drafts.begin(0, int32([5, 6]))
    for length, text in ((2, 4), (0, 5)):
        drafts.propose([0], [3])
        drafts.shorten(0, length)
        drafts.accept(0, int32([text]), 0)
        stats = drafts.stats()["draft-simple"]
        assert (stats.num_drafts, stats.num_draft_tokens, stats.accept_calls) == (1, 2, 1)
    assert in_step(drafts, model, 0)


def test_its_price_is_what_drafting_took(monkeypatch: pytest.MonkeyPatch) -> None:
    drafts, model = make()
    now = [0]
    monkeypatch.setattr("ngramspec.engine.sources.draft_model.perf_counter_ns", lambda: now[0])
    original = model.decode

    def decode(batch: Any, rows: Any) -> None:
        now[0] += 2_000_000 + 1_000_000 * len(batch)
        original(batch, rows)

    model.decode = decode
    assert drafts.price() == (0.0, 0.0)
    drafts.begin(0, int32([5, 6]))
    drafts.propose([0], [3])
    start, each = drafts.price()
    assert each == pytest.approx(0.003)
    assert start == pytest.approx(0.001)  # the first token comes with the rest of the text
    drafts.begin(0, int32([7] * 40))
    drafts.propose([0], [3])
    assert drafts.price()[1] == each, "reading a prompt says nothing"
    assert drafts.price()[0] == 0.0, "the shortest of the first few calls counts"
    assert drafts.backlog(0) == 0.0
    drafts.begin(0, int32([8] * 40))
    assert drafts.backlog(0) == pytest.approx(0.041 / 39 * 40)  # 2 ms and one for each of 39


def test_a_prompt_is_read_in_pieces_that_slots_share() -> None:
    drafts, model = make(sequences=3, context_size=2048)
    prompts = {0: [3] * 300, 1: [5] * 400, 2: [7, 8]}
    for slot, prompt in prompts.items():
        drafts.begin(slot, int32(prompt))
    calls = []
    while not calls or not all(draft.size for draft in calls[-1]):
        model.batches.clear()
        calls.append(drafts.propose([0, 1, 2], [3, 3, 3]))
        assert sum(model.batches) <= 256 + 3 * 9 + 3 * 2
    assert calls[0][2].tolist() == model.expected([7, 8], 3), "short texts need not wait"
    assert len(calls) == 3
    assert calls[-1][1].tolist() == model.expected(prompts[1], 3)


def test_last_tokens_of_drafts_are_read_together() -> None:
    drafts, model = make(sequences=8, n_max=6, context_size=2048)
    slots, texts = list(range(8)), [[3 + slot, 5, 7] for slot in range(8)]
    for slot in slots:
        drafts.begin(slot, int32(texts[slot]))
    for _ in range(3):
        model.batches.clear()
        proposals = drafts.propose(slots, [6] * 8)
        assert len(model.batches) == 6, "a decode for each token, whatever the number of slots"
        for slot in slots:
            assert proposals[slot].tolist() == model.expected(texts[slot], 6)
            emitted = model.expected(texts[slot], 7)
            drafts.accept(slot, int32(emitted), 6)
            texts[slot] += emitted


def test_a_stall_moves_a_price_little_and_a_slow_start_not_at_all() -> None:
    time = Duration()
    for seconds in (5.0, 0.01, 0.012):
        time.note(seconds)
    assert time.seconds == 0.01
    for _ in range(20):
        time.note(0.01)
    time.note(5.0)
    assert time.seconds == pytest.approx(0.013)


def test_an_equal_model_is_always_right() -> None:
    target = FakeTarget(period=0)
    drafts = DraftModel(FakeTarget(period=0), n_max=4)
    engine = Engine(target, None, slots=3, draft_model=drafts, policy=AutoPolicy(fixed=64))
    answers = engine.generate([Request(prompt_ids=int32([i + 1]), max_tokens=41) for i in range(3)])
    assert [one.token_ids for one in answers] == [target.expected([i + 1], 41) for i in range(3)]
    stats = engine.source_stats()["draft-simple"]
    assert stats.acceptance == 1.0
    assert (stats.num_draft_tokens, stats.accepted_per_position) == (3 * 32, (24, 24, 24, 24))
    assert (stats.begin_calls, stats.accept_calls, stats.num_accepted_drafts) == (3, 24, 24)
    assert engine.stats().num_steps == 9  # the prompts, then five tokens in each


def test_it_drafts_only_where_no_other_source_does() -> None:
    target = FakeTarget(period=2)
    drafts = DraftModel(FakeTarget(period=2))
    params = {"ngram-simple": {"size_n": 3, "size_m": 8}}
    engine = Engine(target, "ngram-simple", params=params, draft_model=drafts)
    answer = engine.generate([Request(prompt_ids=int32([3]), max_tokens=60)])[0]
    assert answer.token_ids == target.expected([3], 60)
    sources = engine.source_stats()
    assert sources["ngram-simple"].num_accepted_tokens > 30
    assert sources["draft-simple"].num_accepted_tokens > 0
    assert engine.stats().num_accepted_tokens == sum(
        s.num_accepted_tokens for s in sources.values()
    )


@pytest.mark.parametrize(("least", "asked"), [(3, True), (4, False)])
def test_it_is_not_asked_for_drafts_that_are_too_short_to_be_sent(least: int, asked: bool) -> None:
    drafts, _ = make(n_max=3)
    policy = AutoPolicy(fixed=8)
    engine = Engine(FakeTarget(), None, draft_model=drafts, policy=policy, min_draft=least)
    engine.generate([Request(prompt_ids=int32([3]), max_tokens=40)])
    assert (engine.source_stats()["draft-simple"].propose_calls > 0) == asked


@pytest.mark.parametrize(
    ("n_max", "n_min", "p_min"),
    [(0, 0, 0.0), (1025, 0, 0.0), (3, 4, 0.0), (3, -1, 0.0), (3, 0, -0.1), (3, 0, 1.1)],
)
def test_values_out_of_bounds_are_refused(n_max: int, n_min: int, p_min: float) -> None:
    with pytest.raises(InputError, match="a draft model needs") as raised:
        make(n_max, n_min, p_min)
    assert str(n_max) in str(raised.value)


def test_a_model_that_cannot_take_drafts_back_is_refused() -> None:
    with pytest.raises(InputError, match="recurrent"):
        make(n_max=3, max_rollback=2)
    assert make(n_max=3, max_rollback=0, can_save=True)[0].max_draft == 3
    assert make(n_max=3, max_rollback=3)[0].name == "draft-simple"


def test_models_of_different_tokens_are_told_apart() -> None:
    assert vocabulary_difference(FakeTarget(), FakeTarget(context_size=9)) == ""
    for size in (97 - 90, 97 + 128):  # Qwen2 7B has 128 tokens more than Qwen2 0.5B
        assert vocabulary_difference(FakeTarget(), FakeTarget(vocab_size=size)) == ""
        assert vocabulary_difference(FakeTarget(vocab_size=size), FakeTarget()) == ""
    large = FakeTarget(vocab_size=97 + 129)
    assert vocabulary_difference(FakeTarget(), large) == (
        "the draft model has 226 tokens, the target 97"
    )
    difference = vocabulary_difference(FakeTarget(), FakeTarget(split=True))
    assert difference.startswith("the draft model's token 5 is b'")


def test_the_names_of_the_first_special_tokens_may_differ() -> None:
    target, draft = FakeTarget(), FakeTarget()
    for differs in range(7):
        draft.piece = lambda token, special, n=differs: (  # type: ignore[method-assign]
            b"other" if token == n else target.piece(token, special)
        )
        difference = vocabulary_difference(target, draft)
        assert difference == "" if differs < 5 else f"token {differs} is b'other'" in difference


def test_a_text_with_tokens_that_it_does_not_have_is_left_to_others() -> None:
    drafts, model = make(n_max=2, vocab_size=50)
    drafts.begin(0, int32([5, 50, 7]))  # a token of the target only
    drafts.begin(1, int32([5, 6]))
    first, second = drafts.propose([0, 1], [4, 4])
    assert (first.size, second.size) == (0, 2)
    drafts.accept(1, int32([51]), 0)
    assert [draft.size for draft in drafts.propose([0, 1], [4, 4])] == [0, 0]
    drafts.begin(0, int32([5, 6, 7]))
    assert drafts.propose([0], [4])[0].tolist() == model.expected([5, 6, 7], 2)


def test_a_smaller_vocabulary_changes_no_text() -> None:
    """The draft model misses tokens of the target, and has others that the target misses."""
    prompts = [int32([5, 6, 7]), int32([96, 95, 3])]
    for own, other in ((97, 90), (97, 120)):
        texts = []
        for small in (None, DraftModel(FakeTarget(vocab_size=other), 4, 0, 0.0)):
            target = FakeTarget(vocab_size=own)
            engine = Engine(target, None, slots=2, draft_model=small, policy=AutoPolicy(fixed=4))
            asked = [Request(prompt_ids=prompt, max_tokens=60) for prompt in prompts]
            texts.append([answer.token_ids for answer in engine.generate(asked)])
        assert texts[0] == texts[1]
