"""llama.cpp's own sampling in Python, slow and obvious: the reference for ChainSampler.

The chain has every sampler that common_sampler_init makes, neutral ones too, and every row is
sampled over the whole vocabulary. Source: llama.cpp common/sampling.cpp.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ngramspec.engine.sampling import SAMPLERS, Sampling
from ngramspec.llamacpp.model import LlamaModel


class ReferenceSampler:
    """One request's sampler, by llama_cpp's functions only.

    Args:
        context: Tokens that -1 looks back on.
    """

    def __init__(self, model: LlamaModel, sampling: Sampling, seed: int, context: int) -> None:
        self.lib = lib = model.library.lib
        self.model, self.sampling = model, sampling
        params = lib.llama_sampler_chain_default_params()
        self.chain = lib.llama_sampler_chain_init(params)
        for sampler in self._samplers(sampling, seed, context):
            lib.llama_sampler_chain_add(self.chain, sampler)
        self.grammar = None
        if sampling.grammar:
            text = sampling.grammar.encode()
            self.grammar = lib.llama_sampler_init_grammar(self._vocab(), text, b"root")

    def choose(self, row: np.ndarray) -> int:
        """Return the token for a row, -1 when none is possible."""
        token = self._apply(self._candidates(row))
        if self.grammar is None or (token >= 0 and self._allowed(token)):
            return token
        candidates = self._candidates(row)
        self.lib.llama_sampler_apply(self.grammar, ctypes.byref(candidates))
        if all(candidates.data[i].logit == -math.inf for i in range(candidates.size)):
            return -1
        return self._apply(candidates)

    def candidates(self, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
        """Return the probability of the token just chosen, and the likeliest that were left."""
        if self.sampling.temperature <= 0:
            return 1.0, [(token, 1.0)][:top]
        left = [(one.id, float(one.p)) for one in self._left.data[: self._left.size]]
        chance = dict(left)[token]
        if not self._left.sorted:
            left.sort(key=lambda one: (-one[1], one[0]))
        return chance, [one for one in left if one[1] > 0][:top]

    def accept(self, token: int, generated: bool = True) -> None:
        if self.grammar is not None and generated:
            self.lib.llama_sampler_accept(self.grammar, token)
        self.lib.llama_sampler_accept(self.chain, token)

    def close(self) -> None:
        for sampler in (self.chain, self.grammar):
            if sampler is not None:
                self.lib.llama_sampler_free(sampler)

    def _samplers(self, s: Sampling, seed: int, context: int) -> list[Any]:
        lib, size = self.lib, self.model.vocab_size
        samplers = [self._bias(s)]
        if s.temperature > 0 and s.mirostat:
            samplers.append(lib.llama_sampler_init_temp(s.temperature))
            if s.mirostat == 1:
                tau, eta = s.mirostat_tau, s.mirostat_eta
                return [*samplers, lib.llama_sampler_init_mirostat(size, seed, tau, eta, 100)]
            return [
                *samplers,
                lib.llama_sampler_init_mirostat_v2(seed, s.mirostat_tau, s.mirostat_eta),
            ]
        last = context if s.repeat_last_n < 0 else s.repeat_last_n
        samplers.append(
            lib.llama_sampler_init_penalties(
                size, last, s.repeat_penalty, s.frequency_penalty, s.presence_penalty
            )
        )
        samplers.append(self._dry(s, context))
        if s.temperature <= 0 and s.samplers == SAMPLERS:
            return [*samplers, lib.llama_sampler_init_greedy()]
        keep = s.min_keep
        filters = {
            "top_n_sigma": lambda: lib.llama_sampler_init_top_n_sigma(s.top_n_sigma),
            "top_k": lambda: lib.llama_sampler_init_top_k(s.top_k),
            "typ_p": lambda: lib.llama_sampler_init_typical(s.typical_p, keep),
            "top_p": lambda: lib.llama_sampler_init_top_p(s.top_p, keep),
            "min_p": lambda: lib.llama_sampler_init_min_p(s.min_p, keep),
            "xtc": lambda: lib.llama_sampler_init_xtc(
                s.xtc_probability, s.xtc_threshold, keep, seed
            ),
            "temperature": lambda: lib.llama_sampler_init_temp_ext(
                s.temperature, s.dynatemp_range, s.dynatemp_exponent
            ),
            "infill": lambda: lib.llama_sampler_init_infill(self._vocab()),
            "penalties": lambda: samplers[1],
            "dry": lambda: samplers[2],
        }
        chosen = [filters[name]() for name in s.samplers]
        return [samplers[0], *chosen, lib.llama_sampler_init_dist(seed)]

    def _bias(self, s: Sampling) -> Any:
        lib, vocab = self.lib, self._vocab()
        biases = dict(s.logit_bias)
        for token in range(self.model.vocab_size if s.ignore_eos else 0):
            if lib.llama_vocab_is_eog(vocab, token):
                biases[token] = -math.inf
        array = (lib.llama_logit_bias * max(1, len(biases)))(
            *(lib.llama_logit_bias(token, bias) for token, bias in biases.items())
        )
        return lib.llama_sampler_init_logit_bias(self.model.vocab_size, len(biases), array)

    def _dry(self, s: Sampling, context: int) -> Any:
        texts = [text.encode() for text in s.dry_sequence_breakers]
        last = context if s.dry_penalty_last_n < 0 else s.dry_penalty_last_n
        return self.lib.llama_sampler_init_dry(
            self._vocab(),
            s.dry_multiplier,
            s.dry_base,
            s.dry_allowed_length,
            last,
            (ctypes.c_char_p * max(1, len(texts)))(*texts),
            len(texts),
        )

    def _vocab(self) -> Any:
        return self.lib.llama_model_get_vocab(self.model.handle.address)

    def _candidates(self, row: np.ndarray, ids: Sequence[int] | None = None) -> Any:
        ids = range(row.size) if ids is None else ids
        packed = np.zeros(len(ids), dtype=[("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
        packed["id"], packed["logit"] = ids, row
        self._packed = packed
        data = ctypes.cast(packed.ctypes.data, ctypes.POINTER(self.lib.llama_token_data))
        return self.lib.llama_token_data_array(
            data=data, size=packed.size, selected=-1, sorted=False
        )

    def _apply(self, candidates: Any) -> int:
        self.lib.llama_sampler_apply(self.chain, ctypes.byref(candidates))
        self._left, self._left_in = candidates, self._packed
        return int(candidates.data[candidates.selected].id)

    def _allowed(self, token: int) -> bool:
        one = self._candidates(np.ones(1, np.float32), [token])
        self.lib.llama_sampler_apply(self.grammar, ctypes.byref(one))
        return bool(one.data[0].logit > -math.inf)
