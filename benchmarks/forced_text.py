"""Text that a grammar forces, drafted without a source: tokens per pass, with it and without.

    python benchmarks/forced_text.py model.gguf ...
    python benchmarks/forced_text.py model.gguf --places   # which text is forced where

Two kinds of answers at temperature 0: to the JSON schemas of data/schemas.json, each by its name
alone, and calls of the strict tools of data/tools.json, of which each prompt needs one.

Each model answers without any drafts, and by the default of `LLM`, on one slot: `equal` are texts
that are the same. Then the answers without drafts are emitted again by a target that computes
nothing, with other drafters (`quiet` is one that never has a draft) and without forced text. There
passes cost what a table says, by a clock of its own, so that the figures are the same in every run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from ngramspec import LLM
from ngramspec.costs import CostTable
from ngramspec.engine import AutoPolicy, Engine, Request, Sampling
from ngramspec.engine.generation import Generation
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.sampler_chain import Chains, Grammars
from ngramspec.text.chat.grammar import chat_grammar
from ngramspec.text.chat.prompt import chat_prompt
from ngramspec.text.chat.tools import tools_of
from ngramspec.text.grammar.lark import guidance_tokens
from ngramspec.text.structured.guidance import schema_grammar
from step_parts import Silent
from structured_output import SCHEMAS, show

TOOLS = SCHEMAS.parent / "tools.json"
COSTS = CostTable(((1, 1.0), (2, 1.15), (8, 2.0), (64, 9.0)))  # of passes over so many tokens
LONGEST = 120  # tokens of an answer
DRAFTERS: Mapping[str, Mapping[str, Any]] = {
    "quiet": {"drafter": "ngram-simple", "params": {"ngram-simple": {"size_n": 60_000}}},
    "suffix": {"drafter": "suffix"},
}


@dataclass(frozen=True)
class Task:
    """A prompt, and the grammar of its answer."""

    kind: str
    request: Request


class Recorded(Silent):
    """A target that computes nothing and emits recorded answers.

    Args:
        model: Its vocabulary.
        forced: Its grammars know which tokens forced text has.
    """

    max_branches = 4

    def __init__(self, model: LlamaModel, forced: bool) -> None:
        super().__init__(1, vocab_size=model.vocab_size)
        self._model = model
        self.piece, self.is_end = model.piece, model.is_end
        self.max_outputs = 65
        self.now = 0.0  # on its clock
        self._logits = np.zeros((self.max_outputs, model.vocab_size), np.float32)
        self._chains = Chains(model, self.context_size)
        if not forced:
            self._chains._grammars._tokens = guidance_tokens(model.vocabulary.grammar_tokens)

    def decode(self, batch: Any, rows: Any) -> None:
        """Show logits of the text, by position."""
        _, positions, _, outputs = batch.arrays()
        following = self.text[np.minimum(positions[outputs] + 1, len(self.text) - 1)]
        self._logits[:] = 0.0
        self.now += COSTS.cost(len(positions))
        self._logits[np.arange(len(following)), following] = 10.0
        rows.set(self._logits[: len(following)])

    def adopt(self, sequence: int, branch: int) -> bool:
        """Hold any branch."""
        return True

    def sampler(self, sampling: Sampling, seed: int) -> Any:
        """Return the sampler of a model."""
        return self._chains.sampler(sampling, seed)

    def answer(self, engine: Engine, task: Task, answer: Sequence[int]) -> Generation:
        """Emit an answer again."""
        self.text = np.array([*task.request.prompt_ids, *answer, self._model.eos])
        return engine.generate([task.request])[0]


def tasks(model: LlamaModel) -> Iterator[Task]:
    """Yield what is asked of a model."""
    for case in json.loads(SCHEMAS.read_text("utf-8")):
        words = f"Write an example in JSON: {case['name']}."
        yield _task(model, "schemas", words, None, schema_grammar(case["schema"]))
    data = json.loads(TOOLS.read_text("utf-8"))
    tools = [{"type": "function", "function": {**one, "strict": True}} for one in data["tools"]]
    for words in data["prompts"]:
        yield _task(model, "tools", words, tools, "")


def _task(model: LlamaModel, kind: str, words: str, tools: Any, grammar: str) -> Task:
    prompt = chat_prompt(model, [{"role": "user", "content": words}], tools)
    if tools:
        required = tools_of(tools, "required", parallel=False)
        grammar = chat_grammar("", None, "", dataclasses.replace(prompt.format, tools=required))
    sampling = Sampling(temperature=0.0, grammar=grammar)
    ids = model.tokenize_prompt(prompt.text)
    return Task(kind, Request(prompt_ids=ids, sampling=sampling, max_tokens=LONGEST))


def answers(model: Path, **options: Any) -> tuple[list[Task], list[Generation]]:
    """Let a model answer."""
    with LLM(model, slots=1, context_size=4096, threads=1, **options) as llm:
        every = list(tasks(llm.model))
        return every, [llm.run(task.request) for task in every]


def row(
    names: Sequence[str], every: Sequence[Task], got: Sequence[Generation], plain: Sequence[Any]
) -> Iterator[tuple[str, ...]]:
    """Yield a row of the table for each kind of answers."""
    for kind in dict.fromkeys(task.kind for task in every):
        here = [i for i, task in enumerate(every) if task.kind == kind]
        passes = sum(got[i].timings.num_steps - 1 for i in here)
        ends = sum(got[i].finish_reason == "stop" for i in here)
        tokens = sum(got[i].num_tokens - 1 for i in here) + ends
        equal = sum(got[i].token_ids == plain[i] for i in here)
        figures = f"{tokens / passes:.2f}", f"{equal} of {len(here)}"
        yield (*names, kind, *figures)


def places(model: LlamaModel, every: Sequence[Task], plain: Sequence[Sequence[int]]) -> None:
    """Print the tokens of answers; before which text is forced: how much hits."""
    grammars = Grammars(model)
    for task, answer in zip(every, plain, strict=True):
        matcher = grammars.constraint(task.request.sampling.grammar)
        print(f"\n{task.kind}:", end="")
        for i, token in enumerate(answer):
            forced = matcher.forced(64).tolist()
            right = 0
            while right < len(forced) and forced[right : right + 1] == answer[i + right :][:1]:
                right += 1
            text = model.detokenize([token], special=True)
            print(f" {text!r}" + f"[{right}/{len(forced)}]" * bool(forced), end="")
            matcher.accept(token)
    print("\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--places", action="store_true", help="print what is forced where")
    parser.add_argument("--answers", type=Path, help="answers of an earlier run, instead of asking")
    options = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    for path in options.models:
        name = path.name.split(".")[0]
        saved = options.answers and options.answers / f"{name}.json"
        if saved and saved.exists():
            plain = json.loads(saved.read_text())
        else:
            every, got = answers(path, drafter=None)
            plain = [one.token_ids for one in got]
            if saved:
                saved.write_text(json.dumps(plain))
            rows += row((name, "model, default"), *answers(path), plain)
        with LlamaModel(path, vocab_only=True) as model:
            every = list(tasks(model))
            if options.places:
                places(model, every, plain)
            for drafter, settings in DRAFTERS.items():
                for forced in (False, True):
                    target = Recorded(model, forced)
                    policy = AutoPolicy(64, costs=COSTS)
                    with patch("time.perf_counter", lambda target=target: target.now):
                        engine = Engine(target, slots=1, policy=policy, **settings)
                        pairs = zip(every, plain, strict=True)
                        got = [target.answer(engine, *pair) for pair in pairs]
                        engine.close()
                    words = f"{drafter}{', forced text' * forced}"
                    rows += row((name, words), every, got, plain)
    show(("model", "drafts", "answers", "tokens per pass", "equal"), rows)


if __name__ == "__main__":
    main()
