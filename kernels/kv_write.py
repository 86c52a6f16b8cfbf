"""Rung 1: write new keys and values to their slots in the pool.

A slot is one token's place: slot s is token `s % block_size` of block `s // block_size`. The scheduler has chosen the
slots, so this kernel only copies: one program for each token, all of its heads at once. Triton's first idioms are all
here. A program finds out which one it is (`program_id`), computes a tile of addresses (`arange`, broadcast), and loads
and stores the tile under a mask, because a tile's sides are powers of two and a head of 80 is not.

Bytes that must move, for T tokens: 2 (keys and values) * 2 (read and written) * T * Hkv * D * item size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minibatcher_kernels.checks import check_cache, check_device, check_index, check_rows


@triton.jit
def kv_write_kernel(
    key_ptr,  # [T, Hkv, D]
    value_ptr,  # [T, Hkv, D]
    key_cache_ptr,  # [num_blocks, block_size, Hkv, D]
    value_cache_ptr,
    slot_mapping_ptr,  # [T]
    key_stride_token,
    key_stride_head,
    value_stride_token,
    value_stride_head,
    cache_stride_block,
    cache_stride_slot,
    cache_stride_head,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    # 64 bits before the multiplication below: a pool may have more than 2**31 elements.
    slot = tl.load(slot_mapping_ptr + token).to(tl.int64)
    if slot < 0:
        return  # a padded row: its keys belong nowhere

    heads = tl.arange(0, BLOCK_H)[:, None]
    dims = tl.arange(0, BLOCK_D)[None, :]
    mask = (heads < NUM_KV_HEADS) & (dims < HEAD_DIM)
    key = tl.load(key_ptr + token * key_stride_token + heads * key_stride_head + dims, mask=mask)
    value = tl.load(value_ptr + token * value_stride_token + heads * value_stride_head + dims, mask=mask)

    place = slot // BLOCK_SIZE * cache_stride_block + slot % BLOCK_SIZE * cache_stride_slot
    tl.store(key_cache_ptr + place + heads * cache_stride_head + dims, key, mask=mask)
    tl.store(value_cache_ptr + place + heads * cache_stride_head + dims, value, mask=mask)


def kv_write(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write key and value [T, Hkv, D] to the slots `slot_mapping` [T] (int32 or int64) of the pool, in place.

    The caches are [num_blocks, block_size, Hkv, D]. Slot -1 writes nothing. Two tokens must not share a slot: which of
    them stays is undefined. key and value may be views with any strides as long as head_dim is dense.
    Raises ValueError and TypeError for arguments that do not fit together.
    """
    check_device(key=key, value=value, key_cache=key_cache, value_cache=value_cache, slot_mapping=slot_mapping)
    check_cache(key_cache, value_cache)
    num_blocks, block_size, num_kv_heads, head_dim = key_cache.shape
    check_rows("key", key, num_kv_heads, key_cache)
    check_rows("value", value, num_kv_heads, key_cache)
    if key.shape[0] != value.shape[0]:
        raise ValueError(f"each token has a key and a value, got {key.shape[0]} keys and {value.shape[0]} values")
    check_index("slot_mapping", slot_mapping, (key.shape[0],), (torch.int32, torch.int64))
    if key.shape[0] == 0:
        return
    num_slots = num_blocks * block_size
    if slot_mapping.device.type == "cpu" and not -1 <= slot_mapping.min() <= slot_mapping.max() < num_slots:
        raise ValueError(
            f"slots must be -1 (write nothing) to {num_slots - 1} in this pool, got {slot_mapping.tolist()}"
        )
    kv_write_kernel[(key.shape[0],)](
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        key_cache.stride(0),
        key_cache.stride(1),
        key_cache.stride(2),
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        BLOCK_H=triton.next_power_of_2(num_kv_heads),
        BLOCK_D=triton.next_power_of_2(head_dim),
    )
