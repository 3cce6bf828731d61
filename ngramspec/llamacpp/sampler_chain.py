"""Samplers of a target: llama.cpp's chains, in llama-server's order, and grammars of texts."""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import numpy as np

from ngramspec._native.engine.decode import GreedySampler, Sampler
from ngramspec._native.grammar.constraint import Constraint
from ngramspec._native.grammar.guidance import GuidanceMatcher, GuidanceTokens
from ngramspec._native.grammar.matcher import Matcher
from ngramspec._native.grammar.rules import Rules
from ngramspec._native.hosts.llama import Candidates, ChainSampler
from ngramspec.engine.sampling import MAX_BIAS, Sampling
from ngramspec.errors import BackendError, InputError
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.text.grammar.gbnf import read_grammar
from ngramspec.text.grammar.lark import MARK, guidance_tokens, lark_matcher
from ngramspec.text.tokenizers.llama_library import Handle

MAX_KEEP = 128  # from 129 on, llama.cpp selects in another way, without a shortcut here
MAX_SEED = 0xFFFFFFFE  # llama.cpp takes the next number for "random"
MIROSTAT_M = 100  # as in llama.cpp
PENALTIES = {"penalties", "dry"}  # samplers that change logits and leave nothing out
MIN_TEMPERATURE = 1e-6  # below it, logits overflow
T = TypeVar("T")
MOST, MOST_BYTES = 16, 64 << 20  # grammars that are kept, and what they take together
ELEMENT_BYTES = 16  # of GBNF
# Texts that most vocabularies write in tokens of the same text, wherever they stand.
PROBES = ('{"', '"a', ' "b"', "\n  ", "true,", "}", "\u00e9", " 1.5e3]")


class Recent(Generic[T]):
    """Keeps objects that take long to make, until newer ones need the room.

    Args:
        most: Most objects.
        weight: Most weight of all together; the newest is kept whatever its weight.

    Thread-safety: safe. A dropped object is freed when nothing refers to it any more.
    """

    def __init__(self, most: int, weight: int) -> None:
        self._most, self._room = most, weight
        self._lock = threading.Lock()  # guards the rest
        self._items: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], tuple[T, int]]) -> T:
        """Return the object of a key, or make it; make() returns it and its weight.

        Threads that ask for the same key at once may each make it: none waits for another.
        """
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key][0]
        item, weight = make()
        dropped = []  # freed without the lock
        with self._lock:
            self._room -= weight
            if key in self._items:
                dropped.append(self._drop(key))
            self._items[key] = item, weight
            while len(self._items) > 1 and (len(self._items) > self._most or self._room < 0):
                dropped.append(self._drop(next(iter(self._items))))
        return item

    def clear(self) -> list[T]:
        with self._lock:
            return [self._drop(key) for key in list(self._items)]

    def _drop(self, key: Hashable) -> T:
        item, weight = self._items.pop(key)
        self._room += weight
        return item


class Grammars:
    """Reads grammars for one model, and keeps the latest.

    Args:
        model: The model; stays open until close.

    Thread-safety: safe.
    """

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self._recent: Recent[Rules | GuidanceMatcher] = Recent(MOST, MOST_BYTES)
        self._making = threading.Lock()  # guards the next
        self._tokens: GuidanceTokens | None = None

    def constraint(self, text: str) -> Constraint:
        """Return what one text follows, at the beginning of a grammar.

        Args:
            text: GBNF with a rule "root", or Lark of llguidance, which begins with "%llguidance".

        Raises:
            InputError: The grammar is not valid, or too large.
            BackendError: It needs llguidance, which is not installed.

        Cost: some us; a grammar is read the first time, 2 us per character. The first one for
            llguidance waits for its vocabulary, some 100 ms.
        """

        def make() -> tuple[Rules | GuidanceMatcher, int]:
            if text.startswith(MARK):
                return lark_matcher(text, self._guidance_tokens(), self._token_of)
            rules = read_grammar(text, self._token_of)
            return rules, rules.num_elements * ELEMENT_BYTES

        grammar = self._recent.get(text, make)
        if isinstance(grammar, Rules):
            return Matcher(grammar, self._model.vocabulary.grammar_tokens)
        return grammar.copy()

    def close(self) -> None:
        """Drop what is kept, because llama.cpp's vocabulary is about to be freed."""
        self._recent.clear()
        with self._making:
            if self._tokens is not None:
                self._tokens.close()

    def _token_of(self, text: str) -> int:
        ids = self._model.vocabulary.tokenize(text, add_special=False, parse_special=True)
        return int(ids[0]) if ids.size == 1 else -1

    def _guidance_tokens(self) -> GuidanceTokens:
        vocabulary = self._model.vocabulary
        with self._making:
            if self._tokens is None:
                write = (0, 0)
                if all(vocabulary.writes(text) for text in PROBES):
                    write = self._model.library.calls["llama_tokenize"], vocabulary.address
                self._tokens = guidance_tokens(vocabulary.grammar_tokens, *write)
            return self._tokens


class Chains:
    """Makes the samplers of one target.

    Args:
        model: The model; stays open as long as the samplers are used.
        context_size: How far "the whole context" looks back, in tokens.
    """

    def __init__(self, model: LlamaModel, context_size: int) -> None:
        self._model = model
        self._lib = model.library.lib
        self._context_size = context_size
        self._candidates = Candidates(model.vocab_size)
        self._suppressed = model.vocabulary.suppressed()
        # Slow to make: a DRY sampler is compared with the whole vocabulary.
        self._dry: Recent[Handle] = Recent(8, 8)
        self._grammars = Grammars(model)

    def sampler(self, sampling: Sampling, seed: int) -> Sampler:
        """Return a fresh sampler.

        Raises:
            InputError: Its grammar, a token id or a bias is not valid.
            BackendError: llama.cpp could not make it.

        Cost: some 10 us; DRY compares its breakers with the whole vocabulary the first time, and a
            grammar is read the first time: see Grammars.
        Thread-safety: safe, until close.
        """
        if sampling.greedy and not self._suppressed:
            return GreedySampler()
        biases = self._biases(sampling)
        grammar = self._grammars.constraint(sampling.grammar) if sampling.grammar else None
        chain = self._new_chain()
        keep, lookback = self._fill(chain, sampling, biases, min(seed, MAX_SEED))
        if len(biases) > MAX_KEEP:
            keep = 0  # llama.cpp finds biased tokens at once only if all tokens are in order
        return ChainSampler(
            self._model.library.calls,
            _address(chain.address),
            self._candidates,
            chain,
            grammar,
            keep=keep,
            lookback=lookback,
            biased=np.array(sorted(biases), dtype=np.int32),
            greedy=sampling.temperature <= 0,
        )

    def close(self) -> None:
        """Disable the samplers; free what was kept to make more."""
        self._candidates.close()
        for handle in self._dry.clear():
            handle.free()
        self._grammars.close()

    def _biases(self, sampling: Sampling) -> dict[int, float]:
        """Return what is added to logits before anything else."""
        biases: dict[int, float] = {}
        for token, bias in sampling.logit_bias.items():
            if not 0 <= token < self._model.vocab_size:
                most = self._model.vocab_size - 1
                raise InputError(f"logit_bias must hold token ids in 0..{most}, got {token}")
            biases[token] = float(bias) if bias >= -MAX_BIAS else -math.inf
        ends = self._model.vocabulary.end_tokens if sampling.ignore_eos else []
        return biases | dict.fromkeys([*ends, *self._suppressed], -math.inf)

    def _fill(
        self, chain: Handle, s: Sampling, biases: dict[int, float], seed: int
    ) -> tuple[int, int]:
        """Add the samplers in their order.

        Returns:
            tuple: how many of the largest logits they need, 0 = all; how far they look back.
        """
        lib = self._lib
        if biases:
            pairs = [lib.llama_logit_bias(token, bias) for token, bias in biases.items()]
            array = (lib.llama_logit_bias * len(pairs))(*pairs)
            size = self._model.vocab_size
            self._add(chain, lib.llama_sampler_init_logit_bias(size, len(pairs), array))
        if s.mirostat and s.temperature > 0:
            self._add_mirostat(chain, s, seed)
            return 0, 0
        penalties, lookback = self._penalties(s)
        last = max((s.samplers.index(name) for name in s.samplers if name in penalties), default=-1)
        usual = set(s.samplers[: last + 1]) <= PENALTIES  # they come before all others
        filters = {} if s.temperature <= 0 and usual else self._filters(s, seed)
        order = [name for name in s.samplers if name in penalties or name in filters]
        for name in order:
            self._add(chain, (penalties if name in penalties else filters)[name]())
        if s.temperature <= 0:
            self._add(chain, lib.llama_sampler_init_greedy())
            return 0 if filters else 1, lookback
        self._add(chain, lib.llama_sampler_init_dist(seed))
        first = next((name for name in order if name in filters), "")
        return s.top_k if usual and first == "top_k" and s.top_k <= MAX_KEEP else 0, lookback

    def _penalties(self, s: Sampling) -> tuple[dict[str, Callable[[], Any]], int]:
        """Return what makes the samplers that penalise tokens, and how far they look back."""
        lib, makers, lookback = self._lib, dict[str, Callable[[], Any]](), 0
        back = self._back(s.repeat_last_n)
        if back and (s.repeat_penalty != 1.0 or s.frequency_penalty or s.presence_penalty):
            values = s.repeat_penalty, s.frequency_penalty, s.presence_penalty
            size, lookback = self._model.vocab_size, back
            makers["penalties"] = lambda: lib.llama_sampler_init_penalties(size, lookback, *values)
        reach = self._back(s.dry_penalty_last_n)
        if reach and s.dry_multiplier:
            prototype = self._dry_prototype(s, reach)
            makers["dry"] = lambda: lib.llama_sampler_clone(prototype.address)
            return makers, max(lookback, reach)
        return makers, lookback

    def _filters(self, s: Sampling, seed: int) -> dict[str, Callable[[], Any]]:
        """Return what makes the samplers that leave candidates out, and the temperature."""
        lib = self._lib
        dynamic = s.dynatemp_range, s.dynatemp_exponent
        xtc = s.xtc_probability, s.xtc_threshold, s.min_keep, seed
        filters: list[tuple[str, bool, Any, tuple[Any, ...]]] = [
            ("top_n_sigma", s.top_n_sigma > 0, lib.llama_sampler_init_top_n_sigma,
             (s.top_n_sigma,)),
            ("top_k", s.top_k > 0, lib.llama_sampler_init_top_k, (s.top_k,)),
            ("typ_p", s.typical_p < 1, lib.llama_sampler_init_typical, (s.typical_p, s.min_keep)),
            ("top_p", s.top_p < 1, lib.llama_sampler_init_top_p, (s.top_p, s.min_keep)),
            ("min_p", s.min_p > 0, lib.llama_sampler_init_min_p, (s.min_p, s.min_keep)),
            ("xtc", s.xtc_probability > 0, lib.llama_sampler_init_xtc, xtc),
            ("temperature", s.temperature > 0, lib.llama_sampler_init_temp_ext,
             (max(s.temperature, MIN_TEMPERATURE), *dynamic)),
            ("infill", True, lib.llama_sampler_init_infill, (self._model.vocabulary.address,)),
        ]  # fmt: skip
        return {
            name: functools.partial(make, *arguments)
            for name, active, make, arguments in filters
            if active
        }

    def _add_mirostat(self, chain: Handle, s: Sampling, seed: int) -> None:
        """Add mirostat, which takes the place of filters and choice."""
        lib, size = self._lib, self._model.vocab_size
        self._add(chain, lib.llama_sampler_init_temp(max(s.temperature, MIN_TEMPERATURE)))
        rest = s.mirostat_tau, s.mirostat_eta
        if s.mirostat == 2:
            self._add(chain, lib.llama_sampler_init_mirostat_v2(seed, *rest))
        else:
            self._add(chain, lib.llama_sampler_init_mirostat(size, seed, *rest, MIROSTAT_M))

    def _back(self, tokens: int) -> int:
        """Return a look-back in tokens; -1 is the whole context, which none can exceed."""
        return self._context_size if tokens < 0 else min(tokens, self._context_size)

    def _dry_prototype(self, s: Sampling, back: int) -> Handle:
        """Return the DRY sampler of these parameters, to be cloned."""
        key = s.dry_multiplier, s.dry_base, s.dry_allowed_length, back, s.dry_sequence_breakers

        def make() -> tuple[Handle, int]:
            texts = [text.encode("utf-8", "replace") for text in s.dry_sequence_breakers]
            texts = [text for text in texts if text and b"\0" not in text]
            array = (ctypes.c_char_p * max(1, len(texts)))(*texts)
            vocab = self._model.vocabulary.address
            address = self._lib.llama_sampler_init_dry(vocab, *key[:4], array, len(texts))
            return self._handle(address), 1

        return self._dry.get(key, make)

    def _new_chain(self) -> Handle:
        params = self._lib.llama_sampler_chain_default_params()
        params.no_perf = True
        return self._handle(self._lib.llama_sampler_chain_init(params))

    def _add(self, chain: Handle, sampler: Any) -> None:
        """Append a sampler, which the chain owns from now on."""
        if not sampler:
            raise BackendError("llama.cpp could not make a sampler")
        self._lib.llama_sampler_chain_add(chain.address, sampler)

    def _handle(self, sampler: Any) -> Handle:
        if not sampler:
            raise BackendError("llama.cpp could not make a sampler")
        return Handle(self._lib.llama_sampler_free, sampler, self._model.handle)


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0
