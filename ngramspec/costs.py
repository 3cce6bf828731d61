"""CostTable: the cost of a target's pass, by batch size in tokens."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ngramspec.errors import FormatError, InputError
from ngramspec.files.atomic import new_file

FORMAT = "ngramspec-costs"


@dataclass(frozen=True, slots=True)
class CostTable:
    """Pass costs at some batch sizes, in any unit, interpolated between them.

    Args:
        costs: (tokens in the batch, cost > 0), tokens >= 1 and rising, at least one pair.
        name: What it was measured on.

    Raises:
        InputError: The pairs are not as described.
    """

    costs: tuple[tuple[int, float], ...]
    name: str = ""

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.costs]
        if not sizes or sizes[0] < 1 or any(a >= b for a, b in pairwise(sizes)):
            raise InputError(f"costs must list rising batch sizes from 1 on, got {sizes}")
        for size, cost in self.costs:
            if not (math.isfinite(cost) and cost > 0):
                raise InputError(f"the cost of {size} tokens must be > 0 and finite, got {cost}")

    def cost(self, tokens: int) -> float:
        """Return the cost of a batch of `tokens` >= 1.

        Linear between known sizes. Below them the first segment is extended; above them the last
        one, or the line from the first size to the last where that is steeper: a last step that is
        flat by accident must not make long drafts look cheap. A table of one size is constant.
        Cost: O(log known sizes).
        """
        costs = self.costs
        if len(costs) == 1:
            return costs[0][1]
        after = min(bisect_left(costs, (tokens, 0.0)), len(costs) - 1)
        (a, low), (b, high) = costs[max(0, after - 1)], costs[max(1, after)]
        slope = (high - low) / (b - a)
        if tokens > b:
            (a, low), slope = (b, high), max(slope, (high - costs[0][1]) / (b - costs[0][0]))
        return max(low + slope * (tokens - a), min(low, high) * 1e-3)

    def dense(self, tokens: int) -> list[float]:
        """Return the costs of batches of 1, 2, ... `tokens` tokens."""
        return [self.cost(size) for size in range(1, tokens + 1)]


def _line(name: str, base: float, slope: float) -> CostTable:
    return CostTable(((1, base + slope), (2, base + 2 * slope)), name)


def _experts(name: str, base: float, scale: float, share: float) -> CostTable:
    sizes = [*range(1, 257), 512, 1024]
    return CostTable(tuple((b, base + scale * (1 - (1 - share) ** b)) for b in sizes), name)


# Models of verification costs: a dense 8B on an H100 (ms), a mixture of experts, a CPU, and a
# mixture with 8 of 256 experts, whose first tokens each load more weights.
PROFILES = {
    "h100-8b": _line("h100-8b", 7.09, 0.021),
    "moe": _line("moe", 1.0, 0.12),
    "cpu": _line("cpu", 1.0, 0.35),
    "moe-a3b": _experts("moe-a3b", 0.4, 19.2, 1 / 32),
}


def save_costs(table: CostTable, path: Path, about: Mapping[str, Any] | None = None) -> None:
    """Write a table as JSON, atomically; a new file is private to its owner.

    Args:
        table: In seconds.
        path: Replaced when it exists.
        about: Facts about the measurement, stored with the costs.

    Raises:
        OSError: It cannot be written.
    """
    body = {"format": FORMAT, "version": 1, "name": table.name, **(about or {})}
    body["costs"] = {str(size): cost for size, cost in table.costs}
    with new_file(path) as file:
        file.write(f"{json.dumps(body, indent=1)}\n".encode())


def load_costs(path: Path) -> CostTable:
    """Read a table that save_costs wrote.

    Raises:
        FormatError: It is not such a file.
        OSError: It cannot be read.
    """
    try:
        body = json.loads(path.read_bytes())
        if body["format"] != FORMAT or body["version"] != 1:
            raise FormatError(f"{path}: not a table of costs of version 1")
        pairs = sorted((int(size), float(cost)) for size, cost in body["costs"].items())
        return CostTable(tuple(pairs), str(body["name"]))
    except KeyError as error:
        raise FormatError(f"{path}: not a table of costs: it has no {error}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise FormatError(f"{path}: not a table of costs: {error}") from None
