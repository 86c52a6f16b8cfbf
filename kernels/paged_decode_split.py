"""Rung 4: decode attention, with a long context split among several programs (Flash-Decoding, Dao et al. 2023).

Changed from `paged_decode`: one long sequence has only Hkv programs, and a GPU has over a hundred multiprocessors. So
each program takes one part of the context and leaves its `(acc, m, l)` in memory in float32. A second kernel brings the
parts to one maximum and adds them: the step that the loop does for one more tile, done for all parts at once.

Bytes that must move: those of `paged_decode`, and the parts, written and read once each:
2 * num_seqs * num_splits * Hq * (D + 2) * 4. With at least 256 tokens in a part they are few beside its keys.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from minibatcher_kernels.checks import check_decode, keys_per_tile, num_stages

MIN_TOKENS_PER_SPLIT = 256
MAX_SPLITS = 64  # the reduction holds all parts of a head in one tile: a power of two


@triton.jit
def paged_decode_split_kernel(
    acc_ptr,  # [num_seqs, num_splits, Hq, D] float32
    m_ptr,  # [num_seqs, num_splits, Hq] float32
    l_ptr,
    query_ptr,  # [num_seqs, Hq, D]
    key_cache_ptr,  # [num_blocks, block_size, Hkv, D]
    value_cache_ptr,
    block_tables_ptr,  # [num_seqs, max_blocks]
    context_lens_ptr,  # [num_seqs]
    scale,
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
    kv_head = tl.program_id(0)
    seq = tl.program_id(1)
    split = tl.program_id(2)
    context = tl.load(context_lens_ptr + seq)
    # Parts are whole tiles, so the last ones may be empty: they leave l = 0 and weigh nothing.
    tokens_per_split = tl.cdiv(tl.cdiv(context, tl.num_programs(2)), BLOCK_N) * BLOCK_N
    first = split * tokens_per_split
    end = tl.minimum(first + tokens_per_split, context)

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
    for start in range(first, end, BLOCK_N):
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

    # Not divided by l yet: only the sum over all parts is a softmax.
    part = (seq * tl.num_programs(2) + split) * tl.num_programs(0) * GROUP + head
    tl.store(acc_ptr + part[:, None] * HEAD_DIM + dims[None, :], acc, mask=q_mask)
    tl.store(m_ptr + part, m, mask=row < GROUP)
    tl.store(l_ptr + part, l, mask=row < GROUP)


@triton.jit
def reduce_splits_kernel(
    out_ptr,  # [num_seqs, Hq, D]
    acc_ptr,  # [num_seqs, num_splits, Hq, D] float32
    m_ptr,  # [num_seqs, num_splits, Hq] float32
    l_ptr,
    num_splits,
    out_stride_seq,
    out_stride_head,
    HEAD_DIM: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    head = tl.program_id(0)
    seq = tl.program_id(1)
    split = tl.arange(0, BLOCK_S)
    dims = tl.arange(0, BLOCK_D)
    split_mask = split < num_splits
    dim_mask = dims < HEAD_DIM

    part = (seq * num_splits + split) * tl.num_programs(0) + head
    m = tl.load(m_ptr + part, mask=split_mask, other=-1.0e30)
    l = tl.load(l_ptr + part, mask=split_mask, other=0.0)
    acc = tl.load(
        acc_ptr + part[:, None] * HEAD_DIM + dims[None, :], mask=split_mask[:, None] & dim_mask[None, :], other=0.0
    )

    alpha = tl.exp(m - tl.max(m, axis=0))
    l = tl.sum(l * alpha, axis=0)
    acc = tl.sum(acc * alpha[:, None], axis=0)
    acc = acc / tl.where(l == 0, 1.0, l)  # a row that saw nothing is 0, not 0 / 0
    out = out_ptr + seq * out_stride_seq + head * out_stride_head + dims
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=dim_mask)


@cache
def num_multiprocessors(device: torch.device) -> int:
    """How many programs the device runs side by side, at least; the interpreter runs one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def choose_num_splits(num_seqs: int, num_kv_heads: int, max_context: int, multiprocessors: int) -> int:
    """Split only where `paged_decode` would leave multiprocessors idle; then make about two programs for each of them.

    max_context may be an upper bound, such as the tokens that a block table has room for: the real lengths lie on the
    GPU, and asking for them would make the CPU wait.
    """
    programs = num_seqs * num_kv_heads
    if not 0 < programs < multiprocessors:
        return 1
    return max(1, min(triton.cdiv(2 * multiprocessors, programs), max_context // MIN_TOKENS_PER_SPLIT, MAX_SPLITS))


def paged_decode_split(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float,
    num_splits: int | None = None,
) -> Tensor:
    """Attention of one new token of each sequence over its context; returns [num_seqs, Hq, D].

    query [num_seqs, Hq, D], caches [num_blocks, block_size, Hkv, D], block_tables int32 [num_seqs, max_blocks],
    context_lens int32 [num_seqs] (the new token included). A context of 0 gives 0.
    num_splits: parts of each context, 1 to 64; by default `choose_num_splits` says.
    Raises ValueError and TypeError for arguments that do not fit together.
    """
    check_decode(query, key_cache, value_cache, block_tables, context_lens)
    num_seqs, num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    block_m = max(16, triton.next_power_of_2(group))
    block_d = triton.next_power_of_2(head_dim)
    if num_splits is None:
        max_context = block_tables.shape[1] * block_size
        num_splits = choose_num_splits(num_seqs, num_kv_heads, max_context, num_multiprocessors(query.device))
    if not 1 <= num_splits <= MAX_SPLITS:
        raise ValueError(f"num_splits is {num_splits}, allowed are 1 to {MAX_SPLITS}, or None to let it be chosen")
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if num_seqs == 0:
        return out

    acc = torch.empty((num_seqs, num_splits, num_heads, head_dim), dtype=torch.float32, device=query.device)
    m = torch.empty((num_seqs, num_splits, num_heads), dtype=torch.float32, device=query.device)
    l = torch.empty_like(m)
    paged_decode_split_kernel[(num_kv_heads, num_seqs, num_splits)](
        acc,
        m,
        l,
        query,
        key_cache,
        value_cache,
        block_tables,
        context_lens,
        scale,
        query.stride(0),
        query.stride(1),
        key_cache.stride(0),
        key_cache.stride(1),
        key_cache.stride(2),
        block_tables.stride(0),
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        BLOCK_M=block_m,
        BLOCK_N=keys_per_tile(block_m, block_d, query.dtype),
        BLOCK_D=block_d,
        num_warps=4,
        num_stages=num_stages(),
    )
    reduce_splits_kernel[(num_heads, num_seqs)](
        out,
        acc,
        m,
        l,
        num_splits,
        out.stride(0),
        out.stride(1),
        HEAD_DIM=head_dim,
        BLOCK_S=MAX_SPLITS,  # masked beyond num_splits: one compiled kernel serves any number
        BLOCK_D=block_d,
    )
    return out
