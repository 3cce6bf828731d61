"""Sets of recorded requests, from files of any format."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.errors import FormatError, InputError
from ngramspec.lab.recordings import RecordedRequest
from ngramspec.lab.recordings.chats import items_of_lines, items_of_text, read_chats
from ngramspec.lab.recordings.formats import CHATS, TOKENS, InputFile, recognise
from ngramspec.lab.recordings.lines import (
    PACKED,
    Bad,
    collect,
    read_all,
    read_lines,
    read_token_lines,
    refuse,
    token_lines,
)
from ngramspec.lab.recordings.record import RequestReader
from ngramspec.text.tokenizers import Fingerprint, Tokenizer

if TYPE_CHECKING:
    from ngramspec.lab.corpus.problems import Problems
    from ngramspec.text.tokenizers import Fingerprint, Tokenizer

NOTHING = "no request with a prompt and two output tokens"
PACKED_ENDINGS = ("", *PACKED)
ENDINGS = (".txt", ".jsonl", ".json", ".log")
IN_FOLDERS = (".txt", ".jsonl", ".log")  # of a folder that may hold other files too
FOLDER_ENDINGS = tuple(ending + packed for ending in IN_FOLDERS for packed in PACKED_ENDINGS)


@dataclass(frozen=True)
class Trace:
    """A set of requests in the order in which they came.

    decided: What their server decided on drafts, by whose these were: tokens sent and right ones
        of each pass.
    """

    name: str
    requests: tuple[RecordedRequest, ...]
    decided: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)

    def digest(self) -> str:
        """Return a digest of the tokens, 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for line in token_lines(self.requests):
            digest.update(line.encode())
        return digest.hexdigest()[:16]


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
            dataclasses.replace(
                one,
                prompt=one.prompt[-self.max_prompt :].copy(),
                output=one.output[: self.max_output or None],
            )
            for one in requests
        )
        usable = (one for one in cut if len(one.prompt) and len(one.output) > 1)
        return tuple(islice(usable, self.limit or None))


@dataclass(frozen=True)
class Loaded:
    """A file that was read.

    sets: One, or one for each key where what is learned from one key is not used for another.
    """

    source: InputFile
    sets: tuple[Trace, ...]
    heads: tuple[Mapping[str, Any], ...] = ()

    @property
    def tokenizers(self) -> set[Fingerprint]:
        from ngramspec.text.tokenizers import Fingerprint

        return {
            Fingerprint(bytes.fromhex(head["tokenizer"]), int(head["vocab_size"]))
            for head in self.heads
            if head.get("tokenizer")
        }

    @property
    def about(self) -> str:
        """What was recognised, as a line."""
        count = sum(len(one.requests) for one in self.sets)
        keys = f" of {len(self.sets)} keys" if len(self.sets) > 1 else ""
        return f"{self.source.path}: {self.source.about}: {count} to replay{keys}"


def find_traces(paths: Sequence[Path]) -> list[Path]:
    """Return the files that the paths name: themselves, or all in a folder by name.

    Raises:
        InputError: A folder without traces, two sets of one name, or standard input or a pipe.
        FileNotFoundError: A path does not exist.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(
                file
                for file in path.iterdir()
                if file.name.endswith(FOLDER_ENDINGS)
                and (file.is_file() or not file.exists())  # a broken link fails where it is read
            )
            if not inside:
                raise InputError(f"{path}: no traces (*{', *'.join(IN_FOLDERS)}, also packed)")
            files += inside
        else:
            _check_readable_twice(path)
            files.append(path)
    seen: dict[str, Path] = {}
    for path in files:
        other = seen.setdefault(set_name(path), path)
        if other != path:
            raise InputError(f"{path} and {other} are two sets of one name")
    return list(seen.values())


def _check_readable_twice(path: Path) -> None:
    """Refuse standard input and pipes: recognising the format would take the start of them."""
    from ngramspec.lab.corpus.inputs import STDIN

    is_stdin = str(path) == STDIN
    if not is_stdin and not path.exists():
        raise FileNotFoundError(2, "No such file or directory", str(path))
    if is_stdin or not path.is_file():
        raise InputError(
            f"{'standard input' if is_stdin else path} is no file: recorded requests are read more "
            "than once, name a file that holds them"
        )


def set_name(path: Path) -> str:
    name = path.name
    for ending in PACKED:
        name = name.removesuffix(ending)
    return next((name.removesuffix(end) for end in ENDINGS if name.endswith(end)), name)


def load_traces(
    paths: Sequence[Path],
    tokenizer_file: str | os.PathLike[str] | None = None,
    cut: Cut | None = None,
    *,
    advance: Callable[[], object] = lambda: None,
) -> list[Trace]:
    """Read sets; the first wrong line ends it.

    Args:
        paths: Their files, see find_traces.
        tokenizer_file: GGUF file or tokenizer.json of the target, for sets with text.
        cut: What to keep of each set.
        advance: Called after each file.

    Raises:
        As load_files and load_tokenizer.
    """
    from ngramspec.text.tokenizers import load_tokenizer

    if tokenizer_file is None:
        files = load_files(paths, None, cut, advance=advance)
    else:
        with contextlib.closing(load_tokenizer(tokenizer_file)) as one:
            files = load_files(
                paths, lambda: one, cut, fingerprint=one.fingerprint, advance=advance
            )
    return [trace for loaded in files for trace in loaded.sets]


def load_files(
    paths: Sequence[Path],
    tokenizer: Callable[[], Tokenizer] | None = None,
    cut: Cut | None = None,
    *,
    format: str | None = None,
    keys: Sequence[str] = (),
    fingerprint: Fingerprint | None = None,
    problems: Problems | None = None,
    advance: Callable[[], object] = lambda: None,
) -> list[Loaded]:
    """Read files of recorded requests.

    Args:
        paths: The files, see find_traces.
        tokenizer: Returns the target's; called if there is text. None = there is none.
        cut: What to keep of each set.
        format: Of all files, None = as each is recognised.
        keys: Of the requests to read, () = all.
        fingerprint: The target's fingerprint; files that state another one are refused.
        problems: Collects wrong lines, which are left out; None = the first one raises.
        advance: Called after each file.

    Raises:
        InputError: Text without a tokenizer.
        FormatError: A file is damaged, not recognised, or holds no request to replay.
        VocabMismatchError: A file was recorded with another tokenizer.
        BackendError: The tokenizer refuses a text.
        OSError: A file cannot be read.
    """
    loaded = []
    for path in paths:
        bad = None if problems is None else collect(path, problems)
        recording = Recording(recognise(path, format), tokenizer, fingerprint, bad)
        requests = (one for one in recording if not keys or one.key in keys)
        sets = _by_key(set_name(path), (cut or Cut()).apply(requests))
        if len(sets) == 1:  # else nobody knows whose they are
            sets = (dataclasses.replace(sets[0], decided=recording.decided),)
        if not sets:
            raise FormatError("; ".join([f"{path}: {NOTHING}", *_first(problems)]))
        loaded.append(Loaded(recording.source, sets, tuple(recording.heads)))
        advance()
    return loaded


def _by_key(name: str, requests: Sequence[RecordedRequest]) -> tuple[Trace, ...]:
    by_key: dict[str, list[RecordedRequest]] = {}
    for request in requests:
        by_key.setdefault(request.key if request.apart else "", []).append(request)
    names = {key: f"{name} key {key}" if key else name for key in by_key}
    return tuple(Trace(names[key], tuple(some)) for key, some in by_key.items())


def _first(problems: Problems | None) -> list[str]:
    return [] if problems is None or not problems.first else [str(problems.first[0])]


@dataclass
class Recording:
    """The requests of a file, while they are read and after.

    Args:
        source: From `recognise`.
        tokenizer: Returns the target's; called for text only. None = there is none.
        fingerprint: The target's fingerprint, to check whose token ids they are; None = not known.
        bad: Is told of wrong lines; None = the first one raises FormatError.

    heads: Heads of a file that a server wrote.
    decided: As of Trace.
    """

    source: InputFile
    tokenizer: Callable[[], Tokenizer] | None = None
    fingerprint: Fingerprint | None = None
    bad: Bad | None = None
    heads: list[dict[str, Any]] = field(default_factory=list)
    decided: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[RecordedRequest]:
        """Yield the requests in the order of the file.

        Raises:
            InputError: It holds text, and there is no tokenizer.
            FormatError: The file is damaged, or a line is wrong and `bad` is None.
            VocabMismatchError: It was recorded with another tokenizer.
            BackendError: The tokenizer refuses a text.
            OSError: It cannot be read.
        """
        path, format = self.source.path, self.source.format
        bad = refuse(path) if self.bad is None else self.bad
        lines = read_lines(path, bad)
        if format == TOKENS:
            yield from read_token_lines(lines, bad)
        elif format == CHATS:
            whole = self.source.whole
            items = items_of_text(read_all(path), bad) if whole else items_of_lines(lines, bad)
            yield from read_chats(items, self._needed(), bad)
        else:
            reader = RequestReader(str(path), self.fingerprint)
            self.heads, self.decided = reader.heads, reader.decided
            yield from reader.read(lines, bad)

    def _needed(self) -> Tokenizer:
        if self.tokenizer is None:
            raise InputError(
                f"{self.source.path} holds text: give the target's tokenizer with --tokenizer"
            )
        return self.tokenizer()
