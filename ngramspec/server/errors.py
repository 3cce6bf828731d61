"""ApiError: what a client gets when something fails, in the shape of its API."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from ngramspec.errors import (
    CapacityError,
    ChatError,
    GrammarError,
    InputError,
    NgramspecError,
    QuotaError,
    StateError,
)

# llama-server's error types, by status.
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "method_not_allowed_error",
    408: "timeout_error",
    413: "payload_too_large_error",
    415: "unsupported_media_type_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
TOO_LONG = "context_length_exceeded"
INTERNAL = "internal error; the server's log has the details"
OPENAI_PREFIXES = ("/v1/", "/chat/", "/responses")
OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
ANTHROPIC_PREFIX = "/v1/messages"
# Where Anthropic has another word than llama-server.
ANTHROPIC_TYPES = {
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    500: "api_error",
    501: "api_error",
    503: "overloaded_error",
}
REQUEST_ID_HEADER = "x-request-id"


class ApiError(Exception):
    """An expected failure of a request.

    Args:
        status: HTTP status.
        message: One line for people.
        type: llama-server's error type; None = that of the status.
        code: OpenAI's code, such as "context_length_exceeded".
        param: The field that is wrong.
        retry_after: Seconds after which to try again.
        extra: Further members of the error, as llama-server has them.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type or TYPES.get(status, "server_error" if status >= 500 else TYPES[400])
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.extra = extra or {}

    def body(self, path: str) -> dict[str, Any]:
        if path.startswith("/api/"):
            return {"error": self.message}
        if path.startswith(ANTHROPIC_PREFIX):
            return {"type": "error", "error": self._anthropic()}
        if path.startswith(OPENAI_PREFIXES):
            word = OPENAI_TYPES.get(self.status, TYPES[400] if self.status < 500 else TYPES[500])
            word = self.type if self.extra else word  # llama-server's members with its type
            blame = {"type": word, "param": self.param, "code": self.code}
            return {"error": {"message": self.message, **blame, **self.extra}}
        error = {"code": self.status, "message": self.message, "type": self.type}
        return {"error": {**error, **self.extra}}

    def _anthropic(self) -> dict[str, Any]:
        """Return the error in Anthropic's words; clients shorten a chat by those for its length."""
        message = self.message
        if self.code == TOO_LONG:
            count, most = self.extra["n_prompt_tokens"], self.extra["n_ctx"]
            message = f"prompt is too long: {count} tokens > {most} maximum"
        default = TYPES[400] if self.status < 500 else ANTHROPIC_TYPES[500]
        types = {**TYPES, **ANTHROPIC_TYPES}
        return {"type": types.get(self.status, default), "message": message}

    def response(self, path: str, request_id: str = "") -> Response:
        """Return the response for a request to the path.

        request_id: By which the log names the request, "" = it does not.
        """
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        if request_id:
            headers[REQUEST_ID_HEADER] = request_id
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        # messages may hold lone surrogates from names that clients sent
        body = json.dumps(self.body(path), ensure_ascii=False).encode("utf-8", "replace")
        return Response(body, self.status, headers, "application/json")


def api_error(error: Exception, retry_after: int = 1) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ChatError):
        field = error.field
        return (bad_request if error.supported else not_supported)(error.message, field)
    text = " ".join(str(error).split())
    if isinstance(error, GrammarError):
        return ApiError(400, text, param=error.field)
    if isinstance(error, InputError):
        return ApiError(400, text, param=_field(text))
    if isinstance(error, QuotaError):
        return ApiError(429, text, code="rate_limit_exceeded", retry_after=retry_after)
    if isinstance(error, CapacityError):
        return ApiError(503, text, code="server_overloaded", retry_after=retry_after)
    if isinstance(error, StateError):
        return ApiError(503, text, code="server_closing", retry_after=retry_after)
    if isinstance(error, NgramspecError):
        return ApiError(500, text)
    return ApiError(500, INTERNAL)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def not_supported(message: str, param: str | None = None, status: int = 501) -> ApiError:
    """Return the error for something that this server or model does not do.

    For a field of a request it is 400: clients try again after any status from 500 on.
    """
    return ApiError(400 if param else status, message, param=param, code="not_supported")


def too_long(num_prompt: int, most: int, param: str, at_least: bool = False) -> ApiError:
    """Return the error for a prompt that does not fit; `at_least`: it may have more tokens."""
    count = f"at least {num_prompt}" if at_least else f"{num_prompt}"
    return ApiError(
        400,
        f"This model's maximum context length is {most} tokens, "
        f"but the request has {count} in its prompt. Please shorten it.",
        type="exceed_context_size_error",
        code=TOO_LONG,
        param=param,
        extra={"n_prompt_tokens": num_prompt, "n_ctx": most},
    )


def _field(message: str) -> str | None:
    """Return the field at the start of one of our messages, None if there is none."""
    if message.startswith("the grammar"):
        return "grammar"
    name, _, rest = message.partition(" ")
    return name if rest.startswith("must ") else None
