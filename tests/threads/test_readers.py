"""What one thread reads while another writes, in processes that a fault may end."""

from __future__ import annotations

import threading

import numpy as np

from helpers.files import finished
from ngramspec import create_drafter
from ngramspec.engine import AutoPolicy


def test_a_transcript_is_read_while_it_grows() -> None:
    """Its memory moves as it grows; numpy makes large copies without the GIL."""
    printed = finished("""
        import threading
        import numpy as np
        from ngramspec._native.engine.transcript import Pieces, Transcript

        LENGTH, MORE = 600_000, 300
        pieces = Pieces([b"ab", b"\\xe2\\x82", b"\\xac"])
        ids = np.resize(np.array([0, 1, 2], np.int32), LENGTH)
        text, failures = b"ab\\xe2\\x82\\xac".decode() * (LENGTH // 3), []

        def reading(made, read, reads):
            try:
                while len(made) < LENGTH:
                    read(made)
                    reads.append(1)
            except BaseException as error:
                failures.append(error)

        def read_ids(made):
            read = made.token_ids()
            assert (read[::3].max(), read[1::3].min(), read[2::3].min()) == (0, 1, 2)

        def read_flags(made):
            assert made.accepted().all()

        def read_text(made):
            made.take()
            assert len(made.text) >= 3 * (LENGTH - MORE) // 3 - 3

        for number in range(40):
            made, reads = Transcript(pieces), []
            made.feed(ids[MORE:], LENGTH)  # fills its memory: the next token moves it
            calls = [read_ids, (read_ids, read_flags, read_text)[number % 3]]
            threads = [threading.Thread(target=reading, args=(made, call, reads)) for call in calls]
            for thread in threads:
                thread.start()
            while len(reads) < 2 and not failures:
                pass
            made.feed(ids[:MORE], MORE)
            for thread in threads:
                thread.join()
            made.take(True)
            assert made.text == text
        print(failures)
    """)
    assert printed.strip() == "[]"


def test_a_shared_cache_is_drafted_from_while_it_grows() -> None:
    """A draft goes from token to token by what was learnt, wherever the tables lie by then."""
    printed = finished("""
        import threading
        import numpy as np
        from ngramspec import NgramCache, create_drafter

        TOKENS, STEP = 60_000, 2000
        order = np.random.default_rng(0).permutation(TOKENS).astype(np.int32)
        after = np.empty(TOKENS, np.int32)
        after[order] = np.roll(order, -1)
        caches = [NgramCache(1, 2) for _ in range(4)]
        current, drafts, failures = [caches[0]], [0], []
        done = threading.Event()

        def learn():
            try:
                for cache in caches:
                    current[0] = cache
                    for start in range(0, TOKENS, STEP):
                        for _ in range(4):
                            cache.update(order[max(start - 2, 0) : start + STEP])
            except BaseException as error:
                failures.append(error)
            done.set()

        learner = threading.Thread(target=learn)
        learner.start()
        drafters = {id(cache): create_drafter("ngram-cache", dynamic=cache) for cache in caches}
        chance = np.random.default_rng(1)
        while not done.is_set():
            drafter = drafters[id(current[0])]
            at = int(chance.integers(TOKENS - 20))
            drafter.begin(0, order[at : at + 2])
            draft = drafter.propose(0, 12).tolist()
            text = [int(order[at + 1]), *draft]
            assert [int(after[token]) for token in text[:-1]] == draft
            drafts[0] += len(draft)
        learner.join()
        assert not failures, failures
        assert all(cache.check() == "" for cache in caches)
        print(drafts[0] > 0)
    """)
    assert printed.split() == ["True"]


def test_a_shared_cache_is_drafted_from_while_it_counts() -> None:
    """No token was seen more often after an n-gram than the n-gram itself, at any moment."""
    printed = finished("""
        import threading, time
        import numpy as np
        from ngramspec import NgramCache, create_drafter

        PAIRS = 10
        cache = NgramCache(1, 1, max_ngrams=16)  # pairs are forgotten in turn, so counts stay small
        pairs = np.arange(2 * PAIRS, dtype=np.int32).reshape(PAIRS, 2)
        text = np.concatenate([np.tile(pair, 300) for pair in pairs])
        done, failures = threading.Event(), []

        def learn():
            try:
                while not done.is_set():
                    cache.update(text)
            except BaseException as error:
                failures.append(error)

        learner = threading.Thread(target=learn)
        learner.start()
        drafter = create_drafter("ngram-cache", slots=PAIRS, dynamic=cache, n_draft=64)
        for slot, pair in enumerate(pairs):
            drafter.begin(slot, pair)
        drafts, lens = np.zeros((PAIRS, 64), np.int32), np.zeros(PAIRS, np.int32)
        drafted, odd, end = 0, 0, time.monotonic() + 1
        while time.monotonic() < end or not drafted:
            drafter.propose_batch(list(range(PAIRS)), 64, drafts, lens)
            for slot in range(PAIRS):
                claims = drafter.confidence(slot)
                odd += int((claims >= 1).sum())
                drafted += claims.size
        done.set()
        learner.join()
        print(odd, failures, cache.check() == "")
    """)
    assert printed.split() == ["0", "[]", "True"]


def test_a_signal_handler_may_ask_for_statistics_at_any_moment() -> None:
    printed = finished("""
        import signal
        from ngramspec import create_drafter

        drafter = create_drafter("ngram-simple,ngram-mod", size_n=2)
        handled = []

        def handle(*_):
            handled.append(len(drafter.stats()))

        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
        while len(handled) < 300:
            drafter.stats()
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(set(handled) == {2})
    """)
    assert printed.split() == ["True"]


def test_a_batch_row_holds_no_longer_draft_of_another_call() -> None:
    """One thread drafts for narrow rows, another long drafts for the same slots."""
    width, rounds = 2, 3000
    drafter = create_drafter("ngram-simple", slots=4, size_n=2, policy=AutoPolicy(fixed=64))
    for slot in range(4):
        drafter.begin(slot, np.resize(np.arange(7, dtype=np.int32), 300))
    done = threading.Event()

    def propose() -> None:
        while not done.is_set():
            for slot in range(4):
                assert len(drafter.propose(slot, 64)) == 48

    other = threading.Thread(target=propose)
    other.start()
    memory = np.full((400, width), -7, np.int32)  # rows after the first four are nobody's
    lens = np.zeros(4, np.int32)
    longest = 0
    for _ in range(rounds):
        drafter.propose_batch([0, 1, 2, 3], width, memory[:4], lens)
        longest = max(longest, int(lens.max()))
    done.set()
    other.join()
    assert longest == width
    assert (memory[4:] == -7).all()
