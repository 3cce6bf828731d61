"""Measure a GGUF model: greedy answers to held-out tasks with invented names, and prose."""

from __future__ import annotations

import argparse
import json
import re
import time
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path

from corpus import Corpus, load_corpus
from tasks import Sample, TaskMaker
from tqdm import tqdm

from ngramspec import LLM

TASKS = (
    "repeat_code", "repeat_text", "rename", "show", "think", "json", "fix", "two_turns", "again",
    "other",
)  # fmt: skip
PROSE = "prose"  # not a task: goes on with a held-out text for PROSE_TOKENS
PROSE_TOKENS = 60
KNOWN = 0.9  # share of the words that the library's own texts have, at least
WORD = re.compile(r"[A-Za-z]{2,}")
REPEATED = 8  # words that come again end the sense of a text

Miss = dict[str, str | int]


@dataclass
class Score:
    """The result of one task."""

    task: str
    samples: int = 0
    exact: int = 0
    similarity: float = 0.0
    tokens: int = 0

    def add(self, exact: bool, similarity: float, tokens: int) -> None:
        """Count one answer; `similarity` becomes the mean over all answers."""
        self.similarity = (self.similarity * self.samples + similarity) / (self.samples + 1)
        self.samples += 1
        self.exact += exact
        self.tokens += tokens


def answer(llm: LLM, sample: Sample) -> str:
    """Return the greedy answer to the last turn; earlier turns are given as they should be."""
    messages: list[dict[str, str]] = []
    for user, assistant in sample.turns:
        messages += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
    expected = messages.pop()["content"]
    limit = len(llm.model.tokenize(expected)) + 40
    return llm.chat(messages, temperature=0, max_tokens=limit).text


def sensible(text: str, vocabulary: set[str]) -> bool:
    """Say whether a text has words, nearly all of them known, and does not go round in circles."""
    words = [word.lower() for word in WORD.findall(text)][:-1]  # the last one may be cut
    runs = [tuple(words[i : i + REPEATED]) for i in range(len(words) - REPEATED + 1)]
    return (
        len(words) >= 10
        and sum(word in vocabulary for word in words) >= KNOWN * len(words)
        and len(set(runs)) == len(runs)
    )


def words_of(corpus: Corpus) -> set[str]:
    """Return the words of a corpus's prose."""
    return {word.lower() for text in corpus.prose for word in WORD.findall(text)}


def go_on(llm: LLM, corpus: Corpus, count: int) -> tuple[Score, list[Miss]]:
    """Score greedy continuations of held-out prose."""
    vocabulary = words_of(load_corpus("train"))
    score, misses = Score(PROSE), list[Miss]()
    for index, text in enumerate(corpus.prose[:count]):
        start = text[: len(text) // 3]
        got = llm.generate(start, temperature=0, max_tokens=PROSE_TOKENS).text
        good = sensible(got, vocabulary)
        score.add(good, float(good), PROSE_TOKENS)
        if not good:
            misses.append({"task": PROSE, "index": index, "wanted": start, "got": got})
    return score, misses


def evaluate(path: str, count: int, longest: int, threads: int) -> tuple[list[Score], list[Miss]]:
    """Score every task on `count` samples; also return the answers that were not exact."""
    llm = LLM(path, None, slots=1, context_size=2048, threads=threads, flash_attn=True)
    maker = TaskMaker(load_corpus("eval"), varied=False, longest=longest)
    scores: list[Score] = []
    misses: list[Miss] = []
    bar = tqdm(total=count * len(TASKS), mininterval=5)
    for task in TASKS:
        score = Score(task)
        for index in range(count):
            sample = maker.make(f"eval-{task}-{index}", task)
            expected, got = sample.turns[-1][1], answer(llm, sample)
            similarity = SequenceMatcher(None, expected, got, autojunk=False).ratio()
            score.add(got == expected, similarity, len(llm.model.tokenize(expected)))
            if got != expected:
                misses.append({"task": task, "index": index, "wanted": expected, "got": got})
            bar.update()
        scores.append(score)
    bar.close()
    score, more = go_on(llm, maker.corpus, count)
    scores.append(score)
    misses += more
    return scores, misses


def table(scores: list[Score]) -> str:
    """Format the scores as a Markdown table."""
    lines = ["| task | exact | similarity | tokens per answer |", "| --- | --- | --- | --- |"]
    for score in scores:
        mean = score.tokens / max(score.samples, 1)
        exact = f"{score.exact} of {score.samples}"
        lines.append(f"| {score.task} | {exact} | {score.similarity:.3f} | {mean:.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Evaluate the model named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("--count", type=int, default=30, help="samples per task")
    parser.add_argument("--longest", type=int, default=600, help="longest copy in tokens")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--json", default="", help="also write scores and misses to this file")
    options = parser.parse_args()
    begin = time.monotonic()
    scores, misses = evaluate(options.model, options.count, options.longest, options.threads)
    print(table(scores))
    if options.json:
        content = {
            "model": options.model,
            "longest": options.longest,
            "seconds": round(time.monotonic() - begin, 1),
            "scores": [asdict(score) for score in scores],
            "misses": misses,
        }
        Path(options.json).write_text(json.dumps(content, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
