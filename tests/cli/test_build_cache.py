"""build-cache: every option, what it says, Ctrl-C, kill and going on, determinism."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ngramspec.cli import main
from ngramspec.formats.cache_file import about_of, open_cache
from ngramspec.formats.container import open_container
from ngramspec.formats.pool_file import PoolShape, shape_of
from ngramspec.models import embedded_model
from ngramspec.tokenizers import fingerprint_of, load_tokenizer

CORPORA = Path(__file__).resolve().parents[2] / "corpora"
CODE = str(CORPORA / "python")
FEW = (str(CORPORA / "python/copy.py"), str(CORPORA / "python/csv.py"))
BY_JSONL = ("-", "--format", "jsonl", "--held-out", "3%")
NO_TOKENIZER = "no --model or --tokenizer given: using the embedded model"
STOPPING = "stopping at the next document; Ctrl-C again ends at once"


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """Return records: all corpora, and as much again, more than 64M of memory are for."""
    paths = sorted(path for path in CORPORA.rglob("*") if path.suffix in (".py", ".rst"))
    texts = [path.read_text("utf-8") for path in paths]
    pieces = [text[at : at + 2000] for text in texts for at in range(0, len(text), 2000)]
    words = texts[-1].split()
    chance = random.Random(1)
    pieces += [" ".join(chance.choices(words, k=300)) for _ in pieces]
    return [json.dumps({"text": piece}) + "\n" for piece in pieces]


@pytest.fixture(scope="module")
def text(lines: list[str]) -> str:
    return "".join(lines)


@pytest.fixture(scope="module")
def uninterrupted(text: str, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the bytes of the file that a build of all lines makes."""
    path = tmp_path_factory.mktemp("whole") / "out.ngc"
    result = CliRunner().invoke(main, ["build-cache", *BY_JSONL, "-o", str(path)], input=text)
    assert result.exit_code == 0, result.output
    return path.read_bytes()


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def build(invoke: Any) -> Callable[..., dict[str, Any]]:
    """Return a function that builds out.ngc and returns what --json says."""

    def run(*arguments: str, out: str = "out.ngc", stdin: str | None = None) -> dict[str, Any]:
        result = invoke("build-cache", *arguments, "-o", out, "--json", stdin=stdin)
        assert result.exit_code == 0, result.output
        made: dict[str, Any] = json.loads(result.stdout)
        return made

    return run


def bytes_of(name: str = "out.ngc") -> bytes:
    return Path(name).read_bytes()


def counts_of(texts: list[str], size: int) -> dict[tuple[int, ...], Counter[int]]:
    """Count slowly what followed each n-gram, each text by itself."""
    tokenizer = load_tokenizer(embedded_model())
    counts: dict[tuple[int, ...], Counter[int]] = {}
    for text in texts:
        tokens = tokenizer.encode(text).tolist()
        for i in range(size, len(tokens)):
            counts.setdefault(tuple(tokens[i - size : i]), Counter())[tokens[i]] += 1
    return counts


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
    time_line = r"  time    [\d.]+ s with \d+ threads?, [\d.]+ MB/s; \d+% of the work was the tok.*"
    assert re.fullmatch(time_line, lines[4])
    assert len(lines) == 5
    assert os.listdir() == ["out.ngc"]


def test_json_and_file_agree_with_slow_counts(build: Any) -> None:
    made = build(*FEW, "--ngram-min", "1", "--ngram-max", "3")
    cache = open_cache("out.ngc", verify=True)
    texts = [Path(path).read_text("utf-8") for path in FEW]
    num_pairs = 0
    for size in (1, 2, 3):
        counts = counts_of(texts, size)
        assert cache.num_ngrams(size) == len(counts)
        for ngram in list(counts)[::50]:
            assert cache.followers(np.array(ngram, np.int32)) == counts[ngram]
        num_pairs += sum(map(len, counts.values()))
    assert cache.num_ngrams(4) == 0
    assert made["header"]["num_pairs"] == num_pairs
    assert made["header"]["fingerprint"] == str(fingerprint_of(embedded_model()))
    assert made["totals"]["documents"] == 2
    assert made["totals"]["text_bytes"] == sum(len(text.encode()) for text in texts)
    assert made["file_bytes"] == len(bytes_of())
    assert made["path"] == "out.ngc"
    assert made["held_out"] is None
    assert made["seconds"]["total"] > 0


def test_the_embedded_model_is_the_default(build: Any) -> None:
    build(*FEW)
    build(*FEW, "--model", str(embedded_model()), out="named.ngc")
    assert bytes_of() == bytes_of("named.ngc")


def test_tokenizer_json(build: Any, invoke: Any) -> None:
    vocab = {word: i for i, word in enumerate(["?", "one", "two", "three"])}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "?"}
    made = {"version": "1.0", "added_tokens": [], "model": model}
    made["pre_tokenizer"] = {"type": "Whitespace"}
    Path("tokenizer.json").write_text(json.dumps(made))
    Path("text.txt").write_text("one two three one two")
    found = build("text.txt", "--tokenizer", "tokenizer.json")
    assert found["header"]["vocab_size"] == 4
    assert open_cache("out.ngc").followers(np.array([1, 2], np.int32)) == {3: 1}
    result = invoke("build-cache", "text.txt", "-o", "x.ngc", "--tokenizer", "tokenizer.json")
    assert result.stderr == ""  # nothing to say about the embedded model


def test_min_count_and_max_size(build: Any) -> None:
    whole = build(*FEW)
    often = build(*FEW, "--min-count", "2")
    texts = [Path(path).read_text("utf-8") for path in FEW]
    pairs = [c for size in (2, 3, 4) for f in counts_of(texts, size).values() for c in f.values()]
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
    result = invoke("build-cache", *FEW, "--kind", "hash-pool", *options, "-o", "out.pool")
    assert "1,024 of 4,096 cells in use (25.0%), 5 tokens per lookup" in result.stdout


def test_provenance_is_stated_unless_refused(build: Any) -> None:
    build(*FEW, "--min-count", "2")
    about = about_of(open_container("out.ngc"))
    assert about["corpus"] == ["copy.py", "csv.py"]
    assert about["options"]["min_count"] == 2
    build(*FEW, "--no-provenance")
    assert about_of(open_container("out.ngc")) == {}


def test_files_are_chosen_by_globs(build: Any) -> None:
    chosen = ("--include", "c*.py", "--include", "bisect.py", "--exclude", "http")
    made = build(CODE, *chosen, "--exclude", "csv.py", "--exclude", "unittest/*")
    corpus = about_of(open_container("out.ngc"))["corpus"]
    assert corpus == ["bisect.py", "colorsys.py", "contextlib.py", "copy.py"]
    assert made["totals"]["documents"] == 4


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


def test_held_out_text_is_measured(invoke: Any, build: Any) -> None:
    made = build(CODE, "--held-out", "10%")
    found = made["held_out"]
    assert found["documents"] == made["totals"]["held_out"] > 0
    with_file, without = found["with_file"], found["without_file"]
    assert with_file["right"] > without["right"] > 0
    assert with_file["mean_accepted_length"] > without["mean_accepted_length"] > 1
    result = invoke("build-cache", CODE, "-o", "same.ngc", "--held-out", "0.1")
    assert bytes_of("same.ngc") == bytes_of()
    more = with_file["right"] - without["right"]
    share = more / without["right"]
    sentence = f"Of {found['tokens']:,} held-out tokens, the file lets {more:,} more be drafted"
    assert f"{sentence} right ({share:+.1%})." in result.stdout
    for label, drafts in (("without the file", without), ("with the file", with_file)):
        row = next(line for line in result.stdout.splitlines() if label in line[:18])
        mean, share = f"{drafts['mean_accepted_length']:.3f}", f"{drafts['acceptance']:.1%}"
        assert row.split()[3:] == [mean, f"{drafts['drafted']:,}", f"{drafts['right']:,}", share]


def test_held_out_of_a_corpus_that_is_too_small(invoke: Any) -> None:
    result = invoke("build-cache", FEW[0], "-o", "out.ngc", "--held-out", "1%")
    assert result.exit_code == 0
    assert "Nothing was held out: the corpus has too few documents." in result.stdout


@pytest.mark.parametrize("means", [("--jobs", "1"), ("-j", "5"), ("--memory", "64M", "-j", "3")])
def test_bytes_do_not_depend_on_jobs_and_memory(
    build: Any, text: str, uninterrupted: bytes, means: tuple[str, ...]
) -> None:
    made = build(*BY_JSONL, *means, stdin=text)
    assert bytes_of() == uninterrupted
    assert (made["num_runs"] > 0) is ("--memory" in means)


WRONG = {
    "no corpus": ([], "Missing argument 'CORPUS...'"),
    "missing corpus": (["absent"], "absent: No such file"),
    "no file let through": ([CODE, "--include", "*.rs"], "no file to read in"),
    "nothing but binary": (["binary"], "no text to count in the corpus: binary: binary"),
    "missing model": ([CODE, "-m", "absent.gguf"], "absent.gguf: No such file"),
    "two tokenizers": ([CODE, "-m", "a", "--tokenizer", "b"], "either --model or --tokenizer"),
    "folder as output": ([CODE, "-o", "."], ".: is a folder, not a file to write"),
    "no folder for the output": ([CODE, "-o", "no/x.ngc"], "no: No such folder"),
    "name of another format": ([CODE, "-o", "x.bin"], "`ngramspec cache convert` makes them"),
    "option of a pool": ([CODE, "--n-match", "9"], "--n-match is for --kind hash-pool"),
    "option of a cache": (
        [CODE, "--kind", "hash-pool", "--ngram-max", "3"],
        "--ngram-max is for --kind ngram-cache",
    ),
    "size limit of a pool": (
        [CODE, "--kind", "hash-pool", "--max-size", "1M"],
        "--max-size is for --kind ngram-cache",
    ),
    "sizes the wrong way round": (
        [CODE, "--ngram-min", "3", "--ngram-max", "2"],
        "must satisfy 1 <= min <= max <= 4, got 3, 2",
    ),
    "no power of two": (
        [CODE, "--kind", "hash-pool", "--capacity", "5000"],
        "--capacity must be a power of two in 1K..2G, got 5000",
    ),
    "size that is none": ([CODE, "--memory", "2X"], "a size such as 64M, 2G or 1.5G, got '2X'"),
    "too little memory": ([CODE, "--memory", "1.5M"], "memory must be at least 64 MiB"),
    "too small a file": ([CODE, "--max-size", "9"], "expected a size of 64K or more, got '9'"),
    "share that is none": ([CODE, "--held-out", "x"], "a share such as 5% or 0.05, got 'x'"),
    "share without its sign": ([CODE, "--held-out", "5"], "got '5'; 5% is written with its sign"),
    "all held out": ([CODE, "--held-out", "95%"], "a share of at most 90%, got '95%'"),
    "resume and restart": ([CODE, "--resume", "--restart"], "either --resume or --restart"),
    "address without ray": ([CODE, "--ray-address", "x"], "--ray-address is for --executor ray"),
    "resume with ray": (
        [CODE, "--executor", "ray", "--resume"],
        "--resume is for --executor local",
    ),
    "jobs with ray": ([CODE, "--executor", "ray", "-j", "2"], "--jobs is for --executor local"),
    "unknown format": ([CODE, "--format", "xml"], "'xml' is not one of 'text', 'jsonl'"),
    "empty field": ([CODE, "--field", ""], "field must not be empty"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_command_line(invoke: Any, case: str) -> None:
    arguments, message = WRONG[case]
    Path("binary").write_bytes(bytes(9))
    output = () if "-o" in arguments else ("-o", "out.ngc")
    result = invoke("build-cache", *arguments, *output)
    code = 1 if case == "folder as output" else 2
    assert_one_error(result, message, code)
    assert os.listdir() == ["binary"]  # no output, no folder for intermediate files


def assert_one_error(result: Any, message: str, code: int) -> None:
    assert result.exit_code == code, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, result.stderr
    assert message in errors[0]
    assert result.stdout == ""


def test_output_is_required(invoke: Any) -> None:
    assert_one_error(invoke("build-cache", CODE), "Missing option '-o' / '--output'", 2)


def test_file_that_holds_no_tokenizer(invoke: Any) -> None:
    Path("x.gguf").write_text("{}")
    result = invoke("build-cache", CODE, "-o", "out.ngc", "-m", "x.gguf")
    assert_one_error(result, "x.gguf: not a tokenizer.json", 1)


@pytest.mark.parametrize("text", ["64M", "64m", "64 MiB", "65536K", "0.0625G", "67108864"])
def test_sizes_are_powers_of_1024(text: str) -> None:
    from ngramspec.cli.sizes import SizeType, size_text

    assert SizeType().convert(text, None, None) == 64 << 20
    assert size_text(64 << 20) == "64.0 MiB"
    assert size_text(1000) == "1000 B"
    assert size_text(5 << 50) == "5120.0 TiB"


def test_durations_in_words() -> None:
    from ngramspec.cli.sizes import duration_text

    assert [duration_text(s) for s in (0.31, 99.94, 245.2, 3603)] == [
        "0.3 s", "99.9 s", "4:05", "1:00:03",
    ]  # fmt: skip


class Running:
    """A build that reads jsonl from a pipe, so that it is never done before it is told."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "ngramspec", "build-cache", *BY_JSONL]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*command, "-o", "out.ngc", *arguments], stdin=pipe, stdout=pipe, stderr=pipe
        )
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self.stdin, self.stderr = self.process.stdin, self.process.stderr
        assert self.stderr.readline().startswith(NO_TOKENIZER.encode())  # Ctrl-C is handled now

    def write(self, lines: list[str]) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has stopped already
            self.stdin.write("".join(lines).encode())
            self.stdin.flush()

    def wait_for(self, name: str) -> None:
        """Wait until there is a file."""
        deadline = time.monotonic() + 30
        while not Path(name).exists():
            assert time.monotonic() < deadline
            assert self.process.poll() is None
            time.sleep(0.005)

    def press(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> str:
        """Wait for the end and return what else it wrote to stderr."""
        _, said = self.process.communicate(timeout=60)
        return said.decode()


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Return a function that starts such a build; none outlives the test."""
    started: list[Running] = []

    def run(*arguments: str) -> Running:
        started.append(Running(*arguments))
        return started[-1]

    yield run
    for running in started:
        running.process.kill()
        with running.process:  # closes the pipes
            pass


def go_on(spawn: Any, lines: list[str], *options: str) -> Any:
    return spawn("build-cache", *BY_JSONL, "-o", "out.ngc", *options, stdin="".join(lines))


def test_ctrl_c_and_resume(spawn: Any, start: Any, lines: list[str], uninterrupted: bytes) -> None:
    run = start()
    run.write(lines[:300])
    run.press()
    assert run.stderr.readline().decode() == f"{STOPPING}\n"
    run.write(lines[300:400])
    said = run.end()
    assert run.process.returncode == 130
    assert re.fullmatch(
        r"stopped after \d+ documents; run the same command with --resume to go on\n", said
    )
    assert os.listdir() == [".out.ngc.build"]

    again = go_on(spawn, lines)
    assert again.returncode == 2
    assert "holds an unfinished build: --resume goes on with it, --restart begins" in again.stderr
    other = go_on(spawn, lines, "--resume", "--min-count", "2")
    assert other.returncode == 2
    assert "has another min_count: 1, not 2; --restart begins anew" in other.stderr

    done = go_on(spawn, lines, "--resume")
    assert done.returncode == 0, done.stderr
    assert "after the part that was done before" in done.stdout
    assert bytes_of() == uninterrupted
    assert os.listdir() == ["out.ngc"]


def test_kill_and_resume(spawn: Any, start: Any, lines: list[str], uninterrupted: bytes) -> None:
    run = start("--memory", "64M", "-j", "2")
    run.write(lines)
    run.wait_for(".out.ngc.build/state.json")  # there is more text than fits into the memory
    run.process.kill()
    run.end()
    assert run.process.returncode == -signal.SIGKILL
    done = go_on(spawn, lines, "--resume", "-j", "1")
    assert done.returncode == 0, done.stderr
    assert bytes_of() == uninterrupted
    assert os.listdir() == ["out.ngc"]


def test_second_ctrl_c_ends_at_once(start: Any) -> None:
    run = start()
    run.wait_for(".out.ngc.build/digests")  # it waits for text now
    run.press()
    assert run.stderr.readline().decode() == f"{STOPPING}\n"
    run.press()
    assert run.end() == "ended; nothing was kept\n"
    assert run.process.returncode == 130
    assert os.listdir() == []


def test_restart_forgets_and_leaves_files_of_others(
    spawn: Any, start: Any, lines: list[str]
) -> None:
    run = start("--work", "scratch")
    run.press()
    run.write(lines[:5])
    run.end()
    assert run.process.returncode == 130
    folder = Path("scratch/.out.ngc.build")
    assert (folder / "state.json").is_file()
    (folder / "state.json").write_text("{")
    (folder / "mine.txt").write_text("mine")
    damaged = go_on(spawn, lines, "--work", "scratch", "--resume")
    assert damaged.returncode == 1
    assert "state.json: not a checkpoint of this version: --restart begins anew" in damaged.stderr
    done = go_on(spawn, lines[:9], "--work", "scratch", "--restart")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


def test_resume_without_an_unfinished_build_begins(build: Any) -> None:
    build(*FEW)
    first = bytes_of()
    build(*FEW, "--resume")
    assert bytes_of() == first


def terminal_output(*arguments: str) -> str:
    """Run the command with a terminal as stderr and return what it wrote there."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-m", "ngramspec", *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs, env=environment,
    )  # fmt: skip
    os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as file:
        said = b"".join(_chunks(file))
    assert process.wait(60) == 0
    return said.decode()


def _chunks(file: Any) -> Iterator[bytes]:
    while True:
        try:
            data = file.read(1 << 16)
        except OSError:  # the other end was closed
            return
        if not data:
            return
        yield data


def test_progress_bar_on_a_terminal(text: str) -> None:
    Path("text.jsonl").write_text(text)
    said = terminal_output("build-cache", "text.jsonl", "-o", "out.ngc", "-j", "1")
    figures = r"reading .*?\d+% of 3\.\d MiB, [\d.]+ MB/s, [\d.]+ Mtok/s, [\d.]+ s left"
    assert re.search(figures, said), said
    assert "reading" not in said[said.index("writing") :]
    assert said.endswith("\x1b[2K")  # the bar is gone at the end
    said = terminal_output("build-cache", *FEW, "-o", "out.ngc", "--no-progress")
    assert "\x1b" not in said


def test_ray_is_asked_when_it_is_to_build(
    invoke: Any, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ngramspec.build.local import BuildStopped

    asked: dict[str, Any] = {}
    fake = ModuleType("ngramspec.build.ray_executor")

    def build_on_ray(paths: Any, output: Any, tokenizer: Any, options: Any, progress: Any,
                     **settings: Any) -> Any:  # fmt: skip
        from ngramspec.build import build as build_here

        asked.update(settings, tokenizer=tokenizer)
        if settings["address"] == "stop":
            raise BuildStopped("stopped; a build on Ray keeps nothing")
        return build_here(paths, output, load_tokenizer(tokenizer), options, None, progress)

    fake.build_on_ray = build_on_ray  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    build(*FEW)
    local = bytes_of()
    made = build(*FEW, "--executor", "ray", "--ray-address", "auto", "--memory", "1G")
    assert made["totals"]["documents"] == 2
    assert bytes_of() == local
    assert asked == {"address": "auto", "memory": 1 << 30, "tokenizer": embedded_model()}
    options = ("--executor", "ray", "--ray-address", "stop")
    result = invoke("build-cache", *FEW, "-o", "out.ngc", *options)
    assert result.exit_code == 130
    assert result.stderr.endswith("stopped; a build on Ray keeps nothing\n")


def test_another_process_at_the_same_output(start: Any, invoke: Any) -> None:
    run = start()
    run.wait_for(".out.ngc.build/digests")
    result = invoke("build-cache", *FEW, "-o", "out.ngc")
    assert_one_error(result, "another process is building in .out.ngc.build", 2)
    run.write(['{"text": "one two three four five"}\n'])
    run.end()
    assert run.process.returncode == 0


def test_help_names_every_option_and_fits_80_columns(invoke: Any) -> None:
    text = invoke("build-cache", "--help").output
    options, examples = text.split("Examples:\n")
    assert "ngramspec build-cache" in examples
    assert max(map(len, options.splitlines())) <= 80
    for option in (
        "-o, --output", "--kind", "--ngram-min", "--ngram-max", "--min-count", "--max-size",
        "--no-provenance", "-m, --model", "--tokenizer", "--include", "--exclude", "--format",
        "--field", "--role", "--held-out", "--n-match", "--capacity", "--check-bits",
        "--max-occupancy", "-j, --jobs", "--memory", "--resume", "--restart", "--work",
        "--executor", "--ray-address", "--no-progress", "--json",
    ):  # fmt: skip
        assert f"  {option}" in options


def test_interrupt_outside_the_main_thread_is_left_alone() -> None:
    import threading

    from ngramspec.cli.interrupt import interruptible

    before, seen = signal.getsignal(signal.SIGINT), []

    def run() -> None:
        with interruptible("note") as interrupt:
            seen.append((signal.getsignal(signal.SIGINT), interrupt.requested))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(before, False)]
    with interruptible("note"):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_once_all_is_read_lets_the_file_be_finished(capfd: Any) -> None:
    from ngramspec.cli.build_progress import BuildProgress
    from ngramspec.cli.interrupt import Interrupt

    interrupt = Interrupt(STOPPING)
    progress = BuildProgress(interrupt, None)
    progress.phase("reading", 9)
    assert not progress.stopped
    progress.phase("writing", 0)
    interrupt.press()
    assert progress.stopped
    assert capfd.readouterr().err == (
        "all is read, the file is being finished; Ctrl-C again ends at once\n"
    )
