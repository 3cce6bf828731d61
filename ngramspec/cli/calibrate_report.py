"""What `ngramspec bench calibrate` prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.adapters.llama_cpp.saved_costs import cost_key
from ngramspec.bench.calibrate import Calibration
from ngramspec.cli.cache_report import plain_console, plain_table
from ngramspec.cli.sizes import number_of

if TYPE_CHECKING:
    from ngramspec.adapters.llama_cpp import LlamaTarget

COLUMNS = ("tokens", "ms", "relative to 1", "ms per token")


def as_json(found: Calibration, target: LlamaTarget, saved: Path | None) -> dict[str, Any]:
    """Return everything that was measured, as plain data. saved: the file, None = not saved."""
    return {
        "model": str(target.model.path),
        "saved": None if saved is None else str(saved),
        "complete": found.complete,
        "context": found.context,
        "key": cost_key(target.model, target.settings),
        "costs": [_row(found, size, seconds) for size, seconds in found.medians().items()],
    }


def show(found: Calibration, target: LlamaTarget, saved: Path | None) -> None:
    """Print the table, and where it was saved."""
    console = plain_console()
    if not found.seconds:
        console.print("Nothing was measured.")
        return
    samples = [len(times) for times in found.seconds.values()]
    text = f"{min(samples)} to {max(samples)}" if min(samples) < max(samples) else f"{samples[0]}"
    threads = number_of(target.settings.num_threads[1], "thread")
    context = number_of(found.context, "token")
    title = f"{target.model.path.name}, {threads}, {context} in the cache, medians of {text}"
    table = plain_table([(name, True) for name in COLUMNS])
    for size, seconds in found.medians().items():
        row = _row(found, size, seconds)
        relative = "-" if row["relative"] is None else f"{row['relative']:.2f}"
        each = 1e3 * row["seconds_per_token"]
        table.add_row(str(size), f"{1e3 * seconds:.3f}", relative, f"{each:.3f}")
    console.print(title, style="bold", soft_wrap=True)
    console.print(table)
    told = "not saved: it is not complete" if saved is None else f"saved: {saved}"
    console.print(told, soft_wrap=True)


def _row(found: Calibration, size: int, seconds: float) -> dict[str, Any]:
    samples = found.seconds[size]
    alone = found.medians().get(1)
    return {
        "tokens": size,
        "seconds": seconds,
        "relative": None if alone is None else seconds / alone,
        "seconds_per_token": seconds / size,
        "fastest_seconds": min(samples),
        "slowest_seconds": max(samples),
        "samples": len(samples),
    }
