"""Fields of vLLM, SGLang and others that change an answer: taken under our names, or refused."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from ngramspec.server.errors import ApiError, bad_request, not_supported
from ngramspec.server.request.finite_json import finite_json
from ngramspec.text.grammar.gbnf import one_of
from ngramspec.text.structured.guidance import ANY_OBJECT

Members = dict[str, Any]  # of a body
# What this server cannot follow, and what to use here, "" for nothing. Bodies that have one of
# these as a field of their own follow it.
REFUSED = {
    # llama-server
    "adaptive_target": "",
    "backend_sampling": "",
    "grammar_lazy": "",
    "grammar_triggers": "",
    "n_cache_reuse": "",
    "post_sampling_probs": "",
    # vLLM, SGLang, TGI, transformers
    "allowed_token_ids": "use grammar or logit_bias",
    "bad_words": "use logit_bias",
    "best_of": "",
    "chat_template": "start the server with --chat-template",
    "custom_logit_processor": "",
    "do_sample": "use temperature 0",
    "documents": "write them into a message",
    "echo": "",
    "guided_regex": "use grammar",
    "guided_whitespace_pattern": "use grammar",
    "guideline": "use a system message",
    "include_reasoning": "use /v1/chat/completions",
    "include_stop_str_in_output": "",
    "logits_processors": "",
    "lora_path": "use lora",
    "min_tokens": "use ignore_eos with max_tokens",
    "no_repeat_ngram_size": "use dry_multiplier",
    "no_stop_trim": "",
    "prompt_embeds": "",
    "prompt_logprobs": "",
    "regex": "use grammar",
    "repetition_detection": "",
    "response_format": "use json_schema",
    "separate_reasoning": 'use reasoning_format "none"',
    "skip_special_tokens": "start the server with --special",
    "stop_regex": "use stop",
    "stop_token_ids": "use stop",
    "structural_tag": "use tools or grammar",
    "tool_prompt": "use a system message",
    "truncate_prompt_tokens": "",
    "use_beam_search": "",
    "watermarking": "",
}
# Which values change nothing where these are not null, false, 0 and what is empty.
NEUTRAL: dict[str, Callable[[Any], bool]] = {
    "adaptive_target": lambda value: not isinstance(value, (int, float)) or value < 0,
    "best_of": lambda value: not value or value == 1,
    "do_sample": lambda value: value in (None, True),
    "include_reasoning": lambda value: value in (None, True),
    "prompt_logprobs": lambda value: value is None or value is False,  # 0: of its tokens only
    "response_format": lambda value: not value or value == {"type": "text"},
    "separate_reasoning": lambda value: value in (None, True),
    "skip_special_tokens": lambda value: value in (None, True),
}
# Members of our own that say what the text of an answer must be; a body has one of them.
FORMS = ("grammar", "json_schema")
MAX_CHOICES = 1 << 20  # characters of all choices
# These would look back on the whole context, too, beside a repetition penalty.
SAME_WINDOW = ("frequency_penalty", "presence_penalty")
WHOLE_CONTEXT = -1


def own_fields(body: Members, fields: Collection[str]) -> Members:
    """Return the members of a body, those of other servers under the names that they have here.

    fields: The fields that such a body has itself.

    Raises:
        ApiError: A member would change the answer, and cannot be followed here or beside another.
    """
    for name, instead in REFUSED.items():
        if name in body and name not in fields and not _says_nothing(name, body[name]):
            raise _refusal(name, instead)
    foreign = {name: value for name, value in body.items() if name in TAKEN}
    if not foreign:
        return body
    own = {name: value for name, value in body.items() if name not in TAKEN}
    forms = _forms(own)
    for name, value in foreign.items():
        for ours, setting in TAKEN[name](name, value, own).items():
            if ours in FORMS:
                forms.append(name)
                if len(forms) > 1:
                    both = " and ".join(forms)
                    raise bad_request(f"{both} exclude one another: give one of them", name)
            elif own.get(ours) not in (None, setting):
                raise bad_request(f"{name} and {ours} differ: give one of them", name)
            own[ours] = setting
    return own


def _says_nothing(name: str, value: Any) -> bool:
    return NEUTRAL[name](value) if name in NEUTRAL else not value


def _refusal(name: str, instead: str) -> ApiError:
    hint = f": {instead}" if instead else ""
    return not_supported(f"{name} is not supported by this server{hint}", name)


# -- what the answer's text must be ----------------------------------------------------------------


def _forms(body: Members) -> list[str]:
    """Return the members of our own that say what the text of the answer must be."""
    forms = {name: body.get(name) for name in (*FORMS, "response_format", "output_format")}
    for name in ("text", "output_config"):
        if isinstance(body.get(name), dict):
            forms[f"{name}.format"] = body[name].get("format")
    return [name for name, value in forms.items() if value not in (None, "", {"type": "text"})]


def _schema(name: str, value: Any, own: Members) -> Members:
    if value is None or value == "":
        return {}
    try:
        schema = finite_json(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise bad_request(f"{name} is no JSON: {error}", name) from error
    if not isinstance(schema, dict):
        raise bad_request(f"{name} must be a JSON schema, an object or its text", name)
    return {"json_schema": schema}


def _grammar(name: str, value: Any, own: Members) -> Members:
    if not value:
        return {}
    if not isinstance(value, str):
        raise bad_request(f"{name} must be a grammar in GBNF", name)
    return {"grammar": value}


def _choice(name: str, value: Any, own: Members) -> Members:
    if not value:
        return {}
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise bad_request(f"{name} must be a list of texts", name)
    if sum(map(len, value)) > MAX_CHOICES:
        raise bad_request(f"{name} must have at most {MAX_CHOICES} characters", name)
    return {"grammar": f"root ::= {one_of(value)}\n"}


def _object(name: str, value: Any, own: Members) -> Members:
    return {"json_schema": ANY_OBJECT} if value else {}


def _outputs(name: str, value: Any, own: Members) -> Members:
    """Return what vLLM's structured_outputs ask for, which holds one constraint."""
    if not value:
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"{name} must be an object", name)
    outputs: list[Members] = []
    for member, constraint in value.items():
        path = f"{name}.{member:.40}"
        if member in OUTPUTS:
            outputs.append(OUTPUTS[member](path, constraint, own))
        elif constraint:
            raise _refusal(path, "use json, choice or grammar")
    asked = [one for one in outputs if one]
    if len(asked) > 1:
        raise bad_request(f"{name} must have one of {', '.join(OUTPUTS)}", name)
    return asked[0] if asked else {}


# -- numbers ---------------------------------------------------------------------------------------


def _penalty(name: str, value: Any, own: Members) -> Members:
    """Return a penalty of all tokens of prompt and answer, as transformers has it."""
    if not value:
        return {}
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise bad_request(f"{name} must be a number", name)
    repeat_penalty = own.get("repeat_penalty")
    if value == 1 or value == repeat_penalty:
        return {"repeat_penalty": 1.0 if repeat_penalty is None else repeat_penalty}
    for other in SAME_WINDOW:
        if own.get(other):
            words = f"{name} cannot be used with {other}: use repeat_penalty and repeat_last_n"
            raise bad_request(words, name)
    penalties: Members = {"repeat_penalty": value, "repeat_last_n": WHOLE_CONTEXT}
    return penalties | dict.fromkeys(SAME_WINDOW, 0.0)  # not the server's own, of a longer text


def _budget(name: str, value: Any, own: Members) -> Members:
    if value is None or value == -1:
        return {}
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise bad_request(f"{name} must be an integer from 0, or -1 for any number", name)
    return {"reasoning_budget_tokens": value}


Take = Callable[[str, Any, Members], Members]  # from a name, a value and our own members to more
OUTPUTS: dict[str, Take] = {
    "json": _schema,
    "json_object": _object,
    "choice": _choice,
    "grammar": _grammar,
}
TAKEN: dict[str, Take] = {
    "ebnf": _grammar,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "guided_json": _schema,
    "repetition_penalty": _penalty,
    "structured_outputs": _outputs,
    "thinking_token_budget": _budget,
}
