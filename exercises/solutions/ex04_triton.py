"""Solutions to the bonus of exercise 4."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def copy_kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mask), mask=mask)


def copy(x: Tensor, out: Tensor, n: int, block: int = 16) -> None:
    copy_kernel[(triton.cdiv(n, block),)](out, x, n, BLOCK=block)


@triton.jit
def gather_kernel(out_ptr, cache_ptr, block_table_ptr, context, D: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    index = tl.program_id(0)
    block = tl.load(block_table_ptr + index)
    offset, dims = tl.arange(0, BLOCK_SIZE), tl.arange(0, D)
    token = index * BLOCK_SIZE + offset
    mask = (token < context)[:, None]
    tile = tl.load(cache_ptr + (block * BLOCK_SIZE + offset)[:, None] * D + dims[None, :], mask=mask)
    tl.store(out_ptr + token[:, None] * D + dims[None, :], tile, mask=mask)


def gather(cache: Tensor, block_table: Tensor, context: int) -> Tensor:
    _, block_size, dim = cache.shape
    out = torch.zeros(context, dim)
    gather_kernel[(triton.cdiv(context, block_size),)](out, cache, block_table, context, D=dim, BLOCK_SIZE=block_size)
    return out


@triton.jit
def scores_kernel(
    out_ptr, query_ptr, cache_ptr, block_table_ptr, context, scale, D: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    index = tl.program_id(0)
    block = tl.load(block_table_ptr + index)
    offset, dims = tl.arange(0, BLOCK_SIZE), tl.arange(0, D)
    written = index * BLOCK_SIZE + offset < context
    query = tl.load(query_ptr + dims)
    place = (block * BLOCK_SIZE + offset)[:, None] * D + dims[None, :]
    key = tl.load(cache_ptr + place, mask=written[:, None], other=0.0)
    score = tl.sum(query[None, :] * key, axis=1) * scale
    tl.store(out_ptr + index * BLOCK_SIZE + offset, tl.where(written, score, float("-inf")))


def scores(query: Tensor, cache: Tensor, block_table: Tensor, context: int, scale: float) -> Tensor:
    _, block_size, dim = cache.shape
    blocks = triton.cdiv(context, block_size)
    out = torch.zeros(blocks * block_size)
    scores_kernel[(blocks,)](out, query, cache, block_table, context, scale, D=dim, BLOCK_SIZE=block_size)
    return out


@triton.jit
def decode_kernel(
    out_ptr, query_ptr, key_ptr, value_ptr, block_table_ptr, context, scale, D: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    head = tl.program_id(0)
    offset, dims = tl.arange(0, BLOCK_SIZE), tl.arange(0, D)
    query = tl.load(query_ptr + head * D + dims)
    highest = tl.full([], -1.0e30, tl.float32)
    total = tl.full([], 0.0, tl.float32)
    mixed = tl.zeros([D], tl.float32)
    for index in range(0, tl.cdiv(context, BLOCK_SIZE)):
        block = tl.load(block_table_ptr + index)
        written = index * BLOCK_SIZE + offset < context
        place = (block * BLOCK_SIZE + offset)[:, None] * D + dims[None, :]
        key = tl.load(key_ptr + place, mask=written[:, None], other=0.0)
        score = tl.where(written, tl.sum(query[None, :] * key, axis=1) * scale, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(score, axis=0))
        shrink = tl.exp(highest - new_highest)
        weight = tl.exp(score - new_highest)
        value = tl.load(value_ptr + place, mask=written[:, None], other=0.0)
        total = total * shrink + tl.sum(weight, axis=0)
        mixed = mixed * shrink + tl.sum(weight[:, None] * value, axis=0)
        highest = new_highest
    tl.store(out_ptr + head * D + dims, mixed / total)


def decode(query: Tensor, keys: Tensor, values: Tensor, block_table: Tensor, context: int, scale: float) -> Tensor:
    _, block_size, dim = keys.shape
    out = torch.zeros_like(query)
    decode_kernel[(len(query),)](out, query, keys, values, block_table, context, scale, D=dim, BLOCK_SIZE=block_size)
    return out


@triton.jit
def grouped_kernel(
    out_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    block_table_ptr,
    context,
    scale,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    head, offset, dims = tl.arange(0, HEADS), tl.arange(0, BLOCK_SIZE), tl.arange(0, D)
    tile = head[:, None] * D + dims[None, :]
    query = tl.load(query_ptr + tile)
    highest = tl.full([HEADS], -1.0e30, tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    mixed = tl.zeros([HEADS, D], tl.float32)
    for index in range(0, tl.cdiv(context, BLOCK_SIZE)):
        block = tl.load(block_table_ptr + index)
        written = index * BLOCK_SIZE + offset < context
        place = (block * BLOCK_SIZE + offset)[:, None] * D + dims[None, :]
        key = tl.load(key_ptr + place, mask=written[:, None], other=0.0)
        # (tl.dot would do on a GPU, for tiles of 16 and more.)
        score = tl.sum(query[:, None, :] * key[None, :, :], axis=2) * scale
        score = tl.where(written[None, :], score, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(score, axis=1))
        shrink = tl.exp(highest - new_highest)
        weight = tl.exp(score - new_highest[:, None])
        value = tl.load(value_ptr + place, mask=written[:, None], other=0.0)
        total = total * shrink + tl.sum(weight, axis=1)
        mixed = mixed * shrink[:, None] + tl.sum(weight[:, :, None] * value[None, :, :], axis=1)
        highest = new_highest
    tl.store(out_ptr + tile, mixed / total[:, None])


def grouped(query: Tensor, keys: Tensor, values: Tensor, block_table: Tensor, context: int, scale: float) -> Tensor:
    _, block_size, dim = keys.shape
    out = torch.zeros_like(query)
    grouped_kernel[(1,)](
        out, query, keys, values, block_table, context, scale, HEADS=len(query), D=dim, BLOCK_SIZE=block_size
    )
    return out
