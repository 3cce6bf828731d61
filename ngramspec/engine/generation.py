"""Generation: a running or finished request, its text and figures; Chunk: what one step added."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ngramspec._native.engine.decode import PromptLogprobs
from ngramspec._native.engine.figures import Timings
from ngramspec._native.engine.transcript import Pieces, Transcript
from ngramspec.engine.request import Request
from ngramspec.text.chat.delta import ChatMessage

FinishReason = Literal["stop", "length", "cancelled", "error"]
NO_PIECES = Pieces([b""])  # of a generation that no engine runs


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of an emitted token under the target's softmax, before sampling.

    With post_sampling_probs that under which the sampler chose it, after filters and penalties.
    Or of a token of the prompt: NaN of the first one, and of those that were not read.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # tokens and their log-probabilities, likeliest first
    rank: int = 0  # of a prompt's token: 1 if none was likelier; 0 = unknown


class Progress(NamedTuple):
    """How much of a prompt is read."""

    total: int  # tokens of the prompt
    cached: int  # of these in the cache from the start on
    processed: int  # in the cache by now
    seconds: float  # since the request got its slot


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one step added to one generation.

    text holds whole characters; it may lag behind token_ids where a character is incomplete or a
    stop text may have begun, and the last chunk brings the rest.
    """

    generation: Generation
    token_ids: tuple[int, ...]
    num_accepted: int  # leading token_ids that are accepted draft tokens
    text: str
    spans: tuple[tuple[str, bool], ...]  # text in pieces, and which come from accepted drafts
    logprobs: tuple[TokenLogprob, ...]  # one per token when asked for
    finish_reason: FinishReason | None  # None while it goes on
    progress: Progress | None = None  # of the prompt; such a chunk holds nothing else


class Generation:
    """A submitted request: its state, output and figures.

    The engine's thread writes it, any thread may read it; `wait` returns when it is finished.
    Fields other than finish_reason are complete only then.
    """

    def __init__(
        self, request: Request, seed: int, transcript: Transcript | None = None, tenant: str = ""
    ) -> None:
        self.request = request
        self.tenant = tenant  # who asked
        self.seed = seed  # the one used, also when the request gave none
        self.transcript = Transcript(NO_PIECES) if transcript is None else transcript
        self.logprobs: list[TokenLogprob] = []
        self.prompt_likelihoods: PromptLogprobs | None = None  # from its start, if it asks
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None
        self.slot = -1  # -1 while it waits
        self.number = -1  # requests submitted to its engine before it; -1 = it was not submitted
        self.timings = Timings(num_prompt=int(request.prompt_ids.size))
        self.on_cancel: Callable[[], None] = lambda: None  # the queue's, while it waits
        self.on_finish: Callable[[], None] = lambda: None  # gives back what was held for it
        self._cancelled = False
        self._finished = threading.Event()
        self._reading = threading.Lock()  # guards the next
        self._message: ChatMessage | None = None  # once it has ended

    @property
    def num_tokens(self) -> int:
        """Return how many tokens were emitted, an end token not counted."""
        return len(self.transcript)

    @property
    def token_ids(self) -> list[int]:
        """Return the emitted tokens as a new list, an end token not included."""
        return list(map(int, self.transcript.token_ids().tolist()))

    @property
    def accepted(self) -> list[bool]:
        """Return for each token whether it came from a draft, as a new list."""
        return list(map(bool, self.transcript.accepted().tolist()))

    @property
    def tokens_per_second(self) -> float:
        """Return the rate of the tokens after the first one, which belongs to the prompt's time."""
        seconds = self.timings.decode_seconds
        return (self.num_tokens - 1) / seconds if seconds > 0 and self.num_tokens > 1 else 0.0

    @property
    def mean_accepted_length(self) -> float:
        """Return the tokens per pass after the one that read the prompt; 0 if there was none."""
        steps = self.timings.num_steps - 1  # each chooses a token, an end token included
        return 1.0 + self.timings.num_accepted_tokens / steps if steps > 0 else 0.0

    @property
    def text(self) -> str:
        """Return the text handed out so far, decoded on each call; without on_chunk, at the end."""
        return self.transcript.text

    @property
    def message(self) -> ChatMessage | None:
        """Return the answer of a chat in its parts, None of a request that has no format.

        It is read from the text, once if the generation has finished, else on each call.
        """
        if self.request.format is None:
            return None
        with self._reading:
            if self._message is None:
                finished = self.finish_reason is not None
                message = self.request.format.message(self.text)
                if not finished:
                    return message
                self._message = message
            return self._message

    @property
    def prompt_logprobs(self) -> list[TokenLogprob]:
        """Return how likely each token of the prompt was, a new list; empty if not asked for."""
        if self.request.prompt_logprobs is None:
            return []
        tokens, likelihoods = self.request.prompt_ids.tolist(), self.prompt_likelihoods
        count = 0 if likelihoods is None else len(likelihoods)
        entries = [TokenLogprob(tokens[0], math.nan, ())]
        for index, token in enumerate(tokens[1:]):
            if likelihoods is None or index >= count:
                entries.append(TokenLogprob(token, math.nan, ()))
            else:
                logprob, rank, top = likelihoods.at(index)
                entries.append(TokenLogprob(token, logprob, tuple(top), rank))
        return entries

    @property
    def stop_text(self) -> str:
        """Return the stop text that ended it, empty when none did."""
        index = self.transcript.stop
        return self.request.stop[index] if index >= 0 else ""

    @property
    def cancelled(self) -> bool:
        """Return whether cancel was called."""
        return self._cancelled

    def cancel(self) -> None:
        """End it within one step; what was emitted stays. Harmless when it is finished."""
        self._cancelled = True
        self.on_cancel()

    def wait(self, timeout: float | None = None) -> bool:
        """Return True once it is finished, False after `timeout` seconds."""
        return self._finished.wait(timeout)

    def finish(self, reason: FinishReason, error: Exception | None = None) -> None:
        """Mark it finished; for the engine."""
        self.error = error
        self.timings.finished = time.perf_counter()
        self.finish_reason = reason  # what others wait for comes last
        on_finish, self.on_finish = self.on_finish, lambda: None
        on_finish()
        self._finished.set()
