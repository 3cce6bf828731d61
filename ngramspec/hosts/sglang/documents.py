"""Documents: the texts of SGLang's external corpora, and one index over all of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ngramspec._native.files.suffix_image import SuffixImage
from ngramspec._native.suffix.index import SuffixIndex
from ngramspec.errors import InputError
from ngramspec.files.suffix_file import FILL

SEPARATOR = -(2**31)  # what SGLang puts between the texts of a corpus
BORDER = -1  # after each text in our arrays
log = logging.getLogger("ngramspec")
Ids = npt.NDArray[np.int32]


class Documents:
    """Corpora by name. Loading runs in any thread; the rest in the one that drafts."""

    def __init__(self) -> None:
        self._texts: dict[str, tuple[Ids, int]] = {}  # with the number of tokens that SGLang counts
        self._staged: dict[str, tuple[Ids, int]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._index: SuffixIndex | None = None
        self._version = 0  # changes with the texts
        self._indexed = 0  # version of the texts in the index

    @property
    def index(self) -> SuffixIndex | None:
        """Return the index over all corpora; None while there are none, or it is being rebuilt."""
        with self._lock:
            return self._index if self._indexed == self._version else None

    @property
    def num_tokens(self) -> int:
        return sum(self.sizes().values())

    def sizes(self) -> dict[str, int]:
        """Return the tokens of each corpus by name."""
        with self._lock:
            return {name: count for name, (_, count) in self._texts.items()}

    def stage(self, name: str, chunks: Iterable[Sequence[int]], room: int) -> int:
        """Stage a corpus; commit() makes it known.

        Args:
            name: Of the corpus; must be new.
            chunks: Token ids, SEPARATOR between texts.
            room: Most tokens.

        Returns:
            int: Its number of tokens, separators included.

        Raises:
            InputError: The name is taken, there are no or too many tokens, or one is negative.
        """
        if name in self._texts:
            raise InputError(f"external corpus {name!r} already exists; remove it first")
        parts: list[Ids] = []
        count = 0
        for chunk in chunks:
            part = np.array(chunk, np.int32)
            count += len(part)
            if count > room:
                raise InputError(f"external corpus {name!r} has more than the {room} tokens left")
            parts.append(part)
        tokens = np.concatenate([*parts, np.array([BORDER], np.int32)])
        if ((tokens[:-1] < 0) & (tokens[:-1] != SEPARATOR)).any():
            raise InputError(f"external corpus {name!r} holds a negative token id")
        if not (tokens >= 0).any():
            raise InputError(f"external corpus {name!r} is empty")
        tokens[tokens == SEPARATOR] = BORDER
        self._staged[name] = (tokens, count)
        return count

    def commit(self, name: str) -> None:
        """Make a staged corpus known, and rebuild the index in the background."""
        staged = self._staged.pop(name, None)
        if staged is not None:
            with self._lock:
                self._texts[name] = staged
            self._changed()

    def remove(self, name: str) -> None:
        """Forget a corpus; an unknown name does nothing."""
        with self._lock:
            removed = self._texts.pop(name, None) is not None
        if removed:
            self._changed()

    def wait(self) -> None:
        """Wait until the index is made. For tests, and for loading before requests come."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _changed(self) -> None:
        with self._lock:
            self._version += 1
            texts = [tokens for tokens, _ in self._texts.values()]
            if not texts:
                self._index, self._indexed = None, self._version
                return
        self._thread = threading.Thread(
            target=self._make, args=(texts, self._version), daemon=True
        )  # fmt: skip
        self._thread.start()

    def _make(self, texts: list[Ids], version: int) -> None:
        try:
            index = make_index(np.concatenate(texts))
        except Exception:  # of any kind: the engine must go on
            log.exception("external corpora cannot be indexed, and nothing is drafted from them")
            return
        with self._lock:
            if version == self._version:
                self._index, self._indexed = index, version


def make_index(tokens: Ids) -> SuffixIndex:
    """Return an index over texts in memory, each followed by -1.

    Raises:
        InputError: There are no tokens, or too many.

    Cost: O(n log n). Releases the GIL for most of it.
    """
    image = SuffixImage(tokens)
    num_lines = image.num_words() // FILL + 1
    lines = image.lines(num_lines, 0, num_lines)
    vocab_size = image.largest_token + 1
    return SuffixIndex(
        tokens, lines, image.position_bits, vocab_size, "external corpora", None, image.num_texts
    )
