"""POST /api/chat, asked by Ollama's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import ollama
import pytest

from helpers.ollama_serving import GREEDY, TIME, check_figures, lines
from helpers.scripted_serving import serving_script
from helpers.serving import ANSWER, CHAT, THINKING, Serving, Start, serving
from ngramspec.engine import Sampling
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.server.ollama.events import read_calls

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[ollama.Client]:
    with ollama.Client(server.url) as client:
        yield client


def test_a_chat_is_answered(client: ollama.Client) -> None:
    answer = client.chat("tiny", CHAT, options=GREEDY)
    assert answer.message.content == ANSWER
    assert answer.message.role == "assistant"
    assert answer.message.thinking is None
    assert answer.message.tool_calls is None
    assert answer.done is True
    assert answer.done_reason == "stop"
    assert answer.model == "tiny"


def test_streaming_is_the_default_and_lines_have_ollamas_members(server: Serving) -> None:
    parts = lines(server, "/api/chat", messages=CHAT, options=GREEDY)
    for line in parts:
        assert TIME.fullmatch(line["created_at"])
        assert line["model"] == "tiny"
        assert line["message"]["role"] == "assistant"
        assert set(line["message"]) == {"role", "content"}
    assert set(parts[0]) == {"model", "created_at", "message", "done"}
    check_figures(parts[-1])
    assert parts[-1]["draft_n_accepted"] > 0


def test_a_whole_answer_has_figures_too(server: Serving) -> None:
    reply = server.post("/api/chat", model="tiny", messages=CHAT, stream=False, options=GREEDY)
    assert reply.headers["content-type"] == "application/json"
    check_figures(reply.json())
    assert TIME.fullmatch(reply.json()["created_at"])
    assert "context" not in reply.json()


@pytest.mark.parametrize("stop", ["width", ["nothing", "width"]])
def test_stop_texts_are_cut_off(client: ollama.Client, stop: Any) -> None:
    answer = client.chat("tiny", CHAT, options={**GREEDY, "stop": stop})
    assert answer.message.content == ANSWER.split("width")[0]
    assert answer.done_reason == "stop"


def test_seeds_repeat_an_answer(client: ollama.Client) -> None:
    options = {"temperature": 1.5, "num_predict": 30, "seed": 7, "top_k": 0, "top_p": 1.0}
    words = "Show the function `f` from this file:\n\n```python\n```"  # it holds none
    ask = [{"role": "user", "content": words}]
    first, again = (client.chat("tiny", ask, options=options).message.content for _ in range(2))
    other = client.chat("tiny", ask, options={**options, "seed": 8}).message.content
    assert first == again != other


def test_all_options_are_taken(client: ollama.Client) -> None:
    every_option = ollama.Options(
        num_ctx=2048, num_batch=512, num_gpu=0, num_thread=2, num_keep=4, seed=1, num_predict=4,
        top_k=20, top_p=0.9, typical_p=0.9, repeat_last_n=32, temperature=0.5, repeat_penalty=1.1,
        presence_penalty=0.1, frequency_penalty=0.1, mirostat=0, mirostat_tau=5, mirostat_eta=0.1,
        penalize_newline=True, stop=["\n\n\n"], use_mmap=True, tfs_z=1.0,
    )  # fmt: skip
    answer = client.chat("tiny", CHAT, options=every_option, keep_alive="5m")
    assert 0 < answer.eval_count <= 4


@pytest.mark.parametrize("stream", [True, False])
def test_drafts_can_be_chosen_in_the_options(server: Serving, stream: bool) -> None:
    for options in ({"speculative.enabled": False}, {"speculative": {"types": "none"}}):
        answer = server.post(
            "/api/chat", model="tiny", messages=CHAT, stream=stream, options={**GREEDY, **options}
        )
        last = json.loads(answer.text.splitlines()[-1])
        check_figures(last)
        assert "draft_n" not in last


def test_json_answers_are_json(client: ollama.Client) -> None:
    ask = [{"role": "user", "content": "Write a JSON object"}]
    for seed in range(2):
        options = {"temperature": 1.0, "seed": seed, "num_predict": 100}
        answer = client.chat("tiny", ask, format="json", options=options)
        assert answer.message.content.startswith("{")
        if answer.done_reason == "stop":
            assert isinstance(json.loads(answer.message.content), dict)


def test_a_schema_is_followed(client: ollama.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"color": {"enum": ["red", "blue"]}, "ready": {"type": "boolean"}},
        "required": ["color", "ready"],
    }
    parts = client.chat("tiny", CHAT, format=schema, options=GREEDY, stream=True)
    answer = json.loads("".join(part.message.content or "" for part in parts))
    assert answer["color"] in ("red", "blue")
    assert isinstance(answer["ready"], bool)


def test_thinking_is_told_apart_when_asked_for(client: ollama.Client) -> None:
    options = {"temperature": 0, "num_predict": 150}
    plain = client.chat("tiny", THINKING, options=options).message
    assert plain.content.startswith("<think>")
    assert plain.thinking is None
    whole = client.chat("tiny", THINKING, options=options, think="low").message
    assert plain.content.split("</think>")[1].strip() == whole.content.strip()
    assert whole.thinking


GPT_OSS = "<|start|>assistant<|channel|>final<|message|> {{ tools }}"
GPT_OSS_SAYS = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
)


@pytest.mark.parametrize(
    ("template", "script", "able"),
    [
        ("{{ tools }} <think>", "<think>Hm.</think>Yes.", True),
        (GPT_OSS, GPT_OSS_SAYS, True),
        ("{{ tools }}", "<think>Hm.</think>Yes.", False),
    ],
)
def test_models_that_know_thinking_think_by_default(template: str, script: str, able: bool) -> None:
    body: Any = {"model": "tiny", "messages": CHAT, "stream": False}
    with serving_script(script, template) as client:
        message = client.post("/api/chat", json=body).json()["message"]
        written = client.post("/api/generate", json={**body, "prompt": "?"}).json()
        parts = client.post("/api/chat", json={**body, "stream": True}).text.splitlines()
    streamed = [json.loads(part)["message"] for part in parts]
    thought = "".join(part.get("thinking", "") for part in streamed)
    content = "".join(part["content"] for part in streamed)
    assert (message.get("thinking", ""), message["content"]) == (thought, content)
    assert (written.get("thinking", ""), written["response"]) == (thought, content)
    assert (thought, content) == (("Hm.", "Yes.") if able else ("", script))


def test_headers_tell_thinking_also_where_it_is_not_asked_for() -> None:
    body: Any = {"model": "tiny", "messages": CHAT, "stream": False, "think": False}
    with serving_script(GPT_OSS_SAYS, GPT_OSS) as client:
        message = client.post("/api/chat", json=body).json()["message"]
    assert (message["thinking"], message["content"]) == ("Hm.", "Yes.")


@pytest.fixture(scope="module")
def calling(model: LlamaModel) -> Iterator[ollama.Client]:
    """A client of a server whose model likes to end, or else "<"; a grammar does the rest."""
    bias = {int(model.tokenize("<", add_special=False)[0]): 50.0, model.eos: 60.0}
    sampling = Sampling(temperature=0, logit_bias=bias)
    settings = {"sampling": sampling}
    with serving(model, slots=1, served=settings) as server, ollama.Client(server.url) as client:
        yield client


def test_calls_are_found_and_have_objects_as_arguments(calling: ollama.Client) -> None:
    options = {**GREEDY, "num_predict": 300}
    settings: Any = {"tools": [WEATHER], "format": {"type": "boolean"}, "options": options}
    whole = calling.chat("tiny", CHAT, **settings)
    (call,) = whole.message.tool_calls
    assert call.function.name == "get_weather"
    assert call.function.arguments["city"] in ("Oslo", "Rome")
    assert whole.message.content == ""
    assert whole.done_reason == "stop"
    parts = list(calling.chat("tiny", CHAT, stream=True, **settings))
    streamed = [call for part in parts for call in part.message.tool_calls or []]
    assert streamed == [call]
    assert "".join(part.message.content for part in parts) == ""


def test_parallel_calls_count_up_and_have_ids() -> None:
    """Open WebUI makes one call of those with the same index, and of those without any."""
    cities = ["Oslo", "Rome"]
    script = "".join(
        f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'
        for city in cities
    )
    body: Any = {"model": "tiny", "messages": CHAT, "tools": [WEATHER], "stream": False}
    with serving_script(script) as client:
        whole = client.post("/api/chat", json=body).json()["message"]["tool_calls"]
        parts = client.post("/api/chat", json={**body, "stream": True}).text.splitlines()
    streamed = [
        call for part in parts for call in json.loads(part)["message"].get("tool_calls", [])
    ]
    for calls in (whole, streamed):
        assert [call["function"]["index"] for call in calls] == [0, 1]
        assert [call["function"]["arguments"]["city"] for call in calls] == cities
        assert len({call["id"] for call in calls if call["id"].startswith("call_")}) == 2


def test_a_call_that_is_cut_off_is_text(calling: ollama.Client) -> None:
    settings: Any = {"tools": [WEATHER], "format": {"type": "boolean"}}
    for num_predict in range(8, 24, 5):
        options = {"num_predict": num_predict}
        answer = calling.chat("tiny", CHAT, options=options, **settings)
        parts = calling.chat("tiny", CHAT, options=options, stream=True, **settings)
        assert "".join(part.message.content for part in parts) == answer.message.content
        assert bool(answer.message.content) != bool(answer.message.tool_calls)


@pytest.mark.parametrize("wrong", ['{"a": ' + "[" * 100_000, '{"a": 1e999}', '{"a": NaN}'])
def test_a_call_whose_arguments_no_client_can_read_is_text(wrong: str) -> None:
    cut = {"id": "call_1", "index": 0, "name": "f", "arguments": wrong}
    calls, loose = read_calls([cut, {"id": "call_2", "index": 1, "name": "g", "arguments": ""}])
    assert calls == [{"id": "call_2", "function": {"index": 1, "name": "g", "arguments": {}}}]
    assert loose == '{"name": "f", "arguments": ' + wrong


def test_a_conversation_with_a_call_and_its_result_goes_on(client: ollama.Client) -> None:
    function = {"name": "get_weather", "arguments": {"city": "Oslo"}}
    ask: list[Any] = [
        {"role": "system", "content": "Be brief."},
        *CHAT,
        {"role": "assistant", "content": "", "tool_calls": [{"function": function}]},
        {"role": "tool", "tool_name": "get_weather", "content": "rain"},
    ]
    answer = client.chat("tiny", ask, tools=[WEATHER], options={"num_predict": 4, "temperature": 0})
    assert answer.eval_count > 0
    assert answer.prompt_eval_count > 60


def test_the_oldest_messages_of_a_chat_that_is_too_long_are_left_out(
    start: Start,
) -> None:
    server = start(slots=1, context_size=256)
    old = [{"role": role, "content": "a b c " * 10} for role in ("user", "assistant") * 8]
    ask = [{"role": "system", "content": "Be brief."}, *old, *CHAT]
    with ollama.Client(server.url) as client:
        answer = client.chat("tiny", ask, options={"num_predict": 4})
        shorter = client.chat("tiny", ask[-3:], options={"num_predict": 4})
    assert shorter.prompt_eval_count < answer.prompt_eval_count <= 256 - 4
    refused = server.post("/api/chat", model="tiny", messages=ask, truncate=False)
    assert refused.status_code == 400
    assert "maximum context length is 256" in refused.json()["error"]


def test_a_chat_that_can_never_fit_is_refused_before_it_is_tokenized(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(slots=1, context_size=256)
    model, read = server.served.model, list[int]()
    tokenize = model.tokenize_prompt
    monkeypatch.setattr(
        model, "tokenize_prompt", lambda text: (read.append(len(text)), tokenize(text))[1]
    )
    long = "a b c " * 20_000
    system = {"role": "system", "content": long}
    for ask, truncate in (
        ([system, *CHAT * 50], True),
        ([{"role": "user", "content": long}], True),
        ([{"role": "user", "content": long}, *CHAT], False),
    ):
        reply = server.post("/api/chat", model="tiny", messages=ask, truncate=truncate)
        assert reply.status_code == 400
        assert "maximum context length is 256" in reply.json()["error"]
    assert not read
    reply = server.post("/api/chat", model="tiny", messages=[{**system, "role": "user"}, *CHAT])
    assert reply.status_code == 200
    assert max(read) < len(long) / 2


def test_log_probabilities_are_told(server: Serving) -> None:
    body = {"messages": CHAT, "options": GREEDY, "logprobs": True, "top_logprobs": 2}
    parts = lines(server, "/api/chat", **body)
    streamed = [entry for line in parts for entry in line.get("logprobs", [])]
    assert len(streamed) == parts[-1]["eval_count"]
    whole = server.post("/api/chat", model="tiny", stream=False, **body).json()
    assert [one["token"] for one in whole["logprobs"]] == [one["token"] for one in streamed]
    assert all(len(one["top_logprobs"]) == 2 for one in streamed)


def test_log_probabilities_of_a_stop_text_are_told_in_a_stream_too() -> None:
    options = {"stop": ["two"], "speculative.enabled": False}
    body: Any = {"model": "tiny", "messages": CHAT, "logprobs": True, "options": options}
    with serving_script("one:two") as client:
        whole = client.post("/api/chat", json={**body, "stream": False}).json()["logprobs"]
        parts = client.post("/api/chat", json=body).text.splitlines()
    streamed = [entry for part in parts for entry in json.loads(part).get("logprobs", [])]
    assert "".join(entry["token"] for entry in streamed) == "one:two"
    assert streamed == whole


@pytest.mark.parametrize(
    "keep", [None, "10m", 0, "0s", -1, "-1", "-1m", "24h", "1h30m", 3600, 0.5, ""]
)
def test_a_chat_without_messages_loads_or_unloads(server: Serving, keep: Any) -> None:
    reason = "unload" if keep in (0, "0s") else "load"
    for stream in (True, False):
        answer = server.post("/api/chat", model="tiny", stream=stream, keep_alive=keep)
        body = json.loads(answer.text)
        assert (body["done"], body["done_reason"]) == (True, reason)
        assert body["message"] == {"role": "assistant", "content": ""}


def test_options_that_ollama_clamps_or_ignores_are_told_in_the_log(
    server: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    def content(**options: Any) -> str:
        options = {"temperature": 0, "num_predict": 8, **options}
        body = {"model": "tiny", "messages": CHAT, "options": options, "stream": False}
        answer = server.post("/api/chat", **body).json()
        return str(answer["message"]["content"])

    assert content(num_ctx=100000) == content(temprature=1, other="x") == content()
    assert (
        content(num_gpu=99, use_mmap=True, low_vram=False, vocab_only=True, numa=True) == content()
    )
    assert content(temperature=-1, top_k=40.5, num_thread=-1, seed=None) == content()
    assert content(num_ctx=2048, num_keep=-1, tfs_z=0.5, penalize_newline=True) == content()
    messages = (
        "num_ctx is 100000, but a request has 2048 tokens here: see --ctx-size",
        "left out unknown options: 'other, temprature'",
        "settled at the server's start: 'low_vram, num_gpu, numa, use_mmap, vocab_only'",
        "brought into range: 'num_thread, temperature, top_k'; "
        "settled at the server's start: 'num_thread'",
    )
    assert tuple(record.getMessage() for record in caplog.records) == messages  # a line each


def test_bounds_of_drafts_have_modelfiles_names(server: Serving) -> None:
    def drafted(**options: Any) -> int:
        options = {"temperature": 0, "num_predict": 40, **options}
        body = {"model": "tiny", "messages": CHAT, "options": options, "stream": False}
        return int(server.post("/api/chat", **body).json().get("draft_n", 0))

    assert drafted(draft_max=0) == drafted(draft_min=500) == 0
    assert 0 < drafted(draft_max=1, draft_p_min=0.5) < drafted()
    body = {"model": "tiny", "messages": CHAT, "options": {"draft_max": "x"}}
    assert "speculative.n_max must be an integer" in server.post("/api/chat", **body).text


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"options": {"top_p": "2"}}, "top_p: expected a number from 0 to 1"),
    ({"options": {"stop": ["x"] * 129}}, "stop must have at most 128 texts, got 129"),
    ({"keep_alive": {}}, "keep_alive is wrong"),
    ({"options": {"speculative.typos": 1}}, "unknown field speculative.typos"),
    ({"format": "xml"}, 'expected "json" or a valid JSON Schema object'),
    ({"think": "much"}, "think must be true, false, low, medium, high"),
    ({"messages": [{"role": "user", "content": "", "images": ["aGk="]}]}, "text only, no images"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role must be one of"),
    ({"messages": ["x"]}, "messages[0] is wrong"),
    ({"tools": [{"type": "function"}]}, "tools[0].function must be an object"),
    ({"model": ""}, "model is required"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_wrong_requests_are_told_in_ollamas_shape(
    server: Serving, change: dict[str, Any], message: str
) -> None:
    answer = server.client.post("/api/chat", json={"model": "tiny", "messages": CHAT, **change})
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]
    assert message in answer.json()["error"]
