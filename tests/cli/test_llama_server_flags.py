"""Every option of llama-server is known: it works, does nothing, or is refused with a reason."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest

from helpers.cli import succeed
from ngramspec.cli.generate import generate
from ngramspec.cli.llama_cpp import ALL_CLI_FLAGS, CLI_FLAGS, FLAGS, PRESETS
from ngramspec.cli.options import OFF, ON
from ngramspec.cli.serve import run as serve_run
from ngramspec.cli.serve import serve
from ngramspec.cli.serve.options import AUTO_SLOTS, ServeOptions
from ngramspec.cli.target import model_settings
from ngramspec.errors import InputError
from ngramspec.runtime import settle

DATA = Path(__file__).parent / "data" / "llama_server_flags.txt"
Row = tuple[list[str], int, str]


def read_rows() -> list[Row]:
    """Return names, number of values and variable of each option."""
    lines = [line for line in DATA.read_text("utf-8").splitlines() if not line.startswith("#")]
    parts = [(line + "\t").split("\t") for line in lines]
    return [(names.split(), int(values), variable) for names, values, variable, *_ in parts]


ROWS = read_rows()
SHOWS_AND_ENDS = ("-h", "--help", "--usage", "--version", "--list-devices")


def option_by_flag() -> dict[str, click.Option]:
    options = {}
    for param in serve.params:
        if isinstance(param, click.Option):
            options.update(dict.fromkeys((*param.opts, *param.secondary_opts), param))
    return options


@pytest.fixture
def served(no_variables: None, monkeypatch: pytest.MonkeyPatch) -> list[ServeOptions]:
    """Let serve hand its options to a list instead of listening."""
    seen: list[ServeOptions] = []
    monkeypatch.setattr(serve_run, "run", lambda options, *_: seen.append(options))
    return seen


def test_the_data_is_whole() -> None:
    assert len(ROWS) > 240
    assert (["-c", "--ctx-size"], 1, "LLAMA_ARG_CTX_SIZE") in ROWS
    assert (["--control-vector-layer-range"], 2, "") in ROWS


def test_every_option_is_known_with_its_number_of_values() -> None:
    options = option_by_flag()
    wrong = []
    for names, values, _ in ROWS:
        for name in names:
            if name in ("-h", "--help"):
                continue
            option = options.get(name)
            if option is None:
                wrong.append(f"{name} is not known")
            elif (0 if option.is_flag or option.count else option.nargs) != values:
                wrong.append(f"{name} takes {values} values")
    assert wrong == []


def test_every_variable_is_known() -> None:
    options = option_by_flag()
    quiet = {name for flag in FLAGS if flag.kind == "silent" for name in flag.names.split()}
    wrong = []
    for names, _, variable in ROWS:
        row_options = [options[name] for name in names if name not in quiet and name in options]
        envvars = [one.envvar or () for one in row_options]
        envs = {env for one in envvars for env in ([one] if isinstance(one, str) else one)}
        if variable and row_options and variable not in envs:
            wrong.append(f"{variable} of {names}")
    assert wrong == []


@pytest.mark.parametrize("one", [serve, generate], ids=["serve", "generate"])
def test_no_flag_has_two_homes(one: click.Command) -> None:
    flags = [
        flag
        for param in one.params
        if isinstance(param, click.Option) and param.name != "preset"
        for flag in (*param.opts, *param.secondary_opts)
    ]
    assert [flag for flag, count in Counter(flags).items() if count > 1] == []
    assert not set(PRESETS) & set(flags)


def words_for(values: int) -> list[str]:
    return ["something"] * values


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.names.split()[0])
def test_a_flag_of_the_table_does_what_its_kind_says(
    invoke: Any, served: list[ServeOptions], monkeypatch: pytest.MonkeyPatch, flag: Any
) -> None:
    plain = succeed("serve", "-t", "1")
    for name in flag.names.split():
        result = invoke("serve", "-t", "1", name, *words_for(flag.values))
        if flag.kind == "refused":
            assert result.exit_code == 2, result.output
            assert result.stderr.splitlines()[-1].endswith(flag.reason)
            continue
        assert result.exit_code == 0, result.output
        assert served[-1] == served[0]
        note = result.stderr.removeprefix(plain.stderr)
        assert note.endswith(f"{flag.reason}\n") if flag.kind == "note" else not note
    for word in flag.harmless:
        result = invoke("serve", "-t", "1", name, word)
        assert (result.exit_code, result.stderr) == (0, plain.stderr)
    if flag.env:
        monkeypatch.setenv(f"LLAMA_ARG_{flag.env}", "1")
        result = invoke("serve", "-t", "1")
        assert result.exit_code == (2 if flag.kind == "refused" else 0)
        assert flag.reason in " ".join(result.stderr.split()) or "1" in flag.harmless


def test_generate_knows_what_is_not_the_servers_alone(invoke: Any) -> None:
    line = ["generate", "-p", "x", "-n", "1", "--raw", "-t", "1"]
    taken, reasons = [], set()
    for flag in ALL_CLI_FLAGS:
        for name in flag.names.split():
            words = [name, *words_for(max(0, flag.values))]
            if flag.kind == "refused":
                result = invoke(*line, *words)
                assert result.exit_code == 2, result.output
                assert flag.reason in result.stderr
                continue
            taken += words
            reasons |= {flag.reason} if flag.kind == "note" else set()
    result = succeed(*line, *taken)  # at once, as each run loads a model
    assert reasons
    for reason in reasons:
        assert reason in result.stderr
    flags = {flag for param in generate.params for flag in (*param.opts, *param.secondary_opts)}
    for flag in CLI_FLAGS:
        assert set(flag.names.split()) <= flags


def test_hidden_flags_are_not_in_the_help(invoke: Any) -> None:
    text = invoke("serve", "--help-all").output
    listed = set(text.partition("Examples:")[0].replace(",", " ").split())
    for flag in FLAGS:
        assert not set(flag.names.split()) & listed, flag.names
    assert "--gpt-oss-20b-default" not in text
    assert invoke("serve", "--usage").output == text


def test_an_unknown_option_is_named_whole(invoke: Any) -> None:
    for name in ("-xyz", "--no-such-thing", "-hx"):
        result = invoke("serve", name, "1")
        assert result.exit_code == 2
        assert f"No such option '{name}'" in result.stderr


# In the words of llama.cpp: switches with variables, and what a line or a variable makes of them.
SWITCHES = {
    "mmap": ("LLAMA_ARG_MMAP", "LLAMA_ARG_NO_MMAP"),
    "kv_offload": ("LLAMA_ARG_KV_OFFLOAD", "LLAMA_ARG_NO_KV_OFFLOAD"),
    "kv_unified": ("LLAMA_ARG_KV_UNIFIED", "LLAMA_ARG_NO_KV_UNIFIED"),
    "cache_prompt": ("LLAMA_ARG_CACHE_PROMPT", "LLAMA_ARG_NO_CACHE_PROMPT"),
    "prefill_assistant": ("LLAMA_ARG_PREFILL_ASSISTANT", "LLAMA_ARG_NO_PREFILL_ASSISTANT"),
    "ui": ("LLAMA_ARG_UI", "LLAMA_ARG_NO_UI"),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_variables_switch_on_and_off(
    invoke: Any, served: list[ServeOptions], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    positive, negative = SWITCHES[name]
    for word, is_on in [(word, True) for word in ON] + [(word, False) for word in OFF]:
        monkeypatch.setenv(positive, word)
        assert invoke("serve").exit_code == 0
        assert getattr(served[-1], name) is is_on
    monkeypatch.setenv(positive, "1")
    monkeypatch.setenv(negative, "1")  # as in llama.cpp, whatever its value is
    assert invoke("serve").exit_code == 0
    assert getattr(served[-1], name) is False


@pytest.mark.parametrize("variable", ["LLAMA_ARG_HF_REPO", "LLAMA_ARG_MODEL_URL", "LLAMA_ARG_RPC"])
def test_a_variable_that_names_a_model_elsewhere_never_starts_the_embedded_one(
    invoke: Any, served: list[ServeOptions], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "nobody/nothing")
    result = invoke("serve")
    assert result.exit_code == 2
    assert served == []


def test_a_preset_names_a_model_and_how_it_is_served(
    invoke: Any, served: list[ServeOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ngramspec.models import embedded_model

    for preset, line in {
        "fim-qwen-1.5b": "Qwen2.5-Coder-1.5B-Q8_0-GGUF --include '*Q8_0*.gguf' '*q8_0*.gguf'",
        "gpt-oss-20b": "gpt-oss-20b-GGUF --include '*MXFP4*.gguf' '*mxfp4*.gguf'",
    }.items():
        result = invoke("serve", f"--{preset}-default")
        assert result.exit_code == 2
        assert f"hf download ggml-org/{line}" in " ".join(result.stderr.split())
    snapshot = tmp_path / "models--ggml-org--gpt-oss-20b-GGUF" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "gpt-oss-20b-mxfp4.gguf").symlink_to(embedded_model())
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert invoke("serve", "--gpt-oss-20b-default", "--port", "9000").exit_code == 0
    options = served[-1]
    assert options.model is not None
    assert options.model.name == "gpt-oss-20b-mxfp4.gguf"
    assert (options.port, options.parallel, options.ctx_size) == (9000, 2, 262144)
    assert (options.temperature, options.top_k, options.min_p) == (1.0, 0, 0.01)
    for model_words in (("-m", "x.gguf"), ("-hf", "a/b")):
        result = invoke("serve", "--gpt-oss-20b-default", *model_words)
        assert result.exit_code == 2
        assert "--gpt-oss-20b-default names a model" in result.stderr


def test_slots_are_auto_in_llama_servers_way(invoke: Any, served: list[ServeOptions]) -> None:
    lines: dict[str, tuple[int, bool]] = {
        "": (AUTO_SLOTS, True), "-np -1": (4, True), "-np auto": (4, True),
        "-np 4": (4, True), "-np 2 -kvu": (2, True), "-no-kvu": (4, False),
        "-np 4 -c 2048 --spec-type none": (4, False), "-c 2048": (4, True), "-np 4 -c 0": (4, True),
    }  # fmt: skip
    for line, expected in lines.items():
        assert invoke("serve", *line.split()).exit_code == 0
        assert (served[-1].num_slots, served[-1].kv_unified) == expected, line


def test_slots_of_a_given_size_share_a_cache_where_they_draft(
    invoke: Any, served: list[ServeOptions]
) -> None:
    assert invoke("serve", "-np", "4", "-c", "2048").exit_code == 0
    context = serve_run.served_context(served[-1])
    assert (context.kv_unified, context.context_size, context.cells) == (True, 512, 2048)


def test_slots_of_an_exact_setting_have_a_cache_each(
    invoke: Any, served: list[ServeOptions]
) -> None:
    lines: dict[tuple[str, ...], int] = {
        (): 0, ("-np", "4", "-c", "2048"): 512, ("-np", "2", "--kv-unified-per-slot", "300"): 300,
    }  # fmt: skip
    for line, each in lines.items():
        assert invoke("serve", "--exact", *line).exit_code == 0
        context = serve_run.served_context(served[-1])
        assert (context.kv_unified, context.context_size) == (False, each), line
    assert invoke("serve", "--exact", "-np", "2", "-kvu").exit_code == 0
    with pytest.raises(InputError, match="a cache for each slot: leave out --kv-unified"):
        settle(model_settings(served[-1]), serve_run.served_context(served[-1]), exact=True)
