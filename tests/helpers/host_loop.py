"""The host's own loop, token by token, with a record of what an attached drafter did.

The loop is the host's own `Llama.generate`: sample, compare, keep. This module only adds which
tokens came from an accepted draft, and the figures.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec.errors import BackendError, InputError
from ngramspec.hosts.llama_cpp.attach import Attachment, attach


@dataclasses.dataclass(frozen=True, slots=True)
class TokenEvent:
    """One emitted token: its id, whether an accepted draft token became it, seconds since start."""

    token_id: int
    accepted: bool
    seconds: float


@dataclasses.dataclass(frozen=True)
class Generation:
    """What one run of generate_tokens gave.

    token_ids: int32, shape (n,), the emitted tokens without the end token.
    accepted: bool, shape (n,), True where the token came from an accepted draft.
    prompt_seconds, seconds: time to the first token, and of the whole run.
    draft_seconds: time inside the drafter.
    steps: decodes of the target after the prompt, one per verification round.
    drafts, drafted: non-empty drafts, and tokens in them.
    finish_reason: "stop" at an end token, "length" at max_tokens or a full context.
    stats: figures per drafter as Drafter.stats() gave them at the end; empty without drafts.
    """

    token_ids: npt.NDArray[np.int32]
    accepted: npt.NDArray[np.bool_]
    prompt_seconds: float
    seconds: float
    draft_seconds: float
    steps: int
    drafts: int
    drafted: int
    finish_reason: str
    stats: Mapping[str, Any]

    @property
    def num_accepted(self) -> int:
        """Tokens that came from accepted drafts."""
        return int(self.accepted.sum())

    @property
    def acceptance(self) -> float:
        """Accepted tokens per drafted token, 0 without drafts."""
        return self.num_accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_accepted_length(self) -> float:
        """Tokens emitted per decode of the target after the prompt, 0 when there was none."""
        return (self.token_ids.size - 1) / self.steps if self.steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first one per second, without the time for the prompt."""
        spent = self.seconds - self.prompt_seconds
        return (self.token_ids.size - 1) / spent if spent > 0 and self.token_ids.size else 0.0


class _Recorder:
    """Counts what happens between the loop of the host and its drafter."""

    def __init__(self, attachment: Attachment | None) -> None:
        self.attachment = attachment
        self.start = time.perf_counter()
        self.finish_reason = "length"
        self.prompt_seconds = 0.0
        self.before = dataclasses.replace(attachment.draft.counters) if attachment else None
        if attachment is not None:
            attachment.last_draft = (0, np.empty(0, dtype=np.intc))

    def is_accepted(self, position: int, token: int) -> bool:
        """Tell whether the token at this position of the text is one of the newest draft."""
        if self.attachment is None:
            return False
        first, draft = self.attachment.last_draft
        offset = position - first
        return 0 <= offset < draft.size and int(draft[offset]) == token

    def spent(self, name: str) -> Any:
        """Return how much a counter of the drafter grew since the start."""
        if self.attachment is None or self.before is None:
            return 0
        return getattr(self.attachment.draft.counters, name) - getattr(self.before, name)


def stream_tokens(
    llama: Any,
    prompt_ids: Sequence[int] | npt.NDArray[np.int32],
    *,
    max_tokens: int = 128,
    draft: Any = None,
    temperature: float = 0.0,
    seed: int | None = None,
    fresh: bool = False,
    **sampling: Any,
) -> Generator[TokenEvent, None, Generation]:
    """Generate tokens one by one; the generator's return value is the Generation.

    Args:
        llama: A llama_cpp.Llama, attached or not.
        prompt_ids: The prompt, integer ids, shape (n,), n >= 1. Not kept.
        max_tokens: Most tokens to emit, >= 1; the context may end earlier.
        draft: None: as `llama` is, so with drafts if it is attached. Drafter names or an
            NgramDraft: attached for this call. An Attachment: the one `llama` has.
        temperature: 0 for greedy, as llama-cpp-python's temp.
        seed: Of the sampler; None leaves the Llama's own.
        fresh: Evaluate the whole prompt anew, for fair timing.
        sampling: Further keyword arguments of Llama.generate (top_k, grammar, ...).

    Returns:
        An iterator of TokenEvent. Closing it early is fine; it then has no Generation.

    Raises:
        InputError: Empty prompt, or max_tokens < 1.
        BackendError: The prompt does not fit the context. Further, from the first token on: as
            attach().

    Threads: as the Llama, one at a time.
    """
    tokens, limit = _checked(llama, prompt_ids, max_tokens)
    sampling["temp"] = temperature
    return _run(llama, tokens, limit, draft, seed, fresh, sampling)


def generate_tokens(
    llama: Any,
    prompt_ids: Sequence[int] | npt.NDArray[np.int32],
    *,
    on_token: Callable[[TokenEvent], None] | None = None,
    **options: Any,
) -> Generation:
    """Generate up to max_tokens and return them with the figures.

    Args:
        llama: A llama_cpp.Llama, attached or not.
        prompt_ids: The prompt, integer ids, shape (n,), n >= 1. Not kept.
        on_token: Called with every TokenEvent as it comes.
        options: As for stream_tokens.

    Returns:
        The Generation, owned by the caller.

    Raises:
        As stream_tokens. Threads: as the Llama.
    """
    stream = stream_tokens(llama, prompt_ids, **options)
    while True:
        try:
            event = next(stream)
        except StopIteration as end:
            result: Generation = end.value
            return result
        if on_token is not None:
            on_token(event)


def _checked(llama: Any, prompt_ids: Any, max_tokens: int) -> tuple[list[int], int]:
    """Return the prompt as a list, and how many tokens may follow it."""
    tokens = [int(token) for token in prompt_ids]
    if not tokens or max_tokens < 1:
        raise InputError(f"need a prompt and max_tokens >= 1, got {len(tokens)} and {max_tokens}")
    room = min(int(llama.n_ctx()), int(llama.input_ids.shape[0])) - len(tokens)
    if room < 1:
        raise BackendError(f"the prompt has {len(tokens)} tokens, n_ctx is {len(tokens) + room}")
    return tokens, min(max_tokens, room)


def _run(
    llama: Any,
    tokens: list[int],
    limit: int,
    draft: Any,
    seed: int | None,
    fresh: bool,
    sampling: dict[str, Any],
) -> Generator[TokenEvent, None, Generation]:
    with _attached(llama, draft) as attachment:
        if seed is not None:
            llama.set_seed(seed)
        if fresh:
            llama.reset()
            llama._ctx.kv_cache_clear()
        recorder = _Recorder(attachment)
        loop = llama.generate(tokens, **sampling)
        emitted: list[TokenEvent] = []
        for event in _events(llama, loop, recorder, len(tokens), limit):
            emitted.append(event)
            yield event
        return _summary(recorder, emitted)


@contextlib.contextmanager
def _attached(llama: Any, draft: Any) -> Iterator[Attachment | None]:
    """Give the attachment that serves the call, made for it if needed, and undo only that."""
    if draft is None:
        owner = getattr(llama.sample, "__self__", None)
        yield owner if isinstance(owner, Attachment) else None
    elif isinstance(draft, Attachment):
        if not draft.attached or llama.draft_model is not draft.draft:
            raise InputError("draft is an Attachment of another Llama, or detached")
        yield draft
    else:
        with attach(llama, draft) as attachment:
            yield attachment


def _events(
    llama: Any, loop: Iterator[int], recorder: _Recorder, prompt_len: int, limit: int
) -> Iterator[TokenEvent]:
    """Yield the tokens of the host's loop until an end token or `limit` tokens."""
    import llama_cpp.llama_cpp as lib

    try:
        for count, token in enumerate(loop):
            now = time.perf_counter() - recorder.start
            if count == 0:
                recorder.prompt_seconds = now
            if lib.llama_vocab_is_eog(llama._model.vocab, token):
                recorder.finish_reason = "stop"
                return
            yield TokenEvent(token, recorder.is_accepted(prompt_len + count, token), now)
            if count + 1 >= limit:
                return
    finally:
        loop.close()  # type: ignore[attr-defined]


def _summary(recorder: _Recorder, emitted: list[TokenEvent]) -> Generation:
    attachment = recorder.attachment
    return Generation(
        token_ids=np.array([event.token_id for event in emitted], dtype=np.int32),
        accepted=np.array([event.accepted for event in emitted], dtype=np.bool_),
        prompt_seconds=recorder.prompt_seconds,
        seconds=time.perf_counter() - recorder.start,
        draft_seconds=float(recorder.spent("seconds")),
        steps=int(recorder.spent("calls")) if attachment else max(0, len(emitted) - 1),
        drafts=int(recorder.spent("drafts")),
        drafted=int(recorder.spent("drafted")),
        finish_reason=recorder.finish_reason,
        stats=attachment.draft.stats() if attachment else {},
    )
