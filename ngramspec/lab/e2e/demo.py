"""The demo: the same drafters on a model as it is bit-exact and as it is timed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ngramspec.drafting.names import parse_names
from ngramspec.engine import Sampling
from ngramspec.errors import BackendError
from ngramspec.lab.e2e.bench import PLAIN, Bench, Mode
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.placement import Placement
from ngramspec.llamacpp.settings import ContextSettings
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.runtime import ModelSettings, load_model, open_target

# For short texts and a model for which a wrong draft token costs nearly as much as a right one
# saves: shorter keys than llama.cpp's defaults, and shorter drafts.
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "ngram-simple": {"size_n": 4, "size_m": 10},
    "ngram-map-k": {"size_n": 4, "size_m": 12},
    "ngram-map-k4v": {"size_n": 4, "size_m": 12},
    "ngram-mod": {"n_match": 5, "n_min": 4, "n_max": 12, "capacity": 1 << 16},
    "ngram-cache": {"n_draft": 8},
}
DRAFTERS = (*SETTINGS, "suffix")  # those with fixed lengths, the last one with a policy
CONTEXT_SIZE = 2048
GREEDY = Sampling(temperature=0)


@dataclass(frozen=True)
class Benches:
    """The same modes on two targets of one model: `exact` is bit-exact, `timed` is timed.

    modes: The one without drafts first.
    exact_batch: Tokens of the largest batches of `exact`, up to which all bits were found equal.
    refusal: Why no setting is bit-exact here, "" if one is; `exact` is then `timed`.
    """

    model: LlamaModel
    modes: tuple[Mode, ...]
    exact: Bench
    timed: Bench
    exact_batch: int = 0
    refusal: str = ""


@contextlib.contextmanager
def open_benches(
    drafters: Sequence[str], threads: int = 1, path: Path | None = None
) -> Iterator[Benches]:
    """Load a model, bit-exact and without flash attention, on the CPU.

    Args:
        drafters: Names with commas between.
        threads: CPU threads of the timed target.
        path: A GGUF file; None: the embedded model.

    Raises:
        FormatError, OSError: The file cannot be read.
        BackendError: llama.cpp cannot run the model.

    Cost: a second for the embedded model, in which the bit-exact setting is found and tested.
    """
    modes = (Mode(PLAIN, (), {}), *map(_mode, drafters))
    own = ModelSettings(path=path, placement=Placement(0))
    with contextlib.ExitStack() as stack:
        model, fitted = load_model(own, ContextSettings(context_size=CONTEXT_SIZE, threads=1))
        stack.enter_context(model)
        tested: LlamaTarget | None = None
        refusal = ""
        try:
            tested = stack.enter_context(open_target(own, model, fitted, exact=True)[0])
        except BackendError as error:
            refusal = str(error)
        context = ContextSettings(context_size=CONTEXT_SIZE, threads=threads, flash_attn=False)
        target, _ = open_target(own, model, replace(fitted, settings=context))
        timed = Bench(stack.enter_context(target), modes)
        checked = timed if tested is None else Bench(tested, modes)
        for bench in dict.fromkeys((checked, timed)):
            bench.warm_up(model.tokenize("a b c a b c a b c"), GREEDY)
        exact_batch = 0 if tested is None else tested.exact_batch
        yield Benches(model, modes, checked, timed, exact_batch, refusal)


def _mode(spec: str) -> Mode:
    names = parse_names(spec, "priority")
    params = {name: SETTINGS[name] for name in names if name in SETTINGS}
    policy = "fixed" if params.keys() == set(names) else "auto"  # they are for fixed lengths
    return Mode(spec, names, params, policy)
