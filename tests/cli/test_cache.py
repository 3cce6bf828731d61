"""ngramspec cache: each command against slow counts, its errors and exit codes."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ngramspec import create_drafter, read_lookup_cache
from ngramspec._static import StaticCache
from ngramspec._unpack import EntryReader
from ngramspec.cli import main
from ngramspec.formats.cache_file import about_of, open_cache
from ngramspec.formats.container import new_container, open_container
from ngramspec.formats.entries import Entries, read_all
from ngramspec.formats.pool_file import PoolShape, open_pool
from ngramspec.models import embedded_model
from ngramspec.tokenizers import fingerprint_of, load_tokenizer

CORPORA = Path(__file__).resolve().parents[2] / "corpora"
MODEL = ("--model", str(embedded_model()))
FILES = {
    "a.ngc": ("python/copy.py", "python/csv.py", "python/glob.py"),
    "b.ngc": ("python/csv.py", "text/tutorial/classes.rst"),
    "a.pool": ("python/copy.py", "python/csv.py"),
    "b.pool": ("python/csv.py", "text/tutorial/classes.rst"),
}
POOL = ("--kind", "hash-pool", "--n-match", "4", "--capacity", "16K")
Counts = dict[tuple[int, ...], Counter[int]]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of statistics files, those of FILES and some that differ from them."""
    folder = tmp_path_factory.mktemp("files")
    for name, corpus in FILES.items():
        _build(folder / name, corpus, *(POOL if name.endswith(".pool") else ()))
    _build(folder / "bare.ngc", FILES["a.ngc"], "--no-provenance")
    _build(folder / "other.ngc", FILES["a.ngc"], "--tokenizer", str(_other_tokenizer(folder)))
    run = CliRunner().invoke(main, ["cache", "convert", *map(str, _two(folder, "a.ngc", "a.bin"))])
    assert run.exit_code == 0, run.output
    return folder


def _two(folder: Path, *names: str) -> list[Path]:
    return [folder / name for name in names]


def _build(path: Path, corpus: tuple[str, ...], *options: str) -> None:
    paths = [str(CORPORA / name) for name in corpus]
    result = CliRunner().invoke(main, ["build-cache", *paths, "-o", str(path), *options])
    assert result.exit_code == 0, result.output


def _other_tokenizer(folder: Path) -> Path:
    vocab = {text: i for i, text in enumerate(["?", *"abcdefghijklmnopqrstuvwxyz"])}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "?"}
    split = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
    made = {"version": "1.0", "added_tokens": [], "model": model, "pre_tokenizer": split}
    (folder / "tokenizer.json").write_text(json.dumps(made))
    return folder / "tokenizer.json"


@pytest.fixture(autouse=True)
def files(originals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with copies of the files."""
    for path in originals.iterdir():
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cache(invoke: Any) -> Callable[..., Any]:
    """Return a function that runs `ngramspec cache` and returns what --json says."""

    def run(*arguments: str, code: int = 0, stdin: str | None = None) -> Any:
        result = invoke("cache", *arguments, "--json", stdin=stdin)
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    return run


def counts_of(name: str, size: int) -> Counts:
    """Count slowly what followed each n-gram in the corpus of a file."""
    tokenizer = load_tokenizer(embedded_model())
    counts: Counts = {}
    for path in FILES[name]:
        tokens = tokenizer.encode((CORPORA / path).read_text("utf-8")).tolist()
        for i in range(size, len(tokens)):
            counts.setdefault(tuple(tokens[i - size : i]), Counter())[tokens[i]] += 1
    return counts


def added(*parts: Counts) -> Counts:
    total: Counts = {}
    for part in parts:
        for ngram, followers in part.items():
            total[ngram] = total.get(ngram, Counter()) + followers
    return total


def held_by(name: str, size: int) -> Counts:
    """Return all n-grams of a size that a file holds, looked up one by one."""
    from ngramspec._unpack import tokens_of

    cache = open_cache(name)
    ngrams = tokens_of(read_all(EntryReader(cache, size)), size)[:, :size]
    return {
        tuple(ngram.tolist()): Counter(cache.followers(ngram))
        for ngram in np.unique(ngrams, axis=0)
    }


def assert_one_error(result: Any, message: str, code: int) -> None:
    assert result.exit_code == code, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, result.stderr
    assert message in errors[0]
    assert result.stdout == ""


def flip(name: str, offset: int) -> None:
    data = bytearray(Path(name).read_bytes())
    data[offset] ^= 1
    Path(name).write_bytes(data)


# inspect


def test_inspect_agrees_with_slow_counts(cache: Any) -> None:
    made = cache("inspect", "a.ngc", "--top", "5")
    tokenizer = load_tokenizer(embedded_model())
    assert (made["kind"], made["version"]) == ("ngram-cache", 1)
    assert made["producer"].startswith("ngramspec ")
    assert made["fingerprint"] == str(fingerprint_of(embedded_model()))
    assert made["tokenizer"] == "the embedded model's"
    assert made["file_bytes"] == Path("a.ngc").stat().st_size
    assert made["about"]["corpus"] == ["copy.py", "csv.py", "glob.py"]
    assert [size["size"] for size in made["sizes"]] == [2, 3, 4]
    for size in made["sizes"]:
        counts = counts_of("a.ngc", size["size"])
        totals = {ngram: sum(followers.values()) for ngram, followers in counts.items()}
        assert size["num_ngrams"] == len(counts)
        assert size["num_pairs"] == sum(map(len, counts.values()))
        assert size["occurrences"] == sum(totals.values())
        assert [one["count"] for one in size["top"]] == sorted(totals.values())[:-6:-1]
        for one in size["top"]:
            ngram, follower = tuple(one["token_ids"]), one["follower"]
            assert one["count"] == totals[ngram]
            assert one["text"] == tokenizer.decode(ngram)
            assert one["num_followers"] == len(counts[ngram])
            assert follower["count"] == counts[ngram][follower["token_id"]]
            assert follower["count"] == max(counts[ngram].values())
            assert follower["text"] == tokenizer.decode([follower["token_id"]])
    assert made["num_ngrams"] == sum(size["num_ngrams"] for size in made["sizes"])
    assert made["bytes_per_ngram"] == made["file_bytes"] / made["num_ngrams"]


def test_inspect_in_words(invoke: Any) -> None:
    result = invoke("cache", "inspect", "a.ngc", "--top", "2")
    assert result.exit_code == 0
    text = result.stdout
    assert "tokenizer  " + str(fingerprint_of(embedded_model())) + " (the embedded model's)" in text
    assert "made from  copy.py, csv.py, glob.py; 3 documents, " in text
    assert "Most frequent 4-grams" in text
    short = invoke("cache", "inspect", "a.ngc", "--top", "0").stdout
    assert "Most frequent" not in short
    assert "pairs" not in short
    other = invoke("cache", "inspect", "other.ngc", "--top", "1").stdout
    assert "(not the embedded model's)" in other
    named = invoke("cache", "inspect", "other.ngc", "--tokenizer", "tokenizer.json").stdout
    assert "(that of tokenizer.json)" in named
    assert "'? ?'" in named


def test_inspect_without_a_known_tokenizer_shows_ids(invoke: Any, cache: Any) -> None:
    made = cache("inspect", "a.bin", "--top", "1")
    assert made["kind"] == "llama.cpp lookup cache"
    assert made["tokenizer"] is made["fingerprint"] is made["vocab_size"] is None
    assert "text" not in made["sizes"][0]["top"][0]
    ids = " ".join(map(str, made["sizes"][0]["top"][0]["token_ids"]))
    assert f" {ids} " in invoke("cache", "inspect", "a.bin", "--top", "1").stdout
    shown = cache("inspect", "a.bin", "--top", "1", *MODEL)
    assert shown["sizes"][0]["top"][0]["text"]
    del shown["sizes"][0]["bytes"]
    expected = cache("inspect", "a.ngc", "--top", "1")["sizes"][0]
    del expected["bytes"]
    assert shown["sizes"][0] == expected


def test_inspect_pool(cache: Any, invoke: Any) -> None:
    pool = cache("inspect", "a.pool")["pool"]
    cells = np.frombuffer(open_container("a.pool").view("cells"), "<u4")
    used = int(np.count_nonzero(cells))
    assert pool["num_used"] == pool["counters"]["num_used"] == used > 1000
    assert sum(pool["by_confidence"]) == used
    assert pool["occupancy"] == used / (1 << 14)
    assert {name: pool[name] for name in ("n_match", "capacity", "check_bits")} == {
        "n_match": 4, "capacity": 1 << 14, "check_bits": 8,
    }  # fmt: skip
    text = invoke("cache", "inspect", "a.pool").stdout
    assert f"in use     {used:,} cells" in text
    assert "shape      4 tokens per lookup, 16,384 cells, 8 check bits" in text


class InPieces:
    """Entries in chunks of a few, so that n-grams and pairs go on in the next one."""

    def __init__(self, entries: Entries, num: int) -> None:
        self._chunks = [entries[at : at + num] for at in range(0, len(entries), num)][::-1]

    def read(self) -> Entries:
        return self._chunks.pop() if self._chunks else np.empty((0, 2), np.uint64)


def with_large_counts(cache: StaticCache, size: int) -> Entries:
    """Return entries some of which are two of one pair, as counts above 4194303 are."""
    entries = read_all(EntryReader(cache, size))
    return np.repeat(entries, np.arange(len(entries)) % 5 // 4 + 1, axis=0)


@pytest.mark.parametrize("num", [1, 3, 50])
def test_a_survey_does_not_depend_on_chunks(num: int) -> None:
    from ngramspec.cli.cache_survey import survey

    entries = with_large_counts(open_cache("a.ngc"), 4)[:3000]
    whole, made = (survey(InPieces(entries, n), 4, 7) for n in (len(entries), num))
    assert (made.num_ngrams, made.num_pairs) == (whole.num_ngrams, whole.num_pairs)
    assert made.num_pairs < len(entries)
    assert made.occurrences == whole.occurrences
    assert made.top.tolist() == whole.top.tolist()
    assert made.counts.tolist() == whole.counts.tolist()


# verify


def test_verify_good_files(invoke: Any, cache: Any) -> None:
    names = ["a.ngc", "a.pool", "a.bin"]
    lines = invoke("cache", "verify", *names).stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == names
    assert all(line.endswith(": good") for line in lines)
    made = cache("verify", *names)
    num = len(open_cache("a.ngc"))
    assert [one.get("num_ngrams") for one in made] == [num, None, num]
    assert all(one["error"] is None for one in made)


@pytest.mark.parametrize(
    ("name", "offset", "message"),
    [
        ("a.ngc", 2000, "a.ngc: section 'records2' at offset 1024: expected checksum"),
        ("a.ngc", 30, "a.ngc: expected checksum"),
        ("a.ngc", 0, "a.ngc: expected b'\\x89NGRAM\\r\\n' at offset 0"),
        ("a.bin", 18, "a.bin: "),
    ],
)
def test_verify_finds_damage_and_goes_on(
    invoke: Any, cache: Any, name: str, offset: int, message: str
) -> None:
    flip(name, offset)
    result = invoke("cache", "verify", name, "b.ngc")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {message}")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout.startswith("b.ngc: ")
    made = cache("verify", name, "b.ngc", code=1)
    assert made[0]["error"].startswith(message)
    assert made[1]["error"] is None


def test_verify_looks_beyond_checksums(invoke: Any) -> None:
    container = open_container("a.pool", writable=True)
    np.frombuffer(container.view("cells"), "<u4")[7] = 0x3FFFFF
    assert_one_error(invoke("cache", "verify", "a.pool"), "expected a token id", 1)


def test_verify_finds_an_index_that_does_not_fit(invoke: Any) -> None:
    found = open_container("a.ngc")
    with new_container("x.ngc") as writer:  # all checksums are right
        for name in found.sections:
            data = bytearray(found.view(name))
            if name == "index3":
                data[400] += 1
            writer.add(name, bytes(data))
        writer.finish(found.header)
    message = "x.ngc: index of 3-grams: word 100 does not fit the records"
    assert_one_error(invoke("cache", "verify", "x.ngc"), message, 1)


# merge


@pytest.mark.parametrize("order", [("a.ngc", "b.ngc"), ("b.ngc", "a.ngc")])
def test_merged_counts_add_up(cache: Any, order: tuple[str, ...]) -> None:
    made = cache("merge", *order, "-o", "m.ngc")
    for size in (2, 3, 4):
        counts = added(*(counts_of(name, size) for name in order))
        assert open_cache("m.ngc", verify=True).num_ngrams(size) == len(counts)
        for ngram in list(counts)[::100]:
            assert open_cache("m.ngc").followers(np.array(ngram, np.int32)) == counts[ngram]
    assert made["header"]["num_ngrams"] == len(open_cache("m.ngc"))
    assert made["header"]["fingerprint"] == str(fingerprint_of(embedded_model()))
    parts = about_of(open_container("m.ngc"))["merged"]
    assert sorted(part["corpus"][-1] for part in parts) == ["csv.py", "glob.py"]
    cache("merge", *order[::-1], "-o", "again.ngc")
    assert Path("again.ngc").read_bytes() == Path("m.ngc").read_bytes()


def test_merging_in_steps_gives_the_bytes_of_one_merge(cache: Any) -> None:
    cache("merge", "a.ngc", "b.ngc", "bare.ngc", "-o", "once.ngc")
    cache("merge", "bare.ngc", "b.ngc", "-o", "step.ngc")
    cache("merge", "step.ngc", "a.ngc", "-o", "step.ngc")  # in place
    assert Path("step.ngc").read_bytes() == Path("once.ngc").read_bytes()


def test_merge_with_a_lookup_cache_of_llama_cpp(cache: Any) -> None:
    cache("merge", "b.ngc", "a.bin", "-o", "with_bin.ngc")
    cache("merge", "b.ngc", "a.ngc", "-o", "with_ngc.ngc")
    diff = cache("diff", "with_bin.ngc", "with_ngc.ngc")
    assert diff["equal"] is True
    assert list(diff["header"]) == ["about"]
    cache("merge", "a.bin", "a.bin", "-o", "unknown.ngc")
    header = open_container("unknown.ngc").header
    assert header.fingerprint is None
    assert about_of(open_container("unknown.ngc")) == {}


def test_merge_with_bounds(cache: Any) -> None:
    cache("merge", "a.ngc", "b.ngc", "-o", "often.ngc", "--min-count", "3")
    sums = added(counts_of("a.ngc", 3), counts_of("b.ngc", 3))
    often = {n: Counter({t: c for t, c in f.items() if c >= 3}) for n, f in sums.items()}
    assert held_by("often.ngc", 3) == {n: f for n, f in often.items() if f}
    about = about_of(open_container("often.ngc"))
    assert about["pruned"] == [{"min_count": 3, "max_bytes": None}]
    made = cache("merge", "a.ngc", "b.ngc", "-o", "small.ngc", "--max-size", "100K")
    assert 50 << 10 < made["file_bytes"] <= 100 << 10
    assert not list(Path().glob("*.whole"))


def test_merge_of_different_tokenizers(invoke: Any, cache: Any) -> None:
    result = invoke("cache", "merge", "a.ngc", "other.ngc", "-o", "m.ngc")
    message = "other.ngc was made with another tokenizer than a.ngc: counts of different tokens"
    assert_one_error(result, message, 1)
    cache("merge", "a.ngc", "other.ngc", "-o", "m.ngc", "--any-tokenizer")
    header = open_container("m.ngc").header
    assert header.fingerprint is None
    assert header.vocab_size == 4096
    cache("merge", "a.bin", "other.ngc", "-o", "m.ngc", "--any-tokenizer")
    assert open_container("m.ngc").header.vocab_size > 27
    result = invoke("cache", "merge", "a.bin", "other.ngc", "-o", "m.ngc")
    assert result.exit_code == 2
    assert "is not below vocab_size, 27" in result.stderr


def test_merged_pools_keep_the_more_confirmed_cell(cache: Any) -> None:
    made = cache("merge", "a.pool", "b.pool", "-o", "m.pool")
    a, b, m = (np.frombuffer(open_container(n).view("cells"), "<u4").tolist()
               for n in ("a.pool", "b.pool", "m.pool"))  # fmt: skip
    chosen = [
        max(filter(None, pair), key=lambda cell: (cell >> 30, -cell), default=0)
        for pair in zip(a, b, strict=True)
    ]
    assert len(set(a) & set(b)) > 1
    most = (1 << 14) // 2
    surplus = sum(map(bool, chosen)) - most
    assert surplus > 0  # so the least confirmed of the last cells give way
    rare = [i for i, cell in enumerate(chosen) if cell and cell >> 30 == 0]
    for i in rare[-surplus:]:
        chosen[i] = 0
    assert m == chosen
    assert made["header"]["num_ngrams"] == most
    assert open_pool("m.pool").num_used == most
    cache("merge", "b.pool", "a.pool", "-o", "again.pool")
    assert Path("again.pool").read_bytes() == Path("m.pool").read_bytes()


def test_pools_that_cannot_be_merged(invoke: Any) -> None:
    _build(Path("five.pool"), FILES["a.pool"], "--kind", "hash-pool", "--n-match", "5",
           "--capacity", "16K")  # fmt: skip
    for names, message in (
        (("a.pool", "five.pool"), "five.pool has n_match 5, a.pool has 4: only pools of one shape"),
        (("a.pool", "a.ngc"), "a.pool is a hash-pool, a.ngc is a ngram-cache"),
        (("a.pool", "b.pool", "--min-count", "2"), "--min-count and --max-size are not for hash"),
    ):
        assert_one_error(invoke("cache", "merge", *names, "-o", "m.pool"), message, 2)


# convert


def test_convert_there_and_back(cache: Any) -> None:
    read = read_lookup_cache("a.bin")
    assert len(read) == len(open_cache("a.ngc"))
    counts = counts_of("a.ngc", 2)
    for ngram in list(counts)[::50]:
        assert read.followers(np.array(ngram, np.int32)) == counts[ngram]
    made = cache("convert", "a.bin", "back.ngc", *MODEL)
    assert made["header"]["fingerprint"] == str(fingerprint_of(embedded_model()))
    assert Path("back.ngc").read_bytes()[1024:] == Path("bare.ngc").read_bytes()[1024:]
    assert (
        cache("convert", "a.bin", "unknown", "--to", "ngramspec")["header"]["fingerprint"] is None
    )
    assert cache("convert", "back.ngc", "again", "--to", "llama.cpp")["header"] is None
    assert Path("again").read_bytes() == Path("a.bin").read_bytes()
    assert cache("inspect", "again")["kind"] == "llama.cpp lookup cache"  # whatever its name


# prune


def test_prune_by_count_and_size(cache: Any, invoke: Any) -> None:
    cache("prune", "a.ngc", "-o", "p.ngc", "--min-count", "2", "--ngram-max", "3")
    for size in (2, 3):
        often = {
            ngram: Counter({t: count for t, count in followers.items() if count >= 2})
            for ngram, followers in counts_of("a.ngc", size).items()
        }
        assert held_by("p.ngc", size) == {n: f for n, f in often.items() if f}
    assert open_cache("p.ngc").num_ngrams(4) == 0
    about = about_of(open_container("p.ngc"))
    assert about["corpus"] == ["copy.py", "csv.py", "glob.py"]
    assert about["pruned"][0]["min_count"] == 2
    made = cache("prune", "a.ngc", "-o", "a.ngc", "--max-size", "80K")  # in place
    assert 40 << 10 < made["file_bytes"] <= 80 << 10
    assert cache("verify", "a.ngc")[0]["error"] is None
    result = invoke("cache", "prune", "b.ngc", "-o", "p.ngc", "--max-size", "1G")
    assert " of " in result.stdout
    assert len(open_cache("p.ngc")) == len(open_cache("b.ngc"))
    cache("prune", "bare.ngc", "-o", "p.ngc", "--ngram-min", "4")
    assert open_cache("p.ngc").ngram_min == 4
    assert about_of(open_container("p.ngc")) == {}


# lookup


def test_lookup_shows_the_draft_and_the_followers(cache: Any, invoke: Any) -> None:
    tokenizer = load_tokenizer(embedded_model())
    text = "\n    def __init__(self"
    made = cache("lookup", "a.ngc", text)
    tokens = tokenizer.encode(text)
    assert made["token_ids"] == tokens.tolist()
    drafter = create_drafter("ngram-cache", static="a.ngc", n_draft=8)
    drafter.begin(0, tokens[:-1])
    drafter.accept(0, tokens[-1:], 0)
    assert made["draft"]["token_ids"] == drafter.propose(0, 8).tolist() != []
    assert made["draft"]["text"] == tokenizer.decode(made["draft"]["token_ids"])
    assert [size["size"] for size in made["sizes"]] == [4, 3, 2]
    for size in made["sizes"]:
        followers = counts_of("a.ngc", size["size"])[tuple(size["token_ids"])]
        assert size["count"] == sum(followers.values())
        assert size["num_followers"] == len(followers)
        first = sorted(followers.items(), key=lambda pair: (-pair[1], pair[0]))[:5]
        assert [(f["token_id"], f["count"]) for f in size["followers"]] == first
        assert all(f["share"] == f["count"] / size["count"] for f in size["followers"])
    shown = invoke("cache", "lookup", "a.ngc", text).stdout
    num = len(made["draft"]["token_ids"])
    assert f"{num} token{'s' if num > 1 else ''} would be drafted after" in shown
    assert f"  {made['draft']['text']!r}\n" in shown
    assert len(cache("lookup", "a.ngc", text, "-n", "1")["draft"]["token_ids"]) == 1


def test_lookup_reads_stdin(cache: Any, invoke: Any) -> None:
    assert cache("lookup", "a.ngc", "-", stdin="import") == cache("lookup", "a.ngc", "import")
    unknown = invoke("cache", "lookup", "a.ngc", "zq")
    assert unknown.exit_code == 0
    assert "Nothing would be drafted after" in unknown.stdout
    assert "not in the file" in unknown.stdout


def test_lookup_in_a_lookup_cache_of_llama_cpp(cache: Any) -> None:
    ours = cache("lookup", "a.ngc", "def __init__(self")
    theirs = cache("lookup", "a.bin", "def __init__(self", *MODEL)
    assert theirs["sizes"] == ours["sizes"]
    assert theirs["draft"] == ours["draft"]


def test_lookup_in_a_pool_leaves_it_alone(cache: Any, invoke: Any) -> None:
    before = Path("a.pool").read_bytes()
    text = (CORPORA / "python/copy.py").read_text("utf-8")
    tokenizer = load_tokenizer(embedded_model())
    pool, tokens = open_pool("a.pool"), tokenizer.encode(text)[:40].tolist()
    expected = tokens[:]
    while len(expected) < 46 and (token := pool.lookup(np.array(expected[-4:], np.int32))) >= 0:
        expected.append(token)
    made = cache("lookup", "a.pool", tokenizer.decode(tokens), "-n", "6")
    assert made["draft"]["token_ids"] == expected[40:] != []
    assert Path("a.pool").read_bytes() == before
    result = invoke("cache", "lookup", "a.pool", "if")
    assert_one_error(result, "the text has 1 token, lookups in a.pool take 4", 2)


def test_ids_beyond_the_vocabulary_are_numbers() -> None:
    from ngramspec.cli.vocabulary import text_of

    tokenizer = load_tokenizer(embedded_model())
    word = tokenizer.encode("self").tolist()
    assert text_of(tokenizer, [*word, 5000, *word]) == "self<5000>self"


# diff


def test_equal_statistics(cache: Any, invoke: Any) -> None:
    made = cache("diff", "a.ngc", "a.bin")
    assert made["equal"] is True
    assert list(made["header"]) == ["kind", "fingerprint"]
    assert [size["equal"] for size in made["sizes"]] == [
        open_cache("a.ngc").num_ngrams(size) for size in (2, 3, 4)
    ]
    assert cache("diff", "a.ngc", "bare.ngc")["header"].keys() == {"about"}
    assert cache("diff", "a.pool", "a.pool")["equal"] is True
    text = invoke("cache", "diff", "a.ngc", "bare.ngc").stdout
    assert text.startswith("a.ngc (A) and bare.ngc (B) are equal\n  about: not the same\n")


def test_differences_are_counted(cache: Any, invoke: Any) -> None:
    made = cache("diff", "a.ngc", "b.ngc", "--top", "4", code=1)
    assert made["equal"] is False
    for size in made["sizes"]:
        a, b = (counts_of(name, size["size"]) for name in ("a.ngc", "b.ngc"))
        both = a.keys() & b.keys()
        differing = {ngram for ngram in both if a[ngram] != b[ngram]}
        assert size["only_a"] == len(a.keys() - b.keys())
        assert size["only_b"] == len(b.keys() - a.keys())
        assert size["differing"] == len(differing)
        assert size["equal"] == len(both - differing)
        none: Counter[int] = Counter()
        apart = {
            ngram: sum(
                abs(a.get(ngram, none)[token] - b.get(ngram, none)[token])
                for token in a.get(ngram, none).keys() | b.get(ngram, none).keys()
            )
            for ngram in a.keys() | b.keys()
        }
        assert [one["difference"] for one in size["largest"]] == sorted(apart.values())[:-5:-1]
        for one in size["largest"]:
            ngram = tuple(one["token_ids"])
            assert one["difference"] == apart[ngram]
            sums = [sum(counts.get(ngram, none).values()) for counts in (a, b)]
            assert one["counts"] == sums
    text = invoke("cache", "diff", "a.ngc", "b.ngc").stdout
    assert "Largest differences of 2-grams" in text
    assert "Largest" not in invoke("cache", "diff", "a.ngc", "b.ngc", "--top", "0").stdout


def test_another_tokenizer_is_a_difference(cache: Any) -> None:
    Path("text").write_text("aaaa")
    for name in ("one", "two"):
        vocab = json.loads(Path("tokenizer.json").read_text())
        vocab["model"]["vocab"][name] = 27
        Path(f"{name}.json").write_text(json.dumps(vocab))
        paths = ("text", "-o", f"{name}.ngc", "--tokenizer", f"{name}.json", "--no-provenance")
        assert CliRunner().invoke(main, ["build-cache", *paths]).exit_code == 0
    made = cache("diff", "one.ngc", "two.ngc", code=1)
    assert list(made["header"]) == ["fingerprint"]
    assert all(size["only_a"] == size["differing"] == 0 for size in made["sizes"])


def test_pools_that_differ(cache: Any) -> None:
    made = cache("diff", "a.pool", "b.pool", code=1)["cells"]
    a, b = (np.frombuffer(open_container(n).view("cells"), "<u4") for n in ("a.pool", "b.pool"))
    assert made["only_a"] == np.count_nonzero((a != 0) & (b == 0)) > 0
    assert made["only_b"] == np.count_nonzero((a == 0) & (b != 0)) > 0
    assert made["differing"] == np.count_nonzero((a != 0) & (b != 0) & (a != b))
    assert made["equal"] == np.count_nonzero((a != 0) & (a == b)) > 0
    _build(Path("small.pool"), FILES["a.pool"], "--kind", "hash-pool", "--capacity", "1K")
    made = cache("diff", "a.pool", "small.pool", code=1)["cells"]
    assert made["shape"] == {"capacity": [1 << 14, 1024], "n_match": [4, PoolShape().n_match]}


@pytest.mark.parametrize("num", [1, 3, 50])
def test_a_comparison_does_not_depend_on_chunks(num: int) -> None:
    from ngramspec.cli.cache_compare import compare

    one = with_large_counts(open_cache("a.ngc"), 4)[:900]
    other = read_all(EntryReader(open_cache("b.ngc"), 4))[200:800]
    whole = compare(InPieces(one, 9999), InPieces(other, 9999), 7)
    made = compare(InPieces(one, num), InPieces(other, num + 1), 7)
    for name in ("equal", "only_first", "only_second", "differing"):
        assert getattr(made, name) == getattr(whole, name)
    assert made.only_first > 0
    assert made.only_second > 0
    assert made.largest.tolist() == whole.largest.tolist()
    assert made.by.tolist() == whole.by.tolist()
    assert compare(InPieces(one, num), InPieces(one, 7), 7).is_none


# what is wrong with a command line or a file

WRONG = {
    "missing file": (["inspect", "absent.ngc"], "absent.ngc: No such file", 2),
    "folder": (["inspect", "."], ".: expected a statistics file, found a directory", 1),
    "neither": (["inspect", "tokenizer.json"], "tokenizer.json: expected b'\\x89NGRAM", 1),
    "missing file to verify": (["verify", "absent.ngc"], "absent.ngc: No such file", 2),
    "no files to verify": (["verify"], "Missing argument 'FILE...'", 2),
    "one file to merge": (["merge", "a.ngc", "-o", "m.ngc"], "give two files or more", 2),
    "merge without output": (["merge", "a.ngc", "b.ngc"], "Missing option '-o'", 2),
    "merge into no folder": (
        ["merge", "a.ngc", "b.ngc", "-o", "no/m.ngc"],
        "no: No such folder",
        2,
    ),
    "merge into a folder": (
        ["merge", "a.ngc", "b.ngc", "-o", "."],
        ".: is a folder, not a file",
        1,
    ),
    "merge into another format": (
        ["merge", "a.ngc", "b.ngc", "-o", "m.bin"],
        "m.bin: names that end in .bin are for llama.cpp's",
        2,
    ),
    "convert to the same": (
        ["convert", "a.ngc", "c.ngc"],
        "a.ngc is a file of ngramspec already",
        2,
    ),
    "convert to the same of llama.cpp": (
        ["convert", "a.bin", "c.bin"],
        "a.bin is a file of llama.cpp already",
        2,
    ),
    "convert a pool": (["convert", "a.pool", "c.bin"], "a hash-pool, which holds no n-grams to", 2),
    "tokenizer in a lookup cache": (
        ["convert", "a.ngc", "c.bin", *MODEL],
        "a lookup cache of llama.cpp cannot state a tokenizer",
        2,
    ),
    "smaller vocabulary": (
        ["convert", "a.bin", "c.ngc", "--tokenizer", "tokenizer.json"],
        "is not below vocab_size, 27",
        2,
    ),
    "prune nothing": (["prune", "a.ngc", "-o", "p.ngc"], "give --max-size, --min-count,", 2),
    "prune to no size": (
        ["prune", "a.ngc", "-o", "p.ngc", "--ngram-max", "1"],
        "a.ngc has no n-grams of 1 to 1 tokens, but of 2 3 4",
        2,
    ),
    "prune too much": (
        ["prune", "a.ngc", "-o", "p.ngc", "--max-size", "5K"],
        "expected a size of 64K or more, got '5K'",
        2,
    ),
    "prune a pool": (["prune", "a.pool", "-o", "p", "--min-count", "2"], "no n-grams to prune", 2),
    "lookup of nothing": (["lookup", "a.ngc", ""], "the text is empty", 2),
    "lookup with two tokenizers": (
        ["lookup", "a.ngc", "x", "-m", "a", "--tokenizer", "b"],
        "give either --model or --tokenizer",
        2,
    ),
    "lookup with another tokenizer": (
        ["lookup", "a.ngc", "x", "--tokenizer", "tokenizer.json"],
        "the file was made with another tokenizer than tokenizer.json: its fingerprint is",
        1,
    ),
    "lookup with an unstated tokenizer": (
        ["lookup", "a.bin", "x"],
        "the file does not state its tokenizer: give --model or --tokenizer",
        2,
    ),
    "lookup with an unknown tokenizer": (
        ["lookup", "other.ngc", "x"],
        "was not made with the embedded model's tokenizer: give --model or --tokenizer",
        2,
    ),
    "inspect with another tokenizer": (
        ["inspect", "other.ngc", *MODEL],
        "the file was made with another tokenizer",
        1,
    ),
    "diff of two kinds": (["diff", "a.ngc", "a.pool"], "a.ngc is a ngram-cache, a.pool is a", 2),
    "diff with a missing file": (["diff", "a.ngc", "absent"], "absent: No such file", 2),
    "diff with a file that is none": (["diff", "a.ngc", "tokenizer.json"], "expected b'\\x89NG", 2),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_command_line(invoke: Any, case: str) -> None:
    arguments, message, code = WRONG[case]
    before = sorted(Path().iterdir())
    assert_one_error(invoke("cache", *arguments), message, code)
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize(
    "command", [("merge", "a.ngc"), ("convert",), ("prune", "--min-count", "2", "-o", "x.ngc")]
)
def test_damaged_files_are_not_worked_on(invoke: Any, command: tuple[str, ...]) -> None:
    flip("b.ngc", 2000)
    last = {"merge": ("-o", "x.ngc"), "convert": ("x.bin",), "prune": ()}[command[0]]
    result = invoke("cache", *command, "b.ngc", *last)
    assert_one_error(result, "b.ngc: section 'records2' at offset 1024: expected checksum", 1)


def test_file_without_n_grams(cache: Any, invoke: Any) -> None:
    cache("prune", "a.ngc", "-o", "empty.ngc", "--min-count", "999999")
    made = cache("inspect", "empty.ngc")
    assert made["num_ngrams"] == 0
    assert made["bytes_per_ngram"] is None
    assert invoke("cache", "inspect", "empty.ngc").exit_code == 0
    assert cache("verify", "empty.ngc")[0]["error"] is None
    assert cache("lookup", "empty.ngc", "def f")["draft"]["token_ids"] == []
    cache("merge", "empty.ngc", "a.ngc", "-o", "m.ngc")
    assert cache("diff", "m.ngc", "a.ngc")["equal"] is True
    cache("convert", "empty.ngc", "empty.bin")
    assert cache("inspect", "empty.bin")["num_ngrams"] == 0
    assert invoke("cache", "inspect", "empty.bin").exit_code == 0
    assert cache("diff", "empty.ngc", "empty.bin")["equal"] is True


COMMANDS = ("inspect", "verify", "merge", "convert", "prune", "lookup", "diff")


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_every_help_has_examples_and_fits_80_columns(invoke: Any, command: tuple[str, ...]) -> None:
    text = invoke("cache", *command, "--help").output
    options, examples = text.split("Examples:\n")
    assert " ".join(("ngramspec cache", *command)) in examples
    assert max(map(len, options.splitlines())) <= 80
    assert "..." not in options.partition("Commands:")[2]  # nothing cut off
    assert not command or "--json" in options


def test_ids_are_shown_without_llama_cpp(cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp", None)
    made = cache("inspect", "a.ngc", "--top", "1")
    assert made["tokenizer"] == "the embedded model's"
    assert "text" not in made["sizes"][0]["top"][0]
