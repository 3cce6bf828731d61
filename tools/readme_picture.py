"""Draw what drafts do for the embedded model: an answer with its guessed text, and speed-ups.

    python tools/readme_picture.py [--repeats N] [--output FILE.svg]

Runs the demo's tasks with the default drafter in the demo's timed setting (one thread, no flash
attention) and writes docs/pictures/demo.svg, whose colours follow the reader's light or dark
scheme.
"""

from __future__ import annotations

import argparse
from html import escape
from pathlib import Path

from ngramspec.lab.e2e.demo import DRAFTERS, Piece, TaskResult, make_rows, open_benches, run_task
from ngramspec.lab.e2e.tasks import TASKS

OUTPUT = Path(__file__).resolve().parents[1] / "docs" / "pictures" / "demo.svg"
SHOWN = "rename"  # the task whose answer is shown
WIDTH, MARGIN = 880, 24
CHARACTER, LINE, CODE_SIZE = 7.25, 18, 12
BARS_LEFT, BAR, BAR_STEP = 560, 16, 46
STYLE = """
svg { --back: #ffffff; --text: #1f2933; --soft: #5f6c7b; --mark: #bfead7; --bar: #0b7a5b;
      --plain: #b8c2cc; --edge: #d9e0e6; }
@media (prefers-color-scheme: dark) {
  svg { --back: #14181d; --text: #e6eaee; --soft: #9aa7b4; --mark: #14543f; --bar: #2fb98d;
        --plain: #56616d; --edge: #2c343c; } }
.back { fill: var(--back); stroke: var(--edge); }
.mark { fill: var(--mark); } .bar { fill: var(--bar); } .plain { fill: var(--plain); }
text { font: 13px system-ui, sans-serif; fill: var(--text); }
.soft { fill: var(--soft); } .head { font-weight: 600; font-size: 15px; }
.code { font: 12px ui-monospace, Consolas, monospace; white-space: pre; }
"""


def code_lines(pieces: list[Piece]) -> list[list[Piece]]:
    """Return the answer's lines, each in pieces, without the fences around the code."""
    lines: list[list[Piece]] = [[]]
    for text, guessed in pieces:
        for number, part in enumerate(text.split("\n")):
            if number:
                lines.append([])
            if part:
                lines[-1].append((part, guessed))
    return [line for line in lines if not "".join(text for text, _ in line).startswith("```")]


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


def draw_bars(results: list[TaskResult], top: int) -> tuple[list[str], int]:
    """Return a pair of bars per task, tokens per second without drafts and with them."""
    shapes = []
    rates = [[row.tokens_per_second for row in make_rows([result])] for result in results]
    scale = (WIDTH - MARGIN - 60 - BARS_LEFT) / max(max(pair) for pair in rates)
    y = top
    for result, (plain, drafted) in zip(results, rates, strict=True):
        shapes.append(f'<text x="{BARS_LEFT}" y="{y}">{escape(result.task.title)}</text>')
        shapes.append(
            f'<rect class="plain" x="{BARS_LEFT}" y="{y + 6}" width="{plain * scale:.0f}"'
            f' height="{BAR / 2:.0f}" rx="2"/>'
            f'<rect class="bar" x="{BARS_LEFT}" y="{y + 6 + BAR / 2:.0f}"'
            f' width="{drafted * scale:.0f}" height="{BAR / 2:.0f}" rx="2"/>'
            f'<text x="{BARS_LEFT + drafted * scale + 8:.0f}" y="{y + 6 + BAR - 3}">'
            f"{drafted / plain:.1f}x</text>"
        )
        y += BAR_STEP
    return shapes, y


def draw(results: list[TaskResult]) -> str:
    """Return the picture as SVG."""
    shown = next(result for result in results if result.task.name == SHOWN)
    plain, drafted = shown.outcomes
    tokens = len(drafted.exact.token_ids)
    guessed = sum(drafted.exact.guessed)
    same = all(o.timed_difference is None for result in results for o in result.outcomes)
    if not same:
        raise SystemExit("the texts differ: no picture of them is drawn")
    code, code_end = draw_code(list(drafted.pieces), MARGIN + 66)
    bars, bars_end = draw_bars(results, MARGIN + 66)
    height = max(code_end, bars_end) + 34
    words = [
        (MARGIN, MARGIN + 10, "head", f"“{shown.task.request.rstrip(':')}”"),
        (MARGIN, MARGIN + 34, "soft", f"{guessed} of {tokens} tokens were guessed and kept:"),
        (BARS_LEFT, MARGIN + 10, "head", "Tokens per second"),
        (BARS_LEFT, MARGIN + 34, "soft", "without drafts, and with them"),
        (
            MARGIN,
            height - 18,
            "soft",
            f"{plain.exact.steps} passes of the model without drafts, {drafted.exact.steps} with "
            "them; the same text. Embedded model, one CPU thread, no flash attention.",
        ),
    ]
    texts = [f'<text class="{kind}" x="{x}" y="{y}">{escape(t)}</text>' for x, y, kind, t in words]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
            f' width="{WIDTH}" height="{height}" role="img">',
            "<title>An answer of which drafts guessed most, and speed-ups by task</title>",
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
    """Run the tasks and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    with open_benches((DRAFTERS[-1],)) as base:
        # Text and times of one setting, the timed one.
        benches = type(base)(base.model, base.modes, base.timed, base.timed)
        repeats = options.repeats
        results = [
            run_task(benches, task, repeats=repeats, first=number * repeats)
            for number, task in enumerate(TASKS)
        ]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(draw(results), "utf-8")


if __name__ == "__main__":
    main()
