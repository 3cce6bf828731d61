"""OllamaPlan: what a request to Ollama's generating routes asks for, ready for the engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ngramspec.engine.request import MAX_STOPS
from ngramspec.models.ollama.parameters import KINDS, OF_LOADING, Parameter, clamp_parameter
from ngramspec.server.bridge.intake import Incoming, Plan
from ngramspec.server.chat.budget import budget_of_chat, budget_tokens
from ngramspec.server.errors import bad_request
from ngramspec.server.model import ServedModel
from ngramspec.server.ollama.bodies import GenerateBody, OllamaBody, OllamaChatBody
from ngramspec.server.ollama.prompt import OllamaPrompt, chat_prompt, generate_prompt
from ngramspec.server.request.bodies import SamplingBody, parse
from ngramspec.server.request.engine_request import make_plan
from ngramspec.server.request.speculation import check_draft_model
from ngramspec.text.chat.format import PLAIN_ANSWER, ChatFormat
from ngramspec.text.chat.grammar import chat_grammar
from ngramspec.text.structured.guidance import ANY_OBJECT

log = logging.getLogger(__name__)
SAME_NAME = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_last_n", "repeat_penalty"),
    *("presence_penalty", "frequency_penalty", "mirostat", "mirostat_eta", "mirostat_tau", "seed"),
)


@dataclass(frozen=True)
class OllamaPlan(Plan):
    """An engine request for one answer, none to load or unload, and the shape of the response."""

    model: str  # as the client wrote it
    chat: bool  # /api/chat, not /api/generate
    idle_reason: str = ""  # load or unload, if there is no request
    format: ChatFormat = PLAIN_ANSWER
    with_context: bool = False  # the response has the tokens of prompt and answer


def plan_generate(incoming: Incoming) -> OllamaPlan:
    """Read the body of POST /api/generate.

    Raises:
        ApiError, GrammarError: It cannot be answered.
        InputError: A value is out of its bounds.
    """
    body, served = parse(incoming.raw, GenerateBody), incoming.served
    kind, options = _kind(body, served, chat=False), _options(body, served)
    if not body.prompt and not body.suffix and not body.images:
        return _idle(kind, body)
    prompt = generate_prompt(body, incoming)
    return _filled(partial(kind, with_context=not body.raw), body, options, prompt, incoming)


def plan_chat(incoming: Incoming) -> OllamaPlan:
    """Read the body of POST /api/chat.

    Raises:
        As plan_generate.
    """
    body, served = parse(incoming.raw, OllamaChatBody), incoming.served
    kind, options = _kind(body, served, chat=True), _options(body, served)
    if not body.messages:
        return _idle(kind, body)
    return _filled(kind, body, options, chat_prompt(body, served), incoming)


def _kind(body: OllamaBody, served: ServedModel, chat: bool) -> partial[OllamaPlan]:
    check_draft_model((body.options or {}).get("draft_model", body.draft_model), served)
    return partial(OllamaPlan, model=body.named(served), chat=chat)


def _idle(kind: partial[OllamaPlan], body: OllamaBody) -> OllamaPlan:
    reason = "unload" if body.unloads else "load"
    stream = body.stream is not False
    return kind((), stream, timings_per_token=False, spans=False, idle_reason=reason)


def _filled(
    kind: partial[OllamaPlan],
    body: OllamaBody,
    options: Mapping[str, Parameter],
    prompt: OllamaPrompt,
    incoming: Incoming,
) -> OllamaPlan:
    served, sampling = incoming.served, _sampling(body, options)
    return make_plan(
        partial(kind, format=prompt.format),
        sampling,
        incoming,
        prompts=[prompt.ids],
        field="messages" if isinstance(body, OllamaChatBody) else "prompt",
        grammar=chat_grammar("", _schema(body.format), "format", prompt.format),
        max_tokens=_max_tokens(options),
        logprobs=("top_logprobs", (body.top_logprobs or 0) if body.logprobs else None),
        special=prompt.format.shows_special,
        budgets=[budget_of_chat(sampling, served, budget_tokens(sampling, served), prompt.format)],
    )


def _options(body: OllamaBody, served: ServedModel) -> dict[str, Parameter]:
    """Return the options, as Ollama takes them; a line in the log tells what is not followed.

    Numbers are brought into their range and unknown options left out. What is settled when a model
    is loaded stays as it is: clients send it by habit.

    Raises:
        InputError: A value of another type.
    """
    parameters = {name: value for name, value in body.parameters.items() if value is not None}
    options = {
        name: clamp_parameter(name, value) for name, value in parameters.items() if name in KINDS
    }
    num_ctx, most = options.get("num_ctx", 0), served.engine.context_size
    notes = {
        "left out unknown options": sorted(set(parameters) - set(options)),
        "brought into range": sorted(
            name for name in options if _changed(parameters[name], options[name])
        ),
        "settled at the server's start": sorted(OF_LOADING & set(options)),
    }
    lines = [f"{what}: {', '.join(names)!a:.200}" for what, names in notes.items() if names]
    if isinstance(num_ctx, int) and num_ctx > most:
        lines.append(f"num_ctx is {num_ctx}, but a request has {most} tokens here: see --ctx-size")
    if lines:
        log.warning("%s", "; ".join(lines))
    return options


def _changed(value: Any, clamped: Parameter) -> bool:
    return not isinstance(clamped, tuple) and value != clamped


def _sampling(body: OllamaBody, options: Mapping[str, Any]) -> SamplingBody:
    fields: dict[str, Any] = {**body.speculation, "stream": body.stream is not False}
    fields |= {name: options[name] for name in SAME_NAME if name in options}
    stop = list(options.get("stop", ()))
    if len(stop) > MAX_STOPS:
        raise bad_request(f"stop must have at most {MAX_STOPS} texts, got {len(stop)}", "stop")
    return SamplingBody(**fields, stop=stop, n_keep=options.get("num_keep"))


def _max_tokens(options: Mapping[str, Any]) -> int | None:
    """Return the largest number of tokens; -2 fills the context, -1 and 0 mean no limit."""
    limit = options.get("num_predict")
    return None if limit is None else (int(limit) or -1)


def _schema(schema: str | dict[str, Any] | None) -> Any:
    if schema is None or schema == "":
        return None
    if isinstance(schema, dict):
        return schema
    if schema == "json":
        return ANY_OBJECT
    raise bad_request(
        f'invalid format: {schema!r:.80}; expected "json" or a valid JSON Schema object', "format"
    )
