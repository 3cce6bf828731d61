"""Lines of llama-cli and llama-completion from llama.cpp's documents run `ngramspec generate`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from helpers.cli import succeed
from helpers.lora_files import write_lora
from ngramspec.models import embedded_model

pytestmark = pytest.mark.usefixtures("no_variables")

MODEL = str(embedded_model())
LINES = {  # source -> line; MODEL stands for a file. Facts about llama.cpp, MIT licence.
    "docs/multi-gpu.md": "-m MODEL -ts 3,1 -p Hello",
    "docs/backend/SYCL.md": "-no-cnv -m MODEL -p 'Building a website can be done in 10 simple "
    "steps:' -n 8 -e -ngl 99 -sm none -mg 0 --load-mode auto",
    "docs/backend/SYCL.md, layers": "-m MODEL -p 'Building a website can be done in 10 simple "
    "steps:' -n 8 -e -ngl 33 -sm layer",
    "docs/backend/CANN.md": "-m MODEL -p 'Building a website can be done in 10 steps:' -ngl 32",
    "docs/backend/hexagon": "-m MODEL -p 'most popular cookie' --jinja -st --ctx-size 1024 -n 8 "
    "-ngl 99 --ubatch-size 1024 -fa on -t 2",
    "tools/completion/README.md": "-m MODEL -no-cnv --prompt 'Once upon a time' -n 8",
    "tools/completion/README.md, single": "-m MODEL --jinja --single-turn -sys 'You are helpful' "
    "-p Hello -n 8",
    "Qwen3 README": "-m MODEL --jinja --color -ngl 99 -fa -sm row --temp 0.6 --top-k 20 "
    "--top-p 0.95 --min-p 0 -c 1024 -n 8 --no-context-shift -p hi",
    "Qwen3 model card": "-m MODEL -p hi -n 8 --temp 0.6 --presence-penalty 1.5 --log-disable -lv 1",
    "a flag for each type": "-m MODEL -fa -ngl 99 --cache-type-k q8_0 --cache-type-v q8_0 "
    "--batch-size 1024 -p 'your prompt' -n 8 --color on --seed -1 --simple-io --no-display-prompt",
}


def run(line: str) -> Any:
    words = [MODEL if word == "MODEL" else word for word in shlex.split(line)]
    result = succeed("generate", *words, "--json")
    return json.loads(result.stdout)


@pytest.mark.parametrize("source", LINES)
def test_a_line_generates(source: str) -> None:
    line = LINES[source]
    answer = run(line if " -n " in line else f"{line} -n 8")
    assert 0 < len(answer["token_ids"]) <= 8


def test_options_reach_the_model(tmp_path: Path) -> None:
    lora = write_lora(tmp_path / "a.gguf")
    plain = "-m MODEL -p 'def area(width, height):' --raw -n 12 -t 1 -c 512"
    texts = [run(f"{plain} {more}")["text"] for more in (
        "", f"--lora {lora}", f"--lora-scaled {lora}:0.5", "--rope-freq-base 300",
        "--override-kv llama.rope.freq_base=float:90",
    )]  # fmt: skip
    assert len(set(texts)) == len(texts)
    for sampling in ("--frequency-penalty 2", "--temp 1 -s 1", "--temperature 1 -s 1 --mirostat 2"):
        texts.append(run(f"{plain} {sampling}")["text"])
    assert len(set(texts)) == len(texts)
    exact = f"{plain} --exact -b 4 -ub 4"  # so less is tested
    stretched = f"{exact} --rope-freq-base 300 --poll 0 --no-op-offload"
    assert run(stretched)["text"] != texts[0]
    assert run(f"{plain} --lora-scaled {lora}:0")["text"] == texts[0]
    ends = "-m MODEL -p 'Repeat this text:\n\none' -n 40 -t 1"
    assert run(f"{ends} --ignore-eos")["finish_reason"] == "length"
    assert run(ends)["finish_reason"] == "stop"
    assert run(f"{plain} -C 1 --poll 0 -ctk f16 --no-repack --numa isolate")["text"]


def test_help_says_where_defaults_are_not_those_of_llama_cli(invoke: Any) -> None:
    text = "".join(invoke("generate", "--help-all").stdout.split())  # lines break anywhere
    for sentence in (
        "0 is greedy. llama-cli's default is 0.8. [default: 0.0]",
        "-1, llama-cli's default: until the context is full. [default: 256]",
    ):
        assert sentence.replace(" ", "") in text


def test_a_prompt_is_read_with_escapes_where_asked_for() -> None:
    for line, count in (("-e", 2), ("", 3), ("--no-escape", 3)):
        answer = run(f"-m MODEL --raw -t 1 -n 1 -p 'a\\nb' {line}")
        assert (answer["prompt_tokens"] < 4) is (count == 2), answer


def test_a_stretched_context_may_be_longer(
    invoke: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long = tmp_path / "long.txt"
    long.write_text("word " * 140)
    trained = "--override-kv llama.context_length=int:256"
    line = f"-m MODEL --raw -t 1 -n 1 -c 512 {trained} -f {long}"
    refused = invoke("generate", *shlex.split(line.replace("MODEL", MODEL)))
    assert refused.exit_code == 2
    assert "the context 256: the model was trained with 256" in refused.stderr
    messages = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("-c 512 is cut to the 256 tokens that the") for line in messages)
    assert run(f"{line} --rope-scaling yarn --rope-scale 2")["prompt_tokens"] > 256
