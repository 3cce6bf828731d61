"""Draw what drafts do for a real model: an answer with its guessed text, and speed-ups by work.

    python tools/readme_picture.py CELLS.json [--output FILE.svg]

CELLS.json is what `benchmarks/real_models.py --json CELLS.json` wrote; drawn are the speed-ups of
its first table, and the answer of its model to an edit, written anew with the default drafter.
Colours follow the reader's light or dark scheme.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

from ngramspec import LLM
from ngramspec.cli.output import Piece, decode_pieces

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from real_models import Cell, Setting  # noqa: E402
from serving_workloads import real  # noqa: E402

OUTPUT = ROOT / "docs" / "pictures" / "demo.svg"
SHOWN, DEFAULT, BASE = ("edit", 5), "suffix", "none"  # an edit that small models can do
MOST_TOKENS = 192
WORK = {
    "edit": "Edit a function",
    "repair": "Repair code",
    "revise": "Revise an answer",
    "summarise": "Write a summary on",
    "rag": "Answer from documents",
    "json": "JSON",
    "sql": "SQL",
    "chat": "Chat",
}
WIDTH, MARGIN = 920, 24
CHARACTER, LINE = 7.25, 18
BARS_LEFT, BAR, BAR_STEP = 680, 14, 40
MOST_LINES = 22  # of the answer
STYLE = """
svg { --back: #ffffff; --text: #1f2933; --soft: #5f6c7b; --mark: #bfead7; --bar: #0b7a5b;
      --edge: #d9e0e6; }
@media (prefers-color-scheme: dark) {
  svg { --back: #14181d; --text: #e6eaee; --soft: #9aa7b4; --mark: #14543f; --bar: #2fb98d;
        --edge: #2c343c; } }
.back { fill: var(--back); stroke: var(--edge); }
.mark { fill: var(--mark); } .bar { fill: var(--bar); }
line { stroke: var(--soft); stroke-dasharray: 3 3; }
text { font: 13px system-ui, sans-serif; fill: var(--text); }
.soft { fill: var(--soft); } .head { font-weight: 600; font-size: 15px; }
.code { font: 12px ui-monospace, Consolas, monospace; white-space: pre; }
"""


def code_lines(pieces: list[Piece]) -> list[list[Piece]]:
    """Return the answer's first lines, each in pieces, without the fences around the code."""
    lines: list[list[Piece]] = [[]]
    for text, guessed in pieces:
        for number, part in enumerate(text.split("\n")):
            if number:
                lines.append([])
            if part:
                lines[-1].append((part, guessed))
    shown = [line for line in lines if not "".join(text for text, _ in line).startswith("```")]
    return shown[:MOST_LINES]


def draw_code(pieces: list[Piece], top: int) -> tuple[list[str], int]:
    """Return the shapes of an answer, guessed text on a coloured ground, and where they end."""
    shapes = []
    y = top
    for line in code_lines(pieces):
        column = 0
        for text, guessed in line:
            x = MARGIN + column * CHARACTER
            width = len(text) * CHARACTER
            if guessed:
                shapes.append(
                    f'<rect class="mark" x="{x:.1f}" y="{y - 13}" width="{width:.1f}"'
                    f' height="{LINE}" rx="2"/>'
                )
            if text.strip():
                shapes.append(
                    f'<text class="code" xml:space="preserve" x="{x:.1f}" y="{y}"'
                    f' textLength="{width:.1f}">{escape(text)}</text>'
                )
            column += len(text)
        y += LINE
    return shapes, y


def draw_bars(speedups: dict[str, float], top: int) -> tuple[list[str], int]:
    """Return a bar per kind of work, with a line where there is no speed-up; and where they end."""
    scale = (WIDTH - MARGIN - 60 - BARS_LEFT) / max(speedups.values())
    shapes = []
    y = top
    for kind, speedup in speedups.items():
        width = speedup * scale
        shapes.append(
            f'<text x="{BARS_LEFT}" y="{y}">{WORK[kind]}</text>'
            f'<rect class="bar" x="{BARS_LEFT}" y="{y + 6}" width="{width:.0f}" height="{BAR}"'
            f' rx="2"/><text x="{BARS_LEFT + width + 8:.0f}" y="{y + 3 + BAR}">{speedup:.2f}</text>'
        )
        y += BAR_STEP
    line = f"{BARS_LEFT + scale:.0f}"
    shapes.append(f'<line x1="{line}" x2="{line}" y1="{top - 10}" y2="{y - 14}"/>')
    return shapes, y


@dataclass(frozen=True)
class Shown:
    """An answer. request: its first line."""

    request: str
    pieces: list[Piece]
    tokens: int
    guessed: int
    steps: int


def answer(setting: Setting) -> Shown:
    """Return a model's answer to an edit."""
    kind, number = SHOWN
    messages = real(number + 1)[kind][number].messages
    with LLM(setting.model, threads=setting.threads, context_size=2048) as llm:
        written = llm.chat(messages, max_tokens=MOST_TOKENS, temperature=0)
        pieces = decode_pieces(llm.model.piece, written.token_ids, written.accepted)
    return Shown(
        messages[-1]["content"].split("\n", 1)[0],
        pieces,
        len(written.token_ids),
        sum(written.accepted),
        written.timings.num_steps,
    )


def draw(setting: Setting, shown: Shown) -> str:
    """Return the picture as SVG."""
    kinds = dict.fromkeys(cell.kind for cell in setting.cells)
    ratios = {kind: setting.ratio(DEFAULT, BASE, kind) for kind in kinds}
    code, code_end = draw_code(shown.pieces, MARGIN + 66)
    bars, bars_end = draw_bars({k: one.median for k, one in ratios.items()}, MARGIN + 66)
    height = max(code_end, bars_end) + 34
    words = [
        (MARGIN, MARGIN + 10, "head", f"“{shown.request.rstrip(':')}”"),
        (MARGIN, MARGIN + 34, "soft", f"{shown.guessed} of {shown.tokens} tokens were guessed and "
         f"kept: {shown.steps} passes of the model wrote them."),
        (BARS_LEFT, MARGIN + 34, "soft", "Tokens per second over none"),
        (MARGIN, height - 18, "soft", f"{setting.model.stem}, {setting.threads} CPU "
         f"thread{'s' * (setting.threads > 1)}, temperature {setting.temperature:g}, the defaults; "
         "medians."),
    ]  # fmt: skip
    texts = [f'<text class="{kind}" x="{x}" y="{y}">{escape(t)}</text>' for x, y, kind, t in words]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
            f' width="{WIDTH}" height="{height}" role="img">',
            "<title>An answer of which drafts guessed most, and speed-ups by kind of work</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="back" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}"'
            ' rx="8"/>',
            *texts,
            *code,
            *bars,
            "</svg>\n",
        ]
    )


def main() -> None:
    """Write the picture of a run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", type=Path, metavar="CELLS.json")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    row = json.loads(options.cells.read_text("utf-8"))["settings"][0]
    cells = [Cell(**cell) for cell in row["cells"]]
    setting = Setting(Path(row["model"]), row["threads"], row["temperature"], cells)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(draw(setting, answer(setting)), "utf-8")


if __name__ == "__main__":
    main()
