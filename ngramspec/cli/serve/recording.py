"""Options for recording requests, and the recorder that they ask for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ngramspec.cli.options import FILE, Decorator, SizeType, option, options
from ngramspec.cli.output import size_text
from ngramspec.cli.told import tell
from ngramspec.lab.recordings.writer import LEAST_BYTES

if TYPE_CHECKING:
    from contextlib import ExitStack

    from ngramspec.server import ServerSettings
    from ngramspec.server.recorder import Recorder
    from ngramspec.text.tokenizers import Fingerprint

SECTION = "Recording"


def recording_options() -> Decorator:
    """Return the options."""
    return options(
        option(SECTION, "--record", type=FILE, metavar="FILE",
               help="Write every request and its answer to FILE, as token ids, for `bench "
               "replay` and `build-cache`. It holds what users write: only its owner can read it."
               "  [default: nothing is recorded]"),
        option(SECTION, "--record-max", type=SizeType(LEAST_BYTES), default="1G", metavar="SIZE",
               help="Largest size of what is recorded. At half of it FILE becomes NAME.1.jsonl, in "
               "place of the one before, and a new FILE begins."),
    )  # fmt: skip


def open_recorder(
    options: Mapping[str, Any],
    settings: ServerSettings,
    stack: ExitStack,
    *,
    model: str,
    tokenizer: Callable[[], Fingerprint],
    drafter: str,
) -> Recorder | None:
    """Return the recorder that the options ask for, None without --record.

    Args:
        options: Those of `serve`.
        settings: Those of the server.
        stack: Closes it.
        model: The model's name.
        tokenizer: Returns the fingerprint of its tokenizer.
        drafter: What drafts for requests that ask for nothing else.

    Raises:
        As RecordFile.
    """
    from ngramspec.lab.recordings.record import Head
    from ngramspec.lab.recordings.writer import RecordFile
    from ngramspec.server.recorder import Recorder

    path = options["record"]
    if path is None:
        return None
    fingerprint = tokenizer()
    head = Head(
        model=model,
        tokenizer=str(fingerprint),
        vocab_size=fingerprint.vocab_size,
        drafter=drafter,
        started=round(time.time(), 3),
        apart=settings.isolates,
    )
    file = RecordFile(path, head, options["record_max"])
    recorder = Recorder(file, drafter)

    def close() -> None:
        if not recorder.close():
            tell(f"{path}: the last requests could not be written in time")

    stack.callback(close)
    most = size_text(options["record_max"])
    tell(
        f"recording all requests and answers to {path}, {most} at most: it holds what users write, "
        "and only its owner can read it"
    )
    return recorder
