"""What a request asks vectors for, as tokens, and vectors in the form that it asks for."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from ngramspec.arrays import TokenIds, Vectors
from ngramspec.server.errors import ApiError, bad_request, not_supported
from ngramspec.server.model import ServedEmbedder, ServedModel
from ngramspec.server.request.prompts import least_tokens, listed, texts_in, tokenize_mixed

MAX_FLOATS = 1 << 22  # in one answer
HINT = "start it with --embeddings, and --pooling mean or last where the model names none"

MAX_TEXTS = 2048  # as in OpenAI's API
EUCLIDEAN = 2
_NORMS = (-1, 100)  # llama-server's embd_normalize, of which all above 2 are p-norms


def embedder_of(served: ServedModel) -> ServedEmbedder:
    """Return what makes vectors.

    Raises:
        ApiError: The server was started without.
    """
    if served.embedder is None:
        raise not_supported(f"this server does not support embeddings: {HINT}", status=400)
    return served.embedder


def texts_of(content: Any, served: ServedModel, field: str) -> list[TokenIds]:
    """Return the token ids of every text of an `input` in llama-server's shapes.

    Raises:
        ApiError: It has another shape, is empty, or has too many or too long texts.
    """
    embedder = embedder_of(served)
    if isinstance(content, list) and not content:
        raise bad_request(f"{field} must not be empty", field)
    parts = listed(content)
    if len(parts) > MAX_TEXTS:
        raise bad_request(f"{field} must hold at most {MAX_TEXTS} texts, got {len(parts)}", field)
    parts = [_content(part, field) for part in parts]
    if (count := sum(len(texts_in(part)) for part in parts)) > MAX_TEXTS:
        raise bad_request(f"{field} must hold at most {MAX_TEXTS} texts, got {count}", field)
    texts = [_tokens(part, served, field) for part in parts]
    for ids in texts:
        if not ids.size:
            raise bad_request(f"{field} must not hold an empty text", field)
        if ids.size > embedder.most_tokens:
            raise _too_long(f"{ids.size}", embedder, field)
    check_size(texts, embedder, field)
    return texts


def check_size(texts: Sequence[TokenIds], embedder: ServedEmbedder, field: str) -> None:
    """Refuse texts whose vectors would make too large an answer.

    Raises:
        ApiError: They would.
    """
    rows = sum(map(len, texts)) if embedder.pooling == "none" else len(texts)
    if rows * embedder.size > MAX_FLOATS:
        most = MAX_FLOATS // embedder.size
        raise bad_request(f"{field} asks for {rows} vectors, the most is {most}", field)


def _content(entry: Any, field: str) -> Any:
    """Return what an object holds, anything else as it is."""
    if not isinstance(entry, dict):
        return entry
    if "content" in entry:
        return "".join(_part(part, field) for part in _list(entry["content"], field))
    if not isinstance(entry.get("prompt_string"), (str, list)):
        raise bad_request(f"{field}: an object must have prompt_string or content", field)
    if entry.get("multimodal_data"):
        raise not_supported("this server takes text only, no multimodal_data", field)
    return entry["prompt_string"]


def _tokens(part: Any, served: ServedModel, field: str) -> TokenIds:
    embedder, text = embedder_of(served), "".join(texts_in(part))
    if (least := least_tokens(text, served, embedder.most_tokens)) > embedder.most_tokens:
        raise _too_long(f"at least {least}", embedder, field)
    ids = tokenize_mixed(part, served, add_special=True, parse_special=True, field=field)
    return np.asarray(ids, dtype=np.int32)


def _too_long(count: str, embedder: ServedEmbedder, field: str) -> ApiError:
    return ApiError(
        400,
        f"{field} ({count} tokens) is too large to process: the most is "
        f"{embedder.most_tokens}: --ubatch-size, or what a slot holds if that is less",
        type="exceed_context_size_error",
        code="context_length_exceeded",
        param=field,
    )


def _list(parts: Any, field: str) -> list[Any]:
    if not isinstance(parts, list):
        raise bad_request(f"{field}: content must be a list of parts", field)
    return parts


def _part(part: Any, field: str) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise not_supported(f"{field}: this server takes parts of the type text only", field)
    return text


def normalized(vectors: Vectors, kind: int) -> Vectors:
    """Return vectors of length 1.

    Args:
        vectors: Shape (n, size).
        kind: -1 = as they are, 0 = largest number 32760, else the p-norm.
    """
    if kind == -1:
        return vectors
    wide = np.abs(vectors.astype(np.float64))
    if kind == 0:
        lengths = wide.max(axis=1, keepdims=True) / 32760.0
    else:
        largest = wide.max(axis=1, keepdims=True)  # so that no power is too large
        scaled = np.divide(wide, largest, out=np.zeros_like(wide), where=largest > 0)
        lengths = largest * (scaled**kind).sum(axis=1, keepdims=True) ** (1 / kind)
    normed = np.divide(vectors, lengths, out=np.zeros_like(wide), where=lengths > 0)
    return np.asarray(normed, dtype=np.float32)


def check_norm(kind: int) -> int:
    """Return the kind of length.

    Raises:
        ApiError: There is no such kind.
    """
    low, high = _NORMS
    if not low <= kind <= high:
        raise bad_request(f"embd_normalize must be in {low}..{high}, got {kind}", "embd_normalize")
    return kind


def check_dimensions(dimensions: int | None, size: int) -> int:
    """Return how many numbers of a vector are kept.

    Raises:
        ApiError: There are fewer.
    """
    if dimensions is None:
        return size
    if not 1 <= dimensions <= size:
        raise bad_request(f"dimensions must be in 1..{size}, got {dimensions}", "dimensions")
    return dimensions


def plain(vector: Vectors) -> list[Any]:
    """Return numbers for JSON; what is not finite becomes 0, as in no direction."""
    return np.nan_to_num(vector, nan=0.0, posinf=0.0, neginf=0.0).tolist()  # type: ignore[no-any-return]


def in_base64(vector: Vectors) -> str:
    """Return a vector as OpenAI's base64 of 32-bit floats."""
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()
