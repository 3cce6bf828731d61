"""llama-server's own routes: /completion, /tokenize, /detokenize, /apply-template."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helpers.serving import CHAT, Serving
from ngramspec.server.llama_server import routes

MEMBERS = {
    "index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted",
    "tokens_evaluated", "generation_settings", "prompt", "has_new_line", "truncated", "stop_type",
    "stopping_word", "tokens_cached", "timings",
}  # fmt: skip


def complete(server: Serving, **body: Any) -> Any:
    reply = server.post("/completion", **{"prompt": "def area(", "n_predict": 8, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def events_of(server: Serving, **body: Any) -> list[dict[str, Any]]:
    fields = {"prompt": "def area(", "n_predict": 8, "stream": True, **body}
    reply = server.post("/completion", **fields)
    assert "[DONE]" not in reply.text
    parts = reply.text.removesuffix("\n\n").split("\n\n")
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def test_a_completion_has_llama_servers_members(server: Serving) -> None:
    answer = complete(server)
    assert set(answer) == MEMBERS
    assert answer["stop"] is True
    assert answer["stop_type"] == "limit"
    assert answer["tokens_predicted"] == 8
    ids = server.post("/tokenize", content="def area(").json()["tokens"]
    assert answer["tokens_evaluated"] == len(ids)
    assert answer["tokens"] == []
    assert answer["prompt"] == "def area("
    assert answer["has_new_line"] is ("\n" in answer["content"])
    assert answer["truncated"] is False
    assert answer["generation_settings"]["speculative.types"] == "ngram-mod,ngram-cache"
    assert answer["generation_settings"]["n_predict"] == 8
    assert answer["timings"]["predicted_n"] == 8


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_both_paths_answer(server: Serving, path: str) -> None:
    assert server.post(path, prompt="x", n_predict=1).json()["tokens_predicted"] == 1


def test_a_stream_ends_with_an_object_that_says_so(server: Serving) -> None:
    whole = complete(server, n_predict=16, return_tokens=True)
    events = events_of(server, n_predict=16, return_tokens=True)
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [token for event in events for token in event["tokens"]] == whole["tokens"]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert set(events[-1]) == MEMBERS
    counts = [event["tokens_predicted"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 16


def test_prompts_mix_texts_and_ids(server: Serving) -> None:
    ids = server.post("/tokenize", content="def area(").json()["tokens"]
    text = complete(server)["content"]
    assert complete(server, prompt=ids)["content"] == text
    assert complete(server, prompt=[*ids[:-1], "("])["content"] == text
    assert complete(server, prompt={"prompt_string": "def area("})["content"] == text
    several = complete(server, prompt=["def area(", ids, "class "])
    assert [one["index"] for one in several] == [0, 1, 2]
    assert [one["content"] for one in several[:2]] == [text, text]


def test_several_answers_come_in_a_list(server: Serving) -> None:
    answers = complete(server, n_cmpl=2, seed=3, temperature=1.0)
    assert [one["index"] for one in answers] == [0, 1]
    seeds = [one["generation_settings"]["seed"] for one in answers]
    assert seeds == [3, 4]


@pytest.mark.parametrize(
    ("fields", "stop_type", "word"),
    [
        ({"stop": ["height"], "prompt": CHAT[0]["content"] + "\n\n"}, "word", "height"),
        ({"grammar": 'root ::= "ab"'}, "eos", ""),
        ({"n_predict": 2}, "limit", ""),
    ],
)
def test_the_reason_to_stop_is_told(
    server: Serving, fields: dict[str, Any], stop_type: str, word: str
) -> None:
    answer = complete(server, **{"n_predict": 60, "logit_bias": [["height", 50]], **fields})
    assert answer["stop_type"] == stop_type
    assert answer["stopping_word"] == word


def test_probabilities_come_with_n_probs(server: Serving) -> None:
    answer = complete(server, n_probs=2, n_predict=3)
    entries = answer["completion_probabilities"]
    assert len(entries) == 3
    assert all(set(one) == {"id", "token", "logprob", "bytes", "top_logprobs"} for one in entries)
    assert [len(one["top_logprobs"]) for one in entries] == [2, 2, 2]
    assert entries[0]["top_logprobs"][0]["id"] == entries[0]["id"]
    events = events_of(server, n_probs=2, n_predict=3)
    streamed = [p for event in events for p in event.get("completion_probabilities", [])]
    assert [one["id"] for one in streamed] == [one["id"] for one in entries]


def test_response_fields_pick_members(server: Serving) -> None:
    answer = complete(server, response_fields=["content", "generation_settings/n_predict", "none"])
    assert set(answer) == {"content", "generation_settings/n_predict"}
    assert answer["generation_settings/n_predict"] == 8
    assert len(complete(server, response_fields=[])) > 10


def test_response_fields_leave_the_text_of_a_stream_whole(server: Serving) -> None:
    whole = complete(server, n_probs=1)
    events = events_of(server, n_probs=1, response_fields=["timings", "tokens"])
    assert set(events[-1]) == {"timings", "tokens"}
    assert "".join(one["content"] for one in events[:-1]) == whole["content"]
    ids = [token for one in events[:-1] for token in one["tokens"]]
    assert len(ids) == whole["tokens_predicted"]
    entries = [prob for one in events for prob in one.get("completion_probabilities", ())]
    assert [one["id"] for one in entries] == ids


def test_a_slot_can_be_chosen(server: Serving) -> None:
    assert [complete(server, id_slot=slot, n_predict=1)["id_slot"] for slot in (2, 0)] == [2, 0]


def test_a_seed_that_is_left_open_is_told(server: Serving) -> None:
    seed = complete(server, temperature=1.0)["generation_settings"]["seed"]
    again = complete(server, temperature=1.0, seed=seed)
    assert again["generation_settings"]["seed"] == seed
    assert 0 <= seed < 1 << 32


def test_a_time_limit_ends_an_answer(server: Serving) -> None:
    answer = complete(server, n_predict=2000, ignore_eos=True, t_max_predict_ms=30)
    assert 0 < answer["tokens_predicted"] < 2000
    assert answer["stop_type"] == "limit"


def test_a_json_schema_shapes_the_answer(server: Serving) -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}
    flags = json.loads(complete(server, json_schema=schema, n_predict=100)["content"])
    assert 2 <= len(flags) <= 3
    assert all(isinstance(one, bool) for one in flags)


def test_infinite_biases_do_not_break_the_answers_json(server: Serving) -> None:
    answer = complete(server, logit_bias=[[5, False]], n_predict=1)
    assert answer["generation_settings"]["logit_bias"] == [{"token": 5, "bias": None}]
    answer = complete(server, logit_bias=[[5, -(10**400)]], n_predict=1)
    assert answer["generation_settings"]["logit_bias"] == [{"token": 5, "bias": None}]


def test_tokenize_and_detokenize_are_inverse(server: Serving) -> None:
    text = "naïve café — ☃ def f():\n    pass"
    ids = server.post("/tokenize", content=text).json()["tokens"]
    assert server.post("/detokenize", tokens=ids).json() == {"content": text}
    pieces = server.post("/tokenize", content="☃", with_pieces=True).json()["tokens"]
    whole = b"".join(
        bytes(p["piece"]) if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces
    )
    assert whole.decode() == "☃"


def test_the_text_of_tokens_is_bounded(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    (token,) = server.post("/tokenize", content="a").json()["tokens"]
    monkeypatch.setattr(routes, "MAX_TOKENS", 100)
    monkeypatch.setattr(routes, "MAX_BYTES", 90)
    assert server.post("/detokenize", tokens=[token] * 90).json() == {"content": "a" * 90}
    for count, words in ((91, "bytes of text"), (101, "at most 100 members")):
        reply = server.post("/detokenize", tokens=[token] * count)
        assert reply.status_code == 400
        assert words in reply.json()["error"]["message"]


def test_special_tokens_are_parsed_unless_told_otherwise(server: Serving) -> None:
    one = server.post("/tokenize", content="<|im_end|>").json()["tokens"]
    many = server.post("/tokenize", content="<|im_end|>", parse_special=False).json()["tokens"]
    assert len(one) == 1
    assert len(many) > 1
    mixed = server.post("/tokenize", content=[one[0], "a"]).json()["tokens"]
    assert mixed[0] == one[0]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/completion", {"n_predict": 1}, 400),
        ("/completion", {"prompt": ""}, 400),
        ("/completion", {"prompt": {"prompt_string": "x", "multimodal_data": ["y"]}}, 400),
        ("/completion", {"prompt": "x", "stop": 5}, 400),
        ("/completion", {"prompt": "x", "top_p": "7"}, 400),
        ("/completion", {"prompt": "x", "grammar": "root"}, 400),
        ("/completion", {"prompt": "x", "json_schema": {"type": "dragon"}}, 400),
        ("/tokenize", {"content": 5}, 400),
        ("/tokenize", {"content": [-1]}, 400),
        ("/detokenize", {"tokens": [10**9]}, 400),
        ("/detokenize", {"tokens": "x"}, 400),
        ("/apply-template", {}, 400),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}, 501),
    ],
)
def test_errors_have_llama_servers_shape(
    server: Serving, path: str, body: dict[str, Any], status: int
) -> None:
    reply = server.post(path, **body)
    assert reply.status_code == status
    error = reply.json()["error"]
    assert error["code"] == status
    assert error["type"] == {400: "invalid_request_error", 501: "not_supported_error"}[status]
    assert error["message"]


def test_settings_of_an_answer_that_ignores_the_end_tell_its_bias(server: Serving) -> None:
    answer = server.post("/completion", prompt="x", n_predict=1, ignore_eos=True).json()
    (bias,) = answer["generation_settings"]["logit_bias"]
    assert bias == {"token": server.served.model.eos, "bias": None}
