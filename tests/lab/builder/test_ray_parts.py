"""The parts of a build on Ray that can do without Ray, beside obvious references."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.paths import CORPORA
from ngramspec import embedded_model
from ngramspec._native.files.entries import Tally
from ngramspec._version import __version__
from ngramspec.errors import BackendError, FormatError, InputError
from ngramspec.files.entries import ArraySource, Entries, read_all
from ngramspec.lab.builder import BuildOptions, NoProgress, ray_cluster, ray_executor, ray_tasks
from ngramspec.lab.builder.checkpoint import WorkFolder
from ngramspec.lab.builder.feed import Feed, Totals
from ngramspec.lab.builder.local import BuildStopped
from ngramspec.lab.builder.ray_cluster import Cluster
from ngramspec.lab.builder.ray_executor import (
    BucketSource,
    build_on_ray,
    find_duplicates,
    ranges_for,
    shard_bytes_for,
    shards_of,
)
from ngramspec.lab.builder.ray_shards import Report, ShardFile
from ngramspec.lab.builder.ray_tasks import (
    Job,
    check_host,
    count_shard,
    cut_points,
    merge_entries,
    merge_range,
    read_digests,
)
from ngramspec.lab.builder.result import Seconds
from ngramspec.lab.corpus import CorpusPlan, Problems, Unit, find_units
from ngramspec.text.tokenizers import fingerprint_of, load_tokenizer

CORPUS = CORPORA / "text" / "faq"


def job(num_ranges: int = 3, memory: int = 2 << 30, work: str = "/", **options: Any) -> Job:
    """Return a job with the embedded model's tokenizer."""
    path = embedded_model()
    digest = fingerprint_of(path).digest
    build_options = BuildOptions(**options)
    return Job(__version__, build_options, str(path), "key", digest, num_ranges, memory, work)


def counted(units: tuple[Unit, ...], task: Job, skip: list[int]) -> tuple[list[Entries], Report]:
    """Count a shard; return its entries by range, and its report."""
    expected = ray_tasks.summary(read_digests(units, task))
    with TemporaryDirectory() as folder:
        path = Path(folder, "shard")
        report = count_shard(units, np.array(skip, np.int64), expected, task, None, str(path))
        file = ShardFile(path)
        assert file.report() == report
        assert sum(map(len, file.held_out())) == sum(report.held_out)
        num = file.num_parts - 1
        return [file.part(i, "<u8").reshape(-1, 2) for i in range(num)], report


@pytest.fixture
def shard(tmp_path: Path) -> ShardFile:
    """Return the file of a shard with two ranges per n-gram size."""
    units, task = find_units([CORPUS]).units, job(2, held_out=0.3)
    expected = ray_tasks.summary(read_digests(units, task))
    path = tmp_path / "shard"
    count_shard(units, np.empty(0, np.int64), expected, task, None, str(path))
    return ShardFile(path)


def test_a_shards_file_holds_its_ranges_and_what_was_held_out(shard: ShardFile) -> None:
    assert shard.num_parts == 2 * 3 + 1
    assert [len(tokens) for tokens in shard.held_out()] == shard.report().held_out
    assert sum(shard.report().held_out) > 0
    assert shard.path.stat().st_mode & 0o777 == 0o600
    twice = merge_range([str(shard.path)] * 2, 3, 1)
    once = shard.part(3, "<u8").reshape(-1, 2)
    assert np.array_equal(twice[:, 0], once[:, 0])
    assert np.array_equal(twice[:, 1] - once[:, 1], once[:, 1] & np.uint64(0x3FFFFF))


def test_no_damage_of_a_shards_file_goes_unnoticed(shard: ShardFile) -> None:
    """Each byte in turn would take long: some of every part, all of the end."""
    whole = shard.path.read_bytes()

    def everything() -> Any:
        file = ShardFile(shard.path)
        entries = [file.part(i, "<u8") for i in range(6)]
        return entries, file.held_out(), file.report()

    everything()
    places = {*range(0, len(whole), len(whole) // 300), *range(len(whole) - 900, len(whole))}
    for at in places:
        shard.path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x11]) + whole[at + 1 :])
        with pytest.raises(FormatError, match="the unfinished build is damaged, --restart"):
            everything()
    for size in (0, 23, 24, len(whole) // 2, len(whole) - 1):
        shard.path.write_bytes(whole[:size])
        with pytest.raises(FormatError, match="the unfinished build is damaged, --restart"):
            ShardFile(shard.path).part(0, "<u8")


@pytest.mark.parametrize("seed", range(8))
def test_duplicates_are_all_but_the_first_in_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    digests = rng.integers(0, 1 << 64, (40, 2), np.uint64)
    digests[:10, 0] = digests[0, 0]  # half of a digest is not enough
    shards = [digests[rng.integers(0, 40, n)] for n in rng.integers(0, 30, seed)]
    seen: set[bytes] = set()
    expected = []
    for shard in shards:
        expected.append([])
        for number, row in enumerate(shard):
            if row.tobytes() in seen:
                expected[-1].append(number)
            seen.add(row.tobytes())
    assert [numbers.tolist() for numbers in find_duplicates(shards)] == expected


@pytest.mark.parametrize("num_ranges", [1, 2, 7, 100])
def test_ranges_are_equal_parts_and_keep_an_ngram_whole(num_ranges: int) -> None:
    tally = Tally()
    tally.add(np.random.default_rng(1).integers(0, 300, 5000, dtype=np.int32))
    entries = tally.ngrams(2)
    cuts = cut_points(entries, num_ranges)
    assert cuts[0] == 0
    assert cuts[-1] == len(entries)
    assert len(cuts) == num_ranges + 1
    for i in range(num_ranges):
        words = entries[cuts[i] : cuts[i + 1], 0].tolist()
        assert all((i << 64) // num_ranges <= word < (i + 1 << 64) // num_ranges for word in words)


@pytest.mark.parametrize("most", [1 << 30, 5_000])
def test_a_shard_gives_what_its_texts_hold_however_small_the_tally(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = job(held_out=0.2)
    monkeypatch.setattr(ray_tasks, "tokens_within", lambda memory: most)
    monkeypatch.setattr(ray_tasks, "BATCH_CHARS", 1000)
    units = find_units([CORPUS]).units
    buckets, report = counted(units, task, [])
    tally = Tally()
    tokenizer = load_tokenizer(embedded_model())
    for parts, aside in Feed(CorpusPlan(units, 0, 0), task.options).documents():
        for part in parts:
            if not aside:
                tally.add(tokenizer.encode(part))
    for i, size in enumerate((2, 3, 4)):
        entries = np.concatenate(buckets[3 * i : 3 * i + 3])
        assert np.array_equal(entries, tally.ngrams(size))
    assert report.num_runs > 12 if most == 5_000 else report.num_runs == 3


def test_duplicates_and_documents_held_out_are_not_counted() -> None:
    units = find_units([CORPUS]).units
    everything = counted(units, job(), [])[1].totals
    last = len(units) - 1
    less = counted(units, job(), [0, last])[1].totals
    assert (everything.duplicates, less.duplicates) == (0, 2)
    assert less.documents == everything.documents - 2
    assert less.tokens < everything.tokens
    assert counted(units, job(held_out=0.9), [])[1].totals.tokens < everything.tokens / 2


def test_a_pool_has_one_label() -> None:
    buckets, _ = counted(find_units([CORPUS]).units, job(kind="hash-pool"), [])
    assert len(buckets) == 3
    assert all(len(bucket) for bucket in buckets)


def test_merging_adds_up_and_drops_what_is_rare() -> None:
    rng = np.random.default_rng(3)
    tallies = [Tally() for _ in range(4)]
    whole = Tally()
    for tally in tallies:
        tokens = rng.integers(0, 50, 2000, dtype=np.int32)
        tally.add(tokens)
        whole.add(tokens)
    expected = whole.ngrams(2)
    parts = [tally.ngrams(2) for tally in tallies]
    assert np.array_equal(merge_entries(1, *parts), expected)
    often = expected[(expected[:, 1] & np.uint64(0x3FFFFF)) >= 3]
    assert np.array_equal(merge_entries(3, *parts), often)
    assert merge_entries(1).shape == (0, 2)


def test_buckets_are_read_in_order_a_few_ahead() -> None:
    started: list[int] = []
    entries = {i: np.full((i % 3, 2), i, np.uint64) for i in range(20)}

    def start(bucket: int) -> int:
        started.append(bucket)
        return bucket

    source = BucketSource(range(5, 20), 4, start, entries.__getitem__)
    assert not started
    first = source.read()
    assert first[0, 0] == 5
    assert len(started) == 4
    rest = read_all(source)
    assert rest[:, 0].tolist() == [i for i in range(6, 20) for _ in range(i % 3)]
    assert started == [*range(5, 20)]
    assert len(source.read()) == 0
    assert len(read_all(ArraySource(entries[2]))) == 2


def test_shards_keep_the_order_and_reach_their_size() -> None:
    sizes = random.Random(5).choices([0, 10, 500, 3000], k=200)
    units = tuple(Unit(f"file{i}", f"file{i}", num_bytes=n) for i, n in enumerate(sizes))
    shards = shards_of(CorpusPlan(units, 200, sum(sizes)), 1000)
    assert [unit.source for shard in shards for unit in shard] == [unit.source for unit in units]
    assert all(os.path.isabs(unit.path) for shard in shards for unit in shard)
    for shard in shards[:-1]:
        total = sum(unit.num_bytes for unit in shard)
        assert total >= 1000 > total - shard[-1].num_bytes


def test_ranges_grow_with_the_corpus_and_count_packed_files_more() -> None:
    def ranges(num_bytes: int, compression: str = "") -> int:
        unit = Unit("a", "a", compression=compression, num_bytes=num_bytes)
        return ranges_for(CorpusPlan((unit,), 1, num_bytes), 2 << 30)

    assert ranges(0) == 1
    assert ranges(1 << 20) == 1
    assert ranges(1 << 30) == 10
    assert ranges(1 << 30, "gz") == 40
    assert ranges(1 << 50) == 4096


def test_a_large_corpus_has_some_thousand_shards() -> None:
    for num_bytes, expected in ((0, 64 << 20), (1 << 30, 64 << 20), (500 * 10**9, 500 * 10**6)):
        assert shard_bytes_for(CorpusPlan((), 0, num_bytes)) == expected


def test_a_host_with_another_version_or_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has ngramspec .*, expected 9\.9"):
        check_host([], replace(job(), version="9.9"))
    with pytest.raises(InputError, match="on a shared file system"):
        check_host([str(tmp_path / "nothing")], job())
    check_host([str(tmp_path)], job())


def test_a_host_with_another_tokenizer_is_refused() -> None:
    units = find_units([CORPUS]).units
    wrong = replace(job(), fingerprint=bytes(16), tokenizer_key="another")
    with pytest.raises(InputError, match=r"has another tokenizer in .*gguf"):
        counted(units, wrong, [])


def test_a_task_has_the_memory_that_a_host_offers_at_most() -> None:
    class Ray:
        def nodes(self) -> list[dict[str, Any]]:
            return [
                {"Alive": True, "Resources": {"CPU": 1.0, "memory": float(100 << 20)}},
                {"Alive": False, "Resources": {"CPU": 1.0, "memory": float(900 << 20)}},
                {"Alive": True, "Resources": {"CPU": 1.0}},
                {"Alive": True, "Resources": {"CPU": 0.5, "memory": float(900 << 20)}},
                {"Alive": True, "Resources": {"memory": float(900 << 20)}},  # a head without tasks
            ]

    cluster = Cluster(Ray(), NoProgress())
    assert cluster.memory(80 << 20) == 80 << 20
    assert cluster.memory(2 << 30) == 100 << 20
    small = Ray()
    small.nodes = lambda: [{"Alive": True, "Resources": {"CPU": 2.0, "memory": 1e6}}]  # type: ignore[method-assign]
    with pytest.raises(InputError, match="needs at least 64 MiB of memory"):
        Cluster(small, NoProgress()).memory(2 << 30)
    small.nodes = lambda: [{"Alive": True, "Resources": {"memory": 1e6}}]  # type: ignore[method-assign]
    assert Cluster(small, NoProgress()).memory(2 << 30) == 2 << 30  # hosts with cores may come


def test_tasks_that_no_host_can_run_end_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = {"CPU": 4.0, "memory": float(100 << 20)}, {"memory": float(900 << 20)}

    class Ray:
        """Has the hosts of each look; a task is ready once there is a large one with cores."""

        looks: list[dict[str, float]]

        def remote(self, function: Any) -> Any:
            def options(**resources: Any) -> Any:
                return SimpleNamespace(remote=function)

            return SimpleNamespace(options=options)

        def nodes(self) -> list[dict[str, Any]]:
            now = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
            return [{"Alive": True, "Resources": one} for one in (small, now)]

        def wait(self, refs: list[str], **_: Any) -> tuple[list[str], list[str]]:
            return ([], refs) if self.looks[0].get("CPU", 0) < 1 else (refs, [])

        def get(self, ref: str) -> str:
            return ref

    for memory, looks, works, grows in (
        (200 << 20, [large], False, 0.05),
        (200 << 20, [large, large, large | {"CPU": 1.0}], True, 60.0),  # it has grown in time
        (100 << 20, [large] * 20 + [large | {"CPU": 1.0}], True, 0.0),  # it is busy, that is all
    ):
        monkeypatch.setattr(ray_cluster, "GROW_SECONDS", grows)
        ray = Ray()
        ray.looks = looks
        cluster = Cluster(ray, NoProgress())
        ref = cluster.remote(lambda: "done", memory)()
        if works:
            assert cluster.get(ref) == "done"
            continue
        message = "no host of the cluster has a core and 200 MiB of memory for a task"
        with pytest.raises(BackendError, match=message):
            cluster.get(ref)


def test_without_ray_the_message_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BackendError, match=r'pip install "ngramspec\[ray\]"'):
        build_on_ray([CORPUS], tmp_path / "a", embedded_model())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_ranges": 0}, "num_ranges must be in 1..4096, got 0"),
        ({"num_ranges": 4097}, "num_ranges must be in 1..4096, got 4097"),
        ({"shard_bytes": 0}, "shard_bytes must be at least 1, got 0"),
        ({"memory": 1 << 20}, "memory must be at least 64 MiB, got 1048576"),
    ],
)
def test_impossible_arguments_are_refused(
    arguments: dict[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        build_on_ray([CORPUS], tmp_path / "a", embedded_model(), **arguments)  # type: ignore[arg-type]


def test_what_cannot_be_read_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="standard input cannot be read on Ray"):
        build_on_ray([CORPUS, "-"], tmp_path / "a", embedded_model())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe, which is no plain file"):
        build_on_ray([tmp_path / "pipe"], tmp_path / "a", embedded_model())


def test_what_tasks_wrote_until_they_were_ended_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Ray(SimpleNamespace):
        def nodes(self) -> list[dict[str, Any]]:
            return [{"Alive": True, "Resources": {"CPU": 1.0, "memory": 1e9}}]

    class Stopped:
        def __init__(self, *_: Any) -> None:
            raise BuildStopped("stopped")

    @contextmanager
    def connected(ray: Any, address: str | None) -> Iterator[None]:
        try:
            yield
        finally:  # until here tasks are running
            (work / ".shard-000000-0123456789abcdef.89abcdef").write_bytes(bytes(9))

    work = tmp_path / ".out.ngc.build"
    errors = SimpleNamespace(RayTaskError=KeyError, RayError=KeyError)
    monkeypatch.setattr(ray_executor, "import_ray", lambda: Ray(exceptions=errors))
    monkeypatch.setattr(ray_executor, "connected", connected)
    monkeypatch.setattr(ray_executor, "ClusterBuild", Stopped)
    with pytest.raises(BuildStopped):
        build_on_ray([CORPUS], tmp_path / "out.ngc", embedded_model())
    assert not work.exists()
    work.mkdir(0o700)  # one that another build has left
    (work / "state.json").write_text("{")
    with pytest.raises(FormatError, match="not a checkpoint of this version"):
        build_on_ray([CORPUS], tmp_path / "out.ngc", embedded_model(), resume=True)
    assert (work / "state.json").exists()


def test_a_second_build_leaves_alone_what_the_first_is_writing(tmp_path: Path) -> None:
    first, second = (WorkFolder(tmp_path / "work", {}) for _ in range(2))
    first.open(resume=False, restart=False)
    for name in ("shard-000000-0123456789abcdef", ".shard-000001-0123456789abcdef.89abcdef"):
        (first.path / name).write_bytes(bytes(9))
    before = sorted(path.name for path in first.path.iterdir())
    with (
        pytest.raises(InputError, match="another process is building in"),
        ray_executor._keeping(second),
    ):
        ray_executor._opened(second, ray_executor.Division(1, 1), resume=False, restart=False)
    assert sorted(path.name for path in first.path.iterdir()) == before
    first.remove()


def test_a_shard_that_is_too_large_for_an_index_ends_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ngramspec.lab.builder.finish.MOST_TOKENS", 2000)
    monkeypatch.setattr(ray_tasks, "BATCH_CHARS", 1000)
    units, task = find_units([CORPUS]).units, job(kind="suffix")
    counting = ray_tasks.ShardCount(task, load_tokenizer(embedded_model()))
    whole = sum(unit.num_bytes for unit in units)
    with pytest.raises(InputError, match="an index holds 2,000 tokens at most"):
        counting.read(Feed(CorpusPlan(units, len(units), whole), task.options))
    assert 2000 < counting.num_tokens < whole // 6


def test_a_corpus_that_is_too_large_for_an_index_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ngramspec.lab.builder.finish.MOST_TOKENS", 50)
    work = WorkFolder(tmp_path / "work", {})
    work.open(resume=False, restart=False)
    work.begin({})
    (work.path / "shard-000000-0").write_bytes(b"")
    reports = [Report(Totals(tokens=n), Problems(), Seconds(), 0, []) for n in (30, 20, 1)]
    shards = shards_of(find_units([CORPUS]), 1)
    cluster: Any = SimpleNamespace(put=str, remote=lambda *_: None)
    building = ray_executor.ClusterBuild(cluster, shards, job(kind="suffix"), work, NoProgress())
    for i in range(2):
        building._counted(i, reports[i])
    with pytest.raises(InputError, match="an index holds 50 tokens"), ray_executor._keeping(work):
        building._counted(2, reports[2])
    assert not work.path.exists()
