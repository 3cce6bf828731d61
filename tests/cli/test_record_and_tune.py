"""From a running server to a recommendation, a statistics file and a server that uses it."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

pytest.importorskip("llama_cpp", reason="the models are llama.cpp's")
pytest.importorskip("openai")

import httpx
import numpy as np
import openai

from helpers.cli import assert_one_error
from helpers.command import Process
from ngramspec.files.cache_file import about_of
from ngramspec.files.container import open_container
from ngramspec.lab.builder.tokens import build_from_tokens
from ngramspec.lab.recordings.formats import recognise
from ngramspec.lab.recordings.traces import Recording
from ngramspec.models import embedded_model
from ngramspec.text.tokenizers import fingerprint_of

NAMES = ("area", "add", "total", "mean", "size", "count", "load", "save", "parse", "items")
GIVEN = ("width, height", "a, b", "values", "path", "self, key", "self, value")
QUICK = ("--requests", "60", "--profile", "cpu")
Run = Callable[..., Result]


def ask(url: str, count: int, seed: int, keys: tuple[str, ...] = ("none",)) -> None:
    """Send requests of one kind through OpenAI's client and llama-server's route."""
    chance = random.Random(seed)
    with httpx.Client(timeout=60, verify=False) as plain:  # no certificates: they take a while
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", http_client=plain)
        for number in range(count):
            name, given = chance.choice(NAMES), chance.choice(GIVEN)
            prompt = f"class Box:\n    def __init__(self, {given}):\n        self.{name} = {name}\n"
            prompt += f"\n    def {name}(self):\n"
            key = keys[number % len(keys)]
            if number % 2:
                client.with_options(api_key=key).completions.create(
                    model="x", prompt=prompt, max_tokens=32, temperature=0
                )
            else:
                body = {"prompt": prompt, "n_predict": 32, "temperature": 0}
                head = {"authorization": f"Bearer {key}"}
                plain.post(f"{url}/completion", json=body, headers=head).raise_for_status()


@pytest.fixture
def serve() -> Iterator[Callable[..., Process]]:
    with ExitStack() as stack:

        def start(*arguments: str, **environment: str) -> Process:
            made = Process(*arguments, **environment)
            stack.callback(made.close)
            return made

        yield start


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what a server recorded of 60 requests."""
    path = tmp_path_factory.mktemp("log") / "requests.jsonl"
    server = Process("--record", str(path), "--temp", "0")
    try:
        url = server.url()
        assert (
            f"recording all requests and answers to {path}, 1.0 GiB at most: it holds what users "
            "write, and only its owner can read it\n"
        ) in server.text
        ask(url, 60, 1)
        assert server.end() == 0
    finally:
        server.close()
    assert path.stat().st_mode & 0o777 == 0o600
    return path


@pytest.fixture
def tune(invoke: Any) -> Run:
    return lambda *arguments: invoke("tune", *map(str, arguments))


def made(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def passes(path: Path) -> int:
    """Return how often the model ran for what a server recorded."""
    return sum(json.loads(line)["passes"] for line in path.read_text().splitlines()[1:])


def test_from_a_server_to_a_better_one(
    tune: Run, serve: Callable[..., Process], log: Path, tmp_path: Path
) -> None:
    file = tmp_path / "answers.ngx"
    found = made(tune(log, "--model", embedded_model(), *QUICK, "--write-cache", file, "--json"))
    assert found["recorded"]["files"][0]["requests"] == 60
    assert found["recorded"]["files"][0]["format"] == "requests"
    assert found["requests"] == {"chosen_on": 40, "held_out": 20}
    trial, advised = found["statistics_file"], found["recommended"]
    assert trial["pays"], trial
    assert trial["file"] == str(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert advised["held_out"]["modelled_speedup"] > 1.2
    line = shlex.split(advised["serve"])
    assert line[:2] == ["ngramspec", "serve"]
    assert str(file) in line
    counts = {}
    for name, options in {"default": ["--model", str(embedded_model())], "new": line[2:]}.items():
        path = tmp_path / f"{name}.jsonl"
        # Without a policy, which would measure this machine, what else runs here changes nothing.
        exact = ("--exact", "-t", "1", "-b", "16", "-ub", "16")  # so less is tested
        server = serve(*options, *exact, "--policy", "fixed", "--record", str(path))
        ask(server.url(), 12, 2)  # of the same kind, which the file does not know
        assert server.end() == 0
        counts[name] = passes(path)
    assert counts["new"] < counts["default"]
    first, second = (
        [one.output.tolist() for one in Recording(recognise(tmp_path / f"{name}.jsonl"))]
        for name in ("default", "new")
    )
    assert first == second  # and the answers are the same


def test_the_figures_in_words_and_measured(tune: Run, log: Path, tmp_path: Path) -> None:
    file = tmp_path / "answers.ngx"
    result = tune(log, *QUICK, "--time-limit", "20", "--write-cache", file, "--measure")
    assert result.exit_code == 0, result.output
    assert f"{log}: requests that ngramspec serve recorded with tiny-code-q8_0: 60 to replay\n" in (
        result.stderr
    )
    words = " ".join(result.stdout.split())
    assert "after a restart lengths file tok/pass speed-up" in words
    assert f"Written: {file}" in words
    assert "on the 20 held-out requests, which it was not built from. It holds answers" in words
    assert "Modelled over plain decoding: " in words
    assert "with the file, " in words
    assert "Measured on 12 requests after a restart: none " in words
    about = about_of(open_container(file))
    assert about["corpus"] == ["requests.jsonl"]
    assert about["tokenizer"] == "tiny-code-q8_0"
    header = open_container(file).header
    assert header.fingerprint == fingerprint_of(embedded_model()).digest


def test_a_file_that_does_not_pay_is_not_written(tune: Run, tmp_path: Path) -> None:
    chance, path, file = random.Random(5), tmp_path / "r.txt", tmp_path / "answers.ngx"
    rows = [[5, *(chance.randrange(4000) for _ in range(25))] for _ in range(30)]
    path.write_text("".join(" ".join(map(str, row)) + "\n" for row in rows))
    build_from_tokens([np.arange(40, dtype=np.int32)], file, None)
    before = file.read_bytes()
    result = tune(path, "--profile", "cpu", "--time-limit", "20", "--write-cache", file)
    words = " ".join(result.stdout.split())
    assert result.exit_code == 0, result.output
    assert "No file was written, as it does not pay: " in words
    assert "Recommended: the default. Nothing beats it by more than 1 %." in words
    assert file.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["answers.ngx", "r.txt"]


def test_a_search_goes_on_from_its_state(tune: Run, log: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"

    def results(*more: str) -> Any:
        found = made(tune(log, "--requests", "9", "--profile", "cpu", *more, "--json"))
        rows = [(row["drafter"], row["chosen_on"]["steps"]) for row in found["results"]]
        return rows, found["recommended"]["serve"]

    whole = results()
    assert results("--state", str(state)) == whole
    lines = state.read_text().splitlines(keepends=True)
    state.write_text("".join(lines[: len(lines) // 2])[:-9])  # as a process that was killed left it
    assert results("--state", str(state)) == whole
    again = state.read_text().splitlines(keepends=True)
    assert len(again) in (len(lines), len(lines) + 1)
    before = state.stat().st_size
    assert results("--state", str(state)) == whole
    assert state.stat().st_size == before  # nothing was replayed
    state.write_text("my notes\n")
    assert_one_error(tune(log, "--state", state), "not the state of `ngramspec tune`", 1)
    assert state.read_text() == "my notes\n"


def test_keys_that_learn_apart_are_tuned_apart(
    tune: Run, invoke: Any, serve: Callable[..., Process], tmp_path: Path
) -> None:
    path, file = tmp_path / "r.jsonl", tmp_path / "a.ngx"
    server = serve("--record", str(path), LLAMA_API_KEY="alice,bob")
    ask(server.url(), 16, 1, ("alice", "bob"))
    assert server.end() == 0
    first, second = dict.fromkeys(
        json.loads(line)["key"] for line in path.read_text().splitlines()[1:]
    )
    found = made(tune(path, "--time-limit", "1", "--json"))
    assert found["sets"] == {f"r key {first}": 8, f"r key {second}": 8}
    found = made(tune(path, "--time-limit", "1", "--json", "--key", first))
    assert found["sets"] == {f"r key {first}": 8}
    message = "2 keys that learn for themselves, and one file would hold the answers to all"
    assert_one_error(tune(path, "--write-cache", file), message, 2)
    assert_one_error(invoke("build-cache", str(path), "-o", str(file)), message, 2)
    for more in (("--key", second), ("--mix-keys",)):
        assert invoke("build-cache", str(path), "-o", str(file), *more).exit_code == 0
    assert_one_error(tune(path, "--key", "none"), "no request with a prompt", 1)


def test_build_cache_counts_recorded_answers(invoke: Any, log: Path, tmp_path: Path) -> None:
    out, answers = tmp_path / "a.ngx", list(Recording(recognise(log)))
    result = invoke("build-cache", str(log), "-o", str(out), "--kind", "suffix", "--json")
    found = json.loads(result.stdout)
    distinct = {one.output.tobytes() for one in answers}
    assert found["totals"]["documents"] == len(distinct)
    assert found["totals"]["duplicates"] == 60 - len(distinct)
    assert found["totals"]["tokens"] == sum(len(text) // 4 for text in distinct)
    shown = invoke(
        "build-cache", str(log), "-o", str(out), "--kind", "suffix", "--held-out", "30%"
    ).stdout
    assert "held-out tokens" in shown
    chats = tmp_path / "share.json"
    talk = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]}
    chats.write_text(json.dumps([talk, talk], indent=1))
    result = invoke("build-cache", str(chats), "-o", str(tmp_path / "b.ngc"), "--json")
    assert json.loads(result.stdout)["totals"]["documents"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("LOG", "README.md", "-o", "OUT"), "holds recorded requests and README.md does not"),
        (("LOG", "-o", "OUT", "--field", "text"), "--field is for files of text"),
        (("LOG", "-o", "OUT", "--jobs", "2"), "--jobs is for files of text"),
        (("LOG", "-o", "OUT", "--executor", "ray"), "recorded requests are for --executor local"),
    ],
)
def test_build_cache_usage(
    invoke: Any, log: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    places = {"LOG": str(log), "OUT": str(tmp_path / "out")}
    assert_one_error(invoke("build-cache", *(places.get(a, a) for a in arguments)), message, 2)


def test_what_tune_refuses(tune: Run, log: Path, tmp_path: Path) -> None:
    few = ("--write-cache", tmp_path / "a.ngx", "--requests", "9")
    assert_one_error(tune(log, *few), "--write-cache needs 24 requests", 2)
    wrong = tmp_path / "none" / "a.ngx"
    assert_one_error(tune(log, "--write-cache", wrong), "No such folder", 2)
    assert_one_error(tune(log, "--write-cache", tmp_path), "is a folder", 2)
    chats = tmp_path / "r.jsonl"
    text = log.read_text()
    chats.write_text(text.replace(str(fingerprint_of(embedded_model())), "00" * 16))
    result = tune(chats, "--model", embedded_model())
    assert_one_error(result, "which has another tokenizer than the one that is given", 1)
    chats.write_text("nothing that is known\n")
    assert_one_error(tune(chats), "no recorded requests were recognised in it", 1)
    result = tune(chats, "--format", "requests")
    assert_one_error(result, "line 1: not a recorded request: not JSON", 1)


def test_wrong_lines_are_told(tune: Run, log: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:10], "no json\n", *lines[10:20], "{}\n", lines[20][:50]]))
    result = tune(path, "--time-limit", "1")
    assert result.exit_code == 0
    assert f"3 lines left out; the first is {path}, line 11: not a recorded" in result.stderr
    found = made(tune(path, "--time-limit", "1", "--json"))["recorded"]
    assert found["lines_left_out"] == 3
    assert found["first_problem"].startswith(f"{path}, line 11: not a recorded request: not JSON")


def test_serve_says_what_it_cannot_record_to(serve: Callable[..., Process], tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n")
    server = serve("--record", str(path))
    assert server.wait() == 1
    assert f"Error: {path}: there is a file that holds no recorded requests" in server.text
    assert path.read_text() == "my notes\n"
