"""Rung 5: prompt chunks and decodes in one launch. This is what the engine calls.

Changed from `paged_decode`: a sequence may have any number of new tokens. They lie in one flat tensor, and
`cu_seqlens_q` says whose rows are whose, so nothing is padded to the longest. A program takes a tile of rows of one
sequence and one key/value head; row r is query token r // group and head r % group of the tile. With one new token
that is `paged_decode`'s tile: a decode is a chunk of one. What a row may see now depends on its position:

                          0      context - n          context
      keys in the pool    [ past  |  new tokens       )
      row i sees          [ ............ context - n + i ]         and nothing before its window, if there is one

All keys of the chunk are in the pool already (`kv_write` runs first), so a mask is all that keeps a token from its
successors. Tiles that no row can see are not read. The tile is as large as the longest chunk asks for, up to 128 rows:
decodes that share a launch with a long chunk compute in a tile that is mostly empty.

Bytes that must move: for each tile of rows 2 * (the part of the context it sees) * Hkv * D * item size, where a tile is
BLOCK_M / group tokens. For decodes this is all that counts. A prompt chunk does 4 * Hq * D operations for each pair of
query and visible key, hundreds for each byte, so here the arithmetic counts: the tiles are as large as the registers
allow, and exp(x) is computed as exp2(x * log2(e)), the only form the hardware has, with the factor in the scale.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from minibatcher_kernels.checks import check_attention, check_index, keys_per_tile, num_stages
from minibatcher_kernels.paged_decode_split import choose_num_splits, num_multiprocessors, paged_decode_split


@triton.jit
def paged_attention_kernel(
    out_ptr,  # [T, Hq, D]
    query_ptr,  # [T, Hq, D]
    key_cache_ptr,  # [num_blocks, block_size, Hkv, D]
    value_cache_ptr,
    block_tables_ptr,  # [num_seqs, max_blocks]
    context_lens_ptr,  # [num_seqs]
    cu_seqlens_q_ptr,  # [num_seqs + 1]
    scale,
    out_stride_token,
    out_stride_head,
    query_stride_token,
    query_stride_head,
    cache_stride_block,
    cache_stride_slot,
    cache_stride_head,
    table_stride_seq,
    WINDOW: tl.constexpr,  # 0: none
    SOFTCAP: tl.constexpr,  # 0: none
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    LOG2E: tl.constexpr = 1.4426950408889634
    kv_head = tl.program_id(0)
    first = tl.program_id(1) * BLOCK_Q  # the tile's first query token, counted from the sequence's first new token
    seq = tl.program_id(2)
    seq_start = tl.load(cu_seqlens_q_ptr + seq)
    n = tl.load(cu_seqlens_q_ptr + seq + 1) - seq_start
    if first >= n:
        return  # the grid is made for the longest chunk of the batch
    context = tl.load(context_lens_ptr + seq)

    row = tl.arange(0, BLOCK_M)
    i = first + row // GROUP
    head = kv_head * GROUP + row % GROUP
    position = context - n + i
    dims = tl.arange(0, BLOCK_D)
    dim_mask = dims < HEAD_DIM
    q_mask = ((row < BLOCK_Q * GROUP) & (i < n))[:, None] & dim_mask[None, :]
    # 64 bits before the multiplications: token numbers times strides, and block numbers below.
    token_q = (seq_start + i).to(tl.int64)
    q = tl.load(
        query_ptr + token_q[:, None] * query_stride_token + head[:, None] * query_stride_head + dims[None, :],
        mask=q_mask,
        other=0.0,
    )

    # The tile's last row sees up to its own position; its first row, from the start of its window.
    end = tl.minimum(context - n + first + BLOCK_Q, context)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(context - n + first - WINDOW + 1, 0) // BLOCK_N * BLOCK_N

    m = tl.full([BLOCK_M], -1.0e30, tl.float32)  # finite: -inf - -inf would be NaN
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(begin, end, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        written = token < context
        entry = block_tables_ptr + seq * table_stride_seq + token // BLOCK_SIZE
        block = tl.load(entry, mask=written, other=0).to(tl.int64)
        place = block * cache_stride_block + token % BLOCK_SIZE * cache_stride_slot + kv_head * cache_stride_head

        k_mask = dim_mask[:, None] & written[None, :]
        k = tl.load(key_cache_ptr + dims[:, None] + place[None, :], mask=k_mask, other=0.0)  # transposed: [D, N]
        # "ieee": in float32 a tensor core would round the factors to 10 bits. 16-bit types are not affected.
        s = tl.dot(q, k, input_precision="ieee")
        if SOFTCAP > 0:
            # cap * tanh(x / cap), with tanh(y) = 1 - 2 / (1 + exp(2 y)): right at both ends, where exp is 0 or inf.
            s = SOFTCAP * LOG2E * (1.0 - 2.0 / (1.0 + tl.exp2(s * (scale * (2.0 * LOG2E / SOFTCAP)))))
        else:
            s = s * (scale * LOG2E)
        visible = token[None, :] <= position[:, None]
        if WINDOW > 0:
            visible = visible & (token[None, :] > position[:, None] - WINDOW)
        s = tl.where(visible, s, float("-inf"))

        m_new = tl.maximum(m, tl.max(s, axis=1))
        p = tl.exp2(s - m_new[:, None])
        alpha = tl.exp2(m - m_new)
        l = l * alpha + tl.sum(p, axis=1)
        # Unwritten slots may hold NaN, and 0 * NaN is NaN: values are masked as well as scores.
        v_mask = written[:, None] & dim_mask[None, :]
        v = tl.load(value_cache_ptr + place[:, None] + dims[None, :], mask=v_mask, other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new

    acc = acc / tl.where(l == 0, 1.0, l)[:, None]  # a row that saw nothing is 0, not 0 / 0
    out = out_ptr + token_q[:, None] * out_stride_token + head[:, None] * out_stride_head + dims[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=q_mask)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    cu_seqlens_q: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    max_query_len: int | None = None,
) -> Tensor:
    """What `paged_attention_reference` computes, for any mixture of prompt chunks and decodes; returns [T, Hq, D].

    query [T, Hq, D], caches [num_blocks, block_size, Hkv, D], block_tables int32 [num_seqs, max_blocks],
    context_lens int32 [num_seqs] (the new tokens included), cu_seqlens_q int32 [num_seqs + 1].
    max_query_len: the most new tokens that a sequence has, or an upper bound of it (by default T). The caller knows it
    as a Python int; reading it from cu_seqlens_q would make the CPU wait for the GPU.

    When every sequence has one new token, and they are too few to keep the GPU busy (`choose_num_splits`), the work
    goes to `paged_decode_split`. Raises ValueError and TypeError for arguments that do not fit together.
    """
    check_attention(query, key_cache, value_cache, block_tables, context_lens)
    num_tokens, num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    num_seqs, max_blocks = block_tables.shape
    check_index("cu_seqlens_q", cu_seqlens_q, (num_seqs + 1,), (torch.int32,))
    max_query_len = num_tokens if max_query_len is None else max_query_len
    check_choices(cu_seqlens_q, num_tokens, window, softcap, max_query_len)

    if max_query_len == 1 and num_tokens == num_seqs and window is None and softcap is None:
        num_splits = choose_num_splits(
            num_seqs, num_kv_heads, max_blocks * block_size, num_multiprocessors(query.device)
        )
        if num_splits > 1:
            return paged_decode_split(
                query, key_cache, value_cache, block_tables, context_lens, scale, num_splits=num_splits
            )

    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if num_tokens == 0:
        return out
    group = num_heads // num_kv_heads
    block_d = triton.next_power_of_2(head_dim)
    # As many rows as there are, up to what queries and accumulator [BLOCK_M, BLOCK_D] may take of registers and shared
    # memory. In float32 the products run outside the tensor cores and need registers of their own.
    most_rows = (128 if block_d <= 128 else 32) // (4 if query.dtype == torch.float32 else 1)
    block_m = max(16, triton.next_power_of_2(group), min(most_rows, triton.next_power_of_2(max_query_len * group)))
    block_q = block_m // group
    paged_attention_kernel[(num_kv_heads, triton.cdiv(max_query_len, block_q), num_seqs)](
        out,
        query,
        key_cache,
        value_cache,
        block_tables,
        context_lens,
        cu_seqlens_q,
        scale,
        out.stride(0),
        out.stride(1),
        query.stride(0),
        query.stride(1),
        key_cache.stride(0),
        key_cache.stride(1),
        key_cache.stride(2),
        block_tables.stride(0),
        WINDOW=window or 0,
        SOFTCAP=softcap or 0.0,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        BLOCK_Q=block_q,
        BLOCK_M=block_m,
        BLOCK_N=keys_per_tile(block_m, block_d, query.dtype),
        BLOCK_D=block_d,
        num_warps=4 if block_m * query.dtype.itemsize <= 64 else 8,
        num_stages=num_stages(),
    )
    return out


def check_choices(
    cu_seqlens_q: Tensor, num_tokens: int, window: int | None, softcap: float | None, max_query_len: int
) -> None:
    """The arguments that only this kernel has. Raises ValueError."""
    if window is not None and window < 1:
        raise ValueError(f"window is {window}: give the number of positions a token sees, itself included, or None")
    if softcap is not None and softcap <= 0:
        raise ValueError(f"softcap is {softcap}: give a positive cap, or None for no cap")
    if num_tokens and max_query_len < 1:
        raise ValueError(f"max_query_len is {max_query_len} with {num_tokens} queries: give the longest chunk, or None")
    if cu_seqlens_q.device.type == "cpu":
        bounds = cu_seqlens_q.tolist()
        lens = [end - start for start, end in pairwise(bounds)]
        if bounds[0] != 0 or bounds[-1] != num_tokens or min(lens, default=0) < 0:
            raise ValueError(f"cu_seqlens_q must rise from 0 to {num_tokens}, the number of queries, got {bounds}")
        if max(lens, default=0) > max_query_len:
            raise ValueError(f"max_query_len is {max_query_len}, but a sequence has {max(lens)} new tokens")
