"""ngramspec tune: the recommendation, costs, limits, JSON, and what it refuses."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from helpers.cli import assert_one_error
from helpers.planted import PLANTED, few_candidates, noise, planted
from helpers.recordings import TRACES
from ngramspec.cli.serve import serve
from ngramspec.costs import CostTable, save_costs
from ngramspec.lab.recordings import RecordedRequest
from ngramspec.lab.recordings.traces import token_lines
from ngramspec.models import embedded_model

SQL = TRACES / "structured.spider_sql.txt.xz"
H100 = ("--profile", "h100-8b")
FIGURES = {"modelled_speedup", "mean_accepted_length", "acceptance"}
Run = Callable[..., Result]


@pytest.fixture
def run(invoke: Any) -> Run:
    return lambda *arguments: invoke("tune", *map(str, arguments))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search among a few candidates."""
    monkeypatch.setattr("ngramspec.lab.tune.result.grid", few_candidates)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a trace with a planted winner."""
    path = tmp_path / "log.txt"
    path.write_text("".join(token_lines(planted(36))))
    return path


def made(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_json_of_all_candidates_on_recorded_requests(run: Run) -> None:
    found = made(run(SQL, "--requests", "24", "--json"))
    assert set(found) == {
        *("costs", "sets", "requests", "seed", "seconds", "finished", "interrupted", "rounds"),
        *("num_candidates", "recommended", "llama_server", "results", "recorded"),
        *("statistics_file", "measured"),
    }
    assert found["sets"] == {"structured.spider_sql": 24}
    assert found["requests"] == {"chosen_on": 16, "held_out": 8}
    assert (found["finished"], found["interrupted"]) == (True, False)
    assert len(found["results"]) == found["num_candidates"] == found["rounds"][0]["candidates"]
    assert found["costs"]["profile"] == "cpu"
    assert "neither" in found["costs"]["reason"]
    for row in (found["recommended"], found["llama_server"], *found["results"]):
        assert row["chosen_on"].keys() >= FIGURES
        assert (row["held_out"] is None) == (row["held_out_gain"] is None)
    assert found["recommended"]["held_out"]["modelled_speedup"] > 1.2
    assert found["llama_server"]["for_llama_server"] is True


@pytest.mark.usefixtures("few")
def test_the_planted_winner_as_lines_to_paste(run: Run, log: Path) -> None:
    found = made(run(log, *H100, "--json"))["recommended"]
    assert (found["drafter"], found["lengths"]) == ("ngram-simple", "fixed")
    assert found["parameters"] == {"size_n": 3, "size_m": 300}
    assert not found["is_default"]
    text = run(log, *H100).stdout
    assert f"Recommended: {PLANTED} lengths, +" in text
    assert "those of the 12 held out" in " ".join(text.split())
    name = "--spec-type ngram-simple"
    sizes = "--spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 300"
    assert found["serve"] == f"ngramspec serve {name} --policy fixed {sizes}"
    for line in (found["serve"], f"llama-server {name} {sizes}"):
        assert f"  {line}\n" in text
    assert 'create_drafter("ngram-simple", size_n=3, size_m=300)\n' in text
    assert 'NgramDraft("ngram-simple", size_n=3, size_m=300, policy="fixed")\n' in text


@pytest.mark.usefixtures("few")
def test_the_lines_have_the_setting_that_was_given(
    run: Run, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_UBATCH", "64")
    given = ("-t", "3", "-tb", "0", "-fa", "on", "-ctk", "q8_0", "-nkvo", "-ot", "a=CPU,b=CPU",
             "-ot", "c=CPU", "--mlock", "--prio", "-1")  # fmt: skip
    found = made(run(log, *H100, *given, "--json"))
    lines = (found["recommended"]["serve"], found["llama_server"]["command"])
    text = run(log, *H100, *given).stdout
    monkeypatch.delenv("LLAMA_ARG_UBATCH")
    for line in lines:
        assert line.endswith(
            " --ubatch-size 64 --threads 3 --flash-attn on --cache-type-k q8_0"
            " --override-tensor a=CPU,b=CPU --override-tensor c=CPU --no-kv-offload"
            " --mlock --prio -1"
        )
        assert f"  {line}\n" in text
    with serve.make_context("serve", shlex.split(lines[0])[2:]) as context:
        chosen = context.params
    assert (chosen["ubatch_size"], chosen["threads"], chosen["flash_attn"]) == (64, 3, "on")
    assert (chosen["cache_type_k"], chosen["cache_type_v"]) == ("q8_0", "f16")
    assert chosen["override_tensor"] == ("a=CPU,b=CPU", "c=CPU")
    assert (chosen["kv_offload"], chosen["mlock"], chosen["prio"]) == (False, True, -1)


@pytest.mark.usefixtures("few")
def test_the_default_where_nothing_beats_it(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "noise.txt"
    path.write_text("".join(token_lines(noise(12))))
    text = run(path, *H100, "--max-output", "20").stdout
    words = " ".join(text.split())
    assert "Recommended: the default. Nothing beats it by more than 1 %." in words
    assert "  ngramspec serve --spec-type suffix\n" in text
    assert 'create_drafter("suffix", policy=AutoPolicy(costs=PROFILES["h100-8b"]))' in text
    assert "none of its settings gains more than 1 %" in words
    assert "measured on the same 12 requests, which is optimistic; 24 would be enough" in words
    found = made(run(path, *H100, "--json"))
    assert found["recommended"]["is_default"]
    assert found["recommended"]["held_out"] is None
    assert found["llama_server"] is None


def test_the_lines_are_valid(run: Run) -> None:
    """Every candidate's Python runs, and serve knows its options."""
    import ngramspec
    from ngramspec.lab.costs import choose_costs
    from ngramspec.lab.tune.candidates import grid
    from ngramspec.lab.tune.lines import imports, llama_server_line, ready_lines

    costs = choose_costs(profile="moe")
    scope: dict[str, Any] = {}
    for candidate in grid()[::5]:
        lines = ready_lines(candidate, costs, None)
        for line in imports(candidate, costs):
            exec(line, scope)
        assert isinstance(eval(lines["create_drafter"], scope), ngramspec.Drafter)
        assert isinstance(eval(lines["ngram_draft"], scope), ngramspec.NgramDraft)
        options = shlex.split(lines["serve"])[2:]
        with serve.make_context("serve", options) as context:
            assert context.params["spec_type"] == (candidate.spec,)
        if candidate.for_llama_server:
            assert llama_server_line(candidate, None).startswith("llama-server --spec-type ")


@pytest.mark.usefixtures("few")
def test_the_table_fits_80_columns(run: Run, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = run(log, *H100).stdout.split("Recommended")[0]
    assert max(map(len, text.splitlines())) <= 80
    assert "(default)" in text


@pytest.mark.usefixtures("few")
def test_measured_costs(run: Run, log: Path, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    save_costs(CostTable(((1, 0.01), (2, 0.02)), "slow"), path)
    found = made(run(log, "--costs", path, "--requests", "4", "--json"))
    assert found["costs"] == {
        "name": "slow", "profile": None, "file": str(path), "reason": "given"
    }  # fmt: skip
    assert found["recommended"]["is_default"]
    line = found["recommended"]["create_drafter"]
    assert f"AutoPolicy(costs=load_costs(Path({str(path)!r})))" in line
    for text in ("{}", "no JSON"):
        path.write_text(text)
        assert_one_error(run(log, "--costs", path), "not a table of costs", 1)


@pytest.mark.usefixtures("few")
def test_costs_that_were_saved_for_the_model(
    run: Run, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llama_cpp", reason="the models are llama.cpp's")
    from ngramspec.llamacpp import LlamaModel
    from ngramspec.llamacpp.placement import Placement
    from ngramspec.llamacpp.saved_costs import costs_path
    from ngramspec.llamacpp.settings import ContextSettings

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    arguments = (log, "--model", embedded_model(), "--requests", "4", "--json")
    found = made(run(*arguments))["costs"]
    assert found["profile"] == "cpu"
    assert "`ngramspec bench calibrate --model" in found["reason"]
    placement = Placement(cpu_dense=2)
    with LlamaModel(embedded_model(), placement=placement, vocab_only=True) as model:
        path = costs_path(model, ContextSettings(threads=3))
    path.parent.mkdir(parents=True)
    save_costs(CostTable(((1, 0.01), (2, 0.02)), "mine"), path)  # as older versions did
    older = made(run(*arguments, "-t", "3", "--n-cpu-ffn", "2"))["costs"]
    assert older["reason"] == f"saved for {embedded_model().name}"
    save_costs(CostTable(((1, 0.01), (2, 0.02)), "mine"), path, {"rough": True})
    assert made(run(*arguments, "-t", "3"))["costs"]["profile"] == "cpu"
    found = made(run(*arguments, "-t", "3", "--n-cpu-ffn", "2"))
    assert (found["costs"]["name"], found["costs"]["file"]) == ("mine", str(path))
    assert found["costs"]["reason"].startswith("measured roughly when ")
    save_costs(CostTable(((1, 0.01), (2, 0.02)), "mine"), path, {"rough": False})
    exact = made(run(*arguments, "-t", "3", "--n-cpu-ffn", "2"))["costs"]
    assert exact["reason"].endswith(" by `ngramspec bench calibrate`")
    assert f"--model {embedded_model()} " in found["recommended"]["serve"]
    assert made(run(*arguments, "-t", "3", *H100))["costs"]["profile"] == "h100-8b"


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("sizes", "measured"),
    [
        ((12, 12, 2), [8, 108, 9, 109, 10, 110, 11, 111]),  # the last set holds nothing out
        ((2, 3), [0, 100, 1, 101, 102]),  # and here none does
    ],
)
def test_measured_are_held_out_requests_of_each_set_in_turn(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sizes: tuple[int, ...],
    measured: list[int],
) -> None:
    pytest.importorskip("llama_cpp", reason="the model is llama.cpp's")
    from ngramspec.lab.tune.measured import Measured

    given: list[int] = []

    def watched(target: Any, requests: Any, *_: Any, **__: Any) -> Measured:
        given.extend(int(one.prompt[0]) for one in requests)
        return Measured(len(requests), ())

    monkeypatch.setattr("ngramspec.lab.tune.measured.measure", watched)
    paths = [tmp_path / f"{number}.txt" for number in range(len(sizes))]
    output = np.arange(500, 520, dtype=np.int32)
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        prompts = [np.array([100 * number + i, 7, 8], np.int32) for i in range(size)]
        path.write_text("".join(token_lines([RecordedRequest(p, output) for p in prompts])))
    result = run(*paths, *H100, "--measure", "--json")
    assert result.exit_code == 0, result.output
    assert given == measured


@pytest.mark.usefixtures("few")
def test_text_is_read_with_a_tokenizer(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="the tokenizer comes from llama-cpp-python")
    path = tmp_path / "chat.jsonl"
    record = {"session": "s", "turn": 0, "output": "def area(width, height):",
              "messages": [{"role": "user", "content": "def area(width"}]}  # fmt: skip
    path.write_text(json.dumps(record) + "\n")
    result = run(path)
    assert result.exit_code == 0
    assert f"using the embedded model {embedded_model().name}\n" in result.stderr
    assert f"{path}: recorded requests: 1 to replay\n" in result.stderr
    for option in ("--tokenizer", "--model"):
        found = made(run(path, option, embedded_model(), "--json"))
        assert found["sets"] == {"chat": 1}


@pytest.mark.usefixtures("few")
def test_the_same_seed_prints_the_same(run: Run, log: Path) -> None:
    def figures(seed: int) -> list[Any]:
        rows = made(run(log, *H100, "--seed", seed, "--json"))["results"]
        timed = ("us_per_step", "begin_us_per_request")
        for row in rows:
            for part in filter(None, (row["chosen_on"], row["held_out"])):
                for key in timed:
                    del part[key]
        return rows

    assert figures(5) == figures(5)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("replays", [0, 200])
def test_ctrl_c_prints_the_best_so_far(
    run: Run, log: Path, monkeypatch: pytest.MonkeyPatch, replays: int
) -> None:
    from ngramspec.lab.tune.search import walk

    done = 0

    def interrupted(*arguments: Any, **more: Any) -> Any:
        on_request = more.pop("on_request")

        def press() -> None:
            nonlocal done
            done += 1
            if done == replays + 1:
                signal.raise_signal(signal.SIGINT)
            on_request()

        return walk(*arguments, **more, on_request=press)

    monkeypatch.setattr("ngramspec.lab.tune.search.walk", interrupted)
    result = run(log, *H100, "--json")
    assert result.exit_code == 130, result.output
    found = json.loads(result.stdout)
    assert (found["finished"], found["interrupted"]) == (False, True)
    assert (found["recommended"] is None) == (replays == 0)
    done = 0
    text = run(log, *H100).stdout
    if replays:
        words = " ".join(text.split())
        assert "the held-out requests were not replayed: the figures are optimistic" in words
        assert "interrupted: the best have seen 24 of 24 requests, the others 12 or more" in words
        assert f"Recommended: {PLANTED} lengths" in words
    else:
        assert text.endswith("Nothing was replayed.\n")


@pytest.mark.usefixtures("few")
def test_a_time_limit_ends_the_search(run: Run, log: Path) -> None:
    result = run(log, *H100, "--time-limit", "1e-9", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["finished"], found["interrupted"], found["results"]) == (False, False, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument 'TRACES...'"),
        (("none.txt",), "none.txt: No such file"),
        ((TRACES.parent.parent,), "no traces"),
        ((SQL, "--profile", "gpu"), "'gpu' is not one of"),
        ((SQL, "--costs", "none.json"), "does not exist"),
        ((SQL, "--costs", SQL, *H100), "give either --profile or --costs"),
        ((SQL, "--requests", "0"), "0 is not in the range"),
        ((SQL, "--time-limit", "0"), "0.0 is not in the range"),
        ((SQL, "--model", "none.gguf"), "none.gguf: No such file"),
    ],
)
def test_usage_errors(run: Run, arguments: tuple[Any, ...], message: str) -> None:
    assert_one_error(run(*arguments), message, 2)


def test_empty_and_damaged_traces(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("")
    assert_one_error(run(path), "no request with a prompt and two output tokens", 1)
    path.write_text("4 x\n1 2 3\n")
    assert_one_error(run(path), "two output tokens; " + str(path) + ", line 1: invalid literal", 1)


def test_help_has_examples(run: Run) -> None:
    text = run("--help").stdout
    assert "ngramspec tune requests.jsonl --model model.gguf --write-cache" in text
    assert max(map(len, text.split("Examples:")[0].splitlines())) <= 80
