"""What new users meet: files of other kinds, places that cannot be written, odd terminals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.cli import FEW, assert_one_error, cases
from helpers.forked import Forked
from ngramspec.models import embedded_model

pytestmark = pytest.mark.usefixtures("empty_folder")
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture(autouse=True)
def others(empty_folder: Path) -> None:
    """Put files of other kinds into the folder."""
    head = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    Path("model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))
    Path("empty").touch()
    Path("text.txt").write_text("hello world")
    Path("config.json").write_text('{"a": 1}')
    Path("models").mkdir()
    shutil.copy(embedded_model(), "models/tiny.gguf")
    Path("folder").mkdir()
    Path("latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    Path("blank.yaml").write_text("port: 8080\napi-key:\n")
    if hasattr(os, "mkfifo"):
        os.mkfifo("pipe")


WRONG = cases("""
1 generate -p x -m model.safetensors ->
    model.safetensors is a safetensors file, not a GGUF file: llama.cpp's convert_hf_to_gguf
1 generate -p x -m empty -> empty is empty, not a GGUF
1 generate -p x -m models -> models is a folder, not a GGUF file; it holds tiny.gguf
1 generate -p x -m folder -> folder is a folder, not a GGUF file
2 generate -f folder -> folder: Is a directory
1 generate -p x -lcs text.txt ->
    text.txt: 3 stray bytes at offset 8: not a statistics file nor a lookup cache
2 generate -p x -n many -> 'many' is not a whole number.
2 generate -p x --temp hot -> 'hot' is not a number.
1 build-cache text.txt -o a.ngc --tokenizer config.json ->
    config.json: not a tokenizer.json: it has no 'model'
1 build-cache text.txt -o a.ngc -m model.safetensors ->
    model.safetensors: neither a GGUF file nor a tokenizer.json
2 build-cache text.txt -o text.txt ->
    text.txt is no statistics file and would be replaced: give another name, or remove it
2 build-cache text.txt -o models/tiny.gguf ->
    models/tiny.gguf is no statistics file and would be replaced
2 cache convert absent.ngc text.txt ->
    text.txt is no statistics file or lookup cache and would be replaced
2 bench calibrate -o text.txt -> text.txt is no table of costs and would be replaced
2 build-cache text.txt -o pipe -> pipe is no regular file: give another name
1 cache inspect pipe -> pipe: expected a statistics file, found a pipe
1 generate -p x -lcs pipe -> pipe: expected a lookup-cache file, found a pipe
1 build-cache text.txt -o a.ngc --tokenizer pipe ->
    pipe: expected a GGUF file or tokenizer.json, found a pipe
1 generate -p x -m pipe -> pipe is a pipe, not a GGUF file
1 cache inspect models/tiny.gguf -> models/tiny.gguf: a GGUF model, not a statistics file
2 generate -p x --grammar-file latin.txt -> latin.txt: expected UTF-8, found another byte at 3
2 serve --config latin.txt -> latin.txt: expected UTF-8, found another byte at 3
2 serve --config blank.yaml -> api-key has no value
2 bench replay '' -> the name is empty
2 build-cache '' -o a.ngc -> the name is empty
2 build-cache text.txt -o '' -> the name is empty
2 build-cache text.txt -o a.ngc --work '' -> the name is empty
2 bench exactness -ct f16,f17 -> 'f17' is not one of 'f32', 'f16'
1 bench replay text.txt --costs config.json -> config.json: not a table of costs: it has no 'format'
2 serve --ssl-cert-file text.txt --ssl-key-file text.txt ->
    --ssl-cert-file text.txt and --ssl-key-file text.txt are no certificate in PEM
2 serve --ssl-cert-file text.txt --ssl-key-file absent -> absent: No such file
""")


@pytest.mark.parametrize(("arguments", "message", "code"), WRONG)
def test_wrong_files_and_values(invoke: Any, arguments: list[str], message: str, code: int) -> None:
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert_one_error(invoke(*arguments), message, code)
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_a_statistics_file_is_replaced_and_others_are_not(invoke: Any, build: Any) -> None:
    build(FEW[0])
    build(FEW[1])
    for command in (["merge", "out.ngc", "out.ngc"], ["prune", "out.ngc", "--min-count", "2"]):
        result = invoke("cache", *command, "-o", "text.txt")
        assert_one_error(result, "text.txt is no statistics file and would be replaced", 2)
        assert invoke("cache", *command, "-o", "empty").exit_code == 0
    assert Path("text.txt").read_text() == "hello world"


def test_a_port_in_use(spawn: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = spawn("serve", "--port", str(port))
    assert result.returncode == 1
    assert f"Error: 127.0.0.1:{port}: Address already in use: choose another port" in result.stderr


def test_costs_that_cannot_be_saved_in_the_usual_place(spawn: Any) -> None:
    result = spawn("bench", "calibrate", HOME="/dev/null", XDG_CACHE_HOME="")
    assert result.returncode == 1
    assert "/dev/null" in result.stderr
    assert "choose another place with --output" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("demo", "--repeats", "1", "-n", "4", "--task", "rename", "--drafter", "suffix"),
        ("cache", "inspect", "out.ngc", "--top", "3"),
        ("generate", "-p", "caf\u00e9", "--raw", "-n", "4"),
    ],
)
def test_a_terminal_that_has_few_characters(build: Any, arguments: tuple[str, ...]) -> None:
    build(FEW[0])
    command = [sys.executable, "-m", "ngramspec", *arguments]
    result = subprocess.run(
        command, capture_output=True, encoding="utf-8", env={**os.environ, **ASCII}, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()
    assert "\x1b" not in result.stdout  # as nothing here is a terminal
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "-p", "-"), "the prompt is empty"),
        (("build-cache", "-", "-o", "new.ngc"), "no text to count in the corpus"),
    ],
)
def test_a_closed_stdin_is_empty(build: Any, arguments: tuple[str, ...], message: str) -> None:
    build(FEW[0])
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -m ngramspec "$@" <&-', sys.executable, *arguments],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == f"Error: {message}"
    assert not Path("new.ngc").exists()


def test_output_that_cannot_be_written(build: Any) -> None:
    build(FEW[0])
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ngramspec", "cache", "inspect", "out.ngc"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "Error: the output cannot be written: No space left on device\n"


def test_ctrl_c_ends_with_130_and_a_word() -> None:
    with Forked(
        ["-c", PRESSED, "generate", "-n", "4000", "-p", "x"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        process.stderr.readline()  # the model is named: the command runs
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert stderr.endswith("interrupted\n")
    assert "Traceback" not in stderr


# The command, where SIGINT is not ignored, as it is in a background job of a shell.
PRESSED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from ngramspec.cli import main
main(sys.argv[1:], prog_name="ngramspec")
"""
