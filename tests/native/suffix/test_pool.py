"""The pool of suffix drafters: what one request said is drafted for another; its bounds hold."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from helpers.backends import int32
from ngramspec import SuffixPool, create_drafter
from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.files.suffix_image import SuffixImage
from ngramspec._native.suffix.drafter import SuffixSource
from ngramspec._native.suffix.index import SuffixIndex
from ngramspec.errors import InputError
from ngramspec.models import confidence_weights

CAPACITY = 4096  # 19 blocks


def words(seed: int, length: int = 200) -> np.ndarray:
    """Random tokens; hardly any of them comes twice."""
    return np.random.default_rng(seed).integers(0, 1_000_000, length, dtype=np.int32)


def speak(drafter: Drafter, prompt: Any, output: Any, slot: int = 0, piece: int = 7) -> None:
    """Let one request run from its begin to its end."""
    drafter.begin(slot, prompt)
    for start in range(0, len(output), piece):
        drafter.accept(slot, output[start : start + piece], 0)
    drafter.end(slot)


def drafted(drafter: Drafter, prompt: Any, slot: int = 0) -> list[int]:
    """The draft for a prompt; its request goes on, so that it is not pooled yet."""
    drafter.begin(slot, prompt)
    return drafter.propose(slot, 64).tolist()


def knows(drafter: Drafter, text: np.ndarray, at: int) -> bool:
    """Whether what follows text[:at] is drafted for a prompt that quotes its end."""
    return drafted(drafter, text[at - 20 : at])[:16] == text[at : at + 16].tolist()


def pieces(text: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (text[start : start + size] for start in range(0, len(text), size))


def test_a_draft_ends_where_the_rest_of_its_text_was_evicted() -> None:
    """The block that it goes on in belongs to another text by then."""
    pool = SuffixPool(CAPACITY)
    drafter = create_drafter("suffix", pool=pool, min_probability=0.0)
    own = 256 - 32  # tokens of a block that are not repeated from before it
    answer, longer = words(0, own + 60), words(1, 18 * own)
    speak(drafter, [], answer)
    for at in range(0, 160, 20):  # so that the block it begins in is useful
        drafter.begin(0, answer[at : at + 17])
        assert drafter.propose(0, 3).tolist() == answer[at + 17 : at + 20].tolist()
        drafter.accept(0, answer[at + 17 : at + 20], 3)
    drafter.end(0)
    assert drafted(drafter, answer[own - 30 : own - 10]) == answer[own - 10 : own + 54].tolist()
    drafter.end(0)
    speak(drafter, [], longer)
    assert pool.num_evicted > 0
    assert knows(drafter, longer, 17 * own)
    assert drafted(drafter, answer[own - 30 : own - 10]) == answer[own - 10 : own].tolist()


def test_a_request_that_the_collector_ends_closes_its_blocks() -> None:
    """Blocks that a request writes to are never taken: a cycle has to give its own back, too."""
    pool = SuffixPool(CAPACITY)
    image = SuffixImage(int32([1, 2, -1]))
    lines = image.lines(1, 0, 1)
    for seed in range(25):  # more than there are blocks
        around: Any = {}
        index = SuffixIndex(int32([1, 2, -1]), lines, image.position_bits, 10, "", around)
        source = SuffixSource(1, pool, 16, 0.0, True, confidence_weights(), index)
        drafter = Drafter([source])
        drafter.begin(0, [1])
        drafter.accept(0, words(seed, 100), 0)
        del drafter, index
        gc.collect()  # reaches the index from the source, and so will clear the source before it
        around["source"] = source
        del source, around
        gc.collect()
    drafter = create_drafter("suffix", pool=pool)
    answer = words(99)
    speak(drafter, [1], answer)
    assert knows(drafter, answer, 100)


@pytest.mark.parametrize("same_drafter", [True, False])
def test_what_one_request_said_is_drafted_for_another(same_drafter: bool) -> None:
    pool = SuffixPool(CAPACITY)
    drafter = create_drafter("suffix", pool=pool)
    answer = words(0)
    speak(drafter, [1, 2, 3], answer)
    reader = drafter if same_drafter else create_drafter("suffix", pool=pool)
    assert drafted(reader, answer[100:120]) == answer[120:184].tolist()
    assert drafted(reader, answer[100:102])[:1] == answer[102:103].tolist()


def test_it_is_drafted_while_the_other_request_still_runs() -> None:
    drafter = create_drafter("suffix", slots=2, capacity=CAPACITY)
    text = words(1, 700)
    drafter.begin(1, [1, 2, 3])
    for piece in pieces(text, 50):  # pooled 64 and more at a time, as one text over three blocks
        drafter.accept(1, piece, 0)
    assert drafted(drafter, text[40:60]) == text[60:124].tolist()
    for start in (230, 460, 580):
        assert drafted(drafter, text[start : start + 20]) == text[start + 20 : start + 84].tolist()


def test_a_request_does_not_draft_from_what_it_gave_itself() -> None:
    source = SuffixSource(1, SuffixPool(CAPACITY), 8, 0.0, True, confidence_weights())
    drafter = Drafter([source])
    answer = words(2, 100)
    drafter.begin(0, [5])
    drafter.accept(0, answer, 0)
    drafter.accept(0, answer[:20], 0)
    drafter.propose(0, 4)
    features = source.considered(0)[5]
    assert (features[:, 4] > 0.1).all()  # votes from its own text
    assert (features[:, 5] < 0.1).all()  # votes from the pool


def test_without_share_every_request_is_for_itself() -> None:
    drafter = create_drafter("suffix", slots=2, share=False)
    answer = words(3)
    speak(drafter, answer[:100], answer[100:])
    assert drafted(drafter, answer[50:70], slot=1) == []
    assert drafted(drafter, answer[150:170], slot=1) == []


@pytest.mark.parametrize("pool_prompts", [True, False])
def test_prompts_are_pooled_on_demand_only(pool_prompts: bool) -> None:
    drafter = create_drafter("suffix", slots=2, pool_prompts=pool_prompts)
    prompt, answer = words(4), words(5)
    speak(drafter, prompt, answer)
    assert knows(drafter, prompt, 100) == pool_prompts
    assert knows(drafter, answer, 100)


def test_a_known_prompt_is_not_stored_twice() -> None:
    pool = SuffixPool(CAPACITY)
    drafter = create_drafter("suffix", slots=2, pool=pool)
    prompt = words(6, 500)
    speak(drafter, prompt, [])
    assert (pool.num_tokens, pool.num_known) == (500, 0)
    for slot, times in ((1, 1), (0, 2)):
        drafter.begin(slot, [])  # shares nothing with the slot's text
        speak(drafter, prompt, [], slot=slot)
        assert pool.num_known == 468 * times  # a text is recognised by 32 tokens in a row
    recognised, stored = pool.num_known, pool.num_tokens
    changed = prompt.copy()
    changed[250] = 7
    speak(drafter, np.concatenate([words(7, 40), changed]), [])
    assert pool.num_known - recognised == (250 - 32) + (500 - 251 - 32)
    assert pool.num_tokens - stored == 40 + 32 + 1 + 32
    assert knows(drafter, changed, 270)


def test_outputs_are_stored_as_often_as_they_are_said() -> None:
    pool = SuffixPool(CAPACITY)
    drafter = create_drafter("suffix", pool=pool)
    for times in (1, 2, 3):
        speak(drafter, [times], words(8))
        assert pool.num_tokens == 201 * times
    assert pool.num_known == 0


def test_the_counters_tell_what_was_given_and_what_went() -> None:
    pool = SuffixPool(CAPACITY)
    drafter = create_drafter("suffix", pool=pool)
    total = 0
    for seed in range(60):
        speak(drafter, words(2 * seed + 100, 150), words(2 * seed + 101, 290))
        total += 440
        assert pool.num_tokens + pool.num_evicted == total
        assert 0 < pool.num_tokens <= pool.capacity
    assert pool.num_evicted > 20_000
    assert drafter.check() == ""
    assert knows(drafter, words(219, 290), 200)
    assert not knows(drafter, words(101, 290), 200)


@pytest.mark.parametrize("length", [1, 31, 224, 225, 256, 257, 1000])
def test_texts_of_no_length_exceed_the_capacity(length: int) -> None:
    pool = SuffixPool(CAPACITY)
    drafter = create_drafter("suffix", pool=pool)
    for seed in range(9000 // (length + 200)):
        speak(drafter, words(seed, length), [])
        assert pool.num_tokens <= pool.capacity
        assert pool.num_tokens + pool.num_evicted == length * (seed + 1)


def test_what_was_right_lately_stays_longer() -> None:
    drafter = create_drafter("suffix", capacity=CAPACITY, pool_prompts=False)
    useful, useless = words(0), words(1)
    speak(drafter, [1], useful)
    speak(drafter, [2], useless)
    for seed in range(2, 20):  # each takes two of the blocks
        speak(drafter, [seed], words(seed))
        at = 8 * seed
        drafter.begin(0, useful[at - 16 : at])
        assert drafter.propose(0, 2).tolist() == useful[at : at + 2].tolist()
        drafter.accept(0, useful[at : at + 2], 2)
    assert knows(drafter, useful, 180)
    assert not knows(drafter, useless, 180)
    assert not knows(drafter, words(2), 180)


def test_what_is_still_being_written_stays() -> None:
    pool = SuffixPool(CAPACITY)
    drafter = create_drafter("suffix", slots=3, pool=pool)
    answer = words(0, 140)
    drafter.begin(1, [1])
    drafter.accept(1, answer[:70], 0)
    for seed in range(1, 20):
        speak(drafter, [seed], words(seed))
    drafter.accept(1, answer[70:], 0)
    assert drafted(drafter, answer[20:40], slot=2) == answer[40:104].tolist()


def test_when_all_blocks_are_being_written_nothing_more_is_stored() -> None:
    pool = SuffixPool(CAPACITY)
    drafter = create_drafter("suffix", slots=25, pool=pool)
    for slot in range(25):
        drafter.begin(slot, [slot])
        drafter.accept(slot, words(slot, 100), 0)
    assert pool.num_tokens == 19 * 100
    drafter.end(3)
    speak(drafter, [99], words(50), slot=24)
    assert drafted(drafter, words(50)[130:150], slot=3) == words(50)[150:].tolist()


def test_drafters_that_are_gone_leave_their_blocks() -> None:
    pool = SuffixPool(CAPACITY)
    for seed in range(40):
        gone = create_drafter("suffix", pool=pool)
        gone.begin(0, [1])
        gone.accept(0, words(seed, 100), 0)
        del gone
    drafter = create_drafter("suffix", pool=pool)
    assert knows(drafter, words(39, 100), 70)


def test_clear_forgets_what_was_said_and_what_is_said_next_is_kept() -> None:
    pool = SuffixPool(CAPACITY)
    drafter = create_drafter("suffix", slots=2, pool=pool)
    first, running = words(0), words(1, 400)
    speak(drafter, [1], first)
    drafter.begin(1, [2])
    drafter.accept(1, running[:200], 0)
    drafter.begin(0, first[100:120])
    drafter.propose(0, 8)  # follows the pool, which forgets before the answer is known
    pool.clear()
    drafter.accept(0, first[120:128], 8)
    assert pool.num_tokens == 0
    assert drafted(drafter, first[20:40]) == []
    assert not knows(drafter, running, 150)
    stored = pool.num_tokens
    drafter.accept(1, running[200:], 0)
    assert pool.num_tokens - stored == 200
    assert knows(drafter, running, 300)
    assert drafter.check() == ""


def test_a_stored_token_takes_at_most_40_bytes() -> None:
    pool = SuffixPool(1 << 18)
    drafter = create_drafter("suffix", pool=pool)
    for seed in range(100):
        speak(drafter, words(2 * seed, 3000), words(2 * seed + 1, 2000), piece=500)
    assert pool.num_evicted > pool.capacity // 2
    assert pool.nbytes / pool.num_tokens <= 40
    assert pool.nbytes / pool.capacity <= 31.5


@pytest.mark.parametrize(("capacity", "rounded"), [(4096, 4256), (4480, 4480), (4481, 4704)])
def test_capacity_is_rounded_up_to_blocks(capacity: int, rounded: int) -> None:
    assert SuffixPool(capacity).capacity == rounded


@pytest.mark.parametrize("capacity", [4095, 0, -1, 29_000_001])
def test_a_capacity_out_of_bounds_is_refused(capacity: int) -> None:
    with pytest.raises(InputError, match=rf"capacity must be in 4096..29000000, got {capacity}"):
        SuffixPool(capacity)


def test_tokens_of_any_size_are_pooled() -> None:
    drafter = create_drafter("suffix", capacity=CAPACITY)
    top = 2**31 - 1 - np.arange(200, dtype=np.int32)
    speak(drafter, [1], top)
    assert knows(drafter, top, 100)
    assert drafted(drafter, int32([top[7]]))[:1] == [top[8]]
