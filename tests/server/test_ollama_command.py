"""`ngramspec serve --model NAME` and Modelfiles: from the store to the answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import openai
import pytest

from helpers.cli import assert_one_error, invoke
from helpers.command import Process
from helpers.ollama_stores import Store
from helpers.serving import ANSWER, CHAT, REPEAT
from ngramspec.cli.options import options_from
from ngramspec.cli.serve import serve
from ngramspec.cli.serve.ollama import take_recipe
from ngramspec.cli.serve.options import ServeOptions
from ngramspec.models import embedded_model

Start = Callable[..., Process]
TEMPLATE = (
    "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}"
    "<|im_start|>user\n{{ .Prompt }}<|im_end|>\n<|im_start|>assistant\n{{ .Response }}<|im_end|>\n"
)
MODELFILE = f"""\
FROM BASE
SYSTEM "Be brief."
TEMPLATE \"\"\"{TEMPLATE}\"\"\"
PARAMETER temperature 0
PARAMETER num_ctx 512
PARAMETER num_predict 64
PARAMETER stop "height"
PARAMETER num_thread 1
DRAFT ngram-cache
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with the embedded model as tinycode:latest."""
    store = Store(tmp_path / "models")
    params = {"temperature": 0, "num_predict": 64, "num_ctx": 1024, "top_k": 5}
    store.model(
        "registry.ollama.ai/library/tinycode/latest",
        model=embedded_model().read_bytes(),
        template=TEMPLATE,
        params=params,
    )
    return store


@pytest.fixture
def start(spawn: Start) -> Iterator[Start]:
    """Return a function that starts the command, which must end well."""
    processes: list[Process] = []

    def start(*arguments: str, **environment: str) -> Process:
        processes.append(spawn(*arguments, **environment))
        return processes[-1]

    yield start
    for process in processes:
        assert process.end() == 0


def test_a_model_of_the_store_is_served_by_its_name(start: Start, store: Any) -> None:
    arguments = ("--model", "tinycode", "-np", "2", "-t", "1")
    server = start(*arguments, OLLAMA_MODELS=str(store.root))
    url = server.url()
    with ollama.Client(url) as client:
        assert client.list().models[0].model == "tinycode:latest"
        assert client.list().models[0].details.parameter_size == "8.0B"  # as the store says
        assert client.chat("tinycode", CHAT).message.content == ANSWER
        assert client.generate("tinycode:latest", REPEAT).response == ANSWER
        shown = client.show("tinycode")
        assert shown.template == TEMPLATE
        assert "top_k" in shown.parameters
        assert client.ps().models[0].context_length == 1024
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as other:
            assert other.models.list().data[0].id == "tinycode"
            answer = other.chat.completions.create(model="tinycode", messages=CHAT)
        assert answer.choices[0].message.content == ANSWER
    assert "model tinycode, 2 slots, 1024 tokens of context each" in server.text


def test_a_modelfile_is_served(start: Start, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").symlink_to(embedded_model())
    path = tmp_path / "Modelfile"
    path.write_text(MODELFILE.replace("BASE", "tiny.gguf"))
    server = start("--modelfile", str(path), "--alias", "mine")
    with ollama.Client(server.url()) as client:
        answer = client.chat("mine", CHAT)
        assert answer.message.content == ANSWER.split("height")[0]
        assert answer.done_reason == "stop"
        assert "\nSYSTEM Be brief.\n" in client.show("mine").modelfile
        assert client.ps().models[0].context_length == 512
    with openai.OpenAI(base_url=f"{server.url()}/v1", api_key="none", max_retries=0) as other:
        theirs = other.chat.completions.create(model="mine", messages=CHAT)
    assert theirs.choices[0].message.content == answer.message.content
    assert theirs.usage.prompt_tokens == answer.prompt_eval_count  # one template, one system
    assert "drafters ngram-cache" in server.text


def options_of(*arguments: str) -> ServeOptions:
    """Return the options after a recipe was taken."""
    with serve.make_context("serve", list(arguments), resilient_parsing=True) as context:
        options = options_from(ServeOptions, context.params)
        take_recipe(options)
    return options


def test_parameters_become_options(tmp_path: Path) -> None:
    path = tmp_path / "x.modelfile"
    parameters = {
        "num_ctx": 100, "num_batch": 64, "num_gpu": 3, "num_thread": 2, "num_predict": -2,
        "top_k": -1, "top_p": 0.5, "seed": 4, "repeat_penalty": 1.2, "use_mmap": "false",
        "draft_num_predict": 7, "num_keep": 3, "draft-max": 9, "draft_min": 2, "draft_p_min": 0.5,
        "ctx-size-draft": 50,
    }  # fmt: skip
    lines = [f"PARAMETER {name} {value}\n" for name, value in parameters.items()]
    path.write_text(f"FROM {embedded_model()}\nDRAFT {embedded_model()}\n{''.join(lines)}")
    options = options_of("--model", str(path), "-np", "3", "--top-p", "0.7")
    expected = {
        "model": embedded_model(), "ctx_size": 300, "kv_unified_per_slot": 100,
        "batch_size": 64, "n_gpu_layers": "3", "threads": 2,
        "predict": -1, "top_k": 0, "seed": 4, "repeat_penalty": 1.2, "mmap": False,
        "spec_draft_n_max": 7, "model_draft": embedded_model(),
        "draft_max": 9, "draft_min": 2, "draft_p_min": 0.5, "ctx_size_draft": 150,
        "top_p": 0.7,  # the command line is stronger
    }  # fmt: skip
    assert {name: getattr(options, name) for name in expected} == expected


def test_what_is_given_is_stronger_than_the_modelfile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, config = tmp_path / "Modelfile", tmp_path / "server.yaml"
    path.write_text(MODELFILE.replace("BASE", str(embedded_model())))
    config.write_text("temp: 0.5\nsystem-prompt: other\n")
    monkeypatch.setenv("LLAMA_ARG_SPEC_TYPE", "ngram-mod")
    options = options_of("--modelfile", str(path), "-c", "64", "-r", "x", "--config", str(config))
    assert options.ctx_size == 64
    assert options.kv_unified_per_slot is None
    assert options.reverse_prompt == ("x",)
    assert options.temperature == 0.5
    assert options.system_prompt == "other"
    assert options.spec_type == ("ngram-mod",)
    assert options.threads == 1


def drafts_of(folder: Path, lines: str, *arguments: str) -> tuple[str, Any, Any]:
    """Return drafters, file and name of the draft model after DRAFT and PARAMETER lines."""
    path = folder / "Modelfile"
    path.write_text(f"FROM {embedded_model()}\n{lines}")
    options = options_of("--modelfile", str(path), *arguments)
    drafts = options.draft_settings(options.num_slots, options.exact)
    small: Any = drafts.second
    return ",".join(drafts.drafter or ()), small and small.path, small and small.name


def test_a_pulled_model_drafts(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(store.root))
    [blob] = {*(store.root / "blobs").iterdir()} & {options_of("--model", "tinycode").model}
    small = (blob, "tinycode")
    assert drafts_of(tmp_path, "DRAFT tinycode:latest") == ("suffix", *small)
    for lines in ("DRAFT tinycode\nDRAFT ngram-mod", "DRAFT tinycode,ngram-mod"):
        assert drafts_of(tmp_path, lines) == ("ngram-mod", *small)
    assert drafts_of(tmp_path, "DRAFT none,tinycode") == ("", *small)
    assert drafts_of(tmp_path, "DRAFT tinycode\nPARAMETER draft_num_predict 0")[1] is None
    # What the command line gives is stronger.
    assert drafts_of(tmp_path, "DRAFT ngram-mod", "-md", "tinycode") == ("ngram-mod", *small)
    assert drafts_of(tmp_path, "DRAFT tinycode", "-md", "none") == ("suffix", None, None)
    assert drafts_of(tmp_path, "DRAFT tinycode", "--exact") == ("suffix", None, None)
    assert "DRAFT: --exact works with n-gram drafters only" in capsys.readouterr().err


def test_a_served_pulled_model_tells_of_its_draft_model(
    start: Start, tmp_path: Path, store: Any
) -> None:
    path = tmp_path / "Modelfile"
    path.write_text("FROM tinycode\nDRAFT tinycode\nDRAFT ngram-mod\nPARAMETER draft_max 5\n")
    arguments = ("--modelfile", str(path), "-np", "1", "-t", "1", "-c", "4096")
    server = start(*arguments, OLLAMA_MODELS=str(store.root))
    url = server.url()
    shown = httpx.post(f"{url}/api/show", json={"model": "tinycode"}).json()
    assert httpx.get(f"{url}/props").json()["speculative"] == shown["speculative"]
    assert shown["speculative"]["draft_model"]["name"] == "tinycode"
    assert shown["speculative"]["n_max"] == 5
    assert "\nDRAFT ngram-mod\nDRAFT tinycode\n" in shown["modelfile"]
    with ollama.Client(url) as client:
        assert client.chat("tinycode", CHAT).message.content == ANSWER
    drafts = (
        r"drafters ngram-mod \(16.0 MiB\), "
        r"then draft model tinycode of up to \d+ \((\S+) MiB\), up to 5 tokens"
    )
    size = re.search(drafts, server.text)
    assert size is not None
    assert float(size[1]) > 5.6 + 6  # weights, and a cache of 3 KiB per token
    trained = "a slot has 4096 tokens of context, but the model was trained with 2048"
    assert server.text.count(trained) == 1


def test_a_draft_model_of_the_store_that_cannot_be_used_is_left_out(
    start: Start, tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(store.root))
    stored = "registry.ollama.ai/library/odd/latest"
    store.model(stored, model=embedded_model().read_bytes(), draft=b"GGUF of another kind")
    server = start("--model", "odd", "-np", "1", "-t", "1", OLLAMA_MODELS=str(store.root))
    note = httpx.get(f"{server.url()}/props").json()["speculative"]["notes"][0]
    assert note.startswith("the draft model that came with odd:latest is not used: ")
    assert f"policy auto; {note}\n" in server.text
    path = tmp_path / "Modelfile"
    path.write_text(f"FROM odd\nDRAFT {tmp_path / 'none.gguf'}\n")
    result = invoke("serve", "--modelfile", str(path))  # one that was asked for must work
    assert result.exit_code != 0
    assert "none.gguf" in result.output


def test_an_adapter_changes_the_answer(start: Start, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    from helpers.lora_files import write_lora

    lora = write_lora(tmp_path / "a, b.gguf")  # a name that would be two in a list
    path = tmp_path / "Modelfile"
    path.write_text(f"FROM {embedded_model()}\nADAPTER a, b.gguf\nPARAMETER temperature 0\n")
    url = start("--modelfile", str(path), "-np", "1", "-t", "1").url()
    (loaded,) = httpx.get(f"{url}/lora-adapters").json()
    assert (loaded["path"], loaded["scale"]) == (str(lora), 1.0)
    with ollama.Client(url) as client:
        name = client.list().models[0].model
        assert client.chat(name, CHAT, options={"num_predict": 20}).message.content != ANSWER
        assert f"\nADAPTER {lora}\n" in client.show(name).modelfile


def test_files_are_files_and_names_are_names(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(store.root))
    options = options_of("--model", "tinycode:latest")
    assert options.model is not None
    assert options.model.parent == store.root / "blobs"
    assert options.alias == ["tinycode", "tinycode:latest"]
    for path in (str(embedded_model()), "none.gguf", "/none"):
        options = options_of("--model", path)
        assert options.model == Path(path)
        assert options.recipe.gguf is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM {base}\nADAPTER x.gguf", "ADAPTER x.gguf: no such file"),
        ("FROM {base}\nPARAMETER temprature 1", "did you mean temperature"),
        ("FROM {base}\nDRAFT ngram-mud", "did you mean ngram-mod"),
        ("FROM {base}\nDRAFT qwen2:0.5b", "no such file, and no model 'qwen2:0.5b'"),
        ("FROM {base}\nDRAFT {base}\nDRAFT {base}", "DRAFT: there can be one draft model"),
        ("FROM {base}\nPARAMETER draft_p_min 2", "draft_p_min: expected a number from 0 to 1"),
        ("FROM {base}\nTEMPLATE {{{{ .Prompt", "TEMPLATE: template, line 1"),
        ("FROM .", "is a folder"),
        ("FROM nothing", "FROM nothing: no such file, and no model 'nothing:latest'"),
        ("SYSTEM x", "expected a FROM line"),
    ],
)
def test_wrong_modelfiles_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "none"))
    path = tmp_path / "Modelfile"
    path.write_text(text.format(base=embedded_model()))
    result = invoke("serve", "--modelfile", str(path))
    assert result.exit_code in (1, 2)
    assert_one_error(result, message, result.exit_code)


def test_wrong_names_are_told_in_one_line(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(store.root))
    wrong = invoke("serve", "--model", "tinycod")
    assert_one_error(wrong, "tinycod: no such file, and no model", 2)
    assert "did you mean tinycode:latest?" in wrong.stderr
    assert_one_error(
        invoke("serve", "--model", "tinycode", "-md", "tinycod"),
        "--model-draft tinycod: no such file, and no model", 2,
    )  # fmt: skip
    both = invoke("serve", "--model", "tinycode", "--modelfile", "x")
    assert_one_error(both, "either --model or --modelfile", 2)
