"""Attention over a cache: whole, or its tokens divided into parts that are computed side by side.

The kernels give each head of each row a block of its own. A single row has so few heads that most
of a GPU would have nothing to do while a long cache is read. Engines divide the cache then
(split-K, "flash decoding"). Without that, single tokens would take longer than in an engine, and
drafts would look better.
"""

from __future__ import annotations

from functools import cache

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

Tensor = torch.Tensor
HIDDEN = -1e30  # for what a query may not see; finite, so that a part with nothing to see has a sum
PART = 128  # tokens
# cuDNN's attention plans anew for every shape, some of them only when first run.
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def parts_for(rows: int, length: int) -> int:
    """Return into how many parts to divide `length` tokens: 1 but for a single row.

    The parts of several rows are not at equal distances in the cache, as kernels want them.
    """
    return length // PART if rows == 1 and length % PART == 0 else 1


def look(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None, parts: int
) -> Tensor:
    """Return what queries see, shaped like them.

    Args:
        queries: (rows, heads, n, size).
        keys, values: (rows, heads, length, size).
        mask: (rows, 1, n, length), added to the products; HIDDEN for what is not seen.
        scale: Of the products, None = 1 / sqrt(size).
        parts: 1, or with one row a divisor of the length.
    """
    if parts > 1:
        return _look_by_parts(queries, keys, values, mask, scale, parts)
    with sdpa_kernel(BACKENDS):
        return torch.nn.functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=scale
        )


def _look_by_parts(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None, parts: int
) -> Tensor:
    """Make a row of every part, and weigh what they see by their sums."""
    heads, count = queries.shape[1:3]
    asked = queries.expand(parts, -1, -1, -1).contiguous()
    keys, values = (
        all_.squeeze(0).unflatten(1, (parts, -1)).transpose(0, 1) for all_ in (keys, values)
    )
    added = mask.view(count, parts, -1).transpose(0, 1)[:, None].expand(-1, heads, -1, -1)
    if queries.is_cuda:
        seen, sums, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            asked, keys, values, added, True, scale=scale
        )
    else:
        seen, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            asked, keys, values, attn_mask=added, scale=scale
        )
    weights = torch.softmax(sums[:, :, :count], dim=0)[..., None]  # logarithms, of exponentials
    joined: Tensor = (seen * weights).sum(dim=0, keepdim=True)
    return joined.to(queries.dtype)


@cache
def why_not_by_parts(device: torch.device, dtype: torch.dtype) -> str:
    """Try it beside plain arithmetic; return "" if they agree, else what is wrong.

    The functions that also return the sums are not among torch's documented ones.
    """
    generator = torch.Generator(device).manual_seed(1)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    heads, count, parts, size = 2, 5, 4, 64
    length = parts * PART
    # As a cache is laid out, and seen up to the second part.
    keys, values = (noise(1, length, heads, size).transpose(1, 2) for _ in range(2))
    queries, mask = noise(1, heads, count, size), torch.zeros(1, 1, count, length, dtype=dtype)
    mask[..., PART + 7 :] = HIDDEN
    mask = mask.to(device)
    exact = queries.float() @ keys.float().transpose(2, 3) / size**0.5 + mask.float()
    expected = torch.softmax(exact, dim=-1) @ values.float()
    try:
        output = look(queries, keys, values, mask, None, parts)
    except (RuntimeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    wrong = float((output.float() - expected).norm() / expected.norm())
    limit = 1e-5 if dtype == torch.float32 else 1e-2
    return "" if wrong < limit else f"relative error {wrong:.1e}, at most {limit:.0e} expected"
