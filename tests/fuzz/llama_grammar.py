"""llama.cpp's own grammar engine in a child process: what it takes, and what it allows.

As a program: loads the embedded model's vocabulary once and forks for every grammar, so that one
that ends, hangs or fills the process is told like any other.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec._native.hosts import llama as native_llama

SECONDS = 20  # of processor time per grammar, where it should take milliseconds
MEMORY = 4 << 30  # address space
STEPS = 20  # tokens written at most


@dataclass(frozen=True)
class Verdict:
    """What llama.cpp did with a grammar.

    taken: It parsed it.
    died: How the process ended instead of answering, "" if it did not.
    log: What its log says, if it did not take it.
    tokens: What was written by it, whole characters at a time.
    masks: What could have come next, before each of these tokens and after the last.
    """

    taken: bool
    died: str = ""
    log: bytes = b""
    tokens: list[int] = field(default_factory=list)
    masks: list[npt.NDArray[np.bool_]] = field(default_factory=list)


class Child:
    """Asks llama.cpp in a process of its own; close it at the end."""

    def __init__(self) -> None:
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )

    def ask(self, grammar: str, choices: bytes = b"", seconds: int = SECONDS) -> Verdict:
        """Return what llama.cpp does with a grammar.

        choices: Say which tokens are written.
        seconds: Of processor time, after which it dies.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for part in (grammar.encode(), choices, b"%d" % seconds):
            self._process.stdin.write(struct.pack("<I", len(part)) + part)
        self._process.stdin.flush()
        head = self._process.stdout.read(8)
        assert len(head) == 8, "the grammar child is gone"
        status, size = struct.unpack("<iI", head)
        answer = self._process.stdout.read(size)
        if status or not answer:
            return Verdict(False, _cause(status) or "no answer")
        if answer[:1] == b"-":
            return Verdict(False, "", answer[1:])
        size, count = struct.unpack("<II", answer[1:9])
        steps = np.frombuffer(answer[9:], np.int32).reshape(count, size + 1)
        return Verdict(True, "", b"", steps[:-1, 0].tolist(), list(steps[:, 1:] > 0))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def _cause(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"signal {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit {os.WEXITSTATUS(status)}" if status else ""


def main() -> None:
    from ngramspec.llamacpp.model import LlamaModel
    from ngramspec.models import embedded_model

    model = Vocabulary(LlamaModel(embedded_model(), vocab_only=True))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while True:
        parts = []
        for _ in range(3):
            head = source.read(4)
            if len(head) < 4:
                return
            parts.append(source.read(struct.unpack("<I", head)[0]))
        status, answer = forked(model, parts[0], parts[1], int(parts[2]))
        sink.write(struct.pack("<iI", status, len(answer)) + answer)
        sink.flush()


def forked(model: Vocabulary, grammar: bytes, choices: bytes, seconds: int) -> tuple[int, bytes]:
    """Return the exit status of a fork that follows a grammar, and what it told."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            os.write(writing, followed(model, grammar, choices))
            os._exit(0)
        finally:
            os._exit(70)
    os.close(writing)
    answer = b""
    while part := os.read(reading, 1 << 16):
        answer += part
    os.close(reading)
    return os.waitpid(child, 0)[1], answer


class Vocabulary:
    """What a writer must know of every token, worked out once."""

    def __init__(self, model: Any) -> None:
        self.lib, self.address, self.model = model.library.lib, model.vocabulary.address, model
        # With special tokens as text, which is how a grammar sees them.
        self.pieces = [model.piece(token, True) for token in range(model.vocab_size)]
        self.ends = np.array([model.is_end(token) for token in range(model.vocab_size)])
        self.whole = np.array([is_whole(piece) for piece in self.pieces]) & ~self.ends


def is_whole(piece: bytes) -> bool:
    """Tell whether a token's text is made of whole characters."""
    try:
        return bool(piece.decode())
    except UnicodeDecodeError:
        return False


def followed(vocabulary: Vocabulary, grammar: bytes, choices: bytes) -> bytes:
    """Return "-" and why llama.cpp refuses, or "+" and its steps: a token, and what was allowed."""
    lib = vocabulary.lib
    position = native_llama.log_position()
    sampler = lib.llama_sampler_init_grammar(vocabulary.address, grammar, b"root")
    if not sampler:
        return b"-" + "; ".join(native_llama.log_since(position)).encode()
    size = len(vocabulary.pieces)
    layout = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
    rng, steps = random.Random(choices), []
    for _ in range(STEPS):
        rows = np.zeros(size, layout)
        rows["id"] = np.arange(size)
        data = rows.ctypes.data_as(ctypes.POINTER(lib.llama_token_data))
        array = lib.llama_token_data_array(data=data, size=size, selected=-1, sorted=False)
        lib.llama_sampler_apply(sampler, ctypes.byref(array))
        allowed = np.isfinite(rows["logit"])
        going = np.flatnonzero(allowed & vocabulary.whole)
        token = int(rng.choice(going)) if len(going) else -1
        steps.append(np.concatenate([[token], allowed]).astype(np.int32))
        if token < 0:
            break
        lib.llama_sampler_accept(sampler, token)
    return b"+" + struct.pack("<II", size, len(steps)) + b"".join(step.tobytes() for step in steps)


if __name__ == "__main__":
    main()
