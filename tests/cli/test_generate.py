"""generate on the embedded model: prompts from everywhere, streams, figures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from helpers.cli import assert_one_error, succeed
from helpers.ollama_stores import tinycode
from ngramspec.cli.output import decode_pieces, marked_text, styled
from ngramspec.drafting.names import DRAFTER_NAMES, POLICY_NAMES
from ngramspec.errors import BackendError

PROMPT = (
    "Repeat this text:\n\nThe table holds the names of the files, and the files hold the names."
)
SHORT = ("generate", "-n", "24", "--exact", "-t", "1")


def run_json(*arguments: str, stdin: str | None = None) -> dict[str, Any]:
    result = succeed(*SHORT, "--json", *arguments, stdin=stdin)
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_models_by_their_names_in_ollamas_store(
    invoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tinycode(tmp_path / "models")
    monkeypatch.setenv("OLLAMA_MODELS", str(store.root))
    arguments = ("generate", "-n", "8", "--json", "-p", PROMPT, "-md")
    answer = json.loads(invoke(*arguments, "tinycode:0.5b").stdout)
    assert answer["speculative"]["draft_model"]["name"] == "tinycode:0.5b"
    assert json.loads(invoke(*arguments, "none").stdout)["speculative"]["draft_model"] is None
    wrong = invoke(*arguments, "tinycode:1b")
    assert wrong.exit_code == 2
    assert "--model-draft tinycode:1b: no such file, and no model" in wrong.output
    assert "did you mean tinycode:0.5b?" in wrong.output
    named = invoke(*arguments[:-1], "-m", "tinycode:0.5b", "-t", "1")
    blob = store.root / "blobs"
    assert Path(json.loads(named.stdout)["model"]).parent == blob
    wrong = invoke(*arguments[:-1], "-m", "tinycode:1b")
    assert_one_error(wrong, "--model tinycode:1b: no such file, and no model", 2)


def test_json_shape() -> None:
    answer = run_json("-p", PROMPT, "-s", "7", "--policy", "fixed")
    assert answer["model"].endswith(".gguf")
    assert answer["seed"] == 7
    assert len(answer["token_ids"]) == len(answer["accepted"]) <= 24
    assert sum(answer["accepted"]) == answer["num_accepted"] > 0
    assert answer["finish_reason"] in ("stop", "length")
    assert list(answer["stats"]) == ["suffix"]
    assert answer["speculative"]["active"] is True
    assert [one["name"] for one in answer["speculative"]["drafters"]] == ["suffix"]
    assert answer["stats"]["suffix"]["num_drafts"] > 0
    for key in ("tokens_per_second", "seconds", "prompt_seconds", "draft_seconds"):
        assert answer[key] > 0


def test_prompt_by_argument_file_and_stdin_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT, "utf-8")
    texts = {
        run_json("-p", PROMPT)["text"],
        run_json("-f", str(file))["text"],
        run_json("-f", "-", stdin=PROMPT)["text"],
        run_json("-p", "-", stdin=PROMPT)["text"],
    }
    assert len(texts) == 1
    assert "table" in texts.pop()


def test_text_goes_to_stdout_and_figures_to_stderr(spawn: Any) -> None:
    less = ("-b", "4", "-ub", "4")  # is tested so
    done = spawn(*SHORT, *less, "-f", "-", stdin=PROMPT)
    assert done.returncode == 0
    assert done.stdout == run_json("-p", PROMPT)["text"] + "\n"
    first, looking, *rest = done.stderr.splitlines()
    lines = [line for line in rest if not line.startswith("drafters ")]
    assert first.startswith("no --model given: using the embedded model ")
    assert looking == "looking for an exact setting ..."
    assert re.match(r"\d+ tokens \((stop|length)\), [\d.]+ tokens/s; \d+ prompt tokens", lines[0])
    assert re.match(r"draft acceptance = [\d.]+% \(\d+ accepted / \d+ drafted\), mean", lines[1])
    (source,) = lines[2:]
    assert re.fullmatch(
        r"suffix: \d+ of \d+ drafted tokens accepted, in \d+ drafts that took [\d.]+ ms to make",
        source,
    )


def test_verbose_has_llama_servers_statistics_line(invoke: Any) -> None:
    for name in ("-v", "--verbose", "--log-verbose"):
        line = ("generate", "-p", PROMPT, "-n", "8", "-t", "1", name)
        *_, source = invoke(*line).stderr.splitlines()
        assert source.startswith("statistics           suffix: #calls(b,g,a) =    1"), source


def test_notes_on_drafts_are_told_in_words_too(invoke: Any) -> None:
    line = ("generate", "-p", "x", "-n", "2", "-t", "1", "-b", "8", "--policy", "fixed")
    with_json = invoke(*line, "--json")
    assert json.loads(with_json.stdout)["speculative"]["notes"] == ["a batch holds 8 tokens"]
    assert "a batch holds" not in with_json.stderr  # it stands in the JSON
    lines = [one for one in invoke(*line).stderr.splitlines() if one.startswith("drafters ")]
    assert len(lines) == 1
    assert lines[0].startswith("drafters suffix (")
    assert lines[0].endswith(", up to 7 tokens by policy fixed; a batch holds 8 tokens")
    assert "drafters " not in invoke(*line, "--spec-type", "none").stderr


def test_exact_fails_where_no_setting_is_exact(
    invoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_none(*_: Any) -> None:
        raise BackendError("no setting is exact for this model")

    monkeypatch.setattr("ngramspec.llamacpp.exact.find_exact", find_none)
    assert_one_error(invoke(*SHORT, "-p", PROMPT), "no setting is exact for this model", 1)


def test_exact_takes_threads_and_another_type_of_cache(invoke: Any) -> None:
    cache = ("-ctk", "q8_0", "-ctv", "q8_0", "-b", "4", "-ub", "4")  # so less is tested
    answer, plain = (
        run_json("-p", PROMPT, *cache, *drafts) for drafts in ((), ("--spec-type", "none"))
    )
    assert answer["drafted"] > 0
    assert answer["token_ids"] == plain["token_ids"]
    mixed = invoke(*SHORT, "-p", PROMPT, "-ctk", "f32")
    assert_one_error(mixed, "the same type for cached keys and values, got f32 and f16", 2)


def test_accepted_tokens_are_green_on_a_terminal(spawn: Any) -> None:
    command = ("generate", "-n", "24", "-t", "1", "--policy", "fixed", "-p", PROMPT)
    done = spawn(*command, FORCE_COLOR="1", TERM="xterm-256color")
    assert "\x1b[32m" in done.stdout
    plain = spawn(*command, NO_COLOR="1", FORCE_COLOR="1", TERM="xterm-256color")
    assert "\x1b" not in plain.stdout
    assert re.sub(r"\x1b\[\d*m", "", done.stdout) == plain.stdout


def test_no_pass_yields_less_than_a_token() -> None:
    answer = run_json("-p", PROMPT, "--spec-type", "none", "-n", "-1", "-c", "200")
    assert answer["mean_accepted_length"] == 1.0  # the pass that chose the end token, too


def test_texts_are_equal_whatever_drafts() -> None:
    specs = ("none", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-cache")
    short = ("--spec-ngram-simple-size-n", "3", "--policy", "fixed")
    texts = {
        spec: run_json(
            "-p", PROMPT, "--spec-type", spec, *(short if spec == "ngram-simple" else ())
        )
        for spec in specs
    }
    assert len({answer["text"] for answer in texts.values()}) == 1
    assert texts["none"]["stats"] == {}
    assert texts["ngram-simple"]["num_accepted"] > 0


def test_sampled_texts_are_equal_with_drafts() -> None:
    sampling = ("--temp", "0.9", "-s", "3", "--repeat-penalty", "1.1")
    drafted, plain = (
        run_json("-p", PROMPT, *sampling, *drafts) for drafts in ((), ("--spec-type", "none"))
    )
    assert drafted["token_ids"] == plain["token_ids"]
    assert plain["drafted"] == 0


def test_drafters_are_tried_in_llama_cpps_order() -> None:
    chain = ("--spec-type", "ngram-cache", "--spec_type", "ngram-mod")
    answer = run_json("-p", PROMPT, *chain)
    assert list(answer["stats"]) == ["ngram-mod", "ngram-cache"]


def test_max_draft_cuts_every_draft() -> None:
    answer = run_json("-p", PROMPT, "--max-draft", "1", "--policy", "fixed")
    assert 0 < answer["drafted"] == answer["drafts"]


def test_seeds_decide() -> None:
    hot = ("-p", PROMPT, "--temp", "5", "--top-k", "0", "--top-p", "1", "--min-p", "0")
    first = run_json(*hot, "-s", "1")["token_ids"]
    assert run_json(*hot, "-s", "1")["token_ids"] == first
    assert run_json(*hot, "-s", "2")["token_ids"] != first


def test_grammar_is_obeyed(tmp_path: Path) -> None:
    answer = run_json("-p", PROMPT, "--grammar", "root ::= [0-9]+")
    assert answer["text"].isdigit()
    file = tmp_path / "letters.gbnf"
    file.write_text("root ::= [a-z]+")
    answer = run_json("-p", PROMPT, "--grammar-file", str(file))
    assert re.fullmatch("[a-z]+", answer["text"])


def test_a_json_schema_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    file.write_text('{"enum": ["left", "right"]}')
    assert run_json("-p", PROMPT, "-j", '{"const": 12}')["text"] == "12"
    assert run_json("-p", PROMPT, "-jf", str(file))["text"] in ('"left"', '"right"')


def test_chat_is_the_default_and_raw_completes() -> None:
    chat = run_json("-p", PROMPT)
    raw = run_json("-p", PROMPT, "--raw")
    with_system = run_json("-p", PROMPT, "-sys", "You are a helpful assistant.")
    assert raw["prompt_tokens"] < chat["prompt_tokens"] < with_system["prompt_tokens"]
    assert run_json("-p", PROMPT, "--chat")["text"] == chat["text"]


def test_dynamic_lookup_cache_grows(tmp_path: Path) -> None:
    cache = tmp_path / "learned.bin"
    arguments = ("-p", PROMPT, "--spec-type", "ngram-cache", "-lcd", str(cache))
    first = run_json(*arguments)
    size = cache.stat().st_size
    second = run_json(*arguments)
    assert size > 100
    assert second["text"] == first["text"]
    third = run_json("-p", PROMPT, "-lcs", str(cache))
    assert third["text"] == first["text"]


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_policy_has_its_name(policy: str) -> None:
    answer = run_json("-p", PROMPT, "--policy", policy)
    assert answer["speculative"]["policy"] == policy


@pytest.mark.parametrize("flag", ["--pool", "--pool-file"])
def test_a_pool_is_kept_in_a_file(tmp_path: Path, flag: str) -> None:
    pool = tmp_path / "pool.ngp"
    answer = run_json("-p", PROMPT, "--spec-type", "ngram-mod", flag, str(pool))
    assert list(answer["stats"]) == ["ngram-mod"]
    assert pool.stat().st_size > 0


def test_model_file_is_named_without_a_note() -> None:
    from ngramspec import embedded_model

    result = succeed(*SHORT, "-p", PROMPT, "--model", str(embedded_model()))
    assert "embedded" not in result.stderr


def test_characters_of_several_tokens_are_whole() -> None:
    ids = list("a é\n✓b".encode())
    pieces = decode_pieces(lambda token: bytes([token]), ids, [i % 2 == 0 for i in ids])
    assert "".join(text for text, _ in pieces) == "a é\n✓b"
    cut = decode_pieces(lambda token: bytes([token]), [*b"ok", 0xE2], [True] * 3)
    assert "".join(text for text, _ in cut) == "ok\N{REPLACEMENT CHARACTER}"
    assert list(styled([("x", True), ("y", False)])) == [("x", "green"), ("y", "bold")]
    assert marked_text([("x\n\ny", True), ("z", False)]) == "«x»\n\n«y»z"


@pytest.mark.parametrize("spec", [*DRAFTER_NAMES, "ngram-mod,ngram-cache"])
def test_figures_and_statistics_count_the_same_drafts(invoke: Any, spec: str) -> None:
    code = "".join(f"    total_{name} = width * height\n" for name in ("one", "two", "three"))
    prompt = f"Repeat this code:\n\n```python\ndef area(width, height):\n{code * 2}```"
    # A fixed length: whether a draft pays must not hang on how busy the machine is.
    command = ("generate", "-p", prompt, "-n", "90", "--spec-type", spec)
    command += ("--temp", "0", "--policy", "fixed")
    result = succeed(*command, "-v")
    (figures,) = re.findall(r"\((\d+) accepted / (\d+) drafted\)", result.stderr)
    drafted = sum(map(int, re.findall(r"#gen tokens = +(\d+)", result.stderr)))
    accepted = sum(map(int, re.findall(r"#acc tokens = +(\d+)", result.stderr)))
    assert (str(accepted), str(drafted)) == figures
    assert accepted > 0
    answer = json.loads(invoke(*command, "--json").stdout)
    sources = answer["stats"].values()
    assert answer["drafted"] == sum(one["num_draft_tokens"] for one in sources)
    assert answer["num_accepted"] == sum(one["num_accepted_tokens"] for one in sources)
    assert sum(answer["accepted"]) in (answer["num_accepted"], answer["num_accepted"] - 1)


def test_an_answer_of_one_token_has_no_speed(invoke: Any) -> None:
    lines = invoke(*SHORT, "-p", PROMPT, "-n", "1").stderr
    assert "1 tokens (length)" in lines
    assert "mean accepted length" not in lines
