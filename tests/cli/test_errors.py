"""Every documented error: one line that says what to do, the right exit code, no traceback."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.cli import assert_one_error, cases
from ngramspec.cli.generate import generate
from ngramspec.cli.serve import serve
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.models import embedded_model
from ngramspec.text.tokenizers import llama_library

pytestmark = pytest.mark.usefixtures("empty_folder")
WRONG = cases("""
-> give the prompt with -p TEXT, -f FILE, or -f - for stdin
-p x -f y -> give the prompt with
-p ' ' -> the prompt is empty
-p x -sys y -sysf z -> give either --system or --system-prompt-file
-f absent.txt -> absent.txt: No such file
-p x -m absent.gguf -> absent.gguf: No such file
-p x --spec-type ngram-mud -> did you mean ngram-mod
-p x --spec-type ngram-mod,ngram-mod -> named once
-p x --spec-type none --spec-type suffix -> --spec-type none stands alone, got none,suffix
-p x --spec-type ngram-cache --spec-ngram-mod-n-max 4 ->
    --spec-ngram-mod-n-max requires ngram-mod, but --spec-type is ngram-cache
-p x --spec-type none -lcs a.bin ->
    --lookup-cache-static requires ngram-cache, but --spec-type is none
-p x --spec-type ngram-mod --spec-ngram-mod-n-max 99999 ->
    n_max must be an integer in 1..4096, got 99999
-p x --spec-type ngram-cache --spec-ngram-cache-lax-min-sample 1,b ->
    expected comma-separated integers, got '1,b'
-p x --spec-type ngram-cache --spec-ngram-cache-lax-min-sample 1,2 -> must hold 4 integers
-p x -lcs absent.bin -> absent.bin: No such file
-p x -lcd no/x.bin -> no: No such folder
-p x --grammar a --grammar-file b -> either --grammar or
-p x --grammar-file absent.gbnf -> absent.gbnf: No such file
-p x --grammar 'root ::= bar' -> the grammar lacks the rule 'bar'
-p x --grammar 'a ::= "b"' -> no rule named "root"
-p x --drafter suffix -> here it is --spec-type
-p x --spec-type draft-mtpp -> did you mean draft-mtp or
--port 1 -> '--port': it is an option of serve.
x.gguf -> the model is given with --model
-p x -n -3 -> Invalid value for '-n' / '--max-tokens'
""")


@pytest.mark.parametrize(("arguments", "message", "code"), WRONG)
def test_wrong_command_line(invoke: Any, arguments: list[str], message: str, code: int) -> None:
    assert_one_error(invoke("generate", *arguments), message, code)


def test_file_that_is_no_gguf(invoke: Any) -> None:
    Path("text.gguf").write_text("hello")
    result = invoke("generate", "-p", "x", "-m", "text.gguf")
    assert_one_error(result, "text.gguf is not a GGUF file: it starts with b'hell'", 1)


def test_gguf_that_is_damaged(invoke: Any) -> None:
    Path("cut.gguf").write_bytes(b"GGUF" + bytes(60))
    result = invoke("generate", "-p", "x", "-m", "cut.gguf")
    assert_one_error(result, "cut.gguf: the file is big-endian", 1)


def test_folder_as_model(invoke: Any) -> None:
    assert_one_error(invoke("generate", "-p", "x", "-m", "."), ". is a folder, not a GGUF", 1)


def test_lookup_cache_that_is_none(invoke: Any) -> None:
    Path("odd.bin").write_bytes(b"123")
    result = invoke("generate", "-p", "x", "-lcs", "odd.bin")
    message = "odd.bin: 3 stray bytes at offset 0: not a statistics file nor a lookup cache"
    assert_one_error(result, message, 1)


@pytest.mark.usefixtures("cache_files")
def test_statistics_of_another_kind_or_model(invoke: Any) -> None:
    result = invoke("generate", "-p", "x", "--suffix-index", "a.ngc")
    message = "a.ngc: expected a file of kind suffix, found ngram-cache, which -lcs reads"
    assert_one_error(result, message, 1)
    result = invoke("generate", "-p", "x", "-lcs", "other.ngc")
    message = "other.ngc was built with another tokenizer, of tokenizer.json: its fingerprint is"
    assert_one_error(result, message, 1)
    assert result.stderr.endswith(f"; the target is {embedded_model().name}\n")


def test_options_and_commands_that_are_elsewhere(invoke: Any) -> None:
    result = invoke("serve", "x.gguf", "y")
    assert_one_error(result, "extra argument (y); the model is given with --model", 2)
    assert_one_error(invoke("demo", "--modelfile", "x"), "it is an option of serve", 2)
    assert_one_error(invoke("run", "x.gguf"), "No such command 'run'. There are bench, build-", 2)
    assert_one_error(invoke("servr"), "'servr'. Did you mean 'serve'?", 2)


@pytest.mark.parametrize("command", [("generate", "-p", "x"), ("serve", "--port", "0")])
@pytest.mark.parametrize(
    "line",
    [
        *("-lcs no.ngc", "-lcs text", "-lcd text", "-lcd no/x.ngc", "--pool text"),
        *(
            "--suffix-index no.ngx",
            "--suffix-index text",
            "--recycle-file text --spec-type recycle",
        ),
        *("-md no.gguf", "-md text", "-md no.gguf --fit off", "--lora no.gguf", "--lora text"),
        *("--lora-scaled no.gguf:1", "--grammar-file no.gbnf", "-sysf no"),
        *("--record no/x.jsonl", "--record text", "--slot-save-path no"),
        *("--chat-template-file no", "--api-key-file no", "--log-file no/x"),
    ],
)
def test_wrong_files_end_the_start_before_the_model_is_loaded(
    invoke: Any, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], line: str
) -> None:
    def load(*_: object) -> None:
        pytest.fail("the model is loaded")

    if command[0] not in _commands_with(line.split()[0]):
        pytest.skip("the command has no such option")
    Path("text").write_text("some text, which is no file of ours\n")
    monkeypatch.setattr("ngramspec.llamacpp.model.load_model", load)
    result = invoke(*command, *line.split())
    assert result.exit_code in (1, 2), result.output
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert re.search(r"\bno\b|\btext\b", error)


def _commands_with(flag: str) -> list[str]:
    commands = {"generate": generate, "serve": serve}
    return [name for name, one in commands.items() if any(flag in p.opts for p in one.params)]


def test_prompt_that_does_not_fit(invoke: Any) -> None:
    result = invoke("generate", "-p", "word " * 300, "-c", "256")
    assert result.exit_code == 2
    message = r"the prompt has \d+ tokens, the context 256: -c N gives more, up to 2048"
    assert re.search(message, result.stderr)


def test_prompt_that_does_not_fit_in_the_trained_context(invoke: Any) -> None:
    trained = ("--override-kv", "llama.context_length=int:8192")
    for size in ((), ("-c", "0"), ("-c", "8192")):
        result = invoke("generate", "-p", "word " * 9000, *trained, *size)
        assert result.exit_code == 2
        message = r"tokens, the context 8192: the model was trained with 8192; --rope-scale"
        assert re.search(message, result.stderr), result.stderr


def test_model_without_chat_template(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read = LlamaModel._read

    def without(self: LlamaModel) -> None:
        read(self)
        self.chat_template = None

    monkeypatch.setattr(LlamaModel, "_read", without)
    result = invoke("generate", "-p", "x", "--chat")
    assert_one_error(result, "this model has no chat template: use --raw", 2)
    assert invoke("generate", "-p", "x", "-n", "1").exit_code == 0


@pytest.mark.parametrize("command", [("demo",), ("generate", "-p", "x")])
def test_missing_llama_cpp_is_explained(
    invoke: Any, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    for name in ("llama_cpp", "llama_cpp.llama_cpp"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(llama_library, "_LOADED", [])
    assert_one_error(invoke(*command), 'pip install "ngramspec[llama]"', 1)


@pytest.mark.parametrize("name", ["starlette", "uvicorn", "pydantic", "prometheus_client"])
def test_a_missing_package_of_the_server_is_explained(name: str) -> None:
    code = f"import sys; sys.modules[{name!r}] = None; from ngramspec.cli import main; main()"
    command = [sys.executable, "-c", code, "serve"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    match = re.fullmatch(
        r"Error: serve needs ([\w.]+), which is not installed: (.*)\n", done.stderr
    )
    assert match is not None, done.stderr
    assert match[1].split(".")[0] == name
    assert match[2] == 'pip install "ngramspec[server]"'
    assert done.returncode == 1


def test_missing_embedded_model_is_explained(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ngramspec.models.FILE_NAME", "absent.gguf")
    assert_one_error(invoke("demo"), "the embedded model is missing", 2)


def test_demo_names_the_nearest_drafters(invoke: Any) -> None:
    result = invoke("demo", "--drafter", "ngram-simpel")
    assert_one_error(result, "did you mean ngram-simple", 2)


def test_demo_names_its_tasks(invoke: Any) -> None:
    assert_one_error(invoke("demo", "--task", "sing"), "'rename', 'repeat', 'find'", 2)


def test_debug_shows_the_traceback(spawn: Any) -> None:
    done = spawn("--debug", "generate", "-p", "x", "--spec-type", "x")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "InputError" in done.stderr
