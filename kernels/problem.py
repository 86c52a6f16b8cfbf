"""A random batch to try a kernel on, made to expose what kernels get wrong. It imports no Triton.

The pool holds NaN wherever no token was written, the blocks of a sequence are scattered at random, and the unused ends
of the block tables point at a block of NaN: whoever reads what is not theirs to read turns the answer into NaN. With an
even seed that block is block 0, which a masked load of a table gives; with an odd seed block 0 is as good as any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from minibatcher_kernels.reference import paged_attention_reference


@dataclass(frozen=True)
class Problem:
    """The arguments of `paged_attention_reference`, by its names."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor
    context_lens: Tensor
    cu_seqlens_q: Tensor
    scale: float

    def answer(self, window: int | None = None, softcap: float | None = None) -> Tensor:
        """What the specification says, computed in float64 from the same (already rounded) inputs."""
        query, key_cache, value_cache = self.query.double(), self.key_cache.double(), self.value_cache.double()
        exact = replace(self, query=query, key_cache=key_cache, value_cache=value_cache)
        return paged_attention_reference(**vars(exact), window=window, softcap=softcap)


def random_problem(
    context_lens: Sequence[int],
    query_lens: Sequence[int] | None = None,
    *,
    num_kv_heads: int = 1,
    group: int = 1,
    head_dim: int = 32,
    block_size: int = 16,
    shared_blocks: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> Problem:
    """A batch of sequences with these contexts, of which the last `query_lens` tokens are new (one each by default).

    group: query heads for each key/value head. shared_blocks: the sequences begin with up to this many common blocks,
    as they do when a prefix is cached.
    """
    query_lens = [1] * len(context_lens) if query_lens is None else query_lens
    generator = torch.Generator().manual_seed(seed)
    blocks_needed = [-(-context // block_size) for context in context_lens]
    pool = torch.randperm(sum(blocks_needed) + 2, generator=generator).tolist()
    if seed % 2 == 0:
        pool.append(pool.pop(pool.index(0)))
    poison = pool.pop()

    tables = torch.full((len(context_lens), max(blocks_needed, default=0) + 1), poison, dtype=torch.int32)
    shape = (len(pool) + 1, block_size, num_kv_heads, head_dim)
    key_cache, value_cache = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
    common = [pool.pop() for _ in range(min(shared_blocks, min(blocks_needed, default=0)))]
    for table, context, needed in zip(tables, context_lens, blocks_needed, strict=True):
        blocks = (common + pool)[:needed]
        pool = pool[max(0, needed - len(common)) :]
        table[:needed] = torch.tensor(blocks, dtype=torch.int32)
        token = torch.arange(context)
        for cache in (key_cache, value_cache):
            rows = torch.randn(context, num_kv_heads, head_dim, generator=generator)
            cache[table[token // block_size].long(), token % block_size] = rows

    # Queries three times the usual size make the softmax peaked, so that one key too many or too few shows.
    query = 3 * torch.randn(sum(query_lens), num_kv_heads * group, head_dim, generator=generator)
    return Problem(
        query=query.to(device, dtype),
        key_cache=key_cache.to(device, dtype),
        value_cache=value_cache.to(device, dtype),
        block_tables=tables.to(device),
        context_lens=torch.tensor(context_lens, dtype=torch.int32, device=device),
        cu_seqlens_q=torch.tensor([0, *accumulate(query_lens)], dtype=torch.int32, device=device),
        scale=head_dim**-0.5,
    )
