"""llama.cpp's command lines for speculation, of today and before: each runs on a real model."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers.cli import succeed
from ngramspec.cli.serve import run as serve_run
from ngramspec.engine import Request
from ngramspec.llamacpp import saved_costs
from ngramspec.llamacpp.draft_model import DraftModelSettings
from ngramspec.llamacpp.placement import Placement
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.models import embedded_model
from ngramspec.runtime import DraftSettings

MODEL = str(embedded_model())
PROMPT = (
    "Repeat this text:\n\nThe table holds the names of the files, and the files hold the names."
)
SMALL = ("-md", MODEL)
LINES = {  # as in llama.cpp's documents and what was written after them; DRAFT is the draft model
    "simple": "--spec-type ngram-simple --draft-max 64",
    "simple, today": "--spec-type ngram-simple --spec-draft-n-max 64",
    "map": "--spec-type ngram-map-k --draft-max 64",
    "map, sizes": "--spec-type ngram-map-k4v --spec-ngram-size-n 8 --spec-ngram-size-m 8 "
    "--spec-ngram-min-hits 2 --draft-max 64",
    "map, today": "--spec-type ngram-map-k4v --spec-ngram-map-k4v-size-n 8 "
    "--spec-ngram-map-k4v-size-m 8 --spec-ngram-map-k4v-min-hits 2 --spec-draft-n-max 64",
    "mod": "--spec-type ngram-mod --spec-ngram-size-n 24 --draft-min 48 --draft-max 64",
    "mod, short": "--spec-type ngram-mod --spec-ngram-size-n 8 --draft-min 2 --draft-max 16",
    "mod, today": "--spec-type ngram-mod --spec-ngram-mod-n-match 24 --spec-ngram-mod-n-min 48 "
    "--spec-ngram-mod-n-max 64",
    "default": "--spec-default",
    "cache": "--spec-type ngram-cache --draft 8",
    "several": "--spec-type ngram-simple,ngram-mod --spec-ngram-size-n 6 --spec-ngram-size-m 12",
    "repeated": "--spec-type ngram-map-k --spec-type ngram-cache --draft-n-max 12 --draft-n-min 2",
    "none": "--spec-type none --draft-max 8",
    "none, with a model": "--spec-type none -md DRAFT --draft-max 4 --draft-p-min 0",
    "model": "-md DRAFT --draft-max 16 --draft-min 0 --draft-p-min 0.75",
    "model, long names": "--model-draft DRAFT --draft 8 --threads-draft 1 --ctx-size-draft 1024 "
    "--gpu-layers-draft 0 --device-draft none",
    "model, short names": "-md DRAFT --draft-n 8 --draft-n-min 1 -td 1 -tbd 1 -cd 1024 -ngld 99 "
    "-devd none -ctkd f16 -ctvd f16 -cmoed",
    "model, today": "--spec-draft-model DRAFT --spec-draft-n-max 16 --spec-draft-n-min 1 "
    "--spec-draft-p-min 0.5 --spec-draft-ngl all --spec-draft-threads 1 "
    "--spec-draft-threads-batch 1 --spec-draft-type-k f16 --spec-draft-type-v f16 "
    "--spec-draft-n-cpu-moe 4",
    "model alone": "--spec-type draft-simple -md DRAFT --draft-max 4 --draft-p-min 0 -ncmoed 2",
    "both": "-md DRAFT --spec-type draft-simple,ngram-mod --draft-min 2 --draft-max 16",
    "split": "-md DRAFT --draft 16 --p-split 0.1",
    "split, today": "-md DRAFT --spec-draft-p-split 0.1 --cache-type-k-draft f16",
    "replace": "-md DRAFT --spec-replace <s> <bos> --spec-replace </s> <eos>",
    "underscores": "--model_draft DRAFT --draft_max 16 --spec_type ngram-simple",
}


def arguments(line: str) -> list[str]:
    return [MODEL if word == "DRAFT" else word for word in shlex.split(line)]


@pytest.mark.parametrize("name", LINES)
def test_generate_takes_the_line(name: str) -> None:
    line = arguments(LINES[name])
    if name == "model alone":  # it never pays: it is as dear as the target
        line += ["--policy", "fixed"]
    result = succeed("generate", "-p", PROMPT, "-n", "24", "-t", "1", "--json", *line)
    stats = json.loads(result.stdout)["stats"]
    assert ("draft-simple" in stats) == ("DRAFT" in LINES[name])
    if name == "model alone":
        assert stats["draft-simple"]["num_accepted_tokens"] > 0


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Let serve run one request through its engine instead of listening; give what came of it."""
    seen: list[dict[str, Any]] = []

    def run(options: Any, drafts: DraftSettings) -> None:
        settings = serve_run.runtime_settings(options, drafts)
        with contextlib.closing(serve_run.open_served(options, settings)) as runtime:
            prompt = runtime.model.tokenize_prompt(PROMPT)
            (answer,) = runtime.engine.generate([Request(prompt_ids=prompt, max_tokens=24)])
            assert answer.error is None
            seen.append({"drafters": runtime.engine.source_stats(), "drafts": drafts})

    monkeypatch.setattr(serve_run, "run", run)
    return seen


@pytest.mark.parametrize("name", LINES)
def test_serve_takes_the_line(serving: list[dict[str, Any]], name: str) -> None:
    line = arguments(LINES[name])
    succeed("serve", "-m", MODEL, "-c", "2048", "-np", "2", "-t", "1", *line)
    assert ("draft-simple" in serving[0]["drafters"]) == ("DRAFT" in LINES[name])


def drafts_of(
    serving: list[dict[str, Any]], line: str, slots: int = 1, more: Sequence[str] = ()
) -> DraftSettings:
    options = ("-c", "1024", "-np", str(slots), "-t", "1")
    succeed("serve", "-m", MODEL, *options, *more, *arguments(line))
    drafts = serving.pop()["drafts"]
    assert isinstance(drafts, DraftSettings)
    return drafts


@pytest.mark.parametrize(
    ("line", "params", "longest", "shortest"),
    [
        (LINES["map, sizes"],
         {"ngram-map-k4v": {"size_n": 8, "size_m": 8, "min_hits": 2}}, 64, 0),
        (LINES["mod"], {"ngram-mod": {"n_match": 24, "n_min": 48, "n_max": 64}}, 64, 48),
        (LINES["several"], {"ngram-simple": {"size_n": 6, "size_m": 12},
                            "ngram-mod": {"n_match": 6}}, 64, 0),
        (LINES["simple, today"], {}, 64, 0),
        ("--draft-max 9 --draft-min 3", {}, 9, 3),
        ("--draft-max 9 --draft-min 9", {}, 9, 9),
        ("--spec-default --spec-type suffix,ngram-mod", {}, 64, 0),
        ("--spec-type ngram-mod --spec-ngram-size-n 9 --spec-ngram-mod-n-match 7 --draft-max 20 "
         "--spec-ngram-mod-n-max 30", {"ngram-mod": {"n_match": 7, "n_max": 30}}, 20, 0),
    ],
)  # fmt: skip
def test_general_sizes_are_those_of_the_named_drafters(
    serving: list[dict[str, Any]], line: str, params: Any, longest: int, shortest: int
) -> None:
    drafts = drafts_of(serving, line)
    assert drafts.params == params
    assert (drafts.max_draft, drafts.min_draft) == (longest, shortest)


def small_of(serving: list[dict[str, Any]], line: str, slots: int = 1) -> DraftModelSettings:
    settings = drafts_of(serving, line, slots, SMALL).second
    assert isinstance(settings, DraftModelSettings)
    return settings


def test_a_draft_model_has_its_own_defaults(serving: list[dict[str, Any]]) -> None:
    small = small_of(serving, "")
    assert small == DraftModelSettings(path=Path(MODEL))
    assert (small.n_max, small.n_min, small.p_min, small.context_size) == (16, 0, 0.75, 0)


def test_bounds_of_all_drafts_bound_the_draft_models(serving: list[dict[str, Any]]) -> None:
    for line, bounds in (
        ("--draft-max 8 --draft-min 2", (8, 2)),
        ("--draft-max 8 --spec-draft-n-max 5 --draft-min 6", (5, 5)),
        ("--draft-min 2 --spec-draft-n-min 1", (16, 1)),
    ):
        small = small_of(serving, line)
        assert (small.n_max, small.n_min) == bounds


def test_a_draft_model_runs_as_the_line_says(serving: list[dict[str, Any]]) -> None:
    line = "-td 2 -tbd 1 -cd 512 -ngld all -devd none -ctkd q8_0 -ctvd f16 -ncmoed 3"
    assert small_of(serving, line, slots=2) == DraftModelSettings(
        path=Path(MODEL), threads=2, threads_batch=1, context_size=256,
        placement=Placement(-1, devices=("none",), cpu_experts=3), type_k="q8_0", type_v="f16",
    )  # fmt: skip
    assert small_of(serving, "-cmoed -ncmoed 3").placement.cpu_experts == -1
    replace = small_of(serving, "--spec-replace <s> <bos> --spec-replace </s> x").replace
    for line in ("'<s> <bos>' --spec-replace '</s> x' -np 1", "<s> <bos> --spec-replace '</s> x'"):
        assert small_of(serving, f"--spec-replace {line}").replace == replace
    assert small_of(serving, "--spec-replace 'a b' c").replace == (("a b", "c"),)
    assert replace == (("<s>", "<bos>"), ("</s>", "x"))


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("--p-split 0.1", "--draft-p-split does nothing: drafts are not split"),
        ("--spec-replace a b", "--spec-replace does nothing: there is no draft model"),
        ("-md DRAFT --spec-replace a b", "--spec-replace does nothing: the draft model has the"),
        ("--spec-ngram-size-n 5", "--spec-ngram-size-n does nothing for suffix"),
        ("--spec-type none --spec-ngram-min-hits 2", "--spec-ngram-min-hits does nothing for none"),
        ("--spec-type ngram-mod --spec-ngram-size-m 9", "--spec-ngram-size-m does nothing for"),
    ],
)
def test_a_line_tells_about_what_does_nothing(line: str, note: str) -> None:
    result = succeed("generate", "-p", "x", "-n", "1", *arguments(line))
    assert len([text for text in result.stderr.splitlines() if note in text]) == 1


def test_the_environment_has_the_same_names(
    serving: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("SPEC_TYPE", "ngram-mod"), ("DRAFT_MAX", "20"), ("DRAFT_MIN", "2"),
        ("MODEL_DRAFT", MODEL), ("DRAFT_P_MIN", "0.5"), ("CTX_SIZE_DRAFT", "512"),
        ("SPEC_DRAFT_CACHE_TYPE_K", "f16"), ("SPEC_DRAFT_N_MAX", "12"),
    ):  # fmt: skip
        monkeypatch.setenv(f"LLAMA_ARG_{name}", value)
    result = succeed("serve", "-m", MODEL, "-c", "1024", "-np", "1", "-t", "1")
    drafts = serving.pop()["drafts"]
    small = drafts.second
    assert drafts.params == {"ngram-mod": {"n_max": 20, "n_min": 2}}
    assert (small.n_max, small.p_min, small.context_size) == (12, 0.5, 512)
    result = succeed("generate", "-p", PROMPT, "-n", "4", "-t", "1", "--json")
    assert {"ngram-mod", "draft-simple"} <= set(json.loads(result.stdout)["stats"])


def test_a_model_without_mtp_heads_is_refused(invoke: Any) -> None:
    result = invoke("generate", "-p", "x", "-n", "1", "--spec-type", "draft-mtp")
    assert result.exit_code == 1
    assert "has no MTP heads: its file has no layers for them" in result.stderr


def test_heads_in_a_file_of_their_own(invoke: Any, tmp_path: Path) -> None:
    mtp_models = pytest.importorskip("helpers.mtp_models", reason="needs gguf")
    model, heads = tmp_path / "model.gguf", tmp_path / "heads.gguf"
    mtp_models.gemma4(model)
    mtp_models.gemma4_assistant(heads)
    asked = ("generate", "-m", str(model), "-p", "abcdefgh", "-n", "30", "-t", "1", "--temp", "0")
    line = "--policy fixed --spec-type draft-mtp --spec-draft-n-max 2 -ngld 0 -cd 512 -td 1"
    command = (*asked, *line.split(), "-ctkd", "q8_0", "-md", str(heads), "--json")
    for exact in ((), ("--exact",)):
        result = succeed(*command, *exact)
        assert json.loads(result.stdout)["text"].startswith("ijklmnopqrstuvwxyzabc")
        assert json.loads(result.stdout)["stats"]["draft-mtp"]["num_accepted_tokens"] > 5
        idle = "--threads-draft, --ctx-size-draft, --cache-type-k-draft do nothing: an assistant"
        assert f"{idle} runs as the target, in its cache\n" in result.stderr
    result = invoke(*asked, "-md", str(heads))
    assert result.exit_code == 1
    assert "heads.gguf is an MTP assistant" in result.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", ""),
        ("-ctkd f16 -cd 0 --spec-draft-n-max 2", ""),
        (
            "-ngld 99",
            "--n-gpu-layers-draft does nothing: the model's own MTP heads run as the model does\n",
        ),
        (
            "-td 2 -cd 512 -ctvd q8_0 -ncmoed 1 -otd exps=CPU --p-split 0.1",
            "--draft-p-split does nothing: drafts are not split\n"
            "--threads-draft, --ctx-size-draft, --cache-type-v-draft, --n-cpu-moe-draft, "
            "--override-tensor-draft do nothing: the model's own MTP heads run as the model does\n",
        ),
    ],
)
def test_options_that_heads_of_the_model_have_not_are_told(
    tmp_path: Path, line: str, message: str
) -> None:
    mtp_models = pytest.importorskip("helpers.mtp_models", reason="needs gguf")
    mtp_models.glm4moe(tmp_path / "model.gguf")
    asked = ("generate", "-m", str(tmp_path / "model.gguf"), "-p", "abcd", "-n", "4", "-t", "1")
    result = succeed(*asked, "--json", "--spec-type", "draft-mtp", *line.split())
    lines = [line for line in result.stderr.splitlines(keepends=True) if " nothing: " in line]
    assert "".join(lines) == message


@pytest.mark.parametrize(
    "line",
    [
        "serve -c 512 -np 1 --spec-type suffix,draft-mtp --calibrate 30",
        "generate -p abcd -n 4 --spec-type suffix,draft-mtp --calibrate 30",
        "bench e2e --repeats 1 -n 4 --drafter suffix,draft-mtp",
    ],
)
@pytest.mark.usefixtures("serving")
def test_costs_are_measured_before_heads_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """Passes that heads follow take longer, and costs are kept for runs without heads."""
    mtp_models = pytest.importorskip("helpers.mtp_models", reason="needs gguf")
    mtp_models.glm4moe(tmp_path / "model.gguf")
    (tmp_path / "prompt.txt").write_text("abcd")
    events: list[str] = []
    follow = LlamaTarget.follow

    def noted(target: LlamaTarget, follower: Any, states_of: Any = None) -> None:
        events.append("rest" if follower is None else "follow")
        follow(target, follower, states_of)

    monkeypatch.setattr(LlamaTarget, "follow", noted)
    monkeypatch.setattr(saved_costs, "SECONDS", 30.0)  # for bench e2e, which has no --calibrate
    monkeypatch.setattr(saved_costs, "calibrate_within", lambda *_: events.append("measure"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    prompts = ["--prompts", str(tmp_path / "prompt.txt")] if line.startswith("bench") else []
    succeed(*line.split(), "-m", str(tmp_path / "model.gguf"), "-t", "1", *prompts)
    assert events[:2] == ["measure", "follow"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--spec-type suffix --spec-default", "--spec-default stands for --spec-type ngram-mod"),
        ("--spec-type draft-mtp --spec-default", "--spec-default stands for --spec-type ngram-mod"),
        ("--draft-max 8 --draft-min 16", "--draft-min 16 is above --draft-max 8: no draft"),
        ("--draft-min 65", "--draft-min 65 is above --draft-max 64: no draft would be sent"),
        ("--spec-type draft-simple", "--spec-type draft-simple needs --model-draft"),
        ("--spec-type 'suffix, draft-simple'", "--spec-type draft-simple needs --model-draft"),
        ("--spec-type draft-mtp -md DRAFT", "is not an assistant but a model of the family llama"),
        (
            "--spec-type draft-simple,draft-mtp",
            "--spec-type takes either draft-simple or draft-mtp",
        ),
        ("-md DRAFT --exact", "--exact works with n-gram drafters only"),
        ("--exact -fa off", "--exact needs flash attention: leave out --flash-attn off"),
        ("--exact -tb 2", "got 2 and 1: leave out --threads-batch"),
        ("--exact -ctk f32", "got f32 and f16: leave out --cache-type-k and --cache-type-v"),
        ("-md DRAFT -hfd a/b", "give either --model-draft or its name on Hugging Face"),
        ("-m DRAFT -hf a/b", "give either --model or its name on Hugging Face"),
        ("-hff x.gguf", "--hf-file needs --hf-repo"),
        ("-hf nobody", "a model must be named as USER/MODEL"),
        ("-hf nobody/nothing:Q8_0", "Get it with: hf download nobody/nothing --include '*Q8_0*"),
        ("-md DRAFT -devd CUDA7", "llama.cpp has no device 'CUDA7'; there is: none"),
        ("-md DRAFT --draft-max 2 --spec-draft-n-min 3", "0 <= n_min <= n_max"),
    ],
)
def test_contradictions_are_refused(invoke: Any, line: str, reason: str) -> None:
    result = invoke("generate", "-p", "x", "-n", "1", "-t", "1", *arguments(line))
    assert result.exit_code == 2, result.output
    assert reason in result.stderr


def test_a_downloaded_model_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "models--some--one-GGUF" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "one-Q8_0.gguf").symlink_to(MODEL)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for line in (("-hf", "some/one-GGUF"), ("-hf", "some/one-GGUF:q8_0", "-hfd", "some/one-GGUF")):
        result = succeed("generate", "-p", PROMPT, "-n", "8", "-t", "1", "--json", *line)
        answer = json.loads(result.stdout)
        assert answer["model"].endswith("one-Q8_0.gguf")
        assert ("draft-simple" in answer["stats"]) == ("-hfd" in line)
