"""GGUF headers and tokenizer.json: refused with the offset, or read within the size of the file."""

from __future__ import annotations

import json
import random
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fuzz import json_inputs
from fuzz.target import Finding, Run, Target
from ngramspec.errors import FormatError
from ngramspec.text.tokenizers.fingerprint import fingerprint_of, read_gguf_tokens
from ngramspec.text.tokenizers.gguf import is_gguf, read_metadata
from ngramspec.text.tokenizers.llama_vocabulary import check_vocabulary

MOST_SECONDS = 5.0  # of processor time for 4 KB
ODD = (0, 1, 7, 8, 9, 12, 13, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)
MEMBERS = {
    "model": ({"vocab": {"a": 0}}, {"vocab": [["a", 0.0]]}, {"vocab": {}, "type": "WordPiece"}),
    "vocab": ({"a": 0, "b": 1}, {"a": 2**31}, [["a", -1.0]]),
    "type": ("WordPiece", "BPE", "Unigram"),
    "added_tokens": ([{"id": 2, "content": "<s>"}], [{"id": 10**9, "content": ""}]),
    "id": (0, 1, 2**20, 2**31),
    "content": ("<s>", ""),
    "continuing_subword_prefix": ("##", ""),
    "a": (0, 1),
}


@contextmanager
def opened() -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")

        def run(data: bytes) -> None:
            path.write_bytes(data)
            started = time.process_time()
            try:
                read(path)
            finally:
                if time.process_time() - started > MOST_SECONDS:
                    raise Finding("a small file takes seconds")

        yield run


def read(path: Path) -> None:
    """Read a file in every way that there is."""
    for call in (
        lambda: fingerprint_of(path),
        lambda: check_vocabulary(path, *read_gguf_tokens(path)),
        lambda: read_metadata(path, lambda name: True),
        lambda: read_metadata(path, lambda name: False),
    ):
        try:
            call()
        except FormatError as error:
            if str(path) not in str(error):
                raise Finding("the error does not name the file") from error
    is_gguf(path)


def header(*keys: bytes, version: int = 3, num_tensors: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, len(keys)) + b"".join(keys)


def key(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def strings(*texts: bytes) -> bytes:
    packed = b"".join(struct.pack("<Q", len(text)) + text for text in texts)
    return struct.pack("<IQ", 8, len(texts)) + packed


def seeds() -> Iterator[bytes]:
    """Yield files with keys of every type."""
    model = key("tokenizer.ggml.model", 8, struct.pack("<Q", 4) + b"gpt2")
    yield header(model, key("tokenizer.ggml.tokens", 9, strings(b"a", b"", b"<s>", b"\xff")))
    numbers = [
        key(f"n{kind}", kind, bytes(size)) for kind, size in enumerate((1, 1, 2, 2, 4, 4, 4, 1))
    ]
    yield header(*numbers, *(key(f"w{kind}", kind, b"\x01" * 8) for kind in (10, 11, 12)))
    nested = struct.pack("<IQ", 9, 2) + 2 * (struct.pack("<IQ", 4, 1) + bytes(4))
    yield header(key("nested", 9, nested), key("f", 9, struct.pack("<IQ", 6, 2) + bytes(8)))
    yield json.dumps({"model": {"vocab": {"a": 0, "##b": 1}, "type": "WordPiece"},
                      "added_tokens": [{"id": 2, "content": "<s>"}]}).encode()  # fmt: skip


def mutate(data: bytes, most: int, seed: int, plain: Callable[[bytes, int], bytes]) -> bytes:
    rng = random.Random(seed)
    if data[:1] == b"{":
        return json_inputs.mutation(MEMBERS)(data, most, seed, plain)
    mutant = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 3])):
        at, choice = rng.randint(0, max(0, len(mutant) - 8)), rng.randrange(6)
        if choice == 0:
            mutant[at : at + 8] = struct.pack("<Q", rng.choice(ODD))
        elif choice == 1:
            mutant[at : at + 4] = struct.pack("<I", rng.choice(ODD) & 0xFFFFFFFF)
        elif choice == 2:
            mutant[at:at] = mutant[at : at + rng.choice([1, 4, 8, 40])]
        elif choice == 3:
            del mutant[at : at + rng.choice([1, 4, 8, 40])]
        elif choice == 4 and len(mutant) >= 24:
            (number,) = struct.unpack_from("<Q", mutant, 16)
            struct.pack_into("<Q", mutant, 16, (number + rng.choice([-1, 1, 2])) & (2**64 - 1))
        else:
            mutant = bytearray(plain(bytes(mutant), most))
    return bytes(mutant[:most])


TARGET = Target(
    opened=opened,
    instrumented=("ngramspec.text.tokenizers",),
    mutate=mutate,
    more_seeds=seeds,
    rss_mib=1024,
)
