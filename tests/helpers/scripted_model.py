"""A model that says what a test wants, for the engine and for the server: no GGUF, no llama.cpp.

Its tokens are bytes. Behind ANSWER, with which its chats end, it continues with its script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from helpers.fake_target import FakeTarget
from ngramspec.arrays import TokenIds
from ngramspec.engine import Sampling

ANSWER = "\nassistant:"
END = 256


class ScriptedTarget(FakeTarget):
    """Implements ngramspec.engine.Target.

    samplings: What was asked of it so far.
    """

    def __init__(self, script: str) -> None:
        super().__init__(vocab_size=257, context_size=2048, max_batch=512, sequences=2)
        self.script = script.encode()
        self.samplings: list[Sampling] = []

    def next_token(self, tokens: list[int]) -> int:
        tail = bytes(tokens).rpartition(ANSWER.encode())[2]
        return self.script[len(tail)] if len(tail) < len(self.script) else END

    def sampler(self, sampling: Sampling, seed: int) -> Any:
        self.samplings.append(sampling)
        return super().sampler(sampling, seed)

    def piece(self, token_id: int, special: bool) -> bytes:
        return bytes([token_id]) if token_id < END else b""

    def is_end(self, token_id: int) -> bool:
        return token_id == END


class ScriptedModel:
    """Implements ngramspec.server.ChatModel; the template only tells its formats."""

    path, file_size, file_time_ns = Path("scripted.bin"), 1, 10**18
    description, file_type, file_type_name, n_gpu_layers = "a script", 0, "F32", 0
    num_params, size_bytes, n_ctx_train, vocab_size = 1, 1, 2048, 257
    add_bos = False
    bos = fim_pre = fim_suf = fim_mid = fim_rep = fim_sep = -1
    eos = END
    architecture = "script"

    def __init__(self, template: str) -> None:
        self.chat_template: str | None = template
        self.tool_template: str | None = None
        self.metadata: dict[str, str] = {}

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> TokenIds:
        return np.frombuffer(text.encode("utf-8", "replace"), np.uint8).astype(np.int32)

    def least_tokens(self, text: str) -> int:
        return len(text.encode("utf-8", "replace"))

    def tokenize_prompt(self, text: str) -> TokenIds:
        return self.tokenize(text)

    def detokenize(self, token_ids: Sequence[int] | TokenIds, special: bool = False) -> str:
        return b"".join(map(self.piece, token_ids)).decode("utf-8", "replace")

    def piece(self, token_id: int, special: bool = False) -> bytes:
        return bytes([token_id]) if token_id < END else b""

    def chat_capabilities(self, template: str | None = None) -> dict[str, bool]:
        has_tools = "tools" in (template or self.chat_template or "")
        return {"supports_tools": has_tools, "supports_tool_calls": has_tools}

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        **_: Any,
    ) -> str:
        text = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
        return text + (ANSWER if add_generation_prompt else "")
