"""Request: the engine's input, as plain data.

ReasoningBudget: how long a request may reason, and how that ends.
"""

from __future__ import annotations

import math
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec.arrays import TokenIds
from ngramspec.drafting.names import REQUEST_NAMES, parse_names
from ngramspec.engine.sampling import Sampling, are_texts, is_int
from ngramspec.errors import InputError
from ngramspec.text.chat.format import ChatFormat

Adapters = tuple[tuple[int, float], ...]  # numbers of adapters and their scales
NO_TOKENS: TokenIds = np.empty(0, dtype=np.int32)
MAX_LOGPROBS = 1000
# Log-probabilities of a prompt, or of all tokens of a server's response; as JSON each takes some
# 100 bytes, as objects 500.
MAX_REPORTED = 1 << 18
MAX_COUNT = (1 << 31) - 1  # of tokens: more than any context has
# Fields that count tokens or name a slot, and their least values.
COUNTS = {"max_tokens": -1, "slot": -1, "min_indent": 0, "num_keep": -1, "num_discard": 0}
MAX_STOPS = 128  # stop texts; each is searched for after every token
MAX_STOP_BYTES = 8192  # of all stop texts together, in UTF-8
MAX_MARKS = 16
MAX_MARK_BYTES = 1024
MAX_END = 4096  # tokens


@dataclass(frozen=True, kw_only=True, eq=False)
class ReasoningBudget:
    """A bound on reasoning: after `tokens` of it, its end is written for the model.

    Reasoning is what comes between the marks, in the text with special tokens; each one in an
    answer has the same budget. An unfinished character is completed first. With a grammar the end
    comes as soon as that allows it; one that does not allow it where an answer begins within
    reasoning leaves no room for reasoning, so there is nothing to end.
    """

    tokens: int  # of a reasoning, without its open mark; 0 = ended as soon as it begins
    open: str
    closes: tuple[str, ...]  # each ends it
    end_ids: npt.NDArray[np.int32]  # what is written then: a close mark, perhaps a text before it
    begun: bool = False  # the prompt ends within reasoning

    def __post_init__(self) -> None:
        """Check the bounds; the engine checks the token ids.

        Raises:
            InputError: A field has the wrong type or is out of its bounds.
        """
        tokens = self.tokens
        if not is_int(tokens) or not 0 <= tokens <= MAX_COUNT:
            raise InputError(f"a reasoning budget must be in 0..{MAX_COUNT}, got {tokens!r}")
        if not 1 <= len(self.closes) <= MAX_MARKS:
            raise InputError(f"reasoning needs 1..{MAX_MARKS} close marks, got {len(self.closes)}")
        for mark in (self.open, *self.closes):
            size = len(mark.encode("utf-8", "replace"))
            if not 1 <= size <= MAX_MARK_BYTES:
                raise InputError(f"a mark of reasoning must have 1..{MAX_MARK_BYTES} bytes")
        ids = self.end_ids
        if not isinstance(ids, np.ndarray) or ids.dtype != np.int32 or ids.ndim != 1:
            raise InputError("end_ids must be an int32 array of one dimension")
        if not 1 <= ids.size <= MAX_END:
            raise InputError(f"the end of reasoning must have 1..{MAX_END} tokens, got {ids.size}")


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """Draft settings of one request; the defaults are the engine's."""

    enabled: bool = True
    types: tuple[str, ...] | None = None  # drafters, a draft model too; None = the engine's
    # by drafter name; of drafters in `types`, or of any if that is None
    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    max_draft: int | None = None  # longest draft in tokens; None = the drafters' own limit
    min_draft: int | None = None  # shorter drafts are not sent; None = the engine's
    p_min: float | None = None  # a draft model's drafts end before less probable tokens; None = its
    namespace: str = ""  # requests of different namespaces share no pool and no dynamic cache
    shadow: bool = False  # drafts are only judged, and none is sent

    def __post_init__(self) -> None:
        """Check the types; the engine checks names and parameters.

        Raises:
            InputError: A field has the wrong type or is out of its bounds.
        """
        if not (self.types is None or isinstance(self.types, str) or are_texts(self.types)):
            raise InputError(f"types must be a tuple of drafter names, got {self.types!r:.80}")
        longest = self.max_draft
        if longest is not None and not (is_int(longest) and 0 <= longest <= MAX_COUNT):
            raise InputError(f"max_draft must be in 0..{MAX_COUNT}, got {longest!r}")
        shortest = self.min_draft
        if shortest is not None and not (is_int(shortest) and 0 <= shortest <= MAX_COUNT):
            raise InputError(f"min_draft must be in 0..{MAX_COUNT}, got {shortest!r}")
        least = self.p_min
        if least is not None and not (isinstance(least, (int, float)) and 0 <= least <= 1):
            raise InputError(f"p_min must be a number in 0..1, got {least!r}")
        if not isinstance(self.namespace, str):
            raise InputError(f"namespace must be a text, got {self.namespace!r}")
        if not isinstance(self.shadow, bool):
            raise InputError(f"shadow must be True or False, got {self.shadow!r:.80}")
        if not isinstance(self.params, Mapping):
            raise InputError(f"params must be a mapping by drafter name, got {self.params!r}")

    def drafters(self, default: Sequence[str]) -> tuple[str, ...]:
        """Return the drafters that it asks for in their order, none where drafts are off.

        If it names none, these are the default ones and those that it has parameters for, as the
        options of a drafter add it on the command line.

        Raises:
            InputError: A drafter is unknown or named twice.
        """
        if not self.enabled:
            return ()
        if self.types is not None:
            return parse_names(self.types, "priority", REQUEST_NAMES)
        added = [name for name, own in self.params.items() if own and name not in default]
        return parse_names([*default, *added], "priority") if added else tuple(default)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A prompt to continue, and how.

    prompt_ids: int32, shape (n,), n >= 1, below the engine's context size. Not copied unless it is
        strided.
    prediction_ids: The expected answer, in part or whole; drafts are taken from it.
    """

    prompt_ids: TokenIds
    max_tokens: int = -1  # tokens to emit; -1 = until the context is full, for ever if it shifts
    num_keep: int = 0  # tokens of the prompt that a context shift keeps, -1 = all
    num_discard: int = 0  # tokens after them that it discards, 0 = half of the rest
    stop: tuple[str, ...] = ()  # texts that end the answer and are cut off
    reasoning_budget: ReasoningBudget | None = None  # None: the model reasons as it likes
    min_indent: int = 0  # a line after the first with fewer spaces and tabs ends it as "length"
    sampling: Sampling = field(default_factory=Sampling)
    speculation: Speculation = field(default_factory=Speculation)
    prediction_ids: TokenIds = field(default_factory=lambda: NO_TOKENS)
    logprobs: int | None = None  # likeliest tokens to report per position; None = no logprobs
    # likeliest tokens to report for each prompt token; None = nothing of the prompt. The prompt is
    # read anew for it, and logprobs come for an end token, too.
    prompt_logprobs: int | None = None
    post_sampling_probs: bool = False  # logprobs tell what the sampler chose from, not the target
    cache_prompt: bool = True  # reuse what a slot already holds of the prompt
    adapters: Adapters = ()  # LoRA adapters to compute with; in the order of numbers, no scale 0
    slot: int = -1  # run on this slot only; -1 = any
    progress: bool = False  # hand out a Chunk with the progress after each decode of the prompt
    special: bool = False  # show special tokens in the text
    format: ChatFormat | None = None  # how a chat's answer is read, for Generation.message
    timeout: float | None = None  # seconds from its start on a slot, then it ends as "length"
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        """Check what can be checked without an engine.

        Raises:
            InputError: A field has the wrong type or is out of its bounds.
        """
        for name in ("prompt_ids", "prediction_ids"):
            ids = getattr(self, name)
            if not isinstance(ids, np.ndarray) or ids.dtype != np.int32 or ids.ndim != 1:
                raise InputError(f"{name} must be an int32 array of one dimension")
            # Native code reads ids in place, and only once the request has begun.
            object.__setattr__(self, name, np.ascontiguousarray(ids))
        if self.prompt_ids.size == 0:
            raise InputError("the prompt is empty")
        for name, least in COUNTS.items():
            value = getattr(self, name)
            if not (is_int(value) and least <= value <= MAX_COUNT):
                raise InputError(f"{name} must be in {least}..{MAX_COUNT}, got {value!r}")
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            if count is not None and not (is_int(count) and 0 <= count <= MAX_LOGPROBS):
                raise InputError(f"{name} must be in 0..{MAX_LOGPROBS}, got {count!r}")
        size, numbers = self.prompt_ids.size, 1 + (self.prompt_logprobs or 0)
        if self.prompt_logprobs is not None and size * numbers > MAX_REPORTED:
            raise InputError(
                "prompt_logprobs must be less, or the prompt shorter: with "
                f"{self.prompt_logprobs} it can have {MAX_REPORTED // numbers} tokens, but it has "
                f"{size}"
            )
        if not isinstance(self.sampling, Sampling):
            raise InputError(f"sampling must be a Sampling, got {self.sampling!r:.80}")
        if not isinstance(self.speculation, Speculation):
            raise InputError(f"speculation must be a Speculation, got {self.speculation!r:.80}")
        budget = self.reasoning_budget
        if budget is not None and not isinstance(budget, ReasoningBudget):
            raise InputError(f"reasoning_budget must be a ReasoningBudget, got {budget!r:.80}")
        if self.format is not None and not isinstance(self.format, ChatFormat):
            raise InputError(f"format must be a ChatFormat, got {self.format!r:.80}")
        self._check_stop()
        self._check_adapters()
        seconds = self.timeout
        number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if seconds is not None and not (number and 0 < seconds < math.inf):
            raise InputError(f"timeout must be above 0 seconds, and finite, got {seconds!r}")

    def _check_adapters(self) -> None:
        adapters = self.adapters
        pairs = isinstance(adapters, (list, tuple)) and all(
            isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in adapters
        )
        if not pairs:
            raise InputError(
                f"adapters must be a tuple of numbers and scales, got {adapters!r:.80}"
            )
        numbers = [number for number, _ in adapters]
        scales = [scale for _, scale in adapters]
        if not all(is_int(number) and number >= 0 for number in numbers):
            raise InputError(f"adapters must have numbers from 0 on, got {numbers!r:.80}")
        if numbers != sorted(set(numbers)):
            raise InputError(f"adapters must be in the order of numbers, each once, got {numbers}")
        for scale in scales:
            number = is_int(scale) or isinstance(scale, float)
            if not (number and 0 < abs(scale) <= sys.float_info.max):
                raise InputError(f"scales of adapters must be finite and not 0, got {scales!r:.80}")
        # Of one type, since adapters of requests are compared.
        object.__setattr__(self, "adapters", tuple((n, float(scale)) for n, scale in adapters))

    def _check_stop(self) -> None:
        if not are_texts(self.stop):
            raise InputError(f"stop must be a tuple of texts, got {self.stop!r:.80}")
        if any(not text for text in self.stop):
            raise InputError("a stop text must not be empty")
        if len(self.stop) > MAX_STOPS:
            raise InputError(f"stop must have at most {MAX_STOPS} texts, got {len(self.stop)}")
        try:
            size = sum(len(text.encode()) for text in self.stop)
        except UnicodeEncodeError:
            raise InputError("stop must hold valid Unicode") from None
        if size > MAX_STOP_BYTES:
            raise InputError(f"stop must have at most {MAX_STOP_BYTES} bytes together, got {size}")
