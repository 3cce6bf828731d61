"""From a running server to recorded requests, and what reads them."""

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

from helpers.cli import assert_one_error, succeed
from helpers.command import Process
from ngramspec.lab.builder.tokens import build_from_tokens
from ngramspec.lab.recordings.formats import recognise
from ngramspec.lab.recordings.traces import Recording
from ngramspec.models import embedded_model
from ngramspec.text.tokenizers import Fingerprint, fingerprint_of

NAMES = ("area", "add", "total", "mean", "size", "count", "load", "save", "parse", "items")
GIVEN = ("width, height", "a, b", "values", "path", "self, key", "self, value")
Run = Callable[..., Result]


def ask(url: str, count: int, seed: int, keys: tuple[str, ...] = ("none",)) -> None:
    """Send requests of one kind through OpenAI's client and llama-server's route."""
    chance = random.Random(seed)
    with httpx.Client(timeout=60, verify=False) as plain:  # no certificates: they take a while
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", http_client=plain)
        for number in range(count):
            name, args = chance.choice(NAMES), chance.choice(GIVEN)
            prompt = f"class Box:\n    def __init__(self, {args}):\n        self.{name} = {name}\n"
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
            process = Process(*arguments, **environment)
            stack.callback(process.close)
            return process

        yield start


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what a server recorded of 36 requests."""
    path = tmp_path_factory.mktemp("log") / "requests.jsonl"
    with Process("--record", str(path), "--temp", "0") as server:
        url = server.url()
        assert (
            f"recording all requests and answers to {path}, 1.0 GiB at most: it holds what users "
            "write, and only its owner can read it\n"
        ) in server.text
        ask(url, 36, 1)
        assert server.end() == 0
    assert path.stat().st_mode & 0o777 == 0o600
    return path


@pytest.fixture
def replay(invoke: Any) -> Run:
    return lambda *arguments: invoke("bench", "replay", *map(str, arguments))


def report_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def test_from_a_server_to_a_better_one(
    replay: Run, serve: Callable[..., Process], log: Path, tmp_path: Path
) -> None:
    file = tmp_path / "answers.ngx"
    succeed("build-cache", str(log), "-o", str(file), "--kind", "suffix")
    spec = f"auto:static={file}"
    result = replay(log, "--cold", "--drafter", "auto", "--drafter", spec, "--json")
    advice = report_of(result)["advice"]
    assert (advice["costs"], advice["drafter"]) == ("cpu", spec)
    assert advice["serve"] == f"--suffix-index {file}"
    path = tmp_path / "more.jsonl"
    server = serve(*shlex.split(advice["serve"]), "--record", str(path))
    ask(server.url(), 4, 2)
    assert server.end() == 0
    assert len(list(Recording(recognise(path)))) == 4


def test_keys_that_learn_apart_are_replayed_apart(
    replay: Run, invoke: Any, serve: Callable[..., Process], tmp_path: Path
) -> None:
    path, file = tmp_path / "r.jsonl", tmp_path / "a.ngx"
    server = serve("--record", str(path), LLAMA_API_KEY="alice,bob")
    ask(server.url(), 16, 1, ("alice", "bob"))
    assert server.end() == 0
    first, second = dict.fromkeys(
        json.loads(line)["key"] for line in path.read_text().splitlines()[1:]
    )
    report = report_of(replay(path, "--json"))
    assert report["sets"].keys() == {f"r key {first}", f"r key {second}"}
    report = report_of(replay(path, "--json", "--key", first))
    assert report["sets"].keys() == {f"r key {first}"}
    message = "2 keys that learn for themselves, and one file would hold the answers to all"
    assert_one_error(invoke("build-cache", str(path), "-o", str(file)), message, 2)
    for more in (("--key", second), ("--mix-keys",)):
        assert invoke("build-cache", str(path), "-o", str(file), *more).exit_code == 0
    assert_one_error(replay(path, "--key", "none"), "no request with a prompt", 1)


def test_build_cache_counts_recorded_answers(invoke: Any, log: Path, tmp_path: Path) -> None:
    out, answers = tmp_path / "a.ngx", list(Recording(recognise(log)))
    result = invoke("build-cache", str(log), "-o", str(out), "--kind", "suffix", "--json")
    report = json.loads(result.stdout)
    distinct = {one.output.tobytes() for one in answers}
    assert report["totals"]["documents"] == len(distinct)
    assert report["totals"]["duplicates"] == 36 - len(distinct)
    assert report["totals"]["tokens"] == sum(len(text) // 4 for text in distinct)
    shown = invoke(
        "build-cache", str(log), "-o", str(out), "--kind", "suffix", "--held-out", "30%"
    ).stdout
    assert "held-out tokens" in shown
    chats = tmp_path / "share.json"
    talk = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]}
    chats.write_text(json.dumps([talk, talk], indent=1))
    result = invoke("build-cache", str(chats), "-o", str(tmp_path / "b.ngc"), "--json")
    assert json.loads(result.stdout)["totals"]["documents"] == 1


def test_a_file_of_token_ids_states_no_tokenizer_that_nothing_tells(
    invoke: Any, log: Path, tmp_path: Path
) -> None:
    path, out = tmp_path / "r.jsonl", str(tmp_path / "a.ngc")
    head, rest = log.read_text().split("\n", 1)
    unknown = json.dumps(json.loads(head) | {"tokenizer": ""})
    for text, form in ((f"{unknown}\n{rest}", "requests"), ("1 1 2 3 4 5\n", "tokens")):
        path.write_text(text)
        report = json.loads(
            invoke("build-cache", str(path), "-o", out, "--format", form, "--json").stdout
        )
        assert report["header"]["fingerprint"] is None
    assert "4 tokens by an unknown tokenizer" in invoke("cache", "inspect", out).stdout


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


def test_what_a_replay_refuses(replay: Run, log: Path, tmp_path: Path) -> None:
    chats = tmp_path / "r.jsonl"
    text = log.read_text()
    chats.write_text(text.replace(str(fingerprint_of(embedded_model())), "00" * 16))
    result = replay(chats, "--model", embedded_model())
    assert_one_error(result, "which has another tokenizer than the one that is given", 1)
    chats.write_text("nothing that is known\n")
    assert_one_error(replay(chats), "no recorded requests were recognised in it", 1)
    result = replay(chats, "--format", "requests")
    assert_one_error(result, "line 1: not a recorded request: not JSON", 1)


def test_statistics_of_another_tokenizer_are_not_replayed(
    replay: Run, log: Path, tmp_path: Path
) -> None:
    path, other = tmp_path / "a.ngc", Fingerprint(b"another's digest", 4096)
    build_from_tokens([np.arange(9, dtype=np.int32)], path, other)
    spec = f"ngram-cache:static={path}"
    result = replay(log, "--drafter", spec)
    assert_one_error(result, f"{path} was built with another tokenizer", 1)
    report_of(replay(log, "--drafter", f"{spec},any_tokenizer=true", "--json"))


def test_wrong_lines_are_told(replay: Run, log: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:10], "no json\n", *lines[10:20], "{}\n", lines[20][:50]]))
    result = replay(path)
    assert result.exit_code == 0
    assert f"3 lines left out; the first is {path}, line 11: not a recorded" in result.stderr


def test_serve_says_what_it_cannot_record_to(serve: Callable[..., Process], tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n")
    server = serve("--record", str(path))
    assert server.wait() == 1
    assert f"Error: {path}: there is a file that holds no recorded requests" in server.text
    assert path.read_text() == "my notes\n"
