"""How building grows with the corpus, and its peak memory against --memory.

    python benchmarks/statistics_growth.py [--sizes 1 10 100 1000] [--memory 256M 2G] [--json OUT]

The text is made from the lines of corpora/: picked at random, the words of every fifth line
shuffled, so that it goes on having n-grams that were not seen before. It is tokenised with the
embedded model's tokenizer (or --model). Each build runs once, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from ngramspec import embedded_model
from processes import run

CORPORA = Path(__file__).parents[1] / "corpora"
DOCUMENT_LINES = 400


def write_text(path: Path, megabytes: float) -> None:
    """Write documents of made-up text as jsonl."""
    sources = sorted(CORPORA.rglob("*.py")) + sorted(CORPORA.rglob("*.rst"))
    lines = [line for source in sources for line in source.read_text().splitlines()]
    chance, written = random.Random(5), 0
    with path.open("w") as file:
        while written < megabytes * 1e6:
            chosen = chance.choices(lines, k=DOCUMENT_LINES)
            for i in range(0, DOCUMENT_LINES, 5):
                words = chosen[i].split(" ")
                chance.shuffle(words)
                chosen[i] = " ".join(words)
            written += file.write(json.dumps({"text": "\n".join(chosen)}) + "\n")


def measure(text: Path, memory: str, model: str) -> dict[str, Any]:
    """Build once; return the figures."""
    with tempfile.TemporaryDirectory(dir=text.parent) as folder:
        output = f"{folder}/made.ngc"
        command = [sys.executable, "-m", "ngramspec", "build-cache", str(text), "-o", output]
        command += ["--model", model, "--memory", memory, "--jobs", "2", "--json", "--no-progress"]
        ran = run(command)
    report = json.loads(ran.stdout)
    return {
        "megabytes": text.stat().st_size / 1e6,
        "memory": memory,
        "seconds": ran.seconds,
        "peak_mb": ran.peak_mb,
        "tokens": report["totals"]["tokens"],
        "ngrams": report["header"]["num_ngrams"],
        "file_mb": report["file_bytes"] / 1e6,
        "runs": report["num_runs"],
        "tokenising_share": report["seconds"]["tokenising_share"],
    }


def row(one: dict[str, Any]) -> str:
    """Return a figure as a line of the table."""
    return (
        f"| {one['megabytes']:.0f} | {one['memory']} | {one['seconds']:.1f} | "
        f"{one['megabytes'] / one['seconds']:.1f} | {1e6 * one['seconds'] / one['tokens']:.2f} | "
        f"{one['peak_mb']:.0f} | {one['runs']} | {one['ngrams'] / 1e6:.2f} M | "
        f"{one['file_mb']:.1f} | {100 * one['tokenising_share']:.0f} % |"
    )


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--memory", nargs="+", default=["256M", "2G"])
    parser.add_argument("--model", default=str(embedded_model()))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    columns = ["MB", "--memory", "s", "MB/s", "µs per token", "peak MB", "runs", "n-grams"]
    columns += ["file MB", "tokenising"]
    print(f"| {' | '.join(columns)} |")
    print("|" + "---|" * len(columns))
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for size in arguments.sizes:
            text = Path(folder) / "text.jsonl"
            write_text(text, size)
            for memory in arguments.memory:
                figures.append(measure(text, memory, arguments.model))
                print(row(figures[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
