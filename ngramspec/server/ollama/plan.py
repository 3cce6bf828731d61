"""OllamaPlan: what a request to Ollama's generating routes asks for, ready for the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ngramspec.engine.request import Request
from ngramspec.ollama.parameters import check_parameters
from ngramspec.server.chat.parser import ChatParser
from ngramspec.server.chat.tools import SPECIAL_MARKS, Tools, style_of
from ngramspec.server.errors import bad_request
from ngramspec.server.ollama.bodies import ChattingBody, GenerateBody, GeneratingBody
from ngramspec.server.ollama.prompt import NO_TOOLS, OllamaPrompt, chat_prompt, generate_prompt
from ngramspec.server.request.bodies import SamplingBody, parse
from ngramspec.server.request.grammar import ANY_OBJECT, chat_grammar
from ngramspec.server.request.make import make_requests
from ngramspec.server.request.prompts import check_length
from ngramspec.server.request.speculation import speculation_of
from ngramspec.server.served import Served
from ngramspec.server.settings import ServerSettings

SAME_NAME = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_last_n", "repeat_penalty"),
    *("presence_penalty", "frequency_penalty", "mirostat", "mirostat_eta", "mirostat_tau", "seed"),
)


@dataclass(frozen=True)
class OllamaPlan:
    """One answer as an engine request, and how it is told."""

    requests: Sequence[Request]  # none for a request that only loads or unloads
    stream: bool
    model: str  # as the client wrote it
    chat: bool  # /api/chat, not /api/generate
    idle_reason: str = ""  # load or unload, where there is no request
    tools: Tools = NO_TOOLS
    thinking: bool = False  # the prompt opens the reasoning
    parses_thinking: bool = False
    spans: bool = False
    with_context: bool = False  # the answer brings the tokens of prompt and answer

    def parser(self) -> ChatParser:
        """Return a parser for the answer."""
        return ChatParser(self.tools, self.parses_thinking, self.thinking)


def plan_generate(raw: bytes, served: Served, settings: ServerSettings, key_id: str) -> OllamaPlan:
    """Read the body of POST /api/generate.

    Raises:
        ApiError: It cannot be answered.
        InputError: A value is out of its bounds.
    """
    body = parse(raw, GenerateBody)
    plan = _empty(body, served, chat=False)
    if not body.prompt and not body.suffix and not body.images:
        return plan
    prompt = generate_prompt(body, served)
    plan = replace(plan, with_context=not body.raw)
    return _filled(plan, body, prompt, served, settings, key_id)


def plan_chatting(raw: bytes, served: Served, settings: ServerSettings, key_id: str) -> OllamaPlan:
    """Read the body of POST /api/chat.

    Raises:
        As plan_generate.
    """
    body = parse(raw, ChattingBody)
    plan = _empty(body, served, chat=True)
    if not body.messages:
        return plan
    return _filled(plan, body, chat_prompt(body, served), served, settings, key_id)


def _empty(body: GeneratingBody, served: Served, chat: bool) -> OllamaPlan:
    """Return the plan of a request without a prompt."""
    name = body.named(served)
    _check_options(body, served)
    reason = "unload" if body.unloads else "load"
    return OllamaPlan((), body.stream is not False, name, chat, reason)


def _filled(
    plan: OllamaPlan,
    body: GeneratingBody,
    prompt: OllamaPrompt,
    served: Served,
    settings: ServerSettings,
    key_id: str,
) -> OllamaPlan:
    """Return the plan with its request."""
    check_length(prompt.ids, served, settings, "messages" if plan.chat else "prompt")
    drafts = speculation_of(body.speculation, key_id)
    options = check_parameters(body.parameters)
    sampling = _sampling(options, body)
    style = style_of(prompt.template)
    requests = make_requests(
        sampling,
        served,
        settings,
        prompts=[prompt.ids],
        choices=1,
        grammar=chat_grammar(sampling, None, prompt.tools, style, prompt.thinking, "format"),
        max_tokens=_max_tokens(options),
        logprobs=("top_logprobs", (body.top_logprobs or 0) if body.logprobs else None),
        speculation=drafts.speculation,
        special=bool(prompt.tools) and any(mark in prompt.template for mark in SPECIAL_MARKS),
    )
    return replace(
        plan,
        requests=requests,
        tools=prompt.tools,
        thinking=prompt.thinking,
        parses_thinking=prompt.parses_thinking,
        spans=drafts.spans,
    )


def _check_options(body: GeneratingBody, served: Served) -> None:
    """Refuse options that are not valid, and a context that the server does not have."""
    wanted = check_parameters(body.parameters).get("num_ctx", 0)
    most = served.engine.context_size
    if isinstance(wanted, int) and wanted > most:
        raise bad_request(
            f"num_ctx is {wanted}, but the server was started with {most} tokens for each request: "
            "leave it out, or start the server with a larger --ctx-size",
            "num_ctx",
        )


def _sampling(options: Mapping[str, Any], body: GeneratingBody) -> SamplingBody:
    """Return the options as fields that all APIs share."""
    fields = {name: options[name] for name in SAME_NAME if name in options}
    stop = list(options.get("stop", ()))
    return SamplingBody(**fields, stop=stop, json_schema=_schema(body.format))


def _max_tokens(options: Mapping[str, Any]) -> int | None:
    """Return the tokens of the answer: 0 and less mean no limit but the context."""
    wanted = options.get("num_predict")
    return None if wanted is None else (int(wanted) if wanted > 0 else -1)


def _schema(given: str | dict[str, Any] | None) -> Any:
    if given is None or given == "":
        return None
    if isinstance(given, dict):
        return given
    if given == "json":
        return ANY_OBJECT
    raise bad_request(
        f'invalid format: {given!r:.80}; expected "json" or a valid JSON Schema object', "format"
    )
