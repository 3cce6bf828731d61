"""Read recorded requests from a file of any format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ngramspec.errors import InputError
from ngramspec.lab.recordings.chats import items_of_lines, items_of_text, read_chats
from ngramspec.lab.recordings.formats import CHATS, LLAMA_LOG, TOKENS, Source
from ngramspec.lab.recordings.lines import Bad, read_all, read_lines, refuse
from ngramspec.lab.recordings.llama_log import LlamaLog
from ngramspec.lab.recordings.request import RecordedRequest
from ngramspec.lab.recordings.requests import RequestReader
from ngramspec.lab.recordings.token_lines import read_token_lines
from ngramspec.text.tokenizers import Fingerprint, Tokenizer


@dataclass
class Recording:
    """The requests of a file, while they are read and after.

    Args:
        source: From `recognise`.
        tokenizer: Returns the target's; called for text only. None = there is none.
        fingerprint: The target's fingerprint, to check whose token ids they are; None = not known.
        bad: Is told of wrong lines; None = the first one raises FormatError.

    heads: Heads of a file that a server wrote.
    """

    source: Source
    tokenizer: Callable[[], Tokenizer] | None = None
    fingerprint: Fingerprint | None = None
    bad: Bad | None = None
    heads: list[dict[str, Any]] = field(default_factory=list)
    _log: LlamaLog | None = None

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
        elif format == LLAMA_LOG:
            self._log = LlamaLog(self._needed())
            yield from self._log.read(lines, bad)
        else:
            reader = RequestReader(str(path), self._needed, self.fingerprint)
            self.heads = reader.heads
            yield from reader.read(lines, bad)

    def notes(self) -> list[str]:
        """Return what the file lacks, once it is read."""
        return [] if self._log is None else list(self._log.notes())

    def _needed(self) -> Tokenizer:
        if self.tokenizer is None:
            raise InputError(
                f"{self.source.path} holds text: give the target's tokenizer with --tokenizer"
            )
        return self.tokenizer()
