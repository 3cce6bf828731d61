"""Draw speed-ups by how often drafts are right, with the policy and with drafts of fixed lengths.

    for length in 1 1.25 1.5 2 3 5 9; do
        ngramspec bench e2e --model MODEL -t 1 --repeats 1 -n 32 --json \\
            --synthetic-length $length > $length.json
    done
    python tools/acceptance_picture.py *.json

Each file is a run of one acceptance: how likely a drafted token is right if those before it are.
Writes docs/pictures/acceptance.svg. Colours follow the reader's light or dark scheme.
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

from readme_picture import STYLE

OUTPUT = Path(__file__).resolve().parents[1] / "docs" / "pictures" / "acceptance.svg"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 480, 330, 44, 96, 44, 44
LINES = {
    "synthetic": "the policy",
    "synthetic:n=1": "1 token",
    "synthetic:n=2": "2 tokens",
    "synthetic:n=4": "4 tokens",
    "synthetic:n=8": "8 tokens",
}
APART = 15  # least distance of labels


def points_of(reports: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Return (acceptance, speed-up) of each drafter, in the order of the acceptance."""
    lines: dict[str, list[tuple[float, float]]] = {name: [] for name in LINES}
    for report in sorted(reports, key=lambda one: one["settings"]["synthetic"][0]):
        speeds = {row["drafter"]: row["ratio"] for row in report["summary"]}
        for name in LINES:
            lines[name].append((report["settings"]["synthetic"][0], speeds[name]))
    return lines


def draw(reports: list[dict[str, Any]]) -> str:
    """Return the picture as SVG, of what runs with --json wrote."""
    lines = points_of(reports)
    fastest = max(speed for line in lines.values() for _, speed in line)
    most = max(2.0, round(fastest * 2 + 0.5) / 2)
    across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(acceptance: float) -> float:
        return LEFT + acceptance * across

    def y(speed: float) -> float:
        return TOP + (1 - speed / most) * up

    shapes = ['<text class="head" x="16" y="24">Speed-up by acceptance</text>']
    for tenths in range(0, 11, 2):
        shapes.append(
            f'<text class="soft" x="{x(tenths / 10):.0f}" y="{HEIGHT - BOTTOM + 18}"'
            f' text-anchor="middle">{tenths / 10:g}</text>'
        )
    for half in range(int(most * 2) + 1):
        if half % 2 == 0:
            place = f'x="{LEFT - 8}" y="{y(half / 2) + 4:.0f}" text-anchor="end"'
            shapes.append(f'<text class="soft" {place}>{half // 2}</text>')
    shapes.append(f'<line x1="{LEFT}" x2="{x(1):.0f}" y1="{y(1):.1f}" y2="{y(1):.1f}"/>')
    caption = "how likely a drafted token is right if those before it are"
    shapes.append(f'<text class="soft" x="{LEFT}" y="{HEIGHT - 10}">{caption}</text>')
    ends = sorted((line[-1][1], name) for name, line in lines.items())
    below = float(HEIGHT)
    for number, (speed, name) in enumerate(ends):
        below = min(y(speed) + 4, below - APART) if number else y(speed) + 4
        kind = "ours" if name == "synthetic" else "fixed"
        path = " ".join(f"{x(p):.1f},{y(s):.1f}" for p, s in lines[name])
        shapes.append(f'<polyline class="{kind}" points="{path}"/>')
        place = f'x="{x(lines[name][-1][0]) + 8:.0f}" y="{below:.0f}"'
        shapes.append(f'<text class="{kind}" {place}>{escape(LINES[name])}</text>')
    style = (
        f"{STYLE}polyline {{ fill: none; stroke-width: 1.5; }} polyline.ours {{ stroke: var(--bar);"
        " stroke-width: 3; } polyline.fixed { stroke: var(--soft); } text.fixed { fill:"
        " var(--soft); } text.ours { fill: var(--bar); font-weight: 600; }"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
            f' width="{WIDTH}" height="{HEIGHT}" role="img">',
            "<title>Speed-up by how often drafts are right, with the policy and fixed lengths"
            "</title>",
            f"<style>{style}</style>",
            f'<rect class="back" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}"'
            ' rx="8"/>',
            *shapes,
            "</svg>\n",
        ]
    )


def main() -> None:
    """Draw what is in the files."""
    reports = [json.loads(Path(path).read_bytes()) for path in sys.argv[1:]]
    OUTPUT.write_text(draw(reports), "utf-8")


if __name__ == "__main__":
    main()
