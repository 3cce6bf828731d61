"""Fields of other servers that change an answer: taken under our names, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.paths import ROOT
from helpers.scripted_model import ANSWER, ScriptedModel
from helpers.scripted_serving import serving_script
from helpers.serving import CHAT, Serving, serving
from ngramspec.arrays import TokenIds
from ngramspec.llamacpp.loading import Loading
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.models import embedded_model
from ngramspec.server.anthropic.plan import MessagesBody
from ngramspec.server.errors import ApiError
from ngramspec.server.llama_server.plan import NativeBody
from ngramspec.server.openai.plan import ChatBody, CompletionBody
from ngramspec.server.request.bodies import SamplingBody, parse
from ngramspec.server.request.other_servers import MAX_CHOICES, REFUSED, TAKEN
from ngramspec.server.responses.plan import ResponsesBody
from ngramspec.text.structured.guidance import ANY_OBJECT

BODIES: dict[type[SamplingBody], dict[str, Any]] = {
    ChatBody: {"messages": []},
    CompletionBody: {"prompt": "x"},
    NativeBody: {"prompt": "x"},
    MessagesBody: {"messages": []},
    ResponsesBody: {"input": "x"},
}
SCHEMA = {"type": "integer"}
# Field -> what changes the answer, and what does not. null never does.
VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "adaptive_target": ([0, 0.5], [-1, -0.5]),
    "allowed_token_ids": ([[1]], [[]]),
    "backend_sampling": ([True], [False]),
    "bad_words": ([["x"]], [[]]),
    "best_of": ([2], [1, 0]),
    "chat_template": (["{{ x }}"], [""]),
    "custom_logit_processor": (["x"], [""]),
    "do_sample": ([False], [True]),
    "documents": ([[{"text": "x"}]], [[]]),
    "echo": ([True], [False]),
    "grammar_lazy": ([True], [False]),
    "grammar_triggers": ([[{"type": "word"}]], [[]]),
    "guided_regex": (["a+"], [""]),
    "guided_whitespace_pattern": ([" ?"], [""]),
    "guideline": (["Be brief."], [""]),
    "include_reasoning": ([False], [True]),
    "include_stop_str_in_output": ([True], [False]),
    "logits_processors": ([["x"]], [[]]),
    "lora_path": (["x"], [""]),
    "min_tokens": ([5], [0]),
    "n_cache_reuse": ([256], [0]),
    "no_repeat_ngram_size": ([3], [0]),
    "no_stop_trim": ([True], [False]),
    "post_sampling_probs": ([True], [False]),
    "prompt_embeds": (["x"], [""]),
    "prompt_logprobs": ([0, 1, -1], [False]),
    "regex": (["a+"], [""]),
    "repetition_detection": ([{"max_pattern_size": 3}], [{}]),
    "response_format": ([{"type": "json_object"}], [{"type": "text"}, {}]),
    "separate_reasoning": ([False], [True]),
    "skip_special_tokens": ([False], [True]),
    "stop_regex": (["a+", ["a+"]], ["", []]),
    "stop_token_ids": ([[5]], [[]]),
    "structural_tag": (["{}"], [""]),
    "tool_prompt": (["Tools:"], [""]),
    "truncate_prompt_tokens": ([10, -1], [0]),
    "use_beam_search": ([True], [False]),
    "watermarking": ([True], [False]),
}


def read(kind: type[SamplingBody] = ChatBody, **members: Any) -> SamplingBody:
    return parse(json.dumps({**BODIES[kind], **members}).encode(), kind)


def refused(kind: type[SamplingBody] = ChatBody, **members: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(kind, **members)
    assert caught.value.status == 400
    return caught.value


def fields(body: SamplingBody, kind: type[SamplingBody] = ChatBody) -> dict[str, Any]:
    """Return the fields that a body has beside those of every such body."""
    return {k: v for k, v in body.model_dump(exclude_unset=True).items() if k not in BODIES[kind]}


def test_each_field_is_tested_and_documented() -> None:
    assert set(VALUES) == set(REFUSED)
    text = (ROOT / "docs" / "server" / "answers.md").read_text()
    for name in (*REFUSED, *TAKEN):
        assert f"`{name}" in text, name


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("name", VALUES)
def test_what_changes_the_answer_is_refused_by_its_name(
    kind: type[SamplingBody], name: str
) -> None:
    changing, neutral = VALUES[name]
    for value in [None, *neutral]:
        read(kind, **{name: value})
    for value in changing:
        if name in kind.model_fields:
            assert getattr(read(kind, **{name: value}), name) == value
            continue
        error = refused(kind, **{name: value})
        assert (error.param, error.code) == (name, "not_supported")
        assert error.message.startswith(f"{name} is not supported by this server")
        assert error.message.endswith(REFUSED[name])


@pytest.mark.parametrize("kind", BODIES)
def test_forms_of_the_answer_are_taken(kind: type[SamplingBody]) -> None:
    grammar = 'root ::= "a"+'
    choice = 'root ::= "no" | "ye" ("p" | "s")\n'
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"guided_json": SCHEMA}, {"json_schema": SCHEMA}),
        ({"guided_json": json.dumps(SCHEMA)}, {"json_schema": SCHEMA}),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, {"json_schema": SCHEMA}),
        ({"structured_outputs": {"json_object": True}}, {"json_schema": ANY_OBJECT}),
        ({"guided_grammar": grammar}, {"grammar": grammar}),
        ({"ebnf": grammar}, {"grammar": grammar}),
        ({"structured_outputs": {"grammar": grammar}}, {"grammar": grammar}),
        ({"guided_choice": ["yes", "no", "yep"]}, {"grammar": choice}),
        ({"structured_outputs": {"choice": ["yes", "no", "yep"]}}, {"grammar": choice}),
    ]
    for members, expected in cases:
        assert fields(read(kind, **members), kind) == expected


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("guided_json", [None, ""]),
        ("guided_grammar", [None, ""]),
        ("ebnf", [None, ""]),
        ("guided_choice", [None, []]),
        ("structured_outputs", [None, {}, {"json": None, "json_object": False, "regex": ""}]),
        ("repetition_penalty", [None, 0]),
        ("thinking_token_budget", [None, -1]),
    ],
)
def test_values_that_say_nothing_change_nothing(name: str, values: list[Any]) -> None:
    for value in values:
        assert fields(read(**{name: value})) == {}


@pytest.mark.parametrize(
    ("members", "param", "words"),
    [
        ({"guided_json": "{"}, "guided_json", "guided_json is no JSON: "),
        ({"guided_json": "[" * 100_000}, "guided_json", "guided_json is no JSON: "),
        ({"guided_json": '{"minimum": 1e999}'}, "guided_json", "1e999 is no finite number"),
        ({"guided_json": [SCHEMA]}, "guided_json", "must be a JSON schema"),
        ({"guided_grammar": 5}, "guided_grammar", "must be a grammar in GBNF"),
        ({"guided_choice": "yes"}, "guided_choice", "must be a list of texts"),
        ({"guided_choice": [1]}, "guided_choice", "must be a list of texts"),
        ({"guided_choice": ["x" * (MAX_CHOICES + 1)]}, "guided_choice", "at most 1048576"),
        ({"structured_outputs": 5}, "structured_outputs", "must be an object"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex", "use json, choice"),
        ({"structured_outputs": {"choice": 5}}, "structured_outputs.choice", "list of texts"),
        ({"structured_outputs": {"json": SCHEMA, "choice": ["a"]}}, "structured_outputs",
         "must have one of json, json_object, choice, grammar"),
        ({"repetition_penalty": "1.1"}, "repetition_penalty", "must be a number"),
        ({"repetition_penalty": True}, "repetition_penalty", "must be a number"),
        ({"thinking_token_budget": -2}, "thinking_token_budget", "must be an integer"),
        ({"thinking_token_budget": 0.5}, "thinking_token_budget", "must be an integer"),
    ],
)  # fmt: skip
def test_values_of_another_kind_are_refused(
    members: dict[str, Any], param: str, words: str
) -> None:
    error = refused(**members)
    assert error.param == param
    assert words in error.message


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (ChatBody, {"response_format": {"type": "json_object"}}),
        (NativeBody, {"json_schema": {}}),
        (NativeBody, {"grammar": "root ::= [a]"}),
        (ChatBody, {"guided_choice": ["a"]}),
        (ResponsesBody, {"text": {"format": {"type": "json_object"}}}),
        (MessagesBody, {"output_format": {"type": "json_schema", "schema": {}}}),
        (MessagesBody, {"output_config": {"format": {"type": "json_schema", "schema": {}}}}),
    ],
)
def test_an_answer_has_one_form(kind: type[SamplingBody], other: dict[str, Any]) -> None:
    error = refused(kind, guided_json=SCHEMA, **other)
    assert "exclude one another: give one of them" in error.message
    assert "guided_json" in error.message


def test_other_forms_that_say_nothing_are_no_second_form() -> None:
    read(guided_json=SCHEMA, response_format={"type": "text"}, grammar="", json_schema=None)
    read(guided_grammar="root ::= [a]", response_format={"type": "text"}, grammar="")
    read(ResponsesBody, guided_json=SCHEMA, text={"format": {"type": "text"}})
    read(MessagesBody, guided_json=SCHEMA, output_config={"effort": "low"})


def test_forms_of_our_own_are_not_compared_for_another_field() -> None:
    ours = {"response_format": {"type": "json_object"}, "json_schema": SCHEMA}
    assert fields(read(**ours, thinking_token_budget=7))["reasoning_budget_tokens"] == 7


def test_a_repetition_penalty_is_of_the_whole_context() -> None:
    expected = {"repeat_penalty": 1.2, "repeat_last_n": -1}
    expected |= {"frequency_penalty": 0.0, "presence_penalty": 0.0}  # not the server's own
    assert fields(read(repetition_penalty=1.2)) == expected
    with_the_same = read(repetition_penalty=1.2, repeat_last_n=-1, frequency_penalty=0)
    assert fields(with_the_same) == expected
    # 1 is no penalty, whatever the server's own one is
    assert fields(read(repetition_penalty=1.0)) == {"repeat_penalty": 1.0}
    # clients that write both names mean llama-server's
    both: dict[str, Any] = {"repeat_penalty": 1.2, "repeat_last_n": 64}
    assert fields(read(repetition_penalty=1.2, **both)) == both
    assert fields(read(repetition_penalty=1, **both)) == both


@pytest.mark.parametrize(
    "other",
    [
        {"repeat_penalty": 1.3},
        {"repeat_last_n": 64},
        {"repeat_last_n": 0},
        {"frequency_penalty": -1},
        {"presence_penalty": 0.5},
    ],
)
def test_a_repetition_penalty_beside_what_it_would_change_is_refused(other: Any) -> None:
    error = refused(repetition_penalty=1.2, **other)
    assert error.param == "repetition_penalty"
    assert next(iter(other)) in error.message


def test_unknown_fields_are_told_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "ngramspec.server.request.bodies"):
        read(messages=CHAT, temprature=1, max_token=5, lora=[], **{"speculative.n_max": 3})
    assert caplog.messages == ["unknown fields: 'temprature, max_token'"]


def test_a_budget_of_thoughts_has_two_names() -> None:
    assert fields(read(thinking_token_budget=0)) == {"reasoning_budget_tokens": 0}
    same = read(thinking_token_budget=7, reasoning_budget_tokens=7)
    assert fields(same) == {"reasoning_budget_tokens": 7}
    error = refused(thinking_token_budget=7, reasoning_budget_tokens=8)
    assert error.message == (
        "thinking_token_budget and reasoning_budget_tokens differ: give one of them"
    )


ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/completions": {"prompt": "x"},
    "/completion": {"prompt": "x"},
    "/v1/messages": {"messages": CHAT, "max_tokens": 32},
    "/v1/responses": {"input": "x"},
}


@pytest.mark.parametrize("path", ROUTES)
def test_routes_refuse_and_take_them(server: Serving, path: str) -> None:
    reply = server.post(path, **ROUTES[path], stop_token_ids=[5])
    assert reply.status_code == 400
    assert "stop_token_ids is not supported by this server: use stop" in reply.text
    reply = server.post(path, **ROUTES[path], guided_choice=["seven"], stop_token_ids=[])
    assert reply.status_code == 200, reply.text
    assert "seven" in reply.text


def test_penalties_and_schemas_reach_the_sampler() -> None:
    with serving_script("7") as client:
        asked = {"prompt": "x", "repetition_penalty": 1.5, "guided_json": SCHEMA}
        settings = client.post("/completion", json=asked).json()["generation_settings"]
    assert (settings["repeat_penalty"], settings["repeat_last_n"]) == (1.5, -1)
    assert "integer" in settings["grammar"]


class Beginning(ScriptedModel):
    """A model with a begin token, which its chat template writes."""

    bos, add_bos = 2, True
    BEGIN = "\x02"

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> TokenIds:
        return super().tokenize(f"{self.BEGIN if add_special else ''}{text}")

    def tokenize_prompt(self, text: str) -> TokenIds:
        return self.tokenize(text.removeprefix(self.BEGIN))

    def render_chat(self, *arguments: Any, **settings: Any) -> str:
        return self.BEGIN + super().render_chat(*arguments, **settings)


@pytest.fixture(scope="module")
def beginning() -> Iterator[Serving]:
    """A server on a model that wants a begin token, which its chat template writes, too."""
    wants = Loading(metadata={"tokenizer.ggml.add_bos_token": True})
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    with (
        LlamaModel(embedded_model(), loading=wants) as model,
        serving(model, exact=False, served={"template": template}) as server,
    ):
        yield server


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(("add", "begins"), [(None, 1), (False, 1), (True, 2)])
def test_the_begin_token_of_a_real_template_stays(
    beginning: Serving, path: str, add: bool | None, begins: int
) -> None:
    chat = path not in ("/completion", "/v1/completions")
    text = ROUTES[path].get("prompt", "x" if "input" in ROUTES[path] else CHAT[0]["content"])
    plain = beginning.served.model.tokenize(text, add_special=False, parse_special=True)
    few = {"max_tokens": 2, "max_output_tokens": 2, "cache_prompt": False}
    body = {**ROUTES[path], **few, "add_special_tokens": add}
    answer = beginning.post(path, **body).json()
    figures = {**answer, **answer.get("usage", {})}
    names = ("prompt_tokens", "input_tokens", "tokens_evaluated")
    size = next(int(figures[name]) for name in names if name in figures)
    assert size == plain.size + (begins if chat else add is not False)


def test_a_text_that_begins_with_the_begin_token_gets_no_second_one(beginning: Serving) -> None:
    begin = beginning.client.get("/props").json()["bos_token"]
    assert begin
    one = {"messages": [{"role": "user", "content": "def"}]}
    assert beginning.post("/apply-template", **one).json()["prompt"] == "def"  # as llama-server
    for text in ("def", f"{begin}def"):
        answer = beginning.post("/completion", prompt=text, n_predict=1).json()
        assert answer["prompt"] == f"{begin}def"
        answer = beginning.post("/completion", prompt=[text, 5], n_predict=1).json()
        assert answer["prompt"].startswith(f"{begin}def")
        tokens = beginning.post("/tokenize", content=text, add_special=True).json()["tokens"]
        assert tokens.count(beginning.served.model.bos) == 1
        answer = beginning.complete(prompt=text, max_tokens=1)
        assert answer.usage.prompt_tokens == len(tokens)
        raw = {"model": "tiny", "raw": True, "stream": False, "options": {"num_predict": 1}}
        answer = beginning.post("/api/generate", prompt=text, **raw).json()
        assert answer["prompt_eval_count"] == len(tokens)


@pytest.mark.parametrize("path", ROUTES)
def test_special_tokens_are_added_as_in_vllm(path: str) -> None:
    with serving_script("7", kind=Beginning) as client:

        def size(**more: Any) -> int:
            """Return how many tokens the prompt of a request has."""
            body = {**ROUTES[path], **more, "cache_prompt": False}
            answer = client.post(path, json=body).json()
            figures = {**answer, **answer.get("usage", {})}
            names = ("prompt_tokens", "input_tokens", "tokens_evaluated")
            return next(int(figures[name]) for name in names if name in figures)

        usual = size()
        assert size(add_special_tokens=None) == usual
        if path in ("/v1/completions", "/completion"):
            assert size(add_special_tokens=True) == usual
            assert size(add_special_tokens=False) == usual - 1
        else:
            assert size(add_special_tokens=True) == usual + 1
            assert size(add_special_tokens=False) == usual


@pytest.mark.parametrize(("add", "more"), [(None, 0), (False, 0), (True, 1)])
def test_special_tokens_are_counted_as_they_are_added(add: bool | None, more: int) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "add_special_tokens": add}
    with serving_script("7", kind=Beginning) as client:
        answer = client.post("/v1/chat/completions/input_tokens", json=body).json()
    assert answer["input_tokens"] == len(f"{Beginning.BEGIN}user: x{ANSWER}") + more


@pytest.mark.parametrize("settings", [{}, {"reasoning_format": "none"}])
def test_reasoning_is_left_out_of_a_chat_and_counted(settings: dict[str, Any]) -> None:
    thought, path = "<think>Well.</think>", "/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": "?"}], "include_reasoning": False}
    with serving_script(f"{thought}Yes.", **settings) as client:
        whole = client.post(path, json=body).json()
        streamed = client.post(path, json={**body, "stream": True}).text.splitlines()
        asked = client.post(path, json={**body, "include_reasoning": True}).text
    message = whole["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes.", "refusal": None}
    details = whole["usage"]["completion_tokens_details"]
    assert details["reasoning_tokens"] == len(thought)
    events = [json.loads(line[6:]) for line in streamed if line.startswith("data: {")]
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Yes."
    assert all("reasoning_content" not in delta for delta in deltas)
    assert "Well." in asked


def test_reasoning_that_is_to_stay_cannot_be_left_out() -> None:
    body = {"messages": [{"role": "user", "content": "?"}], "reasoning_format": "none"}
    with serving_script("Yes.") as client:
        reply = client.post("/v1/chat/completions", json={**body, "include_reasoning": False})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "include_reasoning"


def test_ollamas_routes_ignore_them_as_ollama_does(server: Serving) -> None:
    asked = {"model": "tiny", "prompt": "x", "stream": False, "min_tokens": 5}
    options = {"num_predict": 1, "stop_token_ids": [5]}
    assert server.post("/api/generate", **asked, options=options).status_code == 200
