"""CompletionPlan: what a request for a text completion asks for, ready for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ngramspec.arrays import TokenIds
from ngramspec.engine.request import Request
from ngramspec.server.chat.budget import budgets_of_texts
from ngramspec.server.chat.prediction import prediction_of
from ngramspec.server.errors import bad_request, not_supported
from ngramspec.server.model import ServedModel
from ngramspec.server.openai.bodies import CompletionBody, schema_of
from ngramspec.server.request.bodies import parse
from ngramspec.server.request.engine_request import check_choices, make_requests
from ngramspec.server.request.grammar import grammar_of
from ngramspec.server.request.infill import check_layout, fill_prompt, missing_tokens
from ngramspec.server.request.prompts import check_length, check_text, listed, prompts_of
from ngramspec.server.request.speculation import speculation_of
from ngramspec.server.settings import ServerSettings


@dataclass(frozen=True)
class CompletionPlan:
    """Text completions as engine requests, and the shape of the response."""

    requests: Sequence[Request]
    stream: bool
    choices: int  # how many requests in a row belong to one prompt
    echoes: Sequence[str]  # per request, the prompt text to repeat before the answer
    include_usage: bool
    verbose: bool
    timings_per_token: bool
    spans: bool


def plan_completion(
    raw: bytes, served: ServedModel, settings: ServerSettings, key_id: str
) -> CompletionPlan:
    """Read the body of a completion request.

    Raises:
        ApiError, GrammarError: It cannot be answered.
        InputError: A value is out of its bounds.
    """
    body = parse(raw, CompletionBody)
    choices = 1 if body.n is None else body.n
    if body.best_of is not None and body.best_of != choices:
        raise not_supported("best_of is not supported: it must equal n", "best_of")
    if body.echo and _logprobs(body) is not None:
        raise not_supported("echo cannot be used with logprobs", "echo")
    check_choices(settings, choices)
    prompts = _prompts(body, served, settings, settings.max_generations // choices)
    for prompt_ids in prompts:
        check_length(prompt_ids, served, settings, "prompt")
    drafts = speculation_of(body.model_extra, key_id)
    requests = make_requests(
        body,
        served,
        settings,
        prompts=prompts,
        choices=choices,
        grammar=grammar_of(body, *schema_of(body), strict=body.is_strict),
        max_tokens=body.num_tokens,
        logprobs=("n_probs" if body.n_probs else "logprobs", _logprobs(body)),
        post_sampling_probs=bool(body.post_sampling_probs),
        speculation=drafts.speculation,
        prediction_ids=prediction_of(body.prediction, served),
        budgets=budgets_of_texts(body, served, prompts),
    )
    return CompletionPlan(
        requests=requests,
        stream=bool(body.stream),
        choices=choices,
        echoes=[text for text in _echoes(body, served, prompts) for _ in range(choices)],
        include_usage=body.include_usage,
        verbose=settings.verbose if body.verbose is None else body.verbose,
        timings_per_token=bool(body.timings_per_token),
        spans=drafts.spans,
    )


def _prompts(
    body: CompletionBody, served: ServedModel, settings: ServerSettings, most: int
) -> list[TokenIds]:
    if not body.suffix:
        special = body.add_special_tokens
        return prompts_of(body.prompt, served, settings, most, add_special=special)
    check_layout(body)
    missing = missing_tokens(served)
    if missing:
        raise bad_request(f"this model cannot take a suffix: {missing}", "suffix")
    if not isinstance(body.prompt, str):
        raise bad_request("prompt must be a text when there is a suffix", "prompt")
    check_text(body.prompt + body.suffix, served, settings, "prompt")
    return [fill_prompt(served, body.prompt, body.suffix)]


def _echoes(
    body: CompletionBody, served: ServedModel, prompts: Sequence[TokenIds]
) -> Sequence[str]:
    """Return what to repeat of each prompt: a text as the client wrote it, else that of its tokens.

    From tokens come neither special tokens nor always the same spaces.
    """
    if not body.echo:
        return [""] * len(prompts)
    echoes = []
    for prompt, prompt_ids in zip(listed(body.prompt), prompts, strict=True):
        text = prompt["prompt_string"] if isinstance(prompt, dict) else prompt
        echoes.append(text if isinstance(text, str) else served.model.detokenize(prompt_ids))
    return echoes


def _logprobs(body: CompletionBody) -> int | None:
    if body.n_probs:
        return body.n_probs
    if body.logprobs is None or body.logprobs is False:
        return None
    return int(body.logprobs)
