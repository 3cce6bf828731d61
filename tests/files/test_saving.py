"""Dynamic caches in files: saved in time, by one process only, merged with what others saved."""

from __future__ import annotations

import gc
import itertools
import random
import shutil
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference.statistics as slow
from helpers.backends import int32
from helpers.files import OTHERS, OURS, finished, leftovers, posix, start, wait_for
from helpers.statistics_files import counts_of, counts_of_records, entries_of
from ngramspec import DynamicFile, HashPool, NgramCache, create_drafter, open_cache
from ngramspec.drafting.statistics import Saves
from ngramspec.errors import FormatError, InputError
from ngramspec.files.cache_file import Origin, about_of, write_cache
from ngramspec.files.container import open_container
from ngramspec.files.dynamic_file import Autosave
from ngramspec.files.entries import ArraySource
from ngramspec.files.pool_file import PoolShape

SHAPE = PoolShape(2, 1024, 8, 0.5)
TEXT = [5, 6, 7, 5, 6, 8]


FORK = """
import os, sys
from pathlib import Path
from ngramspec import create_drafter
drafter = create_drafter("ngram-cache", dynamic=sys.argv[1], save_interval=float(sys.argv[2]))
drafter.begin(0, [5, 6, 7])
drafter.accept(0, [5, 6, 8], 0)
if sys.argv[3] == "fork":
    child = os.fork()
    if child == 0:
        drafter.accept(0, [1, 2, 3], 0)
        sys.exit(0)  # ends as a process of its own does
    assert os.waitpid(child, 0)[1] == 0
else:
    import multiprocessing
    child = multiprocessing.get_context("fork").Process(target=drafter.accept, args=(0, [1, 2], 0))
    child.start()
    child.join()
    assert child.exitcode == 0
print(Path(sys.argv[1]).exists())
"""


@posix
@pytest.mark.parametrize("interval", [0, 300])
@pytest.mark.parametrize("how", ["fork", "multiprocessing"])
def test_a_fork_does_not_save_what_its_parent_will(
    tmp_path: Path, how: str, interval: float
) -> None:
    path = tmp_path / "learned.ngc"
    assert finished(FORK, path, interval, how).split() == ["False"]
    assert open_cache(path).followers([7]) == {5: 1}
    assert open_cache(path).followers([2]) == {}


def learned(path: Path, **options: Any) -> Any:
    drafter = create_drafter("ngram-cache", dynamic=path, **options)
    drafter.begin(0, int32(TEXT[:2]))
    drafter.accept(0, int32(TEXT[2:]), 0)
    return drafter


def test_what_was_learned_is_saved_at_intervals(tmp_path: Path) -> None:
    path = tmp_path / "learned.ngc"
    drafter = learned(path, save_interval=0.05)
    wait_for(path.exists)
    assert open_cache(path).followers([5, 6]) == {7: 1, 8: 1}
    drafter.accept(0, int32([5, 6, 8]), 0)
    wait_for(lambda: open_cache(path).followers([5, 6]) == {8: 2, 7: 1})


@pytest.mark.parametrize("interval", [0, 0.01, 300])
def test_what_was_learned_is_saved_when_the_drafter_goes(tmp_path: Path, interval: float) -> None:
    path = tmp_path / "learned.bin"
    drafter = learned(path, save_interval=interval)
    other = DynamicFile(path)
    del drafter
    gc.collect()
    assert path.exists()
    assert path.read_bytes()[:4] == int32([5]).tobytes()
    other.cache.update(int32(TEXT))
    other.save()
    assert DynamicFile(path).cache.followers([5, 6]) == {7: 2, 8: 2}


@pytest.mark.parametrize("interval", [0, 0.01, 300])
def test_what_was_learned_is_saved_when_the_process_ends(tmp_path: Path, interval: float) -> None:
    program = """
        import sys
        from ngramspec import create_drafter
        path, interval = sys.argv[1], float(sys.argv[2])
        drafter = create_drafter("ngram-cache", dynamic=path, save_interval=interval)
        drafter.begin(0, [5, 6])
        drafter.accept(0, [7, 5, 6, 8], 0)
        """
    path = tmp_path / "learned.ngc"
    for times in (1, 2):
        finished(program, path, interval)
        assert open_cache(path).followers([5, 6]) == {7: times, 8: times}


def test_saves_that_fail_are_logged_once_and_lose_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    file = DynamicFile(folder / "learned.ngc")
    saving = Autosave(file, 0.01)
    for times in (1, 2):
        shutil.rmtree(folder)
        folder.touch()  # a file where the folder was
        file.cache.update(int32(TEXT))
        failures = file.num_save_failures
        wait_for(lambda: file.num_save_failures > failures + 2)  # noqa: B023
        assert caplog.text.count(f"cannot save {file.path}: ") == times
        folder.unlink()
        wait_for(lambda: file.num_saves == times)  # noqa: B023
        assert open_cache(file.path).followers([5, 6]) == {7: 1, 8: 1}
    saving.stop()
    saving.stop()


@pytest.mark.parametrize("name", ["learned.ngc", "learned.bin"])
def test_a_file_damaged_meanwhile_stays_as_it_is(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    file = DynamicFile(path)
    file.cache.update(int32(TEXT))
    file.save()
    damaged = path.read_bytes()[:-1]
    path.write_bytes(damaged)
    file.cache.update(int32(TEXT))
    for _ in range(2):
        with pytest.raises(FormatError, match=name):
            file.save()
        assert path.read_bytes() == damaged
    path.unlink()
    assert file.save()
    assert DynamicFile(path).cache.followers([5, 6]) == {7: 1, 8: 1}


def test_what_another_saves_while_a_file_is_opened_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "learned.ngc"
    first, read = DynamicFile(path), DynamicFile._read
    first.cache.update(int32(TEXT))

    def read_then_wait(self: DynamicFile) -> Any:
        contents = read(self)
        monkeypatch.undo()
        first.save()
        return contents

    monkeypatch.setattr(DynamicFile, "_read", read_then_wait)
    second = DynamicFile(path)
    second.cache.update(int32(TEXT))
    second.save()
    assert DynamicFile(path).cache.followers([5, 6]) == {7: 2, 8: 2}
    assert second.cache.followers([5, 6]) == {7: 2, 8: 2}


def test_a_dynamic_file_of_ones_own_is_saved_by_hand_only(tmp_path: Path) -> None:
    file = DynamicFile(tmp_path / "learned.ngc")
    drafter = create_drafter("ngram-cache", dynamic=file)
    drafter.begin(0, int32(TEXT[:2]))
    drafter.accept(0, int32(TEXT[2:]), 0)
    del drafter
    gc.collect()
    assert not file.path.exists()
    assert file.save()
    assert not file.save()


def test_two_processes_learn_into_one_file(tmp_path: Path) -> None:
    """Each saves often; nothing that either has learned is lost or counted twice."""
    program = """
        import sys
        from ngramspec import DynamicFile
        file = DynamicFile(sys.argv[1], 1, 1)
        for _ in range(40):
            file.cache.update([1, int(sys.argv[2])])
            file.save()
        """
    path = tmp_path / "learned.ngc"
    processes = [start(program, path, token) for token in (2, 3, 4)]
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0
    assert open_cache(path).followers([1]) == {2: 40, 3: 40, 4: 40}
    assert leftovers(tmp_path, path.name, f"{path.name}.lock") == []


def test_a_drafter_keeps_its_statistics_alive(tmp_path: Path) -> None:
    """The mapping outlives the cache object, the file its name."""
    path = tmp_path / "corpus.ngc"
    pairs = Counter({(1, 2): 3, (2, 3): 3})
    write_cache(path, {1: ArraySource(entries_of(pairs, 1))}, Origin())
    cache = open_cache(path)
    drafter = create_drafter("ngram-cache", static=cache)
    del cache
    path.unlink()
    gc.collect()
    drafter.begin(0, int32([1, 1]))
    assert drafter.propose(0, 4).tolist() == [2, 3]
    pool = HashPool(1024)
    pool_drafter = create_drafter("ngram-mod", pool=pool, n_match=1, n_min=0)
    assert not pool.in_file
    del pool
    gc.collect()
    pool_drafter.begin(0, int32([1, 2, 1]))
    assert pool_drafter.propose(0, 1).tolist() == [2]


def test_a_file_goes_on_stating_tokenizer_and_provenance(tmp_path: Path) -> None:
    path, origin = tmp_path / "learned.ngc", Origin(b"sixteen bytes...", 99, {"from": "a corpus"})
    write_cache(path, {1: ArraySource(entries_of({(1, 2): 3}, 1))}, origin)
    file = DynamicFile(path)  # whose maker knows nothing of the tokenizer
    file.cache.update(int32([5, 6, 7]))
    file.save()
    container = open_container(path)
    assert container.header.fingerprint == origin.fingerprint
    assert container.header.vocab_size == 99
    assert about_of(container) == {"from": "a corpus"}
    assert open_cache(path).followers([1]) == {2: 3}


@pytest.mark.parametrize("stated", [Origin(OTHERS, 99), Origin()])
def test_a_file_of_a_larger_vocabulary_can_be_saved(tmp_path: Path, stated: Origin) -> None:
    path = tmp_path / "learned.ngc"
    write_cache(path, {1: ArraySource(entries_of(Counter({(1, 98): 3}), 1))}, stated)
    file = DynamicFile(path, origin=Origin(OURS, 10), any_tokenizer=True)
    file.cache.update(int32([5, 6, 7]))
    assert file.save()
    header = open_container(path).header
    assert (header.fingerprint, header.vocab_size) == (OURS, 99)
    assert open_cache(path).followers([1]) == {98: 3}
    assert open_cache(path).followers([5]) == {6: 1}


def test_a_token_that_the_tokenizer_does_not_have_cannot_be_saved(tmp_path: Path) -> None:
    file = DynamicFile(tmp_path / "learned.ngc", origin=Origin(OURS, 10))
    file.cache.update(int32([5, 10]))
    with pytest.raises(InputError, match="token id 10 is not below vocab_size, 10"):
        file.save()
    assert file.save_error.startswith("InputError: ")
    assert not file.path.exists()


def test_a_file_at_its_bound_can_be_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "learned.ngc"
    text = [token for i in range(400) for token in (i % 7, i % 50, i % 3)]
    for _ in range(3):
        file = DynamicFile(path, 1, 3, max_ngrams=64)
        file.cache.update(int32(text))
        file.save()
        assert 0 < len(open_cache(path)) <= 64


def test_what_is_learnt_again_after_the_cache_forgot_it_counts(tmp_path: Path) -> None:
    path = tmp_path / "learned.ngc"
    file = DynamicFile(path, 1, 1, max_ngrams=16)
    file.cache.update(int32([5, 6] * 40))
    file.save()
    count = open_cache(path).followers([5])[6]
    other = 100
    while file.cache.followers([5]):
        file.cache.update(int32([other, 1, other, 1]))
        other += 1
    file.save()  # the file still has it
    assert open_cache(path).followers([5]) == {6: count}
    file.cache.update(int32([5, 6] * 10))
    file.save()
    assert open_cache(path).followers([5]) == {6: count + 10}


def test_two_processes_at_the_bound_do_not_count_twice(tmp_path: Path) -> None:
    for trial in range(20):
        chance, true = random.Random(trial), Counter[tuple[int, ...]]()
        path = tmp_path / f"{trial}.ngc"
        files = [DynamicFile(path, 1, 2, max_ngrams=16) for _ in range(2)]
        for _ in range(12):
            file, text = chance.choice(files), [chance.randrange(12) for _ in range(8)]
            file.cache.update(int32(text))
            file.save()
            for size in (1, 2):
                true += slow.count_pairs([text], size)
        for (*ngram, token), count in true.items():
            assert open_cache(path).followers(ngram).get(token, 0) <= count


def test_what_is_learned_during_a_save_is_saved_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "learned.ngc"
    file, write = DynamicFile(path), DynamicFile._write
    file.cache.update(int32(TEXT))

    def learn_then_write(self: DynamicFile, entries: Any) -> None:
        file.cache.update(int32([1, 2, 3]))
        write(self, entries)

    monkeypatch.setattr(DynamicFile, "_write", learn_then_write)
    file.save()
    monkeypatch.undo()
    assert open_cache(path).followers([2]) == {}
    file.close()
    assert open_cache(path).followers([2]) == {3: 1}
    assert open_cache(path).followers([5, 6]) == {7: 1, 8: 1}


@pytest.mark.parametrize("copy", ["records", "entries", "followers"])
def test_a_copy_of_a_cache_is_made_whatever_is_learned_meanwhile(
    monkeypatch: pytest.MonkeyPatch, copy: str
) -> None:
    """Here something new each time that memory for it is taken, as under a steady load."""
    cache, empty, calls = NgramCache(1, 2), np.empty, itertools.count()

    def learn_then_take(*args: Any, **kwargs: Any) -> Any:
        number = next(calls)
        assert number < 40, "it begins again and again"
        cache.update(int32([5, 1000 + number]))
        return empty(*args, **kwargs)

    cache.update(int32([5, 6, 7, 8]))
    monkeypatch.setattr(np, "empty", learn_then_take)
    if copy == "records":
        counts = counts_of_records(cache.records())
    elif copy == "entries":
        counts = counts_of(cache.entries(1), 1)
    else:
        counts = Counter({(5, token): count for token, count in cache.followers([5]).items()})
    assert counts[5, 6] == 1
    if copy != "followers":
        assert counts[6, 7] == counts[7, 8] == 1


def test_a_save_ends_while_others_learn(tmp_path: Path) -> None:
    file, stopped = DynamicFile(tmp_path / "learned.ngc", max_ngrams=1 << 21), threading.Event()
    chance = np.random.default_rng(1)
    file.cache.update(chance.integers(0, 1 << 20, 20_000).astype(np.int32))

    def learn() -> None:
        while not stopped.is_set():
            file.cache.update(chance.integers(0, 1 << 20, 4).astype(np.int32))
            time.sleep(0.0001)

    learners = [threading.Thread(target=learn) for _ in range(2)]
    saver = threading.Thread(target=file.save, daemon=True)
    for thread in (*learners, saver):
        thread.start()
    saver.join(60)
    alive = saver.is_alive()
    stopped.set()
    for thread in learners:
        thread.join()
    assert not alive
    assert len(open_cache(file.path)) > 60_000
    assert file.cache.check() == ""


def test_what_is_copied_while_others_learn_is_what_was_counted() -> None:
    """Each n-gram as it was at one time: no more than in the end, no less than at the beginning."""
    cache, stopped = NgramCache(1, 2, 1 << 20), threading.Event()
    chance = np.random.default_rng(2)
    cache.update(chance.integers(0, 3000, 20_000).astype(np.int32))

    def learn() -> None:
        while not stopped.is_set():
            cache.update(chance.integers(0, 3000, 40).astype(np.int32))
            time.sleep(0.0002)

    before = counts_of_records(cache.records())
    learner = threading.Thread(target=learn)
    learner.start()
    records = [cache.records() for _ in range(10)]
    entries = [(size, cache.entries(size)) for size in (1, 2)]
    stopped.set()
    learner.join()
    after = counts_of_records(cache.records())
    copies = [counts_of_records(records[0]), counts_of_records(records[-1])]
    copies.append(sum((counts_of(some, size) for size, some in entries), Counter()))
    assert after.total() > before.total()
    for copy in copies:
        assert before <= copy <= after


HOLD = """
import sys, time
from ngramspec.files.atomic import locked
with locked(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_lock_that_another_process_holds_ends_a_save_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "learned.ngc"
    file = DynamicFile(path, lock_seconds=0.2)
    file.cache.update(int32(TEXT))
    holder = start(HOLD, path)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(TimeoutError, match=r"has held .*learned.ngc.lock for 0.2 s") as caught:
            file.save()
        assert str(path) in str(caught.value)
        saving = Autosave(file, 0.01)
        wait_for(lambda: file.num_save_failures > 2)
        assert caplog.text.count(f"cannot save {path}: ") == 1
    finally:
        holder.kill()
        holder.communicate()
    wait_for(lambda: file.num_saves > 0)
    saving.stop()
    assert file.save_error == ""
    assert open_cache(path).followers([5, 6]) == {7: 1, 8: 1}


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("odd"), OSError(28, "full")])
def test_autosave_survives_any_error_and_counts_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    file = DynamicFile(tmp_path / "learned.ngc")
    file.cache.update(int32(TEXT))

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(DynamicFile, "_write", fail)
    saving = Autosave(file, 0.01)
    wait_for(lambda: file.num_save_failures >= 3)
    assert len(caplog.records) == 1
    assert file.save_error.startswith(type(error).__name__)
    monkeypatch.undo()
    wait_for(lambda: file.num_saves == 1)
    assert (file.save_error, file.path.exists()) == ("", True)
    saving.stop()


def test_a_save_that_hangs_does_not_keep_a_process_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file, going_on = DynamicFile(tmp_path / "learned.ngc"), threading.Event()
    file.cache.update(int32(TEXT))
    monkeypatch.setattr(DynamicFile, "_write", lambda *_: going_on.wait())
    saving = Autosave(file, 300)
    saving.stop(0.1)
    assert "the last save took more than 0.1 s" in caplog.text
    assert file.num_save_failures == 1
    going_on.set()


@pytest.mark.parametrize("interval", [0, 300])
def test_a_save_can_be_asked_for_between_those_of_the_interval(
    tmp_path: Path, interval: float
) -> None:
    file = DynamicFile(tmp_path / "learned.ngc")
    with Saves() as saves:
        saves.add(file, interval)

        def save(times: int) -> None:
            file.cache.update(int32(TEXT))
            saves.save_soon()
            wait_for(lambda: file.num_saves == times)
            assert open_cache(file.path).followers([5, 6]) == {7: times, 8: times}

        save(1)
        save(2)
        file.cache.update(int32(TEXT))
        assert file.num_saves == 2
    assert open_cache(file.path).followers([5, 6]) == {7: 3, 8: 3}


def test_the_last_save_of_all_says_why_it_failed(tmp_path: Path) -> None:
    file = DynamicFile(tmp_path / "none" / "learned.ngc")
    file.cache.update(int32(TEXT))
    file.path.parent.touch()
    saving = Autosave(file, 300)
    for _ in range(2):
        with pytest.raises(OSError, match="none"):
            saving.stop()


def test_a_save_that_failed_is_not_counted_twice_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even when another process has saved before it, and it fails in the middle."""
    path = tmp_path / "learned.ngc"
    first, second = DynamicFile(path), DynamicFile(path)
    first.cache.update(int32(TEXT))
    second.cache.update(int32(TEXT))
    second.save()
    for name in ("_write", "_absorb", "_most_useful"):
        with monkeypatch.context() as patch:
            patch.setattr(DynamicFile, name, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                first.save()
        assert open_cache(path).followers([5, 6]) == {7: 1, 8: 1}
        second.cache.update(int32([1, 2]))
        second.save()
    first.save()
    assert open_cache(path).followers([5, 6]) == {7: 2, 8: 2}
    assert open_cache(path).followers([1]) == {2: 3}
    second.cache.update(int32([3, 4]))
    second.save()
    assert second.cache.followers([5, 6]) == {7: 2, 8: 2}
