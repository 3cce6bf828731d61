"""Launch lines of llama-server from documents and model cards start `ngramspec serve`."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.cli import succeed
from helpers.command import Process
from ngramspec.cli.serve import run as serve_run
from ngramspec.cli.serve.options import ServeOptions
from ngramspec.engine import Request
from ngramspec.llamacpp.threads import NICE
from ngramspec.models import embedded_model
from ngramspec.runtime import DraftSettings

MODEL = str(embedded_model())
# Source -> line and what it must set. MODEL stands for a file; names on Hugging Face are links to
# the embedded model. Facts about how others start llama-server; llama.cpp has the MIT licence.
LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama.cpp tools/server/README.md": (
        "-m MODEL -c 2048", {"ctx_size": 2048, "num_slots": 4, "kv_unified": True}),
    "llama.cpp docs/function-calling.md": (
        "--jinja -fa -hf bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M", {"flash_attn": "on"}),
    "llama.cpp docs/function-calling.md, a file": (
        "--jinja -fa -hf bartowski/firefunction-v2-GGUF -hff firefunction-v2-IQ1_M.gguf", {}),
    "llama.cpp docs/backend/ZenDNN.md": (
        "-m MODEL --host 0.0.0.0 --port 8080 -t 64", {"host": "0.0.0.0", "threads": 64}),
    "llama.cpp docs/backend/OPENVINO.md": ("-m MODEL --port 8080 -c 1024", {"ctx_size": 1024}),
    "llama.cpp docs/multi-gpu.md": ("-m MODEL -ts 3,1", {"tensor_split": "3,1"}),
    "llama.cpp docs/multi-gpu.md, tensor": ("-m MODEL -sm layer -ctk f16 -ctv f16", {}),
    "llama.cpp docs/speculative.md": (
        "-m MODEL --spec-type ngram-mod --spec-ngram-mod-n-match 24 --spec-ngram-mod-n-min 48 "
        "--spec-ngram-mod-n-max 64", {}),
    "llama.cpp tools/server/README.md, page": (
        """-m MODEL --ui-config '{"pasteLongTextToFileLen": 0}'""", {"ui": True}),
    "llama.cpp discussion 15396": (
        "-hf ggml-org/gpt-oss-20b-GGUF --ctx-size 0 --jinja -ub 2048 -b 2048 -ngl 99 -fa",
        {"ubatch_size": 2048, "n_gpu_layers": "99", "ctx_size": 0}),
    "llama.cpp discussion 15396, experts": (
        "-hf ggml-org/gpt-oss-120b-GGUF --ctx-size 32768 --jinja -ub 2048 -b 2048 --n-cpu-moe 36",
        {"n_cpu_moe": 36, "ctx_size": 32768}),
    "Qwen3 README": (
        "-hf Qwen/Qwen3-8B-GGUF:Q8_0 --jinja --reasoning-format deepseek -ngl 99 -fa -sm row "
        "--temp 0.6 --top-k 20 --top-p 0.95 --min-p 0 -c 40960 -n 32768 --no-context-shift "
        "--port 8080",
        {"split_mode": "row", "top_k": 20, "predict": 32768, "reasoning_format": "deepseek"}),
    "Unsloth's guides": (
        "-m MODEL --n-gpu-layers 99 --jinja --top-p 0.95 --top-k 20 --temp 1.0 --min-p 0.0 "
        "--flash-attn on --presence-penalty 0.0 --ctx-size 8192 -ot '.ffn_.*_exps.=CPU' --prio 3 "
        "--seed 3407 --threads -1 --no-mmproj --fit off --cache-type-k q8_0",
        {"override_tensor": (".ffn_.*_exps.=CPU",), "threads": None, "seed": 3407}),
    "a start script for Qwen3-Coder-Next": (
        "--model MODEL --alias Qwen3-Coder-Next --host 0.0.0.0 --port 8081 --ctx-size 65536 "
        "--n-gpu-layers 99 -ot '.ffn_.*_exps.=CPU' --threads 2 --batch-size 4096 --ubatch-size "
        "4096 --cache-type-k q4_0 --cache-type-v q4_0 --cache-prompt -fa on --parallel 4 --mlock "
        "--cont-batching --metrics --jinja",
        {"alias": ("Qwen3-Coder-Next",), "kv_unified": True, "mlock": True, "metrics": True}),
    "a benchmark of a 27B model": (
        "-m MODEL --chat-template-file TEMPLATE --reasoning-format deepseek -ngl 99 -fa on "
        "-c 13200 -np 1 -ctk q4_0 -ctv q4_0 --spec-draft-n-max 3 --jinja --no-context-shift "
        "--reasoning on --reasoning-preserve -b 1536 -ub 1536 -sm none -mg 0 --fit off "
        "--cache-ram 4096 --metrics",
        {"reasoning": "on", "reasoning_preserve": True, "split_mode": "none"}),
    "a chat in a terminal editor": (
        "-hf ggml-org/gpt-oss-20b-GGUF --alias gpt-oss-20b --host 127.0.0.1 --port 8080 -c 16384 "
        "-fa 1 -np 1 --jinja", {"flash_attn": "on", "num_slots": 1}),
    "a blog about integrated GPUs": (
        "-hf ggml-org/gpt-oss-120b-GGUF -c 0 -fa on --jinja --no-mmap --n-gpu-layers 99",
        {"mmap": False}),
    "an alias in a shell": (
        "-hf ggml-org/gpt-oss-20b-GGUF --n-cpu-moe 12 -c 32768 --jinja --no-mmap", {}),
    "llama.vim": (
        "-m MODEL --port 8012 -ngl 99 -fa on -ub 1024 -b 1024 --ctx-size 0 --cache-reuse 256",
        {"batch_size": 1024}),
    "longer contexts, from Qwen2.5's documents": (
        "-m MODEL -c 8192 --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 2048",
        {"rope_scale": 4.0, "yarn_orig_ctx": 2048}),
    "a machine with many processors": (
        "-m MODEL -c 2048 -t 2 -tb 2 -C 3 --cpu-strict 0 --prio 0 --poll 0 --numa distribute "
        "--no-warmup --no-webui --threads-http 4 --timeout 600 --log-disable -dio",
        {"ui": False, "numa": "distribute", "timeout": 600.0}),
    "a service with keys": (
        "-m MODEL -c 2048 --api-key a,b --api-prefix /llm --tags code,small --no-slots --props "
        "--slot-prompt-similarity 0.5 --sse-ping-interval -1 --offline -lv 4",
        {"api_prefix": "/llm", "tags": "code,small", "slots": False, "verbosity": 4}),
}  # fmt: skip
VARIABLES = {  # llama.cpp's documents on Docker, compose files and services of systemd
    "LLAMA_ARG_MODEL": MODEL, "LLAMA_ARG_CTX_SIZE": "4096", "LLAMA_ARG_N_PARALLEL": "2",
    "LLAMA_ARG_ENDPOINT_METRICS": "1", "LLAMA_ARG_NO_MMAP": "1", "LLAMA_ARG_THREADS": "1",
    "LLAMA_ARG_FLASH_ATTN": "enabled", "LLAMA_ARG_CACHE_TYPE_K": "q8_0",
    "LLAMA_ARG_N_GPU_LAYERS": "99", "LLAMA_ARG_CONT_BATCHING": "1", "LLAMA_ARG_JINJA": "1",
    "LLAMA_ARG_ALIAS": "Mine 8B", "LLAMA_ARG_MAIN_GPU": "0", "LLAMA_ARG_UI": "0",
    "LLAMA_ARG_HOST": "127.0.0.1", "LLAMA_ARG_TOP_K": "7", "LLAMA_ARG_NO_KV_OFFLOAD": "1",
    "LLAMA_ARG_SPEC_TYPE": "ngram-mod, ngram-cache", "LLAMA_API_KEY": "two words,three",
}  # fmt: skip


@pytest.fixture
def words_of(no_variables: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that splits a line; what it names on Hugging Face is downloaded."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")

    def split(line: str) -> list[str]:
        for user, model, tag in re.findall(r"-hf ([\w-]+)/([\w.-]+)(?::(\w+))?", line):
            folder = tmp_path / f"models--{user}--{model}" / "snapshots" / "abc"
            folder.mkdir(parents=True)
            file = re.search(r"-hff (\S+)", line)
            name = file[1] if file else f"{model}-{tag or 'Q8_0'}.gguf"
            (folder / name).symlink_to(MODEL)
        stand_ins = {"MODEL": MODEL, "TEMPLATE": str(template)}
        return [stand_ins.get(word, word) for word in shlex.split(line)]

    return split


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Let serve make model, engine, settings and defaults and answer a request, not listen."""
    seen: list[dict[str, Any]] = []

    def run(options: ServeOptions, drafts: DraftSettings) -> None:
        settings = serve_run.make_settings(options, drafts)
        defaults = serve_run.served_defaults(options)
        opened = serve_run.runtime_settings(options, drafts)
        with contextlib.closing(serve_run.open_served(options, opened)) as runtime:
            request = Request(
                prompt_ids=runtime.model.tokenize_prompt("import os"),
                max_tokens=options.predict % 9,
                sampling=defaults["sampling"],
            )
            (answer,) = runtime.engine.generate([request])
            assert answer.error is None
            size = runtime.engine.context_size
            seen.append({
                **defaults, **vars(options), "settings": settings, "size": size,
                "text": answer.text, "num_slots": options.num_slots, "adapters": options.adapters(),
            })  # fmt: skip

    monkeypatch.setattr(serve_run, "run", run)
    return seen


@pytest.mark.parametrize("source", LINES)
def test_a_line_starts_the_server(
    words_of: Any, started: list[dict[str, Any]], source: str
) -> None:
    line, expected = LINES[source]
    result = succeed("serve", *words_of(line))
    server = started[-1]
    assert {name: server[name] for name in expected} == expected
    notes = [text for text in result.stderr.splitlines() if " does nothing: " in text]
    may = ("--cache-ram", "--cache-reuse", "--ui-config")
    flags = [text.partition(" ")[0] for text in notes]
    assert [flag for flag in flags if flag != "-ngl"] == [flag for flag in may if flag in line]


def test_a_priority_is_that_of_the_process(
    invoke: Any, words_of: Any, started: list[dict[str, Any]], priorities: list[int]
) -> None:
    for option in ("", "--prio 0", "--prio -1", "--prio 3"):
        assert invoke("serve", *words_of(f"-m MODEL -c 256 {option}")).exit_code == 0
    assert priorities == [NICE[-1], NICE[3]]


def test_variables_start_the_server(
    words_of: Any, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    succeed("serve")
    server = started[-1]
    options = (
        server["num_slots"],
        server["size"],
        server["mmap"],
        server["flash_attn"],
        server["kv_offload"],
    )
    assert options == (2, 2048, False, "on", False)
    assert server["settings"].api_keys == ("two words", "three")
    assert (server["settings"].page, server["settings"].metrics) == (False, True)
    assert (server["sampling"].top_k, server["alias"]) == (7, ("Mine 8B",))


def test_origins_may_have_spaces_between_them(
    invoke: Any, words_of: Any, started: list[dict[str, Any]]
) -> None:
    line = "-m MODEL -c 256 --cors-origins 'https://a.example, https://b.example'"
    assert invoke("serve", *words_of(line)).exit_code == 0
    assert started[-1]["settings"].cors_origins == ("https://a.example", "https://b.example")


def test_a_slot_of_auto_slots_can_have_the_whole_context(
    invoke: Any, words_of: Any, started: list[dict[str, Any]]
) -> None:
    for line, size in {
        "-m MODEL -c 1024": 1024, "-m MODEL -c 1024 -np 4": 256, "-m MODEL": 2048,
        "-m MODEL -np 2 --kv-unified-per-slot 300": 300, "-m MODEL -np 2 -kvu -c 512": 512,
    }.items():  # fmt: skip
        assert invoke("serve", *words_of(line)).exit_code == 0
        assert started[-1]["size"] == size, line


# Options -> fields of Sampling.
DEFAULTS: dict[str, dict[str, Any]] = {
    "--samplers 'top_k;temperature;min_p'": {
        "samplers": ("top_k", "temperature", "min_p"), "top_p": 1.0, "top_k": 40},
    "--sampler-seq kt": {"samplers": ("top_k", "temperature"), "min_p": 0.0},
    "--logit-bias 100+2.5 -l 7-inf": {"logit_bias": {100: 2.5, 7: float("-inf")}},
    "--dry-sequence-breaker '\\n' --dry-sequence-breaker x": {"dry_sequence_breakers": ("\n", "x")},
    "--dry-sequence-breaker none": {"dry_sequence_breakers": ()},
    "--no-escape --dry-sequence-breaker '\\n'": {"dry_sequence_breakers": ("\\n",)},
    "--top-k -1 --temp 0 --ignore-eos": {"top_k": 0, "temperature": 0.0, "ignore_eos": True},
    "--seed 7 --typical 0.5 --top-n-sigma 2": {"seed": 7, "typical_p": 0.5, "top_n_sigma": 2.0},
    "--xtc-probability 0.1 --xtc-threshold 0.2 --mirostat 2 --mirostat-lr 0.2": {
        "xtc_probability": 0.1, "xtc_threshold": 0.2, "mirostat": 2, "mirostat_eta": 0.2},
    "--repeat-last-n -1 --repeat-penalty 1.1 --dynatemp-range 0.1 --dynatemp-exp 2": {
        "repeat_last_n": -1, "repeat_penalty": 1.1, "dynatemp_range": 0.1,
        "dynatemp_exponent": 2.0},
}  # fmt: skip


@pytest.mark.parametrize("line", DEFAULTS)
def test_sampling_options_are_defaults_of_requests(
    words_of: Any, started: list[dict[str, Any]], line: str
) -> None:
    succeed("serve", *words_of(f"-m MODEL -c 512 -n 2 {line}"))
    sampling = started[-1]["sampling"]
    assert {name: getattr(sampling, name) for name in DEFAULTS[line]} == DEFAULTS[line]


def test_grammars_and_schemas_are_followed(
    words_of: Any, started: list[dict[str, Any]], tmp_path: Path
) -> None:
    grammar, schema = tmp_path / "a.gbnf", tmp_path / "a.json"
    grammar.write_text('root ::= "no" | "yes"')
    schema.write_text('{"enum": ["left", "right"]}')
    for line, allowed in {
        "--grammar 'root ::= [0-9]'": list("0123456789"),
        f"--grammar-file {grammar}": ["no", "yes"],
        """-j '{"const": 12}'""": ["12"], f"-jf {schema}": ['"left"', '"right"'],
    }.items():  # fmt: skip
        succeed("serve", *words_of(f"-m MODEL -c 512 -n 8 {line}"))
        assert started[-1]["text"] in allowed


def test_template_options_are_variables(words_of: Any, started: list[dict[str, Any]]) -> None:
    for line, variables in {
        "": {}, "--reasoning on": {"enable_thinking": True}, "-rea 0": {"enable_thinking": False},
        "--reasoning-effort low": {"reasoning_effort": "low"}, "--reasoning-effort default": {},
        "--no-reasoning-preserve": {"preserve_reasoning": False},
        """-rea on --chat-template-kwargs '{"enable_thinking": false, "a": 1}'""":
            {"enable_thinking": False, "a": 1},
    }.items():  # fmt: skip
        succeed("serve", *words_of(f"-m MODEL -c 512 -n 1 {line}"))
        assert started[-1]["template_variables"] == variables


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--logit-bias x", "--logit-bias must be a token id and a bias, as 15043+1, got 'x'"),
        ("--logit-bias 3+x", "--logit-bias must be a token id and a bias"),
        ("--grammar x --json-schema {}", "give either --grammar or --json-schema"),
        ("--json-schema {", "--json-schema must be JSON"),
        ("""--json-schema '{"type": "what"}'""", "--json-schema: "),
        ("-ot x", "--override-tensor must be PATTERN=MEMORY, such as exps=CPU, got 'x'"),
        ("-ot x=GPU9", "llama.cpp has no memory 'GPU9' for tensors; there is: CPU"),
        ("-ts a,b", "--tensor-split must be numbers with commas, got 'a,b'"),
        ("--override-kv a=int", "--override-kv must be KEY=TYPE:VALUE, got 'a=int'"),
        (
            "--override-kv a=int:x",
            "--override-kv a=int:x: the type must be int, float, bool or str",
        ),
        ("--override-kv a=list:x", "the type must be int, float, bool or str"),
        ("--rope-scale 2 --rope-freq-scale 0.5", "give either --rope-scale or --rope-freq-scale"),
        ("-C xyz", "a CPU mask must be hexadecimal"),
        ("-Cr 9", "a CPU range must be as 0-7"),
        ("-dev CUDA9", "llama.cpp has no device 'CUDA9'"),
        ("-fa maybe", "expected on, off, auto, got 'maybe'"),
        ("-np 0", "0 is not in the range 1<=x<=256"),
        ("-t 513", "513 is not in the range"),
        ("--grammar 'root ::= x'", "grammar"),
    ],
)
def test_wrong_values_are_told_in_a_line(
    invoke: Any, words_of: Any, started: list[dict[str, Any]], line: str, reason: str
) -> None:
    result = invoke("serve", *words_of(f"-m MODEL -c 512 {line}"))
    assert result.exit_code == 2, result.output
    assert reason in result.stderr.splitlines()[-1]
    assert started == []


def test_devices_are_listed() -> None:
    result = succeed("serve", "--list-devices")
    assert result.output.strip()


REAL = [  # what is asked below, beside the line
    ("-m MODEL -c 2048 -t 1 -fa -ngl 99 -sm row --no-warmup --jinja -ot 'ffn=CPU' --no-mmap", ""),
    ("-m MODEL -c 512 -t 1 --api-prefix llm/ --tags b,a --no-webui --props", "/llm"),
    ("-m MODEL -c 512 -t 2 -tb 1 -C 3 --poll 10 --numa distribute -v --log-prefix", ""),
    ("-m MODEL -c 4096 -t 1 --rope-scaling yarn --rope-scale 2 --override-kv "
     "general.name=str:mine,llama.context_length=int:1024 --check-tensors -nkvo", ""),
    ("-m MODEL -c 512 -t 1 -np 2 -r '\\n' --grammar 'root ::= \"yes\"' --ignore-eos", ""),
    ("-m MODEL -c 512 -t 1 --host localhost,127.0.0.2 --reuse-port --log-disable", ""),
]  # fmt: skip


@pytest.mark.parametrize(("line", "prefix"), REAL)
def test_a_server_started_by_a_line_answers(words_of: Any, line: str, prefix: str) -> None:
    with Process(*words_of(line)) as server:
        url = server.url().rstrip(",") + prefix
        with httpx.Client(base_url=url, timeout=60) as client:
            assert client.get("/health").json() == {"status": "ok"}
            body = {"prompt": "import os\n", "n_predict": 4, "temperature": 0}
            answer = client.post("/completion", json=body).json()
            assert answer["content"] == ("yes" if "--grammar" in line else answer["content"])
            assert 0 < answer["tokens_predicted"] <= 4
            listed = client.get("/v1/models").json()["data"][0]
            assert listed["tags"] == (["a", "b"] if "--tags" in line else [])
            page = client.get("/")
            assert page.status_code == 200
            assert (page.text == "ngramspec is running") == ("--no-webui" in line)
            if prefix:
                assert httpx.get(url.removesuffix(prefix) + "/health").status_code == 404
        if "--host" in line:
            port = httpx.URL(url).port
            assert httpx.get(f"http://127.0.0.2:{port}/health").json() == {"status": "ok"}
        assert server.end() == 0


def test_adapters_have_the_scales_of_the_line(
    invoke: Any, words_of: Any, started: list[dict[str, Any]], tmp_path: Path
) -> None:
    from helpers.lora_files import write_lora

    a, b = write_lora(tmp_path / "a.gguf", 1), write_lora(tmp_path / "b.gguf", 2)
    for line, scales in {
        f"--lora {a},{b}": [1.0, 1.0], f"--lora {a} --lora {b}": [1.0, 1.0],
        f"--lora {a} --lora-scaled {b}:0.5": [1.0, 0.5], f"--lora-scaled {a}:0,{b}:-2": [0.0, -2.0],
        f"--lora {a} --lora-init-without-apply": [0.0],
    }.items():  # fmt: skip
        result = succeed("serve", *words_of(f"-m MODEL -c 512 -n 2 {line}"))
        assert [scale for _, scale in started[-1]["adapters"]] == scales
    for line, reason in {
        "--lora none.gguf": "none.gguf: No such file", f"--lora-scaled {a}": "must be FILE:SCALE",
        f"--lora-scaled {a}:x": "--lora-scaled must be FILE:SCALE",
    }.items():  # fmt: skip
        result = invoke("serve", *words_of(f"-m MODEL -c 512 {line}"))
        assert result.exit_code == 2, result.output
        assert reason in result.stderr
