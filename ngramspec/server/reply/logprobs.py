"""Log-probabilities in the shapes of OpenAI's chat, OpenAI's completions and llama-server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ngramspec.engine import Generation, TokenLogprob
    from ngramspec.server.model import ServedModel

LOWEST = -9999.0  # stands for minus infinity, which JSON does not have


class LogprobFormat:
    """Formats log-probabilities with the texts of a model's tokens.

    Args:
        served: The model.
        post_sampling_probs: They tell what the sampler chose from: probabilities, in llama-server's
            shape on every route.
    """

    def __init__(self, served: ServedModel, post_sampling_probs: bool = False) -> None:
        self._piece = served.model.piece
        self._sampled = post_sampling_probs

    def chat(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        if self._sampled:
            return {"content": self.native(logprobs), "refusal": None}
        return {"content": [self._entry(sample) for sample in logprobs], "refusal": None}

    def native(self, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        return [self._native_entry(sample) for sample in logprobs]

    def prompt(self, generation: Generation, most: int) -> list[dict[str, Any] | None]:
        """Return vLLM's `prompt_logprobs`: by token id, of each token and the likeliest.

        most: How many of the likeliest.
        """
        return [self._by_id(sample, most) for sample in generation.prompt_logprobs]

    def _by_id(self, sample: TokenLogprob, most: int) -> dict[str, Any] | None:
        if math.isnan(sample.logprob):
            return None
        ranked = [(token, value, rank) for rank, (token, value) in enumerate(sample.top[:most], 1)]
        entries = dict[str, Any]()
        for token, value, rank in [(sample.token_id, sample.logprob, sample.rank), *ranked]:
            entries.setdefault(
                str(token),
                {"logprob": _finite(value), "rank": rank, "decoded_token": self._text(token)},
            )
        return entries

    def echo(self, generation: Generation, text: str, most: int) -> dict[str, Any]:
        """Return the `logprobs` of an echoed prompt, as `completion` does.

        The first token, which follows nothing, has null. Offsets count from the end of the text:
        begin tokens are not in it.

        most: How many of the likeliest.
        """
        samples = [replace(one, top=one.top[:most]) for one in generation.prompt_logprobs]
        size = sum(len(self._text(sample.token_id)) for sample in samples)
        members = self.completion(samples, len(text) - size)
        members["text_offset"] = [max(0, offset) for offset in members["text_offset"]]
        return members

    def completion(self, logprobs: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
        """Return the `logprobs` of a text completion.

        offset: Characters before the first token.
        """
        if self._sampled:
            return {"content": self.native(logprobs)}
        tokens = [self._text(sample.token_id) for sample in logprobs]
        offsets = []
        for text in tokens:
            offsets.append(offset)
            offset += len(text)
        return {
            "tokens": tokens,
            "token_logprobs": [_or_none(sample.logprob) for sample in logprobs],
            "top_logprobs": [
                None if math.isnan(sample.logprob) else self._by_text(sample.top)
                for sample in logprobs
            ],
            "text_offset": offsets,
        }

    def _by_text(self, top: Sequence[tuple[int, float]]) -> dict[str, float]:
        """Return the likeliest tokens' values by text; of equal texts the likeliest counts."""
        values: dict[str, float] = {}
        for token, value in top:
            values.setdefault(self._text(token), _finite(value))
        return values

    def _entry(self, sample: TokenLogprob) -> dict[str, Any]:
        top = [self._one(token, value) for token, value in sample.top]
        return {**self._one(sample.token_id, sample.logprob), "top_logprobs": top}

    def _native_entry(self, sample: TokenLogprob) -> dict[str, Any]:
        top = [{"id": token, **self._one(token, value)} for token, value in sample.top]
        entry = {"id": sample.token_id, **self._one(sample.token_id, sample.logprob)}
        return {**entry, "top_probs" if self._sampled else "top_logprobs": top}

    def _one(self, token_id: int, value: float) -> dict[str, Any]:
        piece = self._piece(token_id, True)
        likelihood = {"prob": math.exp(value)} if self._sampled else {"logprob": _finite(value)}
        return {"token": piece.decode("utf-8", "replace"), **likelihood, "bytes": list(piece)}

    def _text(self, token_id: int) -> str:
        return self._piece(token_id, True).decode("utf-8", "replace")


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else _finite(value)


def _finite(value: float) -> float:
    return value if value > LOWEST else LOWEST
