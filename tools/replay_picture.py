"""Draw modelled speed-ups of recorded sets, ours beside the best peer's: docs/pictures/replay.svg.

    python benchmarks/replay_peers.py --json OUT.json
    python tools/replay_picture.py OUT.json

`make results` does both. Narrow, so that it can be read on a phone; colours follow the reader's
light or dark scheme.
"""

from __future__ import annotations

import json
import re
import sys
from html import escape
from pathlib import Path
from typing import Any

from readme_picture import STYLE

OUTPUT = Path(__file__).resolve().parents[1] / "docs" / "pictures" / "replay.svg"
PROFILES = {
    "h100-8b": "Where a draft costs next to nothing (h100-8b)",
    "cpu": "Where it costs much (cpu)",
}
WIDTH, LEFT, RIGHT, ROW = 480, 184, 88, 27
OURS, PEER = 11, 6  # heights of bars


def draw(output: Any, names: dict[str, str]) -> str:
    """Return the picture as SVG, of what replay_peers.py writes and the names of its sets."""
    ours = output["drafter"]
    shapes, y = [legend(24)], 52
    for profile, title in PROFILES.items():
        speeds = {name: one["modelled_speedup"][profile] for name, one in output["sets"].items()}
        ratios = output["against_peers"][ours][profile]["ratio"]
        scale = (WIDTH - LEFT - RIGHT) / max(speeds.values())
        shapes.append(f'<text class="head" x="16" y="{y}">{escape(title)}</text>')
        top = y + 10
        y = top + 16
        for name, speed in speeds.items():
            peer = speed / ratios[name]
            short = re.split(r",| \(", names[name])[0]
            label = f'<text x="{LEFT - 8}" y="{y}" text-anchor="end">{escape(short)}</text>'
            end = LEFT + max(speed, peer) * scale + 6
            figures = f'<text x="{end:.0f}" y="{y}">{speed:.2f} <tspan class="soft">'
            shapes += [label, bar(y - 10, speed * scale, OURS, "bar")]
            shapes += [
                bar(y + 2, peer * scale, PEER, "peer"),
                f"{figures}{peer:.2f}</tspan></text>",
            ]
            y += ROW
        line = f"{LEFT + scale:.0f}"
        shapes.append(f'<line x1="{line}" x2="{line}" y1="{top}" y2="{y - 12}"/>')
        y += 22
    height = y - 14
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
            f' width="{WIDTH}" height="{height}" role="img">',
            "<title>Modelled speed-ups of twelve recorded sets, ours and the best peer's</title>",
            f"<style>{STYLE}.peer {{ fill: var(--soft); }}</style>",
            f'<rect class="back" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}"'
            ' rx="8"/>',
            *shapes,
            "</svg>\n",
        ]
    )


def bar(y: float, width: float, height: int, kind: str) -> str:
    """Return a bar."""
    return f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.0f}" height="{height}" rx="1"/>'


def legend(y: int) -> str:
    """Return what the bars are."""
    return (
        f'<rect class="bar" x="16" y="{y - 10}" width="14" height="{OURS}" rx="1"/>'
        f'<text x="36" y="{y}">the default</text>'
        f'<rect class="peer" x="124" y="{y - 7}" width="14" height="{PEER}" rx="1"/>'
        f'<text x="144" y="{y}">best peer of the set</text>'
        f'<text class="soft" x="{WIDTH - 16}" y="{y}" text-anchor="end">dashes: no drafts</text>'
    )


def main() -> None:
    """Draw what is in a file."""
    from results import SETS

    OUTPUT.write_text(draw(json.loads(Path(sys.argv[1]).read_bytes()), SETS), "utf-8")


if __name__ == "__main__":
    main()
