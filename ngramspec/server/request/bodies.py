"""Request bodies: the fields that several protocols share, and the errors for bad bodies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError
from starlette.requests import ClientDisconnect, Request

from ngramspec.engine.request import MAX_MARKS, MAX_STOPS
from ngramspec.engine.sampling import MAX_BIASES, MAX_BREAKERS
from ngramspec.server.errors import ApiError, bad_request
from ngramspec.server.http.connections import ClientGone
from ngramspec.server.request.finite_json import finite_json
from ngramspec.server.request.other_servers import own_fields

log = logging.getLogger(__name__)
Prompt = str | list[Any] | dict[str, Any]  # what prompts_of reads
Biases = dict[str, float | bool] | list[list[Any]]


def _whole(value: Any) -> Any:
    """Return a whole number written with a fraction as an integer, as many clients send it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Every integer of a body: what fits 64 bits, signed or unsigned.
Integer = Annotated[int, BeforeValidator(_whole), Field(ge=-(1 << 63), lt=1 << 64)]
Number = Annotated[float, Field(allow_inf_nan=False)]


def at_most(most: int) -> BeforeValidator:
    """Return a bound on the members of a list or object, checked before any member."""

    def check(value: Any) -> Any:
        if isinstance(value, (list, dict)) and len(value) > most:
            context = {"most": most, "given": len(value)}
            raise PydanticCustomError(
                "bound", "must have at most {most} members, got {given}", context
            )
        return value

    return BeforeValidator(check)


MAX_TOOLS = 1024
MAX_OBJECTS = 1 << 16
Objects = Annotated[list[dict[str, Any]], at_most(MAX_OBJECTS)]  # messages, files


class Body(BaseModel):
    """A JSON object; unknown members are kept in model_extra."""

    model_config = ConfigDict(extra="allow", strict=True, hide_input_in_errors=True)


class SamplingBody(Body):
    """Fields of every generating route; None = the server's default."""

    temperature: Number | None = None
    dynatemp_range: Number | None = None
    dynatemp_exponent: Number | None = None
    top_k: Integer | None = None
    top_p: Number | None = None
    min_p: Number | None = None
    typical_p: Number | None = None
    top_n_sigma: Number | None = None
    xtc_probability: Number | None = None
    xtc_threshold: Number | None = None
    min_keep: Integer | None = None
    repeat_penalty: Number | None = None
    repeat_last_n: Integer | None = None
    frequency_penalty: Number | None = None
    presence_penalty: Number | None = None
    dry_multiplier: Number | None = None
    dry_base: Number | None = None
    dry_allowed_length: Integer | None = None
    dry_penalty_last_n: Integer | None = None
    dry_sequence_breakers: Annotated[list[str], at_most(MAX_BREAKERS)] | None = None
    mirostat: Integer | None = None
    mirostat_tau: Number | None = None
    mirostat_eta: Number | None = None
    seed: Integer | None = None
    ignore_eos: bool | None = None
    logit_bias: Annotated[Biases, at_most(MAX_BIASES)] | None = None
    samplers: Annotated[list[str] | str, at_most(64)] | None = None
    grammar: str | None = None
    json_schema: Any = None
    stop: Annotated[str | list[str], at_most(MAX_STOPS)] | None = None
    stream: bool | None = None
    add_special_tokens: bool | None = None  # vLLM's
    cache_prompt: bool | None = None
    id_slot: Integer | None = None
    timings_per_token: bool | None = None
    t_max_predict_ms: Integer | None = None
    n_indent: Integer | None = None
    return_progress: bool | None = None
    n_keep: Integer | None = None
    n_discard: Integer | None = None
    reasoning_budget_tokens: Integer | None = None
    thinking_budget_tokens: Integer | None = None
    reasoning_budget_message: str | None = None
    reasoning_budget_start_tag: str | None = None
    reasoning_budget_end_tag: str | None = None
    reasoning_budget_end_tags: Annotated[list[str], at_most(MAX_MARKS)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _own_fields(cls, members: Any) -> Any:
        """Take or refuse the fields of other servers."""
        return own_fields(members, cls.model_fields) if isinstance(members, dict) else members


READ_ELSEWHERE = ("speculative", "draft_model", "lora")  # that no class has as a field
MAX_NAMES = 200  # characters of unknown names in the log
B = TypeVar("B", bound=Body)


async def read(request: Request, seconds: float = 60.0) -> bytes:
    """Return the body of a request.

    Raises:
        ApiError: It is compressed, or takes longer than `seconds`.
        ClientGone: The client left before its end.
    """
    encoding = request.headers.get("content-encoding", "").lower()
    if encoding not in ("", "identity"):
        raise ApiError(415, f"the body is compressed ({encoding:.40}): send it as it is")
    try:
        return await asyncio.wait_for(request.body(), seconds)
    except asyncio.TimeoutError as error:
        raise ApiError(408, f"the body did not arrive within {seconds:g} seconds") from error
    except ClientDisconnect as error:
        raise ClientGone from error


def parse_json(raw: bytes) -> Any:
    """Return the value of a JSON body.

    Raises:
        ApiError: It is not JSON, or holds a number that no answer could repeat.
    """
    try:
        return finite_json(raw)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from error


def parse(raw: bytes, model: type[B]) -> B:
    """Return the fields of a JSON body, whatever its Content-Type says.

    Raises:
        ApiError: It is not a JSON object, a field has the wrong type, or cannot be followed.
    """
    data = parse_json(raw)
    if not isinstance(data, dict):
        raise bad_request("the body must be a JSON object")
    try:
        body = model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if not first["loc"]:  # the name of a field is wrong, not its value
            raise bad_request("the name of a field is not valid Unicode") from error
        field = _place(first["loc"], model)
        reasons = {"missing": "is required", "model_type": "must be an object"}
        what = first["msg"] if first["type"] == "bound" else reasons.get(first["type"])
        what = what or f"is wrong: {first['msg']}"
        raise bad_request(f"{field} {what}", param=field) from error
    extra = body.model_extra or {}
    if unknown := [name for name in extra if name.partition(".")[0] not in READ_ELSEWHERE]:
        log.debug("unknown fields: %a", ", ".join(unknown)[:MAX_NAMES])
    return body


def _place(loc: Sequence[str | int], model: type[BaseModel]) -> str:
    """Return the path of a field, such as messages[0], without pydantic's names of types."""
    name = ""
    fields = model.model_fields
    for part in loc:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part in fields:
            name += f".{part}"
            kinds = get_args(fields[part].annotation) or (None,)  # of `Kind | None`
            fields = getattr(kinds[0], "model_fields", {})
    return name.removeprefix(".") or str(loc[0])
