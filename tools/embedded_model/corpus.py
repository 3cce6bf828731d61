"""The training text: functions and docstrings of CPython's own standard library (PSF licence)."""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SKIPPED = {"test", "tests", "idle_test", "site-packages", "__pycache__"}
TOPICS = "topics.py"  # of pydoc_data: chapters of the language reference as strings
PIECE = 600  # characters of a chapter that are one text, about


@dataclass(frozen=True)
class Function:
    """One function: its name and its dedented source."""

    name: str
    source: str


@dataclass
class Corpus:
    """Functions and prose of one split, with the modules' full text for the tokenizer."""

    functions: list[Function] = field(default_factory=list)
    prose: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)


def held_out(text: str, share: int = 40) -> bool:
    """Say by a hash of the text alone whether it belongs to the evaluation (one in `share`)."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % share == 0


def module_paths(root: Path | None = None) -> list[Path]:
    """List the library's modules in a fixed order, tests left out."""
    root = root or Path(sysconfig.get_paths()["stdlib"])
    paths = (p for p in root.rglob("*.py") if not SKIPPED & set(p.relative_to(root).parts))
    return sorted(paths)


def _functions(tree: ast.Module, lines: list[str]) -> Iterator[Function]:
    parents: list[ast.Module | ast.ClassDef] = [tree]
    parents += [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for parent in parents:
        for node in parent.body:
            if isinstance(node, ast.FunctionDef):
                source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                yield Function(node.name, source.rstrip())


def _prose(tree: ast.Module) -> Iterator[str]:
    nodes: list[ast.Module | ast.ClassDef] = [tree]
    nodes += [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for node in nodes:
        text = ast.get_docstring(node)
        if text and 150 <= len(text) <= 3000:
            yield text


def _chapters(tree: ast.Module) -> Iterator[str]:
    """Yield pieces of the long strings of a module: whole paragraphs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            piece = ""
            for paragraph in node.value.split("\n\n"):
                piece += "\n\n" * bool(piece) + paragraph.strip("\n")
                if len(piece) >= PIECE:
                    yield piece[:3000]
                    piece = ""


def load_corpus(split: str = "train", root: Path | None = None) -> Corpus:
    """Read the standard library and keep what belongs to `split` ("train" or "eval")."""
    if split not in ("train", "eval"):
        raise ValueError(f"unknown split: {split!r}")
    corpus, seen = Corpus(), set()
    for path in module_paths(root):
        try:
            text = path.read_text("utf-8")
            tree = ast.parse(text)
        except (SyntaxError, UnicodeDecodeError):
            continue
        if path.name == TOPICS:
            prose = _chapters(tree)
        else:
            corpus.modules.append(text)
            prose = _prose(tree)
        for function in _functions(tree, text.splitlines()):
            if 80 <= len(function.source) <= 2400 and function.source not in seen:
                seen.add(function.source)
                if held_out(function.source) == (split == "eval"):
                    corpus.functions.append(function)
        for text in prose:
            if text not in seen:
                seen.add(text)
                if held_out(text) == (split == "eval"):
                    corpus.prose.append(text)
    return corpus
