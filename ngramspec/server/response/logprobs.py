"""Log-probabilities in the shapes of OpenAI's chat, OpenAI's completions and llama-server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ngramspec.engine import TokenLogprob
    from ngramspec.server.model import ServedModel

LOWEST = -9999.0  # stands for minus infinity, which JSON does not have


class LogprobFormat:
    """Formats log-probabilities with the texts of a model's tokens."""

    def __init__(self, served: ServedModel) -> None:
        self._piece = served.model.piece

    def chat(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return the `logprobs` of a chat choice."""
        return {"content": [self._entry(made, "logprob") for made in logprobs], "refusal": None}

    def native(self, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        """Return llama-server's `completion_probabilities`."""
        return [{"id": made.token_id, **self._entry(made, "id")} for made in logprobs]

    def completion(self, logprobs: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
        """Return the `logprobs` of a text completion.

        offset: Characters before the first token.
        """
        tokens = [self._text(made.token_id) for made in logprobs]
        offsets = []
        for text in tokens:
            offsets.append(offset)
            offset += len(text)
        return {
            "tokens": tokens,
            "token_logprobs": [_finite(made.logprob) for made in logprobs],
            "top_logprobs": [self._by_text(made.top) for made in logprobs],
            "text_offset": offsets,
        }

    def _by_text(self, top: Sequence[tuple[int, float]]) -> dict[str, float]:
        """Return the likeliest tokens' values by text; of equal texts the likeliest counts."""
        made: dict[str, float] = {}
        for token, value in top:
            made.setdefault(self._text(token), _finite(value))
        return made

    def _entry(self, made: TokenLogprob, kind: str) -> dict[str, Any]:
        top = [self._one(token, value, kind) for token, value in made.top]
        return {**self._one(made.token_id, made.logprob, kind), "top_logprobs": top}

    def _one(self, token_id: int, value: float, kind: str) -> dict[str, Any]:
        piece = self._piece(token_id, True)
        entry = {
            "token": piece.decode("utf-8", "replace"),
            "logprob": _finite(value),
            "bytes": list(piece),
        }
        return {"id": token_id, **entry} if kind == "id" else entry

    def _text(self, token_id: int) -> str:
        return self._piece(token_id, True).decode("utf-8", "replace")


def _finite(value: float) -> float:
    return value if value > LOWEST else LOWEST
