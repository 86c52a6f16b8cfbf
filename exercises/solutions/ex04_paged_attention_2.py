"""Exercise 4 in another style: merging as the one idea, and attention a key/value head at a time."""

from __future__ import annotations

import torch


def merge(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    share_a, share_b = (torch.nan_to_num(torch.exp(part - lse), nan=0.0) for part in (lse_a, lse_b))
    return share_a.unsqueeze(-1) * out_a + share_b.unsqueeze(-1) * out_b, lse


def online_softmax(tiles, head_dim):
    out, lse = torch.zeros(1, head_dim), torch.full((1,), -torch.inf)
    for scores, values in tiles:
        answer = scores.softmax(dim=0).nan_to_num(0.0) @ values
        out, lse = merge(out, lse, answer[None], scores.logsumexp(dim=0)[None])
    return out[0]


def paged_decode(query, key_cache, value_cache, block_table, context, scale):
    blocks = block_table[: -(-context // key_cache.shape[1])]
    keys, values = (torch.cat([cache[block] for block in blocks])[:context] for cache in (key_cache, value_cache))
    groups = query.chunk(key_cache.shape[2])
    return torch.cat([(q @ keys[:, h].T * scale).softmax(-1) @ values[:, h] for h, q in enumerate(groups)])
