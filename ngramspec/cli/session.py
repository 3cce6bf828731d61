"""One run of `ngramspec generate`: model, prompt, drafter, and what came of them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.bench.parting import Parting, find_parting
from ngramspec.cli.text import Piece
from ngramspec.errors import InputError
from ngramspec.llm import LLM
from ngramspec.models import embedded_model

if TYPE_CHECKING:
    from ngramspec.cli.options import DraftChoice
    from ngramspec.engine import Chunk, Generation
    from ngramspec.engine.request import TokenIds


# In this setting llama.cpp's CPU kernels compute a token the same way alone and in a batch of up to
# 63, on Q8_0 weights (docs/exactness.md).
EXACT: Mapping[str, Any] = {"threads": 1, "flash_attn": True}
EXACT_DRAFT = 62


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The run without drafts beside the one with them."""

    plain: Generation
    speedup: float
    parting: Parting | None

    def line(self) -> str:
        """Return it in words."""
        same = "the texts are equal" if self.parting is None else self.parting.line()
        speed = f"{self.plain.tokens_per_second:.1f} tokens/s without drafts"
        return f"compare: {speed}, speed-up {self.speedup:.2f}x; {same}"


class Session:
    """A loaded model with a prompt; `stream` runs it once, the rest tells about that run.

    Args:
        llm: The model; closed by its owner.
        prompt_ids: int32, not empty.
        options: For LLM.generate, with a seed.
        compares: A run without drafts will be asked for.
    """

    def __init__(
        self, llm: LLM, prompt_ids: TokenIds, options: Mapping[str, Any], compares: bool
    ) -> None:
        self.compares = compares
        self.generation: Generation
        self._llm = llm
        self._prompt_ids = prompt_ids
        self._options = {**options, "cache_prompt": False}  # every run reads the prompt
        self._draft_seconds = 0.0
        self._comparison: Comparison | None = None

    @property
    def path(self) -> Path:
        """Return the model's file."""
        return self._llm.model.path

    def stream(self) -> Iterator[Piece]:
        """Generate; yield the text in pieces as it comes."""
        if self.compares:  # the first of two runs must not pay for cold memory
            self._run_plain(max_tokens=1)
        chunk: Chunk | None = None
        for chunk in self._llm.stream(self._prompt_ids, **self._options):
            yield from chunk.spans
        assert chunk is not None
        self.generation = chunk.generation
        self._draft_seconds = self._llm.engine.stats().draft_seconds

    def comparison(self) -> Comparison:
        """Generate once more without drafts, the first time that it is asked for."""
        if self._comparison is None:
            mine, plain = self.generation, self._run_plain()
            rate = plain.tokens_per_second
            parting = find_parting(self._prompt_ids, plain.token_ids, mine.token_ids, self._llm.run)
            self._comparison = Comparison(
                plain, mine.tokens_per_second / rate if rate else 0.0, parting
            )
        return self._comparison

    def summary(self) -> str:
        """Return the figures of the run in one line."""
        run, timings = self.generation, self.generation.timings
        line = (
            f"{run.num_tokens} tokens ({run.finish_reason}), {run.tokens_per_second:.1f} "
            f"tokens/s; {self._prompt_ids.size} prompt tokens in "
            f"{1e3 * timings.prompt_seconds:.0f} ms; seed {run.seed}"
        )
        if not self._llm.engine.drafters.types:
            return line
        figures = self._figures(run)
        draft_us = 1e6 * self._draft_seconds / figures["steps"] if figures["steps"] else 0.0
        return (
            f"{line}\ndraft acceptance = {figures['acceptance']:.5f} "
            f"({figures['num_accepted']} accepted / {figures['drafted']} generated), "
            f"mean len = {run.mean_accepted_length:.2f}, {draft_us:.0f} µs per decode"
        )

    def stats_lines(self) -> list[str]:
        """Return llama-server's statistics line for every drafter."""
        return self._llm.engine.stats_lines()

    def as_json(self) -> dict[str, Any]:
        """Return everything about the run as plain data."""
        run = self.generation
        stats = self._llm.engine.source_stats()
        asked = {name: stats[name] for name in stats if stats[name].begin_calls}
        made: dict[str, Any] = {
            "model": str(self.path),
            "seed": run.seed,
            "text": run.text,
            "token_ids": run.token_ids,
            "accepted": run.accepted,
            "finish_reason": run.finish_reason,
            "prompt_tokens": int(self._prompt_ids.size),
            **self._figures(run, self._draft_seconds),
            "stats": {name: dataclasses.asdict(of) for name, of in asked.items()},
        }
        if self.compares:
            made["compare"] = self._comparison_json()
        return made

    def _comparison_json(self) -> dict[str, Any]:
        made = self.comparison()
        parting = None if made.parting is None else dataclasses.asdict(made.parting)
        return {
            "identical": made.parting is None,
            "speedup": made.speedup,
            "parting": parting,
            "plain": self._figures(made.plain),
        }

    def _run_plain(self, **changed: Any) -> Generation:
        options = {**self._options, "speculation": False, **changed}
        return self._llm.generate(self._prompt_ids, **options)

    @staticmethod
    def _figures(run: Generation, draft_seconds: float = 0.0) -> dict[str, Any]:
        timings = run.timings
        drafted, accepted = timings.num_draft_tokens, timings.num_accepted_tokens
        return {
            "tokens_per_second": run.tokens_per_second,
            "seconds": timings.prompt_seconds + timings.decode_seconds,
            "prompt_seconds": timings.prompt_seconds,
            "draft_seconds": draft_seconds,
            "steps": max(0, timings.num_steps - 1),
            "drafts": timings.num_drafts,
            "drafted": drafted,
            "num_accepted": accepted,
            "acceptance": accepted / drafted if drafted else 0.0,
            "mean_accepted_length": run.mean_accepted_length,
        }


def open_llm(options: Mapping[str, Any], choice: DraftChoice) -> LLM:
    """Load the model that the command's options name, with its drafters.

    Raises:
        As LLM.
    """
    path = options["model"]
    settings = {"threads": options["threads"], "flash_attn": options["flash_attn"]}
    return LLM(
        path,
        choice.names or None,
        slots=1,
        context_size=options["ctx_size"],
        params=choice.parameters(path or embedded_model()),
        policy=choice.policy,
        max_draft=min(choice.max_draft, EXACT_DRAFT) if options["exact"] else choice.max_draft,
        order=choice.order,
        **(EXACT if options["exact"] else settings),
    )


def open_session(llm: LLM, options: Mapping[str, Any], prompt: str) -> Session:
    """Return the run that the command's options ask for.

    Raises:
        InputError: No chat template, two grammars.
        OSError: The grammar's file cannot be read.
    """
    model, template = llm.model, llm.model.chat_template
    if options["chat"] and not template:
        raise InputError("this model has no chat template: use --raw")
    if template if options["chat"] is None else options["chat"]:
        system = [{"role": "system", "content": options["system"]}] if options["system"] else []
        prompt_ids = model.tokenize_chat([*system, {"role": "user", "content": prompt}])
    else:
        prompt_ids = model.tokenize_prompt(prompt)
    seed = random.getrandbits(32) if options["seed"] is None else options["seed"]
    made = {
        "max_tokens": options["max_tokens"],
        "temperature": options["temp"],
        "seed": seed,
        "grammar": read_grammar(options),
        **{name: options[name] for name in ("top_k", "top_p", "min_p", "repeat_penalty")},
    }
    return Session(llm, prompt_ids, made, options["compare"])


def read_grammar(options: Mapping[str, Any]) -> str:
    """Return the grammar of the options, "" for none.

    Raises:
        InputError: Both options are given.
        OSError: The file cannot be read.
    """
    if options["grammar"] is not None and options["grammar_file"] is not None:
        raise InputError("give either --grammar or --grammar-file")
    if options["grammar_file"] is not None:
        return str(options["grammar_file"].read_text("utf-8"))
    return options["grammar"] or ""
