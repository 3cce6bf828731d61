"""build-cache: every option, what it says, the bytes it writes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from helpers.cli import BY_JSONL, CODE, FEW, NO_TOKENIZER, bytes_of, slow_counts, succeed
from ngramspec.errors import InputError
from ngramspec.files.cache_file import about_of, open_cache
from ngramspec.files.container import open_container
from ngramspec.files.pool_file import PoolShape, shape_of
from ngramspec.lab.builder import BuildOptions
from ngramspec.lab.builder import build as build_file
from ngramspec.lab.builder.local import BuildStopped
from ngramspec.lab.builder.result import NoProgress
from ngramspec.models import embedded_model
from ngramspec.text.tokenizers import fingerprint_of, load_tokenizer

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_summary_without_a_terminal(spawn: Any) -> None:
    done = spawn("build-cache", *FEW, "-o", "out.ngc")
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"{NO_TOKENIZER} {embedded_model().name}\n"  # and no progress bar
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0] == "out.ngc"
    assert re.fullmatch(r"  corpus  2 documents, 24.1 KiB of text, 0 duplicates dropped", lines[1])
    assert re.fullmatch(r"  tokens  [\d,]+", lines[2])
    assert re.match(
        r"  file    [\d.]+ KiB, [\d,]+ n-grams of 2 to 4 tokens, [\d,]+ pairs", lines[3]
    )
    time_line = r"  time    [\d.]+ s with \d+ threads?, [\d.]+ MB/s; \d+% of the work was tok.*"
    assert re.fullmatch(time_line, lines[4])
    assert len(lines) == 5
    assert os.listdir() == ["out.ngc"]


def test_json_and_file_agree_with_slow_counts(build: Any) -> None:
    report = build(*FEW, "--ngram-min", "1", "--ngram-max", "3")
    cache = open_cache("out.ngc", verify=True)
    texts = [Path(path).read_text("utf-8") for path in FEW]
    num_pairs = 0
    for size in (1, 2, 3):
        counts = slow_counts(texts, size)
        assert cache.num_ngrams(size) == len(counts)
        for ngram in list(counts)[::50]:
            assert cache.followers(np.array(ngram, np.int32)) == counts[ngram]
        num_pairs += sum(map(len, counts.values()))
    assert cache.num_ngrams(4) == 0
    assert report["header"]["num_pairs"] == num_pairs
    assert report["header"]["fingerprint"] == str(fingerprint_of(embedded_model()))
    assert report["totals"]["documents"] == 2
    assert report["totals"]["text_bytes"] == sum(len(text.encode()) for text in texts)
    assert report["file_bytes"] == len(bytes_of())
    assert report["path"] == "out.ngc"
    assert report["held_out"] is None
    assert report["seconds"]["total"] > 0


def test_the_embedded_model_is_the_default(build: Any) -> None:
    build(*FEW)
    build(*FEW, "--model", str(embedded_model()), out="named.ngc")
    assert bytes_of() == bytes_of("named.ngc")


def write_tokenizer_json() -> None:
    vocab = {word: i for i, word in enumerate(["?", "one", "two", "three"])}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "?"}
    tokenizer = {"version": "1.0", "added_tokens": [], "model": model}
    tokenizer["pre_tokenizer"] = {"type": "Whitespace"}
    Path("tokenizer.json").write_text(json.dumps(tokenizer))


def test_tokenizer_json(build: Any, invoke: Any) -> None:
    write_tokenizer_json()
    Path("text.txt").write_text("one two three one two")
    report = build("text.txt", "--tokenizer", "tokenizer.json")
    assert report["header"]["vocab_size"] == 4
    assert open_cache("out.ngc").followers(np.array([1, 2], np.int32)) == {3: 1}
    result = invoke("build-cache", "text.txt", "-o", "x.ngc", "--tokenizer", "tokenizer.json")
    assert result.stderr == ""  # nothing to say about the embedded model


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_tokenizer_json_has_no_threads_beside_those_of_jobs() -> None:
    write_tokenizer_json()
    Path("text.jsonl").write_text('"one two three one two"\n"three two one"\n')
    program = """
import os
from ngramspec.cli import main
arguments = ["build-cache", "text.jsonl", "-o", "out.ngc", "--tokenizer", "tokenizer.json"]
main([*arguments, "-j", "1"], standalone_mode=False)
print(len(os.listdir("/proc/self/task")))
"""
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    environment |= {"RAYON_NUM_THREADS": "30", "OPENBLAS_NUM_THREADS": "1"}  # they outlive a batch
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert int(done.stdout.split()[-1]) < 30


def test_min_count_and_max_size(build: Any) -> None:
    whole = build(*FEW)
    often = build(*FEW, "--min-count", "2")
    texts = [Path(path).read_text("utf-8") for path in FEW]
    pairs = [c for size in (2, 3, 4) for f in slow_counts(texts, size).values() for c in f.values()]
    assert whole["header"]["num_pairs"] == len(pairs)
    assert often["header"]["num_pairs"] == sum(count >= 2 for count in pairs)
    small = build(*FEW, "--max-size", "100K")
    assert 50 << 10 < small["file_bytes"] <= 100 << 10
    assert small["header"]["num_ngrams"] < whole["header"]["num_ngrams"]


def test_hash_pool(build: Any, invoke: Any) -> None:
    options = ("--n-match", "5", "--capacity", "4K", "--check-bits", "6", "--max-occupancy", "0.25")
    build(*FEW, "--kind", "hash-pool", *options, out="out.pool")
    container = open_container("out.pool", "hash-pool")
    assert shape_of(container) == PoolShape(5, 4096, 6, 0.25)
    assert container.header.num_ngrams == 1024
    build(*FEW, "--kind", "ngram-mod", *options, out="same.pool")
    assert bytes_of("same.pool") == bytes_of("out.pool")
    result = invoke("build-cache", *FEW, "--kind", "hash-pool", *options, "-o", "out.pool")
    assert "1,024 of 4,096 cells in use (25.0%), 5 tokens per lookup" in result.stdout


def test_provenance_is_stated_unless_refused(build: Any) -> None:
    build(*FEW, "--min-count", "2")
    about = about_of(open_container("out.ngc"))
    assert about["corpus"] == ["copy.py", "csv.py"]
    assert about["options"]["min_count"] == 2
    build(*FEW, "--no-provenance")
    assert about_of(open_container("out.ngc")) == {}


def test_files_are_chosen_by_patterns(build: Any) -> None:
    chosen = ("--include", "c*.py", "--include", "bisect.py", "--exclude", "http")
    report = build(CODE, *chosen, "--exclude", "csv.py", "--exclude", "unittest/*")
    corpus = about_of(open_container("out.ngc"))["corpus"]
    assert corpus == ["bisect.py", "colorsys.py", "contextlib.py", "copy.py"]
    assert report["totals"]["documents"] == 4


CHAT = [
    {"messages": [{"role": "user", "content": "hello there"},
                  {"role": "assistant", "content": "one two three four five six"}]},
    {"messages": [{"role": "assistant", "content": "seven eight nine ten eleven"}]},
]  # fmt: skip


def test_format_field_and_role(build: Any) -> None:
    lines = "".join(json.dumps(record) + "\n" for record in CHAT)
    Path("chat.jsonl").write_text(lines)
    Path("chat.txt").write_text(lines)
    Path("deep.jsonl").write_text(
        "".join(json.dumps({"data": record, "text": "no"}) + "\n" for record in CHAT)
    )
    one, other = CHAT[0]["messages"][1]["content"], CHAT[1]["messages"][0]["content"]
    for i, text in enumerate((one, other)):
        Path(f"{i}.txt").write_text(text)
    build("0.txt", "1.txt", "--no-provenance", out="expected.ngc")
    expected = bytes_of("expected.ngc")
    only = ("--role", "assistant", "--no-provenance")
    build("chat.jsonl", *only)
    assert bytes_of() == expected
    build("chat.txt", "--format", "jsonl", *only)
    assert bytes_of() == expected
    build("deep.jsonl", "--field", "data.messages", *only)
    assert bytes_of() == expected
    build("-", "--format", "jsonl", *only, stdin=lines)
    assert bytes_of() == expected
    both = build("chat.jsonl", "--role", "assistant", "--role", "user")
    assert both["totals"]["documents"] == 3


def test_what_was_left_out_is_told(invoke: Any, build: Any) -> None:
    Path("image.png").write_bytes(b"\x89PNG\0\0")
    bad = "".join(f'{{"text": {i}}}\n' for i in range(7))
    Path("a.jsonl").write_text('{"text": "one two three"}\n' * 3 + bad)
    result = invoke("build-cache", "image.png", "a.jsonl", "-o", "out.ngc")
    assert "1 document, 13 B of text, 2 duplicates dropped" in result.stdout
    lines = result.stdout.splitlines()
    at = lines.index("  1 file skipped, 7 records left out:")
    assert lines[at + 1] == "    image.png: binary: it holds NUL bytes"
    assert lines[at + 2].startswith("    a.jsonl, line 4: no field with text")
    assert lines[at + 6] == "    and 3 more"
    problems = build("image.png", "a.jsonl")["problems"]
    assert (problems["num_skipped"], problems["num_records"]) == (1, 7)
    assert problems["first"][0]["source"] == "image.png"


def test_names_of_files_command_no_terminal(invoke: Any) -> None:
    Path("in").mkdir()
    Path("in/\x1b[2Ja\n.png").write_bytes(bytes(9))
    Path("in/b.txt").write_text("one two three")
    stdout = invoke("build-cache", "in", "-o", "out.ngc").stdout
    assert "    \\x1b[2Ja\\x0a.png: binary: it holds NUL bytes\n" in stdout
    assert "\x1b" not in stdout
    failed = invoke("build-cache", "in/\x1b[2Ja\n.png", "-o", "none.ngc").stderr
    assert "Error: no text to count in the corpus: \\x1b[2Ja .png: binary" in failed
    assert "\x1b" not in failed


def test_a_text_that_quotes_a_log_is_a_text(build: Any) -> None:
    Path("README.md").write_text("A log says\n\nslot update_slots: id  0 | task 3 | prompt done\n")
    Path("guide.md").write_text("one two three")
    report = build("README.md", "guide.md")
    assert report["totals"]["documents"] == 2


def test_held_out_text_is_measured(invoke: Any, build: Any) -> None:
    report = build(CODE, "--held-out", "10%")
    held_out = report["held_out"]
    assert held_out["documents"] == report["totals"]["held_out"] > 0
    with_file, without = held_out["with_file"], held_out["without_file"]
    assert with_file["right"] > without["right"] > 0
    assert with_file["mean_accepted_length"] > without["mean_accepted_length"] > 1
    assert with_file["modelled_speedup"] > without["modelled_speedup"] > 1
    result = invoke("build-cache", CODE, "-o", "same.ngc", "--held-out", "0.1")
    assert bytes_of("same.ngc") == bytes_of()
    assert f"on {held_out['documents']} held-out document" in result.stdout
    more = with_file["right"] - without["right"]
    share = more / without["right"]
    sentence = (
        f"Of {held_out['tokens']:,} held-out tokens, {more:,} more are drafted right with the"
    )
    assert f"{sentence} file ({share:+.1%})." in result.stdout
    for label, drafts in (("without the file", without), ("with the file", with_file)):
        row = next(line for line in result.stdout.splitlines() if label in line[:18])
        mean, share = f"{drafts['mean_accepted_length']:.3f}", f"{drafts['acceptance']:.1%}"
        speed = f"{drafts['modelled_speedup']:.3f}"
        counts = [f"{drafts['drafted']:,}", f"{drafts['right']:,}"]
        assert row.split()[3:] == [mean, *counts, share, speed]
    assert held_out["costs"] == "cpu"
    assert "costs: profile cpu (no model given)." in result.stdout


def test_held_out_of_a_corpus_that_is_too_small() -> None:
    result = succeed("build-cache", FEW[0], "-o", "out.ngc", "--held-out", "1%")
    assert "Nothing was held out: the corpus has too few documents." in result.stdout


def test_held_out_documents_that_are_too_short_or_all_there_is(invoke: Any) -> None:
    for number in range(8):
        Path(f"{number}.txt").write_text(f"doc {number + 1}\n")
    result = succeed("build-cache", ".", "-o", "out.ngc", "--held-out", "50%")
    assert "of them held out" in result.stdout
    assert "Nothing was measured: no held-out document has more than 16 tokens." in result.stdout
    failed = invoke("build-cache", "0.txt", "-o", "out.ngc", "--held-out", "90%")
    assert "Error: no text to count in the corpus, as all of it is held out" in failed.stderr


@pytest.mark.parametrize("means", [("--jobs", "1"), ("-j", "5"), ("--memory", "64M", "-j", "3")])
def test_bytes_do_not_depend_on_jobs_and_memory(
    build: Any, text: str, uninterrupted: bytes, means: tuple[str, ...]
) -> None:
    report = build(*BY_JSONL, *means, stdin=text)
    assert bytes_of() == uninterrupted
    assert (report["num_runs"] > 0) is ("--memory" in means)


def test_ray_is_asked_when_it_is_to_build(
    invoke: Any, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ngramspec.lab.builder.local import BuildStopped

    asked: dict[str, Any] = {}
    fake = ModuleType("ngramspec.lab.builder.ray_executor")

    def build_on_ray(paths: Any, output: Any, tokenizer: Any, options: Any, progress: Any,
                     **settings: Any) -> Any:  # fmt: skip
        from ngramspec.lab.builder import build as build_here

        asked.update(settings, tokenizer=tokenizer)
        if settings["address"] == "stop":
            raise BuildStopped("stopped")
        return build_here(paths, output, load_tokenizer(tokenizer), options, None, progress)

    fake.build_on_ray = build_on_ray  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    build(*FEW)
    local = bytes_of()
    report = build(
        *FEW, "--executor", "ray", "--ray-address", "auto", "--memory", "1G", "--work", "w"
    )
    assert report["totals"]["documents"] == 2
    assert bytes_of() == local
    assert asked == {
        "address": "auto", "memory": 1 << 30, "tokenizer": embedded_model(),
        "work": Path("w"), "resume": False, "restart": False,
    }  # fmt: skip
    options = ("--executor", "ray", "--ray-address", "stop", "--resume")
    result = invoke("build-cache", *FEW, "-o", "out.ngc", *options)
    assert result.exit_code == 130
    assert asked["resume"] is True
    assert result.stderr.endswith("stopped; run the same command with --resume to continue\n")


def test_links_out_of_the_corpus_are_read_only_when_asked(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.py").write_text("def area(width, height):\n    return width * height\n")
    (tmp_path / "key.txt").write_text("what nobody else may know")
    (corpus / "key.txt").symlink_to(tmp_path / "key.txt")
    for options, documents, skipped in (((), 1, 1), (("--follow-links",), 2, 0)):
        result = succeed("build-cache", "corpus", "-o", "out.ngc", "--json", *options)
        report = json.loads(result.stdout)
        assert report["totals"]["documents"] == documents
        assert report["problems"]["num_skipped"] == skipped
    assert open_container("out.ngc").header.num_ngrams > 30
    assert Path("out.ngc").stat().st_mode & 0o777 == 0o600


def test_what_git_ignores_is_read_only_when_asked(invoke: Any, build: Any) -> None:
    for name in ("src/a.py", "src/node_modules/b.js", "src/c.min.js"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(f"the text of {name} is not that of another\n" * 9)
    Path("src/.gitignore").write_text("node_modules/\n*.min.js\n")
    assert build("src")["totals"]["documents"] == 1
    assert "gitignore" not in about_of(open_container("out.ngc"))["options"]
    assert build("src", "--no-ignore")["totals"]["documents"] == 3
    assert about_of(open_container("out.ngc"))["options"]["gitignore"] is False
    result = invoke("build-cache", "src", "-o", "out.ngc", "--include", "*.js")
    assert result.exit_code == 2
    assert "but what .gitignore leaves out, such as c.min.js (--no-ignore)" in result.stderr


def test_a_build_goes_on_only_while_the_same_files_are_let_through() -> None:
    class Stopping(NoProgress):
        stopped = True

    for name in ("a.py", "b.py", "c.txt"):
        Path(name).write_text(f"the text of {name}\n")
    tokenizer = load_tokenizer(embedded_model())

    def resume(**options: bool) -> None:
        build_file(["."], "out.ngc", tokenizer, BuildOptions(**options), resume=True)  # type: ignore[arg-type]

    with pytest.raises(BuildStopped):
        build_file(["."], "out.ngc", tokenizer, progress=Stopping())
    with pytest.raises(InputError, match="has another gitignore: True, not False"):
        resume(gitignore=False)
    Path(".gitignore").write_text("c.*\n")
    message = "has another corpus: 3 files, 52 bytes, not 2 files, 34 bytes; --restart"
    with pytest.raises(InputError, match=message):
        resume()
    Path(".gitignore").write_text("")
    before = Path("b.py").stat()
    Path("b.py").write_text("THE TEXT OF b.py\n")  # as long as it was
    os.utime("b.py", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    message = "has another corpus: 3 files, 52 bytes as now, but of other names, dates or order"
    with pytest.raises(InputError, match=message):
        resume()
    os.utime("b.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    Path(".gitignore").write_text("d.*\n")  # other lines that let the same files through
    resume()
    assert open_cache("out.ngc").num_ngrams(2) > 0
