"""LLM: one prompt or many, text, ids or chat, streams; every documented error; its end."""

from __future__ import annotations

import gc
import json
import multiprocessing
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.serving import wait_until
from helpers.together import run_together
from ngramspec import LLM, NgramCache, embedded_model
from ngramspec.engine import Generation, Request, Sampling, Speculation
from ngramspec.engine.policy import AutoPolicy
from ngramspec.errors import BackendError, ChatError, FormatError, InputError, StateError
from ngramspec.llamacpp.draft_model import DraftModelSettings
from ngramspec.llamacpp.fit import Limits
from ngramspec.llamacpp.rope import Rope
from ngramspec.text.chat.format import chat_format
from ngramspec.text.chat.grammar import chat_grammar
from ngramspec.text.chat.reasoning import REASONING_FORMATS, ReasoningFormat
from ngramspec.text.chat.tools import tools_of

CODE = "def area(width, height):\n    return width * height\n"
CHAT = [{"role": "user", "content": f"Repeat this code:\n\n```python\n{CODE}```"}]
THINK = [
    {
        "role": "user",
        "content": f"Think, then rename `width` to `w` in this code:\n\n```python\n{CODE}```",
    }
]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
        },
    },
}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 40}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    # Exact, so that a batch of two says what one alone does.
    with LLM(slots=2, exact=True) as exact:
        yield exact


def test_a_text_gives_one_result_and_a_list_a_list(llm: LLM) -> None:
    alone = [llm.generate(text, **GREEDY) for text in ("import os", CODE)]
    both = llm.generate(["import os", CODE], **GREEDY)
    assert [one.token_ids for one in both] == [one.token_ids for one in alone]
    assert alone[0].text == llm.model.detokenize(alone[0].token_ids)
    assert alone[0].finish_reason == "length"
    assert len(alone[0].accepted) == len(alone[0].token_ids) == 40
    assert alone[0].tokens_per_second > 0
    assert llm.generate([]) == []


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_token_ids_are_what_the_text_is(llm: LLM, kind: Callable[[Any], Any]) -> None:
    ids = llm.model.tokenize("import os").tolist()
    expected = llm.generate("import os", **GREEDY).token_ids
    assert llm.generate(kind(ids), **GREEDY).token_ids == expected
    both = llm.generate([kind(ids), "import os"], **GREEDY)
    assert [one.token_ids for one in both] == [expected, expected]


def test_chat_uses_the_template_and_drafts_what_is_repeated() -> None:
    # By "auto" the times of a busy machine decide what is sent.
    with LLM(slots=2, policy="fixed") as llm:
        answer = llm.chat(CHAT, **GREEDY)
        two = llm.chat([CHAT, CHAT], **GREEDY)
    assert "return width * height" in answer.text
    assert answer.finish_reason == "stop"
    assert sum(answer.accepted) == answer.timings.num_accepted_tokens > 5
    assert answer.mean_accepted_length > 1.5
    assert [one.text for one in two] == [answer.text, answer.text]


def test_a_stream_hands_out_the_same_text(llm: LLM) -> None:
    expected = llm.chat(CHAT, **GREEDY)
    for prompt in (CHAT, llm.model.tokenize_chat(CHAT)):
        chunks = list(llm.stream(prompt, **GREEDY))
        assert "".join(chunk.text for chunk in chunks) == expected.text
        assert [t for chunk in chunks for t in chunk.token_ids] == expected.token_ids
        assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1].finish_reason == "stop"
        assert chunks[-1].generation.text == expected.text


def test_a_chat_is_told_apart_from_its_reasoning(llm: LLM) -> None:
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 150}
    answer = llm.chat(THINK, **asked)
    message = answer.message
    assert message is not None
    assert message.reasoning
    assert answer.text.startswith("<think>")
    assert answer.text.split("</think>")[1].strip() == message.content.strip()
    assert answer.text.replace("<think>", "").split("</think>")[0].strip() == message.reasoning
    assert not message.calls
    *_, last = llm.stream(THINK, **asked)
    assert last.generation.message == message
    plain = llm.chat(CHAT, **GREEDY)
    assert plain.message is not None
    assert (plain.message.content, plain.message.reasoning) == (plain.text, "")
    assert llm.generate("import os", **GREEDY).message is None


def test_marks_that_are_control_tokens_are_shown_and_told_apart(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded model has three control tokens; one of them stands for such a mark here."""
    mark = "<|im_start|>"
    marks = ReasoningFormat(open=f"{mark}see", close=mark, signs=(mark,), special=True)
    formats = [marks, *REASONING_FORMATS]
    monkeypatch.setattr("ngramspec.text.chat.reasoning.REASONING_FORMATS", formats)
    forced: Any = {"grammar": f'root ::= {mark} "see I see." {mark} "Noon."', "max_tokens": 60}
    for answer in (llm.chat(CHAT, **forced), list(llm.stream(CHAT, **forced))[-1].generation):
        assert answer.text == f"{mark}see I see.{mark}Noon."
        assert answer.message is not None
        assert (answer.message.reasoning, answer.message.content) == ("I see.", "Noon.")
    hidden = llm.chat(CHAT, **forced, special=False)
    assert hidden.text == "see I see.Noon."
    with_schema = llm.chat(CHAT, json_schema={"enum": ["a", "b"]}, max_tokens=20)
    assert not with_schema.request.special


def test_a_call_of_a_tool_is_told_apart_and_the_chat_goes_on(llm: LLM) -> None:
    tools = tools_of([WEATHER], "required", parallel=False)
    grammar = chat_grammar("", None, "json_schema", chat_format("", "", tools))
    answer = llm.chat(CHAT, tools=[WEATHER], grammar=grammar, max_tokens=200, temperature=0)
    prompt = llm.model.detokenize(answer.request.prompt_ids, special=True)
    assert "You can call these functions" in prompt
    assert '"name": "get_weather"' in prompt
    assert answer.text.startswith("<tool_call>")
    message = answer.message
    assert message is not None
    assert message.content == ""
    (call,) = message.calls
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("Oslo", "Rome")
    result = {"role": "tool", "tool_call_id": call["id"], "content": "Sunny."}
    more = [*CHAT, message.as_json(), result]
    again = llm.chat([more], tools=[WEATHER], max_tokens=1)[0]
    prompt = llm.model.detokenize(again.request.prompt_ids, special=True)
    assert "<tool_call>\n" in prompt
    assert "<tool_response>\nSunny.\n</tool_response>" in prompt
    without = llm.chat(CHAT, grammar=grammar, max_tokens=200, temperature=0)
    assert without.text.startswith("<tool_call>")
    assert without.message is not None
    assert (without.message.content, without.message.calls) == (without.text, [])


def test_with_a_schema_all_of_a_chats_answer_is_content(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = f"{llm.model.chat_template}<think>\n"
    monkeypatch.setattr(llm.model, "chat_template", opening)
    answer = llm.chat(CHAT, json_schema={"enum": ["a", "b"]}, max_tokens=20)
    assert answer.message is not None
    assert answer.message.content == answer.text in ('"a"', '"b"')
    free = llm.chat(CHAT, grammar='root ::= "Hm.</think>Noon."', max_tokens=40).message
    assert free is not None
    assert (free.reasoning, free.content) == ("Hm.", "Noon.")


@pytest.mark.parametrize(
    ("messages", "tools", "field"),
    [
        ([{"role": "user"}], None, "messages[0].content"),
        ([*CHAT, 5], None, "messages[1]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], None, "messages[0].content[0]"),
        (CHAT, [{"type": "retrieval"}], "tools[0]"),
        (CHAT, [{"type": "function", "function": {}}], "tools[0]"),
    ],
)
def test_messages_and_tools_have_openais_shape(
    llm: LLM, messages: Any, tools: Any, field: str
) -> None:
    asked: tuple[Callable[[], Any], ...] = (
        lambda: llm.chat(messages, tools=tools),
        lambda: llm.chat([messages], tools=tools),
        lambda: llm.stream(messages, tools=tools),
    )
    for ask in asked:
        with pytest.raises(ChatError) as caught:
            ask()
        assert isinstance(caught.value, InputError)
        assert caught.value.field == field


@pytest.mark.parametrize("messages", [CHAT[0], "Hello", "", None, 5, iter(CHAT)])
def test_what_is_no_list_of_messages_is_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(ChatError, match="messages must be a list of messages, or of lists, got"):
        llm.chat(messages)


@pytest.mark.parametrize(
    "prompt", [CHAT[0], {5}, None, 5, iter([5]), np.zeros(()), [CHAT], [5, [6]]]
)
def test_what_is_no_prompt_is_not_streamed(llm: LLM, prompt: Any) -> None:
    with pytest.raises(InputError, match="the prompt must be a text or a sequence of token ids"):
        llm.stream(prompt)


def test_tools_beside_a_text_are_refused(llm: LLM) -> None:
    for prompt in ("import os", [5, 6]):
        with pytest.raises(InputError, match="tools are for a conversation, the prompt is none"):
            llm.stream(prompt, tools=[WEATHER])


def test_time_of_the_taker_of_a_stream_is_not_counted(llm: LLM) -> None:
    answer = None
    for chunk in llm.stream(CHAT, **GREEDY, speculation=False):
        time.sleep(0.05)
        answer = chunk.generation
    assert answer is not None
    assert answer.timings.decode_seconds < 0.05 * answer.num_tokens / 2


def test_a_stream_that_is_closed_ends_its_request(llm: LLM) -> None:
    stream = llm.stream("x", max_tokens=-1, ignore_eos=True)
    generation = next(stream).generation
    stream.close()  # type: ignore[attr-defined]
    assert generation.wait(30)
    assert generation.finish_reason == "cancelled"


def test_a_stream_that_nobody_begins_ends_its_request_with_it(llm: LLM) -> None:
    wait_until(lambda: not llm.engine.busy)
    before = llm.engine.stats().finished.get("cancelled", 0)
    for end in (lambda stream: stream.close(), lambda stream: None):
        stream = llm.stream("x", max_tokens=-1, ignore_eos=True)
        end(stream)
        del stream
        gc.collect()
        wait_until(lambda: not llm.engine.busy)
    assert llm.engine.stats().finished["cancelled"] == before + 2


def test_drafts_change_no_text(llm: LLM) -> None:
    with_drafts = llm.chat(CHAT, **GREEDY)
    without = llm.chat(CHAT, **GREEDY, speculation=False)
    simple = llm.chat(CHAT, **GREEDY, speculation=Speculation(types=("ngram-simple",)))
    assert without.token_ids == with_drafts.token_ids == simple.token_ids
    assert without.timings.num_draft_tokens == 0


def test_options_are_those_of_requests_and_sampling(llm: LLM) -> None:
    hot = Sampling(temperature=5, top_k=0, top_p=1, min_p=0)
    first = llm.generate("x", sampling=hot, seed=1, max_tokens=8)
    again = llm.generate("x", sampling=hot, seed=1, max_tokens=8)
    other = llm.generate("x", sampling=hot, seed=2, max_tokens=8)
    assert first.token_ids == again.token_ids != other.token_ids
    assert llm.generate("x", grammar="root ::= [0-9]+", max_tokens=5).text.isdigit()
    stopped = llm.generate("import os", **GREEDY, stop="\n", logprobs=2)
    assert llm.generate("import os", **GREEDY, stop=None).num_tokens == 40
    assert "\n" not in stopped.text
    assert len(stopped.logprobs[0].top) == 2


def test_a_text_follows_a_json_schema(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"side": {"enum": ["left", "right"]}},
              "required": ["side"], "additionalProperties": False}  # fmt: skip
    # more tokens than such a text can have, however much white space is chosen
    for answer in llm.generate(["{", "Answer:"], json_schema=schema, max_tokens=400):
        assert json.loads(answer.text)["side"] in ("left", "right")
    with pytest.raises(InputError, match="json_schema: "):
        llm.generate("x", json_schema={"type": "what"})
    with pytest.raises(InputError, match="either a grammar or a json_schema"):
        llm.generate("x", json_schema=schema, grammar='root ::= "x"')


def test_a_prediction_is_verified_as_a_draft() -> None:
    with LLM(policy="fixed") as llm:  # the default drops it where a busy machine makes drafts dear
        text = llm.chat(CHAT, **GREEDY, speculation=False).text
        guessed = llm.chat(CHAT, **GREEDY, prediction=text, cache_prompt=False)
        assert guessed.text == text
        assert guessed.timings.num_prediction_accepted > 10
        ids = llm.model.tokenize(text, add_special=False)
        assert llm.chat(CHAT, **GREEDY, prediction=ids).text == text


def test_more_prompts_than_slots_and_queue_are_run_in_order(llm: LLM) -> None:
    prompts = [[i % 50 + 5] for i in range(150)]
    answers = llm.generate(prompts, max_tokens=2, temperature=0, ignore_eos=True)
    assert [one.request.prompt_ids.tolist() for one in answers] == prompts
    assert all(one.error is None and one.num_tokens for one in answers)


def test_threads_share_the_slots(llm: LLM) -> None:
    expected = llm.chat(CHAT, **GREEDY).token_ids
    answers: list[list[int]] = []

    def work(number: int) -> None:
        answers.append(llm.chat(CHAT, **GREEDY).token_ids)

    run_together(work, 6)
    assert answers == [expected] * 6


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("x", {"temperatur": 1}, "unknown option 'temperatur'; did you mean temperature?"),
        ("x", {"n_predict": 3}, "unknown option 'n_predict'; did you mean max_tokens?"),
        ("x", {"drafter": "suffix"}, r"unknown option 'drafter'; it is an option of LLM\(\)"),
        (
            "x",
            {"zzz": 1},
            "unknown option 'zzz'; known: .*(adapters, .*max_tokens, .*xtc_threshold)",
        ),
        ("x", {"temperature": -1}, "temperature must be in"),
        ("x", {"max_tokens": -2}, "max_tokens must be in"),
        ("x", {"grammar": "root ::= bar"}, "bar"),
        ("x", {"prediction": [[1]]}, "prediction must be a text or a sequence of token ids"),
        ("x", {"prediction": [-1]}, "token ids of prediction must be in 0.."),
        ("", {}, "the prompt is empty"),
        ([5, 4096], {}, "must be in 0..4095"),
        ([5, -1], {}, "must be in 0.."),
        (np.zeros((), np.int32), {}, "a text or a sequence of token ids"),
        (["x", 1.5], {}, "a text or a sequence of token ids, got 1.5"),
        (5, {}, "prompts must be a text, token ids or a sequence of these, got 5"),
        (None, {}, "prompts must be a text, token ids or a sequence of these, got None"),
        (CHAT[0], {}, "prompts must be a text, token ids or a sequence of these, got {'role'"),
        ({"x"}, {}, "prompts must be a text, token ids or a sequence of these, got {'x'}"),
        ([5, [6]], {}, "the prompt must be a text or a sequence of token ids, got"),
        ("x", {"speculation": "none"}, "speculation must be a Speculation or a bool, got 'none'"),
        ("x", {"sampling": 5}, "sampling must be a Sampling, got 5"),
        ("x", {"stop": 5}, "stop must be a text or texts, got 5"),
        (["x", "y"], {"stop": iter(["a"])}, "stop must be a text or texts, got <list_iterator"),
        ([5] * 2048, {}, "the prompt has 2048 tokens, the context of a slot 2048"),
    ],
)
def test_wrong_options_are_refused(
    llm: LLM, prompt: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message.replace("?", ".")):
        llm.generate(prompt, **options)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("", "prompts[99]: the prompt is empty"),
        (
            [5] * 2048,
            "prompts[99]: the prompt has 2048 tokens, the context of a slot 2048: shorten",
        ),
        ([4096], "prompts[99]: token ids of the prompt must be in 0..4095"),
        (1.5, "prompts[99]: the prompt must be a text or a sequence of token ids, got 1.5"),
    ],
)
def test_all_prompts_of_a_list_are_checked_before_one_starts(
    llm: LLM, wrong: Any, message: str
) -> None:
    wait_until(lambda: not llm.engine.busy)
    before = llm.engine.stats().num_requests
    with pytest.raises(InputError) as caught:
        llm.generate([*["x"] * 99, wrong], max_tokens=1)
    assert str(caught.value).startswith(message)
    assert llm.engine.stats().num_requests == before


def test_a_wrong_conversation_of_a_list_is_named(llm: LLM) -> None:
    before = llm.engine.stats().num_requests
    with pytest.raises(ChatError, match=r"^conversations\[1\]: ") as caught:
        llm.chat([CHAT, [*CHAT, 5]], max_tokens=1)
    assert caught.value.field == "messages[1]"
    assert llm.engine.stats().num_requests == before


def test_what_is_refused_on_the_way_cancels_the_others(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until(lambda: not llm.engine.busy)
    before = dict(llm.engine.stats().finished)
    submit = llm.engine.submit

    def once(request: Request) -> Generation:
        if request.prompt_ids[0] == 6:
            raise StateError("the engine is closed")
        return submit(request)

    monkeypatch.setattr(llm.engine, "submit", once)
    with pytest.raises(StateError, match="the engine is closed"):
        llm.generate([[5], [6]], ignore_eos=True)
    wait_until(lambda: not llm.engine.busy)
    after = dict(llm.engine.stats().finished)
    assert after.pop("cancelled") == before.pop("cancelled", 0) + 1
    assert after == before


def test_a_model_without_template_has_no_chat(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm.model, "chat_template", None)
    for ask in (llm.chat, llm.stream):
        with pytest.raises(InputError, match="no chat template"):
            ask(CHAT)  # type: ignore[operator]


def test_what_fails_on_the_way_is_raised_once_and_kept_in_lists(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any) -> bool:
        self.fail(BackendError("the device is gone"))
        return False

    with monkeypatch.context() as patch:
        patch.setattr(type(llm.engine), "step", broken)
        with pytest.raises(BackendError, match="the device is gone"):
            llm.generate("x")
        with pytest.raises(BackendError, match="the device is gone"):
            list(llm.stream("x"))
        answers = llm.generate(["x", "y"])
    assert [one.finish_reason for one in answers] == ["error", "error"]
    assert all(isinstance(one.error, BackendError) for one in answers)
    assert llm.generate("x", max_tokens=1).num_tokens == 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": "absent.gguf"}, OSError, "absent.gguf"),
        ({"model": __file__}, FormatError, "is not a GGUF file"),
        ({"drafter": "ngram-mud"}, InputError, "did you mean ngram-mod"),
        ({"n_ctx": 512}, InputError, "unknown option 'n_ctx'; did you mean context_size"),
        ({"treee": 2}, InputError, "unknown option 'treee'; did you mean tree"),
        ({"params": {"ngram-mod": {}}}, InputError, "which is not in suffix"),
        ({"params": {"suffix": {"static": "absent.ngx"}}}, OSError, "absent.ngx"),
        ({"drafter": None, "params": {"suffix": {}}}, InputError, "which is not in"),
        ({"slots": 0}, InputError, "slots must be in"),
        ({"slots": "2"}, InputError, "slots must be a whole number, got '2'"),
        ({"context_size": 1e3}, InputError, "context_size must be a whole number, got 1000.0"),
        ({"threads": "2"}, InputError, "threads must be a whole number, got '2'"),
        ({"settings": {"n_ubtch": 1}}, InputError, "no field 'n_ubtch'; did you mean n_ubatch"),
        ({"policy": "guess"}, InputError, "policy must be one of auto"),
        ({"order": "random", "drafter": "ngram-mod"}, InputError, "order must be"),
        ({"min_draft": -1}, InputError, "min_draft must be >= 0"),
        ({"exact": True, "draft_model": "x.gguf"}, InputError, "not with a draft model"),
    ],
)
def test_wrong_settings_are_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        LLM(**options)


def test_a_draft_model_drafts_where_no_drafter_does() -> None:
    settings = DraftModelSettings(path=embedded_model(), n_max=4, p_min=0.0, threads=1)
    with LLM(drafter=None, slots=2, context_size=512, policy="fixed", draft_model=settings) as llm:
        answer = llm.generate("import os", max_tokens=30, temperature=0)
        small = llm.engine.source_stats()["draft-simple"]
    with LLM(slots=2, context_size=512, drafter=None) as llm:
        assert llm.generate("import os", max_tokens=30, temperature=0).text == answer.text
    assert small.num_accepted_tokens > 0


def test_what_is_learned_is_saved_by_close(tmp_path: Path) -> None:
    path = tmp_path / "learned.ngc"
    params = {"ngram-cache": {"dynamic": path}}
    llm = LLM(drafter="ngram-cache", params=params, policy="fixed")
    assert llm.chat(CHAT, **GREEDY).num_tokens
    assert not path.exists()
    llm.close()
    llm.close()
    assert path.stat().st_size > 1000
    with pytest.raises(StateError):
        llm.generate("x")
    with LLM(drafter="ngram-cache", params=params) as again:
        dynamic = again.engine.drafters.dynamic_file
        assert dynamic is not None
        assert isinstance(dynamic.cache, NgramCache)
        assert len(dynamic.cache.entries(1)) > 10


def test_a_last_save_that_fails_is_raised_and_the_model_is_freed(tmp_path: Path) -> None:
    path = tmp_path / "learned.ngc"
    llm = LLM(
        drafter="ngram-cache",
        params={"ngram-cache": {"dynamic": path}},
        slots=1,
        context_size=256,
        policy="fixed",
    )
    assert llm.generate("import os", **GREEDY).num_tokens
    path.write_bytes(b"somebody else's")
    with pytest.raises(FormatError, match=r"learned\.ngc"):
        llm.close()
    assert llm.target.closed
    with pytest.raises(StateError, match="the model is closed"):
        llm.model.tokenize("x")
    assert path.read_bytes() == b"somebody else's"
    llm.close()


def test_the_order_of_the_drafters_may_be_the_callers() -> None:
    with LLM(drafter="ngram-cache,ngram-mod", order="given") as llm:
        assert llm.engine.drafters.types == ("ngram-cache", "ngram-mod")
        answer = llm.chat(CHAT, **GREEDY)
        assert list(llm.engine.source_stats())[:2] == ["ngram-cache", "ngram-mod"]
        assert answer.num_tokens


def test_the_end_of_the_object_is_the_end_of_its_thread() -> None:
    before = set(threading.enumerate())
    llm = LLM(embedded_model(), threads=1)
    (thread,) = [t for t in set(threading.enumerate()) - before if t.name == "ngramspec-engine"]
    llm.generate("x", max_tokens=1)
    gone = weakref.ref(llm)
    del llm
    gc.collect()
    assert gone() is None
    assert not thread.is_alive()


def test_a_process_may_end_in_mid_stream() -> None:
    lines = "stream = LLM(slots=1).stream('a', ignore_eos=True)", "print(next(stream).text)"
    program = "\n".join(("from ngramspec import LLM", *lines))
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has threads")
def test_a_forked_process_says_that_it_has_no_thread_to_generate(llm: LLM) -> None:
    def use() -> None:
        with pytest.raises(StateError, match="open one here"):
            llm.generate("a", **GREEDY)

    child = multiprocessing.get_context("fork").Process(target=use)
    child.start()
    child.join(60)
    child.kill()  # if it hangs
    assert child.exitcode == 0


def test_a_context_of_0_is_the_trained_one_cut_to_what_is_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with LLM(context_size=0, slots=2) as llm:
        assert llm.target.context_size == llm.model.n_ctx_train == llm.target.cells == 2048
        assert llm.target.max_branches > 1
    with LLM(context_size=0, slots=2, fit=Limits(margins=(1 << 60,), least=512)) as llm:
        assert llm.target.context_size == 512
        assert llm.generate("import os", max_tokens=4, temperature=0).num_tokens == 4
    (record,) = caplog.records
    assert record.message.startswith("Context 512 of 2,048 tokens")
    assert record.message.endswith("of free memory; context_size changes it")


def test_a_context_above_the_trained_one_is_cut_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for size in (None, 2048):
        with LLM(context_size=size, slots=1) as llm:
            assert llm.target.context_size == 2048
    assert not caplog.records
    with LLM(context_size=4096, slots=1) as llm:
        assert llm.target.context_size == 2048
    (record,) = caplog.records
    assert record.getMessage() == (
        "context_size 4096 is cut to the 2048 tokens that the model was trained with; RoPE scaling "
        "allows more"
    )
    caplog.clear()
    with LLM(context_size=4096, slots=1, settings={"rope": Rope(freq_scale=0.5)}) as llm:
        assert llm.target.context_size == 4096
    assert not caplog.records


def test_a_context_that_cannot_fit_is_refused_with_one_that_does() -> None:
    settings = {"context_size": 1 << 28}
    with pytest.raises(InputError, match=r"context_size \d+ fits; fit=False tries it anyway"):
        LLM(slots=4, settings=settings)


def test_an_embedded_model_stays_on_the_cpu() -> None:
    for options in ({}, {"n_gpu_layers": "auto"}, {"exact": True}):
        with LLM(slots=1, context_size=256, **options) as llm:
            assert llm.model.n_gpu_layers == 0
    with pytest.raises(InputError, match='n_gpu_layers must be a number or "auto"'):
        LLM(n_gpu_layers="many")  # type: ignore[arg-type]


def test_exact_settings_are_tried(llm: LLM) -> None:
    with LLM(exact=True, slots=1) as exact:
        assert 0 < exact.target.exact_batch < 64
        prompt = exact.model.tokenize("import os")
        sampling = Sampling(ignore_eos=True)
        answer = exact.run(Request(prompt_ids=prompt, max_tokens=4, sampling=sampling))
        assert isinstance(answer, Generation)
        assert answer.num_tokens == 4


def test_closing_waits_for_calls_that_still_use_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(slots=1, context_size=256)
    begun, go_on, ended = threading.Event(), threading.Event(), list[Any]()
    tokenize = llm.model.tokenize

    def slowly(*arguments: Any, **more: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        ended.append(llm.target.closed)
        return tokenize(*arguments, **more)

    def ask() -> None:
        try:
            llm.generate("import os", max_tokens=4)
        except StateError as error:
            ended.append(str(error))

    monkeypatch.setattr(llm.model, "tokenize", slowly)
    asking, closing = threading.Thread(target=ask), threading.Thread(target=llm.close)
    asking.start()
    assert begun.wait(30)
    closing.start()

    def refused() -> bool:
        try:
            llm.run(Request(prompt_ids=np.array([1, 2], np.int32), max_tokens=1))
        except StateError as error:
            errors.append(str(error))
        return bool(errors)

    errors = list[str]()
    wait_until(refused)
    assert errors == ["the LLM is closed"]
    assert closing.is_alive()
    go_on.set()
    for thread in (asking, closing):
        thread.join(30)
        assert not thread.is_alive()
    assert ended[0] is False
    assert llm.target.closed


def test_a_callback_may_close_the_llm() -> None:
    llm = LLM(slots=2, context_size=512)
    ids = llm.model.tokenize("import os")
    request = Request(prompt_ids=ids, max_tokens=-1)
    answer = llm.engine.submit(request, lambda chunk: llm.close())
    other = llm.engine.submit(request)
    assert answer.wait(30)
    assert other.wait(30)
    assert {answer.finish_reason, other.finish_reason} == {"cancelled"}
    wait_until(lambda: llm.target.closed)


def test_a_stream_keeps_what_it_needs() -> None:
    stream = LLM(slots=1, context_size=256).stream("import os", max_tokens=20, temperature=0)
    gc.collect()
    chunks = list(stream)
    assert chunks[-1].finish_reason == "length"
    assert len([token for chunk in chunks for token in chunk.token_ids]) == 20


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"exact": True, "flash_attn": False}, "needs flash attention: leave out flash_attn"),
        ({"exact": True, "settings": {"type_k": "q8_0"}}, "the same type for cached keys"),
        ({"exact": True, "settings": {"kv_unified": True}}, "leave out kv_unified"),
        ({"policy": AutoPolicy(fixed=8), "max_draft": 8}, "not for a policy of your own"),
        ({"policy": AutoPolicy(fixed=8), "calibrate": 1.0}, "not for a policy of your own"),
    ],
)
def test_what_would_be_ignored_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        LLM(**options)
