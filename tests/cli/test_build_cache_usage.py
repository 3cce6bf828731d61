"""build-cache: wrong command lines, sizes and durations in words, help."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import click
import pytest

from helpers.cli import CODE, assert_one_error, cases
from ngramspec.cli.files import check_output

pytestmark = pytest.mark.usefixtures("empty_folder")


WRONG = cases("""
-> Missing argument 'CORPUS...'
absent -> absent: No such file
CODE --include *.rs -> no file to read in
CODE --key 0123456789ab -> --key is for recorded requests
binary -> no text to count in the corpus: binary: binary
CODE -m absent.gguf -> absent.gguf: No such file
CODE -m llama:9b -> --model llama:9b: no such file, and
CODE -m a --tokenizer b -> either --model or --tokenizer
CODE -o . -> .: is a folder, not a file to write
CODE -o no/x.ngc -> no: No such folder
CODE -o x.bin -> `ngramspec cache convert` makes them
CODE --n-match 9 -> --n-match is for --kind hash-pool
CODE --check-bits 0 -> --check-bits is for --kind hash-pool
CODE --kind hash-pool --ngram-max 3 -> --ngram-max is for --kind ngram-cache
CODE --kind hash-pool --max-size 1M -> --max-size is for --kind ngram-cache
CODE --kind suffix --ngram-max 3 -> --ngram-max is for --kind ngram-cache
CODE --kind suffix --min-count 2 -> --min-count is for --kind ngram-cache or hash-pool
CODE --kind suffix --capacity 1M -> --capacity is for --kind hash-pool
CODE --ngram-min 3 --ngram-max 2 -> must satisfy 1 <= min <= max <= 4, got 3, 2
CODE --kind hash-pool --capacity 5000 -> --capacity must be a power of two in 1K..2G, got 5000
CODE --memory 2X -> a size such as 64M, 2G or 1.5G, got '2X'
CODE --memory 1.5M -> memory must be at least 64 MiB
CODE --max-size 9 -> expected a size of 64K or more, got '9'
CODE --held-out x -> a share such as 5% or 0.05, got 'x'
CODE --held-out 5 -> got '5'; for percent write 5%
CODE --held-out 95% -> a share of at most 90%, got '95%'
CODE --resume --restart -> either --resume or --restart
CODE --ray-address x -> --ray-address is for --executor ray
CODE --executor ray -j 2 -> --jobs is for --executor local
CODE --format xml -> 'xml' is not one of 'text', 'jsonl'
CODE --field '' -> field must not be empty
""")
TOO_LARGE = ("9" * 400, "9" * 300 + "T", "9" * 40)
WRONG += [(("CODE", "--memory", size), "expected a size below 4194304T", 2) for size in TOO_LARGE]


@pytest.mark.parametrize(("arguments", "message", "code"), WRONG)
def test_wrong_command_line(invoke: Any, arguments: list[str], message: str, code: int) -> None:
    Path("binary").write_bytes(bytes(9))
    output = () if "-o" in arguments else ("-o", "out.ngc")
    named = [CODE if word == "CODE" else word for word in arguments]
    assert_one_error(invoke("build-cache", *named, *output), message, code)
    assert os.listdir() == ["binary"]  # no output, no folder for intermediate files


def test_output_is_required(invoke: Any) -> None:
    assert_one_error(invoke("build-cache", CODE), "Missing option '-o' / '--output'", 2)


def test_file_that_holds_no_tokenizer(invoke: Any) -> None:
    Path("x.gguf").write_text("{}")
    result = invoke("build-cache", CODE, "-o", "out.ngc", "-m", "x.gguf")
    assert_one_error(result, "x.gguf: not a tokenizer.json", 1)


@pytest.mark.parametrize("text", ["64M", "64m", "64 MiB", "65536K", "0.0625G", "67108864"])
def test_sizes_are_powers_of_1024(text: str) -> None:
    from ngramspec.cli.options import SizeType

    assert SizeType().convert(text, None, None) == 64 << 20


def test_durations_in_words() -> None:
    from ngramspec.cli.output import duration_text

    assert [duration_text(s) for s in (0.31, 99.94, 245.2, 3603)] == [
        "0.3 s", "99.9 s", "4:05", "1:00:03",
    ]  # fmt: skip


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


REQUESTS = {
    "requests": '{"session": "a", "turn": 0, "prompt": "one two", "output": "three four"}\n' * 9,
    "chats": '[\n{"conversations": [{"from": "human", "value": "Hi"}]}]\n',
}


@pytest.mark.parametrize("text", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("place", ["-", "pipe", "/dev/fd/0"])
def test_recorded_requests_from_a_pipe_are_not_counted_as_text(
    invoke: Any, spawn: Any, text: str, place: str
) -> None:
    writer = None
    if place == "pipe":
        os.mkfifo(place)
        writer = threading.Thread(target=Path(place).write_text, args=(text,))
        writer.start()
    run = invoke if place != "/dev/fd/0" else spawn
    options = {} if place == "pipe" else {"stdin": text}
    result = run("build-cache", place, "-o", "out.ngc", **options)
    if writer is not None:
        writer.join()
    name = "standard input" if place == "-" else place
    code = result.exit_code if place != "/dev/fd/0" else result.returncode
    assert (code, result.stdout) == (2, "")
    assert f"Error: {name} holds recorded requests, " in result.stderr
    assert "--format text" in result.stderr
    assert not [name for name in os.listdir() if "out" in name]


def test_text_from_a_pipe_is_counted(build: Any) -> None:
    text = REQUESTS["requests"]
    assert build("-", "--format", "text", stdin=text)["totals"]["documents"] == 1
    assert build("-", stdin=f"a text first\n{text}"[:60])["totals"]["documents"] == 1


@pytest.mark.parametrize("format", ["requests", "chats", "tokens"])
def test_recorded_requests_must_be_in_a_file(invoke: Any, format: str) -> None:
    os.mkfifo("pipe")
    for name, place in (("-", "standard input"), ("pipe", "pipe")):
        result = invoke("build-cache", name, "-o", "out.ngc", "--format", format, stdin="")
        message = f"{place} is no file: recorded requests are read more than once, name a file"
        assert_one_error(result, message, 2)


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no such device")
def test_a_device_is_not_replaced_though_stdout_goes_to_a_file() -> None:
    with pytest.raises(click.UsageError, match="/dev/stdout is no regular file"):
        check_output(Path("/dev/stdout"))


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="no folder in which no file can be made"
)
def test_an_output_that_cannot_be_made_is_named_as_it_was_given(invoke: Any) -> None:
    result = invoke("build-cache", CODE, "-o", "/proc/x")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: /proc/x: no file can be written in /proc: No such file or directory\n"
    )
