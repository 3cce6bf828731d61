"""Write tests/cli/data/llama_server_flags.txt from `llama-server --help`, read from stdin.

    llama-server --help | python tools/llama_server_flags.py VERSION

A line per option: its names, how many values follow, and the environment variable that sets it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

DATA = Path(__file__).parents[1] / "tests" / "cli" / "data" / "llama_server_flags.txt"
HEAD = """\
# Options of llama-server: names, number of values, environment variable.
# Facts about llama.cpp (https://github.com/ggml-org/llama.cpp, MIT licence), {version}.
# Written by tools/llama_server_flags.py from the output of `llama-server --help`.
"""
NAME = re.compile(r"(-[-A-Za-z0-9.]+)(,\s+)?")
TWO = ("START END",)  # hints for two values


def rows(lines: Iterator[str]) -> Iterator[str]:
    """Yield a line of the data for each option in the output."""
    names, values, variable = [], 0, ""
    for line in lines:
        if line.startswith("-") and not line.startswith("-----"):
            if names:
                yield f"{' '.join(names)}\t{values}\t{variable}".rstrip()
            names, hint = _names(line.rstrip("\n"))
            values, variable = (2 if hint in TWO else 1) if hint else 0, ""
        match = re.search(r"\(env: (\w+)\)", line)
        if match:
            variable = match[1]
    if names:
        yield f"{' '.join(names)}\t{values}\t{variable}".rstrip()


def _names(line: str) -> tuple[list[str], str]:
    """Return an option's names, and the hint at its value."""
    names = []
    while match := NAME.match(line):
        names.append(match[1])
        line = line[match.end() :]
        if not match[2]:
            break
    hint = line[1:].partition("  ")[0] if re.match(r" \S", line) else ""
    return names, hint.strip()


if __name__ == "__main__":
    DATA.write_text(HEAD.format(version=sys.argv[1]) + "\n".join(rows(sys.stdin)) + "\n", "utf-8")
