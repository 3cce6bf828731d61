"""One run of `ngramspec generate`: model, prompt, drafter, and what came of them."""

from __future__ import annotations

import dataclasses
import errno
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.adapters.llama_cpp.library import check_gguf
from ngramspec.cli.compare import Parting, find_parting
from ngramspec.cli.model import (
    BIT_EXACT,
    cannot_take_back,
    chat_tokens,
    has_chat_template,
    load_model,
    make_grammar,
    prompt_tokens,
)
from ngramspec.cli.text import Piece, PieceDecoder
from ngramspec.errors import BackendError, InputError

if TYPE_CHECKING:
    from ngramspec import DynamicFile
    from ngramspec.adapters.llama_cpp import Generation
    from ngramspec.cli.options import DraftChoice

EMBEDDED_CTX = 2048


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
    """A loaded model with a prompt; `stream` runs it once, the rest tells about that run."""

    def __init__(
        self,
        llama: Any,
        path: Path,
        prompt_ids: list[int],
        sampling: Mapping[str, Any],
        draft: Any,
        dynamic: DynamicFile | None,
        compares: bool,
    ) -> None:
        self.path = path
        self.compares = compares
        self.generation: Generation
        self._llama = llama
        self._prompt_ids = prompt_ids
        self._sampling = sampling
        self._draft = draft
        self._dynamic = dynamic
        self._pieces: list[Piece] = []
        self._comparison: Comparison | None = None

    def stream(self) -> Iterator[Piece]:
        """Generate; yield each token's text as it comes. The taker's time is not counted."""
        from ngramspec.adapters.llama_cpp import stream_tokens

        if self.compares:  # the first of two runs must not pay for cold memory
            self._run_plain(max_tokens=1)
        decoder = PieceDecoder(self._llama)
        events = stream_tokens(
            self._llama, self._prompt_ids, draft=self._draft, fresh=True, **self._sampling
        )
        elsewhere = 0.0
        while True:
            try:
                event = next(events)
            except StopIteration as end:
                run = end.value
                break
            left = time.perf_counter()
            yield from self._keep(decoder.feed(event.token_id), event.accepted)
            elsewhere += time.perf_counter() - left
        self.generation = dataclasses.replace(run, seconds=run.seconds - elsewhere)
        yield from self._keep(decoder.finish(), False)

    def comparison(self) -> Comparison:
        """Generate once more without drafts, the first time that it is asked for."""
        if self._comparison is None:
            mine, plain = self.generation, self._run_plain()
            rate = plain.tokens_per_second
            parting = find_parting(self._llama, self._prompt_ids, plain.token_ids, mine.token_ids)
            self._comparison = Comparison(
                plain, mine.tokens_per_second / rate if rate else 0.0, parting
            )
        return self._comparison

    def summary(self) -> str:
        """Return the figures of the run in one line."""
        run = self.generation
        line = (
            f"{run.token_ids.size} tokens ({run.finish_reason}), {run.tokens_per_second:.1f} "
            f"tokens/s; {len(self._prompt_ids)} prompt tokens in "
            f"{1e3 * run.prompt_seconds:.0f} ms; seed {self._sampling['seed']}"
        )
        if self._draft is None:
            return line
        draft_us = 1e6 * run.draft_seconds / run.steps if run.steps else 0.0
        return (
            f"{line}\ndraft acceptance = {run.acceptance:.5f} ({run.num_accepted} accepted / "
            f"{run.drafted} generated), mean len = {run.mean_accepted_length:.2f}, "
            f"{draft_us:.0f} µs per decode"
        )

    def save_lookup_cache(self) -> None:
        """Add what was generated to the dynamic cache's file."""
        if self._dynamic is not None:
            self._dynamic.save()

    def as_json(self) -> dict[str, Any]:
        """Return everything about the run as plain data."""
        run = self.generation
        made: dict[str, Any] = {
            "model": str(self.path),
            "seed": self._sampling["seed"],
            "text": "".join(text for text, _ in self._pieces),
            "token_ids": run.token_ids.tolist(),
            "accepted": run.accepted.tolist(),
            "finish_reason": run.finish_reason,
            "prompt_tokens": len(self._prompt_ids),
            **_figures(run),
            "stats": {name: dataclasses.asdict(stats) for name, stats in run.stats.items()},
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
            "plain": _figures(made.plain),
        }

    def _run_plain(self, **changed: Any) -> Generation:
        from ngramspec.adapters.llama_cpp import generate_tokens

        options = {**self._sampling, **changed}
        return generate_tokens(self._llama, self._prompt_ids, fresh=True, **options)

    def _keep(self, text: str, accepted: bool) -> Iterator[Piece]:
        if text:
            self._pieces.append((text, accepted))
            yield text, accepted


def _figures(run: Generation) -> dict[str, Any]:
    return {
        "tokens_per_second": run.tokens_per_second,
        "seconds": run.seconds,
        "prompt_seconds": run.prompt_seconds,
        "draft_seconds": run.draft_seconds,
        "steps": run.steps,
        "drafts": run.drafts,
        "drafted": run.drafted,
        "num_accepted": run.num_accepted,
        "acceptance": run.acceptance,
        "mean_accepted_length": run.mean_accepted_length,
    }


def open_session(options: Mapping[str, Any], choice: DraftChoice, prompt: str) -> Session:
    """Load what the command's options name, refusing bad input before the model is loaded.

    Raises:
        InputError: Empty prompt, bad grammar, no chat template.
        FormatError, OSError: A model, grammar or statistics file cannot be read.
        VocabMismatchError: A statistics file was built with another tokenizer.
        BackendError: llama-cpp-python is missing or cannot load the model; drafts for a recurrent
            model.
    """
    from ngramspec.models import embedded_model

    if not prompt.strip():
        raise InputError("the prompt is empty")
    grammar = _grammar_text(options)
    path = options["model"] or embedded_model()
    check_gguf(path)
    draft, dynamic = _make_draft(choice, path)
    llama = load_model(path, n_ctx=_ctx_size(options), **_settings(options))
    if draft is not None and cannot_take_back(llama):
        raise BackendError(
            "this model is recurrent and cannot take back rejected draft tokens: "
            "use --spec-type none"
        )
    chat = has_chat_template(llama) if options["chat"] is None else options["chat"]
    if chat:
        system = [{"role": "system", "content": options["system"]}] if options["system"] else []
        prompt_ids = chat_tokens(llama, [*system, {"role": "user", "content": prompt}])
    else:
        prompt_ids = prompt_tokens(llama, prompt)
    sampling = _sampling(options)
    if grammar is not None:
        sampling["grammar"] = make_grammar(llama, grammar)
    return Session(llama, path, prompt_ids, sampling, draft, dynamic, options["compare"])


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    if options["exact"]:
        return dict(BIT_EXACT)
    threads = options["threads"] or (None if options["model"] else 1)
    return {"n_threads": threads, "n_threads_batch": threads, "flash_attn": options["flash_attn"]}


def _ctx_size(options: Mapping[str, Any]) -> int:
    size = int(options["ctx_size"])
    return size if options["model"] else min(size or EMBEDDED_CTX, EMBEDDED_CTX)


def _sampling(options: Mapping[str, Any]) -> dict[str, Any]:
    seed = options["seed"]
    return {
        "max_tokens": options["max_tokens"],
        "temperature": options["temp"],
        "seed": random.getrandbits(32) if seed is None else seed,
        **{name: options[name] for name in ("top_k", "top_p", "min_p", "repeat_penalty")},
    }


def _grammar_text(options: Mapping[str, Any]) -> str | None:
    if options["grammar"] is not None and options["grammar_file"] is not None:
        raise InputError("give either --grammar or --grammar-file")
    if options["grammar_file"] is not None:
        return str(options["grammar_file"].read_text("utf-8"))
    return None if options["grammar"] is None else str(options["grammar"])


def _make_draft(choice: DraftChoice, model: Path) -> tuple[Any, DynamicFile | None]:
    """Return the NgramDraft, and the file of the dynamic cache."""
    if not choice.names:
        return None, None
    from ngramspec import DynamicFile, NgramDraft
    from ngramspec.formats.cache_file import Origin
    from ngramspec.tokenizers import fingerprint_of

    params = {name: dict(values) for name, values in choice.params.items()}
    shared: dict[str, Any] = {"any_tokenizer": choice.any_tokenizer}
    if choice.has_files:
        shared["tokenizer"] = fingerprint_of(model)
    if not {"ngram-mod", "ngram-cache", "suffix"} & set(choice.names):
        shared = {}
    file = None
    if choice.lookup_static is not None:
        params.setdefault("ngram-cache", {})["static"] = choice.lookup_static
    if choice.suffix_index is not None:
        params.setdefault("suffix", {})["static"] = choice.suffix_index
    if choice.pool_file is not None:
        params.setdefault("ngram-mod", {})["pool"] = choice.pool_file
    if choice.lookup_dynamic is not None:
        path, own = choice.lookup_dynamic, params.setdefault("ngram-cache", {})
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "No such folder", str(path.parent))
        known = shared["tokenizer"]
        origin = Origin(known.digest, known.vocab_size)
        most = own.get("max_ngrams", 1 << 22)
        file = DynamicFile(path, 1, 4, most, origin, choice.any_tokenizer)
        own["dynamic"] = file
    shared.update(order=choice.order, max_draft=choice.max_draft, policy=choice.policy)
    return NgramDraft(choice.names, params=params, **shared), file
