"""Recorded requests from files: token ids by lines, or JSON records with text."""

from __future__ import annotations

import hashlib
import lzma
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ngramspec.bench.walk import RecordedRequest
from ngramspec.errors import FormatError, InputError

if TYPE_CHECKING:
    from ngramspec.bench.player import Tokens
    from ngramspec.tokenizers import Tokenizer

TOKEN_ENDINGS = (".txt.xz", ".txt")
RECORD_ENDINGS = (".jsonl.xz", ".jsonl")
ENDINGS = (*TOKEN_ENDINGS, *RECORD_ENDINGS)
MAX_TOKEN = 2**31 - 1


@dataclass(frozen=True)
class Trace:
    """A set of requests in the order in which they came."""

    name: str
    requests: tuple[RecordedRequest, ...]

    def digest(self) -> str:
        """Return a digest of the tokens, 16 hexadecimal digits."""
        made = hashlib.sha256()
        for line in token_lines(self.requests):
            made.update(line.encode())
        return made.hexdigest()[:16]


@dataclass(frozen=True)
class Cut:
    """Which part of a set is replayed; 0 = all.

    limit: its first requests.
    max_prompt: the last tokens of each prompt.
    max_output: the first tokens of each output.
    """

    limit: int = 0
    max_prompt: int = 12_000
    max_output: int = 1_200

    def apply(self, requests: Iterable[RecordedRequest]) -> tuple[RecordedRequest, ...]:
        """Return the cut requests that can be replayed: a prompt and two output tokens or more."""
        cut = (
            RecordedRequest(one.prompt[-self.max_prompt :], one.output[: self.max_output or None])
            for one in requests
        )
        usable = (one for one in cut if len(one.prompt) and len(one.output) > 1)
        return tuple(islice(usable, self.limit or None))


def find_traces(paths: Sequence[Path]) -> list[Path]:
    """Return the trace files that the paths name: themselves, or all in a folder by name.

    Raises:
        InputError: A file of another kind, a folder without traces, or two sets of one name.
        FileNotFoundError: A path does not exist.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.name.endswith(ENDINGS))
            if not inside:
                raise InputError(f"{path}: no traces (*{', *'.join(ENDINGS)})")
            found += inside
        elif not path.exists():
            raise FileNotFoundError(2, "No such file or directory", str(path))
        elif not path.name.endswith(ENDINGS):
            raise InputError(f"{path}: the name must end with {', '.join(ENDINGS)}")
        else:
            found.append(path)
    seen: dict[str, Path] = {}
    for path in found:
        other = seen.setdefault(set_name(path), path)
        if other != path:
            raise InputError(f"{path} and {other} are two sets of one name")
    return list(seen.values())


def set_name(path: Path) -> str:
    """Return the name of the set in a file."""
    return next(path.name.removesuffix(end) for end in ENDINGS if path.name.endswith(end))


def load_trace(path: Path, tokenizer: Tokenizer | None = None, cut: Cut | None = None) -> Trace:
    """Read a set.

    Args:
        path: NAME.txt.xz or NAME.txt with token ids, NAME.jsonl.xz or NAME.jsonl with text.
        tokenizer: The target's, for text.
        cut: What to keep of it.

    Raises:
        InputError: Text without a tokenizer.
        FormatError: The file is damaged or not a trace; the message names the line.
        BackendError: The tokenizer refuses a text.
        OSError: It cannot be read.
    """
    cut = cut or Cut()
    lines = _lines(path)
    if path.name.endswith(TOKEN_ENDINGS):
        requests = read_tokens(lines, str(path))
    elif tokenizer is None:
        raise InputError(f"{path} holds text: give the target's tokenizer with --tokenizer")
    else:
        from ngramspec.bench.records import read_records

        requests = read_records(lines, str(path), tokenizer)
    kept = cut.apply(requests)
    if not kept:
        raise FormatError(f"{path}: no request with a prompt and two output tokens")
    return Trace(set_name(path), kept)


def load_traces(
    paths: Sequence[Path],
    tokenizer_file: str | os.PathLike[str] | None = None,
    cut: Cut | None = None,
    *,
    advance: Callable[[], object] = lambda: None,
) -> list[Trace]:
    """Read sets.

    Args:
        paths: Their files, see find_traces.
        tokenizer_file: GGUF file or tokenizer.json of the target, for sets with text.
        cut: What to keep of each set.
        advance: Called after each set.

    Raises:
        As load_trace and load_tokenizer.
    """
    from ngramspec.tokenizers import load_tokenizer

    tokenizer = None if tokenizer_file is None else load_tokenizer(tokenizer_file)
    traces = []
    try:
        for path in paths:
            traces.append(load_trace(path, tokenizer, cut))
            advance()
    finally:
        if tokenizer is not None:
            tokenizer.close()
    return traces


def token_lines(requests: Iterable[RecordedRequest]) -> Iterator[str]:
    """Yield requests as lines: prompt length, prompt ids, output ids."""
    for request in requests:
        ids = (len(request.prompt), *request.prompt.tolist(), *request.output.tolist())
        yield " ".join(map(str, ids)) + "\n"


def read_tokens(lines: Iterable[str], where: str) -> Iterator[RecordedRequest]:
    """Yield the requests of such lines; empty ones are skipped.

    Raises:
        FormatError: A line is not a request.
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield _read_line(line)
            except (ValueError, OverflowError) as error:
                raise FormatError(f"{where}, line {number}: {error}") from None


def _read_line(line: str) -> RecordedRequest:
    ids = np.array(line.split(), dtype=np.int64)
    prompt_len = int(ids[0])
    if not 0 <= prompt_len < len(ids):
        raise ValueError(f"a prompt of {prompt_len} tokens in a line of {len(ids) - 1}")
    if ids.min() < 0 or ids.max() > MAX_TOKEN:
        raise ValueError(f"token ids must be 0..{MAX_TOKEN}")
    tokens: Tokens = ids[1:].astype(np.int32)
    return RecordedRequest(tokens[:prompt_len].copy(), tokens[prompt_len:].copy())


def _lines(path: Path) -> Iterator[str]:
    with (
        lzma.open(path, "rt", encoding="utf-8")
        if path.suffix == ".xz"
        else path.open(encoding="utf-8") as file
    ):
        try:
            yield from file
        except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
            raise FormatError(f"{path}: {error}") from None
