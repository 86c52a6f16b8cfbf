"""Rung 3: decode attention, one program for each sequence and key/value head.

Changed from `paged_decode_naive`:

- The query heads that share a key/value head (grouped-query attention, Ainslie et al. 2023) become the rows of one
  tile, so a key is read once for the whole group. `q k^T` is now a matrix product, and the tensor cores do it.
- A tile of keys is a fixed number of tokens, whatever the size of the pool's blocks: each token of the tile looks up
  its own block. Large tiles keep more bytes in flight, and that is what a kernel bound by memory lives on.

BLOCK_SIZE is a block of the pool. BLOCK_M (query rows), BLOCK_N (keys) and BLOCK_D (head_dim) are the sides of tiles:
powers of two, at least 16 for the tensor cores, and masked where there is less.

Bytes that must move: 2 (keys and values) * sum(context) * Hkv * D * item size, and this kernel asks for no more.
Against them stand 4 * sum(context) * Hq * D operations: Hq / Hkv of them for each byte in 16 bits. A GPU can do
hundreds in that time, so a decode waits for memory, and the group's other rows come for free.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minibatcher_kernels.checks import check_decode, keys_per_tile, num_stages


@triton.jit
def paged_decode_kernel(
    out_ptr,  # [num_seqs, Hq, D]
    query_ptr,  # [num_seqs, Hq, D]
    key_cache_ptr,  # [num_blocks, block_size, Hkv, D]
    value_cache_ptr,
    block_tables_ptr,  # [num_seqs, max_blocks]
    context_lens_ptr,  # [num_seqs]
    scale,
    out_stride_seq,
    out_stride_head,
    query_stride_seq,
    query_stride_head,
    cache_stride_block,
    cache_stride_slot,
    cache_stride_head,
    table_stride_seq,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    # The heads of a token lie side by side in the pool: programs that run together read neighbouring bytes.
    kv_head = tl.program_id(0)
    seq = tl.program_id(1)
    context = tl.load(context_lens_ptr + seq)

    row = tl.arange(0, BLOCK_M)
    head = kv_head * GROUP + row
    dims = tl.arange(0, BLOCK_D)
    dim_mask = dims < HEAD_DIM
    q_mask = (row < GROUP)[:, None] & dim_mask[None, :]
    q = tl.load(
        query_ptr + seq * query_stride_seq + head[:, None] * query_stride_head + dims[None, :], mask=q_mask, other=0.0
    )

    m = tl.full([BLOCK_M], -1.0e30, tl.float32)  # finite: -inf - -inf would be NaN
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, context, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        written = token < context
        entry = block_tables_ptr + seq * table_stride_seq + token // BLOCK_SIZE
        block = tl.load(entry, mask=written, other=0).to(tl.int64)
        place = block * cache_stride_block + token % BLOCK_SIZE * cache_stride_slot + kv_head * cache_stride_head

        k_mask = dim_mask[:, None] & written[None, :]
        k = tl.load(key_cache_ptr + dims[:, None] + place[None, :], mask=k_mask, other=0.0)  # transposed: [D, N]
        # "ieee": in float32 a tensor core would round the factors to 10 bits. 16-bit types are not affected.
        s = tl.dot(q, k, input_precision="ieee") * scale
        s = tl.where(written[None, :], s, float("-inf"))

        m_new = tl.maximum(m, tl.max(s, axis=1))
        p = tl.exp(s - m_new[:, None])
        alpha = tl.exp(m - m_new)
        l = l * alpha + tl.sum(p, axis=1)
        # Unwritten slots may hold NaN, and 0 * NaN is NaN: values are masked as well as scores.
        v_mask = written[:, None] & dim_mask[None, :]
        v = tl.load(value_cache_ptr + place[:, None] + dims[None, :], mask=v_mask, other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new

    acc = acc / tl.where(l == 0, 1.0, l)[:, None]  # a row that saw nothing is 0, not 0 / 0
    out = out_ptr + seq * out_stride_seq + head[:, None] * out_stride_head + dims[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=q_mask)


def paged_decode(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, context_lens: Tensor, scale: float
) -> Tensor:
    """Attention of one new token of each sequence over its context; returns [num_seqs, Hq, D].

    query [num_seqs, Hq, D], caches [num_blocks, block_size, Hkv, D], block_tables int32 [num_seqs, max_blocks],
    context_lens int32 [num_seqs] (the new token included). A context of 0 gives 0.
    Raises ValueError and TypeError for arguments that do not fit together.
    """
    check_decode(query, key_cache, value_cache, block_tables, context_lens)
    num_seqs, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    group = num_heads // num_kv_heads
    block_m = max(16, triton.next_power_of_2(group))
    block_d = triton.next_power_of_2(head_dim)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if num_seqs == 0:
        return out
    paged_decode_kernel[(num_kv_heads, num_seqs)](
        out,
        query,
        key_cache,
        value_cache,
        block_tables,
        context_lens,
        scale,
        out.stride(0),
        out.stride(1),
        query.stride(0),
        query.stride(1),
        key_cache.stride(0),
        key_cache.stride(1),
        key_cache.stride(2),
        block_tables.stride(0),
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=key_cache.shape[1],
        BLOCK_M=block_m,
        BLOCK_N=keys_per_tile(block_m, block_d, query.dtype),
        BLOCK_D=block_d,
        num_warps=4,
        num_stages=num_stages(),
    )
    return out
