"""Where the project's files lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPORA = ROOT / "corpora"
BENCHMARK_DATA = ROOT / "benchmarks" / "data"
GOLDEN_DATA = ROOT / "tests" / "golden" / "data"
# As in most models, a word and the space before it are one token; in the embedded one they are two.
VOCABULARY_WITH_SPACES = GOLDEN_DATA / "vocabulary_with_spaces.gguf"
