"""Solutions to exercise 4."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def online_softmax(tiles: Iterable[tuple[Tensor, Tensor]], head_dim: int) -> Tensor:
    highest = torch.tensor(-1e30, dtype=torch.float64)  # finite: -inf - -inf would be NaN
    total = torch.zeros((), dtype=torch.float64)
    mixed = torch.zeros(head_dim, dtype=torch.float64)
    dtype = torch.float32
    for scores, values in tiles:
        dtype = values.dtype
        new_highest = torch.maximum(highest, scores.max().double())
        shrink = torch.exp(highest - new_highest)
        weights = torch.exp(scores.double() - new_highest)
        total = total * shrink + weights.sum()
        mixed = mixed * shrink + weights @ values.double()
        highest = new_highest
    return (mixed / total if total > 0 else mixed).to(dtype)


def paged_decode(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: list[int], context: int, scale: float
) -> Tensor:
    block_size, num_kv_heads = key_cache.shape[1:3]
    token = torch.arange(context)
    block, place = torch.tensor(block_table)[token // block_size], token % block_size
    group = query.shape[0] // num_kv_heads
    keys = key_cache[block, place].repeat_interleave(group, dim=1)  # [context, num_heads, head_dim]
    values = value_cache[block, place].repeat_interleave(group, dim=1)
    weights = (torch.einsum("hd,chd->hc", query, keys) * scale).softmax(dim=-1)
    return torch.einsum("hc,chd->hd", weights, values)


def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    highest = torch.maximum(lse_a, lse_b).clamp(min=-1e30)  # finite, if both parts are empty
    weight_a, weight_b = torch.exp(lse_a - highest), torch.exp(lse_b - highest)
    total = weight_a + weight_b
    out = (weight_a[:, None] * out_a + weight_b[:, None] * out_b) / total.clamp(min=1e-30)[:, None]
    return out, torch.where(total > 0, highest + torch.log(total), -torch.inf)
