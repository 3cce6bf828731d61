"""Bodies of all POST routes, through the real application, engine and embedded model.

An input is a line with a path and the body. Every answer must have a documented status, and the
next request, which is well-behaved, must be answered as always.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import typing
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
from starlette.applications import Starlette

from fuzz import json_inputs
from fuzz.target import Finding, Run, Target
from fuzz.targets import schemas, speculative
from helpers.serving import running_engine
from ngramspec.engine import Sampling
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.models import embedded_model
from ngramspec.server import ServedModel, ServerSettings, create_app
from ngramspec.server.anthropic.plan import MessagesBody
from ngramspec.server.errors import INTERNAL
from ngramspec.server.llama_server.plan import NativeBody
from ngramspec.server.llama_server.routes import DetokenizeBody, TokenizeBody
from ngramspec.server.ollama import bodies as ollama_bodies
from ngramspec.server.openai.plan import ChatBody, CompletionBody
from ngramspec.server.responses.plan import ResponsesBody

STATUSES = {200, 400, 401, 403, 404, 405, 408, 413, 499, 501, 503}
MOST_SECONDS = 20.0  # of processor time per request, with up to 4 x 256 tokens written in it
CONTEXT = 256
GOOD = {"prompt": "def area(", "n_predict": 8, "temperature": 0, "cache_prompt": False}
CHAT = [{"role": "user", "content": "Repeat: a = 1"}]
CALL = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}}}}  # fmt: skip
FLAT_TOOL = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
OTHERS_TOOL = {"name": "f", "input_schema": TOOL["function"]["parameters"]}  # type: ignore[index]
ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "b"}]},
    {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "x", "output": "7"},
]
BLOCKS = [{"role": "assistant", "content": [{"type": "thinking", "thinking": "a"},
                                            {"type": "tool_use", "id": "x", "name": "f",
                                             "input": {}}]},
          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "7"},
                                       {"type": "text", "text": "b"}]}]  # fmt: skip
BODIES = (
    *(ResponsesBody, MessagesBody),
    *(CompletionBody, ChatBody, NativeBody, TokenizeBody, DetokenizeBody),
    *(ollama_bodies.GenerateBody, ollama_bodies.OllamaChatBody, ollama_bodies.ShowBody),
)
BY_TYPE: dict[Any, tuple[Any, ...]] = {
    bool: (True, False),
    int: (0, 1, 2, 3, 5, -1),
    float: (0.0, 0.1, 0.9, 1.0, 2.0, -1.0),
    str: ("", "x", "a = 1"),
}
LIKELY: dict[str, tuple[Any, ...]] = {
    "prompt": ("def area(", "", ["a", "b"], [1, 2, 3], [[1], "b"], {"prompt_string": "a"}),
    "messages": (CHAT, [], [*CHAT, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                            {"role": "tool", "content": "7", "tool_call_id": "x"}, *CHAT],
                 BLOCKS),
    "input": ("a = 1", ITEMS, ITEMS[:1], []),
    "type": ("message", "reasoning", "function_call_output", "custom_tool_call", "tool_result",
             "search_result", "document", "namespace", "custom", "allowed_tools", "any", "x", {}),
    "thinking": ({"type": "enabled"}, {"type": "disabled"}, {"type": "adaptive"}, "x"),
    "output_config": ({"effort": "max"}, {"format": {"type": "json_schema", "schema": {}}}),
    "reasoning": ({"effort": "low"}, {"summary": "auto"}, {}),
    "text": ({"format": {"type": "json_object"}}, {"format": {"type": "text"}}, "x"),
    "include": (["message.output_text.logprobs"], []),
    "stop_sequences": (["a"], []),
    "role": ("user", "assistant", "system", "tool", "developer", "x"),
    "content": ("a", [{"type": "text", "text": "b"}], None, [{"type": "image_url"}]),
    "tool_calls": ([CALL], [], None),
    "tools": ([TOOL], [], [TOOL, TOOL], [FLAT_TOOL], [OTHERS_TOOL],
              [{"type": "namespace", "name": "n", "tools": [FLAT_TOOL]}],
              [{"type": "custom", "name": "c"}]),
    "tool_choice": ("auto", "none", "required", {"type": "function", "function": {"name": "f"}},
                    {"type": "function", "name": "f"}, {"type": "any"},
                    {"type": "tool", "name": "f", "disable_parallel_tool_use": True}),
    "function": ({"name": "f", "arguments": "{}"}, {"name": "f", "arguments": {"a": [[]]}}),
    "arguments": ("{}", "{", {"a": 1}, "[]"),
    "name": ("f", "tiny", "\ud800", "é", ""),
    "model": ("tiny", "tiny:latest", "other"),
    "n_predict": (0, 1, 4, -1, -2),
    "max_tokens": (0, 1, 4, -1),
    "stop": ("a", ["a", "b"], [], [""], "\n"),
    "samplers": (["top_k", "temperature"], "kt", ["x"], []),
    "logit_bias": ({"1": 5}, [[1, 2.5]], [[1, False]], {"a": -1}, [["abc", 1.0]], {"²": 1}),
    "dry_multiplier": (0.8,),
    "dry_sequence_breakers": (["\n", ":"], [], [""], ["\0"]),
    "mirostat": (0, 1, 2, 3),
    "grammar": ('root ::= "a"', "root ::= [a-c]+", "root ::= root", 'root ::= ("a"', ""),
    "json_schema": ({"type": "object"}, {"const": 1}, {"properties": {"a": {"type": "null"}}}),
    "response_format": (
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}},
        {"type": "text"},
    ),
    "format": ("json", "", {"type": "object"}, {"type": "integer"}),
    "options": ({"num_predict": 2}, {"temperature": 0}, {"stop": ["a"]}, {"num_ctx": 64},
                {"speculative.n_max": 2}, {"seed": 2**40}),
    "num_predict": (1, 2, -1, -2),
    "keep_alive": ("5m", 0, "0", -1, "0s", "1h30m"),
    "think": (True, False, "low", "high", "x"),
    "template": ("{{ .Prompt }}", "{{ range .Messages }}{{ .Content }}{{ end }}", "{{"),
    "suffix": ("", "b"),
    "system": ("Be brief.", "", [{"type": "text", "text": "x-anthropic-billing-header: a=b;"}]),
    "context": ([1, 2], [], [4096]),
    "images": ([], ["aGk="]),
    "prediction": ({"type": "content", "content": "a = 1"},
                   {"type": "content", "content": [{"type": "text", "text": "a"}]}),
    "stream_options": ({"include_usage": True},),
    "chat_template_kwargs": ({"enable_thinking": False}, {"tools": []}, {"template": 1},
                             {"messages": []}, {"add_generation_prompt": 0}),
    "reasoning_format": ("auto", "none", "deepseek", "x"),
    "reasoning_effort": ("low", "none", "x"),
    "input_extra": ([{"text": "a", "filename": "f"}], [{}]),
    "input_prefix": ("def f(", [1, 2], ""),
    "input_suffix": (")", [1, 2], ""),
    "response_fields": (["content"], ["timings/predicted_n", "a/b"], [""]),
    "tokens": ([1, 2, 3], [], [4095], [4096], [-1]),
    "id_slot": (0, 1, -1, 9),
    "n_probs": (0, 1, 5),
    "seed": (0, 7, -1, 2**32 - 1, 2**32),
}  # fmt: skip


def members() -> dict[str, tuple[Any, ...]]:
    """Return every field of every route, with values that it may have."""
    fields: dict[str, tuple[Any, ...]] = {**schemas.MEMBERS, **speculative.MEMBERS}
    for body in BODIES:
        for name, field in body.model_fields.items():
            kinds = typing.get_args(field.annotation) or (field.annotation,)
            fields[name] = tuple(value for kind in kinds for value in BY_TYPE.get(kind, ()))
    return {**fields, **LIKELY, "cache_prompt": (True, False)}


MEMBERS = members()


@contextmanager
def opened() -> Iterator[Run]:
    with ExitStack() as outer:
        model = outer.enter_context(LlamaModel(embedded_model()))
        log = outer.enter_context(failures())
        stack = outer.enter_context(ExitStack())
        session: list[Session] = [stack.enter_context(served(model, log))]

        def run(data: bytes) -> None:
            if not session:
                session.append(stack.enter_context(served(model, log)))
            try:
                session[0].run(data)
            except BaseException:
                session.clear()  # it may be broken for good
                stack.close()
                raise

        yield run


@contextmanager
def served(model: LlamaModel, log: list[BaseException]) -> Iterator[Session]:
    """Run an engine and its application in the block."""
    with ExitStack() as stack:
        params = {"ngram-mod": {"capacity": 1 << 12}, "ngram-cache": {"max_ngrams": 1 << 10}}
        engine = stack.enter_context(
            running_engine(model, slots=2, params=params, context_size=CONTEXT)
        )
        sampling = Sampling(temperature=0.0)
        offered = ServedModel(
            name="tiny", model=model, engine=engine, sampling=sampling, max_tokens=4
        )
        settings = ServerSettings(max_generations=4, request_timeout=10, slots=True)
        loop = asyncio.new_event_loop()
        stack.callback(loop.close)
        app = create_app(offered, settings)
        lifespan = app.router.lifespan_context(app)
        loop.run_until_complete(lifespan.__aenter__())
        stack.callback(lambda: loop.run_until_complete(lifespan.__aexit__(None, None, None)))
        yield Session(app, loop, log)


class Session:
    """Sends requests to an application, a well-behaved one after each.

    log: Exceptions that were logged since the last request.
    """

    def __init__(
        self, app: Starlette, loop: asyncio.AbstractEventLoop, log: list[BaseException]
    ) -> None:
        self._app, self._loop, self._log = app, loop, log
        self.answer = self._good()

    def run(self, data: bytes) -> None:
        """Send one body."""
        head, _, body = data.partition(b"\n")
        path = head.decode("ascii", "replace")
        if not path.startswith("/") or not path.isprintable():
            return
        self._log.clear()
        started = time.process_time()
        response = self._send(path, body)
        if response.status_code not in STATUSES or INTERNAL.encode() in response.content:
            cause = self._log[0] if self._log else None
            raise Finding(f"{path} answers {response.status_code}") from cause
        if response.status_code >= 400 and "error" not in response.json():
            raise Finding(f"{path} tells no error")
        if self._log:
            raise Finding(f"{path} logs a failure") from self._log[0]
        if time.process_time() - started > MOST_SECONDS:
            raise Finding(f"{path} takes seconds")
        if self._good() != self.answer:
            raise Finding("the next request gets another answer")
        if self._log:
            raise Finding("the next request logs a failure") from self._log[0]

    def _good(self) -> str:
        response = self._send("/completion", json.dumps(GOOD).encode())
        if response.status_code != 200:
            cause = self._log[0] if self._log else None
            raise Finding(f"a well-behaved request gets {response.status_code}") from cause
        return str(response.json()["content"])

    def _send(self, path: str, body: bytes) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost"
            ) as client:
                request = client.post(path, content=body, timeout=None)
                return await asyncio.wait_for(request, MOST_SECONDS * 3)

        return self._loop.run_until_complete(send())


class _Failures(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.seen.append(record.exc_info[1])


@contextmanager
def failures() -> Iterator[list[BaseException]]:
    """Collect exceptions that the package logs in the block, instead of showing them."""
    handler, logger = _Failures(), logging.getLogger("ngramspec")
    logger.addHandler(handler)
    before, logger.propagate = logger.propagate, False
    try:
        yield handler.seen
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


def paths() -> list[bytes]:
    """Return the paths of all POST routes."""
    from ngramspec.server.app import ROUTES

    templates = [route.path for route in ROUTES if "POST" in (route.methods or ())]
    return sorted({path.replace("{digest}", "sha256-0").encode() for path in templates})


TARGET = Target(
    opened=opened,
    instrumented=(
        "ngramspec.server",
        "ngramspec.text.chat",
        "ngramspec.text.structured",
        "ngramspec.models.ollama",
        "ngramspec.drafting",
    ),
    mutate=json_inputs.mutation(MEMBERS, paths()),
    words=tuple(name for name in MEMBERS if name.isascii()),
    seconds=120,
    rss_mib=3072,
)
