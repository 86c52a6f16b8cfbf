"""What paged attention computes, in plain torch: the specification that every kernel here is compared with.

It works in any floating type and on any device; tests run it in float64. It imports no Triton.
"""

from __future__ import annotations

import torch
from torch import Tensor


def paged_attention_reference(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    cu_seqlens_q: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attention of a flat batch of queries over keys and values that lie in blocks (PagedAttention, SOSP 2023).

    query [T, Hq, D]: the new tokens of all sequences, one sequence after the other.
    key_cache, value_cache [num_blocks, block_size, Hkv, D]: the pool. Query heads h * Hq/Hkv up to the next such
        number share key/value head h.
    block_tables [num_seqs, max_blocks]: token j of sequence s lies in block `block_tables[s, j // block_size]`.
    context_lens [num_seqs]: tokens of each sequence in the pool, its new tokens included.
    cu_seqlens_q [num_seqs + 1]: sequence s owns the rows `cu_seqlens_q[s]` up to `cu_seqlens_q[s + 1]` of query.
    window: a token sees the last `window` positions, its own included. softcap: scores become cap * tanh(s / cap).

    Returns [T, Hq, D]. A row that sees nothing is 0.
    """
    block_size, num_kv_heads = key_cache.shape[1:3]
    out = torch.zeros_like(query)
    for seq, context in enumerate(context_lens.tolist()):
        first, end = cu_seqlens_q[seq : seq + 2].tolist()
        token = torch.arange(context, device=query.device)
        block, offset = block_tables[seq, token // block_size].long(), token % block_size
        k = key_cache[block, offset].repeat_interleave(query.shape[1] // num_kv_heads, dim=1)
        v = value_cache[block, offset].repeat_interleave(query.shape[1] // num_kv_heads, dim=1)

        s = torch.einsum("qhd,khd->hqk", query[first:end], k) * scale
        if softcap is not None:
            s = softcap * torch.tanh(s / softcap)
        # The new tokens are the last of the context: row i stands at position context - n + i.
        position = context - (end - first) + torch.arange(end - first, device=query.device)[:, None]
        visible = token <= position
        if window is not None:
            visible &= token > position - window
        # A softmax over nothing is NaN: the second fill turns it into weights of 0.
        p = torch.softmax(s.masked_fill(~visible, -torch.inf), dim=-1).masked_fill(~visible, 0)
        out[first:end] = torch.einsum("hqk,khd->qhd", p, v)
    return out
