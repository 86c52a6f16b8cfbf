"""Rung 2: decode attention, one program for each sequence and query head.

Changed from `kv_write`: a program now walks its sequence's block table, one block of keys and values at a time. It
cannot keep all scores, because a context has any length, so it keeps three running values and corrects them when a
block brings a higher score. This is the online softmax of FlashAttention (Dao et al. 2022), over blocks that lie
anywhere (PagedAttention, Kwon et al. 2023):

    m    the highest score so far
    l    the sum of exp(score - m) so far
    acc  the sum of exp(score - m) * value so far; acc / l is the answer

Bytes that must move: 2 (keys and values) * sum(context) * Hkv * D * item size. This kernel asks for Hq / Hkv times as
many, since each query head of a group reads the group's keys again; a cache may save it some of them. That is what the
next rung is about. There is no matrix product here either: a query is one row, so the tensor cores stay idle.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minibatcher_kernels.checks import check_decode


@triton.jit
def paged_decode_naive_kernel(
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
    BLOCK_D: tl.constexpr,
):
    head = tl.program_id(0)
    seq = tl.program_id(1)
    kv_head = head // GROUP
    context = tl.load(context_lens_ptr + seq)

    offset = tl.arange(0, BLOCK_SIZE)
    dims = tl.arange(0, BLOCK_D)
    dim_mask = dims < HEAD_DIM
    q = tl.load(query_ptr + seq * query_stride_seq + head * query_stride_head + dims, mask=dim_mask, other=0.0)
    q = q.to(tl.float32) * scale

    # m starts low but finite: with -inf, a block without a visible score would make -inf - -inf, which is NaN.
    m = tl.full([], -1.0e30, tl.float32)
    l = tl.full([], 0.0, tl.float32)
    acc = tl.zeros([BLOCK_D], tl.float32)
    for index in range(0, tl.cdiv(context, BLOCK_SIZE)):
        # 64 bits before the multiplication: a pool may have more than 2**31 elements.
        block = tl.load(block_tables_ptr + seq * table_stride_seq + index).to(tl.int64)
        place = block * cache_stride_block + offset * cache_stride_slot + kv_head * cache_stride_head
        written = index * BLOCK_SIZE + offset < context
        mask = written[:, None] & dim_mask[None, :]

        k = tl.load(key_cache_ptr + place[:, None] + dims[None, :], mask=mask, other=0.0)
        s = tl.sum(q[None, :] * k.to(tl.float32), axis=1)
        s = tl.where(written, s, float("-inf"))

        m_new = tl.maximum(m, tl.max(s, axis=0))
        p = tl.exp(s - m_new)
        alpha = tl.exp(m - m_new)  # what was summed under the old maximum shrinks to the new one
        l = l * alpha + tl.sum(p, axis=0)
        # The rest of the last block was never written and may hold NaN. A weight of 0 does not help: 0 * NaN is NaN.
        v = tl.load(value_cache_ptr + place[:, None] + dims[None, :], mask=mask, other=0.0)
        acc = acc * alpha + tl.sum(p[:, None] * v.to(tl.float32), axis=0)
        m = m_new

    # A context of 0 has l = 0 and acc = 0: its answer is 0, not 0 / 0. (A NaN in the input stays NaN.)
    acc = acc / tl.where(l == 0, 1.0, l)
    out = out_ptr + seq * out_stride_seq + head * out_stride_head + dims
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=dim_mask)


def paged_decode_naive(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, context_lens: Tensor, scale: float
) -> Tensor:
    """Attention of one new token of each sequence over its context; returns [num_seqs, Hq, D].

    query [num_seqs, Hq, D], caches [num_blocks, block_size, Hkv, D], block_tables int32 [num_seqs, max_blocks],
    context_lens int32 [num_seqs] (the new token included). A context of 0 gives 0.
    Raises ValueError and TypeError for arguments that do not fit together.
    """
    check_decode(query, key_cache, value_cache, block_tables, context_lens)
    num_seqs, num_heads, head_dim = query.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if num_seqs == 0:
        return out
    paged_decode_naive_kernel[(num_heads, num_seqs)](
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
        GROUP=num_heads // key_cache.shape[2],
        HEAD_DIM=head_dim,
        BLOCK_SIZE=key_cache.shape[1],
        BLOCK_D=triton.next_power_of_2(head_dim),
    )
    return out
