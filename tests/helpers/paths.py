"""Where the project's files lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPORA = ROOT / "corpora"
BENCHMARK_DATA = ROOT / "benchmarks" / "data"
GOLDEN_DATA = ROOT / "tests" / "golden" / "data"
