"""What waits for a lock and what does not: `hold_all` stands for a thread that is inside of one."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from helpers.files import finished
from ngramspec import Drafter, NgramCache, SuffixPool, create_drafter
from ngramspec._native.core.threads import hold_all, release_all

IN_A_FORK = """
import gc, os, sys
held = []
# Registered before those of the locks: runs while these are held.
os.register_at_fork(before=held.clear, after_in_parent=held.clear, after_in_child=held.clear)
from ngramspec import HashPool, NgramCache, SuccessorPool, SuffixPool
def make():
    return [SuffixPool(1 << 14), NgramCache(), SuccessorPool(64)]
kept = make()
held += make()
later = make()
os.register_at_fork(before=lambda: held.extend(make()))  # before they are taken
for _ in range(3):
    child = os.fork()
    if child == 0:
        kept[1].update([1, 2, 3])
        later[1].update([1, 2, 3])
        os._exit(len(make()) - 3)
    assert os.waitpid(child, 0)[1] == 0
    kept[1].update([1, 2, 3])
    held += make()
print(len(kept[1]), len(later[1]))
"""
STUCK = 60.0  # seconds; what does not wait takes none of them


def run(length: int, start: int = 0) -> np.ndarray:
    """Return start, start + 1, ...: what follows a token says which text is known."""
    return np.arange(start, start + length, dtype=np.int32)


@contextmanager
def locks_held() -> Iterator[None]:
    """Hold the lock of every pool and cache of the process."""
    hold_all()
    try:
        yield
    finally:
        release_all()


class Call:
    """A call in a thread of its own."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.result: object = None
        self.cpu = self.wall = 0.0
        self._work = work
        self._thread = threading.Thread(target=self._body, daemon=True)
        self._thread.start()

    def _body(self) -> None:
        cpu, wall = time.thread_time(), time.perf_counter()
        self.result = self._work()
        self.cpu, self.wall = time.thread_time() - cpu, time.perf_counter() - wall

    def wait(self, seconds: float = STUCK) -> bool:
        """Tell whether it ends."""
        self._thread.join(seconds)
        return not self._thread.is_alive()


def step(drafter: Drafter) -> list[int]:
    """Draft, and commit what would follow in a run."""
    draft: list[int] = drafter.propose(0, 8).tolist()
    last = int(drafter.history(0)[-1])
    drafter.accept(0, [*draft, last + len(draft) + 1], len(draft))
    return draft


def test_suffix_drafts_and_accepts_while_another_thread_writes_to_the_pool() -> None:
    pool = SuffixPool(1 << 14)
    writer, reader = (create_drafter("suffix", pool=pool) for _ in range(2))
    writer.begin(0, run(1000))
    writer.end(0)
    reader.begin(0, run(30, 100))
    with locks_held():
        call = Call(lambda: [step(reader) for _ in range(40)])
        assert call.wait(), "a step waits for the pool's lock"
        tree = Call(lambda: reader.propose_tree(0, 8))
        assert tree.wait(), "a tree waits for the pool's lock"
    assert call.result[0] == run(8, 130).tolist()  # type: ignore[index]
    assert reader.history(0).tolist() == run(reader.length(0), 100).tolist()
    before = pool.num_tokens
    reader.end(0)  # what the writer kept out is written now
    assert pool.num_tokens > before
    assert pool.check() == ""


@pytest.mark.parametrize("call", ["end", "clear", "followers", "len", "propose", "accept"])
def test_who_waits_sleeps_and_leaves_the_interpreter_to_others(call: str) -> None:
    pool, dynamic = SuffixPool(1 << 14), NgramCache()
    dynamic.update(run(50))
    suffix = create_drafter("suffix", pool=pool)
    suffix.begin(0, run(1000))
    cache = create_drafter("ngram-cache", dynamic=dynamic)
    cache.begin(0, run(4))
    calls: dict[str, Callable[[], object]] = {
        "end": lambda: suffix.end(0),
        "clear": pool.clear,
        "followers": lambda: dynamic.followers([3]),
        "len": lambda: len(dynamic),
        "propose": lambda: cache.propose(0, 2).tolist(),
        "accept": lambda: cache.accept(0, run(1, 4), 0),
    }
    with locks_held():
        waiting = Call(calls[call])
        ends = waiting.wait(
            0.25
        )  # this thread goes on: the other one has let go of the interpreter
    assert not ends
    assert waiting.wait()
    assert waiting.cpu < waiting.wall / 2
    expected = {"end": None, "clear": None, "followers": {4: 1}, "len": 49 + 48 + 47 + 46}
    if call in expected:
        assert waiting.result == expected[call]


def test_others_write_to_the_pool_while_a_long_prompt_is_pooled() -> None:
    pool = SuffixPool(1 << 22)
    drafter = create_drafter("suffix", pool=pool)
    prompt = np.random.default_rng(0).permutation(2_000_000).astype(np.int32)
    drafter.begin(0, prompt)
    call = Call(lambda: drafter.end(0))
    while pool.num_tokens == 0 and not call.wait(0):
        time.sleep(0)
    pool.clear()
    # Had it waited for the whole prompt, nothing would come after it.
    assert call.wait()
    assert 0 < pool.num_tokens < len(prompt)
    assert pool.check() == ""


@pytest.mark.parametrize("way", ["update", "add_records", "add_entries"])
def test_lookups_get_in_while_much_is_learned(way: str) -> None:
    tokens = np.random.default_rng(0).integers(0, 1 << 20, 200_000, dtype=np.int32)
    whole, cache = NgramCache(3, 3), NgramCache(3, 3)
    whole.update(tokens)
    records, entries = whole.records(), whole.entries(3)
    calls: dict[str, Callable[[], object]] = {
        "update": lambda: cache.update(tokens),
        "add_records": lambda: cache.add_records(records),
        "add_entries": lambda: cache.add_entries(entries, 3),
    }
    call = Call(calls[way])
    seen = set()
    while not call.wait(0):
        seen.add(len(cache))
    # In one hold there would be nothing between none and all of them.
    assert seen - {0, len(whole)}
    assert np.array_equal(cache.records(), records)
    assert cache.check() == ""


@pytest.mark.parametrize("way", ["records", "entries"])
def test_others_learn_while_many_followers_of_a_token_are_copied(way: str) -> None:
    tokens = np.arange(8, 120_008, dtype=np.int32)
    oldest, newest = int(tokens[0]), int(tokens[-1])
    cache, stop = NgramCache(1, 1, max_ngrams=1 << 21), threading.Event()
    pairs = np.stack([tokens, np.ones_like(tokens)], axis=1).ravel()
    cache.add_records(np.concatenate([np.array([7, -1, -1, -1, tokens.size], np.int32), pairs]))
    text = np.tile(np.array([7, newest, 7, oldest], np.int32), 5000)

    def learn() -> None:
        while not stop.is_set():
            cache.update(text)

    def copied() -> list[int]:
        """Return how often the newest follower has come, and the oldest, as a copy says."""
        if way == "records":
            counts = cache.records()[5 : 5 + 2 * tokens.size].reshape(-1, 2)
        else:  # a follower's token lies above 22 bits of its count
            low = cache.entries(1)[:, 1].astype(np.int64)
            counts = np.stack([low >> 22 & 0x1FFFFF, low & 0x3FFFFF], axis=1)
        return [int(counts[counts[:, 0] == token, 1].sum()) for token in (newest, oldest)]

    learning = Call(learn)
    try:
        # Learnt by turns, the newest one first, so at no moment the other one has come more often.
        # A busy machine may run 100 copies, 50 ms, before the thread that learns gets a core.
        end = time.monotonic() + 10
        copies = (copied() for _ in iter(lambda: time.monotonic() < end, False))
        assert any(one < other for one, other in copies)
    finally:
        stop.set()
        assert learning.wait()
    assert cache.check() == ""


def learn_for_ever(pool: SuffixPool, dynamic: NgramCache, stop: threading.Event) -> None:
    """Write to both; most of the time inside of a lock."""
    drafter = create_drafter("suffix", pool=pool)
    rng = np.random.default_rng(threading.get_ident())
    while not stop.is_set():
        tokens = rng.integers(0, 1 << 20, 20_000, dtype=np.int32)
        drafter.begin(0, tokens)
        drafter.end(0)
        dynamic.update(tokens[:5000])


def use_in_child(pool: SuffixPool, dynamic: NgramCache) -> bool:
    """Write to both, read and check them."""
    suffix = create_drafter("suffix", pool=pool)
    suffix.begin(0, run(500, 1 << 20))
    suffix.end(0)
    suffix.begin(0, run(20, (1 << 20) + 100))
    cache = create_drafter("ngram-cache", dynamic=dynamic)
    cache.begin(0, run(20))
    cache.accept(0, run(50), 0)
    cache.propose(0, 8)
    cache.end(0)
    drafted = suffix.propose(0, 8).tolist() == run(8, (1 << 20) + 120).tolist()
    return drafted and pool.check() == "" and dynamic.check() == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_in_the_midst_of_writing_leaves_the_child_whole_pools() -> None:
    pool, dynamic = SuffixPool(1 << 16), NgramCache(max_ngrams=50_000)
    stop = threading.Event()
    threads = [
        threading.Thread(target=learn_for_ever, args=(pool, dynamic, stop), daemon=True)
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            time.sleep(0.01)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads
                child = os.fork()
            if child == 0:
                os._exit(0 if use_in_child(pool, dynamic) else 1)
            assert exit_code(child) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(STUCK)
    assert pool.check() == ""
    assert dynamic.check() == ""


def exit_code(child: int) -> int:
    """Wait for a child; one that is stuck is ended."""
    end = time.monotonic() + STUCK
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child is stuck")


def test_a_destructor_may_call_a_drafter_while_it_makes_its_results() -> None:
    """Before Python 3.12 a collection can begin wherever an object is made, also under a lock."""
    printed = finished("""
        import gc

        from ngramspec import create_drafter

        drafter = create_drafter("suffix", slots=2)
        drafter.begin(0, [*range(50)] * 3)
        drafter.begin(1, [1, 2, 3])

        class Request:
            def __init__(self):
                self.own = self

            def __del__(self):
                drafter.history(1)

        gc.set_threshold(1)
        for _ in range(300):
            Request()
            made = drafter.propose_tree(0, 8), drafter.confidence(0), drafter.propose(0, 8)
            made = drafter.history(0), drafter.offered(0), drafter.offered_parents(0)
            made = drafter.stats()
        print("done")
    """)
    assert printed.strip() == "done"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_pools_may_end_while_a_fork_holds_all_locks() -> None:
    assert finished(IN_A_FORK).split() == ["3", "0"]
