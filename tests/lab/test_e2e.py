"""Runs in turns, their comparison, and ngramspec bench e2e on the embedded model."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from helpers.backends import int32
from helpers.cli import assert_one_error, invoke
from helpers.fake_target import FakeTarget
from helpers.ollama_stores import tinycode
from ngramspec.cli.bench.e2e import e2e
from ngramspec.drafting.names import DRAFTER_NAMES, POLICY_NAMES
from ngramspec.engine import DraftModel, Engine, Sampling
from ngramspec.errors import BackendError, InputError
from ngramspec.lab.e2e.bench import (
    Bench,
    Mode,
    PromptOutcome,
    first_difference,
    parse_mode,
    run_in_turns,
)
from ngramspec.lab.e2e.bench import Run as OneRun
from ngramspec.lab.e2e.tasks import load_tasks
from ngramspec.models import embedded_model
from ngramspec.runtime import DraftSetup

PROMPT = "Repeat this code:\n\n```python\ndef push(job):\n    jobs.append(job)\n```"
QUICK = ("--repeats", "2", "-n", "24")
GREEDY = Sampling(temperature=0, seed=1)
PLAIN = parse_mode("none")
Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    pytest.importorskip("llama_cpp", reason="the model is llama.cpp's")
    return partial(invoke, "bench", "e2e")


@pytest.fixture
def prompt(tmp_path: Path) -> Path:
    path = tmp_path / "push [1].txt"
    path.write_text(PROMPT)
    return path


def one_run(tokens: int, seconds: float, steps: int = 1, reason: str = "length") -> OneRun:
    ids, guessed = tuple(range(tokens)), (False,) * tokens
    return OneRun(ids, guessed, seconds, 0.1, 0.0, steps, 4, 2, reason)


def test_every_round_begins_with_another_mode() -> None:
    order: list[str] = []
    steps: list[int] = []
    rounds = run_in_turns("abc", 4, lambda mode: order.append(mode), lambda: steps.append(1))
    assert "".join(order) == "abcbcacababc"
    assert [list(one_round) for one_round in rounds] == [list("abc")] * 4
    assert len(steps) == 12
    order.clear()
    run_in_turns("abc", 2, lambda mode: order.append(mode), first=5)
    assert "".join(order) == "cababc"


@pytest.mark.parametrize(
    ("got", "position"), [([1, 2, 3], None), ([1, 9, 3], 1), ([1, 2], 2), ([1, 2, 3, 4], 3)]
)
def test_where_texts_part(got: list[int], position: int | None) -> None:
    assert first_difference([1, 2, 3], got) == position


def test_ratios_are_of_the_same_round() -> None:
    mine = (one_run(11, 1.0, 5), one_run(11, 4.0, 5))
    plain = (one_run(11, 2.0), one_run(11, 4.0))
    outcome = PromptOutcome(PLAIN, mine, plain)
    assert outcome.ratios == [2.0, 1.0]
    assert outcome.ratio == 1.5
    assert outcome.tokens_per_second == (10 + 2.5) / 2
    assert outcome.mean_accepted_length == 2.0
    assert (outcome.drafted, outcome.accepted, outcome.difference) == (8, 4, None)
    shorter = PromptOutcome(PLAIN, (one_run(3, 1.0, 3, "stop"),), (one_run(5, 1.0),))
    assert shorter.difference == 3
    assert shorter.mean_accepted_length == 1.0  # the end token was chosen, too
    nothing = PromptOutcome(
        PLAIN, (one_run(0, 0.0, 0, "stop"),) * 2, (one_run(0, 0.0, 0, "stop"),) * 2
    )
    assert (nothing.ratio, nothing.tokens_per_second) == (None, 0.0)
    assert nothing.mean_accepted_length == 0.0


def test_a_specification_becomes_parameters_of_each_drafter() -> None:
    assert Mode("none", (), {}) == PLAIN
    mode = parse_mode("ngram-mod,ngram-simple:size_n=3,n_match=4")
    assert mode.names == ("ngram-simple", "ngram-mod")
    assert mode.params == {"ngram-simple": {"size_n": 3}, "ngram-mod": {"n_match": 4}}
    for spec, message in (
        ("ngram-mud", "did you mean ngram-mod"),
        ("ngram-mod:size_q=3", "unknown parameter 'size_q'"),
        ("ngram-mod:pool=x", "must not change files"),
        ("none:a=1", "unknown drafter 'none'"),
    ):
        with pytest.raises(InputError, match=message):
            parse_mode(spec)
    with pytest.raises(FileNotFoundError):
        parse_mode("ngram-cache:static=absent.ngc", any_tokenizer=True)


def test_every_run_has_a_fresh_drafter_and_the_target_s_own_text() -> None:
    target = FakeTarget(exact_batch=0, period=0)
    ids = np.arange(1, 9, dtype=np.int32)
    bench = Bench(target, [PLAIN, parse_mode("ngram-cache")], "fixed", 8)
    bench.warm_up(ids, GREEDY)
    outcomes = bench.run(ids, max_tokens=60, repeats=3, sampling=GREEDY)
    expected = tuple(target.expected(ids.tolist(), 60))
    assert all(one.token_ids == expected for outcome in outcomes for one in outcome.runs)
    drafted = {one.drafted for one in outcomes[1].runs}
    assert len(drafted) == 1  # nothing learned from the run before
    assert outcomes[0].drafted == 0
    assert outcomes[0].runs[0].steps == 59


def test_a_prompt_is_read_once_for_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    target = FakeTarget()
    sizes: list[int] = []
    decode = target.decode

    def watched(batch: Any, rows: Any) -> None:
        sizes.append(len(batch))
        decode(batch, rows)

    monkeypatch.setattr(target, "decode", watched)
    bench = Bench(target, [PLAIN, parse_mode("ngram-cache")], "fixed", 8)
    bench.run(np.arange(1, 41, dtype=np.int32), max_tokens=9, repeats=3, sampling=GREEDY)
    assert [size for size in sizes if size > 9] == [40]


def test_a_draft_model_beside_drafters_and_alone() -> None:
    both, alone = parse_mode("suffix,draft-simple:policy=fixed"), parse_mode("draft-simple")
    assert (both.names, both.small, both.policy) == (("suffix",), True, "fixed")
    assert (alone.names, alone.small, alone.drafts, PLAIN.drafts) == ((), True, True, False)
    with pytest.raises(InputError, match=r"'draft-simple' needs a draft model: .*--model-draft"):
        Bench(FakeTarget(), [PLAIN, alone])
    small = DraftModel(FakeTarget(), 3, 0, 0.0)
    bench = Bench(FakeTarget(), [PLAIN, both, alone], "fixed", setup=DraftSetup(second=small))
    outcomes = bench.run(int32([3, 5, 7]), max_tokens=30, repeats=2, sampling=GREEDY)
    plain, with_both, with_small = outcomes
    assert [one.difference for one in outcomes[1:]] == [None, None]
    assert plain.drafted == 0 < with_both.drafted
    for run in with_small.runs:  # none finds what another has left in the model's cache
        assert (run.drafted, run.accepted) == (with_small.runs[0].drafted, run.drafted)


def test_what_a_bench_refuses() -> None:
    with pytest.raises(
        InputError, match="policy must be one of auto, gate, fixed, shadow, got 'x'"
    ):
        Bench(FakeTarget(), [PLAIN], "x")
    for modes in ([], [parse_mode("ngram-mod")]):
        with pytest.raises(InputError, match="the first mode must be plain"):
            Bench(FakeTarget(), modes)
    target = FakeTarget()
    bench = Bench(target, [PLAIN])
    target.fail_next = BackendError("broken")
    with pytest.raises(BackendError, match="broken"):
        bench.warm_up(np.ones(3, np.int32), GREEDY)


@pytest.mark.parametrize(
    ("words", "opened", "chosen"),
    [
        ((), 4, "auto"),
        (("--spec-tree", "off"), 1, "off"),
        (("--spec-tree", "3"), 3, 3),
        (("--policy", "fixed"), 1, "off"),
        (("--policy", "fixed", "--drafter", "suffix:policy=auto"), 4, "auto"),
        (("--drafter", "none"), 4, "auto"),
    ],
)
def test_drafts_may_have_branches(
    run: Run,
    prompt: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    opened: int,
    chosen: Any,
) -> None:
    trees: list[tuple[int, Any]] = []

    def watched(target: Any, drafter: Any, **options: Any) -> Engine:
        trees.append((target.max_branches, options.get("tree") if drafter else None))
        return Engine(target, drafter, **options)

    monkeypatch.setattr("ngramspec.runtime.Engine", watched)
    drafters = ("--drafter", "suffix,recycle", *words)
    result = run("--prompts", prompt, "--repeats", "1", "-n", "8", "--json", *drafters)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["settings"]["spec_tree"] == chosen
    assert set(trees) >= {(opened, None), (opened, chosen)}


def test_branches_that_cannot_be_had_are_refused(run: Run, prompt: Path) -> None:
    line = ("--prompts", prompt, "--drafter", "suffix")
    message = "drafts cannot have 3 branches: only the policy auto chooses branches"
    assert_one_error(run(*line, "--policy", "fixed", "--spec-tree", "3"), message, 2)
    assert_one_error(run(*line, "--spec-tree", "many"), "neither a number >= 1 nor auto", 2)


def test_the_command_knows_the_policies() -> None:
    (option,) = (param for param in e2e.params if param.name == "policy")
    assert tuple(option.type.choices) == POLICY_NAMES  # type: ignore[attr-defined]


def test_models_by_their_names(
    run: Run, prompt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tinycode(tmp_path / "models")
    monkeypatch.setenv("OLLAMA_MODELS", str(store.root))
    snapshot = tmp_path / "models--some--one-GGUF" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "one-Q8_0.gguf").symlink_to(embedded_model())
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    quick = ("--prompts", prompt, *QUICK, "-t", "1", "--repeats", "1", "--json")
    drafted = ("-md", "tinycode:0.5b", "--drafter", "draft-simple")
    for named in (("-m", "tinycode:0.5b"), ("-hf", "some/one-GGUF"), drafted):
        result = run(*quick, "--spec-type", "none", *named)
        assert result.exit_code == 0, result.output
    result = run(*quick, "-md", "tinycode:1b")
    assert_one_error(result, "--model-draft tinycode:1b: no such file, and no model", 2)


def test_json(run: Run, prompt: Path) -> None:
    specs = ("ngram-simple:size_n=3,size_m=9", "ngram-cache")
    drafters = [word for spec in ("none", *specs) for word in ("--drafter", spec)]
    result = run("--prompts", prompt, *drafters, *QUICK, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    report: dict[str, Any] = json.loads(result.stdout)
    assert set(report) == {"version", "model", "settings", "identical", "summary", "prompts"}
    assert report["settings"]["n_predict"] == 24
    assert report["settings"]["policy"] == "auto"
    assert report["identical"] is True
    assert [row["drafter"] for row in report["summary"]] == ["none", *specs]
    (entry,) = report["prompts"]
    assert entry["name"] == "push [1]"
    assert entry["text"].startswith("```python\ndef push(job):")
    plain, drafted, _ = entry["runs"]
    assert plain["ratios"] == [1.0, 1.0]
    assert plain["drafted"] == 0
    assert drafted["parameters"] == {"ngram-simple": {"size_n": 3, "size_m": 9}}
    assert drafted["identical"] is True
    assert drafted["first_difference"] is None
    assert 0 < drafted["accepted"] <= drafted["drafted"]
    assert drafted["mean_accepted_length"] > 1.2
    for row in entry["runs"]:
        rates = [(one["tokens"] - 1) / one["seconds"] for one in row["runs"]]
        assert row["tokens_per_second"] == pytest.approx(sum(rates) / 2, rel=1e-3)
        assert len(row["ratios"]) == 2


def test_the_table_of_several_prompts(
    run: Run, prompt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = tmp_path / "more.jsonl"
    lines.write_text('{"prompt": "def area(", "name": "area"}\n\n{"prompt": "class A:"}\n')
    monkeypatch.setenv("COLUMNS", "80")
    result = run("--prompts", prompt, "--prompts", lines, "--drafter", "ngram-mod",
                 "--repeats", "1", "-n", "4", "--raw", "--policy", "fixed")  # fmt: skip
    assert result.exit_code == 0, result.output
    shown = result.stdout.splitlines()
    assert max(map(len, shown)) <= 80
    firsts = [line.split("  ")[0].strip() for line in shown[3:]]
    assert [name for name in firsts if name in ("push [1]", "area", "more:3", "all")] == [
        "push [1]", "area", "more:3", "all",
    ]  # fmt: skip
    assert "3/3" in result.stdout


def test_a_folder_of_prompts_is_read_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "prompts"
    folder.mkdir()
    with pytest.raises(InputError, match="prompts holds no file"):
        load_tasks([folder])
    (folder / "b.txt").write_text("def b")
    (folder / "a.jsonl").write_text('{"prompt": "def a"}')
    (folder / ".hidden").write_text("def c")
    assert [task.name for task in load_tasks([folder])] == ["a:1", "b"]


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_ctrl_c_shows_the_whole_rounds(
    run: Run, prompt: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    runs = []
    once = Bench._run

    def interrupted(self: Bench, mode: Mode, request: Any, *prompt: Any) -> OneRun:
        runs.append(mode)
        if len(runs) == 7:  # two to warm up, two rounds, and the first of the third
            signal.raise_signal(signal.SIGINT)
        return once(self, mode, request, *prompt)

    monkeypatch.setattr(Bench, "_run", interrupted)
    line = ("--prompts", prompt, "--prompts", prompt, "--drafter", "suffix", "--repeats", "9")
    result = run(*line, "-n", "4", *more)
    assert result.exit_code == 130, result.output
    assert len(runs) == 7
    if more:
        (entry,) = json.loads(result.stdout)["prompts"]
        assert [len(one["runs"]) for one in entry["runs"]] == [2, 2]
    else:
        assert "push" in result.stdout


def test_ctrl_c_before_the_first_round_says_that_nothing_was_measured(
    run: Run, prompt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Bench, "warm_up", interrupted)
    result = run("--prompts", prompt, "-n", "4")
    assert result.exit_code == 130, result.output
    assert "nothing was measured" in result.stderr
    assert result.stdout == ""


def test_prompts_begin_with_one_mode_after_the_other(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    inner = Bench._run

    def watched(self: Bench, mode: Mode, request: Any, *prompt: Any) -> OneRun:
        order.append(mode.spec)
        return inner(self, mode, request, *prompt)

    monkeypatch.setattr(Bench, "_run", watched)
    lines = tmp_path / "three.jsonl"
    lines.write_text('{"prompt": "def area("}\n' * 3)
    drafters = ("--drafter", "ngram-mod", "--drafter", "suffix")
    for repeats, firsts in (("1", [0, 1, 2]), ("2", [0, 1, 2, 0, 1, 2])):
        order.clear()
        result = run("--prompts", lines, *drafters, "--repeats", repeats, "-n", "3", "--raw")
        assert result.exit_code == 0, result.output
        modes = order[:3]  # they warm up in their order
        assert modes == ["none", "ngram-mod", "suffix"]
        rounds = [order[at : at + 3] for at in range(3, len(order), 3)]
        assert rounds == [[*modes[first:], *modes[:first]] for first in firsts]


def test_texts_that_differ_are_told_and_no_error(
    run: Run, prompt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ngramspec.lab.e2e.bench import Bench as Real

    inner = Real._run

    def cheating(self: Any, mode: Mode, request: Any, *prompt: Any) -> OneRun:
        timed_run = inner(self, mode, request, *prompt)
        if mode.names:
            object.__setattr__(timed_run, "token_ids", (*timed_run.token_ids[:3], -1))
        return timed_run

    monkeypatch.setattr(Real, "_run", cheating)
    result = run("--prompts", prompt, *QUICK, "--drafter", "ngram-mod")
    assert result.exit_code == 0
    assert "no: 4" in result.stdout
    assert "--exact avoids that" in result.stdout


def test_a_draft_model_from_the_command_line(run: Run, prompt: Path) -> None:
    modes = ("--drafter", "draft-simple:policy=fixed", "--drafter", "suffix,draft-simple")
    result = run("--prompts", prompt, *QUICK, *modes, "-md", embedded_model(), "--json")
    assert result.exit_code == 0, result.output
    _plain, alone, both = json.loads(result.stdout)["summary"]
    assert alone["drafted"] > 0
    assert (alone["drafter"], both["drafter"]) == (modes[1], modes[3])
    replace = ("--spec-replace", "<|im_end|>", "</s>", "--json")
    assert (
        run("--prompts", prompt, *QUICK, *modes, "-md", embedded_model(), *replace).exit_code == 0
    )
    refused = run("--prompts", prompt, *QUICK, *modes)
    assert_one_error(refused, "needs a draft model", 2)


def test_a_draft_model_has_the_settings_of_serve(run: Run, prompt: Path) -> None:
    def report_of(*more: str) -> Any:
        mode = ("--drafter", "draft-simple:policy=fixed", "-md", embedded_model())
        result = run("--prompts", prompt, *QUICK, *mode, *more, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    own = ("--spec-draft-n-max", "3", "--spec-draft-n-min", "2", "--draft-p-min", "0")
    report = report_of(*own, "-ngld", "0", "-td", "1", "-ctkd", "f32", "-ctvd", "f32")
    draft_model = report["settings"]["draft_model"]
    assert (draft_model["n_max"], draft_model["n_min"], draft_model["p_min"]) == (3, 2, 0)
    assert report["settings"]["max_draft"] == 64
    for one in report["prompts"][0]["runs"][1]["runs"]:
        assert 0 < one["drafted"] <= 3 * one["steps"]
    bounded = report_of("--draft-max", "5")["settings"]
    assert (bounded["max_draft"], bounded["draft_model"]["n_max"]) == (5, 5)
    none = run("--prompts", prompt, *QUICK, "-md", "none", "--drafter", "suffix", "--json")
    assert json.loads(none.stdout)["settings"]["draft_model"] is None


def test_the_table_shows_what_a_draft_model_drafted(
    run: Run, prompt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    mode = ("--drafter", "draft-simple:policy=fixed", "-md", embedded_model())
    result = run("--prompts", prompt, "--prompts", prompt, *QUICK, *mode)
    assert result.exit_code == 0, result.output
    rows = [line for line in result.stdout.splitlines() if "draft-simple" in line]
    assert [bool(re.search(r" \d+/\d+ ", row)) for row in rows] == [True] * 3
    assert all(re.search(r" \d+\.\d+ +(yes|no: \d+)$", row.rstrip()) for row in rows[:2])
    assert re.search(r" \d/2$", rows[2].rstrip())


def test_the_models_own_heads(run: Run, prompt: Path, tmp_path: Path) -> None:
    mtp_models = pytest.importorskip("helpers.mtp_models", reason="needs gguf")
    mtp_models.glm4moe(tmp_path / "model.gguf")
    modes = ("--drafter", "draft-mtp:policy=fixed", "--drafter", "suffix,draft-mtp")
    line = ("-m", tmp_path / "model.gguf", "--prompts", prompt, *QUICK)
    result = run(*line, *modes, "--json")
    assert result.exit_code == 0, result.output
    plain, alone, both = json.loads(result.stdout)["summary"]
    assert alone["drafted"] >= alone["accepted"] > 0 == plain["drafted"]
    assert both["drafter"] == modes[3]
    refused = run(*line, *modes, "-md", embedded_model())
    assert_one_error(refused, "is not an assistant but a model of the family llama", 2)
    refused = run(*line, *modes, "--drafter", "draft-simple")
    assert_one_error(refused, "--drafter takes either draft-simple or draft-mtp", 2)


def test_heads_in_a_file_of_their_own(run: Run, prompt: Path, tmp_path: Path) -> None:
    mtp_models = pytest.importorskip("helpers.mtp_models", reason="needs gguf")
    mtp_models.gemma4(tmp_path / "model.gguf")
    mtp_models.gemma4_assistant(tmp_path / "heads.gguf")
    modes = ("--drafter", "draft-mtp:policy=fixed", "-md", tmp_path / "heads.gguf")
    result = run("-m", tmp_path / "model.gguf", "--prompts", prompt, *QUICK, *modes, "--json")
    assert result.exit_code == 0, result.output
    plain, alone = json.loads(result.stdout)["summary"]
    assert alone["drafted"] >= alone["accepted"] > 0 == plain["drafted"]


def test_all_drafters_are_the_default(run: Run, prompt: Path) -> None:
    report = json.loads(run("--prompts", prompt, "--repeats", "1", "-n", "3", "--json").stdout)
    assert [row["drafter"] for row in report["summary"]] == ["none", *DRAFTER_NAMES]


def test_wrong_command_lines(run: Run, prompt: Path, tmp_path: Path) -> None:
    line = ("--prompts", prompt)
    assert_one_error(run(*line, "--drafter", "ngram-mud"), "did you mean ngram-mod", 2)
    assert_one_error(run(*line, "--policy", "none"), "'none' is not one of", 2)
    assert_one_error(run(*line, "-n", "1"), "1 is not in the range", 2)
    assert_one_error(run("--prompts", tmp_path / "absent"), "does not exist", 2)
    assert_one_error(run("-m", "absent.gguf"), "absent.gguf: No such file", 2)
    for name, text, message, code in (
        ("a.txt", " \n", "a.txt: the prompt is empty", 2),
        ("a.jsonl", '{"text": 1}', "a.jsonl, line 1: expected a JSON object", 1),
        ("b.jsonl", '["x"]', "b.jsonl, line 1: expected a JSON object", 1),
        ("c.jsonl", '\n{"prompt": 1}', 'c.jsonl, line 2: "prompt" and "name" must be', 1),
        ("d.jsonl", "\n", "d.jsonl holds no prompt", 1),
        ("e.jsonl", '{"prompt": ""}', "e.jsonl, line 1: the prompt is empty", 2),
        ("f.txt", "word " * 3000, "tokens, the model's context is 2048", 2),
    ):
        path = tmp_path / name
        path.write_text(text)
        assert_one_error(run("--prompts", path), message, code)


def test_dice_say_how_often_drafts_are_right(run: Run, prompt: Path) -> None:
    """The same texts every time, by default with the policy and with drafts of fixed lengths."""
    arguments = ("--prompts", prompt, "--repeats", "2", "-n", "24", "--json")
    results = [run(*arguments, "--synthetic", "1,1,0.5", "--seed", "3") for _ in range(2)]
    reports = []
    for result in results:
        assert result.exit_code == 0, result.output
        reports.append(json.loads(result.stdout))
    assert reports[0]["settings"]["synthetic"] == [1.0, 1.0, 0.5]
    runs = [{one["drafter"]: one for one in report["prompts"][0]["runs"]} for report in reports]
    lengths = ["synthetic", *(f"synthetic:n={n}" for n in (1, 2, 4, 8))]
    assert list(runs[0]) == ["none", *lengths]
    for name in lengths[1:]:
        for key in ("drafted", "accepted"):
            assert runs[0][name][key] == runs[1][name][key]
    one, two = runs[0]["synthetic:n=1"], runs[0]["synthetic:n=2"]
    assert one["accepted"] == one["drafted"] > 0
    assert two["accepted"] == two["drafted"] > 0
    assert runs[0]["synthetic:n=8"]["acceptance"] < 0.5


def test_dice_decide_about_drafters_that_are_named(run: Run, prompt: Path) -> None:
    result = run("--prompts", prompt, *QUICK, "--drafter", "suffix", "--synthetic-length", "2")
    assert result.exit_code == 0, result.output
    assert "Dice said what is right" in result.output
    assert "synthetic" not in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--synthetic", "0.5,0.6"), "none larger than the one before"),
        (("--synthetic", "often"), "expected numbers"),
        (("--synthetic", "1.5"), "0..1"),
        (("--synthetic-length", "100"), "a mean length must be in 1..65"),
        (("--synthetic", "0.5", "--synthetic-length", "2"), "either"),
        (("--drafter", "synthetic"), "need rates"),
        (("--drafter", "synthetic:n=0", "--synthetic", "1"), "n=1 to 1024"),
        (("--drafter", "synthetic:m=2", "--synthetic", "1"), "n=1 to 1024"),
        (
            ("--drafter", "synthetic:n=5", "--synthetic", "1", "--max-draft", "4"),
            "synthetic:n=5: drafts have 4 tokens at most",
        ),
    ],
)
def test_rates_that_cannot_be_used(run: Run, arguments: tuple[str, ...], words: str) -> None:
    result = run(*QUICK, *arguments)
    assert result.exit_code in (1, 2)
    assert words in " ".join(result.output.split())
