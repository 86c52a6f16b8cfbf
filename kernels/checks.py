"""What the wrappers ask of their arguments, and how large the tiles are. Both are the same for every kernel here.

A kernel trusts its arguments: a wrong stride reads another head, a wrong block number another request's keys or memory
that is nobody's. Shapes, types, strides and devices are known on the CPU, so checking them costs microseconds. The
*values* of tables and lengths lie on the GPU, and looking at them would make the CPU wait for it at every layer; they
are checked where that costs nothing, when the kernel is interpreted on CPU tensors.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.interpreter import InterpretedFunction

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCK_SIZES = (16, 32, 64)
MAX_GROUP = 128

# TRITON_INTERPRET counts when triton is first imported: its own functions then tell which way it went.
INTERPRETED = isinstance(tl.max, InterpretedFunction)


@cache
def gpu_target() -> GPUTarget | None:
    """The GPU that Triton compiles for here, or None where it interprets. `compiled.py` puts another in its place."""
    return None if INTERPRETED else triton.runtime.driver.active.get_current_target()


def num_stages() -> int:
    """Stages of the pipeline that loads tiles of keys and values while others are being computed.

    The address of a tile is itself loaded, from the block table. So there are two loads to overlap, one behind the
    other, and Triton shares the stages between them: (stages - 1) // 2 tiles are in flight beside the one in use. With
    3 stages the next tile is asked for only when this one is done; with 5 it is always under way. An AMD GPU of the
    MI300's generation has only 64 KiB of shared memory, room for 2 stages of its own kind of pipeline.
    """
    target = gpu_target()
    return 2 if target is not None and target.backend == "hip" else 5


def keys_per_tile(rows: int, head_dim_padded: int, dtype: torch.dtype) -> int:
    """Tokens in a tile of keys: 16 KiB of them, so that the tiles in flight fit every GPU's shared memory.

    Beside more than 64 query rows half as many, except on the data-centre GPUs of NVIDIA's Hopper and Blackwell: others
    multiply tiles out of registers, which 128 rows of queries, scores and accumulators already fill.
    """
    keys = min(64, 16 * 1024 // (head_dim_padded * dtype.itemsize))
    target = gpu_target()
    from_registers = target is not None and not (target.backend == "cuda" and target.arch // 10 in (9, 10))
    return keys // 2 if rows > 64 and from_registers else keys


def check_device(**tensors: Tensor) -> None:
    """All on one device, and one on which the kernel can run. Raises ValueError."""
    devices = {name: tensor.device for name, tensor in tensors.items()}
    if len(set(devices.values())) > 1:
        raise ValueError(f"all tensors must be on one device, got {devices}: move them with .to(device)")
    if next(iter(devices.values())).type == "cpu" and not INTERPRETED:
        raise ValueError(
            "the tensors are on the CPU, and Triton compiles for GPUs: move them to a GPU, or set TRITON_INTERPRET=1 "
            "before triton is first imported (transformers imports it too), or use paged_attention_reference"
        )


def check_cache(key_cache: Tensor, value_cache: Tensor) -> None:
    """The pool's two halves: [num_blocks, block_size, num_kv_heads, head_dim]. Raises ValueError, TypeError."""
    if key_cache.dtype not in DTYPES:
        raise TypeError(f"key_cache is {key_cache.dtype}, allowed are {DTYPES}: convert it, or use the reference")
    if value_cache.dtype != key_cache.dtype:
        raise TypeError(f"key_cache is {key_cache.dtype} and value_cache {value_cache.dtype}: use one type for both")
    if key_cache.dim() != 4 or value_cache.shape != key_cache.shape:
        raise ValueError(
            "key_cache and value_cache must both be [num_blocks, block_size, num_kv_heads, head_dim], "
            f"got {list(key_cache.shape)} and {list(value_cache.shape)}"
        )
    _, block_size, _, head_dim = key_cache.shape
    if block_size not in BLOCK_SIZES:
        raise ValueError(f"block_size is {block_size}, allowed are {BLOCK_SIZES}: allocate the pool with one of them")
    if not 32 <= head_dim <= 256:
        raise ValueError(f"head_dim is {head_dim}, allowed are 32 to 256: use the torch backend for this model")
    if key_cache.stride() != value_cache.stride() or key_cache.stride(3) != 1:
        raise ValueError(
            "key_cache and value_cache must have the same strides, and 1 along head_dim, "
            f"got {key_cache.stride()} and {value_cache.stride()}: allocate both the same way"
        )


def check_rows(name: str, rows: Tensor, num_heads: int | None, cache: Tensor) -> None:
    """Rows [tokens, heads, head_dim] that go to or meet the pool; num_heads None allows any number."""
    if rows.dtype != cache.dtype:
        raise TypeError(f"{name} is {rows.dtype} and the cache {cache.dtype}: convert one of them")
    heads = "num_heads" if num_heads is None else num_heads
    if rows.dim() != 3 or rows.shape[2] != cache.shape[3] or (num_heads is not None and rows.shape[1] != num_heads):
        raise ValueError(f"{name} must be [tokens, {heads}, {cache.shape[3]}] for this cache, got {list(rows.shape)}")
    if rows.stride(2) != 1:
        raise ValueError(f"{name} must have stride 1 along head_dim, got {rows.stride()}: call .contiguous() on it")


def check_index(name: str, index: Tensor, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> None:
    """A tensor of indices, dense along its last dimension. Raises ValueError, TypeError."""
    if index.dtype not in dtypes:
        raise TypeError(f"{name} is {index.dtype}, allowed are {dtypes}: convert it with .to()")
    if index.shape != shape:
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(index.shape)}")
    if index.numel() > 1 and index.stride(-1) != 1:
        raise ValueError(f"{name} must have stride 1 along its last dimension, got {index.stride()}: use .contiguous()")


def check_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, context_lens: Tensor
) -> None:
    """What all attention kernels share: the pool, queries that fit it, a table and a context for each sequence."""
    check_device(
        query=query,
        key_cache=key_cache,
        value_cache=value_cache,
        block_tables=block_tables,
        context_lens=context_lens,
    )
    check_cache(key_cache, value_cache)
    check_rows("query", query, None, key_cache)
    num_heads, num_kv_heads = query.shape[1], key_cache.shape[2]
    if num_heads % num_kv_heads or not 1 <= num_heads // num_kv_heads <= MAX_GROUP:
        raise ValueError(
            f"query has {num_heads} heads and the cache {num_kv_heads}: the first must be a multiple of the second, "
            f"at most {MAX_GROUP} times as many"
        )
    if block_tables.dim() != 2:
        raise ValueError(f"block_tables must be [num_seqs, max_blocks], got {list(block_tables.shape)}")
    num_seqs, max_blocks = block_tables.shape
    check_index("block_tables", block_tables, (num_seqs, max_blocks), (torch.int32,))
    check_index("context_lens", context_lens, (num_seqs,), (torch.int32,))
    if context_lens.device.type == "cpu" and num_seqs:
        check_values(block_tables, context_lens, key_cache)


def check_decode(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, context_lens: Tensor
) -> None:
    """A decode has one query for each sequence."""
    check_attention(query, key_cache, value_cache, block_tables, context_lens)
    if query.shape[0] != block_tables.shape[0]:
        raise ValueError(
            f"a decode has one query for each sequence, got {query.shape[0]} queries and {block_tables.shape[0]} block "
            "tables: use paged_attention where a sequence has more"
        )


def check_values(block_tables: Tensor, context_lens: Tensor, key_cache: Tensor) -> None:
    """Contexts fit their tables, and the blocks in use lie in the pool (CPU tensors only). Raises ValueError."""
    num_blocks, block_size = key_cache.shape[:2]
    capacity = block_tables.shape[1] * block_size
    if context_lens.min() < 0 or context_lens.max() > capacity:
        raise ValueError(
            f"context_lens must be 0 to {capacity} ({block_tables.shape[1]} blocks of {block_size} in each table), "
            f"got {context_lens.tolist()}"
        )
    used = torch.arange(block_tables.shape[1]) * block_size < context_lens[:, None]
    outside = used & ((block_tables < 0) | (block_tables >= num_blocks))
    if outside.any():
        raise ValueError(f"block_tables uses {block_tables[outside].tolist()}, the pool has 0 to {num_blocks - 1}")
