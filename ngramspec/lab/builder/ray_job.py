"""What all tasks of a build on a cluster have in common, and what a host must have."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ngramspec._version import __version__
from ngramspec.errors import BackendError, InputError
from ngramspec.lab.builder.options import BuildOptions
from ngramspec.text.tokenizers import Tokenizer, load_tokenizer

_loaded: dict[str, Tokenizer] = {}  # of this process: the latest one


@dataclass(frozen=True)
class Job:
    """What all tasks of a build have in common.

    version: Of ngramspec where the build was started.
    tokenizer_path: Read if the bytes are not sent with a task.
    tokenizer_key: Changes when the file does.
    fingerprint: Of the tokenizer, 16 bytes.
    num_ranges: Parts of equal size into which the upper words of entries are cut.
    memory: Bytes that counting may take in a process.
    work: The work folder, which all hosts see.
    """

    version: str
    options: BuildOptions
    tokenizer_path: str
    tokenizer_key: str
    fingerprint: bytes
    num_ranges: int
    memory: int
    work: str


def check_host(paths: Sequence[str], job: Job) -> None:
    """Check that this host can take part.

    Raises:
        InputError: It has another version of ngramspec, or a path does not exist.
    """
    host = socket.gethostname()
    if __version__ != job.version:
        raise InputError(
            f"host {host} has ngramspec {__version__}, expected {job.version} as where the build "
            "was started"
        )
    for path in paths:
        if not os.path.exists(path):
            raise InputError(
                f"host {host} has no {path}: corpus, tokenizer and work folder must be under the "
                "same path on all hosts, on a shared file system"
            )


def tokenizer_of(job: Job, vocabulary: NDArray[np.uint8] | None) -> Tokenizer:
    """Return the tokenizer, loaded once per process.

    Raises:
        InputError: The host lacks its file, or has another one.
        BackendError: The host cannot load it.
    """
    if job.tokenizer_key not in _loaded:
        _loaded.clear()
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a task has one core
        try:
            tokenizer = _load(job, vocabulary)
        except BackendError as error:
            raise BackendError(f"host {socket.gethostname()}: {error}") from error
        if tokenizer.fingerprint.digest != job.fingerprint:
            host = socket.gethostname()
            raise InputError(f"host {host} has another tokenizer in {job.tokenizer_path}")
        _loaded[job.tokenizer_key] = tokenizer
    return _loaded[job.tokenizer_key]


def _load(job: Job, vocabulary: NDArray[np.uint8] | None) -> Tokenizer:
    if vocabulary is None:
        check_host([job.tokenizer_path], job)
        return load_tokenizer(job.tokenizer_path)
    with tempfile.NamedTemporaryFile() as file:
        file.write(vocabulary.data)
        file.flush()
        return load_tokenizer(file.name)
