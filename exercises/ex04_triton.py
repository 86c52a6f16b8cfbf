"""Exercise 4, the bonus: attention over pages in Triton (8 points outside the total).

    minibatcher grade ex04_triton       the board
    minibatcher grade 4.4 --hint        one more hint

Triton exists for Linux alone. The kernels run in its interpreter here, on the CPU, so no GPU is needed and `print`
works in them. A kernel is a program that is started many times at once; each run finds out which one it is, computes
the addresses of a tile of numbers, loads it, works on it and stores it:

    tl.program_id(0)                which run this is
    tl.arange(0, N)                 0, 1 ... N - 1; N is a power of two and a constant (tl.constexpr)
    tl.load(pointers, mask=, other=)    the numbers at these addresses; `other` where the mask is False
    tl.store(pointers, values, mask=)
    x[:, None], x[None, :]          as in NumPy: a column and a row, and together a tile
    tl.sum(x, axis=), tl.max(x, axis=), tl.exp(x), tl.maximum(x, y), tl.where(condition, x, y)

A pointer plus a number is a pointer so many elements further. Everything here is float32 and lies densely: element
[i, j] of a [m, n] tensor is i * n + j elements behind its pointer. The functions around the kernels are given.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def copy_kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    """Task 4.4 (1 point, 15 minutes; after 25 take a hint): a masked copy.

    Run i copies the elements i * BLOCK up to (i + 1) * BLOCK of x to out, but none from n on: there lies what belongs
    to somebody else. It is neither read nor written.
    """
    raise NotImplementedError("Task 4.4")


def copy(x: Tensor, out: Tensor, n: int, block: int = 16) -> None:
    """Copies the first n elements of x to out.

    >>> x, out = torch.arange(5.0), torch.zeros(5)
    >>> copy(x, out, n=3)
    >>> out
    tensor([0., 1., 2., 0., 0.])
    """
    copy_kernel[(triton.cdiv(n, block),)](out, x, n, BLOCK=block)


@triton.jit
def gather_kernel(out_ptr, cache_ptr, block_table_ptr, context, D: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Task 4.5 (1 point, 20 minutes; after 30 take a hint): a copy through a block table.

    cache [num_blocks, BLOCK_SIZE, D], block_table [blocks of the request] int32, out [context, D].
    Run i copies the request's block number i, which is block `block_table[i]` of the cache, to the rows of out where
    its tokens belong; but not what is behind the context. D and BLOCK_SIZE are powers of two.
    """
    raise NotImplementedError("Task 4.5")


def gather(cache: Tensor, block_table: Tensor, context: int) -> Tensor:
    """The vectors of a request's tokens, in order: [context, D].

    >>> cache = torch.arange(6.0).view(3, 2, 1)
    >>> gather(cache, torch.tensor([2, 0], dtype=torch.int32), context=3).flatten()
    tensor([4., 5., 0.])
    """
    _, block_size, dim = cache.shape
    out = torch.zeros(context, dim)
    gather_kernel[(triton.cdiv(context, block_size),)](out, cache, block_table, context, D=dim, BLOCK_SIZE=block_size)
    return out


@triton.jit
def scores_kernel(
    out_ptr, query_ptr, cache_ptr, block_table_ptr, context, scale, D: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    """Task 4.6 (2 points, 20 minutes; after 30 take a hint): the scores of one block.

    query [D]; cache and block_table as in 4.5; out [blocks of the request * BLOCK_SIZE].
    Run i computes scale * (query . key) for each place of the request's block number i, and -inf for the places behind
    the context, whose keys are not read.
    """
    raise NotImplementedError("Task 4.6")


def scores(query: Tensor, cache: Tensor, block_table: Tensor, context: int, scale: float) -> Tensor:
    """The scores of all keys of a request, padded with -inf to whole blocks.

    >>> cache = torch.arange(6.0).view(3, 2, 1)
    >>> scores(torch.ones(1), cache, torch.tensor([2, 0], dtype=torch.int32), context=3, scale=10.0)
    tensor([40., 50.,  0., -inf])
    """
    _, block_size, dim = cache.shape
    blocks = triton.cdiv(context, block_size)
    out = torch.zeros(blocks * block_size)
    scores_kernel[(blocks,)](out, query, cache, block_table, context, scale, D=dim, BLOCK_SIZE=block_size)
    return out


@triton.jit
def decode_kernel(
    out_ptr, query_ptr, key_ptr, value_ptr, block_table_ptr, context, scale, D: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    """Task 4.7 (2 points, 35 minutes; after 50 take a hint): the online softmax loop.

    query and out [heads, D]; key and value caches [num_blocks, BLOCK_SIZE, D], which all heads share; block_table as in
    4.5. Run h computes the attention of query head h: it walks over the request's blocks with the three running values
    of task 4.1. What is behind the context may be NaN, and is not read. context is 1 or more.
    """
    raise NotImplementedError("Task 4.7")


def decode(query: Tensor, keys: Tensor, values: Tensor, block_table: Tensor, context: int, scale: float) -> Tensor:
    """softmax(scale * query keys^T) values for each head: [heads, D].

    >>> cache = torch.arange(6.0).view(3, 2, 1)
    >>> decode(torch.zeros(1, 1), cache, cache, torch.tensor([2, 0], dtype=torch.int32), context=3, scale=1.0)
    tensor([[3.]])
    """
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
    """Task 4.8 (2 points, 35 minutes; after 50 take a hint): grouped heads, and every key is read once.

    As 4.7, but one run serves all heads: query becomes a tile [HEADS, D], the scores of a block a tile
    [HEADS, BLOCK_SIZE], and each of the three running values has a row for each head. Every key and every value of the
    context is read from memory once, whatever the number of heads: the grader counts. HEADS is a power of two.
    """
    raise NotImplementedError("Task 4.8")


def grouped(query: Tensor, keys: Tensor, values: Tensor, block_table: Tensor, context: int, scale: float) -> Tensor:
    """The same as `decode`.

    >>> cache = torch.arange(6.0).view(3, 2, 1)
    >>> grouped(torch.zeros(2, 1), cache, cache, torch.tensor([2, 0], dtype=torch.int32), context=3, scale=1.0)
    tensor([[3.],
            [3.]])
    """
    _, block_size, dim = keys.shape
    out = torch.zeros_like(query)
    grouped_kernel[(1,)](
        out, query, keys, values, block_table, context, scale, HEADS=len(query), D=dim, BLOCK_SIZE=block_size
    )
    return out
