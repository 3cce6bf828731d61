"""JSON schemas as grammars: ours beside llama.cpp's converter and llguidance by itself.

    python benchmarks/structured_output.py                        # embedded model
    python benchmarks/structured_output.py --model random.gguf    # masks of a larger vocabulary
    python benchmarks/structured_output.py --suite json/tests/draft2020-12

--suite judges the texts of a folder of JSON-Schema-Test-Suite instead, which the sdist of
jsonschema carries: schemas as strict ones, texts without white space, members in their order.

Three tables:

- schemas: how many each converter takes, how many of the texts that fit are allowed and of those
  that do not fit refused, size of the grammar, and time until the first token can be checked;
- masks: time to check one token, as for a draft, and to mask the whole vocabulary, at every token
  of the texts that all of them allow;
- tokens: what a grammar adds to a generated token, runs alternating.

Times are those of the processor, so that other programs matter little. llama.cpp's converter is
llama-cpp-python's port of it. llguidance by itself gets the schemas as they are.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import itertools
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ngramspec import LLM, embedded_model
from ngramspec.errors import InputError
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.sampler_chain import Grammars
from ngramspec.text.grammar import read_grammar
from ngramspec.text.structured.guidance import GrammarText, schema_grammar

SCHEMAS = Path(__file__).parent / "data" / "schemas.json"
Convert = Callable[[Any], str]


@dataclass(frozen=True)
class Case:
    """A schema with texts.

    good: Texts that fit the schema, members in its order.
    bad: Texts that do not.
    """

    name: str
    schema: Any
    good: list[str]
    bad: list[str]


class Matcher(Protocol):
    """Follows one text."""

    def allows(self, token: int) -> bool:
        """Tell whether a token may come next."""

    def mask(self) -> None:
        """Find what may come next, of the whole vocabulary."""

    def accept(self, token: int) -> object:
        """Go on with a token."""

    def may_end(self) -> bool:
        """Tell whether the text may end here."""

    def close(self) -> None:
        """Free what it holds."""


class LlamaMatcher:
    """llama.cpp's grammar sampler."""

    def __init__(self, model: LlamaModel, grammar: str) -> None:
        self._lib = lib = model.library.lib
        vocabulary = model.vocabulary.address
        self._sampler = lib.llama_sampler_init_grammar(vocabulary, grammar.encode(), b"root")
        if not self._sampler:
            raise ValueError("llama.cpp does not take the grammar")
        self._end = model.eos
        self._one = (lib.llama_token_data * 1)()
        self._one_array = self._array(self._one, 1)
        rows = np.zeros(model.vocab_size, [("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
        rows["id"] = np.arange(model.vocab_size)
        self._rows = rows
        data = rows.ctypes.data_as(ctypes.POINTER(lib.llama_token_data))
        self._all_array = self._array(data, model.vocab_size)

    def allows(self, token: int) -> bool:
        """Tell whether a token may come next."""
        self._one[0].id, self._one[0].logit = token, 1.0
        self._lib.llama_sampler_apply(self._sampler, ctypes.byref(self._one_array))
        return math.isfinite(self._one[0].logit)

    def mask(self) -> None:
        """Find what may come next; it leaves out what a mask before ruled out, so begin anew."""
        self._rows["logit"] = 0.0
        self._lib.llama_sampler_apply(self._sampler, ctypes.byref(self._all_array))

    def accept(self, token: int) -> None:
        """Go on with a token that is allowed."""
        self._lib.llama_sampler_accept(self._sampler, token)

    def may_end(self) -> bool:
        """Tell whether the text may end here."""
        return self.allows(self._end)

    def close(self) -> None:
        """Free the sampler."""
        self._lib.llama_sampler_free(self._sampler)

    def _array(self, data: Any, size: int) -> Any:
        return self._lib.llama_token_data_array(data=data, size=size, selected=-1, sorted=False)


class OurMatcher:
    """What the engine follows: llguidance, with schemas as they are written for it."""

    def __init__(self, grammars: Grammars, grammar: str) -> None:
        self._matcher = grammars.constraint(grammar)
        self.allows, self.accept = self._matcher.allows, self._matcher.accept

    def mask(self) -> None:
        """Find what may come next."""
        self._matcher.mask()

    def may_end(self) -> bool:
        """Tell whether the text may end here."""
        return self._matcher.may_end

    def close(self) -> None:
        """Free nothing."""


class GuidanceMatcher:
    """llguidance's matcher."""

    def __init__(self, tokenizer: Any, schema: Any) -> None:
        library = importlib.import_module("llguidance")
        grammar = library.LLMatcher.grammar_from_json_schema(schema)
        self._matcher = library.LLMatcher(tokenizer, grammar, log_level=0)
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error())
        self._mask = np.zeros((tokenizer.vocab_size + 31) // 32, np.int32)

    def allows(self, token: int) -> bool:
        """Tell whether a token may come next."""
        return bool(self._matcher.validate_tokens([token]))

    def mask(self) -> None:
        """Find what may come next."""
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)

    def accept(self, token: int) -> None:
        """Go on with a token."""
        self._matcher.consume_token(token)

    def may_end(self) -> bool:
        """Tell whether the text may end here."""
        return bool(self._matcher.is_accepting())

    def close(self) -> None:
        """Free nothing."""


@dataclass
class Contender:
    """A way from schemas to matchers.

    open: Makes a matcher for a schema, from the schema.
    grammar: Makes the grammar as text, None where there is none.
    """

    name: str
    open: Callable[[Any], Matcher]
    grammar: Convert | None = None


@dataclass
class Tally:
    """What one contender did.

    allowed: Schemas and texts that fit them, and which it allows.
    """

    taken: int = 0
    allowed: set[tuple[str, str]] = field(default_factory=set)
    refused: int = 0
    failures: list[str] = field(default_factory=list)
    chars: list[int] = field(default_factory=list)
    elements: list[int] = field(default_factory=list)
    opening: list[float] = field(default_factory=list)
    checking: list[float] = field(default_factory=list)
    masking: list[float] = field(default_factory=list)


def llama_grammar(schema: Any) -> str:
    """Return the grammar of llama.cpp's converter."""
    from llama_cpp.llama_grammar import json_schema_to_gbnf

    return str(json_schema_to_gbnf(json.dumps(schema)))


def contenders(model: LlamaModel, strict: bool = False) -> Iterator[Contender]:
    """Yield what is there; `strict`: ours refuses schemas that it cannot enforce."""
    grammars = Grammars(model)
    grammars.constraint(schema_grammar({}))  # the vocabulary is made once per model

    numbers = itertools.count()

    def ours(schema: Any) -> Matcher:
        grammar = schema_grammar(schema, strict=strict)
        text = f"{grammar}# {next(numbers)}\n"  # none that was read before
        return OurMatcher(grammars, GrammarText(text))

    def theirs(schema: Any) -> Matcher:
        return LlamaMatcher(model, llama_grammar(schema))

    yield Contender("ngramspec", ours, schema_grammar)
    yield Contender("llama.cpp", theirs, llama_grammar)
    try:
        library = importlib.import_module("llguidance")
    except ImportError:
        return
    tokenizer = guidance_tokenizer(library, model)
    yield Contender("llguidance", lambda schema: GuidanceMatcher(tokenizer, schema))


def guidance_tokenizer(library: Any, model: LlamaModel) -> Any:
    """Return the model's vocabulary as llguidance wants it."""

    class Tokens:
        def __init__(self) -> None:
            every = range(model.vocab_size)
            self.eos_token_id, self.bos_token_id = model.eos, None
            self.tokens = [model.piece(i) or b"\xff" + model.piece(i, True) for i in every]
            self.special_token_ids = [i for i in every if not model.piece(i)]

        def __call__(self, text: bytes) -> list[int]:
            return tokens_of(model, text.decode("utf-8", "replace"))

    return library.LLTokenizer(library.TokenizerWrapper(Tokens()))


def tokens_of(model: LlamaModel, text: str) -> list[int]:
    """Return the tokens of a text."""
    return [int(token) for token in model.tokenize(text, add_special=False)]


@contextmanager
def open_matcher(contender: Contender, schema: Any) -> Iterator[Matcher]:
    """Make a matcher and free it."""
    matcher = contender.open(schema)
    try:
        yield matcher
    finally:
        matcher.close()


def fits(contender: Contender, schema: Any, tokens: Sequence[int]) -> bool:
    """Tell whether a text is allowed, to its end."""
    with open_matcher(contender, schema) as matcher:
        for token in tokens:
            if not matcher.allows(token):
                return False
            matcher.accept(token)
        return matcher.may_end()


def judge(contender: Contender, cases: Sequence[Case], model: LlamaModel) -> Tally:
    """Ask for every text of every schema."""
    tally = Tally()
    for case in cases:
        try:
            with open_matcher(contender, case.schema):
                pass
        except Exception as error:
            tally.failures.append(f"{case.name}: refused: {str(error).splitlines()[0]:.90}")
            continue
        tally.taken += 1
        if contender.grammar is not None:
            grammar = contender.grammar(case.schema)
            tally.chars.append(len(grammar))
            with suppress(InputError):  # nested too deeply
                tally.elements.append(read_grammar(grammar, lambda text: -1).num_elements)
        for texts, good in ((case.good, True), (case.bad, False)):
            for text in texts:
                got = fits(contender, case.schema, tokens_of(model, text))
                if got != good:
                    words = "refuses" if good else "allows"
                    tally.failures.append(f"{case.name}: {words} {text:.90}")
                elif good:
                    tally.allowed.add((case.name, text))
                else:
                    tally.refused += 1
    return tally


def judge_suite(folder: Path, model: LlamaModel) -> dict[str, Counter[str]]:
    """Return by contender how many texts of JSON-Schema-Test-Suite were judged in which way."""
    counts: dict[str, Counter[str]] = {}
    groups = [
        group
        for path in sorted(folder.rglob("*.json"))
        for group in json.loads(path.read_text("utf-8"))
    ]
    for contender in contenders(model, strict=True):
        if contender.name == "llama.cpp":  # aborts on some of them
            continue
        count = counts[contender.name] = Counter[str]()
        for group in groups:
            try:
                with open_matcher(contender, group["schema"]):
                    pass
            except (InputError, ValueError):
                count["not taken"] += len(group["tests"])
                continue
            for test in group["tests"]:
                text = json.dumps(test["data"], ensure_ascii=False, separators=(",", ":"))
                is_allowed = fits(contender, group["schema"], tokens_of(model, text))
                if is_allowed == test["valid"]:
                    count["right"] += 1
                else:
                    count["wrong" if is_allowed else "refused though valid"] += 1
                    if is_allowed:
                        names = f"{group['description']}: {test['description']}"
                        print(f"{contender.name} allows {text:.60} in {names}")
    return counts


def measure(contender: Contender, schema: Any, tokens: Sequence[int], tally: Tally) -> None:
    """Time opening, and checks and masks along a text that is allowed."""
    started = time.thread_time()
    with open_matcher(contender, schema) as matcher:
        matcher.allows(tokens[0])
        tally.opening.append(time.thread_time() - started)
        for token in tokens:
            before = time.thread_time()
            matcher.allows(token)
            between = time.thread_time()
            matcher.mask()
            tally.masking.append(time.thread_time() - between)
            tally.checking.append(between - before)
            matcher.accept(token)


def readable(schema: Any) -> bool:
    """Tell whether the engine reads the grammar of llama.cpp's converter."""
    try:
        read_grammar(llama_grammar(schema), lambda text: -1)
    except InputError:
        return False
    return True


def generate(cases: Sequence[Case], model: Path, rounds: int) -> dict[str, float]:
    """Return processor seconds per generated token without and with grammars."""
    spent: dict[str, list[float]] = {"no grammar": [], "ngramspec": [], "llama.cpp": []}
    converters: dict[str, Convert] = {"ngramspec": schema_grammar, "llama.cpp": llama_grammar}
    with LLM(model, drafter=None, slots=1, context_size=1024, threads=1) as llm:
        for number in range(rounds):
            for case in cases:
                for name in spent:
                    grammar = converters[name](case.schema) if name in converters else ""
                    started = time.process_time()
                    generation = llm.generate(
                        "{", max_tokens=60, grammar=grammar, temperature=1.0, seed=number
                    )
                    count = max(1, len(generation.token_ids))
                    spent[name].append((time.process_time() - started) / count)
    return {name: statistics.median(values) for name, values in spent.items()}


def show(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    for row in (head, ["---"] * len(head), *rows):
        print(f"| {' | '.join(row)} |")
    print()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=embedded_model())
    parser.add_argument("--passes", type=int, default=5, help="over the texts, for times")
    parser.add_argument("--rounds", type=int, default=5, help="of generation; 0 for none")
    parser.add_argument("--failures", action="store_true", help="name what went wrong")
    parser.add_argument("--suite", type=Path, help="a folder of JSON-Schema-Test-Suite")
    options = parser.parse_args()
    if options.suite:
        with LlamaModel(options.model, vocab_only=True) as model:
            counts = judge_suite(options.suite, model)
        ways = ("right", "refused though valid", "not taken", "wrong")
        show(("converter", *ways), [(n, *(str(c[way]) for way in ways)) for n, c in counts.items()])
        return
    cases = [Case(**case) for case in json.loads(SCHEMAS.read_text("utf-8"))]
    good, bad = (sum(len(getattr(case, kind)) for case in cases) for kind in ("good", "bad"))
    model = LlamaModel(options.model, vocab_only=True)
    present = list(contenders(model))
    tallies = {each.name: judge(each, cases, model) for each in present}
    everywhere = set.intersection(*(tally.allowed for tally in tallies.values()))
    for _ in range(options.passes):
        for contender in present:
            for case in cases:
                for text in case.good:
                    if (case.name, text) in everywhere:
                        tokens = tokens_of(model, text)
                        measure(contender, case.schema, tokens, tallies[contender.name])
    print(f"{len(cases)} schemas, {good} texts that fit, {bad} that do not\n")
    show(
        ("converter", "taken", "good allowed", "bad refused", "chars", "elements", "ready, ms"),
        [
            (
                name,
                str(tally.taken),
                str(len(tally.allowed)),
                str(tally.refused),
                f"{statistics.median(tally.chars):,.0f}" if tally.chars else "",
                f"{statistics.median(tally.elements):,.0f}" if tally.elements else "",
                f"{statistics.median(tally.opening) * 1e3:.2f}",
            )
            for name, tally in tallies.items()
        ],
    )
    if options.failures:
        for name, tally in tallies.items():
            print(*(f"{name}: {failure}" for failure in tally.failures), sep="\n")
        print()
    print(f"{model.vocab_size:,} tokens in the vocabulary, microseconds per token\n")
    show(
        ("matcher", "check, median", "check, p99", "mask, median", "mask, p99", "mask, most"),
        [
            (name, *(f"{value * 1e6:,.1f}" for value in spread(tally)))
            for name, tally in tallies.items()
        ],
    )
    model.close()
    if options.rounds:
        names = {name for name, _ in everywhere}
        shared = [case for case in cases if case.name in names and readable(case.schema)]
        seconds = generate(shared, options.model, options.rounds)
        base = seconds["no grammar"]
        rows = [(n, f"{s * 1e6:,.0f}", f"{(s - base) * 1e6:+,.0f}") for n, s in seconds.items()]
        show(("generation", "us per token", "beyond none"), rows)


def spread(tally: Tally) -> tuple[float, ...]:
    """Return what is shown of checks and masks."""
    checking, masking = np.array(tally.checking), np.array(tally.masking)
    return (
        float(np.median(checking)),
        float(np.quantile(checking, 0.99)),
        float(np.median(masking)),
        float(np.quantile(masking, 0.99)),
        float(masking.max()),
    )


if __name__ == "__main__":
    main()
