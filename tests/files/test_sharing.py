"""Statistics files on disk: written as a whole or not at all; pools that processes share."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from helpers.backends import int32
from helpers.files import finished, leftovers, posix, section_table, start
from helpers.statistics_files import entries_of
from ngramspec import DynamicFile, NgramCache, create_drafter, open_cache, open_pool
from ngramspec.errors import FormatError
from ngramspec.files.atomic import new_file
from ngramspec.files.cache_file import Origin, write_cache
from ngramspec.files.entries import ArraySource, Entries
from ngramspec.files.llama_lookup import write_lookup_cache
from ngramspec.files.pool_file import PoolShape, create_pool, write_pool

SHAPE = PoolShape(2, 1024, 8, 0.5)
TEXT = [5, 6, 7, 5, 6, 8]


class Failing:
    """Entries that break off."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self._left = 3

    def read(self) -> Entries:
        self._left -= 1
        if self._left:
            return entries_of(Counter({(3 - self._left, 5): 1, (3 - self._left, 6): 2}), 1)[:1]
        raise self._error


@pytest.mark.parametrize("error", [FormatError("damaged"), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("existing", [True, False])
def test_a_write_that_breaks_off_leaves_the_old_file(
    tmp_path: Path, existing: bool, error: BaseException
) -> None:
    path = tmp_path / "corpus.ngc"
    if existing:
        write_cache(path, {1: ArraySource(entries_of(Counter({(1, 2): 3}), 1))}, Origin())
    before = path.read_bytes() if existing else None
    with pytest.raises(type(error)):
        write_cache(path, {1: Failing(error)}, Origin())
    assert (path.read_bytes() if path.exists() else None) == before
    assert leftovers(tmp_path, path.name) == []


@posix
def test_a_new_file_has_the_mode_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with new_file(path) as file:
        file.write(b"old")
    path.chmod(0o640)
    with new_file(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o640)


@posix
def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """As far as a limit on the size of files is like one."""
    path = tmp_path / "learned.ngc"
    output = finished(
        """
        import resource, sys
        from pathlib import Path
        from ngramspec import DynamicFile
        file = DynamicFile(sys.argv[1])
        file.cache.update([1, 2, 3])
        file.save()
        before = Path(sys.argv[1]).read_bytes()
        file.cache.update(list(range(3000)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        try:
            file.save()
        except OSError as error:
            print(type(error).__name__, Path(sys.argv[1]).read_bytes() == before)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        print(file.save(), file.save())
        """,
        path,
    )
    assert output.split() == ["OSError", "True", "True", "False"]
    assert len(DynamicFile(path).cache) > 3000
    assert leftovers(tmp_path, path.name, f"{path.name}.lock") == []


def test_a_process_that_dies_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "corpus.ngc"
    write_cache(path, {1: ArraySource(entries_of(Counter({(1, 2): 3}), 1))}, Origin())
    program = """
        import os, sys
        from ngramspec.files.atomic import new_file
        with new_file(sys.argv[1]) as file:
            file.write(b"half")
            file.flush()
            os._exit(0)
        """
    finished(program, path)
    assert open_cache(path).followers([1]) == {2: 3}


def test_writing_into_a_folder_that_is_not_there_fails(tmp_path: Path) -> None:
    path = tmp_path / "none" / "file.ngc"
    for call in (
        lambda: write_cache(path, {}, Origin()),
        lambda: write_pool(path, np.zeros(1024, np.uint32), SHAPE, Origin()),
        lambda: create_pool(path, SHAPE, Origin()),
        lambda: create_drafter("ngram-mod", pool=path),
        lambda: write_lookup_cache(NgramCache(), path),
    ):
        with pytest.raises(OSError, match="none"):
            call()


@posix
def test_files_that_may_not_be_written(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    cache, pool = tmp_path / "learned.ngc", tmp_path / "shared.ngp"
    file = DynamicFile(cache)
    file.cache.update(int32(TEXT))
    file.save()
    create_pool(pool, SHAPE, Origin())
    pool.chmod(0o400)
    tmp_path.chmod(0o500)
    file.cache.update(int32(TEXT))
    try:
        with pytest.raises(PermissionError):
            file.save()
        with pytest.raises(PermissionError):
            open_pool(pool)
        assert len(open_cache(cache)) == len(file.cache)
    finally:
        tmp_path.chmod(0o700)


WRITER = """
import sys
from ngramspec import open_pool
number, path = int(sys.argv[1]), sys.argv[2]
pool = open_pool(path)
print("ready", flush=True)
i = 0
while True:
    pool.insert([100 + number, i % 100], number)
    i += 1
    if i == 20_000:
        print("done", flush=True)
"""


def test_a_pool_outlives_processes_that_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "shared.ngp"
    create_pool(path, SHAPE, Origin())
    own = open_pool(path)
    writers = [start(WRITER, number, path) for number in range(3)]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert [writer.stdout.readline() for _ in range(2)] == ["ready\n", "done\n"]
        own.insert(int32([1, 2]), 3)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
    again = open_pool(path)
    assert again.check() == ""
    assert own.check() == ""  # its counters are those of the file
    assert own.num_used == again.num_used > 200
    for pool in (own, again):
        assert pool.lookup(int32([1, 2])) == 3
        for number in range(3):
            tokens = [pool.lookup(int32([100 + number, i])) for i in range(100)]
            assert set(tokens) <= {-1, number}  # -1: another n-gram fell into the same cell
            assert tokens.count(number) > 70


def test_counters_are_repaired_when_a_pool_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "shared.ngp"
    create_pool(path, SHAPE, Origin())
    pool = open_pool(path)
    for i in range(400):
        pool.insert(int32([i, i]), i)
    used = pool.num_used
    del pool
    for start_at, value in enumerate((-1, 0, 10**15, -(2**63), 10**12), start=1):
        data = bytearray(path.read_bytes())
        offset = section_table(bytes(data))["counters"][0]
        data[offset : offset + 16] = np.array([value, value], "<i8").tobytes()  # used, hand
        path.write_bytes(data)
        pool = open_pool(path)
        assert (pool.num_used, pool.check()) == (used, "")
        for i in range(300):  # the hand of the clock moves on from wherever it is
            pool.insert(int32([start_at, i]), i)
        assert pool.check() == ""
        assert pool.num_used <= 512
        used = pool.num_used
        aged = pool.stats()["num_aged"]
        del pool
    assert aged > 100


def test_a_pool_in_a_file_may_be_garbage_in_a_cycle(tmp_path: Path) -> None:
    path = tmp_path / "shared.ngp"
    create_pool(path, SHAPE, Origin())
    output = finished(
        """
        import gc, sys
        from ngramspec import open_pool
        class Owner: pass
        for _ in range(20):
            pool, owner = open_pool(sys.argv[1]), Owner()
            pool.insert([1, 2], 3)
            owner.pool, owner.itself = pool, owner
            del pool, owner
            gc.collect()
        print(open_pool(sys.argv[1]).lookup([1, 2]))
        """,
        path,
    )
    assert output.split() == ["3"]


def test_a_pool_that_several_make_at_once_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "shared.ngp"
    program = """
        import sys
        from ngramspec import create_drafter
        drafter = create_drafter("ngram-mod", pool=sys.argv[1], capacity=1024, n_match=1, n_min=0)
        n = int(sys.argv[2])
        drafter.begin(0, [n, n + 50] * 20)
        """
    processes = [start(program, path, number) for number in range(6)]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert leftovers(tmp_path, path.name) == []
    pool = open_pool(path)
    assert [pool.lookup(int32([n])) for n in range(6)] == [n + 50 for n in range(6)]


@posix
def test_new_files_are_their_owners_alone(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        write_cache(tmp_path / "a.ngc", {}, Origin())
        create_pool(tmp_path / "b.ngp", SHAPE, Origin())
        file = DynamicFile(tmp_path / "c.bin")
        file.cache.update(int32(TEXT))
        file.save()
        for name in ("a.ngc", "b.ngp", "c.bin"):
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(umask)


@posix  # elsewhere only their age tells, after a minute
def test_what_killed_writers_left_is_removed_and_what_living_ones_write_is_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "learned.ngc"
    program = """
        import os, sys, time
        from ngramspec.files.atomic import new_file
        with new_file(sys.argv[1]) as file:
            file.write(b"half")
            file.flush()
            print("begun", flush=True)
            time.sleep(60)
        """
    for is_killed in (True, False):
        writer = start(program, path)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "begun\n"
        if is_killed:
            writer.kill()
            writer.communicate()
    other = tmp_path / ".learned.ngc.notes"
    other.touch()
    try:
        assert len(leftovers(tmp_path, other.name)) == 1  # the killed one's went
        for write in (lambda: DynamicFile(path), lambda: write_cache(path, {}, Origin())):
            write()
            assert len(leftovers(tmp_path, path.name, other.name)) == 1
    finally:
        writer.kill()
        writer.communicate()
    DynamicFile(path)
    assert leftovers(tmp_path, path.name, other.name) == []


def test_a_file_that_is_written_over_or_cut_short_harms_no_process_that_reads_it(
    tmp_path: Path,
) -> None:
    """One of up to 32 MiB, that is."""
    path = tmp_path / "corpus.ngc"
    write_cache(path, {1: ArraySource(entries_of(Counter({(1, 2): 3}), 1))}, Origin())
    output = finished(
        """
        import os, sys
        from ngramspec import open_cache
        cache = open_cache(sys.argv[1])
        os.truncate(sys.argv[1], 0)
        print(cache.followers([1]))
        """,
        path,
    )
    assert output == "{2: 3}\n"


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_pool_is_made_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = tmp_path / "shared.ngp"

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    create_pool(path, SHAPE, Origin())
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        create_pool(path, PoolShape(3, 2048, 8, 0.5), Origin())
    assert path.read_bytes() == before
    assert leftovers(tmp_path, path.name, f"{path.name}.lock") == []


def counters_of(path: Path, *values: int) -> np.ndarray:
    """The counters of a pool file, mapped; the first ones get the values."""
    offset, size = section_table(path.read_bytes())["counters"]
    mapped = np.memmap(path, "<i8", "r+", offset, (size // 8,))
    mapped[: len(values)] = values
    return mapped


@pytest.mark.parametrize("used", [1 << 62, -(1 << 62), 1 << 20, 2**63 - 1, -(2**63)])
def test_counters_that_a_peer_writes_cost_little(tmp_path: Path, used: int) -> None:
    """A new entry moves the hand by 1024 cells at most, and a pool in use is not emptied."""
    path, capacity = tmp_path / "shared.ngp", 1 << 20
    create_pool(path, PoolShape(2, capacity, 8, 0.5), Origin())
    pool = open_pool(path)
    for i in range(2000):
        pool.insert(int32([i, i]), i)
    counters = counters_of(path, used, -5)
    before = int(np.count_nonzero(pool.entries() >= 0))
    pool.insert(int32([7, 7777]), 5)
    assert 0 <= (int(counters[1]) + 5) % capacity <= 1024
    for i in range(1000):
        pool.insert(int32([i, 5000 + i]), i)
    assert pool.lookup(int32([999, 5999])) == 999
    after = int(np.count_nonzero(pool.entries() >= 0))
    if used != capacity:  # which may be true, and so costs two old entries for each new one
        assert before - 3 <= after <= before + 1001
    assert abs(pool.num_used) <= capacity + 4096


def test_a_process_that_opens_a_pool_does_not_undo_what_others_count(tmp_path: Path) -> None:
    path = tmp_path / "shared.ngp"
    create_pool(path, PoolShape(2, 1 << 20, 8, 0.5), Origin())
    pool, stopped = open_pool(path), threading.Event()

    def learn() -> None:
        for i in itertools.count():
            pool.insert(int32([i, i]), i % 1000)
            if stopped.is_set():
                return

    learner = threading.Thread(target=learn)
    learner.start()
    for _ in range(40):
        open_pool(path)
    stopped.set()
    learner.join()
    # An insert that has its cell and not yet its count may be counted by one of them twice.
    assert 0 <= pool.num_used - int(np.count_nonzero(pool.entries() >= 0)) <= 40


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    """As root a device would be gone."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="Not a regular file"), new_file(path) as file:
        file.write(b"new")
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]
