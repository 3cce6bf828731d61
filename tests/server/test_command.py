"""`ngramspec serve` as a process of its own: start, signals, files, and wrong command lines."""

from __future__ import annotations

import re
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.cli import assert_one_error, invoke
from helpers.serving import REPEAT, wait_until
from ngramspec.costs import CostTable, save_costs


def test_a_server_runs_until_sigterm_and_tells_its_figures(spawn: Any, tmp_path: Path) -> None:
    learned, pool = tmp_path / "learned.ngc", tmp_path / "server.ngp"
    config = tmp_path / "server.yaml"
    config.write_text(
        "parallel: 2\nalias: [from-file, second]\ntemp: 0\nslots: on\n"
        f"lookup-cache-dynamic: {learned}\npool: {pool}\nspec_type: [ngram-mod, ngram-cache]\n"
        "policy: fixed\nspec-ngram-mod-n-min: 4\n"
    )
    names = ("--alias", "other, mine,,other")
    server = spawn("--config", str(config), *names, loaded=False, LLAMA_ARG_N_PARALLEL="3",
                   LLAMA_API_KEY="secret")  # fmt: skip
    url = server.url()
    head = {"authorization": "Bearer secret"}
    assert httpx.get(f"{url}/slots").status_code == 401
    assert len(httpx.get(f"{url}/slots", headers=head).json()) == 3  # the variable beats the file
    models = httpx.get(f"{url}/v1/models", headers=head).json()["data"]
    assert models[0]["id"] == "mine"  # the option beats both, and names are sorted
    assert models[0]["aliases"] == ["mine", "other"]
    props = httpx.get(f"{url}/props", headers=head).json()
    assert props["default_generation_settings"]["params"]["temperature"] == 0
    assert props["model_alias"] == "mine"
    body = {"messages": [{"role": "user", "content": REPEAT}], "max_tokens": 40}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=head, timeout=60).json()
    assert answer["usage"]["completion_tokens"] > 10
    server.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: "draft acceptance" in server.text)
    assert server.end() == 0
    assert re.fullmatch(r"loading tiny-code-q8_0\.gguf \(\d\.\d MiB\) \.\.\.", server.lines[0])
    assert (
        "model mine, the embedded model, 3 slots, 2048 tokens of context shared by all\n"
        in server.text
    )
    assert "drafters ngram-mod (16.0 MiB), ngram-cache (" in server.text
    assert "up to 64 tokens by policy fixed\n" in server.text
    assert "was trained with" not in server.text
    assert server.text.count("draft acceptance = ") == 2
    assert "\nngram-mod: " in server.text
    assert "#calls" not in server.text
    assert learned.stat().st_size > 1000
    assert pool.stat().st_size > 1000
    assert server.process.stdout.read() == ""


def test_the_start_tells_what_drafts_can_give_and_where_it_is_reached(
    spawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ngramspec.cli.options import options_from
    from ngramspec.cli.serve import serve
    from ngramspec.cli.serve.options import ServeOptions
    from ngramspec.cli.target import open_idle
    from ngramspec.llamacpp.saved_costs import costs_path

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = ("-np", "1", "-c", "512", "-t", "1")
    with serve.make_context("serve", [*settings], resilient_parsing=True) as context:
        options = options_from(ServeOptions, context.params)
    with open_idle(options, lambda model: 512, "off") as target:
        path = costs_path(target.model, target.settings)
    path.parent.mkdir(parents=True)
    save_costs(CostTable(((1, 0.01), (4, 0.019), (8, 0.08))), path)
    gain = "a pass over 4 tokens costs 1.9 times one: right drafts make answers up to 2.1 times"
    server = spawn(*settings)
    url = server.url()
    wait_until(lambda: "/v1)" in server.text)
    assert f"listening on {url} (page: /, API: /v1)" in server.lines
    assert f"{gain} as fast here" in server.lines
    assert "model tiny-code-q8_0, the embedded model, 1 slot, 512 tokens of context each\n" in (
        server.text
    )
    assert server.end() == 0
    server = spawn(*settings, "--spec-type", "none", "--no-ui", "--api-prefix", "/a")
    url = server.url()
    wait_until(lambda: "/v1)" in server.text)
    assert f"listening on {url} (API: /a/v1)" in server.lines
    assert "costs 1.9 times" not in server.text
    assert server.end() == 0


def test_a_server_that_anybody_reaches_says_so(spawn: Any) -> None:
    server = spawn("--host", "0.0.0.0", "-np", "1", "-c", "512", "--spec-type", "none")
    assert server.url().startswith("http://0.0.0.0:")
    lines = [line for line in server.lines if "0.0.0.0 can send requests" in line]
    assert lines == [
        "every machine that reaches 0.0.0.0 can send requests, as there are no API keys: "
        "--api-key-file FILE asks for keys"
    ]
    assert server.end() == 0


def test_ctrl_c_lets_a_running_request_finish(spawn: Any) -> None:
    exact = ("--exact", "-t", "1", "-b", "4", "-ub", "4")  # so less is tested
    server = spawn("-np", "1", "--spec-type", "none", *exact, "--slots")
    url = server.url()
    answers: list[int] = []

    def ask() -> None:
        body = {"prompt": "x", "n_predict": 400, "ignore_eos": True}
        reply = httpx.post(f"{url}/completion", json=body, timeout=60)
        answers.append(reply.json()["tokens_predicted"])

    wait_until(lambda: httpx.get(f"{url}/health").status_code == 200)
    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: any(slot["is_processing"] for slot in httpx.get(f"{url}/slots").json()))
    server.process.send_signal(signal.SIGINT)
    thread.join(30)
    assert server.process.wait(30) == 0
    assert answers == [400]
    assert "exact: 1 thread" in server.text


ONE_STATE = (
    "drafts have no branches: the model is recurrent, or partly so: it keeps one state for a text"
)


@pytest.mark.parametrize(
    ("name", "drafts"),
    [
        ("lfm2", f"by policy gate, 564 B of state for each of them in each slot; {ONE_STATE}\n"),
        ("mamba", f"by policy gate, 19.1 KiB of state saved for a draft; {ONE_STATE}\n"),
        ("llama", "by policy auto; drafts have no branches: each slot has a cache of its own\n"),
    ],
)
def test_the_start_tells_what_drafts_of_a_recurrent_model_cost(
    spawn: Any, tmp_path: Path, name: str, drafts: str
) -> None:
    pytest.importorskip("gguf")
    from helpers.gguf_models import build

    settings = ("-np", "2", "-c", "512", "-t", "1", "--no-kv-unified")
    server = spawn("-m", build(name, tmp_path), *settings)
    speculation = httpx.get(f"{server.url()}/props").json()["speculative"]
    assert f"drafters suffix (31.4 MiB), up to 64 tokens {drafts}" in server.text
    assert (speculation["state_bytes"] > 0) == (name != "llama")
    body = {"prompt": [3, 4, 5] * 9, "n_predict": 20, "temperature": 0}
    answer = httpx.post(f"{server.url()}/completion", json=body, timeout=60).json()
    assert answer["tokens_predicted"] > 0
    assert server.end() == 0


def test_a_draft_model_a_unix_socket_and_several_keys_can_be_used(
    spawn: Any, tmp_path: Path
) -> None:
    from ngramspec.models import embedded_model

    path = tmp_path / "server.sock"
    small = str(embedded_model())
    draft = ("-md", small, "--spec-type", "draft-simple", "--policy", "fixed")
    server = spawn("--host", str(path), *draft, "-np", "1", LLAMA_API_KEY="one,two")
    assert server.url() == f"unix:{path}"
    head = {"authorization": "Bearer two"}
    transport = httpx.HTTPTransport(uds=str(path))
    with httpx.Client(transport=transport, base_url="http://x", headers=head) as client:
        body = {"prompt": "def area(", "n_predict": 30, "temperature": 0}
        answer = client.post("/completion", json=body, timeout=60).json()
        assert client.get("/metrics").status_code == 501
    assert "each key learns for itself" in server.text
    assert answer["timings"]["draft_n_accepted"] > 10
    assert server.end() == 0
    size = re.search(
        r"drafters draft model tiny-code-q8_0.gguf of up to 16 \((.+) MiB\), "
        r"up to 16 tokens by policy fixed\n",
        server.text,
    )
    assert size is not None
    assert float(size[1]) > 5.6 + 6  # weights, and a cache of 3 KiB per token
    assert "draft-simple" in server.text


def test_mtp_heads_draft_after_n_grams(spawn: Any, tmp_path: Path) -> None:
    mtp_models = pytest.importorskip("helpers.mtp_models", reason="needs gguf")
    mtp_models.glm4moe(tmp_path / "model.gguf")
    settings = ("-np", "2", "-c", "1024", "-t", "1", "--spec-draft-n-max", "4", "--metrics")
    server = spawn("-m", str(tmp_path / "model.gguf"), "--spec-type", "suffix,draft-mtp", *settings)
    url = server.url()
    assert re.search(
        r"drafters suffix \(\S+ MiB\), then MTP heads of up to 4 \(\S+ MiB\), ", server.text
    )
    drafter = httpx.get(f"{url}/props").json()["speculative"]["draft_model"]
    assert (drafter["name"], drafter["type"], drafter["n_max"]) == ("MTP heads", "draft-mtp", 4)
    body = {"prompt": "abcdefgh", "n_predict": 60, "temperature": 0}
    answer = httpx.post(f"{url}/completion", json=body, timeout=60).json()
    assert answer["content"].startswith("ijklmnopqrstuvwxyzabc")
    assert 'source="draft-mtp"' in httpx.get(f"{url}/metrics").text
    assert server.end() == 0


def test_an_assistant_drafts_for_all_slots(spawn: Any, tmp_path: Path) -> None:
    mtp_models = pytest.importorskip("helpers.mtp_models", reason="needs gguf")
    model, heads = tmp_path / "model.gguf", tmp_path / "heads.gguf"
    mtp_models.gemma4(model)
    mtp_models.gemma4_assistant(heads)
    settings = ("-np", "2", "-c", "1024", "-t", "1", "--spec-type", "draft-mtp", "-md", str(heads))
    server = spawn("-m", str(model), *settings)
    url = server.url()
    assert re.search(r"drafters MTP assistant heads.gguf of up to 3 \(\S+ MiB\), ", server.text)
    drafter = httpx.get(f"{url}/props").json()["speculative"]["draft_model"]
    assert (drafter["type"], drafter["path"]) == ("draft-mtp", str(heads))
    body = {"prompt": "abcdefgh", "n_predict": 60, "temperature": 0}
    for slot in (0, 1):
        answer = httpx.post(f"{url}/completion", json={**body, "id_slot": slot}, timeout=60).json()
        assert answer["content"].startswith("ijklmnopqrstuvwxyzabc")
    assert server.end() == 0


def test_a_port_in_use_is_told_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = invoke("serve", "--port", str(port), "--model", "no-such-model.gguf")
    assert_one_error(result, f"127.0.0.1:{port}: Address already in use", 1)


def test_an_unknown_host_is_told() -> None:
    for host in ("no.such.host.invalid", "127..0.0.1", f"{'a' * 64}.com"):
        assert_one_error(invoke("serve", "--host", host), f"{host}: unknown host", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "no-such.gguf"), "no-such.gguf: No such file"),
        (("no-such.gguf",), "no-such.gguf: No such file"),
        (("no-such.gguf", "--model", "no-such.gguf"), "no-such.gguf: No such file"),
        (("a.gguf", "-m", "b.gguf"), "the model is either a.gguf or b.gguf: name one"),
        (("a.gguf", "-hf", "a/b"), "either --model or its name on Hugging Face"),
        (("--rpc", "a:1"), "--rpc: weights stay on this machine"),
        (("--spec-type", "ngram-mud"), "did you mean ngram-mod"),
        (("--spec-type", "draft-simple"), "needs --model-draft"),
        (("--exact", "--model-draft", "x.gguf"), "drop --model-draft"),
        (("--chat-template", "a", "--chat-template-file", "b"), "either"),
        (("--chat-template", "lama3"), "llama2-sys-strip, llama3, llama4"),
        (("--chat-template", "x\n{{"), "the chat template is not valid: in line 2: unexpected"),
        (("--chat-template-kwargs", "[]"), "JSON object"),
        (("--ssl-key-file", "key"), "belong together"),
        (("--n-gpu-layers", "many"), "a number, all or auto"),
        (("--ctx-size", "2"), "less than a token"),
        (("--repeat-penalty", "1000"), "repeat_penalty must be"),
        (("-lcd", "nowhere/x.ngc"), "No such folder"),
        (("--pool", "nowhere/x.ngp"), "No such folder"),
        (("--lookup-cache-static", "none.ngc"), "none.ngc: No such file"),
        (("--spec-type", "suffix", "--suffix-index", "none.ngx"), "none.ngx: No such file"),
        (("--api-key-file", "no-keys"), "no-keys: No such file"),
        (("--api-key", ""), "--api-key holds no key"),
        (("--api-key", " , "), "--api-key holds no key"),
        (("--pool-per-key",), "--pool-per-key needs keys"),
        (("--api-key", "a,b", "--pool", "x.ngp"), "--pool: such a file would hold what all keys"),
        (("--api-key", "a,b", "-lcd", "x.ngc"), "or let them share with --share-between-keys"),
        (("--api-key", "a,b", "--recycle-file", "x.ngr"), "--recycle-file: such a file would hold"),
        (("--kept-memory", "much"), "expected a size"),
        (("--timeout", "inf"), "expected a finite number, got 'inf'"),
        (("--drain-timeout", "inf"), "expected a finite number, got 'inf'"),
        (("--stall-timeout", "nan"), "expected a finite number, got 'nan'"),
        (("--config", "no-config.yaml"), "no-config.yaml: No such file"),
    ],
)
def test_wrong_command_lines_are_told_in_one_line(arguments: Any, message: str) -> None:
    assert_one_error(invoke("serve", "--port", "0", *arguments), message, 2)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--share-between-keys",),
        ("--api-key", "a", "--pool-per-key", "--pool", "x.ngp"),
        ("--api-key", "a,b", "--share-between-keys", "--pool", "x.ngp", "-lcd", "x.ngc"),
        ("--api-key", "a,b", "-lcs", "x.ngc", "--suffix-index", "x.ngx"),
    ],
)
def test_keys_go_with_files_that_all_may_use(arguments: Any) -> None:
    run = invoke("serve", "--port", "0", "--model", "no-such.gguf", *arguments)
    assert_one_error(run, "no-such.gguf: No such file", 2)  # which comes after the keys


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "pool-per-key: true", "--pool-per-key needs keys"),
        ("a.yaml", "share-between-keys: false", "--pool-per-key needs keys"),
        ("a.yaml", "paralel: 2", "did you mean parallel"),
        ("a.yaml", "- parallel", "must hold option names"),
        ("a.yaml", "a: [", "cannot be read"),
        ("a.toml", "parallel = ", "cannot be read"),
        ("a.toml", "parallel = 'many'", "'-np' / '--parallel' from --config: 'many' is"),
        ("a.toml", "config = 'b.toml'", "no option 'config'"),
        ("a.toml", "path = 'a.gguf'", "--path: only the own page is served"),
        ("a.toml", "rpc = 'a:1'", "--rpc: weights stay on this machine"),
    ],
)
def test_wrong_files_are_told_in_one_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    assert_one_error(invoke("serve", "--port", "0", "--config", str(tmp_path / name)), message, 2)


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_N_PARALLEL", "many")
    assert_one_error(invoke("serve"), "'--parallel' from LLAMA_ARG_N_PARALLEL: 'many' is", 2)


def test_files_in_toml_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    text = 'flash-attn = true\nno-slots = true\ncors_origins = ["a", "b"]\nn = 5\n'
    path.write_text(f"{text}no-kvu = true\nnkvo = true\n")
    from ngramspec.cli.serve import serve

    with serve.make_context("serve", ["--config", str(path)], resilient_parsing=True) as context:
        assert context.params["flash_attn"] == "on"
        assert context.params["slots"] is False
        assert context.params["cors_origins"] == "a,b"
        assert context.params["predict"] == 5
        assert context.params["kv_unified"] is False
        assert context.params["kv_offload"] is False


@pytest.mark.parametrize(
    ("options", "drafts", "branches"),
    [
        (("-np", "2", "-kvu"), r"to 64 tokens in 4 branches \([\d.]+ .iB at most\) by policy", 4),
        (("-np", "1", "-c", "512", "--spec-tree", "2"), r"tokens in 2 branches \([\d.]+ .iB at", 2),
        (("-np", "2", "-kvu", "--spec-tree", "off"), "up to 64 tokens by policy auto\n", 1),
        (("-np", "2", "-kvu", "--policy", "fixed"), "up to 64 tokens by policy fixed\n", 1),
    ],
)
def test_the_start_tells_how_many_branches_a_draft_has(
    spawn: Any, options: tuple[str, ...], drafts: str, branches: int
) -> None:
    server = spawn(*options)
    speculation = httpx.get(f"{server.url()}/props").json()["speculative"]
    assert re.search(drafts, server.text)
    assert speculation["branches"] == branches
    assert (speculation["branch_bytes"] > 0) == (branches > 1)
    body = {"prompt": "a b c d a b c e a b c d a b", "n_predict": 20, "temperature": 0}
    answer = httpx.post(f"{server.url()}/completion", json=body, timeout=60).json()
    assert answer["tokens_predicted"] > 0
    assert server.end() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--spec-tree", "many"), "neither a number >= 1 nor auto nor off"),
        (("--spec-tree", "0"), "neither a number >= 1 nor auto nor off"),
        (("-np", "2", "--no-kv-unified", "--spec-tree", "2"), "branches need kv_unified"),
        (("-np", "9", "-kvu", "--spec-tree", "30"), r"branches must be in 1..28 with 9 slots"),
        (("--policy", "fixed", "--spec-tree", "2"), "only the policy auto chooses branches"),
    ],
)
def test_branches_that_cannot_be_had_are_an_error(options: tuple[str, ...], message: str) -> None:
    result = invoke("serve", "--port", "0", "-t", "1", *options)
    assert result.exit_code != 0
    assert message in result.stderr


IDLE = """
from ngramspec.llamacpp import saved_costs
from ngramspec.cli import main
# Other tests keep the machine busy.
saved_costs._busy = lambda *_: ""
saved_costs.DISAGREE = float("inf")
main()
"""


@pytest.mark.parametrize("options", [(), ("-np", "2", "-c", "48")])
def test_what_passes_cost_is_measured_at_the_first_start_only(
    spawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    body = {"prompt": "a b c a b c a b", "n_predict": 6, "temperature": 0}

    def start() -> str:
        server = spawn("--calibrate", "30", *options, program=("-c", IDLE))
        answer = httpx.post(f"{server.url()}/completion", json=body, timeout=60).json()
        assert answer["tokens_predicted"] == 6
        assert server.end() == 0
        return str(server.text)

    first = start()
    for _ in range(4):
        if "what passes cost is not known: in" in first:  # the machine is busy: it tries again
            first = start()
    assert first.count("measured the costs of passes in") == 1
    (path,) = (tmp_path / "ngramspec" / "costs").glob("*.json")
    written = path.stat().st_mtime_ns
    assert "measured the costs of passes in" not in start()
    assert path.stat().st_mtime_ns == written
